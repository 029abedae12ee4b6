"""What a stack takes by prices: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from ...._nki import nl
from ..._clock import new_clock, stream
from ..._prices import (
    DMA_DONE_NS,
    DMA_END_NS,
    DMA_ENGINES,
    FIRST_PACKET_NS,
    HALF_RATE,
    HBM_BYTE_NS,
    HOP_DMA_NS,
    HOP_NS,
    HOP_TENSOR_NS,
    LOAD_SKEW_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_DONE_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    SCALAR_FIXED_PSUM_NS,
    SCALAR_NS,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    TRANSPOSE_PASSES_FP32,
    VECTOR_DONE_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    WINDOW_NS,
    run_ns,
)
from ..._tiles import BANK_BYTES, PARTS, div_ceil
from ..rate import sums_end
from .filters import common_rows
from .shape import (
    StackBand,
    band_counts,
    band_rows,
    fits,
    padded_elements,
    rows_apart,
    slot_of,
    tiles_of,
    whole_blocks,
)

#: Parts that the filters of a job are read out in at least.
FILTER_PARTS = 3
#: Share of the DMAs' time that others wait for although they take longer.
CONTENTION = 0.05
#: ns of a job that turns filters and takes sums, with their read-outs, at least.
JOB_NS = 550.0
#: ns until the first matmul on zeros.
STACKED_WARM_UP_START_NS = 300.0
#: ns of an element of 16 bits of a Vector copy within SBUF whose runs are dense, about.
VECTOR_COPY_NS = 0.2604
#: ns until filters are there, turned and read out, and from the last sum to the end of its store, at least.
FILTERS_NS = FIRST_PACKET_NS + DMA_END_NS + DMA_DONE_NS + MATMUL_DONE_NS + HOP_NS + HOP_TENSOR_NS + VECTOR_DONE_NS
STORE_NS = FIRST_PACKET_NS + HOP_DMA_NS + STATIC_ISSUE_NS + DMA_END_NS
LEAST_NS = FILTERS_NS + MATMUL_DONE_NS + HOP_NS + VECTOR_FIXED_PSUM_NS + VECTOR_DONE_NS + STORE_NS


def stack_ns(geometry, stack, most_ns=0.0):
    """ns of both cores for a Stack; where it takes `most_ns` or more, unless that is 0, some ns between the two."""
    image_parts, block_parts = band_counts(geometry, stack)
    band = largest_band(geometry, stack)
    array_ns, work_ns, read_ns, x_ns, y_ns, num_bytes, last_ns = band_ns(geometry, stack, band)
    # bands of a core, and as many of the largest as come to the same
    count = div_ceil(image_parts * block_parts, PARTS)
    blocks = div_ceil(geometry.rows.out, stack.U * stack.V)
    times = count * geometry.N * blocks / (image_parts * block_parts * band.nn * band.jn)
    jobs = len(stack.jobs)
    w_ns, w_bytes = filter_ns(geometry, stack)
    turned_ns = turn_ns(geometry, stack)
    left = jobs - first_bank(geometry, stack) / filter_count(stack)
    moved_ns = max(jobs * w_ns + times * (x_ns + y_ns), (times * num_bytes + jobs * w_bytes) * HBM_BYTE_NS)
    least_ns = max(max(times * array_ns + left * turned_ns, times * read_ns), moved_ns - FILTERS_NS)
    least_ns += FILTERS_NS + last_ns + CONTENTION * moved_ns
    if most_ns > 0.0 and least_ns >= most_ns:
        return least_ns
    begin = first_ns(geometry, stack)
    work_ns = times * work_ns + jobs * turned_ns * min(1.0, stack.U * stack.kn / MATMUL_COLUMNS_MIN)
    clock = new_clock()
    # zeros keep the array at work until the first sums
    stream(clock, STACKED_WARM_UP_START_NS, (begin - STACKED_WARM_UP_START_NS) * HALF_RATE)
    sums_ns = sums_end(clock, begin, times * array_ns + left * turned_ns, work_ns) - begin
    if jobs > 1:
        # while filters are turned, a job takes as long at least as turning and reading out them and its sums in turn
        sums_ns = max(sums_ns, jobs * JOB_NS + (times - 1.0) * array_ns)
    # a buffer is filled when the sums of the band before have left it
    filled_ns = FIRST_PACKET_NS + LOAD_SKEW_NS + DMA_DONE_NS + x_ns + array_ns
    filled_ns = filled_ns * max(0, count - stack.ring) / stack.ring
    busy = max(max(sums_ns, times * read_ns), max(moved_ns - begin, filled_ns))
    return begin + busy + last_ns + CONTENTION * moved_ns


def largest_band(geometry, stack):
    """A band of as many images and blocks as any, at the top."""
    image_parts, block_parts = band_counts(geometry, stack)
    blocks = div_ceil(geometry.rows.out, stack.U * stack.V)
    return StackBand(n0=0, nn=div_ceil(geometry.N, image_parts), j0=0, jn=div_ceil(blocks, block_parts))


def band_ns(geometry, stack, band):
    """(array, its columns alone, read-outs, loads, stores, bytes of HBM, from the last sum to the end) of a band."""
    columns, item = geometry.columns, geometry.itemsize
    parts, across = tiles_of(stack, band, columns.out, False)
    jobs = len(stack.jobs)
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    reads = stack.U if stack.merged else 1
    array_ns, read_ns, tile_ns, work_ns = 0.0, 0.0, 0.0, 0.0
    clipped = stack.met / (columns.taps * columns.out) if stack.whole >= 0 else 1.0
    for part in parts:
        for q in across:
            size = band.nn * part[1] * q[1]
            matmuls = jobs * stack.V * stack.num_taps * stack.groups
            array_ns += matmuls * (max(size, MATMUL_COLUMNS_MIN) * column_ns + fixed_ns)
            work_ns += matmuls * size * column_ns * clipped
            tile_ns = VECTOR_FIXED_PSUM_NS + size * VECTOR_NS
            scalar_ns = SCALAR_FIXED_PSUM_NS + size * SCALAR_NS
            each_ns = scalar_ns if stack.reader == "scalar" else tile_ns
            if stack.reader == "both":
                each_ns = tile_ns * scalar_ns / (tile_ns + scalar_ns)
            read_ns += jobs * stack.V * reads * each_ns
    x_size = band.nn * band_rows(stack, band.jn) * min(stack.width, columns.size)
    x_ns = rows_ns(geometry, stack, band.nn, band_rows(stack, band.jn))
    apart = rows_apart(stack)
    y_size = band.nn * band.jn * apart[1] * columns.out
    y_runs = band.nn * (len(parts) if apart[0] == 1 else band.jn)
    y_rows = min(ROWS_AN_ENGINE, apart[0] * stack.kn)
    y_ns = y_runs * run_ns(y_size // y_runs * item) * y_rows
    if geometry.y_q > 1 and columns.out > 1:
        y_ns = y_size * run_ns(item) * y_rows
    store_ns = FIRST_PACKET_NS + HOP_DMA_NS + STATIC_ISSUE_NS + y_ns / len(parts) + DMA_END_NS
    # banks leave from parts of the partitions in turn, which lie on different engines
    slots = min(len(parts), nl.tile_size.pmax // slot_of(apart[0] * stack.kn))
    y_ns = jobs * y_ns / slots
    num_bytes = (stack.parts * x_size + jobs * apart[0] * stack.kn * y_size) * item
    if stack.reader == "vector":
        # a residual comes as y goes, on as many partitions as it has
        x_ns += y_ns * slots
        num_bytes += jobs * apart[0] * stack.kn * y_size * item
    last_ns = MATMUL_DONE_NS + HOP_NS + reads * tile_ns / min(2, reads) + VECTOR_DONE_NS + store_ns
    return array_ns, work_ns, read_ns, x_ns, y_ns, num_bytes, last_ns


def rows_ns(geometry, stack, images, blocks):
    """ns of a DMA engine for so many blocks of X."""
    item, run = geometry.itemsize, min(stack.width, geometry.columns.size)
    if geometry.x_w > 1 and run > 1:
        return images * blocks * run * run_ns(item) * ROWS_AN_ENGINE
    if stack.G == 1 and stack.whole >= 0:
        # blocks that hold neighbouring rows are one run
        return images * run_ns(blocks * run * item) * ROWS_AN_ENGINE
    return images * blocks * run_ns(run * item) * ROWS_AN_ENGINE


def filter_ns(geometry, stack):
    """(ns of a DMA engine, bytes) of the filters of a job."""
    item = geometry.itemsize
    taps = geometry.rows.taps * geometry.columns.taps
    size = geometry.C * taps
    runs = 1
    if stack.way == "straight" and not fits(geometry, stack):
        runs = geometry.C * (1 if geometry.rows.dilation == 1 else geometry.rows.taps)
    if geometry.w_s > 1 and geometry.columns.taps > 1:
        runs = size
    partitions = filter_partitions(stack)
    return runs * run_ns(size // runs * item) * min(partitions, ROWS_AN_ENGINE), partitions * size * item


def turn_ns(geometry, stack):
    """ns of the array for turning the filters of a job."""
    count = filter_count(stack)
    passes = TRANSPOSE_PASSES_FP32 if geometry.itemsize == 4 else 1
    copies = stack.U if stack.way == "apart" else 1
    columns = stack.U * stack.kn // copies
    return copies * count * passes * (max(columns, MATMUL_COLUMNS_MIN) * TENSOR_COLUMN_NS + MATMUL_NS)


def skew_ns(partitions):
    """ns between the first packets of the first and the last engine that so many partitions use."""
    return LOAD_SKEW_NS * (min(DMA_ENGINES, div_ceil(partitions, ROWS_AN_ENGINE)) - 1) / (DMA_ENGINES - 1)


def filter_partitions(stack):
    """Partitions that the filters of a job come to."""
    return stack.U * stack.kn if stack.way == "straight" else stack.kn


def filter_triggers(geometry, stack):
    """DMAs that the filters of a job take."""
    if stack.way != "straight":
        return 1
    return stack.U * (geometry.rows.taps if geometry.rows.dilation > 1 else 1)


def filters_there_ns(geometry, stack):
    """ns until the first filters have come and may be turned."""
    there_ns = FIRST_PACKET_NS + skew_ns(filter_partitions(stack)) + DMA_END_NS + DMA_DONE_NS
    w_ns, w_bytes = filter_ns(geometry, stack)
    there_ns += max(w_ns, w_bytes * HBM_BYTE_NS) + (filter_triggers(geometry, stack) - 1) * STATIC_ISSUE_NS
    if fits(geometry, stack):
        return there_ns
    if stack.way != "straight":
        size = geometry.C * geometry.rows.taps * geometry.columns.taps * (stack.U if stack.way == "shifted" else 1)
        return there_ns + VECTOR_DONE_NS + HOP_TENSOR_NS + size * VECTOR_COPY_NS
    if common_rows(geometry, stack)[1] > 0:
        return there_ns
    words = padded_elements(geometry, stack) * geometry.itemsize // 4
    return there_ns + VECTOR_DONE_NS + words * VECTOR_MEMSET_NS


def filter_count(stack):
    """Filters of a job that are turned, each for a matmul."""
    return len(stack.phases) * stack.num_taps * stack.groups


def first_bank(geometry, stack):
    """How many of them are read out first."""
    count = filter_count(stack)
    bank = min(count, max(1, BANK_BYTES // (stack.U * stack.kn * geometry.itemsize)))
    return min(bank, div_ceil(count, FILTER_PARTS))


def first_ns(geometry, stack):
    """ns until the first sums begin: filters are turned, and the first rows of x are there."""
    bank = first_bank(geometry, stack)
    come_ns = filters_there_ns(geometry, stack)
    turned_ns = bank * turn_ns(geometry, stack) / filter_count(stack) / (HALF_RATE if come_ns < WINDOW_NS else 1.0)
    read_ns = VECTOR_DONE_NS + bank * stack.U * stack.kn * VECTOR_NS_16BIT
    turned_ns += MATMUL_DONE_NS + HOP_NS + HOP_TENSOR_NS + read_ns
    arrival = FIRST_PACKET_NS + skew_ns(stack.B * geometry.C) + DMA_END_NS + DMA_DONE_NS
    band = largest_band(geometry, stack)
    part = tiles_of(stack, band, geometry.columns.out, False)[0][0]
    blocks = band_rows(stack, part[1])
    first, last = whole_blocks(geometry.rows, stack, band.j0 * stack.step, blocks)
    triggers = filter_triggers(geometry, stack) + stack.D * band.nn * (1 + blocks - (last - first))
    there_ns = arrival + triggers * STATIC_ISSUE_NS + filter_ns(geometry, stack)[0]
    there_ns += rows_ns(geometry, stack, band.nn, blocks)
    return max(come_ns + turned_ns, there_ns)
