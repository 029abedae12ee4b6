"""Which norm over the channels of pixels a module computes: seen in float64, whatever its class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...pixel_norms import NORMS
from ..operators.pixel_norm import PixelNorm, normalized
from .norms import alone_of, are_close

#: What torch.nn.functional.normalize takes for the least length of a pixel; it has no eps.
_LEAST_LENGTH = 1e-12
#: Lengths of pixels on which a norm is seen, at which an eps of 1e-6 would show.
_SCALES = (1e-3, 1.0, 1e3)


def affine(norm: Any, channels: int) -> tuple[Tensor | None, Tensor | None] | None:
    """Weight and bias of a norm, [K] or None; None where they are not of so many channels."""
    weight, bias = getattr(norm, "gamma", getattr(norm, "weight", None)), getattr(norm, "bias", None)
    if weight is None and not isinstance(bias, Tensor):
        return None, None
    if not isinstance(weight, Tensor) or weight.numel() != channels or weight.shape[0] != channels:
        return None
    return weight.flatten(), bias.flatten() if isinstance(bias, Tensor) and bias.numel() == channels else None


def norm_of_kind(
    norm: Any, kind: str, channels: int, scale: Tensor | None = None, shift: Tensor | None = None
) -> PixelNorm:
    """A norm with its parameters as they are now, times scale plus shift, [K] or None."""
    own, eps = affine(norm, channels), getattr(norm, "eps", None)
    assert own is not None  # they were found to go with the convolution
    weight, bias = (one if scale is None or one is None else one * scale for one in own)
    weight = scale if weight is None else weight
    bias = bias if shift is None else shift if bias is None else bias + shift
    return PixelNorm(kind, weight, bias, eps if isinstance(eps, float) else _LEAST_LENGTH**2 / channels, False)


@torch.no_grad()
def kind_of(norm: Any, channels: int, rank: int, is_meta: bool, last: bool = False) -> str | None:
    """Which of `pixel_norms.NORMS` a norm computes, in float64, of pixels of several lengths and of zeros, of images of
    so many axes, whose channels are the last of all where `last` says so."""
    if getattr(norm, "eps", 0.0) is None:  # of x's dtype
        return None
    alone = alone_of(norm, is_meta)
    generator = torch.Generator().manual_seed(0)
    for one in alone.parameters():
        one.copy_(torch.randn(one.shape, dtype=torch.float64, generator=generator))
    u = torch.randn(len(_SCALES) + 1, channels, *[2] * rank, dtype=torch.float64, generator=generator)
    u *= torch.tensor([0.0, *_SCALES], dtype=torch.float64).reshape(-1, *[1] * (rank + 1))
    try:
        expected = alone(u.movedim(1, -1)).movedim(-1, 1) if last else alone(u)
    except Exception:  # the norm's own code, which may raise whatever it likes
        return None
    for kind in NORMS:
        if are_close(expected, normalized(u, norm_of_kind(alone, kind, channels))):
            return kind
    return None
