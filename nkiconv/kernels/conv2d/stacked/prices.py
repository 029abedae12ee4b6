"""What a stack takes by prices: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from ...._nki import nl
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
    SCALAR_NS,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_DONE_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    run_ns,
)
from ..._tiles import BANK_BYTES, PARTS, div_ceil, share
from .shape import TRANSPOSE_PASSES_FP32, band_rows, fits, padded_elements, rows_apart, stack_bands, tiles_of

#: Parts that the filters of a job are read out in at least.
FILTER_PARTS = 3
#: Share of the DMAs' time that others wait for although they take longer.
CONTENTION = 0.05
#: ns of an element of 16 bits of a Vector copy within SBUF whose runs are dense, about.
VECTOR_COPY_NS = 0.2604


def stack_ns(geometry, stack):
    """ns of both cores for a Stack."""
    bands = stack_bands(geometry, stack)
    mine = share(len(bands), PARTS, PARTS - 1)
    begin = first_ns(geometry, stack)
    array_ns, read_ns, x_ns, y_ns, num_bytes = 0.0, 0.0, 0.0, 0.0, 0.0
    last_ns = 0.0
    known = bands[mine[0]]
    known_ns = band_ns(geometry, stack, known)
    for index in range(mine[0], mine[0] + mine[1]):
        band = bands[index]
        if (known.nn, known.jn) != (band.nn, band.jn):
            known = band
            known_ns = band_ns(geometry, stack, known)
        array_ns += known_ns[0]
        read_ns += known_ns[1]
        x_ns += known_ns[2]
        y_ns += known_ns[3]
        num_bytes += known_ns[4]
        last_ns = known_ns[5]
    turn = len(stack.jobs) * turn_ns(geometry, stack)
    w_ns, w_bytes = filter_ns(geometry, stack)
    moved_ns = max(len(stack.jobs) * w_ns + x_ns + y_ns, (num_bytes + len(stack.jobs) * w_bytes) * HBM_BYTE_NS)
    if geometry.fast:
        array_ns += turn
    busy = max(max(array_ns, read_ns), moved_ns - begin)
    return begin + busy + last_ns + CONTENTION * moved_ns


def band_ns(geometry, stack, band):
    """(array, read-outs, loads, stores, bytes of HBM, from the last sum to the end) of a band."""
    columns, item = geometry.columns, geometry.itemsize
    parts, across = tiles_of(stack, band, columns.out, False)
    jobs = len(stack.jobs)
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    reads = stack.U if stack.merged else 1
    array_ns, read_ns, tile_ns = 0.0, 0.0, 0.0
    for part in parts:
        for q in across:
            size = band.nn * part[1] * q[1]
            matmuls = jobs * stack.V * stack.num_taps * stack.groups
            array_ns += matmuls * (max(size, MATMUL_COLUMNS_MIN) * column_ns + fixed_ns)
            tile_ns = VECTOR_FIXED_PSUM_NS + size * VECTOR_NS
            scalar_ns = VECTOR_FIXED_PSUM_NS + size * SCALAR_NS
            read_ns += jobs * stack.V * reads * tile_ns * scalar_ns / (tile_ns + scalar_ns)
    x_size = band.nn * band_rows(stack, band.jn) * min(stack.width, columns.size)
    x_ns = rows_ns(geometry, stack, band.nn, band_rows(stack, band.jn))
    apart = rows_apart(stack)
    y_size = band.nn * band.jn * apart[1] * columns.out
    y_runs = band.nn * (len(parts) if apart[0] == 1 else band.jn)
    y_ns = y_runs * run_ns(y_size // y_runs * item) * ROWS_AN_ENGINE
    if geometry.y_q > 1 and columns.out > 1:
        y_ns = y_size * run_ns(item) * ROWS_AN_ENGINE
    store_ns = FIRST_PACKET_NS + HOP_DMA_NS + apart[0] * STATIC_ISSUE_NS + y_ns / len(parts) + DMA_END_NS
    # parts of partitions that stores of a job in turn come from lie on different engines
    y_share = min(1.0, apart[0] * stack.kn / nl.tile_size.pmax)
    num_bytes = (stack.parts * x_size + jobs * apart[0] * stack.kn * y_size) * item
    last_ns = MATMUL_DONE_NS + HOP_NS + reads * tile_ns / min(2, reads) + VECTOR_DONE_NS + store_ns
    return array_ns, read_ns, x_ns, jobs * y_ns * y_share, num_bytes, last_ns


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
    count = len(stack.phases) * stack.num_taps * stack.groups
    passes = 1 if geometry.itemsize == 2 else TRANSPOSE_PASSES_FP32
    copies = stack.U if stack.way == "apart" else 1
    columns = stack.U * stack.kn // copies
    return copies * count * passes * (max(columns, MATMUL_COLUMNS_MIN) * TENSOR_COLUMN_NS + MATMUL_NS)


def skew_ns(partitions):
    """ns between the first packets of the first and the last engine that so many partitions use."""
    return LOAD_SKEW_NS * (min(DMA_ENGINES, div_ceil(partitions, ROWS_AN_ENGINE)) - 1) / (DMA_ENGINES - 1)


def filter_partitions(stack):
    """Partitions that the filters of a job come to."""
    return stack.U * stack.kn if stack.way == "straight" else stack.kn


def filters_there_ns(geometry, stack):
    """ns until the first filters have come and may be turned."""
    there_ns = FIRST_PACKET_NS + skew_ns(filter_partitions(stack)) + DMA_END_NS + DMA_DONE_NS
    there_ns += filter_ns(geometry, stack)[0]
    if fits(geometry, stack):
        return there_ns
    if stack.way != "straight":
        size = geometry.C * geometry.rows.taps * geometry.columns.taps * (stack.U if stack.way == "shifted" else 1)
        return there_ns + VECTOR_DONE_NS + HOP_TENSOR_NS + size * VECTOR_COPY_NS
    words = padded_elements(geometry, stack) * geometry.itemsize // 4
    return there_ns + VECTOR_DONE_NS + words * VECTOR_MEMSET_NS


def first_ns(geometry, stack):
    """ns until the first sums begin: filters are turned, and the first rows of x are there."""
    count = len(stack.phases) * stack.num_taps * stack.groups
    bank = min(count, max(1, BANK_BYTES // (stack.U * stack.kn * geometry.itemsize)))
    bank = min(bank, div_ceil(count, FILTER_PARTS))
    read_ns = VECTOR_DONE_NS + bank * stack.U * stack.kn * VECTOR_NS_16BIT
    turned_ns = bank * turn_ns(geometry, stack) / count / HALF_RATE + MATMUL_DONE_NS + HOP_NS + HOP_TENSOR_NS + read_ns
    arrival = FIRST_PACKET_NS + LOAD_SKEW_NS + DMA_END_NS + DMA_DONE_NS
    band = stack_bands(geometry, stack)[0]
    part = tiles_of(stack, band, geometry.columns.out, False)[0][0]
    triggers = stack.U + stack.D * (1 + div_ceil(stack.B, stack.G))
    there_ns = arrival + triggers * STATIC_ISSUE_NS + filter_ns(geometry, stack)[0]
    there_ns += rows_ns(geometry, stack, band.nn, band_rows(stack, part[1]))
    return max(filters_there_ns(geometry, stack) + turned_ns, there_ns)
