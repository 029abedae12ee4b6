"""`taps` on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....kernels.conv2d.taps.fold import TAPS_FOLDS
from ....kernels.conv2d.taps.plan import ORDERS, TAPS_FILTER_BYTES, TAPS_X_BYTES, count_instructions
from ....kernels.conv2d.taps.price import taps_ns
from ....kernels.conv2d.taps.work import array_ns
from ...request import Config
from ..algorithm import Shape, config_of
from .common import LONG, SURE, ByTap


class Taps(ByTap):
    """One matmul a tap."""

    algorithm = "taps"
    x_bytes, filter_bytes = TAPS_X_BYTES, TAPS_FILTER_BYTES

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(taps_ns(geometry, plan))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan = self.plan(shape, None)
        if plan is None or (not wide and self._instructions(shape, plan) > LONG):
            return [None]
        found: list[Config] = [None, config_of(x_bytes=TAPS_X_BYTES // 2), config_of(x_bytes=TAPS_X_BYTES // 4)]
        found += [config_of(shard="channels"), config_of(shard="images")]
        return found + ([config_of(x_bytes=TAPS_X_BYTES // 8), config_of(channels=64)] if wide else [])

    def _instructions(self, shape: Shape, plan: Any) -> int:
        """Of all cores, at most."""
        return shape.cores * int(count_instructions(shape.geometry, plan, shape.cores))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        own = self.changed(config, fold=TAPS_FOLDS, moved=(0, 1, 2, 4))
        return super().near(shape, config) + own + self.changed(config, order=ORDERS, banks=(1, 2, 8))

    def least_us(self, shape: Shape, config: Config) -> float:
        if shape.rates.overrides:  # the kernel's prices are trn2.toml's
            return 0.0
        jobs = [job for batch in self.plan(shape, config).batches for job in batch]
        return float(SURE * array_ns(shape.geometry, jobs) / shape.cores / 1e3)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        loop = {"banks_per_store": plan.banks, "chunks_outside": int(any(plan.together))}
        return {**super().symbols(shape, config), **loop}


ALGORITHM = Taps()
