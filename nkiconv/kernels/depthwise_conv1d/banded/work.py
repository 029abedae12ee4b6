"""The list of tiles of `banded`, the same on any number of cores: groups, images and output blocks of each."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import PARTS, div_ceil, share

#: Chunks of a row from which a last group with fewer channels than the others gets a tile of its own: beside others
#: it takes a DMA for each chunk.
CHUNKS_MANY = 4


@dataclass
class Work(nl.NKIObject):
    """One tile: groups g0 .. g0+gn-1, images n0 .. n0+nn-1, output blocks j0 .. j0+jn-1."""

    g0: int
    gn: int
    n0: int
    nn: int
    j0: int
    jn: int


@dataclass
class Cuts(nl.NKIObject):
    """How one of the PARTS is cut: tiles of groups from g0 on, images and output blocks, each in equal parts."""

    g0: int
    groups: list
    n0: int
    nn: int
    n_parts: int
    j0: int
    jn: int
    j_parts: int


def cuts_of(blocks, geometry, part):
    """Cuts of one of the PARTS."""
    g_part, n_part, j_part = (0, blocks.num_groups), (0, geometry.N), (0, blocks.num_columns)
    if blocks.config.shard == "channels":
        g_part = share(blocks.num_groups, PARTS, part)
    elif blocks.config.shard == "batch":
        n_part = share(geometry.N, PARTS, part)
    else:
        j_part = share(blocks.num_columns, PARTS, part)
    ends_short = (g_part[0] + g_part[1]) * blocks.per_group > geometry.C
    alone = ends_short and g_part[1] > 1 and nl.tile_size.pmax >= CHUNKS_MANY * blocks.groups * blocks.images
    group_tiles = cut_groups(g_part[1] - 1 if alone else g_part[1], blocks.groups, blocks.config.edge)
    if alone:
        group_tiles.append((g_part[1] - 1, 1))
    return Cuts(
        g0=g_part[0],
        groups=group_tiles,
        n0=n_part[0],
        nn=n_part[1],
        n_parts=div_ceil(n_part[1], blocks.images),
        j0=j_part[0],
        jn=j_part[1],
        j_parts=div_ceil(j_part[1], blocks.columns),
    )


def work_of(cuts, g_index, n_index, j_index):
    """The Work of one tile of a part."""
    g = cuts.groups[g_index]
    n = share(cuts.nn, cuts.n_parts, n_index)
    j = share(cuts.jn, cuts.j_parts, j_index)
    return Work(g0=cuts.g0 + g[0], gn=g[1], n0=cuts.n0 + n[0], nn=n[1], j0=cuts.j0 + j[0], jn=j[1])


def channels_of_last(geometry, blocks, work):
    """Channels of a tile's last group."""
    return min(blocks.per_group, geometry.C - (work.g0 + work.gn - 1) * blocks.per_group)


def work_tiles(blocks, geometry, part):
    """Tiles of one of the PARTS, in order."""
    cuts = cuts_of(blocks, geometry, part)
    tiles = []
    for g_index in range(len(cuts.groups)):
        for n_index in range(cuts.n_parts):
            for j_index in range(cuts.j_parts):
                tiles.append(work_of(cuts, g_index, n_index, j_index))
    return tiles


def cut_groups(count, most, edge):
    """(first, how many) of tiles of at most `most` groups; the first and the last at most `edge`, if there are enough:
    nothing overlaps the start of the first or the end of the last."""
    ends = 0
    if 0 < edge and edge < most and count > 2 * edge:
        ends = edge
    found = []
    if ends > 0:
        found.append((0, ends))
    middle = count - 2 * ends
    parts = div_ceil(middle, most)
    for index in range(parts):
        one = share(middle, parts, index)
        found.append((ends + one[0], one[1]))
    if ends > 0:
        found.append((count - ends, ends))
    return found
