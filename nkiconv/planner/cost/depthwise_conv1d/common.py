"""What the depthwise conv1d algorithms share: bounds that no timeline can beat."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ....schedules.depthwise import RowGeometry
from ....schedules.settings import Settings
from ....simulator.hardware import PARTITIONS
from ....simulator.timeline import ENGINES
from ..algorithm import Shape

Own = TypeVar("Own", bound=Settings)

#: Settings that are timed, at most.
TIMED = 5


def columns_of(shape: Shape) -> float:
    """Columns of 128 channels that a core works on."""
    geometry = shape.geometry
    return float(geometry.N * geometry.Q * geometry.C / PARTITIONS / shape.cores)


@functools.lru_cache(maxsize=256)
def share_met(geometry: RowGeometry) -> float:
    """Share of all pairs of a tap and a column that meet an element of x rather than padding; at least."""
    span = (geometry.W - 1) * geometry.lhs_dilation + 1
    valid_range = 0
    step = max(1, geometry.S // 256)
    taps = range(0, geometry.S, step)
    for s in taps:
        first = s * geometry.dilation - geometry.pad_left
        begin = max(0, -(first // geometry.stride))
        end = min(geometry.Q, -(-(span - first) // geometry.stride))
        valid_range += max(0, end - begin)
    return 0.95 * valid_range / (len(taps) * geometry.Q) / geometry.lhs_dilation


def issue_us(shape: Shape, count: float) -> float:
    """Issuing so many instructions of one core, were all engines equally busy with them."""
    rates = shape.rates
    on_array = rates("pe.min_interval_rows") * rates.cycle_ns("pe")
    fixed = rates("vector.issue_fixed_sbuf_ns"), rates("scalar.copy_issue_ns"), rates("dma.static_issue_ns")
    return count * min(on_array, *fixed) / len(ENGINES) / 1e3


def row_elements_us(shape: Shape) -> float:
    """The descriptor elements of one load of every row, where each lies on a partition of its own."""
    geometry, rates = shape.geometry, shape.rates
    elements = geometry.N * geometry.C / rates("dma.engines") / shape.cores
    return float(elements * rates("dma.element_overhead_ns") / 1e3)


def timed(found: Iterable[tuple[Own, float]], same: Callable[[Own], Any]) -> list[tuple[Own, float]]:
    """Settings with their ns, the least first, that differ in what they come to: as many as are timed."""
    distinct: dict[Any, tuple[Own, float]] = {}
    for one, ns in sorted(found, key=lambda each: each[1]):
        if len(distinct) < TIMED and ns < float("inf"):
            distinct.setdefault(same(one), (one, ns))
    return list(distinct.values())
