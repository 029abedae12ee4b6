"""`narrow` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.narrow.plan import NARROW_X_BYTES
from ....kernels.conv2d.narrow.price import narrow_ns
from ...request import Config
from ..algorithm import Shape, with_settings
from .common import WARM_UPS, Conv2dAlgorithm


class Narrow(Conv2dAlgorithm):
    """Rows of y and columns of taps beside each other in the columns of the array."""

    algorithm = "narrow"
    from_one = ("outputs", "taps", "blocks", "images")

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(narrow_ns(geometry, plan))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        x_bytes = dict(config or ()).get("x_bytes", NARROW_X_BYTES)
        found = self.changed(
            config,
            x_bytes=(x_bytes // 2, x_bytes * 2),
            buffers=(plan.buffers // 2, plan.buffers * 2),
            blocks=(plan.blocks // 2, plan.blocks - 1),
            images=(plan.images // 2, plan.images * 2),
            shared=(1 - int(plan.shared),),
            warmup=WARM_UPS,
        )
        sizes = [(plan.U + step, plan.T) for step in (-1, 1, 2)] + [(plan.U, plan.T - 1), (plan.U, plan.T + 1)]
        return found + [with_settings(config, outputs=U, taps=T) for U, T in sizes if min(U, T) >= 1]

    def tiles(self, shape: Shape, plan: Any) -> int:
        blocks = -(-shape.geometry.rows.out // plan.U)
        return int(-(-shape.geometry.N // plan.images) * -(-blocks // plan.blocks))


ALGORITHM = Narrow()
