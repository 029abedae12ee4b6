"""Tiles of units whose channels come on the partitions, as they lie in NCHW, and are turned on the array.

What is at one place of the windows of all units of a tile is a strided view of planes [c, pixels], and its transpose
[units, c] what a tile of units has there: a transpose for each place of a window and 128 channels. Of fewer channels
several blocks of other planes lie on the partitions together (a gang), and below each other in a unit. A tile's units
are those of some planes, rows and columns of blocks, with their whole windows: zeros are put in before (`turns`).
"""

from dataclasses import dataclass, replace

from ..._nki import nl
from ...schedules.geometry import met
from ...schedules.tiles import BANK_BYTES, cut, cut_into, div_ceil, size_of, whole_words
from .lines import dense_pixels
from .units import Box, Run, extent_of

#: Bytes of neighbouring rows that a DMA takes at once, about.
RUN_BYTES = 384
#: Pieces of x, and of gy, on their way together, at most; rows with zeros around them that are there together.
RAWS, SLABS = 8, 4


@dataclass
class Span(nl.NKIObject):
    """Windows of `count` blocks along an axis, which begin `step` elements apart, `extent` elements each: those from
    `first` on, of which 0 .. size-1 are there."""

    first: int
    step: int
    count: int
    extent: int
    size: int


@dataclass
class Side(nl.NKIObject):
    """gy (t is -1), or x at a plane of taps, of a tile: first planes of its gang, if any, and how many follow each."""

    t: int
    strides: tuple
    firsts: list
    count: int
    apart: int
    rows: Span
    columns: Span


def turned_of(geometry):
    """The Geometry of blocks that were turned: their channels lie side by side."""
    return replace(
        geometry,
        x_strides=dense_pixels(geometry.C, geometry.rows.size, geometry.columns.size),
        y_strides=dense_pixels(geometry.K, geometry.rows.out, geometry.columns.out),
    )


def grid_of(geometry, rows, columns):
    """(planes, parts of the rows, of the columns) of blocks of a tile: all of a plane, or a part of it."""
    P_MAX = nl.tile_size.pmax
    some_columns = cut(div_ceil(geometry.columns.out, columns), P_MAX)
    some_rows = cut(div_ceil(geometry.rows.out, rows), P_MAX // some_columns[-1][1])
    whole = len(some_columns) == 1 and len(some_rows) == 1
    planes = P_MAX // (some_rows[0][1] * some_columns[0][1]) if whole else 1
    return min(planes, geometry.planes.out), some_rows, some_columns


def gang_of(geometry, planes, channels):
    """Blocks of other planes on the partitions together, of tiles of so many planes, passes of so many channels."""
    return max(1, min(nl.tile_size.pmax // channels, geometry.planes.out // planes))


def turned_tiles(geometry, planes, config, gang, taps):
    """Boxes of each tile, of each of its gang one. planes: Runs; taps: rows and columns of them."""
    most, some_rows, some_columns = grid_of(geometry, config.rows, config.columns)
    tiles = []
    for one in planes:
        at = 0
        while at < one.count:
            members = min(gang, one.count - at)
            count = min(most, (one.count - at) // members)
            for p in some_rows:
                rows = run_of(geometry.rows, config.rows, p, taps[0])
                for q in some_columns:
                    columns, boxes = run_of(geometry.columns, config.columns, q, taps[1]), []
                    counts = count, p[1], q[1]
                    for member in range(members):
                        z, h, w = one.first + at + member * count, p[0] * config.rows, q[0] * config.columns
                        boxes.append(Box(part=0, planes=one, rows=rows, columns=columns, z=z, p=h, q=w, counts=counts))
                    tiles.append(boxes)
            at += members * count
    return tiles


def run_of(axis, extent, blocks, taps):
    """The Run of blocks (first, how many) of a tile, all together: what any of their windows has of x."""
    span = span_of(axis, (blocks[0] * extent, extent, blocks[1]), taps)
    low = min(span.extent, max(0, -(span.first + (span.count - 1) * span.step)))
    high = max(low, min(span.extent, span.size - span.first))
    return Run(first=0, count=1, apart=extent, extent=extent, low=low, high=high)


def side_of(geometry, plan, one, tile, t):
    """The Side of a tile of a Pass. geometry: of x and gy as they lie."""
    box, firsts = tile[0], []
    for member in tile:
        plane = (0, 1, 1, member.z) if t < 0 else met(geometry.planes, t, member.z, 1)
        if plane[2] > 0:
            firsts.append(plane[3])
    p, q = (box.p, plan.settings.rows, box.counts[1]), (box.q, plan.settings.columns, box.counts[2])
    strides, apart, count = geometry.x_strides, geometry.planes.stride, box.counts[0]
    rows, columns = span_of(geometry.rows, p, one.r), span_of(geometry.columns, q, one.s)
    if t < 0:
        strides, apart = geometry.y_strides, 1
        rows, columns = span_of_gy(geometry.rows, p), span_of_gy(geometry.columns, q)
    return Side(t=t, strides=strides, firsts=firsts, count=count, apart=apart, rows=rows, columns=columns)


def span_of_gy(axis, blocks):
    """The Span of gy along an axis. blocks: (first output, outputs, how many)."""
    return Span(first=blocks[0], step=blocks[1], count=blocks[2], extent=blocks[1], size=axis.out)


def span_of(axis, blocks, taps):
    """The same of x, at taps (first, how many)."""
    first, step, count = blocks[0] * axis.stride, blocks[1] * axis.stride, blocks[2]
    first, extent = first + taps[0] * axis.dilation - axis.before, extent_of(axis, blocks[1], taps)
    return Span(first=first, step=step, count=count, extent=extent, size=axis.size)


def chunks_of(channels, gang):
    """(first, how many) of channels that are turned together."""
    return [(0, channels)] if gang > 1 else cut(channels, nl.tile_size.pmax)


def inside(span):
    """(first, end) of what is there of all windows of a Span."""
    low = min(max(0, span.first), span.size)
    return low, max(low, min(span.size, span.first + (span.count - 1) * span.step + span.extent))


def columns_inside(span):
    """Columns (first, end) that are loaded: whole rows if it is most of them, for those are neighbours."""
    low, end = inside(span)
    return (0, span.size) if 2 * (end - low) > span.size else (low, end)


def pieces_of_rows(side, itemsize):
    """(first, how many) rows of windows that are loaded together; one piece: all that is there of planes."""
    low, end = columns_inside(side.columns)
    rows = div_ceil(RUN_BYTES, max(1, end - low) * itemsize)
    return cut_into(side.rows.extent, max(1, (2 * side.rows.extent + rows) // (2 * rows)))


def raw_shape(side, itemsize):
    """Shape [128, planes, blocks, rows, columns] of a piece as it comes."""
    pieces, columns, rows = pieces_of_rows(side, itemsize), columns_inside(side.columns), inside(side.rows)
    width = max(1, columns[1] - columns[0])
    if len(pieces) > 1:
        return nl.tile_size.pmax, side.count, side.rows.count, pieces[-1][1], width
    return nl.tile_size.pmax, side.count, 1, max(1, rows[1] - rows[0]), width


def slab_shape(side):
    """Shape [128, planes, blocks, columns] of a row of windows with zeros around it."""
    span = side.columns
    return nl.tile_size.pmax, side.count, side.rows.count, (span.count - 1) * span.step + span.extent


def turned_shapes(geometry, plan, passes):
    """Shapes that hold each piece of x, of gy, and each row of windows, of all tiles of Passes."""
    raws, slab = [(1, 1, 1, 1, 1), (1, 1, 1, 1, 1)], (1, 1, 1, 1)
    for one in passes:
        for tile in one.tiles:
            for t in [-1] + one.planes:
                side = side_of(geometry, plan, one, tile, t)
                which = 1 if t < 0 else 0
                raws[which] = widest(raws[which], raw_shape(side, geometry.itemsize))
                slab = widest(slab, slab_shape(side))
    return raws, slab


def widest(one, other):
    """A shape that holds two."""
    found = ()
    for axis in range(len(one)):
        found = found + (max(one[axis], other[axis]),)
    return found


def turned_bytes(geometry, plan):
    """Bytes a partition that turning needs beside the blocks."""
    raws, slab = turned_shapes(geometry, plan, plan.passes)
    pieces = size_of(raws[0][1:]) + size_of(raws[1][1:])
    return (plan.raws * pieces + SLABS * size_of(slab[1:])) * geometry.itemsize


def bank_shape(geometry, plan):
    """Shape [128, places, blocks of a gang, channels] of transposes in a bank."""
    most = 1
    for one in plan.passes:
        for channels in (one.c[0][1], one.k[1]):
            most = max(most, chunks_of(max(1, channels), plan.gang)[-1][1])
    room = whole_words(most, geometry.itemsize)
    return nl.tile_size.pmax, BANK_BYTES // (plan.gang * room * geometry.itemsize), plan.gang, room


def turned_instructions(geometry, plan, one):
    """Instructions of turning the tiles of a Pass, at most."""
    total, places = 0, bank_shape(geometry, plan)[1]
    for tile in one.tiles:
        for t in [-1] + one.planes:
            side, gang = side_of(geometry, plan, one, tile, t), len(tile)
            chunks = chunks_of(one.k[1] if t < 0 else one.c[0][1], plan.gang)
            rows, columns = side.rows.extent, side.columns.extent
            pieces = len(pieces_of_rows(side, geometry.itemsize))
            banks = div_ceil(columns, places)
            # rows of windows: edges and a copy of each, its transposes, and their way out
            each = pieces * gang * (side.rows.count + 1) + rows * (6 + columns + banks * gang)
            total += len(chunks) * each
    return total
