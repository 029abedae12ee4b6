"""`bands` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.bands.plan import BANDS_FOLDS, bands_ns
from ...request import Config
from ..algorithm import Shape
from .common import Conv2dAlgorithm


class Bands(Conv2dAlgorithm):
    """Band matrices over rows."""

    algorithm = "bands"
    from_one = ("channels", "together", "buffers")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(bands_ns(geometry, plan))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        return self.changed(
            config,
            together=(plan.together // 2, plan.together - 1, plan.together + 1),
            buffers=(2, 3, 4, 6),
            warmup=(0, 24, 48, 96),
            channels=(plan.A - 1, plan.A // 2),
            fold=(one for one in BANDS_FOLDS if one != plan.fold),
        )

    def tiles(self, shape: Shape, plan: Any) -> int:
        return int(plan.groups)


ALGORITHM = Bands()
