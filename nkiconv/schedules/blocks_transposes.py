"""Tiles of units of NCHW: x and gy are loaded with channels on the partitions, and the Tensor Engine transposes them.

One place of the windows of all units of a tile is a strided view of planes [c, pixels]; its transpose [units, c] is
that place of the tile of units: a transpose for each place of a window and 128 channels. With fewer channels the
partitions hold several members, which are below each other in a unit: a tile's gang. Members are groups of planes, or
parts of their rows and columns, as many of x and of gy as their channels leave room for. A member's units are of some
planes, rows and columns of blocks, with whole windows: zeros are inserted before the transpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import numpy as np

from .blocks import TRANSPOSED, BlocksSettings, Pass, Region, Run, Tile, planes_of
from .cuts import most_of, window_of
from .geometry import Axis, Geometry, valid_range
from .tables import ceil
from .tiles import P_MAX, Part, cut, cut_at, cut_into, div_ceil, size_of, some_of

#: About the bytes of neighbouring rows in a DMA.
RUN_BYTES = 384
#: The most loaded pieces of x, and of gy, at once, and the fewest with a gang at several places; buffers of rows with
#: zeros around them.
RAWS, RAWS_LEAST, SLABS = 8, 3, 4
#: A single tap.
ONE = (0, 1)
#: Matmul columns that transposes of x and gy run ahead; those that transposes of later tiles run ahead bank by bank,
#: and columns of matmuls between banks: chosen by modelled times.
AHEAD, FAR, PACE = 2048, 12_288, 512
#: Columns of transposes of several rows of windows that one instruction evacuates: over 177 filter gradients 384 take
#: 0.998 of the time of one row, 0.84 at best and 1.02 at worst (modelled); 512 take 1.07 at worst.
TOGETHER = 384


@dataclass(frozen=True)
class Span:
    """Windows of `count` blocks along an axis, `step` elements apart, of `extent` elements each; taps see every
    `spacing`-th. Elements 0 .. size-1 exist. frame: (first, end) of the elements in SBUF, from the first window's first
    element on."""

    step: int
    count: int
    extent: int
    size: int
    spacing: int
    frame: Part

    @property
    def width(self) -> int:
        """Elements from the first window's first to the last window's last."""
        return (self.count - 1) * self.step + self.extent


def inside(frame: Part, first: int, size: int) -> Part:
    """(first, end) of the elements of a frame that exist, if it is counted from element `first` of `size`."""
    low = min(max(frame[0], -first), frame[1])
    return low, max(low, min(frame[1], size - first))


#: `size` (rows, columns) of the windows of a member, or of some of its blocks (first, count), that exist: (member,
#: blocks, (plane, row, column) of the first, (row, column) in a piece, size).
Load = tuple[int, Part, tuple[int, int, int], Part, Part]


@dataclass(frozen=True)
class Side:
    """gy (t is -1), or x at a plane of taps, of members (first, count) of a tile's gang and channels (first, count).

    first: the tile's first channel; corners: (plane, row, column) of the first element of each member's windows, if its
    plane exists; count, apart: planes of a member and their distance; rows, columns: the Spans of all members."""

    t: int
    strides: tuple[int, ...]
    members: Part
    channels: Part
    first: int
    corners: tuple[tuple[int, int, int], ...]
    count: int
    apart: int
    rows: Span
    columns: Span

    @property
    def is_apart(self) -> bool:
        """Whether its members are at different rows or columns, not only in different planes."""
        return len({corner[1:] for corner in self.corners}) > 1

    @property
    def places(self) -> int:
        """Places of a row of windows that taps see, a transpose each."""
        return div_ceil(self.columns.extent, self.columns.spacing)

    @property
    def units(self) -> int:
        """Partitions of a tile with its units."""
        return self.count * self.rows.count * self.columns.count

    def meets(self, member: int, channels: Part) -> bool:
        """Whether it has a member and some of channels (first, count)."""
        (first, count), (c, each) = self.members, self.channels
        return first <= member < first + count and c < sum(channels) and channels[0] < c + each

    def pieces(self, itemsize: int) -> list[Part]:
        """(first, count) of the rows of windows of each load; a single piece, as of members at different places, is all
        rows of planes."""
        (low, end), height = self.columns.frame, self.rows.extent
        rows = div_ceil(RUN_BYTES, max(1, (end - low) * itemsize))
        return cut_into(height, 1 if self.is_apart else max(1, (2 * height + rows) // (2 * rows)))

    def piece_shape(self, count: int) -> tuple[int, int, int, int]:
        """The shape [planes, blocks, rows, columns] of a piece of `count` rows of windows."""
        (top, bottom), (left, right) = self.rows.frame, self.columns.frame
        blocks, rows = (1, bottom - top) if count == self.rows.extent else (self.rows.count, count)
        return self.count, blocks, max(1, rows), max(1, right - left)

    @property
    def slab_shape(self) -> tuple[int, int, int]:
        """The shape [planes, blocks, columns] of a row of windows with zeros around it."""
        return self.count, self.rows.count, self.columns.width

    def loads(self, rows: Part) -> list[Load]:
        """The Loads of a piece of rows (first, count) of windows; of members at different places empty ones too."""
        found, base = list[Load](), self.rows.frame[0] if rows[1] == self.rows.extent else rows[0]
        for member, (plane, h, w) in enumerate(self.corners):
            left, right = inside(self.columns.frame, w, self.columns.size)
            for blocks, top, bottom in self._rows_of(h, rows):
                if (top < bottom and left < right) or self.is_apart:
                    place = plane, h + blocks[0] * self.rows.step + top, w + left
                    into = top - base, left - self.columns.frame[0]
                    found.append((member, blocks, place, into, (bottom - top, right - left)))
        return found

    def _rows_of(self, h: int, rows: Part) -> list[tuple[Part, int, int]]:
        """((first, count) of blocks, first row, end) of the rows of a piece that exist for blocks together."""
        (first, count), span = rows, self.rows
        if count == span.extent:
            return [((0, 1), *inside(span.frame, h, span.size))]
        starts = [h + block * span.step for block in range(span.count)]
        ends = [(max(first, -start), min(first + count, span.size - start)) for start in starts]
        alike = [list(some) for _, some in groupby(range(span.count), key=ends.__getitem__)]
        alike.sort(key=len, reverse=True)
        return [((some[0], len(some)), *ends[some[0]]) for some in alike]


@dataclass(frozen=True)
class Transposes:
    """Buffers of transposes on the Tensor Engine: the most members of a gang; loaded pieces of x, and of gy; banks of
    PSUM; elements a partition of a piece of x, of gy, of a row with zeros, and of zeros beside members at different
    places."""

    gang: int
    raws: int
    banks: int
    sizes: tuple[int, ...]


def member_of(geometry: Geometry, rows: Any, columns: Any) -> tuple[Any, Any, Any, Any]:
    """(planes, blocks along rows, blocks along columns) of a member, which has whole planes or a part of one, and the
    members of a plane. rows, columns: of a block, numbers or columns of a table."""
    down, across = ceil(geometry.rows.out, rows), ceil(geometry.columns.out, columns)
    wide = ceil(across, ceil(across, P_MAX))
    high = ceil(down, ceil(down, P_MAX // wide))
    places = ceil(across, wide) * ceil(down, high)
    planes = np.minimum(P_MAX // (high * wide), geometry.planes.out)
    return np.where(places == 1, planes, 1), high, wide, places


def gang_of(geometry: Geometry, pixels: int, member: tuple[Any, ...], channels: Any, parts: Any, room: Any) -> Any:
    """Members of a tile's gang: as many as channels of x leave room for, as its windows have more places than gy's
    blocks, up to `room`; 1 if tiles then share more planes of x. member: of `member_of`; parts: that share the
    members."""
    (most, _, _, places), fits, planes = member, np.maximum(1, P_MAX // channels), geometry.planes
    members = np.maximum(1, np.maximum(1, most_of(planes_of(planes)) // most) * places // parts)
    gang = np.maximum(1, np.minimum(room, ceil(members, ceil(members, fits))))
    # taps that see a transposed plane of x one after the other, without other planes of gy between
    in_turn = planes.taps if pixels == TRANSPOSED and planes.stride == planes.dilation == 1 else 1
    return np.where((most == 1) & (fits < in_turn), 1, gang)


def transposed_tiles(
    geometry: Geometry, planes: Sequence[Part], config: BlocksSettings, gang: int, taps: tuple[Part, Part]
) -> tuple[Tile, ...]:
    """Tiles with a Region for each member of their gang: of a run of planes, and of several places if no run has
    enough. planes: of `planes_of`; taps: their rows and columns."""
    most, high, wide, _ = map(int, member_of(geometry, config.rows, config.columns))
    down, across = div_ceil(geometry.rows.out, config.rows), div_ceil(geometry.columns.out, config.columns)
    rows = [(p, _run_of(geometry.rows, config.rows, p, taps[0])) for p in cut_at(down, high)]
    columns = [(q, _run_of(geometry.columns, config.columns, q, taps[1])) for q in cut_at(across, wide)]
    places, tiles = list(product(rows, columns)), list[Tile]()
    parts = cut(len(places), max(1, gang // most_of(planes)))
    for first, total in planes:
        at = 0
        while at < total:
            members = min(gang, total - at)
            count = min(most, (total - at) // members)
            for own in (some_of(places, part) for part in parts):
                # members have equal sizes: missing blocks of the last one are zeros
                counts = count, max(p[1] for (p, _), _ in own), max(q[1] for _, (q, _) in own)
                tiles.append(
                    tuple(
                        Region(0, of_rows, of_columns, z, p[0] * config.rows, q[0] * config.columns, counts)
                        for (p, of_rows), (q, of_columns) in own
                        for z in range(first + at, first + at + members * count, count)
                    )
                )
            at += members * count
    if geometry.planes.taps > 1 and gang == 1:  # neighbouring planes share planes of x
        tiles.sort(key=lambda tile: (tile[0].p, tile[0].q, tile[0].z))
    return tuple(tiles)


def _run_of(axis: Axis, extent: int, blocks: Part, taps: Part) -> Run:
    """One Run for all blocks (first, count) of a tile: the part inside x of any of their windows."""
    first, step, window = _windows_of(axis, (blocks[0] * extent, extent), taps)
    low = min(window, max(0, -(first + (blocks[1] - 1) * step)))
    return Run(0, 1, extent, extent, low, max(low, min(window, axis.size - first)))


def _windows_of(axis: Axis, block: Part, taps: Part) -> tuple[int, int, int]:
    """(first element, elements to the next, elements) of the window of a block (first output, outputs) at taps."""
    first = block[0] * axis.stride + taps[0] * axis.dilation - axis.before
    return first, block[1] * axis.stride, window_of(axis, block[1], taps[1])


def side_of(
    geometry: Geometry, config: BlocksSettings, one: Pass, tile: Tile, t: int, chunk: tuple[Part, Part]
) -> Side:
    """The Side of a chunk (members, channels) of a tile of a pass. geometry: of x and gy in memory."""
    own, spans, places = some_of(tile, chunk[0]), [], []
    seen, first, r, s = (geometry, one.c[0][0], one.r, one.s) if t >= 0 else (gy_as_x(geometry), one.k[0], ONE, ONE)
    # passes with fewer columns packed than others share their tiles
    by_axis = (seen.rows, config.rows, r, 1, 1), (seen.columns, config.columns, s, 2, config.beside)
    for axis, extent, taps, at, many in by_axis:
        found = [_windows_of(axis, (region.p if at == 1 else region.q, extent), taps) for region in own]
        firsts, (_, step, window), count = [place for place, *_ in found], found[0], own[0].counts[at]
        frame = 0, (count - 1) * step + window
        if len(set(firsts)) == 1:
            frame = inside(frame, firsts[0], axis.size)
            if at == 2 and 2 * (frame[1] - frame[0]) > axis.size:  # whole rows are runs
                frame = -firsts[0], axis.size - firsts[0]
        spans.append(Span(step, count, window, axis.size, int(spacing_of(axis, extent, taps[1], many)), frame))
        places.append(firsts)
    planes = [plane_seen(geometry, t, member.z) for member in own]
    corners = tuple((plane, *place) for plane, *place in zip(planes, *places, strict=True) if plane is not None)
    members, (c, count) = chunk
    channels, planes_apart = (first + c, count), seen.planes.stride
    return Side(t, seen.x_strides, members, channels, first, corners, own[0].counts[0], planes_apart, *spans)


def spacing_of(axis: Axis, extent: Any, taps: int, beside: Any = 1) -> Any:
    """The distance of elements of a window of `extent` outputs that matmuls read: those that some of neighbouring taps
    see, and those between the taps of `beside` outputs that share a matmul. Both are numbers or columns of a table."""
    apart = np.where(np.multiply(taps, beside) == 1, axis.stride, math.gcd(axis.stride, axis.dilation))
    return np.where(extent == 1, axis.dilation, apart)


def gy_as_x(geometry: Geometry) -> Geometry:
    """The Geometry in which gy is an x that one tap reads."""
    planes, rows, columns = (Axis(size=axis.out, taps=1, out=axis.out) for axis in geometry.axes)
    return replace(geometry, C=geometry.K, planes=planes, rows=rows, columns=columns, x_strides=geometry.y_strides)


def plane_seen(geometry: Geometry, t: int, z: int) -> int | None:
    """The plane of x that a plane of gy sees at a plane of taps, or None; for t -1 that of gy."""
    found = valid_range(geometry.planes, t, z, 1)
    return z if t < 0 else found[3] if found[2] > 0 else None


def sides_of(geometry: Geometry, config: BlocksSettings, one: Pass, tile: Tile, t: int) -> list[Side]:
    """The Sides of all chunks of a tile of a pass."""
    channels = max(1, one.k[1] if t < 0 else one.c[0][1])
    chunks = product(cut(len(tile), max(1, P_MAX // channels)), cut(channels, P_MAX))
    return [side_of(geometry, config, one, tile, t, chunk) for chunk in chunks]


def piece_sizes(geometry: Geometry, config: BlocksSettings, passes: Sequence[Pass]) -> tuple[int, ...]:
    """Elements a partition that hold each piece, of x and of gy, each row of windows, and zeros of each row, of all
    tiles of passes."""
    found = [1, 1, 1, 0]
    for one in passes:
        # tiles that differ in their planes alone have pieces of the same sizes
        kinds = {
            (t < 0, *((own.p, own.q, own.counts, plane_seen(geometry, t, own.z) is None) for own in tile)): (tile, t)
            for tile, t in product(one.tiles, (-1, *(one.planes if config.pixels == TRANSPOSED else ())))
        }
        for tile, t in kinds.values():
            for side in sides_of(geometry, config, one, tile, t):
                piece = side.piece_shape(most_of(side.pieces(geometry.itemsize)))
                zeros = piece[3] if side.is_apart else 0
                for at, size in ((int(t < 0), size_of(piece)), (2, size_of(side.slab_shape)), (3, zeros)):
                    found[at] = max(found[at], size)
    return tuple(found)
