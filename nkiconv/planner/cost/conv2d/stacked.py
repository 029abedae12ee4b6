"""`stacked` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.stacked.plan import BESIDE, stack_ns
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Shape, with_settings
from .common import WARM_UPS, Conv2dAlgorithm


class Stacked(Conv2dAlgorithm):
    """Rows, shifts and outputs stacked."""

    algorithm = "stacked"
    from_one = ("rows", "shifts", "outputs", "beside", "apart", "blocks", "images")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(stack_ns(geometry, plan))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        found = self.changed(
            config,
            blocks=(plan.blocks // 2, plan.blocks - 1),
            images=(plan.images // 2, plan.images * 2),
            warmup=WARM_UPS,
        )
        return found + [with_settings(config, **sizes) for sizes in self._sizes(shape, plan)]

    def _sizes(self, shape: Shape, plan: Any) -> list[dict[str, int]]:
        """Sizes that differ from a plan's in one or two of rows, shifts and outputs, or in how rows lie; which fit."""
        geometry = shape.geometry
        now = {"rows": plan.B, "shifts": plan.D, "outputs": plan.U, "beside": plan.V, "apart": plan.G}
        now["merge"] = int(plan.merged)
        ways = [{"beside": one} for one in BESIDE] + [{"merge": 1 - now["merge"]}, {"apart": plan.B}]
        for rows in {plan.B - 1, plan.B, plan.B + 1, plan.B // 2, 2 * plan.B}:
            for outputs in {plan.U - 1, plan.U, plan.U + 1, plan.U // 2, 2 * plan.U}:
                for shifts in {plan.D, plan.D - 1, plan.D + 1, geometry.columns.taps}:
                    apart = rows if plan.G == plan.B else min(rows, plan.G)
                    ways.append({"rows": rows, "outputs": outputs, "shifts": shifts, "apart": apart})
        found = []
        for way in ways:
            one = {**now, **way}
            fits = min(one[name] for name in self.from_one if name in one) >= 1
            fits = fits and one["rows"] * one["shifts"] * geometry.C <= PARTITIONS and one["outputs"] <= PARTITIONS
            fits = fits and one["outputs"] * one["beside"] * geometry.rows.stride % max(1, one["apart"]) == 0
            if fits and one["shifts"] <= geometry.columns.taps and one != now and one not in found:
                found.append(one)
        return sorted(found, key=lambda one: sum(one[name] != value for name, value in now.items()))

    def tiles(self, shape: Shape, plan: Any) -> int:
        geometry = shape.geometry
        blocks = -(-geometry.rows.out // (plan.U * plan.V))
        return int(-(-geometry.N // plan.images) * -(-blocks // plan.blocks))


ALGORITHM = Stacked()
