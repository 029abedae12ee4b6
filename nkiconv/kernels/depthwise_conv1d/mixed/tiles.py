"""Work decomposition with channels on partitions: which rows of x share a tile, and which part of the work has them.

Channel c = p * T + t lies on partition p of channel tile t, so that the filters of neighbouring tiles are one
contiguous run a partition. Where the channels of a tile leave partitions free, several stretches of columns (or images)
are stacked: partition g * P + p holds group g. The array adds zeros times all rows of a tile, NaN or not, so that where
it has taps a tile's stretches are of one image.

Compile-time code.
"""

import math
from dataclasses import dataclass

from ...._nki import nl
from ....schedules.mixed import LOAD_BYTES_MAX
from ....schedules.tiles import PARTS, cut_at, div_ceil, some_of
from ..parts import part_most, part_span

#: Columns below which a stretch is not cut further to fill partitions: a DMA element of 64 B in bf16, which costs what
#: any smaller one does (trn2.toml, dma.small_element_bytes).
STRETCH_MIN = 32
#: Channel tiles from which an odd number of them is still shared out evenly enough: 8 to 7.
TILES_TO_SHARE = 15
#: Columns of a tile of one image from which the array does as much at once as Vector with tiles of several.
ALONE_MIN = 64
#: Bytes a partition of the columns of one tile, without the halo: long runs, and several tiles fit SBUF.
ROWS_TILE_BYTES = 16384
#: Strides up to this load whole runs: run bytes / 27.2 B/ns stay below the 55 ns of a 2-byte DMA element (trn2.toml).
RUN_STRIDE_MAX = 64
#: A run may be this many times longer than what the taps read of it; beyond, each tap loads its own columns.
RUN_WASTE_MAX = 4


@dataclass
class RowPlan(nl.NKIObject):
    """How rows lie on partitions, the same for every core."""

    #: channel tiles; channel p * T + t is on partition p of tile t
    T: int
    #: groups of columns or images that are stacked on the partitions of a tile
    G: int
    #: one of SHARDS
    shard: str
    #: most columns of a tile
    columns: int
    #: whether a tile holds one run a row, read by all taps, or each tap's columns apart
    runs: bool
    #: whether the groups of a tile are of one image
    alone: bool


@dataclass
class RowTile(nl.NKIObject):
    """One tile: channels p * T + t of some groups, (image, first column) each."""

    t: int
    #: channels, the partitions of a group; of all groups
    P: int
    rows: int
    groups: list
    #: columns of a group, and where columns end; what is behind is computed and not stored
    qn: int
    end_q: int
    #: in SBUF, once they are loaded: x, or None; the residual [rows, qn], or None without one
    x: object = None
    residual: object = None
    #: filters [rows, S] and bias [rows, 1] in fp32, or None without one
    w: object = None
    bias: object = None
    #: [rows, taps on Tensor, rows] stationaries, or None
    diagonals: object = None


def channels_of(C, T, t):
    """Channels of tile t, those p * T + t below C: partitions, also of the tiles behind it, which have no more."""
    return div_ceil(max(0, C - t), T)


def read_shard(geometry, T):
    """What to halve by default: channel tiles where they halve evenly, else images, else columns."""
    if T % 2 == 0 or T >= TILES_TO_SHARE:
        return "channels"
    if geometry.N % 2 == 0:
        return "batch"
    if geometry.Q >= 2 * STRETCH_MIN:
        return "columns"
    if T > 1:
        return "channels"
    return "batch" if geometry.N > 1 else "columns"


def part_columns(geometry, shard):
    """Most columns of one image in one part of the work."""
    return part_most(geometry.Q, shard == "columns")


def part_images(geometry, shard):
    """Most images in one part of the work."""
    return part_most(geometry.N, shard == "batch")


def part_total(geometry):
    """Columns of 128 rows in a part of the work."""
    return (geometry.N * geometry.Q * geometry.C) // (PARTS * nl.tile_size.pmax)


def stacked_images(geometry, shard, alone):
    """Most images of one part of the work whose stretches may share a tile."""
    return 1 if alone else part_images(geometry, shard)


def stack_height(geometry, shard, P, alone):
    """Groups that fill the partitions of a tile with P channels, as far as there are columns and images for them."""
    stretches = stacked_images(geometry, shard, alone) * div_ceil(part_columns(geometry, shard), STRETCH_MIN)
    return max(1, min(nl.tile_size.pmax // P, stretches))


def plan_rows(geometry, shard, columns, alone):
    """A RowPlan; shard None and columns 0 leave them to the rule. alone: whether each tile is of one image."""
    longest = ROWS_TILE_BYTES // geometry.itemsize if columns == 0 else columns
    found = fill_partitions(geometry, None, alone)
    if shard != None and found[2] != shard:
        found = fill_partitions(geometry, shard, alone)
    return fit_columns(geometry, found[0], found[1], found[2], longest, alone)


def fill_partitions(geometry, shard, alone):
    """(channel tiles, groups, what is halved) that use most partitions; shard None: any, as `read_shard` has it."""
    C = geometry.C
    T = div_ceil(C, nl.tile_size.pmax)
    best = T
    chosen = read_shard(geometry, T) if shard == None else shard
    G = stack_height(geometry, chosen, div_ceil(C, T), alone) if C % T == 0 else 1
    used = G * div_ceil(C, T)
    for more in range(T + 1, min(C, 8 * T) + 1):
        if C % more == 0:
            other = read_shard(geometry, more) if shard == None else shard
            height = stack_height(geometry, other, C // more, alone)
            # a tenth more lanes, or the longer runs of fewer groups are worth more
            if 10 * height * (C // more) > 11 * used:
                best = more
                chosen = other
                G = height
                used = height * (C // more)
    return best, G, chosen


def fit_columns(geometry, T, G, shard, longest, alone):
    """The RowPlan with at most `longest` columns a tile that fits LOAD_BYTES_MAX; its columns are 0 if none does."""
    halo = (geometry.S - 1) * geometry.dilation
    most = LOAD_BYTES_MAX // geometry.itemsize
    runs = False
    columns = 0
    if geometry.stride <= RUN_STRIDE_MAX and halo < most:
        columns = aligned(geometry, G, min(longest, 1 + (most - halo - 1) // geometry.stride))
        columns = min(columns, stretch(geometry, G, shard, columns, alone))
        run = (columns - 1) * geometry.stride + halo + 1
        runs = run <= RUN_WASTE_MAX * geometry.S * max(columns * geometry.stride, STRETCH_MIN)
    if not runs:
        columns = min(longest, most // geometry.S)
        if columns > 0:
            columns = min(columns, stretch(geometry, G, shard, columns, alone))
    return RowPlan(T=T, G=G, shard=shard, columns=columns, runs=runs, alone=alone)


def stretch(geometry, G, shard, longest, alone):
    """Columns of each group, when the columns and images of a part are cut evenly into whole tiles of G groups."""
    columns = part_columns(geometry, shard)
    images = stacked_images(geometry, shard, alone)
    tiles = div_ceil(images * div_ceil(columns, longest), G)
    pieces = max(div_ceil(columns, longest), (tiles * G) // images)
    size = div_ceil(columns, pieces)
    return aligned(geometry, G, size + phase_step(geometry) - 1)


def phase_step(geometry):
    """Columns from one that meets the gaps of a dilated row in some way to the next that meets them so."""
    return geometry.lhs_dilation // math.gcd(geometry.stride, geometry.lhs_dilation)


def aligned(geometry, G, columns):
    """At most `columns`, such that stacked groups meet the gaps of a dilated row at the same places."""
    step = phase_step(geometry)
    return columns if G == 1 else max(step, (columns // step) * step)


def tile_count(geometry, rows):
    """Most tiles of a part."""
    images, together = part_images(geometry, rows.shard), stacked_images(geometry, rows.shard, rows.alone)
    stretches = together * div_ceil(part_columns(geometry, rows.shard), rows.columns)
    stacks = div_ceil(images, max(1, together)) * div_ceil(stretches, rows.G)
    return part_most(rows.T, rows.shard == "channels") * stacks


def place_of_tap(geometry, s, taps):
    """Where tap s lies among so many of which it is one of the first."""
    return taps - 1 - s if geometry.flipped else s


def shares_tiles(geometry):
    """Whether tiles of several images are half as many as those of one, and these are short: what `vector` gains on
    `mixed`."""
    alone, shared = plan_rows(geometry, None, 0, True), plan_rows(geometry, None, 0, False)
    if geometry.N == 1 or alone.columns == 0 or shared.columns == 0 or alone.columns >= ALONE_MIN:
        return False
    return tile_count(geometry, alone) >= 2 * tile_count(geometry, shared)


def tile_list(geometry, rows, part, most):
    """RowTiles of one part, in order: channel tile by channel tile. most: how many at most, 0 for all."""
    t_part = part_span(rows.T, rows.shard == "channels", part)
    n_part = part_span(geometry.N, rows.shard == "batch", part)
    q_part = part_span(geometry.Q, rows.shard == "columns", part)
    end_q = q_part[0] + q_part[1]
    stacks, groups = [], []
    for n in range(n_part[0], n_part[0] + n_part[1]):
        if most == 0 or len(stacks) * rows.G + len(groups) < most * rows.G:
            for q0 in range(q_part[0], end_q, rows.columns):
                groups.append((n, q0))
        if rows.alone or n == n_part[0] + n_part[1] - 1:
            for stack in cut_at(len(groups), rows.G):
                stacks.append(some_of(groups, stack))
            groups = []
    tiles = []
    for t in range(t_part[0], t_part[0] + t_part[1]):
        for stack in stacks:
            if most == 0 or len(tiles) < most:
                tiles.append(row_tile(geometry, rows, t, stack, end_q))
    return tiles


def row_tile(geometry, rows, t, groups, end_q):
    """The tile of a channel tile's groups, (image, first column) each; columns end at end_q."""
    longest = 0
    for group in groups:
        longest = max(longest, min(rows.columns, end_q - group[1]))
    P = channels_of(geometry.C, rows.T, t)
    return RowTile(t=t, P=P, rows=P * len(groups), groups=groups, qn=longest, end_q=end_q)


def run_length(geometry, qn):
    """Positions of a padded, dilated row that qn columns meet, first to last."""
    return (qn - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1


def load_bytes(geometry, rows):
    """Bytes a partition of one loaded tile."""
    if not rows.runs:
        return geometry.S * rows.columns * geometry.itemsize
    run = run_length(geometry, rows.columns) * geometry.itemsize
    return run if geometry.lhs_dilation == 1 else run + div_ceil(run, geometry.lhs_dilation) + geometry.itemsize
