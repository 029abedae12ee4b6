"""`toeplitz_rows` on the host."""

from __future__ import annotations

import dataclasses
from typing import Any

from ....kernels._tiles import BANK_COLUMNS, PARTS, div_ceil
from ....kernels._warm import WARM_UP_MAX
from ....kernels.conv.geometry import num_taps
from ....kernels.conv.toeplitz_rows.config import ToeplitzConfig
from ....kernels.conv.toeplitz_rows.plan import toeplitz_refusal
from ....kernels.conv.toeplitz_rows.shape import (
    WARM_UP_BLOCKS,
    group_bytes,
    most_channels_of_group,
    sizes_of_toeplitz,
    triggers_of,
    x_buffers_most,
)
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Shape
from .common import Settled, matmul_rates, planes_met

#: Buffers of x at least and at most. With few the DMA engines idle while the first matrices come, with more those wait
#: for x of groups whose turn is far: ns of x that is loaded by then, also where DMA engines are waited for.
X_BUFFERS_LEAST, X_BUFFERS = 4, 16
AHEAD_NS, AHEAD_NS_MOVED = 6_500.0, 12_000.0
#: ns until w, the first DMA, has come, before the first matrices are triggered, if zeros do not take longer, from the
#: last of them to the first sums, and after the last sums: sums of latencies, as timelines show them.
W_NS, START_NS, FIRST_NS, END_NS = 1_500.0, 3_500.0, 1_300.0, 2_500.0
#: Share of the zeros that Vector writes; GpSimd has the others.
ZEROED_BY_VECTOR = 2 / 3
#: How many times as long the groups of a round work as the matrices of the next one are triggered; where DMA engines
#: are what is waited for, which take them after all that is on its way.
ROUND_TIMES, ROUND_TIMES_MOVED = 2.0, 2.5


class ToeplitzRows(Settled):
    """Band matrices over rows."""

    algorithm, settings, refusal = "toeplitz_rows", ToeplitzConfig, staticmethod(toeplitz_refusal)
    from_one = ("channels", "together", "buffers")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return ToeplitzPrice(shape.target, geometry, plan.A).ns(plan)

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        A = most_channels_of_group(geometry)
        found = ToeplitzPrice(shape.target, geometry, min(A, given.get("channels", A))).settings(given)
        return found if found and sizes_of_toeplitz(geometry, found, shape.extras.residual) else None

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        return self.changed(
            config,
            together=(plan.together // 2, plan.together - 1, plan.together + 1),
            buffers=(2, 3, 4, 6),
            warmup=(0, 24, 48, 96),
            channels=(plan.A - 1, plan.A // 2),
        )

    def tiles(self, shape: Shape, plan: Any) -> int:
        return int(plan.groups)


class ToeplitzPrice:
    """Times of matrices of A channels a group, in ns."""

    def __init__(self, target: Target, geometry: Any, A: int) -> None:
        self.target, self.geometry, self.A = target, geometry, A
        #: of the triggers of the matrices of a round
        self.triggers_ns: float = triggers_of(geometry, A) * target.static_issue_ns
        #: of the array for a group, and of a DMA engine for its x, for its results, and for all of it
        self.array_ns = self._array_ns()
        self.x_ns, self.y_ns = self._x_ns(), self._y_ns()
        taps_ns = target.run_ns(num_taps(geometry) * geometry.itemsize)
        self.moved_ns = self.x_ns + self.y_ns + target.rows_an_engine * taps_ns
        #: whether the array is what is waited for
        self.by_array = self.array_ns >= self.moved_ns

    def settings(self, given: dict[str, Any]) -> ToeplitzConfig | None:
        """All settings: those that are given, the others as they are best; None where a group does not fit."""
        geometry, target = self.geometry, self.target
        ahead_ns = AHEAD_NS if self.by_array else AHEAD_NS_MOVED
        ahead = max(X_BUFFERS_LEAST, min(X_BUFFERS, int(ahead_ns / self.x_ns) + 1))
        found = ToeplitzConfig(
            channels=given.get("channels", self.A),
            together=given.get("together", self._together()),
            buffers=given.get("buffers", min(ahead, x_buffers_most(geometry))),
            early=given.get("early", 0),
            warmup=given.get("warmup", 0),
        )
        toeplitz = sizes_of_toeplitz(geometry, found, False)
        if toeplitz is None:
            return None
        early = given.get("early", min(toeplitz.together, int(W_NS / self._zeroed_ns())))
        toeplitz.early = min(toeplitz.together, early)
        # the array is at its full rate after a window
        first_ns = self.first_ns(toeplitz)
        full_ns = max(0.0, first_ns - target.window_ns)
        each_ns = WARM_UP_BLOCKS * PARTITIONS * target.tensor_column_ns
        warmup = min(WARM_UP_MAX, int(((first_ns - full_ns) * target.half_rate + full_ns) / each_ns))
        together = given.get("together", toeplitz.together)
        return dataclasses.replace(found, together=together, early=early, warmup=given.get("warmup", warmup))

    def first_ns(self, toeplitz: Any) -> float:
        """Until the first matrices are there."""
        start_ns: float = max(START_NS, W_NS + (toeplitz.together - toeplitz.early) * self._zeroed_ns())
        return start_ns + self.triggers_ns + FIRST_NS

    def ns(self, toeplitz: Any) -> float:
        """Of both cores: the slowest of the array, after the first matrices are there, of triggers, of DMA engines, and
        of the stores alone, which begin with the first sums."""
        groups: int = -(-toeplitz.groups // PARTS)
        rounds: int = -(-groups // toeplitz.together)
        first_ns = self.first_ns(toeplitz)
        worked_ns = first_ns + groups * self.array_ns
        last_groups: int = groups - (rounds - 1) * toeplitz.together
        triggered_ns = first_ns + (rounds - 1) * self.triggers_ns + last_groups * self.array_ns
        stored_ns = first_ns + self.array_ns + groups * self.y_ns
        return max(worked_ns, triggered_ns, stored_ns, W_NS + groups * self.moved_ns) + END_NS

    def _zeroed_ns(self) -> float:
        """Of a group's zeros."""
        words = group_bytes(self.geometry, self.A) / 4
        return float(words * self.target.vector_memset_ns * ZEROED_BY_VECTOR)

    def _together(self) -> int:
        """Groups of a round: enough that their work hides the triggers of the next one's matrices."""
        share_groups = div_ceil(div_ceil(self.geometry.C, self.A), PARTS)
        times = ROUND_TIMES if self.by_array else ROUND_TIMES_MOVED
        needed = int(times * self.triggers_ns / max(self.array_ns, self.moved_ns)) + 1
        return int(div_ceil(share_groups, max(1, share_groups // needed)))

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
        run_ns = self.target.run_ns(self.geometry.columns.out * self.geometry.itemsize)
        return float(self.target.rows_an_engine * self.geometry.planes.out * run_ns)


ALGORITHM = ToeplitzRows()
