"""Times that several bounds share: of matmuls, evacuations, DMA, a kernel's start and end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..simulator.timing.target import Target
from .geometry import Axis, Geometry, valid_range
from .options import Options, either_reads
from .settings import WARM_UP_MAX
from .tiles import P_MAX

#: Shares of the other engines' time that the busiest does not hide, as in golden plans; the second one if Vector adds
#: shifted sums, each addition after the one before.
EXPOSED, SHIFTED = 0.02, 0.08
#: Engines that share evacuations: Vector and Scalar.
READERS = 2


@dataclass
class Busy:
    """ns of a core's engines: the Tensor Engine at its full rate, its part that streams columns, evacuation by Vector
    and Scalar together, each of these and GpSimd alone, the DMA engines or HBM, triggers of DMA."""

    tensor: float = 0.0
    streamed: float = 0.0
    read: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    gpsimd: float = 0.0
    dma: float = 0.0
    issued: float = 0.0

    def add(self, other: Busy, times: float = 1.0) -> None:
        """Add `times` times another Busy."""
        mine = vars(self)
        for name, value in vars(other).items():
            mine[name] += times * value

    def others(self, moved: float) -> tuple[float, ...]:
        """ns of DMA, less `moved`, and of the other engines but the Tensor Engine."""
        read = max(self.read, (self.read + self.scalar + self.vector) / READERS)
        return max(0.0, self.dma - moved), read, self.scalar, self.vector, self.gpsimd, self.issued


class Prices:
    """ns of a core for parts of a problem: of the Tensor Engine at its full rate, of DMA on all engines."""

    def __init__(self, target: Target, geometry: Any, options: Any = None) -> None:
        """geometry: a Geometry, or of `matmul_ns` and `transpose_ns` a RowGeometry. options: Options, of `read_ns`."""
        self.target, self.geometry = target, geometry
        self.options: Options = options
        #: ns of a column of a matmul, and of a matmul besides its columns
        self.column_ns, self.fixed_ns = target.tensor_column_ns, target.matmul_ns
        if not geometry.fast:
            fixed_ns = target.matmul_passes_fp32 * target.matmul_fp32_ns
            self.column_ns, self.fixed_ns = target.tensor_column_fp32_ns, fixed_ns

    def matmul_ns(self, columns: float) -> float:
        """ns of a matmul of so many columns."""
        return max(columns, self.target.matmul_columns_min) * self.column_ns + self.fixed_ns

    def transpose_ns(self, columns: float = P_MAX) -> float:
        """ns of a transpose of so many partitions."""
        target, passes = self.target, self.target.transpose_passes_fp32 if self.geometry.itemsize == 4 else 1.0
        return float(max(columns, target.matmul_columns_min) * passes * target.tensor_column_ns + target.matmul_ns)

    def read_ns(self, banks: float, elements: float, apart: bool = False) -> float:
        """ns to evacuate so many elements a partition of so many banks, by Vector and Scalar, or by one of them. apart:
        whether Vector adds a bias by itself."""
        target, options = self.target, self.options
        vector = elements * target.vector_ns + banks * target.vector_fixed_psum_ns
        scalar = elements * target.scalar_ns + banks * target.scalar_fixed_psum_ns
        if adds := apart + options.residual:
            return max(adds * vector, scalar if options.epilogue.activation else 0.0)
        together = either_reads(options.epilogue, options.strict_nonfinite)
        return vector * scalar / (vector + scalar) if together else scalar

    def moved_ns(self, elements: float, run: float, parts: float = P_MAX, itemsize: int = 0) -> float:
        """ns of the DMA engines, or of HBM, for so many elements in runs, from or to so many partitions of SBUF;
        itemsize: if not that of x in HBM."""
        target, item = self.target, itemsize or self.geometry.hbm_itemsize
        engines = min(target.dma_engines, max(1.0, parts / target.rows_an_engine))
        return max(elements / run * target.run_ns(run * item) / engines, elements * item * target.hbm_byte_ns)

    def transposed_ns(self, parts: int, elements: float, run: float) -> float:
        """ns of a transposing load of x, see the function."""
        return transposed_ns(self.target, parts, elements, run, self.geometry.hbm_itemsize)


def array_end_ns(target: Target, start_ns: float, work_ns: float, share: float = 1.0) -> float:
    """The time at which work of the Tensor Engine ends that starts at start_ns: at half rate until the first window of
    its throttle ends, and from then on too if columns stream in too small a share of it."""
    slow_ns = min(work_ns, max(0.0, target.window_ns - start_ns) * target.half_rate)
    if share < target.window_work:
        slow_ns = max(slow_ns, work_ns - target.window_ns)
    return start_ns + slow_ns / target.half_rate + work_ns - slow_ns


def warm_up_of(target: Target, there_ns: float, work_ns: float, columns: int = P_MAX, least: bool = True) -> int:
    """Matmuls of so many columns on zeros until the first filters are loaded, at there_ns; none for little work of the
    Tensor Engine. least: whether as many as end its throttle's half rate at least."""
    needed_ns = target.window_work * target.window_ns
    fill_ns = there_ns - min(there_ns, target.window_ns) * (1 - target.half_rate)
    count = math.ceil(max(needed_ns * least, fill_ns) / (columns * target.tensor_column_ns))
    return min(WARM_UP_MAX, count) if work_ns >= needed_ns else 0


def overlapped_ns(*busy: float, exposed: float = EXPOSED) -> float:
    """ns of engines that overlap, each busy so long: the busiest, plus a share of the others for orders in which they
    wait for each other; it ranks settings with equally busy busiest engines."""
    return max(busy) + exposed * (sum(busy) - max(busy))


def total_ns(
    target: Target,
    begin_ns: float,
    moved_ns: float,
    busy: Busy,
    end_ns: float,
    exposed: float = EXPOSED,
    made_ns: float = 0.0,
    is_late: bool = False,
) -> float:
    """ns from the first DMA to the last: of first loads until the first sums, moved_ns of which DMA is busy; of the
    busiest engine; of the end after the last sums. made_ns: the Tensor Engine's begin, if it is later. is_late: whether
    it begins at half rate, as matmuls on zeros do not last until then."""
    others = busy.others(moved_ns)
    longest_ns = max(busy.tensor / (target.half_rate if is_late else 1.0), *others)
    share = busy.streamed / longest_ns if longest_ns > 0 else 1.0  # 0 ns: all outputs read padding alone
    array_ns = array_end_ns(target, max(begin_ns, made_ns), busy.tensor, share) - begin_ns
    return begin_ns + overlapped_ns(array_ns, *others, exposed=exposed) + end_ns


def transposed_ns(target: Target, parts: int, elements: float, run: float, itemsize: int) -> float:
    """ns of a core's DMA engines, of HBM, or of the queue of triggers, for a transposing load."""
    engines_ns = transposing_ns(target, parts, elements, run, itemsize)
    return float(max(engines_ns, parts * elements * itemsize * target.hbm_byte_ns, target.hwdge_ns(parts)))


def transposing_ns(target: Target, parts: Any, elements: Any, run: Any, itemsize: int) -> Any:
    """ns of a core's DMA engines for a transposing load of so many elements of each partition, in runs of SBUF, numbers
    or arrays: the engines move blocks of 128 partitions and an element for each engine."""
    block = -(-parts // P_MAX) * P_MAX * -(-run // target.dma_engines) * target.dma_engines
    return elements / run * block * itemsize * target.byte_ns / (target.dma_engines * target.transpose_rate)


def rows_ns(target: Target, rows: int, row_ns: float, num_bytes: float) -> float:
    """ns of the busiest DMA engine, row_ns for each of so many partitions, or of HBM."""
    return max(min(rows, target.rows_an_engine) * row_ns, target.hbm_ns(num_bytes, num_bytes / rows))


@lru_cache(maxsize=256)
def met_outputs(axis: Axis) -> int:
    """Outputs in the valid ranges of taps, summed over taps."""
    return int(axis.images * sum(valid_range(axis, tap, 0, axis.out // axis.images)[2] for tap in range(axis.taps)))


def planes_met(geometry: Geometry) -> float:
    """Planes of taps that are valid at an output, on average; 1 for images."""
    return met_outputs(geometry.planes) / float(geometry.planes.out)
