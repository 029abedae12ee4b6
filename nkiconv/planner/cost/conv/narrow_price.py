"""What `narrow` takes: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from __future__ import annotations

from typing import Any

from ....kernels.conv.narrow.cuts import num_blocks, rows_of_piece, step_parts
from ....schedules.geometry import num_taps, span
from ....schedules.narrow import WARM_UP, WARM_UP_FIRST
from ....schedules.planes import dmas_of_piece, windows_in_pieces
from ....schedules.tiles import BANK_BYTES, PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..clock import Clock, skew
from .common import matmul_rates, planes_met, planes_seen

#: ns until the first matmul on zeros.
WARM_UP_START_NS = 190.0
#: How much longer than evenly shared additions take, as engines wait for each other.
SHARED = 1.15


class NarrowPrice:
    """Times of a kernel's Narrow on two cores."""

    def __init__(self, target: Target, geometry: Any, narrow: Any) -> None:
        self.target, self.geometry, self.narrow = target, geometry, narrow
        self.taps = num_taps(geometry)
        self.chunks = len(narrow.chunks)
        #: input channels of the last chunk, which has most
        self.channels = narrow.chunks[-1][1]
        self.num_blocks = num_blocks(geometry, narrow)
        image_parts, block_parts = step_parts(geometry, narrow)
        #: steps of a core, images and blocks of a step on average
        self.steps = div_ceil(image_parts * block_parts, PARTS)
        self.images, self.blocks = narrow.lane.out / image_parts, self.num_blocks / block_parts
        self.column_ns, self.matmul_ns = matmul_rates(target, geometry)
        #: chunks of filters that are transposed together
        self.together = min(self.chunks, PARTITIONS // geometry.K)
        self.lines_met = self._lines_met() * planes_met(geometry)
        #: planes of x of all steps
        self.planes = narrow.L * narrow.lane.out / self.images * planes_seen(geometry, self.images)
        #: ns of the array at full rate, and those of them that it works, for a step
        banks = [self._bank_ns(tile[3]) for tile in narrow.tiles]
        self.array_ns, self.work_ns = (sum(some) for some in zip(*banks, strict=True))
        #: ns of the busiest of a core's DMA engines, or HBM, for x, y, the last store
        self.x_ns, self.y_ns, self.last_ns = self._moved_ns()

    def total_ns(self) -> float:
        """ns of the busier core."""
        target, geometry, narrow = self.target, self.geometry, self.narrow
        array_ns, work_ns = self.array_ns, self.work_ns
        x_ns, y_ns, last_ns = self.x_ns, self.y_ns, self.last_ns
        read_ns, chain_ns = self._read_ns()
        lines = len(narrow.lines) * planes_met(geometry) or 1.0  # where no plane of x is met
        rows = min(narrow.height, rows_of_piece(geometry, narrow, int(planes_seen(geometry, narrow.images))))
        first = min(1.0, narrow.images * rows * PARTS / (narrow.lane.out * geometry.rows.size)) * x_ns
        clock, start_ns = self._started(first, array_ns / (lines * len(narrow.tiles)))
        sums_ns = clock.sums_end(start_ns, self.steps * array_ns, self.steps * work_ns) - start_ns
        computed_ns = start_ns + max(sums_ns, self.steps * read_ns)
        # stores begin with the first results; those before the last load make it later
        loaded_ns = target.first_packet_ns + target.load_skew_ns + self._filters_ns() + x_ns
        to_store_ns = target.matmul_done_ns + target.hop_ns + chain_ns + target.hop_dma_ns + target.first_packet_ns
        stores_ns = start_ns + max(array_ns, read_ns) + to_store_ns
        stored_ns = max(loaded_ns, stores_ns) + y_ns + target.dma_end_ns
        loaded_ns += max(0.0, min(y_ns - last_ns, loaded_ns - stores_ns)) + target.dma_done_ns
        # what waits for the last load: its rows' lines, or all of several banks, but for other chunks' first line
        last = max(rows / (narrow.blocks * narrow.step), min(1.0, rows / lines))
        last = min(1.0, last) * (1.0 - (self.chunks - 1) / (self.chunks * lines * len(narrow.tiles)))
        tail_ns = last * array_ns
        if (self.steps - last) * work_ns < target.window_work * (loaded_ns - start_ns):
            # waiting for loads leaves the array at half rate
            tail_ns = Clock(target).sums_end(0.0, tail_ns, last * work_ns)
        summed_ns = max(computed_ns, loaded_ns + max(tail_ns, last * read_ns))
        skew_ns = skew(target, narrow.U * geometry.K, target.store_skew_ns)
        end_ns = to_store_ns + skew_ns + last_ns + target.dma_end_ns
        found_ns = max(summed_ns + end_ns, stored_ns)
        return float(found_ns + self._pieces_ns())

    def _pieces_ns(self) -> float:
        """ns of triggers for windows of planes that come in pieces."""
        geometry = self.geometry
        if geometry.depth is None:
            return 0.0
        loads = windows_in_pieces(geometry) * dmas_of_piece(geometry) * div_ceil(geometry.rows.size, self.narrow.height)
        return float(loads * self.target.static_issue_ns / PARTS)

    def reads_bound(self) -> bool:
        """Whether the read-outs take longer than the array and the DMAs."""
        read_ns = self.steps * self._read_ns()[0]
        return bool(self.narrow.T > 1 and read_ns > max(self.steps * self.array_ns, self.x_ns + self.y_ns))

    def warm_count(self) -> int:
        """Matmuls on zeros that pay: those before the filters come, more where the array has work for a window."""
        return WARM_UP if self.steps * self.array_ns >= self.target.window_ns else WARM_UP_FIRST

    def _bank_ns(self, columns: int) -> tuple[float, float]:
        """(ns of the array at full rate, those of them that it works) for a bank of sums: `columns` of each block."""
        target, narrow = self.target, self.narrow
        moved = self.images * self.blocks * columns
        unit = narrow.blocks * narrow.step
        passes, again = 1.0, 0.0
        if narrow.blocks > 1 and narrow.height < self.geometry.rows.size:
            passes = min(self.blocks, div_ceil(unit, narrow.height))
            # lines of which some blocks' rows lie in another load than the others'
            behind = [line // narrow.step for line in narrow.lines if line >= narrow.step]
            short = (max(0.0, target.matmul_columns_min - one * self.images * columns) for one in behind)
            again = sum(one * self.column_ns + self.matmul_ns for one in short) * min(1.0, unit / narrow.height)
        # lanes work beside each other, one after the other's issue
        each = max(passes * target.matmul_columns_min, moved) * self.column_ns + passes * self.matmul_ns
        each = max(each, passes * narrow.L * (target.row_tile_columns * self.column_ns + self.matmul_ns))
        times = narrow.groups * self.chunks
        return (self.lines_met * each + again) * times, self.lines_met * moved * self.column_ns * times

    def _lines_met(self) -> int:
        """Lines that are a row of x for some block."""
        narrow, count = self.narrow, 0
        low, rows = span(self.geometry.rows, 0, self.geometry.rows.out)
        for line in narrow.lines:
            h = narrow.first + line
            j = div_ceil(max(0, low - h), narrow.step)  # the first block for which it is none of the rows before x
            count += j < self.num_blocks and h + j * narrow.step < low + rows
        return count

    def _read_ns(self) -> tuple[float, float]:
        """(ns of the read-outs' busiest engine for a step, ns from its last sums to y)."""
        banks = self.images * self.blocks
        found = [self._read_outs_ns(banks * tile[1]) for tile in self.narrow.tiles]
        lanes, (busy_ns, chain_ns) = self.narrow.L, found[-1]
        return lanes * sum(one[0] for one in found), chain_ns + (lanes - 1) * busy_ns

    def _read_outs_ns(self, elements: float) -> tuple[float, float]:
        """The same for a bank."""
        target, narrow = self.target, self.narrow
        # outputs that other taps meet than their neighbours are read out by themselves
        parts = min(narrow.T, self.geometry.columns.lhs_dilation)
        elements /= parts
        vector_ns = elements * target.vector_ns + target.vector_fixed_psum_ns
        scalar_ns = elements * target.scalar_ns + target.scalar_fixed_ns
        gpsimd_ns = elements * target.gpsimd_ns + target.gpsimd_fixed_ns
        adds_ns, scalar_ns = (narrow.T - parts) * vector_ns, parts * scalar_ns
        busy_ns = max(adds_ns, scalar_ns)
        if narrow.T == parts:
            busy_ns = parts * scalar_ns * vector_ns / (scalar_ns + parts * vector_ns)
        elif narrow.shared:
            # the part of the banks of which Vector leaves one addition to the others
            part = max(0.0, min((adds_ns - scalar_ns) / (vector_ns + scalar_ns), adds_ns / (vector_ns + gpsimd_ns)))
            busy_ns = (adds_ns - min(1.0, part) * vector_ns) * SHARED
        return busy_ns, scalar_ns + target.scalar_done_ns + narrow.T * target.vector_done_ns + adds_ns

    def _moved_ns(self) -> tuple[float, float, float]:
        """ns of the busiest of a core's DMA engines, or HBM, for (x, y, the last store)."""
        target, geometry, narrow = self.target, self.geometry, self.narrow
        rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
        share = self.steps * self.images * self.blocks / (narrow.lane.out * self.num_blocks)
        x_run, y_run = 1.0, 1.0
        if geometry.x_strides[3] == 1:
            dense = geometry.x_strides[2] == narrow.wn
            x_run = narrow.wn * (min(narrow.height, rows.size) if dense else 1)
        if geometry.y_strides[3] == 1:
            # rows of all blocks lie side by side where a block is one row
            dense = narrow.U == 1 and geometry.y_strides[2] == columns.out
            y_run = columns.out * (self.blocks if dense else 1)
        x_size = self.planes * rows.size * narrow.wn
        engine = target.rows_an_engine
        x_ns = share * self.chunks * min(engine, self.channels) * x_size / x_run * target.run_ns(x_run * item)
        x_ns /= narrow.L  # each lane's partitions have engines of their own
        # slots of partitions take turns, and those have engines of their own
        runs = self.images * self.blocks * columns.out / y_run
        last_ns = min(engine, narrow.U * geometry.K) * runs * target.run_ns(y_run * item)
        slots = PARTITIONS // narrow.slot
        y_ns = self.steps * narrow.L * last_ns / min(self.steps * narrow.L, slots)
        last_ns *= div_ceil(narrow.L, slots)
        x_ns = max(x_ns, share * geometry.C * x_size * item * target.hbm_byte_ns)
        y_ns = max(y_ns, share * geometry.planes.out * geometry.K * rows.out * columns.out * item * target.hbm_byte_ns)
        # each part of the last step's rows is stored when it is there
        return x_ns, y_ns, last_ns / len(narrow.tiles)

    def _filters_ns(self) -> float:
        """ns of a DMA engine for all filters."""
        if self.geometry.flipped:
            run = self.geometry.K * self.taps * self.geometry.itemsize
            return float(self.chunks * self.target.rows_an_engine * self.target.run_ns(run))
        rows = min(self.target.rows_an_engine, self.together * self.geometry.K)
        run_ns = self.target.run_ns(self.channels * self.taps * self.geometry.itemsize)
        return float(div_ceil(self.chunks, self.together) * rows * run_ns)

    def _started(self, first_ns: float, line_ns: float) -> tuple[Clock, float]:
        """(the array's clock, ns until the first sums begin): filters have come, are transposed and laid out, and the
        first rows of x, which take first_ns of a DMA engine, have come.

        line_ns: of the array for a line.
        """
        target, geometry, narrow, chunks = self.target, self.geometry, self.narrow, self.chunks
        w_ns, width = self._filters_ns(), self.together * geometry.K
        w_skew_ns = skew(target, width, target.load_skew_ns)
        x_skew_ns = skew(target, self.channels, target.load_skew_ns)
        there_ns = target.first_packet_ns + target.dma_end_ns + target.dma_done_ns
        come_ns = there_ns + w_skew_ns
        if w_skew_ns > x_skew_ns + chunks * target.static_issue_ns:  # rows on fewer partitions come first
            come_ns += first_ns
        lines = geometry.planes.taps * len(narrow.lines) * narrow.groups
        words = lines * narrow.T * narrow.slot * geometry.itemsize / 4
        cleared_ns = div_ceil(chunks, 2) * (target.vector_fixed_ns + words * target.vector_memset_ns)
        clock, zero_ns = Clock(target), target.matmul_columns_min * target.tensor_column_ns
        zeros = min(narrow.warmup, WARM_UP_FIRST)
        time = clock.stream(WARM_UP_START_NS, zeros * zero_ns)
        # filters are transposed as they come, all of one load together; few keep the array waiting, which is no work
        loads = div_ceil(chunks, self.together)
        each_ns = self.taps * zero_ns * (target.transpose_passes_fp32 if geometry.itemsize == 4 else 1)
        if geometry.flipped:  # two engines put taps forwards, the array has nothing to do
            each_ns = self.taps * (target.vector_fixed_ns + geometry.K * target.vector_16bit_ns) / 2
        busy = min(1.0, width / target.matmul_columns_min)
        if loads > 1:
            before_ns = each_ns * (loads - 1)
            time = clock.sums_end(max(time, come_ns + w_ns / loads), before_ns, busy * before_ns)
        time = clock.sums_end(max(time, come_ns + w_ns), each_ns, busy * each_ns)
        transposed_ns = time - (1.0 - busy) * zero_ns / target.half_rate
        warm_ns = clock.stream(time, max(0, narrow.warmup - zeros) * zero_ns)
        # the last bank of these is read out, then two engines share what is laid out, one chunk after the other
        most = max(1, BANK_BYTES // (width * geometry.itemsize))
        elements = (self.taps - (div_ceil(self.taps, most) - 1) * most) * width
        time = transposed_ns + target.matmul_done_half_ns + target.hop_ns + target.vector_done_ns
        time = max(time + elements * target.vector_16bit_ns, cleared_ns)
        each = self.taps * geometry.K / narrow.groups
        vector_ns = target.vector_fixed_ns + each * target.vector_16bit_ns
        scalar_ns = target.scalar_fixed_ns + each * target.scalar_ns
        copies_ns = narrow.U * narrow.groups * vector_ns * scalar_ns / (vector_ns + scalar_ns)
        time += max(copies_ns, chunks * copies_ns - line_ns / target.half_rate) + target.vector_done_ns
        return clock, max(time + target.hop_tensor_ns, warm_ns, there_ns + x_skew_ns + w_ns + first_ns / chunks)
