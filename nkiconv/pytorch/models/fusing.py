"""Modules of a fused chain: classes that a norm and a convolution get, so that both and the activation between them are
one call of `norm_act_conv1d` to `norm_act_conv3d`.

The norm's class hands on a `Normed`, the convolution's takes it. Everything is read from the modules in each call, and
wherever a call is not one that the chain was proved for (autocast, one image, hooks), each module computes by itself.
A convolution whose result norms read notes its statistics on the tensor, where the next chain finds them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..computers.host import activate
from ..computers.modes import is_autocast, is_torchs, wants_strict_nonfinite
from ..functional import BY_RANK as CONVOLVE
from ..functional import conv2d
from ..norm_act import BY_RANK as NORM_ACT
from ..norm_act import channel_stats
from ..norm_act_modules import is_hooked, running_statistics
from ..operators.statistics import known_stats
from ..transposed import conv_transpose2d, polyphase_filter
from .classes import Changed, change_class
from .norms import activation_within, base_forward_of
from .pending import Convolved, Joined, Normed, Shifted, Upsampled, handed_on, tensor_of, version_of
from .prices import prologue_pays, statistics_pay, sum_pays

#: Name of the attribute of a chain's modules that is their `Ends`.
_ENDS = "nkiconv_ends"
#: Arguments of a BatchNorm that are left out where its running statistics have moved.
_RUNNING = ("running_mean", "running_var", "training")
_GROUP = torch.nn.GroupNorm.forward
_INSTANCE = _InstanceNorm.forward
_BATCH = (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward)


class Ends(NamedTuple):
    """The steps around a convolution or a norm that every graph of a model shows."""

    adds: bool = False  # a sum follows the convolution
    over_one: bool = False  # which is divided by 1
    activates: bool = False  # an activation follows the convolution, or its sum
    statistics: bool = False  # norms read all that the convolution writes; or such convolutions write what it reads
    training: bool = False  # these norms take statistics in training alone
    shifts: bool = False  # they read it with a number for each channel added
    polyphase: bool = False  # of an image that is doubled in front of it, it sums the taps that meet one pixel


def mark(module: torch.nn.Module, ends: Ends) -> None:
    """Note the steps around a module of a chain on the module."""
    vars(module)[_ENDS] = ends


def ends_of(module: torch.nn.Module) -> Ends:
    """The steps noted on a module."""
    found: Ends = vars(module).get(_ENDS, Ends())
    return found


def waits(module: torch.nn.Module) -> bool:
    """Whether a module returns a Pending; with hooks it computes at once."""
    ends = ends_of(module)
    return ends.adds or ends.activates or ends.shifts or isinstance(module, HandsOn)


def is_channel_norm(module: torch.nn.Module | None) -> bool:
    """Whether a module is a norm by groups, batch or instance, of torch or made from one."""
    return isinstance(module, (torch.nn.GroupNorm, _BatchNorm, _InstanceNorm))


def norm_arguments(norm: Any) -> dict[str, Any] | str:
    """A norm's arguments of `norm_act_conv2d`, with the parameters as they are now, or why it cannot be one."""
    forward = plain_forward_of(type(norm))
    if forward not in (_GROUP, _INSTANCE, *_BATCH):
        if activation_within(norm) is None:
            return f"is a {type(norm).__name__} with a forward of its own"
        forward = base_forward_of(norm)
    affine = {"norm_weight": norm.weight, "norm_bias": norm.bias, "eps": norm.eps}
    if forward is _GROUP:
        return {"norm": "group", "num_groups": norm.num_groups, **affine}
    if forward is _INSTANCE:
        if norm.track_running_stats:
            return "has running statistics, which fused instance norms lack"
        return {"norm": "instance", **affine}
    if norm.training and isinstance(norm, torch.nn.SyncBatchNorm):
        return "takes statistics of all processes in training; call model.eval() first"
    return {"norm": "batch", **running_statistics(norm, counts=False), **affine}


def takes_statistics(arguments: dict[str, Any] | str) -> bool:
    """Whether a norm takes statistics of its input; arguments: as of `norm_arguments`."""
    if isinstance(arguments, str):
        return False
    return arguments["norm"] != "batch" or bool(arguments.get("training", True))


def activation_of_norm(norm: Any) -> str | None:
    """Of a norm whose own forward ends with one."""
    has_own = plain_forward_of(type(norm)) not in (_GROUP, _INSTANCE, *_BATCH)
    return (activation_within(norm) or None) if has_own else None


def plain_forward_of(kind: Any) -> Any:
    """The forward of a norm's class before it returned a Pending."""
    return getattr(kind, "plain_forward", kind.forward)


class After(NamedTuple):
    """The epilogue of a convolution's call."""

    residual: Tensor | None = None
    activation: str | None = None

    def arguments(self, convolution: Any) -> dict[str, Any]:
        """Of the functional call; a residual comes after the activation of the convolution's own."""
        own = convolution.activation
        position = "pre_activation" if own is None else "post_activation"
        return {
            **convolution._fused(),
            "activation": own or self.activation,
            "residual": self.residual,
            "residual_position": position,
        }


def fused(normed: Normed, convolution: Any, x: Tensor, after: After, arguments: dict[str, Any]) -> Tensor:
    """A pending norm, a convolution and its epilogue by one call, with statistics of x where they are known.

    x: the norm's input; arguments: of the norm.
    """
    norm, padded = normed.norm_module, normed.padded(x)
    around, padding = convolution._around(padded)
    weight, packed = convolution._filters(x)
    more = {**arguments, **after.arguments(convolution), "x_activation": normed.activation, "offset": normed.offset()}
    more |= normed.modulation()
    if takes_statistics(arguments):
        stats = statistics_of(x) if ends_of(norm).statistics else None
        more["stats"] = channel_stats(x) if stats is None and around is not x else stats
    numbers = convolution.stride, padding, convolution.dilation, convolution.groups
    call = functools.partial(NORM_ACT[len(convolution.kernel_size)], around, weight, convolution.bias, *numbers)
    return _called(convolution, x, functools.partial(call, **more, packed=packed))


def doubled(convolution: Any, x: Tensor, after: After, polyphase: bool, **more: Any) -> Any:
    """A convolution of x upsampled by 2 and its epilogue, by one call.

    polyphase: by a transposed convolution with sums of taps, except under strict_nonfinite: Inf times a sum is not the
    sum of Inf times each tap.
    """
    given = after.arguments(convolution) | more
    if not polyphase or wants_strict_nonfinite(convolution.strict_nonfinite):
        return convolution._convolved(conv2d, x, x_upsample=2, **given)
    filters = polyphase_filter(convolution._filters(x)[0], convolution.groups)
    sides = [taps - 1 - side for taps, side in zip(convolution.kernel_size, convolution.padding, strict=True)]
    return conv_transpose2d(x, filters, convolution.bias, 2, sides, 0, convolution.groups, **given)


#: Name of the attribute of a tensor that is (its statistics, how often it was changed in place then).
_STATISTICS = "_nkiconv_statistics"


def keep_statistics(y: Tensor, stats: Tensor) -> Tensor:
    """The tensor y with its statistics (`channel_stats`) as an attribute; results of other operators have none.

    Their derivatives go through y, for y's gradient is asked for too (`retain_grad`, hooks of tensors).
    """
    if torch.compiler.is_compiling():  # an operator's several results cannot have attributes there
        y = y.view_as(y)
    if y.requires_grad and torch.is_grad_enabled() and not is_torchs(y):
        stats = known_stats(y, stats)
    setattr(y, _STATISTICS, (stats, version_of(y)))
    return y


def statistics_of(x: Tensor) -> Tensor | None:
    """The statistics that are noted on a tensor, if it was not changed in place since then, and has derivatives as
    they have."""
    stats, version = getattr(x, _STATISTICS, (None, None))
    return stats if version == version_of(x) and x.requires_grad == getattr(stats, "requires_grad", None) else None


def _called(convolution: Any, x: Tensor, call: Callable[..., Any]) -> Tensor:
    """y of a convolution's call, which keeps its statistics where a norm reads them, and they pay."""
    ends = ends_of(convolution)
    wanted = ends.statistics and (convolution.training or not ends.training)
    # they are of the sum
    wanted = wanted and (not ends.adds or sum_pays(convolution, x))
    if not wanted or not statistics_pay(convolution, x):
        plain: Tensor = call()
        return plain
    return keep_statistics(*call(return_stats="channel"))


class HandsOn(Changed):
    """A norm whose result is pending where a chain can take it."""

    plain_forward = Changed.forward

    def forward(self, input: Any) -> Any:
        shifted = isinstance(input, Shifted) and input.is_open()
        x = input.y if shifted else tensor_of(input)
        plain = (
            not isinstance(x, Tensor)  # also where torch.fx traces
            or isinstance(norm_arguments(self), str)
            or is_hooked(self)
            or is_autocast(x.device.type)
        )
        if plain:
            return super().forward(tensor_of(input))
        return handed_on(Normed, self, input if shifted else x, activation_of_norm(self))

    def forward_again(self: Any, input: Tensor) -> Tensor:
        """The result of forward, without moving running statistics again."""
        if not (self.training and isinstance(self, _BatchNorm)):
            found: Tensor = self.plain_forward(input)
            return found
        y = F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
        own = activation_of_norm(self)
        return y if own is None else activate(y, own)


class TakesPending(Changed):
    """A convolution that computes its chain with it."""

    def forward(self, input: Any, *args: Any, **named: Any) -> Any:
        images = len(self.kernel_size) + 2
        if args or named:
            return super().forward(tensor_of(input), *args, **named)
        if isinstance(input, Normed) and input.is_open() and input.x.dim() == images and _fits(self, input):
            return _handed_on(self, input.input(), input)
        if isinstance(input, Upsampled) and input.is_open() and images == 4 and not self.transposed:
            return _handed_on(self, input.input(), None, 2)
        if isinstance(input, Joined) and input.is_open() and not ends_of(self).statistics:
            x, frames = input.parts()
            return _handed_on(self, x, None, frames=frames)
        input = tensor_of(input)
        if not isinstance(input, Tensor) or input.dim() != images:
            return super().forward(input)
        hooked = is_hooked(self)
        if not waits(self) or hooked or is_autocast(input.device.type):
            return _called(self, input, functools.partial(super().forward, input))
        return _handed_on(self, input, None)


def read_pending(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Make all convolutions of these names accept a Pending as their input."""
    for name in names:
        change_class(model.get_submodule(name), TakesPending)


def _handed_on(
    convolution: Any, x: Tensor, normed: Normed | None, x_upsample: int = 1, frames: Tensor | None = None
) -> Any:
    """The result of a convolution of x, of its norm, of upsampled x or of x behind frames; pending if its call takes a
    later step."""
    ends = ends_of(convolution)
    arguments = {} if normed is None else norm_arguments(normed.norm_module)
    assert not isinstance(arguments, str)  # a norm without arguments is never pending

    def call(*given: Any) -> Tensor:
        after = After(*given)
        if normed is not None:
            return fused(normed, convolution, x, after, _once(normed, arguments))
        if x_upsample == 2:
            return _called(convolution, x, functools.partial(doubled, convolution, x, after, ends.polyphase))
        function = CONVOLVE[len(convolution.kernel_size)]
        more = after.arguments(convolution) | ({} if frames is None else {"initial_frames": frames})
        plain = functools.partial(convolution._convolved, function, x, **more)
        return _called(convolution, x, plain)

    if not waits(convolution):
        return call()
    can_activate = ends.activates and convolution.activation is None
    adds = ends.adds and sum_pays(convolution, x)
    more = {"adds": adds, "over_one": ends.over_one, "activates": can_activate, "shifts": ends.shifts}
    sizes: Sequence[int] = [*x.shape[:2], *(x_upsample * size for size in x.shape[2:])]
    if frames is not None:
        sizes = [*sizes[:2], sizes[2] + frames.shape[2], *sizes[3:]]
    for padding in () if normed is None else normed.paddings:
        sizes = padding.sizes(sizes)
    return handed_on(Convolved, call, (x.shape[0], *_shape(convolution, sizes[2:])), x, **more)


def _fits(convolution: Any, normed: Normed) -> bool:
    """Whether a norm goes into a convolution's call: the convolution is not transposed, running statistics are not of a
    padded input, and one call is faster."""
    arguments = norm_arguments(normed.norm_module)
    assert not isinstance(arguments, str)  # a norm without arguments is never pending
    is_padded = bool(normed.paddings) or convolution.padding_mode != "zeros"
    if convolution.transposed or (is_padded and arguments.get("training", False)):
        return False
    return is_padded or prologue_pays(normed.norm_module, convolution, normed.x, normed.activation)


def _once(normed: Normed, arguments: dict[str, Any]) -> dict[str, Any]:
    """A norm's arguments; only the first call moves running statistics."""
    if not arguments.get("training", False):
        return arguments
    if normed.is_first():
        return {**arguments, **running_statistics(normed.norm_module)}
    return {name: value for name, value in arguments.items() if name not in _RUNNING}


def _shape(convolution: Any, sizes: Sequence[int]) -> tuple[int, ...]:
    """Of a convolution's result, without N, of images of these sizes."""
    if convolution.padding != "same":
        sides = [0] * len(sizes) if convolution.padding == "valid" else convolution.padding
        each = zip(sizes, convolution.kernel_size, sides, convolution.stride, convolution.dilation, strict=True)
        sizes = [(size + 2 * side - (taps - 1) * gap - 1) // step + 1 for size, taps, side, step, gap in each]
    return (convolution.out_channels, *sizes)
