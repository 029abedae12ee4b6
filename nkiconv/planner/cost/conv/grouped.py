"""`grouped` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv.grouped.config import BLOCKS, GROUPED_X_BYTES, TILE_ROWS, sized_grouped
from ....kernels.conv.grouped.plan import grouped_refusal
from ....kernels.conv.grouped.units import make_grouped
from ....kernels.conv.relayout import plain_of
from ...request import Config
from ..algorithm import Shape, pairs_of, with_settings
from .common import WARM_UPS, Conv2dAlgorithm
from .grouped_price import GroupedPrice


class Grouped(Conv2dAlgorithm):
    """Small groups on tiles of the array's rows."""

    algorithm = "grouped"
    order = ("rows", "height", "width")

    def settle(self, shape: Shape, config: Config) -> Config:
        geometry = plain_of(self.algorithm, shape.geometry, shape.extras)
        if grouped_refusal(geometry, shape.extras, config):
            return config
        if "rows" in dict(config or ()):
            return pairs_of(sized_grouped(config, 0, 0, 0))
        every = [sized_grouped(config, rows, *block) for rows in TILE_ROWS for block in BLOCKS]
        made = [(one, plan) for one in every if (plan := make_grouped(geometry, one, shape.extras.residual))]
        best = min(made, key=lambda one: self.plan_ns(shape, geometry, one[1]), default=None)
        return pairs_of(best[0]) if best else config

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return GroupedPrice(shape.target, geometry, plan).total_ns()

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        x_bytes = dict(config or ()).get("x_bytes", GROUPED_X_BYTES)
        found = self.changed(config, x_bytes=(x_bytes // 2, x_bytes * 2), buffers=(2, 3, 4, 6, 8), warmup=WARM_UPS)
        now = plan.T, plan.Uh, plan.Uw
        sizes = [(rows, *block) for rows in TILE_ROWS for block in BLOCKS if (rows, *block) != now]
        return found + [with_settings(config, rows=T, height=Uh, width=Uw) for T, Uh, Uw in sizes]

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.units)


ALGORITHM = Grouped()
