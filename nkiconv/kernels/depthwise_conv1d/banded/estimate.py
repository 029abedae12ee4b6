"""What `banded` takes on a core, roughly, from shapes and sizes: its stages, tile by tile, as the kernel overlaps them.

It chooses block and shard, and stands against other algorithms; it need not be right, only in the right order.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import (
    HBM_BYTE_NS,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    SCALAR_NS,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_FIXED_NS,
    VECTOR_MEMSET_NS,
    VECTOR_NS,
    VECTOR_NS_16BIT,
    row_ns,
    run_ns,
)
from ..._tiles import div_ceil
from .work import sample_tiles

#: ns from a load's issue to its first rows, more until bands made of filters are there, and from the last sums to y.
LOAD_NS = 1400.0
BANDS_NS = 1200.0
STORE_NS = 1600.0
#: ns from a transpose or matmul to its result in SBUF; twice that is lost between two tiles.
ROUND_NS = 300.0
#: ns that a window of the throttle lasts, in which the array starts at half rate (throttle.window_ns).
WINDOW_NS = 3400.0
#: Groups of a buffer from which GpSimd zeroes a third of it.
SHARED_ZEROS = 3


@dataclass
class Times(nl.NKIObject):
    """ns of one tile's stages, by who works."""

    #: Tensor: transposes in, matmuls, out
    turn_in: float
    matmuls: float
    turn_out: float
    #: Vector and Scalar: read-outs of them
    read_in: float
    read_sums: float
    read_out: float
    #: DMA engines: rows in and out, bands; HBM: all bytes of rows; Sync: triggers of bands
    load: float
    store: float
    bands: float
    moved: float
    issue: float
    #: read-out of the last group
    last_sums: float


def pipeline_ns(geometry, blocks):
    """ns of a core for all its tiles: until the first sums, tile by tile, after the last sums."""
    tiles, count = sample_tiles(blocks, geometry)
    first = stage_times(geometry, blocks, tiles[0])
    middle = stage_times(geometry, blocks, tiles[1])
    last = stage_times(geometry, blocks, tiles[2])
    groups = tiles[1].work.gn * count
    buffers = min(blocks.buffers, div_ceil(groups, blocks.buffer_groups))
    zero_ns = buffer_zero_ns(geometry, blocks)
    start_ns = first_sums_ns(geometry, blocks, tiles[0], first, zero_ns, min(2, buffers))
    none = no_times()
    if count == 1:
        tiles_ns = tile_ns(none, first, none, none)
    elif count == 2:
        tiles_ns = tile_ns(none, first, last, none) + tile_ns(first, last, none, none)
    else:
        tiles_ns = tile_ns(none, first, middle, middle) + tile_ns(middle, last, none, none)
        tiles_ns += (count - 2) * tile_ns(middle, middle, middle, middle)
    tiles_ns = max(tiles_ns, buffers * zero_ns - start_ns / 2)
    end_ns = ROUND_NS + last.last_sums + max(last.turn_out, last.read_out / 2) + last.store + STORE_NS
    array_ns = tensor_ns(first) + (count - 1) * tensor_ns(middle)
    return start_ns + tiles_ns + min(WINDOW_NS, array_ns) / 2 + end_ns


def tile_ns(before, now, after, next_but_one):
    """ns of one tile's matmuls while the tile before goes out and the next two come in: the slowest of all."""
    array_ns = now.matmuls + after.turn_in + before.turn_out + 2 * ROUND_NS
    read_ns = (now.read_sums + after.read_in + before.read_out) / 2
    dma_ns = max(now.bands + next_but_one.load + before.store, now.moved)
    return max(max(array_ns, read_ns), max(dma_ns, now.issue))


def tensor_ns(times):
    """ns of the array for one tile."""
    return times.turn_in + times.matmuls + times.turn_out


def no_times():
    """Where there is no tile."""
    return Times(
        turn_in=0.0,
        matmuls=0.0,
        turn_out=0.0,
        read_in=0.0,
        read_sums=0.0,
        read_out=0.0,
        load=0.0,
        store=0.0,
        bands=0.0,
        moved=0.0,
        issue=0.0,
        last_sums=0.0,
    )


def stage_times(geometry, blocks, tile):
    """Times of a Tile."""
    work, item = tile.work, geometry.itemsize
    pmax, psum_max = nl.tile_size.pmax, nl.tile_size.psum_fmax
    A = min(blocks.per_group, geometry.C)
    is_fp32 = item == 4
    turn_ns = pmax * TENSOR_COLUMN_NS * (2 if is_fp32 else 1) + MATMUL_NS
    column_ns = TENSOR_COLUMN_FP32_NS if is_fp32 else TENSOR_COLUMN_NS
    fixed_ns = 2 * MATMUL_FP32_NS if is_fp32 else MATMUL_NS
    met = min(blocks.num_taps - 1, tile.data0 + tile.datan - 1) - max(0, tile.data0 - work.jn + 1) + 1
    columns = tile.repeats * work.nn * work.jn
    pieces = 1
    if columns > psum_max:
        pieces = work.nn * div_ceil(work.jn, psum_max)
        columns = work.nn * work.jn / pieces
    group_ns = max(1, met) * pieces * (max(pmax, columns) * column_ns + fixed_ns)
    reads = pieces * work.gn if pieces > 1 else div_ceil(work.gn, max(1, psum_max // columns))
    sums_ns = work.gn * work.nn * work.jn * (VECTOR_NS + SCALAR_NS) / 2 + reads * VECTOR_FIXED_NS
    rows_in, rows_out = tile.chunks_in * tile.rows, tile.chunks_out * tile.rows
    run_in, run_out = tile.blocks_in * blocks.block, tile.blocks_out * blocks.out_block
    band_ns = ROWS_AN_ENGINE * run_ns(blocks.num_taps * blocks.block * item)
    triggers = div_ceil(work.gn, blocks.buffer_groups) * A if blocks.scratch else min(work.gn * A, geometry.C)
    return Times(
        turn_in=tile.blocks_in * turn_ns,
        matmuls=work.gn * group_ns,
        turn_out=tile.blocks_out * turn_ns,
        read_in=tile.blocks_in * rows_in * (VECTOR_NS if is_fp32 else VECTOR_NS_16BIT),
        read_sums=sums_ns,
        read_out=run_out * blocks.per_group * (VECTOR_NS + SCALAR_NS) / 2,
        load=min(ROWS_AN_ENGINE, rows_in) * A * row_ns(run_in, geometry.x_w, item),
        store=min(ROWS_AN_ENGINE, rows_out) * A * row_ns(run_out, geometry.y_q, item),
        bands=work.gn * band_ns,
        moved=(rows_in * run_in + rows_out * run_out) * A * item * HBM_BYTE_NS,
        issue=triggers * STATIC_ISSUE_NS,
        last_sums=sums_ns / (2 * work.gn),
    )


def buffer_zero_ns(geometry, blocks):
    """ns of Vector for the zeros of one band buffer, two 16-bit elements at a time."""
    if blocks.per_group == 1:
        return 0.0
    words = blocks.buffer_groups * blocks.per_group * blocks.num_taps * blocks.block * geometry.itemsize / 4
    share = 2 / 3 if blocks.buffer_groups >= SHARED_ZEROS else 1.0
    return share * words * VECTOR_MEMSET_NS


def first_sums_ns(geometry, blocks, tile, times, zero_ns, early):
    """ns until the array has blocks of rows and bands; `early` buffers are zeroed before rows are read out."""
    item, A = geometry.itemsize, min(blocks.per_group, geometry.C)
    filters_ns = ROWS_AN_ENGINE * row_ns(geometry.S, geometry.w_s, item)
    groups = min(blocks.buffer_groups, tile.work.gn)
    made_ns = groups * (A * STATIC_ISSUE_NS + ROWS_AN_ENGINE * run_ns(blocks.num_taps * blocks.block * item))
    bands_ns = LOAD_NS + filters_ns + max(BANDS_NS + made_ns, zero_ns)
    turned_ns = LOAD_NS + times.load + ROUND_NS + max(2 * times.turn_in, times.read_in)
    return max(max(turned_ns, early * zero_ns + ROUND_NS), bands_ns)
