"""What one matmul a tap takes, in ns, and what follows for who turns its filters."""

from ...._nki import nl
from ..._prices import (
    BYTE_NS,
    DMA_DONE_NS,
    DMA_ENGINES,
    FIRST_PACKET_NS,
    HALF_RATE,
    HBM_BYTE_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    row_ns,
    run_ns,
)
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil
from ..cuts import tap_blocks
from ..geometry import met
from .cuts import TAPS_RAW_BYTES
from .fold import job_axis, tap_groups
from .last import is_last, is_turned, out_ns, runs_out_ns, turned_ns

#: ns until DMA has turned the first block of a job's filters: an engine's copy, the trigger, the first packet, the end;
#: and its rate within SBUF, of what it moves (trn2.toml, dma.hwdge_*, dma_transpose_frac_sbuf).
MOVE_NS = 4000.0
MOVE_RATE = 0.5
#: ns until zeros are there to warm the array up with, and most matmuls on them.
TAPS_ZEROS_NS = 220.0
WARM_COUNT_MAX = 64
#: Share of the array's time that DMA may take, so that what is needed next is not late.
TAPS_DMA_SHARE = 0.9


def array_ns(geometry, jobs):
    """ns of the array for all matmuls, at its full rate; taps are clipped to what they meet of x."""
    outputs = geometry.N * geometry.rows.out * geometry.columns.out
    return array_work_ns(geometry, jobs, 1.0, div_ceil(outputs, BANK_COLUMNS))[0]


def array_work_ns(geometry, jobs, part, banks):
    """(`array_ns` of a part of all outputs, in so many banks; those of them that the array works: matmuls of few
    columns keep it waiting)."""
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    total, work = 0.0, 0.0
    for index in range(len(jobs)):
        job = jobs[index]
        rows = job_axis(geometry, job)
        rows_met = met_outputs(rows)
        for chunk in range(len(job.chunks)):
            groups = tap_groups(geometry, job.chunks[chunk])
            folded = job.chunks[chunk][2] > 1
            columns_met = groups * geometry.columns.out if folded else met_outputs(geometry.columns)
            columns = geometry.N * rows_met * columns_met * part
            matmuls = div_ceil(banks, job.rows) * rows.taps * groups
            total += max(columns, matmuls * MATMUL_COLUMNS_MIN) * column_ns + matmuls * fixed_ns
            work += columns * column_ns
    last_ns = out_ns(geometry, jobs) * part
    return total + last_ns, work + last_ns * min(1.0, jobs[0].kn / MATMUL_COLUMNS_MIN)


def met_outputs(axis):
    """Outputs that taps meet, each tap's counted."""
    count = 0
    for tap in range(axis.taps):
        count += met(axis, tap, 0, axis.out)[2]
    return count


def dma_ns(geometry, jobs, by_channels):
    """ns of the DMA engines, or HBM, of one of two cores for x, filters and results, by the runs that they come in."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    taps = rows.taps * columns.taps
    x_image = image_ns(rows.size, columns.size, geometry.x_h, geometry.x_w, item)
    y_image = image_ns(rows.out, columns.out, geometry.y_p, geometry.y_q, item)
    x_ns = geometry.N * x_image * div_ceil(geometry.C, nl.tile_size.pmax)
    if is_turned(geometry):
        x_ns = turned_ns(geometry.N * rows.size * columns.size * geometry.C / nl.tile_size.pmax, geometry.hbm_itemsize)
    chunk = jobs[0].chunks[-1]
    if chunk[2] > 1:
        lines = rows.size * row_ns(columns.size, geometry.x_w, item)
        x_ns += geometry.N * (lines - x_image)
    y_ns, w_ns = 0.0, 0.0
    for index in range(len(jobs)):
        pairs = div_ceil(rows.out, jobs[index].rows)
        lines = pairs * row_ns(columns.out, geometry.y_q, item)
        if is_last(geometry):
            y_ns += runs_out_ns(geometry.N * rows.out * columns.out, jobs[index].kn, item)
        else:
            y_ns += geometry.N * (lines if jobs[index].rows > 1 else y_image)
        w_ns += len(jobs[index].chunks) * filters_ns(geometry, jobs[index])
    x_bytes = geometry.N * geometry.C * rows.size * columns.size * item
    y_bytes = geometry.N * geometry.K * rows.out * columns.out * item
    w_bytes = geometry.K * (geometry.C // geometry.groups) * taps * item
    if by_channels:
        engines_ns, bytes_moved = x_ns + (w_ns + y_ns) / PARTS, x_bytes + (w_bytes + y_bytes) / PARTS
    else:
        engines_ns, bytes_moved = w_ns + (x_ns + y_ns) / PARTS, w_bytes + (x_bytes + y_bytes) / PARTS
    return max(ROWS_AN_ENGINE * engines_ns, bytes_moved * HBM_BYTE_NS)


def filters_ns(geometry, job):
    """ns of one DMA engine for the filters of a chunk of a job, of one output channel."""
    taps = geometry.rows.taps * geometry.columns.taps
    channels = job.chunks[0][1] // job.pack
    run = channels * taps if geometry.w_s == 1 and geometry.w_c == taps else 1
    return channels * taps / run * run_ns(run * geometry.itemsize)


def image_ns(height, width, row_step, column_step, itemsize):
    """ns of one DMA engine for an image of one channel: one run, a run a row, or one for each element."""
    if column_step > 1:
        return height * width * run_ns(itemsize)
    if row_step > width:
        return height * run_ns(width * itemsize)
    return run_ns(height * width * itemsize)


def can_move(geometry):
    """Whether DMA can turn filters: plain ones of 16 bits and one group."""
    return geometry.itemsize == 2 and geometry.groups == 1 and geometry.packed == 0


def move_ns(geometry, job):
    """ns of DMA to turn the filters of a job."""
    taps = geometry.rows.taps * geometry.columns.taps
    turned_bytes = len(job.chunks) * taps * job.kn * nl.tile_size.pmax * geometry.itemsize
    return turned_bytes * BYTE_NS / (DMA_ENGINES * MOVE_RATE)


def moved_jobs(geometry, jobs, band, by_channels):
    """Jobs of each half whose filters DMA turns, if they are not a core's first: as many as DMA has time for, where the
    matmuls of a job for a band take longer than that."""
    job, one_ns = jobs[0], move_ns(geometry, jobs[0])
    outputs = geometry.N * geometry.rows.out * geometry.columns.out
    job_ns = array_ns(geometry, [job]) * (band.nn * band.pn * band.qn) / outputs
    if not can_move(geometry) or job_ns < MOVE_NS + one_ns:
        return 0
    count = div_ceil(len(jobs), PARTS) if by_channels else len(jobs)
    idle_ns = TAPS_DMA_SHARE * array_ns(geometry, jobs) / PARTS - dma_ns(geometry, jobs, by_channels)
    return max(0, min(count, int(idle_ns / one_ns)))


def turn_ns(geometry, jobs, by_channels):
    """ns of the array to turn a core's filters: all of them, or the first job's where DMA may turn the others."""
    if geometry.packed > 0 or geometry.groups == geometry.C:
        return 0.0
    taps = geometry.rows.taps * geometry.columns.taps
    column_ns = TENSOR_COLUMN_NS * (2 if geometry.itemsize == 4 else 1)
    job_ns = len(jobs[0].chunks) * taps * (nl.tile_size.pmax * column_ns + MATMUL_NS)
    count = div_ceil(len(jobs), PARTS) if by_channels else len(jobs)
    if can_move(geometry):
        idle_ns = TAPS_DMA_SHARE * array_ns(geometry, jobs) / PARTS - dma_ns(geometry, jobs, by_channels)
        count = max(1, count - int(max(0.0, idle_ns) / move_ns(geometry, jobs[0])))
    return count * job_ns


def warm_count(geometry, job):
    """Matmuls of 128 columns at half rate from a core's start until the first block of a job's filters is there."""
    there_ns = filters_there_ns(geometry, job)
    return min(WARM_COUNT_MAX, int((there_ns - TAPS_ZEROS_NS) * HALF_RATE / (nl.tile_size.pmax * TENSOR_COLUMN_NS)))


def filters_there_ns(geometry, job):
    """ns from a core's start until the first block of a job's filters is there."""
    channels = job.chunks[0][1] // job.pack
    block = tap_blocks(geometry, channels, TAPS_RAW_BYTES)[0]
    rn, sn = block[1], block[3]
    whole = geometry.w_s == 1 and geometry.w_c == geometry.rows.taps * geometry.columns.taps
    load_ns = row_ns(channels * rn * sn, 1 if whole else 2, geometry.itemsize)
    return STATIC_ISSUE_NS + FIRST_PACKET_NS + LOAD_SKEW_NS + ROWS_AN_ENGINE * load_ns + DMA_DONE_NS
