"""`skewed` on the host: a core takes so many matmuls' channels, each a share of Tensor, DMA and evacuations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....schedules.depthwise import RowGeometry
from ....schedules.skewed import BESIDE, SkewedSchedule, SkewedSettings, build, completed
from ....schedules.tiles import PARTS, div_ceil
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import ByBound, Guess, Shape, config_of, ints, pairs_of

#: ns from the first load to the first products and from the last ones to the end of the last store: HBM is met twice.
ENDS_NS = 11_000.0
#: Parts of taps that are tried.
SHIFTS = (4, 6, 8, 12, 16)
#: How much longer than its busiest part a group takes.
TOGETHER = 1.15
#: Bytes of an element of products and sums.
_SUM_BYTES = 4


class Skewed(ByBound):
    """Blocks of gy times windows of x, whose skewed diagonals' sums are wanted."""

    settings = SkewedSettings

    def candidates(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        geometry, ways = shape.geometry, [{"beside": one, "shifts": 1} for one in BESIDE if one <= shape.geometry.C]
        ways += [{"beside": 1, "shifts": one} for one in SHIFTS if one < geometry.S]
        found = []
        for config in [config_of(**given)] if given else [config_of(**way) for way in ways]:
            plan = build(geometry, config, PARTS)[0]
            if plan is not None:
                ns = skewed_ns(geometry, plan, PARTS, shape.target)
                found.append(Guess(pairs_of(completed(geometry, config)), ns))
        return sorted(found, key=lambda one: one.ns)[:count]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(SkewedSettings.near(config))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(build(shape.geometry, self.complete(shape, config), PARTS)[0])


def skewed_ns(geometry: RowGeometry, plan: SkewedSchedule, cores: int, target: Target) -> float:
    """ns of a core at least: the first batch's loads, then matmuls' channels one after the other, each as long as its
    busiest engine."""
    item, fp32 = geometry.itemsize, geometry.itemsize == _SUM_BYTES
    # Tensor: products, at half rate where they stream too few columns, and sums of rows
    passes = target.matmul_passes_fp32 if fp32 else 1.0
    column_ns = target.tensor_column_fp32_ns / passes if fp32 else target.tensor_column_ns
    streamed = max(plan.columns, target.matmul_columns_min)
    sums = target.onezero_passes_fp32 * (plan.taps / plan.stacks + (plan.folds > 1) * plan.part_columns)
    array_ns = plan.tiles * plan.passes * passes * (streamed * column_ns + target.matmul_ns)
    array_ns = plan.chunks * (array_ns + sums * target.tensor_column_ns)
    if plan.columns * target.half_rate < target.window_work * streamed:
        array_ns /= target.half_rate
    # DMA: runs of units of x and gy; products to HBM and back in step
    lines, window, rows = (
        plan.tiles * plan.channels * plan.units * plan.images,
        min(plan.window, geometry.W),
        plan.beside,
    )
    gy = rows // plan.channels
    load_ns = lines * (gy * target.run_ns(plan.unit * item) + target.run_ns(window * item)) / target.dma_engines
    load_ns = max(load_ns, lines * (gy * plan.unit + window) * item * target.hbm_long_byte_ns)
    rows *= plan.part * plan.chunks
    back_ns = plan.part_columns * _SUM_BYTES * target.byte_ns + target.run_ns(plan.taps * _SUM_BYTES)
    num_bytes = rows * (plan.part_columns + plan.taps) * _SUM_BYTES
    dma_ns = load_ns + max(rows * back_ns / target.dma_engines, num_bytes * target.hbm_long_byte_ns)
    # Vector and Scalar share evacuations
    columns = plan.part_columns * (plan.folds + 1 / plan.stacks) if plan.folds > 1 else plan.columns
    read_ns = plan.chunks * (columns + plan.taps / plan.stacks) / (1 / target.vector_ns + 1 / target.scalar_ns)
    groups = div_ceil(len(plan.batches), cores) * plan.groups
    return float(ENDS_NS + plan.groups * load_ns + TOGETHER * groups * max(array_ns, dma_ns, read_ns))


ALGORITHM = Skewed()
