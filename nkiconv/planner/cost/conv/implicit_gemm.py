"""`implicit_gemm` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....schedules.device_loops import MOST_INSTRUCTIONS
from ....schedules.implicit_gemm import X_BYTES, ImplicitGemmSettings
from ....schedules.implicit_gemm_candidates import candidates
from ...request import Config
from ..algorithm import Shape, config_of
from .common import LONG, Conv2dAlgorithm

#: The least of the instructions of a core that are counted, of those that there are, where cores share images; where
#: they share channels they may be all.
BOUND_OVER_COUNT = 2


class Taps(Conv2dAlgorithm):
    """One matmul a tap."""

    algorithm = "implicit_gemm"
    order = ("fold", "product")

    def candidates(self, shape: Shape, geometry: Any, config: Config) -> Iterator[Config]:
        return candidates(shape.target, geometry, shape.options, shape.cores, config)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan = self.plan(shape, None)
        if plan is None or (not wide and shape.cores * _scaled(shape, plan) > LONG):
            return [None]
        found: list[Config] = [None, config_of(x_bytes=X_BYTES // 2), config_of(x_bytes=X_BYTES // 4)]
        found += [config_of(shard="channels"), config_of(shard="images")]
        return found + ([config_of(x_bytes=X_BYTES // 8)] if wide else [])

    def is_short(self, shape: Shape, config: Config) -> bool:
        plan = self.plan(shape, config)
        count = _scaled(shape, plan)
        least = 1 if dict(self.complete(shape, config) or ())["shard"] == "channels" else BOUND_OVER_COUNT
        return bool(plan.loop > 0 or count <= least * MOST_INSTRUCTIONS)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        known = {"x_bytes": dict(config or ()).get("x_bytes", X_BYTES), "warmup": self.plan(shape, config).warmup}
        return list(ImplicitGemmSettings.near(config, known))


def _scaled(shape: Shape, plan: Any) -> int:
    """Instructions of a core, at most, of all parts that a problem has."""
    return int(plan.instructions(shape.cores)) * int(shape.geometry.times)


ALGORITHM = Taps()
