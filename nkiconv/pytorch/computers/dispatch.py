"""An operator's result from the backend that computes it. NKI is imported only where a kernel is to run."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import as_torchs
from ..operators.convolution import Convolution
from ..operators.frames import joined
from ..operators.pixel_norm import PixelNorm, by_torch
from ..operators.prologue import NO_SCALES, Scales
from . import host, modes, statistics


def convolve(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    packed: torch.Tensor | None = None,
    frames: torch.Tensor | None = None,
    scales: Scales = NO_SCALES,
    norm: PixelNorm | None = None,
) -> Any:
    """y of checked tensors on any device; with asked.return_stats (y, stats), with a norm (y, the norm's input or an
    empty tensor); frames: in front of x's; scales: x_scale and x_shift."""
    who = modes.computer(x)
    if who == "torch" and norm is not None:
        return by_torch(asked, x, w, bias, residual, frames, norm)
    if who == "torch":
        return statistics.convolved(asked, host.prologued(asked, joined(x, frames), scales), w, bias, residual)
    with as_torchs():
        if who == "device":
            from . import device

            return device.convolve(asked, x, w, bias, residual, packed, frames, scales, norm)
        from . import simulated

        convolve_there = simulated.convolve if who == "simulate" else simulated.compare
        return convolve_there(asked, x, w, bias, residual, packed, frames, scales, norm)


def filters_gradient(
    asked: Convolution, x: torch.Tensor, g: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype, bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(dw of size and dtype, with `bias` db [K], fp32 or float64) of checked x and dL/dy, wherever they are."""
    if x.shape[0] == 0:
        return x.new_zeros(size, dtype=dtype), x.new_zeros(size[0], dtype=host.wide_dtype(x)) if bias else None
    who = modes.computer(x)
    if who == "torch":
        return host.filters_gradient(asked, x, g, size, dtype, bias)
    with as_torchs():
        if who == "device":
            from . import device

            return device.filters_gradient(asked, x, g, size, dtype, bias)
        from . import simulated

        gradient = simulated.filters_gradient if who == "simulate" else simulated.compare_filters_gradient
        return gradient(asked, x, g, size, dtype, bias)
