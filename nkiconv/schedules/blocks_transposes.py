"""Tiles of units of NCHW, whose channels come on the partitions and are transposed on the Tensor Engine.

What is at one place of the windows of all units of a tile is a strided view of planes [c, pixels], and its transpose
[units, c] what a tile of units has there: a transpose for each place of a window and 128 channels. Of fewer channels
blocks of several places lie on the partitions together, and below each other in a unit: a tile's gang, whose members
are groups of planes, or parts of their rows and columns, as many of x and of gy as their channels leave room for. A
member's units are those of some planes, rows and columns of blocks, with their whole windows: zeros are put in before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from .blocks import BlocksSettings, Pass, Region, Run, Tile, extent_of
from .cuts import places_inside
from .geometry import Axis, Geometry, valid_range
from .tiles import (
    BANK_BYTES,
    P_MAX,
    PARTS,
    Part,
    cut,
    cut_at,
    cut_into,
    div_ceil,
    size_of,
    some_of,
    whole_words,
)

#: Bytes of neighbouring rows that a DMA takes at once, about.
RUN_BYTES = 384
#: Pieces of x, and of gy, on their way together, at most, and of a gang at least; rows with zeros around them that are
#: there together.
RAWS, RAWS_LEAST, SLABS = 8, 3, 4


#: Columns of matmuls ahead of which x and gy are transposed; chosen by modelled times.
AHEAD = 2048


@dataclass(frozen=True)
class Span:
    """Windows of `count` blocks along an axis, which begin `step` elements apart, `extent` elements each, of which taps
    meet every `spacing`-th: those from `first` on, of which 0 .. size-1 are there."""

    first: int
    step: int
    count: int
    extent: int
    size: int
    spacing: int = 1

    @functools.cached_property
    def inside(self) -> Part:
        """(First, end) of what is there of all windows."""
        low = min(max(0, self.first), self.size)
        return low, max(low, min(self.size, self.first + self.width))

    @functools.cached_property
    def loaded(self) -> Part:
        """(First, end) of columns that are loaded: whole rows if it is most of them, for those are neighbours."""
        low, end = self.inside
        return (0, self.size) if 2 * (end - low) > self.size else (low, end)

    def blocks_inside(self, element: int) -> Part:
        """(First, end) of blocks whose windows' element of this number is there."""
        return places_inside(self.first + element, self.step, self.count, self.size)

    @property
    def width(self) -> int:
        """Elements from the first of all windows to the last."""
        return (self.count - 1) * self.step + self.extent

    @property
    def is_inside(self) -> bool:
        """Whether all elements of all windows are there."""
        return 0 <= self.first <= self.size - self.width


@dataclass(frozen=True)
class Side:
    """gy (t is -1), or x at a plane of taps, of members (first, how many) of a tile's gang, and channels of theirs (the
    same): (plane, row, column) where what is loaded of each member begins, if anything is there, and how many planes
    follow. rows, columns: of all members; of an axis along which these lie apart, what is loaded, zeros where nothing
    is there of sizes (rows, columns)."""

    t: int
    strides: tuple[int, ...]
    members: Part
    channels: Part
    corners: tuple[tuple[int, int, int], ...]
    count: int
    apart: int
    rows: Span
    columns: Span
    sizes: tuple[int, int]

    @property
    def is_apart(self) -> bool:
        """Whether its members are not the same rows and columns of other planes."""
        return len({corner[1:] for corner in self.corners}) > 1

    def pieces(self, itemsize: int) -> list[Part]:
        """(First, how many) rows of windows that are loaded together; one piece: all that is there of planes."""
        low, end = self.columns.loaded
        return cut_into(self.rows.extent, pieces_of(self.rows.extent, (end - low) * itemsize, self.is_apart))

    def loaded_of(self, corner: tuple[int, int, int]) -> tuple[Part, Part]:
        """(First, end) of rows and of columns of the only piece that are there of the member with this corner; the same
        twice where none is."""
        (top, bottom), (left, right), found = self.rows.inside, self.columns.loaded, []
        for first, extent, size in zip(corner[1:], (bottom - top, right - left), self.sizes, strict=True):
            low = min(extent, max(0, -first))
            found.append((low, max(low, min(extent, size - first))))
        return found[0], found[1]

    def raw_shape(self, itemsize: int) -> tuple[int, ...]:
        """Shape [128, planes, blocks, rows, columns] of a piece in SBUF."""
        pieces, columns, rows = self.pieces(itemsize), self.columns.loaded, self.rows.inside
        width = max(1, columns[1] - columns[0])
        if len(pieces) > 1:
            return P_MAX, self.count, self.rows.count, pieces[-1][1], width
        return P_MAX, self.count, 1, max(1, rows[1] - rows[0]), width

    @property
    def slab_shape(self) -> tuple[int, ...]:
        """Shape [128, planes, blocks, columns] of a row of windows with zeros around it."""
        return P_MAX, self.count, self.rows.count, self.columns.width


def pieces_of(height: int, num_bytes: int, apart: bool) -> int:
    """Pieces of windows of so many rows of so many bytes. apart: members of a gang are not the same rows or columns."""
    rows = div_ceil(RUN_BYTES, max(1, num_bytes))
    return 1 if apart else max(1, (2 * height + rows) // (2 * rows))


#: (planes, parts of the rows, of the columns) of blocks of a member.
Grid = tuple[int, list[Part], list[Part]]


@dataclass(frozen=True)
class Transposes:
    """What transposes on the Tensor Engine need: members of a gang, at most, pieces of x, and of gy, on their way
    together, banks of PSUM, shapes of the buffers of pieces (of x, of gy) and of rows with zeros; zeros beside members
    that are apart, in a row."""

    gang: int
    raws: int
    banks: int
    raw_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    slab_shape: tuple[int, ...]
    zeros: int


def grid_of(geometry: Geometry, rows: int, columns: int) -> Grid:
    """The Grid of blocks of so many rows and columns: a member has planes, or a part of one."""
    some_columns = _even(div_ceil(geometry.columns.out, columns), P_MAX)
    some_rows = _even(div_ceil(geometry.rows.out, rows), P_MAX // some_columns[0][1])
    whole = len(some_columns) == 1 and len(some_rows) == 1
    planes = P_MAX // (some_rows[0][1] * some_columns[0][1]) if whole else 1
    return min(planes, geometry.planes.out), some_rows, some_columns


def _even(count: int, most: int) -> list[Part]:
    """(first, how many) of parts of at most so many, alike but for the last, which may be smaller."""
    return cut_at(count, div_ceil(count, div_ceil(count, most)))


def gang_of(grid: Grid, planes: Sequence[int], channels: int, shared: bool, room: int) -> int:
    """Members of a tile's gang, of so many planes that see planes of x at the same taps: what channels of x leave room
    for, whose windows have more places than gy's blocks, up to `room`. shared: whether the cores share them."""
    most, some_rows, some_columns = grid
    members = max(1, max(planes) // most) * len(some_rows) * len(some_columns)
    members = max(1, members // PARTS if shared else members)
    return max(1, min(room, div_ceil(members, div_ceil(members, max(1, P_MAX // channels)))))


def gangs_of(grid: Grid, planes: Sequence[int], gang: int) -> list[tuple[int, range, int, Part]]:
    """(Number of a run of planes, the first of each member in it, how many follow each, (first, how many) places) of
    each tile's gang: of members of several places where no run has planes enough."""
    most, some_rows, some_columns = grid
    found = list[tuple[int, range, int, Part]]()
    for run, total in enumerate(planes):
        at = 0
        while at < total:
            members = min(gang, total - at)
            count = min(most, (total - at) // members)
            firsts = range(at, at + members * count, count)
            together = max(1, gang // max(planes))
            found += [(run, firsts, count, some) for some in cut(len(some_rows) * len(some_columns), together)]
            at += members * count
    return found


def transposed_tiles(
    geometry: Geometry, planes: Sequence[Part], config: BlocksSettings, gang: int, taps: tuple[Part, Part]
) -> tuple[Tile, ...]:
    """Tiles with a Region for each of their gang. planes: see `planes_of`; taps: rows and columns of them."""
    grid = _, some_rows, some_columns = grid_of(geometry, config.rows, config.columns)
    rows = [(p, _run_of(geometry.rows, config.rows, p, taps[0])) for p in some_rows]
    columns = [(q, _run_of(geometry.columns, config.columns, q, taps[1])) for q in some_columns]
    places, tiles = list(product(rows, columns)), list[Tile]()
    for run, firsts, count, some in gangs_of(grid, [total for _, total in planes], gang):
        own = some_of(places, some)
        # members are alike: blocks of the last one that are not there are zeros
        counts = count, max(p[1] for (p, _), _ in own), max(q[1] for _, (q, _) in own)
        tiles.append(
            tuple(
                Region(0, of_rows, of_columns, planes[run][0] + z, p[0] * config.rows, q[0] * config.columns, counts)
                for (p, of_rows), (q, of_columns) in own
                for z in firsts
            )
        )
    return tuple(tiles)


def are_apart(passes: Sequence[Pass]) -> bool:
    """Whether members of a gang are other rows or columns."""
    return any(len({(member.p, member.q) for member in tile}) > 1 for one in passes for tile in one.tiles)


def _run_of(axis: Axis, extent: int, blocks: Part, taps: Part) -> Run:
    """The Run of blocks (first, how many) of a tile, all together: what any of their windows has of x."""
    span = _span_of(axis, (blocks[0] * extent, extent, blocks[1]), taps)
    low = min(span.extent, max(0, -(span.first + (span.count - 1) * span.step)))
    high = max(low, min(span.extent, span.size - span.first))
    return Run(first=0, count=1, apart=extent, extent=extent, low=low, high=high)


def side_of(
    geometry: Geometry, config: BlocksSettings, one: Pass, tile: Tile, t: int, chunk: tuple[Part, Part]
) -> Side:
    """The Side of a chunk (members, channels) of a tile of a pass. geometry: of x and gy in memory."""
    own, planes = some_of(tile, chunk[0]), geometry.planes
    seen = [(1, member.z) if t < 0 else valid_range(planes, t, member.z, 1)[2:4] for member in own]
    corners = []
    for region, (count, plane) in zip(own, seen, strict=True):
        p, q = (region.p, config.rows, region.counts[1]), (region.q, config.columns, region.counts[2])
        if t < 0:
            rows, columns = Span(*p, config.rows, geometry.rows.out), Span(*q, config.columns, geometry.columns.out)
        else:
            rows, columns = _span_of(geometry.rows, p, one.r), _span_of(geometry.columns, q, one.s)
        if count > 0:
            corners.append((plane, rows, columns))
    same_rows, same_columns = (len({corner[axis] for corner in corners}) <= 1 for axis in (1, 2))
    return Side(
        t=t,
        strides=geometry.y_strides if t < 0 else geometry.x_strides,
        members=chunk[0],
        channels=chunk[1],
        corners=tuple(
            (plane, h.inside[0] if same_rows else h.first, w.loaded[0] if same_columns else w.first)
            for plane, h, w in corners
        ),
        count=own[0].counts[0],
        apart=1 if t < 0 else planes.stride,
        rows=rows if same_rows else replace(rows, first=0, size=rows.width),
        columns=columns if same_columns else replace(columns, first=0, size=columns.width),
        sizes=(rows.size, columns.size),
    )


def _span_of(axis: Axis, blocks: tuple[int, int, int], taps: Part) -> Span:
    """The Span of x of blocks (first output, outputs, how many) at taps (first, how many)."""
    first, step = blocks[0] * axis.stride + taps[0] * axis.dilation - axis.before, blocks[1] * axis.stride
    return Span(first, step, blocks[2], extent_of(axis, blocks[1], taps), axis.size, spacing_of(axis, blocks[1]))


def spacing_of(axis: Axis, outputs: int) -> int:
    """Elements of x from one that taps of a block of so many outputs meet to the next."""
    return axis.dilation if outputs == 1 else math.gcd(axis.stride, axis.dilation)


def chunks_of(channels: int, gang: int) -> list[tuple[Part, Part]]:
    """((first, how many) members, channels) that are transposed together, of so many of each."""
    return list(product(cut(gang, max(1, P_MAX // channels)), cut(channels, P_MAX)))


def sides_of(geometry: Geometry, config: BlocksSettings, one: Pass, tile: Tile, t: int) -> list[Side]:
    """The Sides of all chunks of a tile of a pass."""
    channels = max(1, one.k[1] if t < 0 else one.c[0][1])
    return [side_of(geometry, config, one, tile, t, chunk) for chunk in chunks_of(channels, len(tile))]


def buffer_shapes(
    geometry: Geometry, config: BlocksSettings, passes: Sequence[Pass]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...], int]:
    """Shapes that hold each piece (of x, of gy), and each row of windows, of all tiles of passes, and zeros that rows
    of members that are apart have."""
    raws: list[tuple[int, ...]] = [(1, 1, 1, 1, 1), (1, 1, 1, 1, 1)]
    slab: tuple[int, ...] = (1, 1, 1, 1)
    zeros = 0
    for one in passes:
        for tile, t in product(one.tiles, (-1, *one.planes)):
            for side in sides_of(geometry, config, one, tile, t):
                which = int(t < 0)
                shape = side.raw_shape(geometry.itemsize)
                raws[which], slab = tuple(map(max, raws[which], shape)), tuple(map(max, slab, side.slab_shape))
                zeros = max(zeros, shape[-1]) if side.is_apart else zeros
    return (raws[0], raws[1]), slab, zeros


def transpose_bytes(geometry: Geometry, found: Transposes, raws: int) -> int:
    """Bytes a partition that transposes need besides the blocks. raws: pieces of each."""
    pieces = raws * sum(size_of(shape[1:]) for shape in found.raw_shapes)
    return (pieces + SLABS * size_of(found.slab_shape[1:]) + found.zeros) * geometry.itemsize


def bank_shape(side: Side, itemsize: int) -> tuple[int, int, int, int]:
    """Shape [128, places, members, channels] of a Side's transposes in a bank."""
    members, room = side.members[1], whole_words(side.channels[1], itemsize)
    return P_MAX, BANK_BYTES // (members * room * itemsize), members, room


def transpose_instructions(geometry: Geometry, config: BlocksSettings, one: Pass) -> int:
    """Instructions of transposing the tiles of a pass, at most."""
    total = 0
    for tile, t in product(one.tiles, (-1, *one.planes)):
        for side in sides_of(geometry, config, one, tile, t):
            rows, columns = side.rows.extent, side.columns.extent
            # rows of windows: edges and a copy of each, its transposes, and their way out
            each = len(side.pieces(geometry.itemsize)) * side.members[1] * (side.rows.count + 1) + 4
            places = bank_shape(side, geometry.itemsize)[1]
            total += each + rows * (6 + columns + div_ceil(columns, places))
    return total
