"""An operator's result from the backend that computes it. NKI is imported only where a kernel is to run."""

from __future__ import annotations

from typing import Any

import torch

from ..operators.called import Called, FilterCall
from . import host, modes, statistics


def convolve(called: Called) -> Any:
    """Results of a checked call on any device: y, with return_stats (y, stats), with a norm (y, the norm's input or an
    empty tensor)."""
    return modes.results(
        called.x,
        lambda: statistics.by_torch(called),
        lambda backend: backend.convolve(called),
        lambda found: modes.lazy("simulated").compared(called, found),
    )


def filters_gradient(given: FilterCall) -> host.Filters:
    """(dw of size and dtype, with `bias` db [K], fp32 or float64) of checked x and dL/dy, wherever they are."""
    if given.x.shape[0] == 0:
        dw = given.x.new_zeros(given.size, dtype=given.dtype)
        return dw, torch.zeros_like(given.empty_bias) if given.bias else None
    found: host.Filters = modes.results(
        given.x,
        lambda: host.filters_gradient(given),
        lambda backend: backend.filters_gradient(given),
        lambda found: modes.lazy("simulated").compared_filters_gradient(given, found),
    )
    return found
