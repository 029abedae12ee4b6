"""What a stack takes: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from __future__ import annotations

from typing import Any, NamedTuple

from ....schedules.cuts import BlockBand
from ....schedules.geometry import num_taps
from ....schedules.options import either_reads
from ....schedules.stacked import can_shift
from ....schedules.stacked_schedule import FILTER_PARTS, LONG_RUN_BYTES, met_counts
from ....schedules.tiles import BANK_BYTES, PARTS, slot_for
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..clock import Clock, skew
from .common import matmul_ns, matmul_rates, planes_met, planes_seen

#: Share of the DMAs' time that others wait for although they take longer.
CONTENTION = 0.05
#: ns of a job that transposes filters and takes sums, with their read-outs, at least, as timelines of short ones show.
JOB_NS = 550.0
#: ns until the first matmul on zeros as a price has it, and as warm-ups are counted from: a memset, and hops.
WARM_UP_START_NS = 300.0
ZEROS_NS = 400.0
#: Matmuls on zeros, at most, before the first filters are there and after.
WARM_UP_MAX = 256
#: Who reads sums out: Vector and Scalar, each what it has time for, Scalar alone where an activation is its own, or
#: Vector first where a residual is added.
READERS = ("both", "scalar", "vector")


def reader_of(extras: Any) -> str:
    """Who reads sums out: one of READERS."""
    if extras.residual:
        return "vector"
    return "both" if either_reads(extras.epilogue, extras.strict_nonfinite) else "scalar"


def filters_least_ns(target: Target) -> float:
    """ns until filters are there, transposed and read out, at least."""
    there_ns = target.first_packet_ns + target.dma_end_ns + target.dma_done_ns
    return there_ns + target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns + target.vector_done_ns


def least_ns(target: Target) -> float:
    """ns before the first sums and after the last, at least."""
    read_ns = target.matmul_done_ns + target.hop_ns + target.vector_fixed_psum_ns + target.vector_done_ns
    return filters_least_ns(target) + read_ns + store_ns(target, 0.0)


def store_ns(target: Target, busy_ns: float) -> float:
    """ns from a result to the end of its store, which keeps an engine at work for `busy_ns`."""
    return target.first_packet_ns + target.hop_dma_ns + target.static_issue_ns + busy_ns + target.dma_end_ns


def filters_way(target: Target, geometry: Any, stack: Any) -> str:
    """How filters come soonest to their places, one of `schedules.stacked.WAYS`."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    if geometry.flipped:
        return "shifted" if can_shift(geometry, stack.U) else "apart"
    if stack.U == 1 and max(stack.phases) + stack.num_taps * stack.B == rows.taps:
        return "straight"
    run = columns.taps * (rows.taps if rows.dilation == 1 else 1)
    if can_shift(geometry, stack.U):
        return "shifted" if run * item < LONG_RUN_BYTES else "straight"
    size = geometry.C * num_taps(geometry)
    straight_ns = size // run * target.run_ns(run * item) * min(target.rows_an_engine, stack.U * stack.kn)
    straight_ns += (stack.U * (rows.taps if rows.dilation > 1 else 1) - 1) * target.static_issue_ns
    passes = 1 if item == 2 else target.transpose_passes_fp32
    each_ns = max(stack.kn, target.matmul_columns_min) * passes * target.tensor_column_ns / target.half_rate
    transposed_ns = (stack.U - 1) * stack.num_filters * each_ns
    apart_ns = target.run_ns(size * item) * min(target.rows_an_engine, stack.kn) + transposed_ns
    return "apart" if apart_ns < straight_ns else "straight"


class BandNs(NamedTuple):
    """ns of a band."""

    array: float
    #: columns alone
    work: float
    read: float
    loads: float
    stores: float
    #: bytes of HBM
    num_bytes: float
    #: from the last sum to the end
    last: float


class StackPrice:
    """Times of one stack, in ns of both cores."""

    def __init__(self, target: Target, geometry: Any, stack: Any, reader: str = "both") -> None:
        self.target, self.geometry, self.stack, self.reader = target, geometry, stack, reader
        self.image_parts, self.block_parts = stack.band_parts
        blocks = stack.num_blocks
        #: a band of as many images and blocks as any, at the top
        self.band = BlockBand(
            z0=0, zn=-(-geometry.planes.out // self.image_parts), j0=0, jn=-(-blocks // self.block_parts)
        )
        #: bands of a core, and as many of the largest as come to the same
        self.count = -(-self.image_parts * self.block_parts // PARTS)
        whole = self.image_parts * self.block_parts * self.band.zn * self.band.jn
        self.times: float = self.count * geometry.planes.out * blocks / whole
        self._price_filters()

    def _price_filters(self) -> None:
        target, geometry, stack = self.target, self.geometry, self.stack
        rows, item, straight = geometry.rows, geometry.itemsize, stack.filters == "straight"
        size = geometry.C * num_taps(geometry)
        runs = 1
        if straight and not stack.fits_window:
            runs = geometry.C * geometry.planes.taps * (1 if rows.dilation == 1 else rows.taps)
        if geometry.w_strides[3] > 1 and geometry.columns.taps > 1:
            runs = size
        elif geometry.flipped:
            runs = geometry.C
        #: partitions that the filters of a job come to, DMAs, bytes of HBM, ns of a DMA engine
        self._partitions: int = stack.kn * (stack.U if straight else 1)
        self._triggers: int = stack.U * (rows.taps if rows.dilation > 1 else 1) if straight else 1
        self._bytes: int = self._partitions * size * item
        self._filter_ns: float = (
            runs * target.run_ns(size // runs * item) * min(self._partitions, target.rows_an_engine)
        )
        #: ns of the array for the transposes of a job's filters, and how many filters are read out first
        count, copies = int(stack.num_filters), stack.U if stack.filters == "apart" else 1
        passes = target.transpose_passes_fp32 if item == 4 else 1
        columns = max(stack.U * stack.kn // copies, target.matmul_columns_min)
        self._transposes_ns: float = copies * count * passes * (columns * target.tensor_column_ns + target.matmul_ns)
        self._first_bank: int = min(count, max(1, BANK_BYTES // (stack.U * stack.kn * item)), -(-count // FILTER_PARTS))

    def ns(self, most_ns: float = float("inf")) -> float:
        """The whole; where it takes more than `most_ns`, some ns between the two."""
        target, stack, times = self.target, self.stack, self.times
        band, jobs = self._band_ns(), len(stack.jobs)
        left = jobs - self._first_bank / stack.num_filters
        num_bytes = times * band.num_bytes + jobs * self._bytes
        moved_ns = max(jobs * self._filter_ns + times * (band.loads + band.stores), num_bytes * target.hbm_byte_ns)
        busy_ns = max(times * band.array + left * self._transposes_ns, times * band.read)
        start_ns = filters_least_ns(target)
        bound_ns: float = max(busy_ns, moved_ns - start_ns) + start_ns + band.last + CONTENTION * moved_ns
        if bound_ns > most_ns:
            return bound_ns
        begin = self._first_ns()
        share = min(1.0, stack.U * stack.kn / target.matmul_columns_min)
        work_ns = times * band.work + jobs * self._transposes_ns * share
        clock = Clock(target)
        # zeros keep the array at work until the first sums
        clock.stream(WARM_UP_START_NS, (begin - WARM_UP_START_NS) * target.half_rate)
        sums_ns = clock.sums_end(begin, times * band.array + left * self._transposes_ns, work_ns) - begin
        if jobs > 1:
            # with transposes between, a job takes as long at least as those, and its sums, and both read-outs in turn
            sums_ns = max(sums_ns, jobs * JOB_NS + (times - 1.0) * band.array)
        # a buffer is filled when the sums of the band before have left it
        filled_ns = target.first_packet_ns + target.load_skew_ns + target.dma_done_ns + band.loads + band.array
        filled_ns = filled_ns * max(0, self.count - stack.ring) / stack.ring
        whole_ns: float = max(sums_ns, times * band.read, moved_ns - begin, filled_ns)
        return begin + whole_ns + band.last + CONTENTION * moved_ns

    def warm_ups(self) -> tuple[int, int]:
        """Matmuls on zeros that keep the array busy until the first filters are there, about, and from their transposes
        to the first rows."""
        there_ns = self._there_ns()
        before = self._zeros(ZEROS_NS, there_ns)
        rate = self.target.half_rate if there_ns < self.target.window_ns else 1.0
        after = self._zeros(there_ns + self._transposes_ns / rate, self._first_ns())
        return min(WARM_UP_MAX, before), min(WARM_UP_MAX, after)

    def hold(self, has_bias: bool) -> int:
        """Elements that GpSimd clears before the second band is loaded, while other jobs' filters are triggered."""
        if len(self.stack.jobs) == 1:
            return 0
        triggers = len(self.stack.jobs) + (self.stack.U if has_bias else 0)
        return int((self.target.load_skew_ns + self.target.static_issue_ns * triggers) / self.target.gpsimd_ns)

    def _zeros(self, begin_ns: float, end_ns: float) -> int:
        """Matmuls of 128 columns that fill this time: at half rate until the end of the first window, then at full."""
        target = self.target
        each_ns, window_ns = PARTITIONS * target.tensor_column_ns, target.window_ns
        slow_ns = max(0.0, min(end_ns, window_ns) - begin_ns)
        fast_ns = max(0.0, end_ns - max(begin_ns, window_ns))
        return int(slow_ns * target.half_rate / each_ns + fast_ns / (each_ns + target.matmul_ns))

    def _band_ns(self) -> BandNs:
        target, geometry, stack, band = self.target, self.geometry, self.stack, self.band
        columns, item, jobs = geometry.columns, geometry.itemsize, len(stack.jobs)
        parts, across = stack.tiles(band, False)
        column_ns = matmul_rates(target, geometry)[0]
        matmuls = jobs * stack.V * stack.num_taps * stack.groups * planes_met(geometry)
        clipped = sum(met_counts(columns)) / (columns.taps * columns.out) if stack.whole >= 0 else 1.0
        array_ns = read_ns = tile_ns = work_ns = 0.0
        for size in [band.zn * part[1] * q[1] for part in parts for q in across]:
            array_ns += matmuls * matmul_ns(target, geometry, size)
            work_ns += matmuls * size * column_ns * clipped
            tile_ns = target.vector_fixed_psum_ns + size * target.vector_ns
            scalar_ns = target.scalar_fixed_psum_ns + size * target.scalar_ns
            each_ns = scalar_ns if self.reader == "scalar" else tile_ns
            if self.reader == "both":
                each_ns = tile_ns * scalar_ns / (tile_ns + scalar_ns)
            read_ns += jobs * stack.V * each_ns
        x_size = planes_seen(geometry, band.zn) * stack.block_rows(band.jn) * min(stack.width, columns.size)
        load_ns = self._rows_ns(stack.block_rows(band.jn))
        outputs = stack.U
        y_size = band.zn * band.jn * stack.V * columns.out
        y_runs = band.zn * (len(parts) if outputs == 1 else band.jn)
        y_ns = y_runs * target.run_ns(y_size // y_runs * item)
        if geometry.y_strides[3] > 1 and columns.out > 1:
            y_ns = y_size * target.run_ns(item)
        y_ns *= min(target.rows_an_engine, outputs * stack.kn)
        last_ns = target.matmul_done_ns + target.hop_ns + tile_ns + target.vector_done_ns
        last_ns += store_ns(target, y_ns / len(parts))
        # banks leave from parts of the partitions in turn, which lie on different engines
        slots = min(len(parts), PARTITIONS // slot_for(outputs * stack.kn))
        y_bytes = jobs * outputs * stack.kn * y_size * item
        num_bytes = stack.parts * x_size * item + y_bytes
        if self.reader == "vector":
            # a residual comes as y goes, on as many partitions as it has
            load_ns += jobs * y_ns
            num_bytes += y_bytes
        return BandNs(array_ns, work_ns, read_ns, load_ns, jobs * y_ns / slots, num_bytes, last_ns)

    def _rows_ns(self, blocks: int) -> float:
        """Of a DMA engine for so many blocks of X of a band."""
        target, geometry, stack = self.target, self.geometry, self.stack
        item, run = geometry.itemsize, min(stack.width, geometry.columns.size)
        each_ns = blocks * target.run_ns(run * item)
        if geometry.x_strides[3] > 1 and run > 1:
            each_ns = blocks * run * target.run_ns(item)
        elif stack.G == 1 and stack.whole >= 0:
            # blocks that hold neighbouring rows are one run
            each_ns = target.run_ns(blocks * run * item)
        return float(planes_seen(geometry, self.band.zn) * each_ns * target.rows_an_engine)

    def _there_ns(self) -> float:
        """Until the first filters have come and may be transposed."""
        target, geometry, stack = self.target, self.geometry, self.stack
        there_ns: float = target.first_packet_ns + skew(target, self._partitions, target.load_skew_ns)
        there_ns += target.dma_end_ns + target.dma_done_ns
        there_ns += max(self._filter_ns, self._bytes * target.hbm_byte_ns)
        there_ns += (self._triggers - 1) * target.static_issue_ns
        if stack.fits_window:
            return there_ns
        if stack.filters != "straight":
            copies = stack.U if stack.filters == "shifted" else 1
            size = geometry.C * num_taps(geometry) * copies
            there_ns += target.vector_done_ns + target.hop_tensor_ns + size * target.vector_4x_ns
            if geometry.flipped:  # two engines turn taps
                there_ns += num_taps(geometry) * (target.vector_fixed_ns + geometry.C * target.vector_16bit_ns) / 2
            return there_ns
        if stack.common_rows[1] > 0:
            return there_ns
        words = stack.z_elements * geometry.itemsize // 4
        there_ns += target.vector_done_ns + words * target.vector_memset_ns
        return there_ns

    def _first_ns(self) -> float:
        """Until the first sums begin: filters are transposed, and the first rows of x are there."""
        target, geometry, stack, band = self.target, self.geometry, self.stack, self.band
        bank, come_ns = self._first_bank, self._there_ns()
        rate = target.half_rate if come_ns < target.window_ns else 1.0
        read_ns = target.vector_done_ns + bank * stack.U * stack.kn * target.vector_16bit_ns
        filters_ns: float = come_ns + bank * self._transposes_ns / stack.num_filters / rate
        filters_ns += target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns + read_ns
        part = stack.tiles(band, False)[0][0]
        blocks = stack.block_rows(part[1])
        first, last = stack.whole_blocks(band.j0 * stack.step, blocks)
        triggers = self._triggers + stack.D * planes_seen(geometry, band.zn) * (1 + blocks - (last - first))
        rows_ns: float = target.first_packet_ns + skew(target, stack.B * geometry.C, target.load_skew_ns)
        rows_ns += target.dma_end_ns + target.dma_done_ns
        rows_ns += triggers * target.static_issue_ns + self._filter_ns + self._rows_ns(blocks)
        return max(filters_ns, rows_ns)
