"""Loads of x and gy of a tile of units into SBUF: the part of a unit's window in x, with zeros around it.

Tiles are [units, rows, columns, channels]; in memory channels precede rows and columns if they do in HBM.
"""

from dataclasses import dataclass
from itertools import product

from ..._nki import nisa, nl
from ...schedules.cuts import window_of
from ...schedules.geometry import valid_range
from ...schedules.tiles import div_ceil, size_of
from .._dma import copy
from .._engines import new_ledger, pick_memset
from ..conv.regions import around, offset_at


@dataclass
class Piece(nl.NKIObject):
    """Extents of a tile of units. rows, columns: of gy of a unit; k, c, r, s: (first, count) of channels of gy and of
    x, and of rows and columns of taps; h, w: (first, count) of rows and columns of a unit's window of x; part:
    partition of the first unit."""

    rows: int
    columns: int
    k: tuple
    c: tuple
    r: tuple
    s: tuple
    h: tuple
    w: tuple
    part: int = 0


def is_channels_last(strides):
    """Whether channels are neighbours in memory."""
    return strides[0] == 1


def tile_of(last, sizes, dtype, buffer=nl.sbuf):
    """A new tile [units, rows, columns, channels] of `sizes`; last: whether channels are neighbours in memory."""
    return with_last(nl.ndarray(sizes_stored(last, sizes), dtype=dtype, buffer=buffer), last)


def sizes_stored(last, sizes):
    """Sizes (units, rows, columns, channels) in memory order."""
    units, rows, columns, channels = sizes
    return sizes if last else (units, channels, rows, columns)


def with_last(tile, last):
    """The view [units, rows, columns, channels] of a tile in memory order."""
    return tile if last else tile.permute((0, 2, 3, 1))


def as_stored(part, last):
    """The view in memory order of a tile [units, rows, columns, channels]."""
    return part if last else part.permute((0, 3, 1, 2))


def clear_tile(geometry, piece, tile, blocks, planes, beside=True, holds=False):
    """Write zeros to rows that some unit lacks of x at planes of taps, or of gy for plane -1; with `beside` also to
    columns. holds: as in `clear_sides`."""
    is_spread = geometry.rows.lhs_dilation * geometry.columns.lhs_dilation > 1
    rows = shared([(region.rows.low, region.rows.high) for region in tile], piece.h)
    columns = shared([(region.columns.low, region.columns.high) for region in tile], piece.w)
    for t in (t for t in planes if t >= 0):
        lacks = is_spread or any(valid_range(geometry.planes, t, region.z, 1)[2] == 0 for region in tile)
        there = (0, 0) if lacks else rows, columns if beside else (0, piece.w[1])
        clear_sides(blocks.x[t][:, 0 : piece.h[1], 0 : piece.w[1]], is_channels_last(geometry.x_strides), *there, holds)
    if -1 in planes:
        rows = min(piece.rows, *(region.rows.extent for region in tile))
        count = min(piece.columns, *(region.columns.extent for region in tile)) if beside else piece.columns
        whole = blocks.y[:, 0 : piece.rows, 0 : piece.columns]
        clear_sides(whole, is_channels_last(geometry.y_strides), (0, rows), (0, count), holds)


def shared(spans, part):
    """(first, end) of the places of a part (first, count) that are in all spans (first, end), counted from the part's
    first."""
    low = max(0, *(min(first - part[0], part[1]) for first, _ in spans))
    return low, max(low, min(part[1], *(end - part[0] for _, end in spans)))


def clear_sides(tile, last, rows, columns, holds=False):
    """Write zeros to a tile of units outside of the rows and columns (first, end) that all units load. holds: whether
    these loads must follow loads that wait for zeros."""
    ledger, (_, height, width, channels) = new_ledger(), tile.shape
    in_pairs = last and channels % 2 == 0 and tile.dtype != nl.float32
    # strips beside rows first, as loads wait for them
    strips = around(height, width, (*rows, *columns))
    for h0, h1, w0, w1 in sorted(strips, key=lambda strip: strip[3] - strip[2] == width):
        part = as_stored(tile[:, h0:h1, w0:w1], last)
        part = part.view(nl.float32) if in_pairs else part
        nisa.memset(dst=part, value=0.0, engine=pick_memset(ledger, size_of(part.shape[1:])))
    if holds and rows[0] < rows[1] and columns[0] < columns[1]:
        first = as_stored(tile[:, rows[0] : rows[1], columns[0] : columns[0] + 1, 0:1], last)
        for engine in (nisa.engine.vector, nisa.engine.gpsimd):
            nisa.memset(dst=first, value=0.0, engine=engine)


def load_tile(work, pieces, tile, blocks, planes, rows, there=0):
    """Load x at planes of taps, or gy for plane -1, of a tile's units: `rows` rows of gy at a time and the rows of
    windows that they need, from row `there` on."""
    bottom, axis = sum(pieces[0].h), work.geometry.rows
    for row in range(0, pieces[0].rows, rows):
        needed = row * axis.stride + window_of(axis, rows, pieces[0].r[1])
        needed = bottom if row + rows == pieces[0].rows else min(bottom, max(there, needed))
        for piece, t in product(pieces, planes):
            if t < 0:
                load_y(work, piece, tile, blocks.y, (row, row + rows))
            else:
                load_x(work, piece, tile, blocks.x[t], t, (there, needed))
        there = needed


def load_y(work, piece, tile, y_sbuf, rows):
    """Load rows (first, end) of gy of a tile's units."""
    strides, loads = work.geometry.y_strides, []
    for region in tile:
        end = min(rows[1], region.rows.extent)
        if rows[0] < end:
            first = piece.k[0], region.z, region.p + rows[0], region.q
            own = slice(rows[0], end), slice(0, region.columns.extent), slice(0, piece.k[1])
            loads.append(load_of(strides, piece, region, first, own))
    load_units(work.operands.w, strides, y_sbuf, loads)


def load_x(work, piece, tile, x_sbuf, t, window):
    """Load rows (first, end) of the windows of x of a tile's units at a plane of taps."""
    planes, rows, columns = work.geometry.planes, work.geometry.rows, work.geometry.columns
    spread, steps = ([getattr(axis, name) for axis in (planes, rows, columns)] for name in ("lhs_dilation", "stride"))
    strides, loads = work.geometry.x_strides, []
    for region in tile:
        plane = valid_range(planes, t, region.z, 1)
        low = region.rows.low + div_ceil(max(0, window[0] - region.rows.low), spread[1]) * spread[1]
        high, left, right = min(window[1], region.rows.high), region.columns.low, region.columns.high
        if plane[2] > 0 and low < high and left < right:
            h = (region.p * rows.stride + piece.r[0] * rows.dilation - rows.before + low) // spread[1]
            w = (region.q * columns.stride + piece.s[0] * columns.dilation - columns.before + left) // spread[2]
            into_rows = slice(low - piece.h[0], high - piece.h[0], spread[1])
            into_columns = slice(left - piece.w[0], right - piece.w[0], spread[2])
            own, first = (into_rows, into_columns, slice(0, piece.c[1])), (piece.c[0], plane[3], h, w)
            loads.append(load_of(strides, piece, region, first, own, steps, spread))
    load_units(work.operands.x, strides, x_sbuf, loads)


def load_of(strides, piece, region, first, own, steps=(1, 1, 1), spread=(1, 1, 1)):
    """(first partition, pattern of units, offset in HBM, part of a unit) of the units of a Region. first: channel,
    plane, row and column of the first unit; steps, spread: stride and lhs_dilation of each axis."""
    apart, units = (1, region.rows.apart, region.columns.apart), []
    for one, far, step, by, count in zip(strides[1:4], apart, steps, spread, region.counts):
        by_unit = one * (far * step // by)
        if count > 1 and units and units[-1][0] == by_unit * count:
            units[-1] = [by_unit, units[-1][1] * count]
        elif count > 1:
            units.append([by_unit, count])
    return piece.part + region.part, units, offset_at(strides, first), own


def load_units(hbm, strides, tile_sbuf, loads):
    """Load parts of units, each a `load_of`, into a tile; neighbours evenly apart in HBM by one DMA."""
    last, joined = is_channels_last(strides), []
    for load in loads:
        both = joined_loads(joined[-1], load) if joined else None
        joined[-1:] = joined[-1:] + [load] if both == None else [both]
    for part, units, offset, own in joined:
        into = tile_sbuf[(slice(part, part + units_in(units)), *own)]
        rows, columns, channels = ([strides[axis], count] for axis, count in zip((2, 3, 0), into.shape[1:]))
        free = [rows, columns, channels] if last else [channels, rows, columns]
        pattern = (units or [[1, 1]]) + [one for one in free if one[1] > 1]
        copy(as_stored(into, last), hbm.ap(pattern=pattern, offset=offset))


def joined_loads(one, two):
    """The two loads as one, if `two` has the next units of `one` in a row of units; else None."""
    (part, units, offset, own), (next_part, others, next_offset, next_own) = one, two
    far, count, more = next_offset - offset, units_in(units), units_in(others)
    if next_part != part + count or own != next_own or far <= 0 or max(len(units), len(others)) > 1:
        return None
    if all(far == step * count for step, _ in (*units, *others)):
        return part, [[far // count, count + more]], offset, own
    return None


def units_in(units):
    """The number of units of a pattern."""
    return size_of([count for _, count in units])


def load_lines(hbm, strides, channels, tile, tile_sbuf):
    """Load channels (first, count) of a tile's lines, transposed by DMA. strides: of lines in memory."""
    for region in tile:
        lines, extent = region.counts[1], region.rows.extent
        for block in range(region.counts[0] * lines):
            plane, p = region.z + block // lines, region.p + block % lines * region.rows.apart
            part, pixels = region.part + block * region.counts[2], region.counts[2]
            pattern = [[strides[0], channels[1]], [strides[2], extent], [1, pixels]]
            nisa.dma_transpose(
                dst=tile_sbuf[part : part + pixels, 0:extent, 0, 0 : channels[1]],
                src=hbm.ap(pattern=pattern, offset=offset_at(strides, (channels[0], plane, p, region.q))),
                axes=(2, 1, 0),
            )
