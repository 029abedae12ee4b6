"""`grouped` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv.grouped.plan import grouped_refusal
from ....kernels.conv.grouped.units import make_grouped
from ....schedules.grouped import BLOCKS, TILE_ROWS, GroupedSettings
from ...request import Config
from ..algorithm import Shape, config_of, with_settings
from .common import Settled, cheapest
from .grouped_price import GroupedPrice


class Grouped(Settled):
    """Small groups on tiles of the array's rows."""

    algorithm, settings, refusal = "grouped", GroupedSettings, staticmethod(grouped_refusal)
    order = ("rows", "height", "width")

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        config = config_of(**given)
        if "rows" in given:
            return GroupedSettings.read(config)
        sizes = [{"rows": T, "height": Uh, "width": Uw} for T in TILE_ROWS for Uh, Uw in BLOCKS]
        every = [GroupedSettings.read(config, **one) for one in sizes]
        made = ((make_grouped(geometry, one, shape.extras.residual), one) for one in every)
        return cheapest((self.plan_ns(shape, geometry, plan), one) for plan, one in made if plan)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return GroupedPrice(shape.target, geometry, plan).total_ns()

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        now = plan.T, plan.Uh, plan.Uw
        sizes = [(rows, *block) for rows in TILE_ROWS for block in BLOCKS if (rows, *block) != now]
        found: list[Config] = [*GroupedSettings.near(config)]
        return found + [with_settings(config, rows=T, height=Uh, width=Uw) for T, Uh, Uw in sizes]

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.units)


ALGORITHM = Grouped()
