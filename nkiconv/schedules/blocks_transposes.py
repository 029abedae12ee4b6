"""Tiles of units of NCHW, whose channels come on the partitions and are transposed on the Tensor Engine.

What is at one place of the windows of all units of a tile is a strided view of planes [c, pixels], and its transpose
[units, c] what a tile of units has there: a transpose for each place of a window and 128 channels. Of fewer channels
blocks of several groups of planes lie on the partitions together (a gang), and below each other in a unit. A tile's
units are those of some planes, rows and columns of blocks, with their whole windows: zeros are put in before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from .blocks import BlocksSettings, Pass, Region, Run, Tile, extent_of
from .geometry import Axis, Geometry, valid_range
from .tiles import BANK_BYTES, P_MAX, Part, cut, cut_into, div_ceil, size_of, whole_words

#: Bytes of neighbouring rows that a DMA takes at once, about.
RUN_BYTES = 384
#: Pieces of x, and of gy, on their way together, at most; rows with zeros around them that are there together.
RAWS, SLABS = 8, 4


@dataclass(frozen=True)
class Span:
    """Windows of `count` blocks along an axis, which begin `step` elements apart, `extent` elements each: those from
    `first` on, of which 0 .. size-1 are there."""

    first: int
    step: int
    count: int
    extent: int
    size: int

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
    """gy (t is -1), or x at a plane of taps, of a tile: first planes of its gang, if any, and how many follow each."""

    t: int
    strides: tuple[int, ...]
    firsts: tuple[int, ...]
    count: int
    apart: int
    rows: Span
    columns: Span

    def pieces(self, itemsize: int) -> list[Part]:
        """(First, how many) rows of windows that are loaded together; one piece: all that is there of planes."""
        low, end = self.columns.loaded
        rows = div_ceil(RUN_BYTES, max(1, end - low) * itemsize)
        return cut_into(self.rows.extent, max(1, (2 * self.rows.extent + rows) // (2 * rows)))

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


def grid_of(geometry: Geometry, rows: int, columns: int) -> tuple[int, list[Part], list[Part]]:
    """(planes, parts of the rows, of the columns) of blocks of a tile: all of a plane, or a part of it."""
    some_columns = cut(div_ceil(geometry.columns.out, columns), P_MAX)
    some_rows = cut(div_ceil(geometry.rows.out, rows), P_MAX // some_columns[-1][1])
    whole = len(some_columns) == 1 and len(some_rows) == 1
    planes = P_MAX // (some_rows[0][1] * some_columns[0][1]) if whole else 1
    return min(planes, geometry.planes.out), some_rows, some_columns


def gang_of(geometry: Geometry, planes: int, channels: int) -> int:
    """Groups of planes on the partitions together, of tiles of so many planes, passes of so many channels."""
    return max(1, min(P_MAX // channels, geometry.planes.out // planes))


def transposed_tiles(
    geometry: Geometry, planes: Sequence[Part], config: BlocksSettings, gang: int, taps: tuple[Part, Part]
) -> tuple[Tile, ...]:
    """Tiles with a Region for each of their gang. planes: see `planes_of`; taps: rows and columns of them."""
    most, some_rows, some_columns = grid_of(geometry, config.rows, config.columns)
    rows = [(p, _run_of(geometry.rows, config.rows, p, taps[0])) for p in some_rows]
    columns = [(q, _run_of(geometry.columns, config.columns, q, taps[1])) for q in some_columns]
    tiles: list[Tile] = []
    for first, total in planes:
        at, end = first, first + total
        while at < end:
            members = min(gang, end - at)
            count = min(most, (end - at) // members)
            firsts = range(at, at + members * count, count)
            for (p, of_rows), (q, of_columns) in product(rows, columns):
                place = p[0] * config.rows, q[0] * config.columns, (count, p[1], q[1])
                tiles.append(tuple(Region(0, of_rows, of_columns, z, *place) for z in firsts))
            at += members * count
    return tuple(tiles)


def _run_of(axis: Axis, extent: int, blocks: Part, taps: Part) -> Run:
    """The Run of blocks (first, how many) of a tile, all together: what any of their windows has of x."""
    span = _span_of(axis, (blocks[0] * extent, extent, blocks[1]), taps)
    low = min(span.extent, max(0, -(span.first + (span.count - 1) * span.step)))
    high = max(low, min(span.extent, span.size - span.first))
    return Run(first=0, count=1, apart=extent, extent=extent, low=low, high=high)


def side_of(geometry: Geometry, config: BlocksSettings, one: Pass, tile: Tile, t: int) -> Side:
    """The Side of a tile of a pass. geometry: of x and gy in memory."""
    region, planes = tile[0], geometry.planes
    found = [(1, member.z) if t < 0 else valid_range(planes, t, member.z, 1)[2:4] for member in tile]
    firsts = tuple(first for count, first in found if count > 0)
    p, q = (region.p, config.rows, region.counts[1]), (region.q, config.columns, region.counts[2])
    if t < 0:
        rows, columns = Span(*p, config.rows, geometry.rows.out), Span(*q, config.columns, geometry.columns.out)
        return Side(t, geometry.y_strides, firsts, region.counts[0], 1, rows, columns)
    rows, columns = _span_of(geometry.rows, p, one.r), _span_of(geometry.columns, q, one.s)
    return Side(t, geometry.x_strides, firsts, region.counts[0], planes.stride, rows, columns)


def _span_of(axis: Axis, blocks: tuple[int, int, int], taps: Part) -> Span:
    """The Span of x of blocks (first output, outputs, how many) at taps (first, how many)."""
    first, step = blocks[0] * axis.stride + taps[0] * axis.dilation - axis.before, blocks[1] * axis.stride
    return Span(first, step, blocks[2], extent_of(axis, blocks[1], taps), axis.size)


def chunks_of(channels: int, gang: int) -> list[Part]:
    """(first, how many) of channels that are transposed together."""
    return [(0, channels)] if gang > 1 else cut(channels, P_MAX)


def buffer_shapes(
    geometry: Geometry, config: BlocksSettings, passes: Sequence[Pass]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]:
    """Shapes that hold each piece (of x, of gy), and each row of windows, of all tiles of passes."""
    raws: list[tuple[int, ...]] = [(1, 1, 1, 1, 1), (1, 1, 1, 1, 1)]
    slab: tuple[int, ...] = (1, 1, 1, 1)
    for one in passes:
        for tile, t in product(one.tiles, (-1, *one.planes)):
            side, which = side_of(geometry, config, one, tile, t), int(t < 0)
            raws[which] = tuple(map(max, raws[which], side.raw_shape(geometry.itemsize)))
            slab = tuple(map(max, slab, side.slab_shape))
    return (raws[0], raws[1]), slab


def transpose_bytes(geometry: Geometry, shapes: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], raws: int) -> int:
    """Bytes a partition that transposes need besides the blocks. shapes: of `buffer_shapes`; raws: pieces of each."""
    (x, y), slab = shapes
    return (raws * (size_of(x[1:]) + size_of(y[1:])) + SLABS * size_of(slab[1:])) * geometry.itemsize


def bank_shape(geometry: Geometry, passes: Sequence[Pass], gang: int) -> tuple[int, int, int, int]:
    """Shape [128, places, blocks of a gang, channels] of transposes in a bank."""
    widths = [chunks_of(max(1, channels), gang)[-1][1] for one in passes for channels in (one.c[0][1], one.k[1])]
    room = whole_words(max(1, *widths), geometry.itemsize)
    return P_MAX, BANK_BYTES // (gang * room * geometry.itemsize), gang, room


def transpose_instructions(geometry: Geometry, config: BlocksSettings, one: Pass, gang: int, places: int) -> int:
    """Instructions of transposing the tiles of a pass, at most. places: of a bank."""
    total = 0
    for tile, t in product(one.tiles, (-1, *one.planes)):
        side, chunks = side_of(geometry, config, one, tile, t), chunks_of(one.k[1] if t < 0 else one.c[0][1], gang)
        rows, columns = side.rows.extent, side.columns.extent
        # rows of windows: edges and a copy of each, its transposes, and their way out
        each = len(side.pieces(geometry.itemsize)) * len(tile) * (side.rows.count + 1)
        total += len(chunks) * (each + rows * (6 + columns + div_ceil(columns, places) * len(tile)))
    return total
