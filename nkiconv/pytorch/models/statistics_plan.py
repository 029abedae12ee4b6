"""Times of the kernels that fused norms need: statistics of x, and their scale and shift."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...kernels import statistics as kernels
from ...simulator import ArraySpec
from ...simulator.dtypes import canonical
from ...simulator.profiling import profile
from ..computers.statistics import parts_of
from ..operators.tensor_kinds import DTYPES

CHANNEL_STATS = "channel_stats"
#: Operators and the names of their kernels.
KERNELS = {CHANNEL_STATS: "channel_statistics", "norm_scale_shift": "norm_scale_and_shift"}
#: An array without data: its shape and dtype.
Array = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Statistics:
    """A call of one of `KERNELS`."""

    operator: str
    x: Array  # or statistics, [pieces, N, C, 3], of each piece in as many parts as a launch has cores
    affine: tuple[Array | None, Array | None] = (None, None)  # weight and bias
    norm: tuple[Any, ...] = ()  # norm, num_groups, eps


@dataclass(frozen=True)
class StatisticsRow:
    """Equal calls of a model. Times are modelled, in us."""

    statistics: Statistics
    calls: int
    us: float  # of one call
    hbm_bytes: int  # the same


def statistics_of(operator: str, args: Sequence[Any]) -> Statistics:
    """A call of operator `nkiconv::...`, of its arguments."""
    x, *rest = args
    shape, dtype = _array(x)
    if operator == CHANNEL_STATS:
        return Statistics(operator, (shape, dtype))
    weight, bias, *norm = rest
    affine = None if weight is None else _array(weight), None if bias is None else _array(bias)
    return Statistics(operator, ((shape[0] // parts_of(x), *shape[1:]), dtype), affine, tuple(norm))


def _array(tensor: Tensor) -> Array:
    return tuple(map(int, tensor.shape)), DTYPES[tensor.dtype]


@functools.lru_cache(maxsize=1024)
def taken(call: Statistics, lnc: int) -> tuple[float, int]:
    """(modelled us, bytes of HBM) of a call."""
    kernel = getattr(kernels, KERNELS[call.operator])[lnc]
    shape, dtype = call.x
    if call.operator == CHANNEL_STATS:
        found = profile(kernel)(_spec(shape, dtype))
    else:
        affine = zip(("weight", "bias"), call.affine, strict=True)
        named = {name: _spec(*one) for name, one in affine if one is not None}
        numbers = dict(zip(("norm", "num_groups", "eps"), call.norm, strict=True))
        stats = _spec((shape[0] * lnc, *shape[1:]), dtype)
        found = profile(kernel)((stats,), **named, **numbers)
    return found.modelled_us, found.hbm_bytes


def _spec(shape: tuple[int, ...], dtype: str) -> ArraySpec:
    return ArraySpec(shape, canonical(dtype) or dtype)


def rows_of(calls: dict[Statistics, int], lnc: int) -> tuple[StatisticsRow, ...]:
    """Those with most time first."""
    rows = [StatisticsRow(call, count, *taken(call, lnc)) for call, count in calls.items()]
    return tuple(sorted(rows, key=lambda row: -row.calls * row.us))
