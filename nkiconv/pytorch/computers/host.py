"""The operators in torch itself: NKICONV_CPU=torch, and whatever the kernels are compared with.

Sums are taken in fp32 and rounded once, as the kernels do; torch's own bf16 convolution may round on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from ..operators.convolution import Convolution

_CONVOLVE: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d}
_ACTIVATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def convolve(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """y [N, K, ...] of x's dtype, contiguous."""
    images, symmetric = padded(asked, x.float())
    y = _CONVOLVE[asked.rank](
        images,
        w.float(),
        None if bias is None else bias.float(),
        stride=asked.stride,
        padding=symmetric,
        dilation=asked.dilation,
        groups=asked.groups,
    )
    before = asked.residual_position == "pre_activation"
    if residual is not None and before:
        y = y + residual.float()
    if asked.activation is not None:
        y = activate(y, asked.activation)
    if residual is not None and not before:
        y = y + residual.float()
    return y.to(x.dtype).contiguous()


def activate(z: torch.Tensor, activation: str) -> torch.Tensor:
    """One of nkiconv's activations."""
    return _ACTIVATE[activation](z)


def padded(asked: Convolution, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """(images with zeros between and around them, or cropped; what padding of both sides is left to torch)."""
    if max(asked.lhs_dilation) > 1:
        sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], asked.lhs_dilation, strict=True)]
        spread = x.new_zeros([*x.shape[:2], *sizes])
        index: Any = (..., *(slice(None, None, step) for step in asked.lhs_dilation))
        spread[index] = x
        x = spread
    if all(before == behind >= 0 for before, behind in asked.padding):
        return x, [before for before, _ in asked.padding]
    return F.pad(x, [zeros for pair in reversed(asked.padding) for zeros in pair]), [0] * asked.rank
