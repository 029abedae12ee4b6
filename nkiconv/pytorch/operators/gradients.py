"""Derivatives of the operators: input gradients are convolutions by the same kernels.

    dL/dx = conv(dL/dz with stride - 1 zeros between, flipped w with K and C / groups exchanged), stride lhs_dilation,
            which is the transposed convolution of dL/dz with w, and the other way round
    dL/dw, dL/dbias: `filter_gradients`, by a kernel of their own; dL/dresidual = dL/dz

z is what the activation is applied to. It is computed again where its result does not tell the slope (silu, gelu, or a
residual behind the activation), which takes less memory than keeping it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from ...dgrad import is_dgrad_of_rows, is_dgrad_transposed
from ..computers import host
from .convolution import Convolution

#: What follows a layer's name in that of its input gradient.
GRADIENT = ", gradient"
#: Activations whose slope their own result tells.
_BY_RESULT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda y: (y > 0).to(y.dtype),
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
}


def _silu_slope(z: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def _gelu_slope(z: torch.Tensor) -> torch.Tensor:
    return (1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(z: torch.Tensor) -> torch.Tensor:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(scale * (z + cubic * z * z * z))
    return (1 + t + z * (1 - t * t) * scale * (1 + 3 * cubic * z * z)) / 2


#: Slopes of the others; torch's own backward operators of these have no derivative themselves.
_BY_ARGUMENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": _silu_slope,
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
}


def needs_argument(asked: Convolution, residual: bool) -> bool:
    """Whether the slope of the activation is found from z, not from y."""
    behind = residual and asked.residual_position == "post_activation"
    return asked.activation in _BY_ARGUMENT or (asked.activation is not None and behind)


def of_argument(asked: Convolution, g: torch.Tensor, y: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
    """dL/dz of dL/dy, from y, or from z where `needs_argument` says so."""
    if asked.activation is None:
        return g
    wide = host.wide(g)
    if z is None:
        assert y is not None  # `needs_argument` says so
        return (wide * _BY_RESULT[asked.activation](host.wide(y))).to(g.dtype)
    if asked.activation in _BY_ARGUMENT:
        return (wide * _BY_ARGUMENT[asked.activation](host.wide(z))).to(g.dtype)
    return (wide * _BY_RESULT[asked.activation](host.activate(host.wide(z), asked.activation))).to(g.dtype)


def of_input(asked: Convolution, size: torch.Size, w: torch.Tensor) -> tuple[Convolution, torch.Tensor]:
    """(the convolution of dL/dz that dL/dx is, its filters); size: of x, without N and C."""
    back = backwards(asked, size, w)
    if asked.transposed or back.transposed:
        return back, w
    groups, taps, per_k, per_c = asked.groups, w.shape[2:], w.shape[0] // asked.groups, w.shape[1]
    exchanged = w.reshape(groups, per_k, per_c, *taps).transpose(1, 2).flip(*range(3, 3 + asked.rank))
    return back, exchanged.reshape(groups * per_c, per_k, *taps)


def backwards(asked: Convolution, size: torch.Size, w: torch.Tensor) -> Convolution:
    """The convolution of dL/dz that dL/dx is; size: of x, without N and C. Of w the shape is read."""
    axes = asked.axes(size, w.shape[2:])
    turned = is_dgrad_transposed(asked.lhs_dilation) and not asked.transposed
    rows = asked.operation == "depthwise_conv1d" and w.shape[0] == asked.groups
    rows = rows and (not turned or is_dgrad_of_rows(asked.stride[0], w.shape[2]))
    name = f"{'depthwise_' if rows else ''}conv{'_transpose' if turned else ''}{asked.rank}d"
    return dataclasses.replace(
        asked.plain(),
        name=name,
        stride=asked.lhs_dilation,
        lhs_dilation=asked.stride,
        padding=tuple(axis.backwards for axis in axes),
        layer=None if asked.layer is None else f"{asked.layer}{GRADIENT}",
    )


def of_bias(g: torch.Tensor) -> torch.Tensor:
    """dL/dbias of dL/dz, summed in fp32, or float64 where g is."""
    return host.wide(g).sum(dim=[0, *range(2, g.dim())])
