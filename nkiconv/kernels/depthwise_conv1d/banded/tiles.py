"""Tiles of `banded`: groups of channels, images and output blocks, and how they lie on the partitions.

The list of tiles is the same on any number of cores; a core takes its part of it. The rows of a tile, one for each
group and image, are cut into chunks of blocks, as many beside each other as the partitions hold.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.tiles import cut, div_ceil
from ..parts import part_span

#: Chunks of a row from which a last group with fewer channels than the others gets a tile of its own: beside others
#: it takes a DMA for each chunk.
CHUNKS_MANY = 4


@dataclass
class Cuts(nl.NKIObject):
    """How one of the parts is cut: (first, how many) of the groups, images and output blocks of its tiles."""

    groups: list
    images: list
    columns: list


@dataclass
class Tile(nl.NKIObject):
    """One tile on its way through the stages; tensors come as it goes."""

    #: groups g0 .. g0+gn-1, images n0 .. n0+nn-1, output blocks j0 .. j0+jn-1
    g0: int
    gn: int
    n0: int
    nn: int
    j0: int
    jn: int
    #: channels of its last group
    last: int
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
    #: whether it is a core's last, whose results nothing hides
    ends: bool = False
    bias: object = None
    rows_in: object = None
    residual: object = None
    x_blocks: object = None
    y_blocks: object = None
    rows_out: object = None
    acc: object = None
    #: whether they are zeros that products are added to
    started: bool = False


def banded_cuts(blocks, geometry, part):
    """Cuts of one of the parts."""
    shard = blocks.config.shard
    g0, gn = part_span(blocks.num_groups, shard == "channels", part)
    ends_short = g0 + gn == blocks.num_groups and blocks.last_group < blocks.per_group
    alone = ends_short and gn > 1 and nl.tile_size.pmax >= CHUNKS_MANY * blocks.groups * blocks.images
    groups = cut_groups(g0, gn - 1 if alone else gn, blocks.groups, blocks.config.edge)
    if alone:
        groups.append((g0 + gn - 1, 1))
    images = part_span(geometry.N, shard == "batch", part)
    columns = part_span(blocks.num_columns, shard == "columns", part)
    return Cuts(
        groups=groups,
        images=cut_from(images[0], images[1], blocks.images),
        columns=cut_from(columns[0], columns[1], blocks.columns),
    )


def cut_from(first, count, most):
    """(first, how many) of parts of at most `most` of `count` things from `first` on, as even as can be."""
    found = cut(count, most)
    for index in range(len(found)):
        found[index] = (first + found[index][0], found[index][1])
    return found


def cut_groups(first, count, most, edge):
    """The same of groups; the first and the last part have at most `edge`, if there are enough: nothing overlaps the
    start of the first tile or the end of the last."""
    if edge == 0 or edge >= most or count <= 2 * edge:
        return cut_from(first, count, most)
    middle = cut_from(first + edge, count - 2 * edge, most)
    return [(first, edge)] + middle + [(first + count - edge, edge)]


def tiles_of_part(blocks, geometry, part):
    """Tiles of one of the parts, in order."""
    cuts = banded_cuts(blocks, geometry, part)
    tiles = []
    for g_index in range(len(cuts.groups)):
        for n_index in range(len(cuts.images)):
            for j_index in range(len(cuts.columns)):
                tiles.append(plan_tile(blocks, cuts, g_index, n_index, j_index))
    return tiles


def plan_tile(blocks, cuts, g_index, n_index, j_index):
    """One tile, and how it lies on the partitions: as many chunks of each row as fit beside each other."""
    g0, gn = cuts.groups[g_index]
    n0, nn = cuts.images[n_index]
    j0, jn = cuts.columns[j_index]
    rows = gn * nn
    repeats = max(1, min(div_ceil(blocks.config.streamed, nn * jn), nl.tile_size.pmax // (nn * jn)))
    needed = jn + blocks.num_taps - 1
    data0 = min(needed, max(0, blocks.first_data - j0))
    datan = max(0, min(needed, blocks.end_data - j0) - data0)
    most = max(1, nl.tile_size.pmax // rows)
    blocks_in, chunks_in = 0, 0
    if datan > 0:
        rest = blocks.rest_in if j0 + data0 + datan == blocks.end_data else blocks.block
        blocks_in = chunk_blocks(datan, most, blocks, rest)
        chunks_in = div_ceil(datan, blocks_in)
    step_out = min(jn, max(div_ceil(blocks.chunk_columns, blocks.out_block), div_ceil(jn, most)))
    chunks_out, blocks_out = div_ceil(jn, step_out), step_out
    rest = blocks.rest_out if j0 + jn == blocks.num_columns else blocks.out_block
    last = (jn - 1) % step_out
    if chunks_out > 1 and last * blocks.out_block + rest < blocks.chunk_columns:
        chunks_out, blocks_out = chunks_out - 1, step_out + last + 1
    return Tile(
        g0=g0,
        gn=gn,
        n0=n0,
        nn=nn,
        j0=j0,
        jn=jn,
        last=blocks.last_group if g0 + gn == blocks.num_groups else blocks.per_group,
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
    )


def chunk_blocks(count, most, blocks, rest):
    """Blocks of a chunk of a row of `count` blocks, the last of which has `rest` columns, in at most `most` chunks; one
    or two more if only so the last chunk has chunk_columns."""
    least = min(count, max(div_ceil(blocks.chunk_columns, blocks.block), div_ceil(count, most)))
    for more in range(3):
        if (count - 1) % (least + more) * blocks.block + rest >= blocks.chunk_columns:
            return min(count, least + more)
    return least


def is_ragged(blocks, tile):
    """Whether the last of several groups has fewer channels than the others, which takes DMAs of its own."""
    return tile.gn > 1 and tile.last < blocks.per_group


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


def sum_spans(tile):
    """What a group's sums take a PSUM bank or less for: (first image, images, first output block, output blocks)."""
    if tile.nn * tile.jn <= nl.tile_size.psum_fmax:
        return [(0, tile.nn, 0, tile.jn)]
    spans = []
    for n in range(tile.nn):
        for columns in cut(tile.jn, nl.tile_size.psum_fmax):
            spans.append((n, 1) + columns)
    return spans


def outs_a_bank(blocks, tile):
    """Block columns of rows that fit one PSUM bank, or half of them all where Vector and Scalar are to share those."""
    most = max(1, nl.tile_size.psum_fmax // (blocks.per_group * blocks.out_block))
    return min(most, div_ceil(tile.blocks_out, 2)) if tile.ends else most


def out_pieces(blocks, tile):
    """Pieces of the stage that makes rows of sums: one PSUM bank each."""
    return div_ceil(tile.blocks_out, outs_a_bank(blocks, tile))
