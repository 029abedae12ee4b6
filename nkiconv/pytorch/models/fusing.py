"""Modules of a fused chain: classes that a norm and a convolution get, so that both and the activation between them are
one call of `norm_act_conv1d` to `norm_act_conv3d`.

The norm's class hands on a `Normed`, the convolution's takes it. Everything is read from the modules in each call, and
wherever a call is not one that the chain was proved for (a norm in training, autocast, one image, hooks), each module
computes by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..computers.modes import is_autocast
from ..norm_act import norm_act_conv1d, norm_act_conv2d, norm_act_conv3d
from ..norm_act_modules import HOOKS
from .classes import define
from .pending import Convolved, Normed, keep_statistics, statistics_of, tensor_of

_CALLS: dict[int, Any] = {1: norm_act_conv1d, 2: norm_act_conv2d, 3: norm_act_conv3d}
#: Name of the attribute of a chain's modules that is their `Ends`.
_ENDS = "nkiconv_ends"
_GROUP = torch.nn.GroupNorm.forward
_INSTANCE = _InstanceNorm.forward
_BATCH = (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward)


class Ends(NamedTuple):
    """What every graph of a model shows around a convolution or a norm."""

    adds: bool = False  # a sum follows the convolution
    over_one: bool = False  # which is divided by 1
    statistics: bool = False  # norms read all that the convolution writes; or such convolutions write what it reads


def mark(module: torch.nn.Module, ends: Ends) -> None:
    """Note on a module of a chain what is around it."""
    vars(module)[_ENDS] = ends


def _ends(module: torch.nn.Module) -> Ends:
    found: Ends = vars(module).get(_ENDS, Ends())
    return found


def is_channel_norm(module: torch.nn.Module) -> bool:
    """Whether a module is a norm by groups, batch or instance, of torch or made from one."""
    return isinstance(module, (torch.nn.GroupNorm, _BatchNorm, _InstanceNorm))


def norm_arguments(norm: Any) -> dict[str, Any] | str:
    """A norm's arguments of `norm_act_conv2d`, with the parameters as they are now, or why it cannot be one."""
    forward = plain_forward_of(type(norm))
    affine = {"norm_weight": norm.weight, "norm_bias": norm.bias, "eps": norm.eps}
    if forward is _GROUP:
        return {"norm": "group", "num_groups": norm.num_groups, **affine}
    if forward is _INSTANCE:
        if norm.track_running_stats:
            return "has running statistics, which fused instance norms lack"
        return {"norm": "instance", **affine}
    if forward not in _BATCH:
        return f"is a {type(norm).__name__} with a forward of its own"
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return "takes statistics of the batch; call model.eval() first"
    return {"norm": "batch", "running_mean": norm.running_mean, "running_var": norm.running_var, **affine}


def plain_forward_of(kind: Any) -> Any:
    """The forward of a norm's class before it handed on what is pending."""
    return getattr(kind, "plain_forward", kind.forward)


def fused(
    norm: Any, activation: str | None, convolution: Any, x: Tensor, residual: Tensor | None, arguments: dict[str, Any]
) -> Tensor:
    """residual + convolution(activation(norm(x))) by one call, with statistics of x where they are known."""
    numbers = convolution.stride, convolution.padding, convolution.dilation, convolution.groups
    position = "pre_activation" if convolution.activation is None else "post_activation"
    weight, packed = convolution._filters(x)
    more = {**arguments, "x_activation": activation, "residual": residual, "residual_position": position}
    if _ends(norm).statistics:
        more["stats"] = statistics_of(x)
    call = functools.partial(_CALLS[len(convolution.kernel_size)], x, weight, convolution.bias, *numbers)
    return _called(convolution, functools.partial(call, **more, **convolution._fused(), packed=packed))


def _called(convolution: Any, call: Callable[..., Any]) -> Tensor:
    """y of a convolution's call, which keeps its statistics where a norm reads them."""
    if not _ends(convolution).statistics:
        plain: Tensor = call()
        return plain
    return keep_statistics(*call(return_stats="channel"))


@define
def hands_on(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """A norm's class whose result is pending where a chain can take it."""

    def forward(self: Any, input: Any) -> Any:
        input = tensor_of(input)
        plain = (
            not isinstance(input, Tensor)  # also where torch.fx traces
            or isinstance(norm_arguments(self), str)
            or any(getattr(self, hooks) for hooks in HOOKS)
            or is_autocast(input.device.type)
        )
        return kind.forward(self, input) if plain else Normed(self, input)

    # torch.fx looks into a class that is not torch's
    return (kind,), {"forward": forward, "plain_forward": kind.forward, "__module__": __name__}


@define
def takes_pending(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """A convolution's class that computes its chain with it."""

    def forward(self: Any, input: Any, *args: Any, **named: Any) -> Any:
        is_chain = isinstance(input, Normed) and input.tensor is None and not args and not named
        if not is_chain or input.x.dim() != len(self.kernel_size) + 2:
            input = tensor_of(input)
            is_plain = not (args or named) and isinstance(input, Tensor) and input.dim() == len(self.kernel_size) + 2
            plain = functools.partial(kind.forward, self, input, *args, **named)
            return _called(self, plain) if is_plain else plain()
        x, norm, activation = input.input(), input.norm, input.activation
        arguments = norm_arguments(norm)
        assert not isinstance(arguments, str)  # it has handed on what is pending

        def call(residual: Tensor | None) -> Tensor:
            return fused(norm, activation, self, x, residual, arguments)

        ends = _ends(self)
        return Convolved(call, _shape(self, x), x, ends.over_one) if ends.adds else call(None)

    return (kind,), {"forward": forward}


def _shape(convolution: Any, x: Tensor) -> tuple[int, ...]:
    """Of a convolution's result, [N, K, ...]."""
    sizes = list(x.shape[2:])
    if convolution.padding != "same":
        sides = [0] * len(sizes) if convolution.padding == "valid" else convolution.padding
        each = zip(sizes, convolution.kernel_size, sides, convolution.stride, convolution.dilation, strict=True)
        sizes = [(size + 2 * side - (taps - 1) * gap - 1) // step + 1 for size, taps, side, step, gap in each]
    return (x.shape[0], convolution.out_channels, *sizes)
