"""A norm of channels, an activation and a convolution in one kernel, and the statistics of channels for norms.

    y = norm_act_conv2d(x, w, b, padding=1, norm="group", norm_weight=gamma, norm_bias=beta, x_activation="silu")

equals conv2d(silu(group_norm(x, 32, gamma, beta)), w, b, padding=1) up to the rounding of intermediate tensors. The
norm becomes a scale and a shift per channel, which the convolution's kernel applies to x as it arrives; two small
kernels compute them first, `channel_stats` and `norm_scale_shift`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import norms, rules
from ..errors import refuse, refused
from ..norms import STATS
from .computers import host, modes
from .computers.statistics import Norm, ScaleShift, norm_by_torch, stats_by_torch
from .errors import GeometryError, LayoutError, UnsupportedError, raise_all
from .function_modes import one_call
from .functional import BY_RANK as CONVOLVE
from .functional import autocast
from .operators import statistics
from .operators.tensor_kinds import beside_violations, tensor_violations
from .places import int_of, number_of


@one_call
def channel_stats(input: Tensor) -> Tensor:
    """Count, mean and variance of input by image and channel, like `nkiconv.channel_stats`.

    Derivatives are those of all parts combined, as `norm_scale_shift` reads them.

    Args:
        input: [N, C, ...], one to three axes beside N and C; bf16, fp16 or fp32, and float64 where torch computes.

    Returns: [P, N, C, 3], fp32, or float64 if input is: (count, mean, biased variance) of P parts, one per core.

    Raises: DtypeError, GeometryError, LayoutError, UnsupportedError, before any work.
    """
    statistics.check_input(input)
    return stats_by_torch(input) if modes.is_torchs(input) else statistics.channel_stats(input)


@one_call
def norm_scale_shift(
    stats: Tensor | Sequence[Tensor],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    norm: str = "group",
    num_groups: int | None = None,
    eps: float = 1e-5,
) -> ScaleShift:
    """The norm of channels with these statistics as x * scale + shift, as `nkiconv.norm_scale_shift` of arrays.

    Args:
        stats: [P, N, C, 3], as in `channel_stats`, or a sequence of such, of pieces of x.
        weight, bias: [C], of any dtype that kernels take; None: 1 and 0.
        norm: "group", "batch" (in training) or "instance". num_groups: of norm "group"; None: 32.
        eps: added to the variance.

    Returns: (scale, shift, mean, variance), of stats's dtype: scale and shift [N, C], or [C] of "batch"; mean and
        biased variance [N, num_groups], [C], or [N, C] of "instance".

    Raises: DtypeError, GeometryError, UnsupportedError, before any work.
    """
    several = tuple(stats) if isinstance(stats, (list, tuple)) else (stats,)
    if not several:
        raise GeometryError("stats=(): must have at least one tensor; pass those of channel_stats")
    for index, one in enumerate(several):
        statistics.check_stats("stats" if len(several) == 1 else f"stats[{index}]", one)
        if one.shape[1:] != several[0].shape[1:]:
            raise GeometryError(
                f"stats[{index}].shape={tuple(one.shape)}: must be [P, {several[0].shape[1]}, {several[0].shape[2]}, "
                f"{STATS}] as stats[0]'s; pass statistics of pieces of one x"
            )
    together = several[0] if len(several) == 1 else torch.cat(several)
    asked = Norm(norm, int_of(num_groups), number_of(eps))
    statistics.check_norm(asked, together.shape[2], weight, bias, together)
    if modes.is_torchs(together):
        return norm_by_torch(together, weight, bias, asked)
    return statistics.norm_scale_shift(together, weight, bias, asked)


def _running_scale_shift(
    mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, x: Tensor
) -> tuple[Tensor, Tensor]:
    """(scale, shift), [C], of a norm with fixed statistics [C], in fp32, or float64 where x is."""
    wide = host.wide_dtype(x)
    scale = (variance.to(wide) + eps).rsqrt()
    scale = scale if weight is None else scale * weight.to(wide)
    shift = mean.to(wide) * -scale
    return scale, shift if bias is None else shift + bias.to(wide)


def _check_values(norm: Norm, x: Tensor) -> None:
    """Refuse a mean of a single value, as torch's norms do. Raises GeometryError."""
    pixels = x[0, 0].numel() if x.shape[0] * x.shape[1] else 1
    images = x.shape[0] if norm.norm == "batch" else 1
    if x.shape[0] * x.shape[1] and images * pixels * (x.shape[1] // norm.groups(x.shape[1])) == 1:
        raise GeometryError(
            f"input.shape={tuple(x.shape)}: norm={norm.norm!r} has one value for each mean, so that its result is its "
            f"bias; give it more"
        )


def _of_one_image(rank: int, x: Any, residual: Any) -> tuple[Any, Any, bool]:
    """(x, residual, whether x came without its axis of images), both with one."""
    raise_all(f"norm_act_conv{rank}d cannot run this call", list(tensor_violations("input", x)))
    if x.dim() != rank + 1:
        return x, residual, False
    return x[None], residual[None] if isinstance(residual, Tensor) else residual, True


def _normalised(
    x: Tensor,
    norm: Norm,
    affine: tuple[Any, Any],
    stats: Any,
    running: tuple[Any, Any] | None,
    momentum: Any,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(scale, shift), of a norm of x [N, C, ...] + offset, for that sum. affine: weight and bias; running: fixed mean
    and variance, which move by momentum where that is not None."""
    names = "norm_weight", "norm_bias"
    statistics.check_norm(norm, x.shape[1], *affine, x, names)
    if running is not None:
        statistics.check_norm(norm, x.shape[1], *running, x, ("running_mean", "running_var"))
        if momentum is None:
            return _running_scale_shift(*running, *affine, norm.eps, x)
    _check_values(norm, x)
    if stats is None:
        stats = channel_stats(x)
    several = stats if isinstance(stats, (list, tuple)) else (stats,)
    for one in several:
        statistics.check_stats("stats", one, x)
    if offset is not None:  # which moves the mean of each image and channel, and leaves the variance
        several = [torch.stack([count, mean + offset, var], -1) for count, mean, var in (s.unbind(-1) for s in several)]
    found = norm_scale_shift(several, *affine, **norm._asdict())
    if running is not None and x.shape[0] > 0:
        _move(running, found, x.numel() // x.shape[1], momentum)
    return found.scale, found.shift


def _modulated(
    scale: Tensor, shift: Tensor, offset: Tensor | None, factor: Tensor | None, added: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(scale, shift) of x in ((x + offset) * scale + shift) * factor + added."""
    shift = shift if offset is None else shift + offset * scale
    scale, shift = (scale, shift) if factor is None else (scale * factor, shift * factor)
    return scale, shift if added is None else shift + added


def _numbers(rank: int, x: Tensor, **given: Any) -> list[Tensor | None]:
    """Numbers of channels in the dtype of scale and shift. Raises LayoutError: x has other axes; DtypeError,
    GeometryError."""
    if x.dim() != rank + 2:
        raise LayoutError(f"input.shape={tuple(x.shape)}: must have {rank + 2} axes, or {rank + 1} of one image")
    some = {name: one for name, one in given.items() if one is not None}
    errors = [error for name, one in some.items() for error in tensor_violations(name, one)]
    for name, one in some.items() if not errors else ():
        errors += beside_violations(name, one, x)
        errors += refused(GeometryError, rules.of_channels(name, one.shape, x.shape[0], x.shape[1]))
    raise_all(f"norm_act_conv{rank}d cannot run this call", errors)
    wide = host.wide_dtype(x)
    return [None if one is None else one.to(wide) for one in given.values()]


def _move(running: tuple[Tensor, Tensor], found: ScaleShift, values: int, momentum: Any) -> None:
    """Move running statistics toward those found, of a number of values per channel, like torch's batch_norm."""
    with torch.no_grad():
        unbiased = found.variance * (values / (values - 1))
        for kept, one in zip(running, (found.mean, unbiased), strict=True):
            kept.copy_(kept * (1 - momentum) + one.to(kept.dtype) * momentum)


def _of_rank(rank: int) -> Callable[..., Any]:
    @one_call
    def norm_act_conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] | Sequence[Sequence[int]] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        *,
        norm: str = "group",
        num_groups: int | None = None,
        norm_weight: Tensor | None = None,
        norm_bias: Tensor | None = None,
        eps: float = 1e-5,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        training: bool = False,
        momentum: float | Tensor = 0.1,
        stats: Tensor | Sequence[Tensor] | None = None,
        offset: Tensor | None = None,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        x_activation: str | None = "silu",
        x_upsample: int = 1,
        activation: str | None = None,
        residual: Tensor | None = None,
        residual_position: str = "pre_activation",
        layer: str | None = None,
        packed: Tensor | None = None,
        strict_nonfinite: bool | None = None,
        return_stats: str | None = None,
    ) -> Any:
        x, added, alone = _of_one_image(rank, input, residual)
        (x,) = autocast(x)
        running = None if running_mean is running_var is None else (running_mean, running_var)
        momentum, x_upsample = number_of(momentum), int_of(x_upsample)
        _check_running(norm, running, stats, training, momentum)
        taken = rules.UPSAMPLES if rank == 2 else (1,)
        refuse(UnsupportedError, rules.accepted("x_upsample", x_upsample, taken, "upsample what the norm gives"))
        asked, affine = Norm(norm, int_of(num_groups), number_of(eps)), (norm_weight, norm_bias)
        numbers = _numbers(rank, x, offset=offset, scale=scale, shift=shift)
        of_norm = _normalised(x, asked, affine, stats, running, momentum if training else None, numbers[0])
        x_scale, x_shift = _modulated(*of_norm, *numbers)
        prologue: dict[str, Any] = {"x_scale": x_scale, "x_shift": x_shift, "x_activation": x_activation}
        prologue |= {} if x_upsample == 1 else {"x_upsample": x_upsample}
        epilogue = {"activation": activation, "residual": added, "residual_position": residual_position}
        more = {"layer": layer, "packed": packed, "strict_nonfinite": strict_nonfinite, "return_stats": return_stats}
        given = x, weight, bias, stride, padding, dilation, groups
        found = CONVOLVE[rank](*given, **prologue, **epilogue, **more)
        y, *of_y = [found] if return_stats is None else found
        y = y[0] if alone else y
        return (y, *of_y) if of_y else y

    norm_act_conv.__name__ = norm_act_conv.__qualname__ = f"norm_act_conv{rank}d"
    norm_act_conv.__doc__ = _DOCUMENTATION.format(rank=rank)
    return norm_act_conv


def _check_running(
    norm: str, running: tuple[Any, Any] | None, stats: Any, training: bool, momentum: float | Tensor
) -> None:
    """Refuse running statistics and training where they do not belong. Raises UnsupportedError."""
    refuse(UnsupportedError, rules.flag("training", training))
    is_one = isinstance(momentum, Tensor) and momentum.numel() == 1
    wrong = ["" if is_one else norms.momentum(momentum)]
    if training and norm != "batch":
        wrong.append(f"training=True: norm={norm!r} is the same in both modes; leave it out, or pass norm='batch'")
    if running is not None and norm != "batch":
        wrong.append(f"running_mean, running_var: norm={norm!r} has none; leave them out, or pass norm='batch'")
    if running is not None and (running[0] is None or running[1] is None):
        wrong.append("running_mean, running_var: one of them is None; pass both, or none for statistics of input")
    if running is not None and stats is not None and not training:
        wrong.append("stats: running_mean and running_var are used in eval mode; pass one or the other")
    raise_all("norm_act_conv cannot run this call", list(refused(UnsupportedError, *wrong)))


_DOCUMENTATION = """conv{rank}d(x_activation(norm(input)), weight, bias, ...), norm and activation on the way in.

Args:
    input, weight, bias, stride, padding, dilation, groups: as in `conv{rank}d`; padding comes after the norm, zeros.
    norm: "group", "batch" or "instance": what shares a mean, as torch's modules of these names. num_groups: of
        "group"; None: 32.
    norm_weight, norm_bias: [C], of the norm; None: 1 and 0. eps: added to the variance.
    running_mean, running_var: [C], of norm "batch": instead of statistics of input, or with training=True moved toward
        these by momentum, in place, as torch's batch_norm does. None: statistics of input alone.
    stats: statistics of input, as in `channel_stats` or of return_stats of what wrote it; None: they are taken here.
    offset: [C] or [N, C], of input's dtype: what is normed is input + offset, of each channel, which is never stored:
        it moves the means, and goes into the shift. None: input.
    scale, shift: [C] or [N, C], of input's dtype: what the norm gives is multiplied by scale, and shift added, as time
        embeddings do, before x_activation. None: neither.
    x_activation: of what the norm gives: None or a name of `nkiconv.rules.ACTIVATIONS`.
    x_upsample: as in `conv2d`, of what x_activation gives; 1 of other ranks.
    activation, residual, residual_position, layer, packed, strict_nonfinite, return_stats: as in `conv{rank}d`, of its
        result.

Scale and shift are fp32, what is convolved is rounded once to input's dtype. Under torch.autocast input is cast before
the norm. Backward computes again what is convolved: input alone is kept.

Returns: as `conv{rank}d`.

Raises: GeometryError, DtypeError, LayoutError, UnsupportedError (ValueError or TypeError), before any work.
"""

norm_act_conv1d = _of_rank(1)
norm_act_conv2d = _of_rank(2)
norm_act_conv3d = _of_rank(3)
#: These by the axes of their images.
BY_RANK: dict[int, Any] = {1: norm_act_conv1d, 2: norm_act_conv2d, 3: norm_act_conv3d}
