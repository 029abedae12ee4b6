"""conv1d to conv3d and depthwise forms, with the signatures of torch.nn.functional and activation and residual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import handle_torch_function

from ..pixel_norms import NORM_EPS
from .computers import host, modes
from .computers.passed import key_of, remember
from .computers.statistics import by_torch
from .errors import GeometryError, LayoutError, NkiconvError, raise_all
from .function_modes import is_watched, unscripted
from .operators.called import Called
from .operators.calls import call
from .operators.convolution import AXES, FAR, Convolution
from .operators.custom import NAMES
from .operators.frames import last
from .operators.pixel_norm import PixelNorm, norm_of
from .operators.prologue import NO_SCALES, Scales
from .operators.tensor_kinds import tensor_violations
from .places import groups_of, int_of, number_of, per_axis, zeros, zeros_of_transposed


class Fused(NamedTuple):
    """A call's arguments besides tensors and the convolution's own; see `Convolution`."""

    activation: str | None = None
    residual_position: str = "pre_activation"
    layer: str | None = None
    strict_nonfinite: bool = False
    x_activation: str | None = None
    return_stats: str | None = None
    x_upsample: int = 1


@unscripted
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
    packed: Tensor | None = None,
    strict_nonfinite: bool | None = None,
    x_scale: Tensor | None = None,
    x_shift: Tensor | None = None,
    x_activation: str | None = None,
    return_stats: str | None = None,
) -> Any:
    """`torch.nn.functional.conv1d` by nkiconv's kernels; one filter per channel runs on the depthwise kernel.

    Args:
        input: [N, C, W] or [C, W]; bf16, fp16 or fp32, and float64 where torch computes. weight: [K, C / groups, S].
        bias: [K].
        stride, padding, dilation, groups: as in torch, with "same" and "valid"; also padding="causal":
            (S - 1) * dilation zeros in front of each row.
        activation: fused; None or a name of `nkiconv.rules.ACTIVATIONS`, such as "silu".
        residual: of y's shape. residual_position: "pre_activation" adds it before the activation, "post_activation"
            to the activation's result.
        layer: a name for messages.
        packed: the result of `pack_filter(weight)`, which the kernel reads instead of weight; not with groups.
        strict_nonfinite: True: NaN and Inf of input reach exactly the outputs that the definition gives them, also in
            the gradient by input, by algorithms that do not multiply by zeros. False: they may reach other outputs of
            their own image. None: as `set_strict_nonfinite` says.
        x_scale, x_shift: [C] or [N, C], fp32, or float64 if input is: convolve input * x_scale + x_shift, with 1 and 0
            for None; the padding stays zero. x_activation: an activation after it, like `activation`. Computed in fp32
            as input arrives, and rounded once to input's dtype.
        return_stats: None, or "channel": also return statistics of y before it is rounded, like `channel_stats`.

    Returns: y, [N, K, Q] or [K, Q] of input's dtype; with return_stats (y, statistics [P, N, K, 3]).

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    depthwise = _has_rank3(weight) and weight.shape[1] == 1 and weight.shape[0] == groups
    name = "depthwise_conv1d" if depthwise and return_stats is None else "conv1d"
    strict = modes.wants_strict_nonfinite(strict_nonfinite)
    more = Fused(activation, residual_position, layer, strict, x_activation, return_stats)
    given = input, weight, bias, residual, (stride, padding, dilation, groups), more, packed
    return convolve(name, *given, scales=(x_scale, x_shift))


@unscripted
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
    packed: Tensor | None = None,
    strict_nonfinite: bool | None = None,
    x_scale: Tensor | None = None,
    x_shift: Tensor | None = None,
    x_activation: str | None = None,
    x_upsample: int = 1,
    return_stats: str | None = None,
    y_norm: str | None = None,
    y_norm_weight: Tensor | None = None,
    y_norm_bias: Tensor | None = None,
    y_norm_eps: float = NORM_EPS,
    return_before_norm: bool = False,
) -> Any:
    """`torch.nn.functional.conv2d` by nkiconv's kernels.

    Args:
        input: [N, C, H, W] or [C, H, W]. weight: [K, C / groups, R, S].
        x_upsample: 1, or 2: repeat each row and column once, after x_activation and before the padding, like
            `interpolate` with scale_factor=2 and mode="nearest". The kernel loads each element of input once.
        y_norm, y_norm_weight, y_norm_bias, y_norm_eps, return_before_norm: a norm over the channels of each pixel, as
            in `nkiconv.conv2d`; not with groups, x_scale, x_shift, x_activation, x_upsample or return_stats.
        The rest: as in `conv1d`, an int for both axes or one for each.

    Returns: y, [N, K, P, Q] or [K, P, Q] of input's dtype; with return_stats (y, statistics [P, N, K, 3]), with
        return_before_norm (y, the norm's input).

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    strict = modes.wants_strict_nonfinite(strict_nonfinite)
    more = Fused(activation, residual_position, layer, strict, x_activation, return_stats, int_of(x_upsample))
    given = input, weight, bias, residual, (stride, padding, dilation, groups), more, packed
    norm = norm_of(y_norm, y_norm_weight, y_norm_bias, number_of(y_norm_eps), return_before_norm)
    return convolve("conv2d", *given, scales=(x_scale, x_shift), norm=norm)


@unscripted
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    residual_position: str = "pre_activation",
    layer: str | None = None,
    packed: Tensor | None = None,
    initial_frames: Tensor | None = None,
    return_final_frames: bool | int = False,
    strict_nonfinite: bool | None = None,
    x_scale: Tensor | None = None,
    x_shift: Tensor | None = None,
    x_activation: str | None = None,
    return_stats: str | None = None,
    y_norm: str | None = None,
    y_norm_weight: Tensor | None = None,
    y_norm_bias: Tensor | None = None,
    y_norm_eps: float = NORM_EPS,
    return_before_norm: bool = False,
) -> Any:
    """`torch.nn.functional.conv3d` by nkiconv's kernels.

    Args:
        input: [N, C, D, H, W] or [C, D, H, W]. weight: [K, C / groups, T, R, S].
        padding: also three pairs, before and after each axis; negative padding crops.
        initial_frames: [N, C, F, H, W] or [C, F, H, W] of input's dtype, F >= 0 planes in front of input's. y is the
            convolution of both, with the padding around both.
        return_final_frames: True: also return the last (T - 1) * dilation planes of both, or all if there are fewer:
            the initial_frames of a video's next chunk. An int: that many planes.
        The rest: as in `conv2d`, an int for all axes or one for each; x_scale, x_shift, x_activation, return_stats not
            with initial_frames.

    Returns: y, [N, K, Z, P, Q] or [K, Z, P, Q] of input's dtype; with return_final_frames (y, planes), with
        return_stats (y, statistics), with return_before_norm (y, the norm's input).

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    strict = modes.wants_strict_nonfinite(strict_nonfinite)
    more = Fused(activation, residual_position, layer, strict, x_activation, return_stats)
    frames = None if _has_no_planes(initial_frames, input) else initial_frames
    numbers = (stride, padding, dilation, groups)
    norm = norm_of(y_norm, y_norm_weight, y_norm_bias, number_of(y_norm_eps), return_before_norm)
    given = input, weight, bias, residual, numbers, more, packed, frames, (x_scale, x_shift), norm
    found = convolve("conv3d", *given)
    if return_final_frames is False:
        return found
    y, *stats = found if isinstance(found, tuple) else [found]
    window = (weight.shape[2] - 1) * per_axis("dilation", dilation, 3)[0] + 1
    return y, last(input, frames, return_final_frames, window), *stats


def _depthwise(rank: int, filters: str, per_axis: str, result: str) -> Callable[..., Tensor]:
    """`depthwise_conv1d` or `depthwise_conv2d`; filters, per_axis, result: words of its docstring."""
    name = f"depthwise_conv{rank}d"

    @unscripted
    def depthwise_conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        *,
        activation: str | None = None,
        residual: Tensor | None = None,
        residual_position: str = "pre_activation",
        layer: str | None = None,
        strict_nonfinite: bool | None = None,
    ) -> Tensor:
        more = Fused(activation, residual_position, layer, modes.wants_strict_nonfinite(strict_nonfinite))
        groups = _groups(input, weight, rank)
        if rank == 1 and _has_rank3(weight) and weight.shape[0] != groups:
            raise GeometryError(
                f"weight.shape={tuple(weight.shape)}: must be [C, 1, S] for C={groups} channels of input; use conv1d "
                f"with groups for several filters a channel"
            )
        y: Tensor = convolve(name, input, weight, bias, residual, (stride, padding, dilation, groups), more)
        return y

    depthwise_conv.__name__ = depthwise_conv.__qualname__ = name
    depthwise_conv.__doc__ = f"""`conv{rank}d` with as many groups as channels.

    Args:
        weight: {filters}.
        The rest: as in `conv1d`{per_axis}.

    Returns: {result} of input's dtype.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
    """
    return depthwise_conv


depthwise_conv1d = _depthwise(1, "[C, 1, S]", "", "[N, C, Q] or [C, Q]")
depthwise_conv2d = _depthwise(
    2, "[C * multiplier, 1, R, S]", ", an int for both axes or one for each",
    "[N, C * multiplier, P, Q] or [C * multiplier, P, Q]",
)  # fmt: skip
#: Convolutions by the axes of their images.
BY_RANK: dict[int, Callable[..., Any]] = {1: conv1d, 2: conv2d, 3: conv3d}


def _groups(x: Any, w: Any, rank: int) -> int:
    """Channels of images, which are groups."""
    raise_all("these tensors cannot be convolved", [*tensor_violations("input", x), *tensor_violations("weight", w)])
    if x.dim() not in (rank + 1, rank + 2):
        raise LayoutError(f"input.shape={tuple(x.shape)}: must have {rank + 2} axes, or {rank + 1} of one image")
    return int(x.shape[-rank - 1])


def _has_no_planes(frames: Any, x: Any) -> bool:
    """Whether these are no frames, of the sizes and dtype of x's."""
    both = (frames, x)
    if not all(isinstance(one, Tensor) and not one.is_nested and one.dim() in (4, 5) for one in both):
        return False
    return bool(frames.dtype == x.dtype and frames.shape == (*x.shape[:-3], 0, *x.shape[-2:]))


def _has_rank3(weight: Any) -> bool:
    return isinstance(weight, Tensor) and not weight.is_nested and weight.dim() == 3


def convolve(
    name: str,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    numbers: tuple[Any, ...],
    more: Fused,
    packed: Tensor | None = None,
    frames: Tensor | None = None,
    scales: Scales = NO_SCALES,
    norm: PixelNorm | None = None,
) -> Any:
    """One call with torch's arguments.

    numbers: as torch's function takes them after the tensors; frames: planes in front of x's; scales: x_scale,
    x_shift. Returns y, or with more.return_stats (y, stats), with norm.before (y, the norm's input).
    """
    if is_watched():
        given = x, w, bias, residual, numbers, more, packed, frames, scales, norm
        return handle_torch_function(convolve, (x, w), name, *given)
    plain = norm is None and residual is packed is frames is scales[0] is scales[1] is None
    plain = plain and type(more.x_upsample) is int  # True is 1, and is refused
    # arrays, which compare element by element, are refused
    plain = plain and more.activation is more.x_activation is more.return_stats is None
    plain = plain and type(more.residual_position) is str
    if plain and more == Fused(layer=more.layer, strict_nonfinite=more.strict_nonfinite):
        y = _by_torch(name, x, w, bias, numbers)
        if y is not None:
            return y
    tensors = (x, w, bias, residual, packed, frames)
    direct, cast = modes.is_torchs(x), torch.is_autocast_enabled("cpu")
    key = key_of(name, numbers, more, cast, *tensors, *scales, *(norm or ())) if direct else None
    if key in _passed:
        x, w, bias, residual, packed, frames = autocast(*tensors) if cast else tensors
        return _run(Called(_passed[key], x, w, bias, residual, packed, frames, scales, norm), direct)
    wrong = [*tensor_violations("input", x), *tensor_violations("weight", w)]
    for argument, one in zip(_OPTIONAL, (*tensors[2:], *scales), strict=True):
        if one is not None and not isinstance(one, Tensor):
            wrong += tensor_violations(argument, one)
    raise_all(f"{name} cannot run this call", wrong)
    x, w, bias, residual, packed, frames = autocast(*tensors)
    asked = asked_for(name, w, numbers, more)
    asked.refuse(_lacks_an_axis(asked, x, w))
    called = Called(asked, x, w, bias, residual, packed, frames, scales, norm)
    _batched(called).check()
    if key is not None:
        remember(_passed, key, asked)
    return _run(called, direct)


#: A call's optional tensors.
_OPTIONAL = ("bias", "residual", "packed", "initial_frames", "x_scale", "x_shift")
#: Convolutions of calls on the host that passed every check.
_passed: dict[Any, Convolution] = {}


def _lacks_an_axis(asked: Convolution, x: Tensor, w: Tensor) -> list[NkiconvError]:
    """The error of one image without N whose channels the filters do not take: most often images without channels."""
    if x.dim() != asked.rank + 1 or w.dim() != asked.rank + 2:
        return []
    taken = w.shape[0] if asked.transposed else w.shape[1] * asked.groups
    if taken == x.shape[0]:
        return []
    axes = AXES[asked.rank]
    return [
        GeometryError(
            f"input.shape={tuple(x.shape)} is read as [C, {axes}] of one image, C={x.shape[0]}; filters of "
            f"weight.shape={tuple(w.shape)} with groups={asked.groups} take C={taken}; pass [N, C, {axes}], or other "
            f"filters"
        )
    ]


def _batched(called: Called) -> Called:
    """The call with an axis of images."""
    if called.x.dim() != called.asked.rank + 1:
        return called
    residual, frames = (None if one is None else one.unsqueeze(0) for one in (called.residual, called.frames))
    return called._replace(x=called.x.unsqueeze(0), residual=residual, frames=frames)


def _run(called: Called, direct: bool) -> Any:
    """Results of a checked call, by torch's functions where `direct`."""
    given, norm = _batched(called), called.norm
    found = by_torch(given) if direct else call(given)
    if given is called:
        return found[0] if norm is not None and not norm.before else found
    if isinstance(found, Tensor):
        return found.squeeze(0)
    y, more = found[0].squeeze(0), found[1]
    if norm is None:
        return y, more
    return (y, more.squeeze(0)) if norm.before else y


def _by_torch(name: str, x: Any, w: Any, bias: Any, numbers: tuple[Any, ...]) -> Tensor | None:
    """torch's own y of a plain call on the host; None for other calls, and for calls that torch refuses, whose errors
    nkiconv names.

    Under selective checkpointing it returns None: a kept result is given only once there, and errors of a retry would
    not be this call's.
    """
    causal = isinstance(numbers[1], str) and numbers[1] == "causal"  # not of arrays, which are refused
    if not modes.is_torchs(x) or causal or _is_huge(numbers) or torch._C._len_torch_dispatch_stack():
        return None
    for one in (x, w) if bias is None else (x, w, bias):
        alike = isinstance(one, Tensor) and one.is_cpu and one.dtype == x.dtype and one.layout is torch.strided
        if not alike or one.dtype not in host.NATIVE:
            return None
    function: Callable[..., Tensor] = getattr(F, name.removeprefix("depthwise_"))
    try:
        return function(x, w, bias, *numbers)
    except (RuntimeError, TypeError, ValueError):
        return None


def _is_huge(numbers: tuple[Any, ...]) -> bool:
    """Whether any of these but groups is above FAR, or no int of Python: results may be larger than memory, which ends
    the process, or blank, and torch's own arithmetic may overflow."""
    for one in numbers[:3] + numbers[4:]:
        if type(one) is int:
            if one > FAR:
                return True
        elif type(one) is tuple or type(one) is list:
            for each in one:
                if type(each) is not int or each > FAR:
                    return True
        elif type(one) is not str:
            return True
    return False


def asked_for(name: str, w: Tensor, numbers: tuple[Any, ...], more: Fused) -> Convolution:
    """The Convolution of a call; w: for padding that depends on its taps. A transposed one has input with stride - 1
    zeros between neighbours, and the filter rotated by 180 degrees."""
    rank, transposed = NAMES[name], "transpose" in name
    if transposed:
        stride, padding, ends, groups, dilation = numbers
    else:
        (stride, padding, dilation, groups), ends = numbers, None
    steps, gaps = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    groups = groups_of(groups)
    pairs = zeros_of_transposed(padding, ends, w, steps, gaps) if transposed else zeros(padding, w, steps, gaps)
    stride, spread = ((1,) * rank, steps) if transposed else (steps, (1,) * rank)
    return Convolution(name, stride, pairs, gaps, spread, groups, **more._asdict())


def autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Under torch.autocast of their device, floating tensors but float64 ones in its dtype, as torch's convolutions."""
    kind = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not modes.is_autocast(kind):
        return tensors

    def cast(one: Tensor) -> Tensor:
        is_cast = one.is_floating_point() and one.dtype != torch.float64 and one.device.type == kind
        return one.to(torch.get_autocast_dtype(kind)) if is_cast else one

    return tuple(None if one is None else cast(one) for one in tensors)
