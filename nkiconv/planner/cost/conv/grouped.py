"""`grouped` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv.grouped.config import BLOCKS, GROUPED_X_BYTES, TILE_ROWS, GroupedConfig, sized_grouped
from ....kernels.conv.grouped.plan import grouped_refusal
from ....kernels.conv.grouped.units import make_grouped
from ...request import Config
from ..algorithm import Shape, config_of, with_settings
from .common import WARM_UPS, Settled, cheapest
from .grouped_price import GroupedPrice


class Grouped(Settled):
    """Small groups on tiles of the array's rows."""

    algorithm, settings, refusal = "grouped", GroupedConfig, staticmethod(grouped_refusal)
    order = ("rows", "height", "width")

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        config = config_of(**given)
        if "rows" in given:
            return sized_grouped(config, 0, 0, 0)
        every = [sized_grouped(config, rows, *block) for rows in TILE_ROWS for block in BLOCKS]
        made = ((make_grouped(geometry, one, shape.extras.residual), one) for one in every)
        return cheapest((self.plan_ns(shape, geometry, plan), one) for plan, one in made if plan)

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
