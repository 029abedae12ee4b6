"""Which blocks of gy lie on which partitions: 128 of them are a tile, for which x comes with what is around a block.

A unit is `rows` neighbouring rows of a plane of gy and `columns` columns. Units whose windows are inside x alike have
neighbouring partitions, so that a DMA loads many of them; the last units of an axis may have fewer rows or columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from .cuts import window_of
from .geometry import Axis, Geometry, valid_range
from .tiles import Part, div_ceil, size_of


@dataclass(frozen=True)
class Run:
    """Blocks first .. first+count-1 of an axis, `extent` outputs each, which begin `apart` outputs apart; of their
    windows of x, spread by lhs_dilation, elements low .. high-1 are inside x, the first and the last of them x's."""

    first: int
    count: int
    apart: int
    extent: int
    low: int
    high: int


@dataclass(frozen=True)
class Region:
    """Units on partitions from `part` on: so many planes, rows, columns of blocks (counts) of Runs, from z, p, q on."""

    part: int
    rows: Run
    columns: Run
    z: int
    p: int
    q: int
    counts: tuple[int, int, int]


#: The Regions of a tile.
Tile = tuple[Region, ...]


def runs_of(axis: Axis, extent: int, taps: Part) -> tuple[Run, ...]:
    """Runs of an axis in blocks of `extent` outputs. taps: (first, how many) that their windows are of."""
    out, spread = axis.out // axis.images, axis.lhs_dilation
    window, end = extent_of(axis, extent, taps), (axis.size // axis.images - 1) * spread + 1
    found: list[Run] = []
    for block in range(div_ceil(out, extent)):
        start = block * extent * axis.stride + taps[0] * axis.dilation - axis.before
        low = min(window, div_ceil(max(0, start), spread) * spread - start)
        high = div_ceil(max(0, min(start + window, end)), spread) * spread - spread + 1 - start
        there = low, max(low, min(window, high))
        found.append(Run(block, 1, extent, min(extent, out - block * extent), *there))
    return joined(found)


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs of which neighbours that are alike are one."""
    found: list[Run] = []
    for one in runs:
        last = found[-1] if found else None
        if last and (last.extent, last.low, last.high) == (one.extent, one.low, one.high):
            found[-1] = replace(last, count=last.count + one.count)
        else:
            found.append(one)
    return tuple(found)


def planes_of(axis: Axis) -> tuple[Part, ...]:
    """(first, how many) planes of outputs of a volume that see planes of x at the same taps, of all volumes."""
    out, before = axis.out // axis.images, tuple[bool, ...]()
    found: list[Part] = []
    for z in range(axis.out):
        seen = tuple(valid_range(axis, tap, z, 1)[2] > 0 for tap in range(axis.taps))
        if z % out > 0 and seen == before:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((z, 1))
        before = seen
    return tuple(found)


def units_in(geometry: Geometry, rows: int, columns: int) -> int:
    """Blocks of so many rows and columns."""
    return geometry.planes.out * div_ceil(geometry.rows.out, rows) * div_ceil(geometry.columns.out, columns)


def tiles_of_units(
    planes: Sequence[Part], rows: Sequence[Run], columns: Sequence[Run], most: int, end_at: int = 0
) -> tuple[Tile, ...]:
    """Tiles of up to `most` units of these Runs. end_at: after so many units a tile ends too."""
    tiles: list[Tile] = []
    regions: list[Region] = []
    part, done = 0, 0
    for (plane, count), row, column in product(planes, rows, columns):
        shape, at = (count, row.count, column.count), 0
        while at < size_of(shape):
            room = min(size_of(shape) - at, most - part)
            counts = most_at(shape, at, min(room, end_at - done) if done < end_at else room)
            z, rest = divmod(at, shape[1] * shape[2])
            p, q = divmod(rest, shape[2])
            place = plane + z, (row.first + p) * row.apart, (column.first + q) * column.apart
            regions.append(Region(part, row, column, *place, counts))
            size = size_of(counts)
            at, part, done = at + size, part + size, done + size
            if part == most or done == end_at:
                tiles.append(tuple(regions))
                regions, part = [], 0
    return (*tiles, tuple(regions)) if regions else tuple(tiles)


def most_at(shape: tuple[int, int, int], at: int, most: int) -> tuple[int, int, int]:
    """(planes, rows, columns) of the most units from number `at` on, up to so many, evenly spaced on two axes."""
    planes, rows, columns = shape
    if columns > 1 and (at % columns > 0 or most < columns):
        return 1, 1, min(columns - at % columns, most)
    lines = min(rows - at // columns % rows, most // columns)
    if at // columns % rows > 0 or lines < rows or (columns > 1 and rows > 1):
        return 1, lines, columns
    return min(planes - at // (columns * rows), most // (columns * rows)), rows, columns


def units_of(tile: Tile) -> int:
    """Units of a tile."""
    return tile[-1].part + size_of(tile[-1].counts)


def extent_of(axis: Axis, extent: int, taps: Part) -> int:
    """Elements of x in a window of so many outputs at taps (first, how many)."""
    return window_of(axis, extent) - (axis.taps - taps[1]) * axis.dilation


def taps_seen(first: int, count: int, step: int, there: Part) -> Part:
    """(first, end) of so many taps, `step` elements apart from element `first` on, that meet those `there`."""
    low = min(count, div_ceil(max(0, there[0] - first), step))
    return low, max(low, min(count, div_ceil(max(0, there[1] - first), step)))


def first_seen(axis: Axis, taps: int, outputs: int, there: Part) -> int:
    """The first of so many outputs of a block at which most taps meet those elements of its window (first, end)."""

    def seen(index: int) -> int:
        low, high = taps_seen(index * axis.stride, taps, axis.dilation, there)
        return high - low

    return max(range(outputs), key=seen)
