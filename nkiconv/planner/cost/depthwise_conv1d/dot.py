"""`dot` on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....kernels.depthwise_conv1d.dot.estimate import dot_ns
from ....kernels.depthwise_conv1d.dot.kernel import VECTOR_SHARE, dot_refusal, plan_of
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints
from .common import changed_one, issue_us, row_elements_us


class Dot(Algorithm):
    """Dot products of whole rows."""

    def guesses(self, shape: Shape) -> list[Guess]:
        refused = dot_refusal(shape.geometry, shape.extras, None, shape.cores)
        return [] if refused else [Guess(None, float(dot_ns(shape.geometry)))]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [config_of(block=size) for size in ((8, 16, 4, 2) if wide else (8, 16))]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        slots = int(self._plan(shape, config).slots)
        return changed_one(
            config,
            block=(4, 8, 16),
            vector_share=(0, 2, 3, 4, 6),
            batch=(1, 2, 4, 8),
            buffers=(3, 4, 6),
            slots=(slots // 2, slots * 2),
        )

    def unit(self, shape: Shape, config: Config) -> int:
        return PARTITIONS * int(self._plan(shape, config).tiles)

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        moved = 2 * int(self._plan(shape, config).slots)  # transposed, and copied to SBUF: slots of x and of w
        tiles = geometry.N * geometry.C / PARTITIONS / shape.cores
        return max(issue_us(shape, tiles * moved), row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, config))

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, config), dict(config or ()).get("vector_share", VECTOR_SHARE)

    def _plan(self, shape: Shape, config: Config) -> Any:
        return plan_of(shape.geometry, config)


ALGORITHM = Dot()
