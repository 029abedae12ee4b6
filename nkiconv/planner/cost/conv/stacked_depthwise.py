"""What a depthwise stack takes."""

from __future__ import annotations

from typing import Any

from ....schedules.geometry import num_taps
from ....schedules.stacked_schedule import runs_of, tile_bytes
from ....schedules.tiles import BANK_COLUMNS, PARTS, slot_for
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from .common import matmul_rates, planes_met

#: ns until w, the first DMA, has come, before the first stationaries are triggered, if zeros do not take longer, from
#: the last of them to the first sums, and after the last sums: sums of latencies, as timelines show them.
W_NS, START_NS, FIRST_NS, END_NS = 1_500.0, 3_500.0, 1_300.0, 2_500.0
#: Share of the zeros that Vector writes; GpSimd has the others.
ZEROED_BY_VECTOR = 2 / 3


class DepthwisePrice:
    """Times of M tiles of A channels, in ns."""

    def __init__(self, target: Target, geometry: Any, A: int) -> None:
        self.target, self.geometry, self.A = target, geometry, A

    def ns(self, stack: Any) -> float:
        """Of both cores: the slowest of the array, after the first stationaries are there, of their triggers, of DMA
        engines, and of the stores alone, which begin with the first sums."""
        target, geometry = self.target, self.geometry
        tiles: int = -(-len(stack.jobs) // PARTS)
        rounds: int = -(-tiles // stack.together)
        words = tile_bytes(geometry, self.A) / 4
        zeroed_ns = (stack.together - stack.early) * words * target.vector_memset_ns * ZEROED_BY_VECTOR
        triggers_ns = self.A * len(runs_of(geometry.rows)) * target.static_issue_ns
        first_ns = max(START_NS, W_NS + zeroed_ns) + triggers_ns + FIRST_NS
        # of an M tile: the array, a DMA engine for x, for results, for filters
        array_ns, x_ns, y_ns = self._array_ns(), self._x_ns(), self._y_ns()
        taps_ns = target.rows_an_engine * target.run_ns(num_taps(geometry) * geometry.itemsize)
        last_tiles: int = tiles - (rounds - 1) * stack.together
        slowest_ns: float = max(
            first_ns + tiles * array_ns,
            first_ns + (rounds - 1) * triggers_ns + last_tiles * array_ns,
            first_ns + array_ns + tiles * y_ns,
            W_NS + tiles * (x_ns + y_ns + taps_ns),
        )
        return slowest_ns + END_NS

    def _array_ns(self) -> float:
        target, geometry, Q = self.target, self.geometry, self.geometry.columns.out
        column_ns = matmul_rates(target, geometry)[0]
        images = max(1, BANK_COLUMNS // Q)
        found = 0.0
        for n in range(0, geometry.planes.out, images):
            moved = min(images, geometry.planes.out - n) * Q
            streams = max(target.matmul_columns_min, moved)
            # few columns leave the array idle, and what is idle falls back to half of its rate
            rate = 1.0 if moved >= target.window_work / target.half_rate * streams else target.half_rate
            found += planes_met(geometry) * geometry.columns.taps * (streams * column_ns / rate + target.matmul_ns)
        return found

    def _x_ns(self) -> float:
        run_ns = self.target.run_ns(self.geometry.columns.size * self.geometry.itemsize)
        return float(self.target.rows_an_engine * self.geometry.planes.size * run_ns)

    def _y_ns(self) -> float:
        geometry, target = self.geometry, self.target
        run_ns = target.run_ns(geometry.columns.out * geometry.itemsize)
        # results leave from parts of the partitions in turn, each with DMA engines of its own
        slots = PARTITIONS // slot_for(self.A * geometry.rows.out)
        return float(target.rows_an_engine * geometry.planes.out * run_ns / slots)
