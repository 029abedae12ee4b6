"""`split` on the host."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.geometry import met
from ....kernels.conv2d.relayout import plain_of
from ....kernels.conv2d.split.config import (
    SPLIT_FILTER_BYTES,
    SPLIT_SETTINGS,
    SPLIT_X_BYTES,
    read_split,
    split_config_refusal,
    split_defaults,
)
from ....kernels.conv2d.split.work import PRODUCTS
from ...request import Config
from ..algorithm import Shape, config_of, pairs_of
from .common import SURE, ByTap


class Split(ByTap):
    """Products by fp16 pairs, one tap after the other."""

    algorithm = "split"
    x_bytes, filter_bytes = SPLIT_X_BYTES, SPLIT_FILTER_BYTES

    def settle(self, shape: Shape, config: Config) -> Config:
        refused = shape.geometry.precision != "fp16x3" or split_config_refusal(config)
        if refused or tuple(dict(config or ())) == SPLIT_SETTINGS:
            return config
        plain = plain_of(self.algorithm, shape.geometry, shape.extras)
        return pairs_of(read_split(config, split_defaults(plain, shape.extras, config)))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        more = [config_of(x_bytes=self.x_bytes // 2), config_of(shard="channels"), config_of(shard="images")]
        return [None, *(more if wide else [])]

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        """Of both cores for the columns of the products, at the array's full rate: less than any timeline."""
        axes = (geometry.rows, geometry.columns)
        rows, columns = (sum(met(axis, tap, 0, axis.out)[2] for tap in range(axis.taps)) for axis in axes)
        chunks = sum(len(job.chunks) for batch in plan.batches for job in batch)
        return float(PRODUCTS * geometry.N * rows * columns * chunks * shape.target.tensor_column_ns / 2)

    def least_us(self, shape: Shape, config: Config) -> float:
        plan = self.plan(shape, config)
        return SURE * 2 * self.plan_ns(shape, shape.geometry, plan) / shape.cores / 1e3 if plan else 0.0


ALGORITHM = Split()
