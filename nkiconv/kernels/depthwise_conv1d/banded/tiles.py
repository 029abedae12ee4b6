"""How a tile of `banded` lies on the partitions: rows of groups and images, cut into chunks of blocks."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import div_ceil
from .work import Work


@dataclass
class Tile(nl.NKIObject):
    """One tile on its way through the stages; tensors come as it goes."""

    work: Work
    #: whether it is a core's last, whose results nothing hides
    ends: bool
    #: rows, one for each group and image; chunks of a row on the partitions, and blocks of a chunk, in and out
    rows: int
    chunks_in: int
    blocks_in: int
    chunks_out: int
    blocks_out: int
    #: blocks from one chunk of results to the next: fewer than of a chunk where the last one takes what remains
    step_out: int
    #: first block that holds data and how many do, counted from the tile's first; blocks of a row in X and Y
    data0: int
    datan: int
    x_width: int
    y_width: int
    #: how often a matmul takes its columns, so that few of them give the array enough to do to stay at full rate
    repeats: int
    bias: object
    rows_in: object
    residual: object
    x_blocks: object
    y_blocks: object
    rows_out: object
    acc: object


def plan_tile(blocks, work):
    """How a tile lies on the partitions: as many chunks of each row as fit beside each other."""
    rows = work.gn * work.nn
    columns = work.nn * work.jn
    repeats = max(1, min(div_ceil(blocks.config.streamed, columns), nl.tile_size.pmax // columns))
    needed = work.jn + blocks.num_taps - 1
    data0 = max(0, blocks.first_data - work.j0)
    datan = max(0, min(needed, blocks.end_data - work.j0) - data0)
    most = max(1, nl.tile_size.pmax // rows)
    blocks_in, chunks_in = 0, 0
    if datan > 0:
        rest = blocks.rest_in if work.j0 + data0 + datan == blocks.end_data else blocks.block
        blocks_in = longer_chunk(datan, most, blocks.chunk_columns, blocks.block, rest)
        chunks_in = div_ceil(datan, blocks_in)
    step_out = min(work.jn, max(div_ceil(blocks.chunk_columns, blocks.out_block), div_ceil(work.jn, most)))
    chunks_out, blocks_out = div_ceil(work.jn, step_out), step_out
    rest = blocks.rest_out if work.j0 + work.jn == blocks.num_columns else blocks.out_block
    last = (work.jn - 1) % step_out
    if chunks_out > 1 and last * blocks.out_block + rest < blocks.chunk_columns:
        chunks_out, blocks_out = chunks_out - 1, step_out + last + 1
    return Tile(
        work=work,
        ends=False,
        rows=rows,
        chunks_in=chunks_in,
        blocks_in=blocks_in,
        chunks_out=chunks_out,
        step_out=step_out,
        blocks_out=blocks_out,
        data0=data0,
        datan=datan,
        x_width=max(needed, data0 + chunks_in * blocks_in),
        y_width=(chunks_out - 1) * step_out + blocks_out,
        repeats=repeats,
        bias=None,
        rows_in=None,
        residual=None,
        x_blocks=None,
        y_blocks=None,
        rows_out=None,
        acc=None,
    )


def longer_chunk(count, most, columns, block, rest):
    """Blocks of a chunk of a row of `count` blocks, the last of which has `rest` columns: in at most `most` chunks of
    at least `columns` columns; a block or two more than that needs if only so the last chunk has as many."""
    least = min(count, max(div_ceil(columns, block), div_ceil(count, most)))
    for more in range(3):
        if (count - 1) % (least + more) * block + rest >= columns:
            return min(count, least + more)
    return least


def even(count):
    """The next even number: 16-bit results of the array start at even elements of PSUM."""
    return count + count % 2


def transposes_a_bank(geometry, tile):
    """Transposes of a tile's block columns whose results fit one PSUM bank."""
    return max(1, nl.tile_size.psum_bank_fmax_bytes // (even(tile.chunks_in * tile.rows) * geometry.itemsize))


def in_pieces(geometry, tile):
    """Pieces of the stage that makes blocks of rows: one PSUM bank each."""
    if tile.datan == 0:
        return 1
    return div_ceil(tile.blocks_in, transposes_a_bank(geometry, tile))


def outs_a_bank(blocks, tile):
    """Block columns of rows that fit one PSUM bank, or half of them all where Vector and Scalar are to share those."""
    most = max(1, nl.tile_size.psum_fmax // (blocks.per_group * blocks.out_block))
    return min(most, div_ceil(tile.blocks_out, 2)) if tile.ends else most


def out_pieces(blocks, tile):
    """Pieces of the stage that makes rows of sums: one PSUM bank each."""
    return div_ceil(tile.blocks_out, outs_a_bank(blocks, tile))
