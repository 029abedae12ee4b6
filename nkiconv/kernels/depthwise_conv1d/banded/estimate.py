"""What `banded` takes on a core, roughly, from shapes alone: to choose its block, and against other algorithms."""

from ...._nki import nl
from ..._prices import (
    DMA_ENGINES,
    HBM_BYTE_NS,
    MATMUL_NS,
    SCALAR_NS,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_NS,
    TINY_RUN_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    run_ns,
)
from ..._tiles import PARTS, div_ceil

#: Bytes of a run, one chunk of one row, from which a DMA is as fast as it gets.
RUN_BYTES = 1024
#: Band buffers in turn, groups of a buffer at most, and ns that all of them together should last: a DMA's way from the
#: last use of a buffer to its next (dma.static_first_packet_ns, dma.receipt_ns and the transfer).
BAND_BUFFERS = 4
BUFFER_GROUPS = 8
BUFFERED_NS = 2500
#: A group's bands are loaded by one DMA a channel, cheaper for the DMA engines than a copy in HBM, until issuing them
#: takes a good part of what the array needs for the group.
SCRATCH_BELOW = 1.5
#: ns of zeroing a 16-bit element, two at a time, and of waiting for it; band buffers whose zeros nothing hides.
ZERO_NS = 0.6
ZEROED_BUFFERS = 2
#: How much slower fp32 is on the array: 4 passes and what waits for them at its ends.
FP32_SLOW = 5


def best_block(geometry):
    """The block size of least estimated time, a multiple of the stride; the stride itself where that is too large."""
    best, best_ns = 0, 0.0
    for power in range(1, 8):
        block = 1
        for _ in range(power):
            block = block * 2
        if block % geometry.stride != 0:
            block = max(1, block // geometry.stride) * geometry.stride
        if block <= nl.tile_size.pmax:
            block_ns = estimate_ns(geometry, block)
            if best == 0 or block_ns < best_ns:
                best, best_ns = block, block_ns
    return geometry.stride if best == 0 else best


def estimate_ns(geometry, block):
    """Rough ns of a core for all its channels: the slowest of array, read-outs and DMA, and what comes before."""
    pmax, columns_max = nl.tile_size.pmax, nl.tile_size.gemm_moving_fmax
    per_group, out_block = pmax // block, max(1, block // geometry.stride)
    num_taps = div_ceil(geometry.S + block - geometry.stride, block)
    groups = div_ceil(div_ceil(geometry.C, PARTS), per_group)
    columns = div_ceil(geometry.Q, out_block)
    images = max(1, min(geometry.N, columns_max // columns))
    tiles = div_ceil(geometry.N, images)
    streamed = max(pmax, images * columns) if columns <= columns_max else columns
    bands_ns = groups * tiles * num_taps * (streamed * TENSOR_COLUMN_NS + MATMUL_NS)
    rows_in = groups * per_group * geometry.N * geometry.W
    rows_out = groups * per_group * geometry.N * geometry.Q
    turns_ns = (rows_in + rows_out) * (pmax * TENSOR_COLUMN_NS + MATMUL_NS) / (pmax * pmax)
    slow = FP32_SLOW if geometry.itemsize == 4 else 1
    read_ns = (rows_in * VECTOR_NS_16BIT + rows_out * (SCALAR_NS + VECTOR_NS)) / (2 * pmax)
    moved_ns = (rows_in + rows_out) * geometry.itemsize * HBM_BYTE_NS
    band_run_ns = run_ns(num_taps * block * geometry.itemsize)
    dma_ns = moved_ns + groups * tiles * pmax * band_run_ns / DMA_ENGINES
    dma_ns = max(dma_ns, rows_dma_ns(geometry, groups, per_group))
    issue_ns = groups * tiles * per_group * STATIC_ISSUE_NS
    if num_taps * streamed * TENSOR_COLUMN_NS < SCRATCH_BELOW * per_group * STATIC_ISSUE_NS:
        issue_ns = issue_ns / BUFFER_GROUPS
    zeroed = min(groups, ZEROED_BUFFERS * lasting_groups(num_taps, streamed * TENSOR_COLUMN_NS))
    zero_ns = zeroed * per_group * num_taps * block * ZERO_NS
    soon_ns = lasting_groups(num_taps, streamed * TENSOR_COLUMN_NS) * per_group * STATIC_ISSUE_NS
    return max(max(slow * (bands_ns + turns_ns), issue_ns), max(read_ns, dma_ns)) + zero_ns + soon_ns


def lasting_groups(num_taps, column_ns):
    """Groups of a band buffer, so that all buffers last as long as a DMA takes."""
    return max(1, min(BUFFER_GROUPS, int(BUFFERED_NS / (BAND_BUFFERS * num_taps * column_ns)) + 1))


def rows_dma_ns(geometry, groups, per_group):
    """ns of the DMA engines for rows in and out: a partition holds a run of each of its channels, 8 share an engine."""
    total = 0.0
    for index in range(2):
        count = geometry.W if index == 0 else geometry.Q
        step = geometry.x_w if index == 0 else geometry.y_q
        row_bytes = count * geometry.itemsize
        chunks = max(1, row_bytes // RUN_BYTES)
        each = run_ns(div_ceil(row_bytes, chunks)) if step == 1 else div_ceil(count, chunks) * TINY_RUN_NS
        total += div_ceil(groups * geometry.N * chunks, nl.tile_size.pmax) * 8 * per_group * each
    return total
