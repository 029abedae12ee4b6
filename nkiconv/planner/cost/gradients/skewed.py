"""`skewed` on the host: a core takes so many matmuls' channels, each a share of the array, of DMA and of read-outs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....schedules.depthwise import RowGeometry
from ....schedules.skewed import BESIDE, SkewedSchedule, SkewedSettings, build, completed
from ....schedules.tiles import PARTS, div_ceil
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of

#: ns from the first load to the first products and from the last ones to the end of the last store: HBM is met twice.
ENDS_NS = 11_000.0
#: Parts of taps that are tried.
SHIFTS = (4, 6, 8, 12, 16)
#: How much longer than its busiest part a group takes.
TOGETHER = 1.15
#: Bytes of an element of products and sums.
_SUM_BYTES = 4


class Skewed(Algorithm):
    """Blocks of gy times windows of x, whose skewed diagonals' sums are wanted."""

    def guesses(self, shape: Shape) -> list[Guess]:
        found = [self.guess(shape, config) for config in self.configs(shape, False)]
        return [min((one for one in found if one), key=lambda one: one.ns)] if any(found) else []

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        config = self.settle(shape, config)
        plan = build(shape.geometry, config, PARTS)[0]
        return None if plan is None else Guess(config, skewed_ns(shape.geometry, plan, PARTS, shape.target))

    def settle(self, shape: Shape, config: Config) -> Config:
        if build(shape.geometry, config, PARTS)[0] is None:
            return config
        return pairs_of(completed(shape.geometry, config))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found = [config_of(beside=beside, shifts=1) for beside in BESIDE if beside <= shape.geometry.C]
        found += [config_of(beside=1, shifts=shifts) for shifts in SHIFTS if shifts < shape.geometry.S]
        return [self.settle(shape, one) for one in found]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(SkewedSettings.near(config))

    def unit(self, shape: Shape, config: Config) -> int:
        return 1

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(build(shape.geometry, self.settle(shape, config), PARTS)[0])

    def settled(self, shape: Shape, config: Config) -> Any:
        return self.settle(shape, config)


def skewed_ns(geometry: RowGeometry, plan: SkewedSchedule, cores: int, target: Target) -> float:
    """ns of a core: the first batch's loads, then all groups one after the other."""
    groups = div_ceil(len(plan.batches), cores) * plan.groups
    loads_ns = load_ns(geometry, plan, target)
    each_ns = max(array_ns(geometry, plan, target), loads_ns + results_ns(plan, target), read_ns(plan, target))
    return float(ENDS_NS + plan.groups * loads_ns + TOGETHER * groups * each_ns)


def array_ns(geometry: RowGeometry, plan: SkewedSchedule, target: Target) -> float:
    """The array's share of a group: products, at half rate where matmuls stream too few columns, and sums of rows."""
    column_ns, least, passes, cycles = target.tensor_column_ns, target.matmul_columns_min, 1.0, 1.0
    if geometry.itemsize == _SUM_BYTES:
        passes = target.matmul_passes_fp32
        cycles = target.tensor_column_fp32_ns / column_ns / passes
    taken = max(plan.columns, least) * cycles
    sums = target.onezero_passes_fp32 * plan.chunks * (plan.taps / plan.stacks + (plan.folds > 1) * plan.part_columns)
    products_ns = plan.tiles * plan.passes * plan.chunks * passes * (taken * column_ns + target.matmul_ns)
    full = plan.columns * cycles * target.half_rate >= target.window_work * taken
    return float((products_ns + sums * column_ns) / (1.0 if full else target.half_rate))


def load_ns(geometry: RowGeometry, plan: SkewedSchedule, target: Target) -> float:
    """DMA's share of a group: runs of x and of gy, a unit each."""
    itemsize, lines = geometry.itemsize, plan.tiles * plan.channels * plan.units * plan.images
    window, rows = min(plan.window, geometry.W), plan.beside // plan.channels
    runs_ns = rows * target.run_ns(plan.unit * itemsize) + target.run_ns(window * itemsize)
    num_bytes = lines * (rows * plan.unit + window) * itemsize
    return float(max(lines * runs_ns / target.dma_engines, num_bytes * target.hbm_long_byte_ns))


def results_ns(plan: SkewedSchedule, target: Target) -> float:
    """The same for products on their way to HBM and back."""
    rows = plan.beside * plan.part * plan.chunks
    to_ns = plan.part_columns * _SUM_BYTES * target.byte_ns
    num_bytes = rows * (plan.part_columns + plan.taps) * _SUM_BYTES
    back_ns = target.run_ns(plan.taps * _SUM_BYTES)
    return float(max(rows * (to_ns + back_ns) / target.dma_engines, num_bytes * target.hbm_long_byte_ns))


def read_ns(plan: SkewedSchedule, target: Target) -> float:
    """Read-outs of a group, which Vector and Scalar share."""
    columns = float(plan.columns)
    if plan.folds > 1:
        columns = plan.part_columns * (plan.folds + 1 / plan.stacks)
    return float(plan.chunks * (columns + plan.taps / plan.stacks) / (1 / target.vector_ns + 1 / target.scalar_ns))


ALGORITHM = Skewed()
