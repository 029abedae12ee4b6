"""`split` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.split.cuts import SPLIT_FILTER_BYTES, SPLIT_X_BYTES
from ....kernels.conv2d.split.plan import split_ns
from ...request import Config
from ..algorithm import Shape, config_of
from .common import SURE, ByTap


class Split(ByTap):
    """Products by fp16 pairs, one tap after the other."""

    algorithm = "split"
    x_bytes, filter_bytes = SPLIT_X_BYTES, SPLIT_FILTER_BYTES

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        more = [config_of(x_bytes=self.x_bytes // 2), config_of(shard="channels"), config_of(shard="images")]
        return [None, *(more if wide else [])]

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return float(split_ns(geometry, None))

    def least_us(self, shape: Shape, config: Config) -> float:
        if shape.rates.overrides:  # the kernel's prices are trn2.toml's
            return 0.0
        return float(SURE * 2 * split_ns(shape.geometry, config) / shape.cores / 1e3)


ALGORITHM = Split()
