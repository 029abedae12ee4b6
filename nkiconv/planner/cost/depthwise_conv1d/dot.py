"""`dot` on the host: a unit is up to 128 channels of one image, a chunk of slots and, `wide`, a block of lags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from ....schedules.dot import (
    LAGS_MOST,
    WIDE_TAPS,
    DotSettings,
    batches,
    build,
    count_batches,
    dot_config_refusal,
    dot_settings,
    unsupported,
)
from ....schedules.tiles import PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of
from .common import issue_us, row_elements_us

#: ns from the first load to the first sums and from the last sums to the end of the last store, with masks and with the
#: way through HBM.
MASKED_ENDS_NS = 5000.0
WIDE_ENDS_NS = 11000.0
#: Share of the masks and sums that Vector is left with, a column of lags and channels.
MASKED_VECTOR = 0.75
#: How much more work than it takes a unit should have for the array to be at full rate in all windows.
SURE = 1.3
#: Most blocks of slots in a chunk of `wide`, and from one number of lags that is tried to the next.
WIDE_BLOCKS = 2
WIDE_STEP = 8


class Dot(Algorithm):
    """Dot products of whole rows."""

    def settle(self, shape: Shape, config: Config) -> Config:
        if dot_config_refusal(config):
            return config
        geometry, given = shape.geometry, dict(config or ())
        best = dot_settings(geometry, config)
        if "warmup" not in given and best.warmup:
            best = replace(best, warmup=warmup(shape.target))
        tried = [best]
        if best.wide:
            slots = [given.get("slots", WIDE_TAPS * blocks) for blocks in range(1, WIDE_BLOCKS + 1)]
            lags = [given.get("lags", lags) for lags in range(1, LAGS_MOST + 1, WIDE_STEP)]
            tried = [replace(best, slots=some, lags=few) for some, few in dict.fromkeys(product(slots, lags))]
        plans = [plan for plan in (build(geometry, one) for one in tried) if plan.slots]
        if plans:
            plan = min(plans, key=wide_columns) if best.wide else plans[0]
            best = replace(best, slots=given.get("slots", plan.slots * plan.members))
            best = replace(best, lags=given.get("lags", plan.lags if best.wide else best.lags))
        return pairs_of(best)

    def guesses(self, shape: Shape) -> list[Guess]:
        if unsupported(shape.geometry, shape.extras, None, shape.cores):
            return []
        config = self.settle(shape, None)
        if unsupported(shape.geometry, shape.extras, config, shape.cores):
            return []
        plan = self._plan(shape, config)
        return [Guess(config, wide_ns(shape, plan) if plan.wide else masked_ns(shape, plan))]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.settle(shape, config_of(block=size)) for size in ((8, 16, 4, 2) if wide else (8, 16))]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        config = self.settle(shape, config)
        plan = self._plan(shape, config)
        slots = plan.slots * plan.members
        if dict(config or ())["wide"]:
            return []
        return list(DotSettings.near(config, {"slots": slots}, warmup=(0, warmup(shape.target))))

    def unit(self, shape: Shape, config: Config) -> int:
        return PARTITIONS * int(self._plan(shape, config).tiles)

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        moved = 2 * int(self._plan(shape, config).slots)  # transposed, and copied to SBUF: slots of x and of w
        tiles = geometry.N * geometry.summed * geometry.C / PARTITIONS / shape.cores
        return max(issue_us(shape, tiles * moved), row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, config))

    def settled(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, config), dict(self.settle(shape, config) or ())["warmup"]

    def _plan(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, dot_settings(shape.geometry, self.settle(shape, config)))


def warmup(target: Target) -> int:
    """Matmuls of 128 columns from which the array is at full rate: as much work as one window takes for that."""
    return math.ceil(target.window_work * target.window_ns / (PARTITIONS * target.tensor_column_ns))


def wide_columns(plan: Any) -> float:
    """Columns of the array a lag and channel: transposes, products, sums."""
    columns = plan.slots + plan.lags + plan.slots // plan.taps * (plan.lags + plan.taps) + plan.lags / 2
    return float(plan.chunks * (columns + (0 if plan.keep else plan.slots)) / plan.lags)


def wide_ns(shape: Shape, plan: Any) -> float:
    """ns of a core with the way through HBM: the array's transposes, products and sums over slots of all units."""
    geometry, target = shape.geometry, shape.target
    column_ns, fp32 = target.tensor_column_ns, geometry.itemsize == 4
    first = batches(geometry, plan)[0]
    groups = first.width
    transposes = plan.lags * plan.tap_phases + plan.slots * plan.tap_phases * (1 if plan.keep else 2)
    products = groups * div_ceil(plan.slots, plan.taps) * plan.tap_phases
    columns_ns = plan.channels * (plan.lags + plan.taps - 1) * (target.tensor_column_fp32_ns if fp32 else column_ns)
    sums_ns = 2 * groups * plan.lags * column_ns
    passes = target.transpose_passes_fp32 if fp32 else 1
    transpose_ns = (PARTITIONS * column_ns + target.matmul_ns) * passes
    unit_ns = transposes * transpose_ns + products * (columns_ns + target.matmul_ns) + sums_ns
    # a transpose streams as many columns as there are channels, and keeps the array waiting for the rest of its time
    streamed_ns = transposes * min(first.block.count, PARTITIONS) * passes * column_ns + products * columns_ns + sums_ns
    if streamed_ns < SURE * target.window_work * unit_ns:
        unit_ns = 2 * unit_ns
    units = div_ceil(count_batches(geometry, plan), PARTS) * plan.chunks * plan.column_phases
    kept_ns = transpose_ns * plan.slots * plan.tap_phases * plan.chunks if plan.keep else 0.0
    return float(WIDE_ENDS_NS + kept_ns + units * unit_ns)


def masked_ns(shape: Shape, plan: Any) -> float:
    """ns of a core with masks: transposes and products of slots, or masks and sums on Vector, or HBM."""
    geometry, target = shape.geometry, shape.target
    column_ns = target.tensor_column_ns
    slots = div_ceil((geometry.S - 1) * geometry.dilation + 1, PARTITIONS)
    lags = 7 + geometry.Q * max(1, geometry.stride // geometry.dilation)
    transpose_ns = PARTITIONS * column_ns + target.matmul_ns
    matmul_ns = 16 * max(8, lags) * column_ns + target.matmul_ns
    slow = target.tensor_column_fp32_ns / column_ns if geometry.itemsize == 4 else 1.0
    tensor_ns = slow * (slots * transpose_ns + 8 * div_ceil(slots, 8) * matmul_ns)
    vector_ns = MASKED_VECTOR * 2 * 8 * 16 * lags * target.vector_ns
    channel_tiles = div_ceil(geometry.C, PARTITIONS)
    tiles = div_ceil(geometry.N * channel_tiles, PARTS)
    moved_ns = PARTITIONS * (geometry.W + geometry.S) * geometry.itemsize * target.hbm_byte_ns
    filters_ns = slow * div_ceil(channel_tiles, PARTS) * slots * transpose_ns
    # images that are summed on the array have masks and sums in common
    images, summed = geometry.summed, div_ceil(geometry.summed, plan.members)
    tile_ns = max(images * tensor_ns, summed * vector_ns, images * moved_ns)
    return float(MASKED_ENDS_NS + tiles * tile_ns + filters_ns)


ALGORITHM = Dot()
