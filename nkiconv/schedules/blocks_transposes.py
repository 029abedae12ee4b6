"""Tiles of units of NCHW: x and gy are loaded with channels on the partitions, and the Tensor Engine transposes them.

One place of the windows of all units of a tile is a strided view of planes [c, pixels]; its transpose [units, c] is
that place of the tile of units: a transpose for each place of a window and 128 channels. With fewer channels the
partitions hold several members, which are below each other in a unit: a tile's gang. Members are groups of planes, or
parts of their rows and columns, as many of x and of gy as their channels leave room for. A member's units are of some
planes, rows and columns of blocks, with whole windows: zeros are inserted before the transpose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from .blocks import BlocksSettings, Pass, Region, Run, Tile
from .cuts import places_inside, window_of
from .geometry import Axis, Geometry, valid_range
from .tiles import BANK_BYTES, P_MAX, PARTS, Part, cut, cut_at, cut_into, div_ceil, size_of, some_of, whole_words

#: About the bytes of neighbouring rows in a DMA.
RUN_BYTES = 384
#: The most loaded pieces of x, and of gy, at once, and the fewest with a gang at several places; buffers of rows with
#: zeros around them.
RAWS, RAWS_LEAST, SLABS = 8, 3, 4


#: Matmul columns that transposes of x and gy run ahead; chosen by modelled times.
AHEAD = 2048


@dataclass(frozen=True)
class Span:
    """Windows of `count` blocks along an axis, from element `first` on, `step` elements apart, of `extent` elements
    each; taps see every `spacing`-th. Elements 0 .. size-1 exist."""

    first: int
    step: int
    count: int
    extent: int
    size: int
    spacing: int = 1

    @functools.cached_property
    def inside(self) -> Part:
        """(first, end) of the existing elements of all windows."""
        low = min(max(0, self.first), self.size)
        return low, max(low, min(self.size, self.first + self.width))

    @functools.cached_property
    def loaded(self) -> Part:
        """(first, end) of the loaded columns: whole rows, which are runs, if windows have more than half of them."""
        low, end = self.inside
        return (0, self.size) if 2 * (end - low) > self.size else (low, end)

    def blocks_inside(self, element: int) -> Part:
        """(first, end) of the blocks whose windows' element number `element` exists."""
        return places_inside(self.first + element, self.step, self.count, self.size)

    @property
    def width(self) -> int:
        """Elements from the first window's first to the last window's last."""
        return (self.count - 1) * self.step + self.extent

    @property
    def is_inside(self) -> bool:
        """Whether all elements of all windows exist."""
        return 0 <= self.first <= self.size - self.width


@dataclass(frozen=True)
class Side:
    """gy (t is -1), or x at a plane of taps, of members (first, count) of a tile's gang and channels (first, count).

    corners: (plane, row, column) of the first loaded element of each member that exists; count, apart: planes of a
    member and their distance. rows, columns: the Spans of all members; if members are at different places of an axis,
    the Span of their windows, with zeros outside of the tensor's sizes (rows, columns)."""

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
        """Whether its members are at different rows or columns, not only in different planes."""
        return len({corner[1:] for corner in self.corners}) > 1

    def pieces(self, itemsize: int) -> list[Part]:
        """(first, count) of the rows of windows of each load; a single piece, as of members at different places, is all
        loaded rows of planes."""
        (low, end), height = self.columns.loaded, self.rows.extent
        rows = div_ceil(RUN_BYTES, max(1, (end - low) * itemsize))
        return cut_into(height, 1 if self.is_apart else max(1, (2 * height + rows) // (2 * rows)))

    def loaded_of(self, corner: tuple[int, int, int]) -> tuple[Part, Part]:
        """(first, end) of rows, and of columns, of the single piece that exist for the member with this corner; first
        equals end if none do."""
        (top, bottom), (left, right), found = self.rows.inside, self.columns.loaded, []
        for first, extent, size in zip(corner[1:], (bottom - top, right - left), self.sizes, strict=True):
            low = min(extent, max(0, -first))
            found.append((low, max(low, min(extent, size - first))))
        return found[0], found[1]

    def raw_shape(self, itemsize: int) -> tuple[int, ...]:
        """The shape [128, planes, blocks, rows, columns] of a piece in SBUF."""
        pieces, columns, rows = self.pieces(itemsize), self.columns.loaded, self.rows.inside
        width = max(1, columns[1] - columns[0])
        if len(pieces) > 1:
            return P_MAX, self.count, self.rows.count, pieces[-1][1], width
        return P_MAX, self.count, 1, max(1, rows[1] - rows[0]), width

    @property
    def slab_shape(self) -> tuple[int, ...]:
        """The shape [128, planes, blocks, columns] of a row of windows with zeros around it."""
        return P_MAX, self.count, self.rows.count, self.columns.width


#: (planes, parts of the rows, of the columns) of blocks of a member.
Grid = tuple[int, list[Part], list[Part]]


@dataclass(frozen=True)
class Transposes:
    """Buffers of transposes on the Tensor Engine: the most members of a gang; loaded pieces of x, and of gy; banks of
    PSUM; shapes of pieces (of x, of gy) and of rows with zeros; zeros in a row beside members at different places."""

    gang: int
    raws: int
    banks: int
    raw_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    slab_shape: tuple[int, ...]
    zeros: int


def grid_of(geometry: Geometry, rows: int, columns: int) -> Grid:
    """The Grid of blocks of `rows` rows and `columns` columns: a member has planes, or a part of one."""
    some_columns = _even(div_ceil(geometry.columns.out, columns), P_MAX)
    some_rows = _even(div_ceil(geometry.rows.out, rows), P_MAX // some_columns[0][1])
    whole = len(some_columns) == 1 and len(some_rows) == 1
    planes = P_MAX // (some_rows[0][1] * some_columns[0][1]) if whole else 1
    return min(planes, geometry.planes.out), some_rows, some_columns


def _even(count: int, most: int) -> list[Part]:
    """(first, count) of equal parts of at most `most`; the last may be smaller."""
    return cut_at(count, div_ceil(count, div_ceil(count, most)))


def gang_of(grid: Grid, planes: Sequence[int], channels: int, shared: bool, room: int) -> int:
    """Members of a tile's gang: as many as channels of x leave room for, as its windows have more places than gy's
    blocks, up to `room`. planes: the numbers of planes that see planes of x at the same taps; shared: whether the cores
    share the members."""
    most, some_rows, some_columns = grid
    members = max(1, max(planes) // most) * len(some_rows) * len(some_columns)
    members = max(1, members // PARTS if shared else members)
    return max(1, min(room, div_ceil(members, div_ceil(members, max(1, P_MAX // channels)))))


def gangs_of(grid: Grid, planes: Sequence[int], gang: int) -> list[tuple[int, range, int, Part]]:
    """(number of a run of planes, the first plane of each member in it, planes of a member, (first, count) of places)
    of each tile's gang; members are at several places if no run has enough planes."""
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
    """Tiles with a Region for each member of their gang. planes: of `planes_of`; taps: their rows and columns."""
    grid = _, some_rows, some_columns = grid_of(geometry, config.rows, config.columns)
    rows = [(p, _run_of(geometry.rows, config.rows, p, taps[0])) for p in some_rows]
    columns = [(q, _run_of(geometry.columns, config.columns, q, taps[1])) for q in some_columns]
    places, tiles = list(product(rows, columns)), list[Tile]()
    for run, firsts, count, some in gangs_of(grid, [total for _, total in planes], gang):
        own = some_of(places, some)
        # members have equal sizes: missing blocks of the last one are zeros
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
    """Whether members of a gang are at different rows or columns."""
    return any(len({(member.p, member.q) for member in tile}) > 1 for one in passes for tile in one.tiles)


def _run_of(axis: Axis, extent: int, blocks: Part, taps: Part) -> Run:
    """One Run for all blocks (first, count) of a tile: the part inside x of any of their windows."""
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
    """The Span of x of blocks (first output, outputs, count) at taps (first, count)."""
    first, step = blocks[0] * axis.stride + taps[0] * axis.dilation - axis.before, blocks[1] * axis.stride
    spacing = axis.dilation if blocks[1] == 1 else math.gcd(axis.stride, axis.dilation)
    return Span(first, step, blocks[2], window_of(axis, blocks[1], taps[1]), axis.size, spacing)


def sides_of(geometry: Geometry, config: BlocksSettings, one: Pass, tile: Tile, t: int) -> list[Side]:
    """The Sides of all chunks of a tile of a pass."""
    channels = max(1, one.k[1] if t < 0 else one.c[0][1])
    chunks = product(cut(len(tile), max(1, P_MAX // channels)), cut(channels, P_MAX))
    return [side_of(geometry, config, one, tile, t, chunk) for chunk in chunks]


def buffer_shapes(
    geometry: Geometry, config: BlocksSettings, passes: Sequence[Pass]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...], int]:
    """Shapes that hold each piece (of x, of gy), and each row of windows, of all tiles of passes; and the zeros in rows
    of members at different places."""
    raws: list[tuple[int, ...]] = [(1, 1, 1, 1, 1), (1, 1, 1, 1, 1)]
    slab: tuple[int, ...] = (1, 1, 1, 1)
    zeros, planes = 0, geometry.planes
    exists = {(t, z): valid_range(planes, t, z, 1)[2] > 0 for t in range(planes.taps) for z in range(planes.out)}
    for one in passes:
        # tiles that differ in their planes alone have the same shapes
        kinds = {
            (t < 0, *((own.p, own.q, own.counts, exists.get((t, own.z), True)) for own in tile)): (tile, t)
            for tile, t in product(one.tiles, (-1, *one.planes))
        }
        for tile, t in kinds.values():
            for side in sides_of(geometry, config, one, tile, t):
                which = int(t < 0)
                shape = side.raw_shape(geometry.itemsize)
                raws[which], slab = tuple(map(max, raws[which], shape)), tuple(map(max, slab, side.slab_shape))
                zeros = max(zeros, shape[-1]) if side.is_apart else zeros
    return (raws[0], raws[1]), slab, zeros


def transpose_bytes(geometry: Geometry, found: Transposes, raws: int) -> int:
    """Bytes a partition of transposes besides the blocks. raws: pieces of x, and of gy."""
    pieces = raws * sum(size_of(shape[1:]) for shape in found.raw_shapes)
    return (pieces + SLABS * size_of(found.slab_shape[1:]) + found.zeros) * geometry.itemsize


def bank_shape(side: Side, itemsize: int) -> tuple[int, int, int, int]:
    """The shape [128, places, members, channels] of a Side's transposes in a bank."""
    members, room = side.members[1], whole_words(side.channels[1], itemsize)
    return P_MAX, BANK_BYTES // (members * room * itemsize), members, room
