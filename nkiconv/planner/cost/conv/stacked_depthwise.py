"""What a depthwise stack takes, and its settings of least time."""

from __future__ import annotations

import dataclasses
from typing import Any

from ....kernels._tiles import BANK_COLUMNS, PARTS, div_ceil, slot_for
from ....kernels._warm import WARM_UP_MAX
from ....kernels.conv.geometry import num_taps
from ....kernels.conv.stacked.config import DepthwiseConfig
from ....kernels.conv.stacked.diagonal import (
    WARM_UP_BLOCKS,
    buffers_most,
    channels_most,
    make_diagonal,
    runs_of_round,
    tile_bytes,
)
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from .common import matmul_rates, planes_met

#: Buffers of x at least and at most. With few the DMA engines idle while the first stationaries come, with more those
#: wait for x of M tiles whose turn is far: ns of x that is loaded by then, also where DMA engines are waited for.
X_BUFFERS_LEAST, X_BUFFERS = 4, 16
AHEAD_NS, AHEAD_NS_MOVED = 6_500.0, 12_000.0
#: ns until w, the first DMA, has come, before the first stationaries are triggered, if zeros do not take longer, from
#: the last of them to the first sums, and after the last sums: sums of latencies, as timelines show them.
W_NS, START_NS, FIRST_NS, END_NS = 1_500.0, 3_500.0, 1_300.0, 2_500.0
#: Share of the zeros that Vector writes; GpSimd has the others.
ZEROED_BY_VECTOR = 2 / 3
#: How many times as long the M tiles of a round work as the stationaries of the next one are triggered; where DMA
#: engines are what is waited for, which take them after all that is on its way.
ROUND_TIMES, ROUND_TIMES_MOVED = 2.0, 2.5


def best_depthwise(target: Target, geometry: Any, given: dict[str, Any], has_residual: bool) -> DepthwiseConfig | None:
    """The settings of least time that have the given ones; None where no such kernel runs."""
    A = channels_most(geometry)
    found = DepthwisePrice(target, geometry, min(A, given.get("channels", A))).settings(given)
    return found if found and make_diagonal(geometry, found, has_residual) else None


class DepthwisePrice:
    """Times of M tiles of A channels, in ns."""

    def __init__(self, target: Target, geometry: Any, A: int) -> None:
        self.target, self.geometry, self.A = target, geometry, A
        #: of the triggers of the stationaries of a round
        self.triggers_ns: float = runs_of_round(geometry, A) * target.static_issue_ns
        #: of the array for an M tile, and of a DMA engine for its x, for its results, and for all of it
        self.array_ns = self._array_ns()
        self.x_ns, self.y_ns = self._x_ns(), self._y_ns()
        taps_ns = target.run_ns(num_taps(geometry) * geometry.itemsize)
        self.moved_ns = self.x_ns + self.y_ns + target.rows_an_engine * taps_ns
        #: whether the array is what is waited for
        self.by_array = self.array_ns >= self.moved_ns

    def settings(self, given: dict[str, Any]) -> DepthwiseConfig | None:
        """All settings: those that are given, the others as they are best; None where an M tile does not fit."""
        geometry, target = self.geometry, self.target
        ahead_ns = AHEAD_NS if self.by_array else AHEAD_NS_MOVED
        ahead = max(X_BUFFERS_LEAST, min(X_BUFFERS, int(ahead_ns / self.x_ns) + 1)) * geometry.planes.images
        found = DepthwiseConfig(
            channels=given.get("channels", self.A),
            together=given.get("together", self._together()),
            buffers=given.get("buffers", min(ahead, buffers_most(geometry), PARTITIONS)),
            warmup=given.get("warmup", 0),
        )
        stack = make_diagonal(geometry, found, False)
        if stack is None:
            return None
        # the array is at its full rate after a window
        first_ns = self.first_ns(stack)
        full_ns = max(0.0, first_ns - target.window_ns)
        each_ns = WARM_UP_BLOCKS * PARTITIONS * target.tensor_column_ns
        warmup = min(WARM_UP_MAX, int(((first_ns - full_ns) * target.half_rate + full_ns) / each_ns))
        together = given.get("together", stack.together)
        return dataclasses.replace(found, together=together, warmup=given.get("warmup", warmup))

    def first_ns(self, stack: Any) -> float:
        """Until the first stationaries are there."""
        words = tile_bytes(self.geometry, self.A) / 4
        zeroed_ns = (stack.together - stack.early) * words * self.target.vector_memset_ns * ZEROED_BY_VECTOR
        start_ns: float = max(START_NS, W_NS + zeroed_ns)
        return start_ns + self.triggers_ns + FIRST_NS

    def ns(self, stack: Any) -> float:
        """Of both cores: the slowest of the array, after the first stationaries are there, of triggers, of DMA engines,
        and of the stores alone, which begin with the first sums."""
        tiles: int = -(-len(stack.jobs) // PARTS)
        rounds: int = -(-tiles // stack.together)
        first_ns = self.first_ns(stack)
        worked_ns = first_ns + tiles * self.array_ns
        last_tiles: int = tiles - (rounds - 1) * stack.together
        triggered_ns = first_ns + (rounds - 1) * self.triggers_ns + last_tiles * self.array_ns
        stored_ns = first_ns + self.array_ns + tiles * self.y_ns
        return max(worked_ns, triggered_ns, stored_ns, W_NS + tiles * self.moved_ns) + END_NS

    def _together(self) -> int:
        """M tiles of a round: enough that their work hides the triggers of the next one's stationaries."""
        share_tiles = div_ceil(div_ceil(self.geometry.C, self.A), PARTS)
        times = ROUND_TIMES if self.by_array else ROUND_TIMES_MOVED
        needed = int(times * self.triggers_ns / max(self.array_ns, self.moved_ns)) + 1
        return min(PARTITIONS, int(div_ceil(share_tiles, max(1, share_tiles // needed))))

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
