"""What M packing takes at least: its start, the busiest of Tensor Engine, shift-and-add and DMA of a core, its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....kernels.conv.weight_stationary.load import PIECE_BYTES, WHOLE_BYTES
from ....schedules.block_schedule import banks_of, blocks_in, blocks_met
from ....schedules.geometry import num_taps
from ....schedules.planes import dmas_of_piece, misses_planes, with_windows
from ....schedules.settings import WARM_UP_MAX
from ....schedules.tiles import BANK_BYTES, PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..clock import Clock, skew
from .common import dma_ns, matmul_rates, prologue_ns, statistics_ns

#: ns until the first matmul on zeros.
WARM_UP_START_NS = 260.0
#: Part of the work that brings the Tensor Engine to its full rate from which on a few more matmuls on zeros do.
CLOSE = 0.9
#: How much longer it takes, as engines wait for each other.
WAITS = 1.01


@dataclass(frozen=True)
class _Work:
    """What an output tile takes: its banks; ns of the Tensor Engine, those of them that it works, of shift-and-add, of
    the last bank's from its sums to its results; of DMA engines for x, for results, for those of the last bank alone;
    loads of x."""

    banks: int
    array_ns: float
    work_ns: float
    read_ns: float
    chain_ns: float
    x_ns: float
    y_ns: float
    last_ns: float
    loads: int


class PackedBound:
    """What a Schedule of M packing takes at least."""

    def __init__(self, target: Target, geometry: Any, options: Any, schedule: Any) -> None:
        self.target, self.options, self.schedule, self.shift = target, options, schedule, schedule.shift
        self.geometry = with_windows(geometry, schedule.shift.V)
        self.column_ns, self.matmul_ns = matmul_rates(target, self.geometry)
        self.zeros_ns = target.matmul_columns_min * target.tensor_column_ns
        self.there_ns = target.first_packet_ns + target.dma_end_ns + target.dma_done_ns
        self.memo: dict[Any, _Work] = {}
        (resident,) = schedule.residents
        every = [[resident.items[i] for _, i in schedule.steps(core, PARTS)] for core in range(PARTS)]
        self.cores = [[self._work(lanes) for lanes in items] for items in every if items]

    @property
    def array_ns(self) -> float:
        """ns of the Tensor Engine at full rate, of the busier core."""
        return max(sum(one.array_ns for one in core) for core in self.cores)

    def settings(self, taps: int) -> dict[str, int]:
        """Settings that follow from the engines: matmuls on zeros while the Tensor Engine waits, and who adds."""
        core = max(range(len(self.cores)), key=lambda core: sum(one.array_ns for one in self.cores[core]))
        works = self.cores[core]
        array_ns, read_ns, moved_ns = (
            sum(one) for one in zip(*((one.array_ns, one.read_ns, one.x_ns + one.y_ns) for one in works), strict=True)
        )
        *_, early, late = self._started(works[0])
        warmup = min(early + late, WARM_UP_MAX)
        shared = int(taps > 1 and read_ns > max(array_ns, moved_ns))
        return {"warmup": warmup, "late_warmup": min(late, warmup), "shared": shared}

    def total_ns(self, _warmup: int = 0) -> float:
        """ns from the first DMA to the last, with matmuls on zeros wherever the Tensor Engine waits."""
        return max(map(self._total_ns, self.cores))

    def _total_ns(self, works: list[_Work]) -> float:
        target, first, last = self.target, works[0], works[-1]
        w_ns, w_loads, _ = self._filters()
        clock, start_ns, *_ = self._started(first)
        array_ns, work_ns, read_ns = (
            sum(one) for one in zip(*((one.array_ns, one.work_ns, one.read_ns) for one in works), strict=True)
        )
        x_ns, y_ns = sum(one.x_ns for one in works), sum(one.y_ns for one in works)
        begun_ns = start_ns + first.array_ns / first.banks
        summed_ns = max(clock.sums_end(start_ns, array_ns, work_ns), begun_ns + read_ns - last.read_ns / last.banks)
        loads = w_loads + sum(one.loads for one in works)
        loaded_ns = self.there_ns + max(w_ns + x_ns + y_ns - last.y_ns, loads * target.static_issue_ns)
        summed_ns = max(summed_ns, loaded_ns + last.array_ns / last.banks)
        end_ns = target.matmul_done_ns + target.hop_ns + last.chain_ns + target.hop_dma_ns + target.first_packet_ns
        end_ns += skew(target, self.shift.U * self.geometry.K, target.store_skew_ns) + last.last_ns
        stored_ns = self.there_ns + w_ns + x_ns + y_ns
        return float(WAITS * (max(summed_ns + end_ns, stored_ns) + target.dma_end_ns))

    def _work(self, lanes: Any) -> _Work:
        """What an output tile takes."""
        z, p, q = lanes[0]
        misses = self.geometry.depth is not None and any(
            misses_planes(self.geometry, one.image * one.axis.size + one.x0, one.xn) for one, *_ in lanes
        )
        kind = len(lanes), misses, *((part.b0 == 0, part.bn, part.xn, part.yn) for part in (z, p, q))
        if kind not in self.memo:
            self.memo[kind] = self._made(lanes, misses)
        return self.memo[kind]

    def _made(self, lanes: Any, misses: bool) -> _Work:
        target, schedule, shift, geometry = self.target, self.schedule, self.shift, self.geometry
        k_tiles, array_ns, work_ns, read_ns, chain_ns, banks = len(schedule.k_tiles), 0.0, 0.0, 0.0, 0.0, 0
        turn_ns = len(lanes) * (target.row_tile_columns * self.column_ns + self.matmul_ns) if len(lanes) > 1 else 0.0
        for bank in banks_of(schedule, lanes):
            turn, banks = schedule.turns[bank.turn], banks + 1
            blocks = blocks_in(turn, lanes[0], bank.blocks)
            met = [one for one in blocks_met(turn, lanes[0], blocks) if one]
            columns_ns = [max(target.matmul_columns_min, one) * self.column_ns + self.matmul_ns for one in met]
            array_ns += k_tiles * sum(max(one, turn_ns) for one in columns_ns)
            work_ns += k_tiles * sum(met) * self.column_ns
            busy_ns, chain_ns = self._read_ns(blocks[0][1] * blocks[1][1] * lanes[0][2].places(blocks[2])[1])
            read_ns, chain_ns = read_ns + len(lanes) * busy_ns, chain_ns + (len(lanes) - 1) * busy_ns
        z, p, q = lanes[0]
        held = z.xn * q.xn * (p.xn - min(p.xn, p.bn * p.axis.apart)) if p.b0 > 0 else 0
        copy_ns = {1: target.vector_ns, 2: target.vector_4x_ns}.get(geometry.hbm_itemsize, target.vector_16bit_ns)
        self_ns = k_tiles * len(lanes) * (target.vector_fixed_ns + held * copy_ns) if held else 0.0
        each = z.xn / geometry.image_planes
        taken_ns = prologue_ns(target, self.options.prologue, z.xn * p.xn * q.xn, 1, each) * k_tiles * len(lanes)
        if misses:
            self_ns += k_tiles * z.xn * p.xn * q.xn * geometry.itemsize / 4 * target.vector_memset_ns
        item, y_item = geometry.hbm_itemsize, self.options.epilogue.y_itemsize
        rows = p.xn if p.b0 == 0 else min(p.xn, p.bn * p.axis.apart)  # the others are copied
        x_run = float(max(1, q.xn) * (max(1, rows) if q.xn == geometry.columns.size else 1))
        channels = schedule.k_tiles[-1][1]
        x_ns = k_tiles * dma_ns(self.target, channels, len(lanes) * channels, z.xn * rows * q.xn, x_run, item)
        row_bytes = z.xn * q.xn * geometry.itemsize
        pieces = 1 if k_tiles * p.xn * row_bytes <= WHOLE_BYTES else div_ceil(rows, max(1, PIECE_BYTES // row_bytes))
        regions = dmas_of_piece(geometry) if misses else k_tiles
        kn, y_run = shift.U * geometry.K, float(q.yn)
        if shift.U == 1 and q.yn == geometry.columns.out:
            y_run *= p.bn
        one_ns = dma_ns(self.target, kn, kn, z.yn * p.bn * q.yn, y_run, y_item)
        slots = min(PARTITIONS // schedule.slot, len(schedule.residents[0].items) * len(lanes) / PARTS)
        hbm_ns = target.hbm_ns(kn * len(lanes) * z.yn * p.bn * q.yn * y_item, y_run * y_item)
        y_ns = max(one_ns * len(lanes) / slots, hbm_ns)
        outputs = lanes[0][0].yn * lanes[0][1].bn * lanes[0][2].yn
        self_ns += len(lanes) * statistics_ns(target, self.options, outputs, banks)
        # Vector and Scalar share what both have to do
        busy_ns = max(read_ns + self_ns, taken_ns, (read_ns + self_ns + taken_ns) / 2)
        return _Work(banks, array_ns, work_ns, busy_ns, chain_ns, x_ns, y_ns, one_ns / banks,
                     pieces * len(lanes) * regions)  # fmt: skip

    def _read_ns(self, outputs: float) -> tuple[float, float]:
        """(ns of shift-and-add's busiest engine for a bank, ns from its sums to its results)."""
        target, shift = self.target, self.shift
        # where x is dilated each tap meets some of the outputs
        apart = min(shift.T, shift.sums.lhs_dilation)
        outputs /= apart
        added_ns = target.vector_fixed_psum_ns + outputs * target.vector_ns
        copied_ns = target.scalar_fixed_psum_ns + outputs * target.scalar_ns
        adds_ns = (shift.T - apart) * added_ns
        busy_ns = apart * added_ns * copied_ns / (added_ns + copied_ns)
        if shift.T > apart:
            busy_ns = max(apart * copied_ns, adds_ns) + 0.15 * apart * copied_ns
        done_ns = target.scalar_done_ns + (shift.T // apart - 1) * target.vector_done_ns
        return busy_ns, apart * copied_ns + adds_ns + done_ns

    def _filters(self) -> tuple[float, int, int]:
        """(ns of DMA for all filters, DMAs, K tiles whose filters are loaded and transposed together)."""
        target, geometry, k_tiles, shift = self.target, self.geometry, self.schedule.k_tiles, self.shift
        K, taps, channels, item = geometry.K, num_taps(self.geometry), k_tiles[-1][1], geometry.hbm_itemsize
        if geometry.packed > 0 or geometry.flipped:
            ns = len(k_tiles) * target.rows_an_engine * target.run_ns(K * taps * item)
            return ns, len(k_tiles) * shift.lanes, 1
        together = min(len(k_tiles), PARTITIONS // K)
        rows, times = min(target.rows_an_engine, together * K), div_ceil(len(k_tiles), together)
        if shift.V == 1:
            return times * rows * target.run_ns(channels * taps * item), len(k_tiles) * shift.lanes, together
        # a run for the planes of taps of a channel
        each = channels // geometry.depth_axis.taps
        run_ns = target.run_ns(shift.depth.taps * taps * item)
        return times * rows * each * run_ns, len(k_tiles) * shift.V, together

    def _started(self, first: _Work) -> tuple[Clock, float, int, int]:
        """(the Tensor Engine's clock, ns until the first sums begin, matmuls on zeros before filters come and before
        they are placed): filters have come, are transposed and placed, and x of the first bank has come."""
        target, geometry, schedule, shift = self.target, self.geometry, self.schedule, self.shift
        k_tiles, taps, K = len(schedule.k_tiles), num_taps(geometry), geometry.K
        w_ns, w_loads, together = self._filters()
        loads, width = div_ceil(k_tiles, together), together * K
        clock, come_ns = Clock(target), self.there_ns + skew(target, width, target.load_skew_ns)
        vector_ns = 0.0
        if shift.V > 1:
            words = schedule.k_tiles[-1][1] * taps * geometry.itemsize / 4
            vector_ns += loads * (target.vector_fixed_memset_ns + words * target.vector_memset_ns)
            come_ns += vector_ns
        come_ns += (w_loads - 1) * target.static_issue_ns
        early, time = self._filled(clock, WARM_UP_START_NS, come_ns + w_ns / loads)
        each_ns = taps * self.zeros_ns * (target.transpose_passes_fp32 if geometry.itemsize == 4 else 1)
        if geometry.flipped:  # two engines put taps forwards
            each_ns = taps * (target.vector_fixed_ns + K * target.vector_16bit_ns) / 2
        elif geometry.packed > 0:
            each_ns = 0.0
        share = min(1.0, width / target.matmul_columns_min)  # few columns keep the Tensor Engine waiting
        for load in range(loads):
            time = clock.sums_end(max(time, come_ns + w_ns * (load + 1) / loads), each_ns, share * each_ns)
        transposed_ns = time
        # the last bank of transposes is evacuated, then two engines share what is placed
        most = max(1, BANK_BYTES // (width * geometry.itemsize))
        last = (taps - (div_ceil(taps, most) - 1) * most) * width
        if not geometry.flipped and geometry.packed == 0:
            time += target.matmul_done_half_ns + target.hop_ns + last * target.vector_16bit_ns
        time += target.vector_done_ns
        words = len(schedule.turns[0].products) * shift.T * schedule.slot * geometry.itemsize / 4
        vector_ns += div_ceil(k_tiles, 2) * (target.vector_fixed_memset_ns + words * target.vector_memset_ns)
        copies = shift.U * shift.groups * geometry.planes.taps
        elements = taps * K / (shift.groups * geometry.planes.taps)
        vector_copy_ns = target.vector_fixed_ns + elements * target.vector_16bit_ns
        scalar_copy_ns = target.scalar_fixed_ns + elements * target.scalar_ns
        copies_ns = copies * max(vector_copy_ns * scalar_copy_ns / (vector_copy_ns + scalar_copy_ns),
                                 vector_copy_ns / copies)  # fmt: skip
        hidden_ns = first.array_ns / first.banks / target.half_rate * (k_tiles - 1) / k_tiles
        time = max(time, vector_ns) + max(copies_ns, k_tiles * copies_ns - hidden_ns) + target.vector_done_ns
        x_ns = max(w_ns + first.x_ns / first.banks, (w_loads + first.loads / first.banks) * target.static_issue_ns)
        x_ns += self.there_ns + skew(target, schedule.k_tiles[-1][1], target.load_skew_ns)
        start_ns = max(time + target.hop_tensor_ns, x_ns)
        late, _ = self._filled(clock, transposed_ns, start_ns)
        if clock.work >= CLOSE * target.window_work * target.window_ns:
            clock.work = target.window_ns
        return clock, start_ns, early, late

    def _filled(self, clock: Clock, begin: float, end: float) -> tuple[int, float]:
        """(matmuls on zeros that fill the time between, when they end)."""
        time = clock.stream(begin, 0.0)
        count = int(max(0.0, (min(end, clock.line) - time)) * clock.rate / self.zeros_ns)
        count += int(max(0.0, end - max(time, clock.line)) / self.zeros_ns)
        return count, clock.stream(time, count * self.zeros_ns)
