"""What a plan of `implicit_gemm` takes: its items core by core, as they are shared.

The array's rate is followed window by window: short kernels and matmuls of few columns get half of it. The first bank
of sums is followed chunk by chunk, as its filters and rows come; of the rest, sums and DMA are only added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ....kernels.conv.transposes import is_transposed
from ....schedules.geometry import filter_rows
from ....schedules.implicit_gemm_channels import is_depthwise_job, lies_ready, stores_channels, tap_groups
from ....schedules.implicit_gemm_outputs import banks_of, folded_width, lead_chunks, row_parts
from ....schedules.pairs_of_planes import planes_at_once
from ....schedules.tiles import BANK_BYTES, PARTS, share, whole_words
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..clock import Clock, skew
from .implicit_gemm_work import ZEROS_NS, Work
from .pairs_price import START_NS, frames_share, pairs_ns, rows_come

#: ns until DMA is at work; from the last matmul to the end of the last store.
DMA_START_NS = 1200.0
END_NS = 1500.0
#: ns until x that DMA transposes is there, beside rows, and that the last results take for their transposes and second
#: read-out.
TRANSPOSED_NS = 700.0
TRANSPOSE_OUT_NS = 1000.0


@dataclass(frozen=True)
class Busy:
    """ns of the array at full rate, those of them that it works, and ns that it waits for other engines."""

    array_ns: float = 0.0
    work_ns: float = 0.0
    waits_ns: float = 0.0

    def __add__(self, other: Busy) -> Busy:
        return Busy(self.array_ns + other.array_ns, self.work_ns + other.work_ns, self.waits_ns + other.waits_ns)

    def __mul__(self, times: float) -> Busy:
        return Busy(times * self.array_ns, times * self.work_ns, times * self.waits_ns)

    def without(self, done: Busy) -> Busy:
        """What is left when some is done."""
        return Busy(
            max(0.0, self.array_ns - done.array_ns),
            max(0.0, self.work_ns - done.work_ns),
            max(0.0, self.waits_ns - done.waits_ns),
        )


@dataclass(frozen=True)
class Traffic:
    """ns of the busiest DMA engine, bytes of HBM, and DMA transposes, which one queue triggers."""

    engine_ns: float = 0.0
    hbm_bytes: float = 0.0
    transposes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        transposes = self.transposes + other.transposes
        return Traffic(self.engine_ns + other.engine_ns, self.hbm_bytes + other.hbm_bytes, transposes)


def taps_ns(target: Target, geometry: Any, plan: Any) -> float:
    """ns of the busier of two cores."""
    price = _Price(target, geometry, plan)
    parts = [share(len(plan.items), PARTS, half) for half in range(PARTS)]
    beside_ns = START_NS if geometry.direct is not None else 0.0
    beside_ns += (TRANSPOSED_NS if is_transposed(geometry) else 0.0) + (
        TRANSPOSE_OUT_NS if stores_channels(geometry) else 0.0
    )
    return max(price.core_ns(plan.items[first : first + count]) for first, count in parts if count) + beside_ns + END_NS


class _Price:
    """A plan's parts, priced."""

    def __init__(self, target: Target, geometry: Any, plan: Any) -> None:
        self.target, self.geometry, self.plan = target, geometry, plan
        self.work = Work(target, geometry)

    def core_ns(self, items: Sequence[Any]) -> float:
        """ns of a core for its items, from its start to the last sums: the array is never free, or it waits for the
        last rows of x; or to the last DMA."""
        target = self.target
        clock, start_ns, done = self.started(items[0])
        every = self.sums_of(items)
        ended_ns = self.mixed_end(clock, start_ns, every.without(done))
        traffic, after = self.moved(items)
        stored_ns = DMA_START_NS + self.traffic_ns(traffic)
        loaded_ns = stored_ns - min(self.traffic_ns(traffic), self.traffic_ns(after)) + target.dma_done_ns
        last = self.after_loads(items[-1])
        clock = Clock(target)
        clock.full = every.work_ns - last.work_ns >= target.window_work * loaded_ns
        placed_ns = start_ns + sum(self.placed_ns(item.band) for item in items[1:])
        added_ns = start_ns + pairs_ns(target, self.geometry, self.plan, items)
        return max(ended_ns, stored_ns, placed_ns, added_ns, loaded_ns + self.mixed_end(clock, 0.0, last))

    def placed_ns(self, band: Any) -> float:
        """ns of GpSimd to put rows of x of a band between zeros."""
        return self.work.placed_ns(self.plan.batches[0][0].chunks[-1], band.dn * band.hn)

    def mixed_end(self, clock: Clock, start: float, busy: Busy) -> float:
        """`sums_end` where the array waits for others in between, which takes as long at half its rate."""
        if busy.array_ns + busy.waits_ns == 0.0:
            return start
        work_share = busy.work_ns / (busy.array_ns + busy.waits_ns)
        rate = 1.0 if work_share >= self.target.window_work else self.target.half_rate
        full_ns = busy.array_ns + busy.waits_ns * rate
        return clock.sums_end(start, full_ns, work_share * full_ns)

    def sums_of(self, items: Sequence[Any]) -> Busy:
        """All Busy of some items: filters are transposed, and sums made; of all bands of a batch together."""
        found = Busy()
        for batch, same in groupby(items, key=lambda item: item.batch):
            bands, jobs = list(same), self.plan.batches[batch]
            banks = sum(len(banks_of(item.band, item.last)) for item in bands)
            found += self.sums_in(jobs, sum(pixels_of(item.band) for item in bands), banks)
            for job in jobs[: self.plan.moved[batch]]:
                found += self.transposing(job)
        return found

    def sums_in(self, jobs: Sequence[Any], pixels: int, banks: int) -> Busy:
        """Busy for the sums of so many pixels, in so many banks."""
        return Busy(*self.work.array_work_ns(jobs, pixels / self.work.outputs, banks))

    def after_loads(self, item: Any) -> Busy:
        """Busy that an item leaves to do when the last rows of x have come: the sums of them, and those of all jobs but
        the first, which waits for them."""
        jobs = self.plan.batches[item.batch]
        banks = banks_of(item.band, item.last)
        found = self.sums_in(jobs[:1], pixels_of(banks[-1]), 1)
        if len(jobs) > 1 and not self.plan.together:
            found += self.sums_in(jobs[1:], pixels_of(item.band), len(banks))
        return found

    def started(self, item: Any) -> tuple[Clock, float, Busy]:
        """(the array's clock, ns from a core's start to the end of the first bank of sums, Busy until then)."""
        target, jobs = self.target, self.plan.batches[item.batch]
        job, banks = jobs[0], banks_of(item.band, False)
        chunks, clock = len(job.chunks), Clock(target)
        time = clock.stream(ZEROS_NS, self.plan.warmup * PARTITIONS * target.tensor_column_ns)
        sums, transposed = self.sums_in([job], pixels_of(banks[0]), 1), self.transposing(job)
        if len(banks) == 1 and min(len(jobs), self.plan.moved[item.batch]) > 1:
            sums += self.transposing(jobs[1])  # the next job's filters, between these sums
        come = self.arrivals(item, job)
        lead = min(chunks, lead_chunks(self.geometry))
        for chunk in range(chunks):
            now = sums * (1.0 / chunks)
            if chunk == 0:
                time = max(time, come[0][0])
                ready_ns = max(come[lead - 1][1], self.stationaries_ns(job, come[0][0], time))
                time = max(self.mixed_end(clock, time, transposed * (lead / chunks)), ready_ns)
            if chunk + lead < chunks:
                now += transposed * (1.0 / chunks)  # those of a chunk to come
            time = self.mixed_end(clock, max(time, *come[chunk][1:]), now)
        return clock, time, sums + transposed

    def arrivals(self, item: Any, job: Any) -> list[tuple[float, float, float]]:
        """By chunk of a core's first job, ns until its first block of filters, all of them, and the first rows of x
        come.

        Filters that are on fewer partitions than x begin sooner than what was triggered just before them.
        """
        target, geometry = self.target, self.geometry
        chunks, chunk = len(job.chunks), job.chunks[0]
        w_ns = chunk.slots * self.work.filters_ns(job) * self.work.filters_on(job)
        parts, x_ns = row_parts(geometry, item.band, True, job.rows), 0.0
        if parts and not is_transposed(geometry):
            partitions = min(chunk[1] * chunk[2], target.rows_an_engine)
            x_ns = chunk.slots * self.rows_ns(item.band, chunk, parts[0][1]) * partitions
        w_skew_ns = skew(target, job.kn, target.load_skew_ns)
        later_ns = target.static_issue_ns + skew(target, chunk[1], target.load_skew_ns) - w_skew_ns
        ahead = 0 if later_ns < 0.0 else 1 + int(later_ns / (2 * target.static_issue_ns))
        placed_ns = self.work.placed_ns(job.chunks[-1], item.band.dn * (parts[0][1] if parts else 0))
        come_ns = target.first_packet_ns + w_skew_ns + target.dma_end_ns + target.dma_done_ns
        block_ns = self.work.filters_there_ns(job) + max(0, 1 - ahead) * x_ns
        found = []
        for index in range(chunks):
            all_ns = come_ns + (index + 1) * w_ns + max(0, index + 1 - ahead) * x_ns
            x_come_ns = come_ns + later_ns + min(chunks, index + ahead) * w_ns + (index + 1) * x_ns
            found.append((block_ns if index == 0 else all_ns, all_ns, x_come_ns + placed_ns))
        return found

    def stationaries_ns(self, job: Any, there_ns: float, time: float) -> float:
        """ns from a core's start to a job's first stationaries: of filters that are there, the first piece is
        transposed from `time` on and read out, or GpSimd makes diagonals."""
        target = self.target
        if is_depthwise_job(self.geometry, job):
            return float(there_ns + self.work.taps * job.kn * target.gpsimd_select_ns + target.gpsimd_done_ns)
        if self.geometry.packed > 0 or lies_ready(self.geometry, job, job.chunks[0]):
            return there_ns
        if self.geometry.flipped:
            return float(there_ns + self.work.taps * job.rows * job.chunks[0][2] * target.vector_fixed_ns / 2)
        taps = self.piece_taps(job)
        busy_ns = taps * PARTITIONS * target.tensor_column_ns / target.half_rate
        passed_ns = busy_ns + target.matmul_done_half_ns + target.hop_ns
        read_ns = taps * job.kn * target.vector_16bit_ns
        return float(time + passed_ns + read_ns + target.vector_done_ns + target.hop_tensor_ns)

    def piece_taps(self, job: Any) -> int:
        """Taps, or groups of folded ones, that are transposed together: of a row, in one bank."""
        item = self.geometry.itemsize
        bank = max(1, BANK_BYTES // (whole_words(job.kn, item) * item))
        return int(min(bank, tap_groups(self.geometry, job.chunks[0])))

    def transposing(self, job: Any) -> Busy:
        """Busy for the filters of a job.

        Those of several groups are spread by Vector first: a piece when the one before is read out, by Vector or Scalar
        in turns, so that it waits for every other piece to pass the array.
        """
        target, geometry = self.target, self.geometry
        if geometry.packed > 0 or geometry.flipped or is_depthwise_job(geometry, job):
            return Busy()
        count = filter_rows(geometry) * sum(chunk.slots * tap_groups(geometry, chunk) for chunk in job.chunks)
        each_ns, waits_ns = self.work.transpose_ns, 0.0
        if job.pack > 1:
            taps = self.piece_taps(job)
            busy_ns = job.chunks[0][1] * (target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns)
            spread_ns = target.vector_fixed_ns + busy_ns
            read_ns = target.vector_fixed_psum_ns + taps * job.kn * target.vector_16bit_ns
            slow_ns = each_ns / target.half_rate
            chain_ns = target.vector_done_ns + busy_ns + target.hop_tensor_ns + slow_ns
            chain_ns += target.matmul_done_half_ns + target.hop_ns
            piece_ns = (chain_ns + read_ns + (2 * taps - 1) * spread_ns) / 2
            waits_ns = count / taps * max(0.0, piece_ns - taps * slow_ns)
        return Busy(count * each_ns, count * each_ns * min(1.0, job.kn / target.matmul_columns_min), waits_ns)

    def moved(self, items: Sequence[Any]) -> tuple[Traffic, Traffic]:
        """(all Traffic of some items, that of it which comes after the last rows of x)."""
        found = after = Traffic()
        before: Any = None
        for item in items:
            jobs = self.plan.batches[item.batch]
            after = self.results_moved(jobs, item.band)
            if before is None or before.batch != item.batch:
                moved_from = self.plan.moved[item.batch]
                found += self.filters_moved(jobs, 0, 1, moved_from)
                after += self.filters_moved(jobs, 1, len(jobs), moved_from)
            if rows_come(self.plan, item, before):
                found += self.rows_moved(self.plan.chunks[item.batch], item.band)
            found += after
            before = item
        return found, after

    def traffic_ns(self, traffic: Traffic) -> float:
        """ns of a core's DMA for a Traffic."""
        triggers_ns = traffic.transposes * self.target.hwdge_again_ns
        return max(traffic.engine_ns, traffic.hbm_bytes * self.target.hbm_byte_ns, triggers_ns)

    def filters_moved(self, jobs: Sequence[Any], first: int, end: int, moved_from: int) -> Traffic:
        """Traffic of the filters of jobs first .. end-1; DMA transposes those from `moved_from` on."""
        engine_ns = hbm_bytes = 0.0
        for index, job in enumerate(jobs[first:end], first):
            channels = job.chunks[0][1] // job.pack
            slots = sum(chunk.slots for chunk in job.chunks)
            engine_ns += slots * self.work.filters_on(job) * self.work.filters_ns(job)
            hbm_bytes += slots * channels * job.kn * self.work.hbm_taps * self.geometry.hbm_itemsize
            if index >= moved_from:
                engine_ns += self.work.move_ns(job)
        return Traffic(engine_ns, hbm_bytes)

    def rows_moved(self, chunks: Sequence[Any], band: Any) -> Traffic:
        """Traffic of all rows of x of a band."""
        rows_an_engine = self.target.rows_an_engine
        engine_ns = hbm_bytes = 0.0
        for chunk in chunks:
            elements = frames_share(self.geometry, band.zn) * band.dn * band.hn * band.wn * chunk[1] * chunk.slots
            hbm_bytes += elements * self.geometry.hbm_itemsize
            if is_transposed(self.geometry):
                engine_ns += rows_an_engine * self.work.transposed_ns(elements / PARTITIONS)
            else:
                rows_ns = frames_share(self.geometry, band.zn) * chunk.slots * self.rows_ns(band, chunk, band.hn)
                engine_ns += min(chunk[1] * chunk[2], rows_an_engine) * rows_ns
        return Traffic(engine_ns, hbm_bytes, len(chunks) if is_transposed(self.geometry) else 0)

    def rows_ns(self, band: Any, chunk: Any, height: int) -> float:
        """ns of one DMA engine for so many rows of x of a band, of one input channel."""
        geometry, target = self.geometry, self.target
        _, _, by_h, by_w = geometry.x_strides[:4]
        if self.work.row_by_row(chunk):
            width = min(geometry.columns.size, folded_width(geometry, chunk, band.qn))
            return float(band.dn * height * target.row_ns(width, by_w, geometry.itemsize))
        return float(band.dn * target.image_ns(height, band.wn, by_h, by_w, geometry.itemsize))

    def results_moved(self, jobs: Sequence[Any], band: Any) -> Traffic:
        """Traffic of the results of a band."""
        geometry, target = self.geometry, self.target
        engine_ns = hbm_bytes = 0.0
        planes = planes_at_once(geometry)
        for job in jobs:
            hbm_bytes += planes * pixels_of(band) * job.kn * geometry.hbm_itemsize
            if stores_channels(geometry):
                engine_ns += target.rows_an_engine * self.work.runs_out_ns(planes * pixels_of(band), job.kn)
                continue
            y_ns = self.work.plane_out_ns(job, band.pn, band.qn)
            engine_ns += min(job.rows * job.kn, target.rows_an_engine) * planes * band.zn * y_ns
        return Traffic(engine_ns, hbm_bytes)


def pixels_of(part: Any) -> int:
    """Outputs of a Band or a Bank, of one channel."""
    return int(part.zn * part.pn * part.qn)
