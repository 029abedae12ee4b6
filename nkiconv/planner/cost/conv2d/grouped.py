"""`grouped` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.grouped.plan import BLOCKS, GROUPED_X_BYTES, TILE_ROWS
from ....kernels.conv2d.grouped.price import grouped_ns
from ...request import Config
from ..algorithm import Shape, with_settings
from .common import WARM_UPS, Conv2dAlgorithm


class Grouped(Conv2dAlgorithm):
    """Small groups on tiles of the array's rows."""

    algorithm = "grouped"

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(grouped_ns(geometry, plan))

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
