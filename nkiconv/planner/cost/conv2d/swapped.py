"""`swapped` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.swapped.plan import SWAPPED_FILTER_BYTES, SWAPPED_X_BYTES, sides_of
from ....kernels.conv2d.swapped.price import swapped_ns, tiles_of
from ...request import Config
from ..algorithm import Shape, config_of
from .common import LONG, WARM_UPS, Conv2dAlgorithm


class Swapped(Conv2dAlgorithm):
    """Pixels as stationaries, filters as moving operands."""

    algorithm = "swapped"
    from_one = ("side", "fold", "x_bytes", "filter_bytes")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(swapped_ns(geometry, plan))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan, geometry = self.plan(shape, None), shape.geometry
        found: list[Config] = [None, config_of(shard="channels"), config_of(shard="images")]
        if plan is not None and (wide or self._matmuls(plan) <= LONG):
            sides = sides_of(geometry.columns.out, geometry.K * geometry.hbm_itemsize)
            found += [config_of(side=side) for side in sides]
        return found + ([config_of(x_bytes=SWAPPED_X_BYTES // 2)] if wide else [])

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        now = dict(config or ())
        x_bytes = now.get("x_bytes", SWAPPED_X_BYTES)
        filter_bytes = now.get("filter_bytes", SWAPPED_FILTER_BYTES)
        side = plan.sizes.side
        return self.changed(
            config,
            shard=("images", "channels"),
            side=(side // 2, side - 1, side + 1, side * 2),
            fold=(1, 2, 3, 4, 6, 8),
            x_bytes=(x_bytes // 2, x_bytes * 2),
            filter_bytes=(filter_bytes // 2, filter_bytes * 2),
            warmup=(one for one in WARM_UPS if one != plan.warmup),
            banks=(1, 3, 7),
        )

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items)

    def _matmuls(self, plan: Any) -> int:
        """Of all cores, at least."""
        taps = plan.source.rows.taps * plan.source.columns.taps
        tiles: list[int] = [tiles_of(plan, item.band) for item in plan.items]
        return sum(tiles) * int(taps) * len(plan.chunks)


ALGORITHM = Swapped()
