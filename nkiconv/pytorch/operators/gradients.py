"""Derivatives of the operators: input gradients are convolutions by the same kernels.

    dL/dx = conv(dL/dz with stride - 1 zeros between, flipped w with K and C / groups exchanged), stride lhs_dilation:
            the transposed convolution of dL/dz with w; for a transposed convolution a plain one
    dL/dw, dL/dbias: `filter_gradients`, by a kernel of their own; dL/dresidual = dL/dz

z is the activation's argument. Where the result does not determine the slope (silu, gelu, a residual after the
activation), z is computed again, which takes less memory than keeping it.
"""

from __future__ import annotations

import dataclasses

import torch

from ...activations import ACTIVATIONS
from ...dgrad import is_dgrad_of_rows, is_dgrad_transposed
from ..computers import host
from .convolution import Convolution

#: Suffix of a layer's name for its input gradient.
GRADIENT = ", gradient"


def needs_argument(asked: Convolution, residual: bool) -> bool:
    """Whether the slope of the activation is found from z, not from y."""
    if asked.activation is None:
        return False
    behind = residual and asked.residual_position == "post_activation"
    return behind or not ACTIVATIONS[asked.activation].by_result


def of_argument(asked: Convolution, g: torch.Tensor, y: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
    """dL/dz of dL/dy, from y, or from z where `needs_argument` says so."""
    if asked.activation is None:
        return g
    own = ACTIVATIONS[asked.activation]
    at = y if z is None else z
    assert at is not None  # `needs_argument` says so
    at = host.wide(at)
    if z is not None and own.by_result:
        at = host.activate(at, asked.activation)
    slope: torch.Tensor = own.slope(at)
    return (host.wide(g) * slope).to(g.dtype)


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
