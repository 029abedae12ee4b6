"""Rows of depthwise convolutions with channels on partitions: the rows of x that share a tile, their part of the work,
the places of their elements in HBM.

Channel c = p * T + t is on partition p of channel tile t, so the filters of neighbouring tiles are one contiguous run a
partition. If the channels of a tile leave partitions free, several stretches of columns (or images) are stacked:
partition g * P + p holds group g. The Tensor Engine adds zeros times all rows of a tile, NaN or not, so a tile's
stretches are of one image if it has taps there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..simulator.hardware import AXIS_SIZE_MAX, PARTITIONS
from .depthwise import RowGeometry, part_most, part_span
from .tiles import PARTS, cut_at, div_ceil, some_of

#: Bytes a partition of one load, at most.
LOAD_BYTES_MAX = 49_152
#: Least columns of a stretch that is cut to fill partitions: a DMA element of 64 B in bf16, which takes as long as any
#: smaller one (trn2.toml, dma.small_element_bytes).
STRETCH_MIN = 32
#: Bytes a partition of the columns of one tile, without the halo: runs are long, and several tiles fit SBUF.
ROWS_TILE_BYTES = 16384


#: (image, first column) of a stretch that is stacked on the partitions of a tile.
Group = tuple[int, int]


@dataclass(frozen=True)
class Region:
    """Groups group .. group+groups-1 of a tile, columns first .. first+count-1 of each, from an element of image n on;
    apart: HBM elements between groups."""

    group: int
    groups: int
    n: int
    element: int
    first: int
    count: int
    apart: int


@dataclass(frozen=True)
class RowPlan:
    """The layout of rows on partitions, the same for every core."""

    #: channel tiles; channel p * T + t is on partition p of tile t
    T: int
    #: groups of columns or images that are stacked on the partitions of a tile
    G: int
    #: one of SHARDS
    shard: str
    #: most columns of a tile
    columns: int
    #: whether the groups of a tile are of one image
    alone: bool


@dataclass(frozen=True)
class RowTile:
    """One tile: channels p * T + t of some groups."""

    t: int
    #: partitions of a group, its channels; partitions of all groups
    P: int
    rows: int
    groups: tuple[Group, ...]
    #: columns of a group, and the end of the part's columns; columns after it are computed and not stored
    qn: int
    end_q: int


def channels_of(C: int, T: int, t: int) -> int:
    """Channels of tile t, that is p * T + t below C: its partitions, and the most of the tiles after it."""
    return div_ceil(max(0, C - t), T)


def read_shard(geometry: RowGeometry, T: int) -> str:
    """The axis that two parts share by default: channel tiles if they halve evenly, else images, else columns."""
    if T % 2 == 0:
        return "channels"
    if geometry.N % 2 == 0:
        return "batch"
    if geometry.Q >= 2 * STRETCH_MIN:
        return "columns"
    if T > 1:
        return "channels"
    return "batch" if geometry.N > 1 else "columns"


def part_total(geometry: RowGeometry) -> int:
    """Columns of 128 rows in a part of the work."""
    return (geometry.N * geometry.Q * geometry.C) // (PARTS * PARTITIONS)


def stacked_images(geometry: RowGeometry, shard: str, alone: bool) -> int:
    """Most images of one part of the work whose stretches may share a tile."""
    return 1 if alone else part_most(geometry.N, shard == "batch")


def stack_height(geometry: RowGeometry, shard: str, P: int, alone: bool) -> int:
    """Groups that fill the partitions of a tile with P channels, at most as many as columns and images allow."""
    if geometry.prologue.asked:  # padding stays zero: all partitions must have the same
        return 1
    stretches = stacked_images(geometry, shard, alone) * div_ceil(
        part_most(geometry.Q, shard == "columns"), STRETCH_MIN
    )
    return max(1, min(PARTITIONS // P, stretches))


@functools.lru_cache(maxsize=4096)
def plan_rows(geometry: RowGeometry, shard: str | None, columns: int, alone: bool) -> RowPlan:
    """A RowPlan; shard None and columns 0: by a rule. alone: whether each tile is of one image."""
    longest = ROWS_TILE_BYTES // geometry.itemsize if columns == 0 else columns
    found = fill_partitions(geometry, None, alone)
    if shard is not None and found[2] != shard:
        found = fill_partitions(geometry, shard, alone)
    return fit_columns(geometry, *found, longest, alone)


def fill_partitions(geometry: RowGeometry, shard: str | None, alone: bool) -> tuple[int, int, str]:
    """(channel tiles, groups, shard) that use most partitions; shard None: as in `read_shard`."""
    C, least = geometry.C, div_ceil(geometry.C, PARTITIONS)
    best, used = (least, 1, ""), 0
    for T in range(least, min(C, 8 * least) + 1):
        if T == least or C % T == 0:
            own, P = read_shard(geometry, T) if shard is None else shard, div_ceil(C, T)
            G = stack_height(geometry, own, P, alone) if C % T == 0 else 1
            # a tenth more partitions; a smaller gain is worth less than the longer runs of fewer groups
            if 10 * G * P > 11 * used:
                best, used = (T, G, own), G * P
    return best


def fit_columns(geometry: RowGeometry, T: int, G: int, shard: str, longest: int, alone: bool) -> RowPlan:
    """The RowPlan with at most `longest` columns a tile that fits LOAD_BYTES_MAX, or, if taps span more than that, has
    few columns beside; its columns are 0 if none fits an axis."""
    halo = (geometry.S - 1) * geometry.dilation
    most, columns = LOAD_BYTES_MAX // geometry.itemsize, 0
    if halo >= most:
        most = min(AXIS_SIZE_MAX, halo + ROWS_TILE_BYTES // geometry.itemsize)
    if halo < most:
        columns = aligned(geometry, G, min(longest, 1 + (most - halo - 1) // geometry.stride))
        columns = min(columns, stretch(geometry, G, shard, columns, alone))
    return RowPlan(T=T, G=G, shard=shard, columns=columns, alone=alone)


def stretch(geometry: RowGeometry, G: int, shard: str, longest: int, alone: bool) -> int:
    """Columns of each group if the columns and images of a part are cut evenly into whole tiles of G groups."""
    columns = part_most(geometry.Q, shard == "columns")
    images = stacked_images(geometry, shard, alone)
    tiles = div_ceil(images * div_ceil(columns, longest), G)
    pieces = max(div_ceil(columns, longest), (tiles * G) // images)
    size = div_ceil(columns, pieces)
    return aligned(geometry, G, size + phase_step(geometry) - 1)


def phase_step(geometry: RowGeometry) -> int:
    """Columns after which the place of the gaps of a dilated row in a column's window repeats."""
    return geometry.lhs_dilation // math.gcd(geometry.stride, geometry.lhs_dilation)


def aligned(geometry: RowGeometry, G: int, columns: int) -> int:
    """At most `columns`, such that stacked groups have the gaps of a dilated row at the same places."""
    step = phase_step(geometry)
    return columns if G == 1 else max(step, (columns // step) * step)


def tile_count(geometry: RowGeometry, rows: RowPlan) -> int:
    """Most tiles of a part."""
    images, together = part_most(geometry.N, rows.shard == "batch"), stacked_images(geometry, rows.shard, rows.alone)
    stretches = together * div_ceil(part_most(geometry.Q, rows.shard == "columns"), rows.columns)
    stacks = div_ceil(images, max(1, together)) * div_ceil(stretches, rows.G)
    return part_most(rows.T, rows.shard == "channels") * stacks


def tile_list(geometry: RowGeometry, rows: RowPlan, part: int, most: int) -> list[RowTile]:
    """RowTiles of one part, in order: channel tile by channel tile. most: how many at most, 0 for all."""
    t_part = part_span(rows.T, rows.shard == "channels", part)
    n_part = part_span(geometry.N, rows.shard == "batch", part)
    q_part = part_span(geometry.Q, rows.shard == "columns", part)
    end_q = q_part[0] + q_part[1]
    stacks: list[tuple[Group, ...]] = []
    groups: list[Group] = []
    for n in range(n_part[0], n_part[0] + n_part[1]):
        if most == 0 or len(stacks) * rows.G + len(groups) < most * rows.G:
            for q0 in range(q_part[0], end_q, rows.columns):
                groups.append((n, q0))
        if rows.alone or n == n_part[0] + n_part[1] - 1:
            stacks += [tuple(some_of(groups, span)) for span in cut_at(len(groups), rows.G)]
            groups = []
    tiles: list[RowTile] = []
    for t in range(t_part[0], t_part[0] + t_part[1]):
        for stack in stacks:
            if most == 0 or len(tiles) < most:
                tiles.append(row_tile(geometry, rows, t, stack, end_q))
    return tiles


def row_tile(geometry: RowGeometry, rows: RowPlan, t: int, groups: tuple[Group, ...], end_q: int) -> RowTile:
    """The tile of a channel tile's groups, (image, first column) each; columns end at end_q."""
    longest = max(min(rows.columns, end_q - q0) for _, q0 in groups)
    P = channels_of(geometry.C, rows.T, t)
    return RowTile(t=t, P=P, rows=P * len(groups), groups=groups, qn=longest, end_q=end_q)


def run_length(geometry: RowGeometry, qn: int) -> int:
    """Positions of a padded, dilated row that qn columns read, first to last."""
    return (qn - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1


def load_bytes(geometry: RowGeometry, rows: RowPlan) -> int:
    """Bytes a partition of one loaded tile."""
    run = run_length(geometry, rows.columns) * geometry.itemsize
    return run if geometry.lhs_dilation == 1 else run + div_ceil(run, geometry.lhs_dilation) + geometry.itemsize


def positions_of(geometry: RowGeometry, tile: RowTile) -> tuple[int, ...]:
    """Positions of the padded row, 0 is x[0], that the first tap of the first column of each group reads."""
    return tuple(q0 * geometry.stride - geometry.pad_left for _, q0 in tile.groups)


def held_by_all(geometry: RowGeometry, state: bool, firsts: Sequence[int], size: int) -> tuple[int, int]:
    """(first column, end) of the columns with an element of x, or of the state, in all groups; group g begins at
    element firsts[g]."""
    left, right = 0, size
    for first in firsts:
        if not state:
            left = max(left, min(size, -first))
        right = min(right, max(0, geometry.W - first))
    return (left, right) if left < right else (size, size)


def regions_of(
    tile: RowTile, steps: tuple[int, int, int], firsts: Sequence[int], columns: tuple[int, int], span: tuple[int, int]
) -> list[Region]:
    """Regions of a tile's columns (first, end) with elements (low, high) of rows: one for neighbouring groups that one
    access pattern addresses. Images and elements are steps[0] and steps[2] apart in HBM; column 0 of group g is element
    firsts[g]."""
    found: list[Region] = []
    for g, ((n, _), place) in enumerate(zip(tile.groups, firsts, strict=True)):
        first = min(columns[1], max(columns[0], span[0] - place))
        count = min(columns[1], span[1] - place) - first
        if count <= 0:
            continue
        here = Region(g, 1, n, place + first, first, count, 1)
        if found and (found[-1].group + found[-1].groups, found[-1].first, found[-1].count) == (g, first, count):
            last = found[-1]
            step = (n - last.n) * steps[0] + (here.element - last.element) * steps[2]
            apart = step if last.groups == 1 else last.apart
            if apart > 0 and step == apart * last.groups:
                found[-1] = replace(last, groups=last.groups + 1, apart=apart)
                continue
        found.append(here)
    return found
