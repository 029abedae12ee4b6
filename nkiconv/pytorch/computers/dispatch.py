"""An operator's result from the backend that computes it. NKI is imported only where a kernel is to run."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import as_torchs
from ..operators.called import Called
from ..operators.convolution import Convolution
from . import host, modes, statistics


def convolve(called: Called) -> Any:
    """Results of a checked call on any device: y, with return_stats (y, stats), with a norm (y, the norm's input or an
    empty tensor)."""
    who = modes.computer(called.x)
    if who == "torch":
        return statistics.by_torch(called)
    with as_torchs():
        if who == "device":
            from . import device

            return device.convolve(called)
        from . import simulated

        return simulated.convolve(called) if who == "simulate" else simulated.compare(called)


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
