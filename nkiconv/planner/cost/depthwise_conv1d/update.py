"""`update` on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....kernels.depthwise_conv1d.update.estimate import update_tensor_ns, update_vector_ns
from ....kernels.depthwise_conv1d.update.kernel import settings_of, update_refusal
from ....kernels.depthwise_conv1d.update.plan import plan_update
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints
from .common import changed_one


class Update(Algorithm):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def guesses(self, shape: Shape) -> list[Guess]:
        geometry, extras = shape.geometry, shape.extras
        found = []
        for engine in ("tensor", "vector"):
            config = config_of(engine=engine)
            if not update_refusal(geometry, extras, config, shape.cores):
                on_tensor = engine == "tensor"
                ns = (
                    update_tensor_ns(geometry, extras, settings_of(None))
                    if on_tensor
                    else update_vector_ns(geometry, extras)
                )
                found.append(Guess(config, float(ns)))
        return found

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [config_of(engine="tensor"), config_of(engine="vector")]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        if dict(config or ()).get("engine") == "vector":
            return []
        return changed_one(
            config, leave=(1, 2, 4, 8), ahead=(4, 8, 16), vector_reads=(0, 1, 2, 3), vector_moves=(0, 2, 3, 4)
        )

    def unit(self, shape: Shape, config: Config) -> int:
        if dict(config or ()).get("engine") == "vector":
            return PARTITIONS
        plan = self._plan(shape, config)
        return max(1, int(plan.pieces * plan.channels * plan.groups * plan.leave))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, config))

    def _plan(self, shape: Shape, config: Config) -> Any:
        leave, ahead = settings_of(config)[:2]
        return plan_update(shape.geometry, shape.extras.state, leave, ahead)


ALGORITHM = Update()
