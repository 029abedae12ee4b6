"""What a Plan of one matmul a tap takes, in ns, by prices: its items core by core, as they are shared.

The array's rate is followed window by window: short kernels and matmuls of few columns get half of it. The first bank
of sums is followed chunk by chunk, as its filters and rows come; of the rest, sums and DMA are only added up.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._clock import new_clock, skew, stream
from ..._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    FIRST_PACKET_NS,
    GPSIMD_DONE_NS,
    GPSIMD_SELECT_NS,
    HALF_RATE,
    HBM_BYTE_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_DONE_HALF_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    WINDOW_WORK,
    row_ns,
)
from ..._tiles import BANK_BYTES, PARTS, div_ceil, share, whole_words
from ..cuts import chunks_of, same_place
from ..rate import sums_end
from .cuts import banks_of, lead_chunks, row_parts
from .fold import folded_width, tap_groups
from .last import beside_ns, is_last, is_turned, runs_out_ns, turned_ns
from .plan import is_depthwise
from .work import TAPS_ZEROS_NS, array_work_ns, filters_ns, filters_there_ns, image_ns, move_ns

#: ns until DMA is at work; from the last matmul to the end of the last store.
DMA_START_NS = 1200.0
TAPS_END_NS = 1500.0


@dataclass
class Busy(nl.NKIObject):
    """ns of the array at full rate, those of them that it works, and ns that it waits for other engines."""

    array_ns: float
    work_ns: float
    waits_ns: float


@dataclass
class Traffic(nl.NKIObject):
    """ns of the busiest DMA engine, and bytes of HBM."""

    engine_ns: float
    hbm_bytes: float


def taps_ns(geometry, plan):
    """ns of the busier of two cores."""
    most = 0.0
    for half in range(PARTS):
        mine = share(len(plan.items), PARTS, half)
        if mine[1] > 0:
            most = max(most, core_ns(geometry, plan, mine[0], mine[0] + mine[1]))
    return most + beside_ns(geometry) + TAPS_END_NS


def core_ns(geometry, plan, first, end):
    """ns of a core for items first .. end-1, from its start to the last sums: the array is never free, or it waits for
    the last rows of x; or to the last DMA."""
    clock, start_ns, done = started(geometry, plan, first)
    every = sums_of(geometry, plan, first, end)
    left = Busy(
        array_ns=max(0.0, every.array_ns - done.array_ns),
        work_ns=max(0.0, every.work_ns - done.work_ns),
        waits_ns=max(0.0, every.waits_ns - done.waits_ns),
    )
    ended_ns = mixed_end(clock, start_ns, left)
    traffic, after = moved(geometry, plan, first, end)
    stored_ns = DMA_START_NS + traffic_ns(traffic)
    loaded_ns = stored_ns - min(traffic_ns(traffic), traffic_ns(after)) + DMA_DONE_NS
    last = after_loads(geometry, plan, end - 1)
    clock = new_clock()
    clock.full = every.work_ns - last.work_ns >= WINDOW_WORK * loaded_ns
    return max(max(ended_ns, stored_ns), loaded_ns + mixed_end(clock, 0.0, last))


def mixed_end(clock, start, busy):
    """`sums_end` where the array waits for others in between, which takes as long at half its rate."""
    if busy.array_ns + busy.waits_ns == 0.0:
        return start
    work_share = busy.work_ns / (busy.array_ns + busy.waits_ns)
    full_ns = busy.array_ns + busy.waits_ns * (1.0 if work_share >= WINDOW_WORK else HALF_RATE)
    return sums_end(clock, start, full_ns, work_share * full_ns)


def add(busy, other, times):
    """Add so many times another Busy."""
    busy.array_ns += times * other.array_ns
    busy.work_ns += times * other.work_ns
    busy.waits_ns += times * other.waits_ns


def sums_of(geometry, plan, first, end):
    """All Busy of items first .. end-1: filters are turned, and sums made."""
    found = Busy(array_ns=0.0, work_ns=0.0, waits_ns=0.0)
    index = first
    while index < end:
        # all bands of a batch together
        item = plan.items[index]
        batch = item.batch
        jobs, pixels, banks = plan.batches[batch], 0, 0
        while index < end and item.batch == batch:
            pixels += pixels_of(item.band)
            banks += len(banks_of(item.band, item.halved, item.last))
            index += 1
            item = plan.items[min(index, end - 1)]
        add(found, sums_in(geometry, jobs, pixels, banks), 1.0)
        for job in range(min(len(jobs), plan.moved[batch])):
            add(found, turning(geometry, jobs[job]), 1.0)
    return found


def pixels_of(part):
    """Outputs of a Band or a Bank, of one channel."""
    return part.nn * part.pn * part.qn


def sums_in(geometry, jobs, pixels, banks):
    """Busy for the sums of so many pixels, in so many banks."""
    outputs = geometry.N * geometry.rows.out * geometry.columns.out
    array_ns, work_ns = array_work_ns(geometry, jobs, pixels / outputs, banks)
    return Busy(array_ns=array_ns, work_ns=work_ns, waits_ns=0.0)


def after_loads(geometry, plan, index):
    """Busy that an item leaves to do when the last rows of x have come: the sums of them, and those of all jobs but the
    first, which waits for them."""
    item = plan.items[index]
    jobs = plan.batches[item.batch]
    banks = banks_of(item.band, item.halved, item.last)
    found = sums_in(geometry, jobs[:1], pixels_of(banks[-1]), 1)
    if len(jobs) > 1 and not plan.together[item.batch]:
        add(found, sums_in(geometry, jobs[1:], pixels_of(item.band), len(banks)), 1.0)
    return found


def started(geometry, plan, first):
    """(the array's clock, ns from a core's start to the end of the first bank of sums, Busy until then)."""
    item = plan.items[first]
    jobs = plan.batches[item.batch]
    job, banks = jobs[0], banks_of(item.band, item.halved, False)
    chunks, clock = len(job.chunks), new_clock()
    time = stream(clock, TAPS_ZEROS_NS, plan.warmup * nl.tile_size.pmax * TENSOR_COLUMN_NS)
    sums, turned = sums_in(geometry, [job], pixels_of(banks[0]), 1), turning(geometry, job)
    if len(banks) == 1 and min(len(jobs), plan.moved[item.batch]) > 1:
        # the next job's filters are turned between these sums
        add(sums, turning(geometry, jobs[1]), 1.0)
    come = arrivals(geometry, item, job)
    lead = min(chunks, lead_chunks(geometry))
    for chunk in range(chunks):
        now = Busy(array_ns=0.0, work_ns=0.0, waits_ns=0.0)
        add(now, sums, 1.0 / chunks)
        if chunk == 0:
            before = Busy(array_ns=0.0, work_ns=0.0, waits_ns=0.0)
            add(before, turned, lead / chunks)
            time = max(time, come[0][0])
            ready_ns = max(come[lead - 1][1], stationaries_ns(geometry, job, come[0][0], time))
            time = max(mixed_end(clock, time, before), ready_ns)
        if chunk + lead < chunks:
            # so are those of a chunk to come
            add(now, turned, 1.0 / chunks)
        time = mixed_end(clock, max(time, max(come[chunk][1], come[chunk][2])), now)
    add(sums, turned, 1.0)
    return clock, time, sums


def arrivals(geometry, item, job):
    """By chunk of a core's first job, ns until its first block of filters, all of them, and the first rows of x come.

    Filters that are on fewer partitions than x begin sooner than what was triggered just before them.
    """
    chunks, chunk = len(job.chunks), job.chunks[0]
    w_ns = filters_ns(geometry, job) * min(job.kn, ROWS_AN_ENGINE)
    parts, x_ns = row_parts(geometry, item.band, True, item.halved, job.rows), 0.0
    if len(parts) > 0 and not is_turned(geometry):
        x_ns = rows_ns(geometry, item.band, chunk, parts[0][1]) * min(chunk[1] * chunk[2], ROWS_AN_ENGINE)
    later_ns = STATIC_ISSUE_NS + skew(chunk[1], LOAD_SKEW_NS) - skew(job.kn, LOAD_SKEW_NS)
    ahead = 0 if later_ns < 0.0 else 1 + int(later_ns / (2 * STATIC_ISSUE_NS))
    come_ns = FIRST_PACKET_NS + skew(job.kn, LOAD_SKEW_NS) + DMA_END_NS + DMA_DONE_NS
    block_ns = filters_there_ns(geometry, job) + max(0, 1 - ahead) * x_ns
    found = []
    for index in range(chunks):
        all_ns = come_ns + (index + 1) * w_ns + max(0, index + 1 - ahead) * x_ns
        x_come_ns = come_ns + later_ns + min(chunks, index + ahead) * w_ns + (index + 1) * x_ns
        found.append((block_ns if index == 0 else all_ns, all_ns, x_come_ns))
    return found


def stationaries_ns(geometry, job, there_ns, time):
    """ns from a core's start to a job's first stationaries: of filters that are there, the first piece is turned from
    `time` on and read out, or GpSimd makes diagonals."""
    if is_depthwise(geometry, job):
        elements = geometry.rows.taps * geometry.columns.taps * job.kn
        return there_ns + elements * GPSIMD_SELECT_NS + GPSIMD_DONE_NS
    if geometry.packed > 0:
        return there_ns
    taps = piece_taps(geometry, job)
    turned_ns = taps * nl.tile_size.pmax * TENSOR_COLUMN_NS / HALF_RATE + MATMUL_DONE_HALF_NS + HOP_NS
    return time + turned_ns + taps * job.kn * VECTOR_NS_16BIT + VECTOR_DONE_NS + HOP_TENSOR_NS


def piece_taps(geometry, job):
    """Taps, or groups of folded ones, that are turned together: of a row, in one bank."""
    bank = max(1, BANK_BYTES // (whole_words(job.kn, geometry.itemsize) * geometry.itemsize))
    return min(bank, tap_groups(geometry, job.chunks[0]))


def turning(geometry, job):
    """Busy for the filters of a job.

    Those of several groups are spread by Vector first: a piece when the one before is read out, by Vector or Scalar in
    turns, so that it waits for every other piece to pass the array.
    """
    if geometry.packed > 0 or is_depthwise(geometry, job):
        return Busy(array_ns=0.0, work_ns=0.0, waits_ns=0.0)
    count = 0
    for chunk in range(len(job.chunks)):
        count += geometry.rows.taps * tap_groups(geometry, job.chunks[chunk])
    each_ns = nl.tile_size.pmax * TENSOR_COLUMN_NS * (2 if geometry.itemsize == 4 else 1) + MATMUL_NS
    waits_ns = 0.0
    if job.pack > 1:
        taps = piece_taps(geometry, job)
        busy_ns = job.chunks[0][1] * (VECTOR_NS_16BIT if geometry.itemsize == 2 else VECTOR_NS)
        spread_ns, read_ns = VECTOR_FIXED_NS + busy_ns, VECTOR_FIXED_PSUM_NS + taps * job.kn * VECTOR_NS_16BIT
        chain_ns = VECTOR_DONE_NS + busy_ns + HOP_TENSOR_NS + each_ns / HALF_RATE + MATMUL_DONE_HALF_NS + HOP_NS
        piece_ns = (chain_ns + read_ns + (2 * taps - 1) * spread_ns) / 2
        waits_ns = count / taps * max(0.0, piece_ns - taps * each_ns / HALF_RATE)
    work_ns = count * each_ns * min(1.0, job.kn / MATMUL_COLUMNS_MIN)
    return Busy(array_ns=count * each_ns, work_ns=work_ns, waits_ns=waits_ns)


def moved(geometry, plan, first, end):
    """(all Traffic of items first .. end-1, that of it which comes after the last rows of x)."""
    found, after = Traffic(engine_ns=0.0, hbm_bytes=0.0), Traffic(engine_ns=0.0, hbm_bytes=0.0)
    for index in range(first, end):
        item, before = plan.items[index], plan.items[max(first, index - 1)]
        jobs = plan.batches[item.batch]
        after = results_moved(geometry, jobs, item.band)
        if index == first or before.batch != item.batch:
            add_traffic(found, filters_moved(geometry, jobs, 0, 1, plan.moved[item.batch]))
            add_traffic(after, filters_moved(geometry, jobs, 1, len(jobs), plan.moved[item.batch]))
        chunks = chunks_of(jobs)
        there = same_place(item.band, before.band) and chunks == chunks_of(plan.batches[before.batch])
        if index == first or not there:
            add_traffic(found, rows_moved(geometry, chunks, item.band))
        add_traffic(found, after)
    return found, after


def traffic_ns(traffic):
    """ns of a core's DMA for a Traffic."""
    return max(traffic.engine_ns, traffic.hbm_bytes * HBM_BYTE_NS)


def add_traffic(traffic, other):
    """Add another Traffic."""
    traffic.engine_ns += other.engine_ns
    traffic.hbm_bytes += other.hbm_bytes


def filters_moved(geometry, jobs, first, end, moved_from):
    """Traffic of the filters of jobs first .. end-1; DMA turns those from `moved_from` on."""
    found = Traffic(engine_ns=0.0, hbm_bytes=0.0)
    taps = geometry.rows.taps * geometry.columns.taps
    for index in range(first, end):
        job = jobs[index]
        channels = job.chunks[0][1] // job.pack
        found.engine_ns += len(job.chunks) * min(job.kn, ROWS_AN_ENGINE) * filters_ns(geometry, job)
        found.hbm_bytes += len(job.chunks) * channels * job.kn * taps * geometry.hbm_itemsize
        if index >= moved_from:
            found.engine_ns += move_ns(geometry, job)
    return found


def rows_moved(geometry, chunks, band):
    """Traffic of all rows of x of a band."""
    found = Traffic(engine_ns=0.0, hbm_bytes=0.0)
    for index in range(len(chunks)):
        chunk = chunks[index]
        elements = band.nn * band.hn * band.wn * chunk[1]
        found.hbm_bytes += elements * geometry.hbm_itemsize
        if is_turned(geometry):
            found.engine_ns += ROWS_AN_ENGINE * turned_ns(elements / nl.tile_size.pmax, geometry.hbm_itemsize)
        else:
            found.engine_ns += min(chunk[1] * chunk[2], ROWS_AN_ENGINE) * rows_ns(geometry, band, chunk, band.hn)
    return found


def rows_ns(geometry, band, chunk, height):
    """ns of one DMA engine for so many rows of x of a band, of one input channel."""
    if chunk[2] > 1:
        width = min(geometry.columns.size, folded_width(geometry, chunk, band.qn))
        return band.nn * height * row_ns(width, geometry.x_w, geometry.itemsize)
    return band.nn * image_ns(height, band.wn, geometry.x_h, geometry.x_w, geometry.itemsize)


def results_moved(geometry, jobs, band):
    """Traffic of the results of a band."""
    found = Traffic(engine_ns=0.0, hbm_bytes=0.0)
    for index in range(len(jobs)):
        job = jobs[index]
        found.hbm_bytes += pixels_of(band) * job.kn * geometry.hbm_itemsize
        if is_last(geometry):
            found.engine_ns += ROWS_AN_ENGINE * runs_out_ns(pixels_of(band), job.kn, geometry.itemsize)
        else:
            y_ns = image_ns(band.pn, band.qn, geometry.y_p, geometry.y_q, geometry.itemsize)
            if job.rows > 1:
                y_ns = div_ceil(band.pn, job.rows) * row_ns(band.qn, geometry.y_q, geometry.itemsize)
            found.engine_ns += min(job.rows * job.kn, ROWS_AN_ENGINE) * band.nn * y_ns
    return found
