"""x and gy of a tile of units on their way to SBUF: what a unit's window has of x, zeros around it."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.blocks import extent_of
from ...schedules.geometry import valid_range
from ...schedules.tiles import div_ceil, size_of
from .._dma import copy
from .._engines import new_ledger, pick_memset
from ..conv.regions import offset_at


@dataclass
class Piece(nl.NKIObject):
    """What there is room for in a tile of units. rows, columns: of gy of a unit; k, c, r, s: (first, how many) of
    channels of gy and of x, and of rows and columns of taps; h, w: the same of rows and columns of a unit's window of
    x; part: partition of the first unit."""

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


def room_of(strides, channels, rows, columns, units=nl.tile_size.pmax):
    """Shape of a tile of units."""
    return (units, rows, columns, channels) if is_channels_last(strides) else (units, channels, rows, columns)


def part_of(tile, strides, units, rows, columns, channels):
    """Units, rows, columns and channels, (first, end) or (first, end, step), of a tile of units, as its axes are."""
    units, rows, columns, channels = (slice(*one) for one in (units, rows, columns, channels))
    if is_channels_last(strides):
        return tile[units, rows, columns, channels]
    return tile[units, channels, rows, columns]


def clear_y(geometry, piece, tile, y_sbuf, beside=True, holds=False):
    """Zeros where a unit has fewer rows of gy, or, `beside`, columns. holds: whether loads wait for those before."""
    rows = min(piece.rows, *(region.rows.extent for region in tile))
    columns = min(piece.columns, *(region.columns.extent for region in tile)) if beside else piece.columns
    last = is_channels_last(geometry.y_strides)
    clear_sides(y_sbuf, last, (0, rows), (0, columns), (piece.rows, piece.columns))
    if holds:
        hold_loads(y_sbuf, geometry.y_strides, (0, piece.rows), (0, 1))


def clear_x(geometry, piece, tile, x_sbuf, t, beside=True, holds=False):
    """Zeros above and below x, and `beside` it, at a plane of taps. holds: whether loads wait for those before."""
    bottom, side, last = piece.h[0] + piece.h[1], piece.w[0] + piece.w[1], is_channels_last(geometry.x_strides)
    low, high, left, right = piece.h[0], bottom, piece.w[0], side
    for region in tile:
        low, left = max(low, min(region.rows.low, bottom)), max(left, min(region.columns.low, side))
        high, right = min(high, region.rows.high), min(right, region.columns.high)
        is_spread = geometry.rows.lhs_dilation * geometry.columns.lhs_dilation > 1
        if is_spread or valid_range(geometry.planes, t, region.z, 1)[2] == 0:
            low, high = piece.h[0], piece.h[0]
    low, left = low - piece.h[0], left - piece.w[0]
    inside = (low, max(low, high - piece.h[0])), (left, max(left, right - piece.w[0]))
    inside = inside[0], inside[1] if beside else (0, piece.w[1])
    clear_sides(x_sbuf, last, inside[0], inside[1], (piece.h[1], piece.w[1]))
    if holds:
        hold_loads(x_sbuf, geometry.x_strides, inside[0], inside[1])


def hold_loads(tile, strides, rows, columns):
    """Have loads of a tile of units, of these rows and columns (first, end), come after those that wait for zeros."""
    column = columns[0], columns[0] + 1
    for engine in (nisa.engine.vector, nisa.engine.gpsimd) if rows[0] < rows[1] and columns[0] < columns[1] else ():
        nisa.memset(dst=part_of(tile, strides, (0, tile.shape[0]), rows, column, (0, 1)), value=0.0, engine=engine)


def load_y(work, piece, tile, y_sbuf, rows):
    """Rows (first, end) of gy of a tile's units."""
    strides = work.geometry.y_strides
    for region in tile:
        end, columns = min(rows[1], region.rows.extent), region.columns.extent
        if rows[0] < end:
            offset = offset_at(strides, (piece.k[0], region.z, region.p + rows[0], region.q))
            pattern = lead_of(region, strides, (1, 1, 1)) + free_of(strides, (piece.k[1], end - rows[0], columns))
            units = units_at(piece, region)
            into_sbuf = part_of(y_sbuf, strides, units, (rows[0], end), (0, columns), (0, piece.k[1]))
            copy(into_sbuf, work.operands.w.ap(pattern=pattern, offset=offset))


def load_x_of(work, piece, tile, x_sbuf, t, window):
    """Rows (first, end) of the windows of x of a tile's units at a plane of taps."""
    geometry, strides = work.geometry, work.geometry.x_strides
    planes, rows, columns = geometry.planes, geometry.rows, geometry.columns
    spread = planes.lhs_dilation, rows.lhs_dilation, columns.lhs_dilation
    for region in tile:
        plane = valid_range(planes, t, region.z, 1)
        low = region.rows.low + div_ceil(max(0, window[0] - region.rows.low), spread[1]) * spread[1]
        high, left, right = min(window[1], region.rows.high), region.columns.low, region.columns.high
        if plane[2] > 0 and low < high and left < right:
            h = (region.p * rows.stride + piece.r[0] * rows.dilation - rows.before + low) // spread[1]
            w = (region.q * columns.stride + piece.s[0] * columns.dilation - columns.before + left) // spread[2]
            extents = piece.c[1], div_ceil(high - low, spread[1]), div_ceil(right - left, spread[2])
            lead = lead_of(region, strides, (planes.stride, rows.stride, columns.stride), spread)
            offset = offset_at(strides, (piece.c[0], plane[3], h, w))
            row = low - piece.h[0], high - piece.h[0], spread[1]
            column = left - piece.w[0], right - piece.w[0], spread[2]
            into_sbuf = part_of(x_sbuf, strides, units_at(piece, region), row, column, (0, piece.c[1]))
            copy(into_sbuf, work.operands.x.ap(pattern=lead + free_of(strides, extents), offset=offset))


def units_at(piece, region):
    """Partitions (first, end) of the units of a Region."""
    first = piece.part + region.part
    return first, first + size_of(region.counts)


def free_of(strides, extents):
    """Entries of an access pattern for (channels, rows, columns), in the order of a tile of units."""
    channels, rows, columns = [strides[0], extents[0]], [strides[2], extents[1]], [strides[3], extents[2]]
    return [rows, columns, channels] if is_channels_last(strides) else [channels, rows, columns]


def lead_of(region, strides, steps, spread=(1, 1, 1)):
    """Entries of an access pattern for the units of a Region. steps, spread: stride and lhs_dilation of each axis."""
    apart = 1, region.rows.apart, region.columns.apart
    axes = zip(strides[1:4], apart, steps, spread, region.counts)
    found = [[one * (far * step // by), count] for one, far, step, by, count in axes if count > 1]
    return found if len(found) > 0 else [[1, 1]]


def clear_sides(tile, last, rows, columns, sizes):
    """Zeros in a tile of units but for rows and columns (first, end) that all of them load."""
    parts, (top, bottom), (left, right), (height, width) = tile.shape[0], rows, columns, sizes
    # those beside rows first, which loads wait for
    strips = (top, bottom, 0, left), (top, bottom, right, width), (0, top, 0, width), (bottom, height, 0, width)
    if last and tile.shape[3] % 2 == 0 and tile.dtype != nl.float32:
        # two channels at once
        tile = tile.view(nl.float32)
    ledger = new_ledger()
    for h0, h1, w0, w1 in strips:
        if h0 < h1 and w0 < w1:
            part = tile[0:parts, h0:h1, w0:w1] if last else tile[0:parts, 0 : tile.shape[1], h0:h1, w0:w1]
            nisa.memset(dst=part, value=0.0, engine=pick_memset(ledger, size_of(part.shape[1:])))


def load_units(work, pieces, tile, into, planes, steps):
    """What a tile's units need of x, at some planes of taps, and of gy, in so many steps. pieces: alike but for
    channels and partitions."""
    geometry, one, there = work.geometry, pieces[0], 0
    rows, bottom = one.rows // steps, one.h[0] + one.h[1]
    for step in range(steps):
        needed = step * rows * geometry.rows.stride + extent_of(geometry.rows, rows, one.r)
        needed = bottom if step + 1 == steps else min(bottom, max(there, needed))
        for piece in pieces:
            for t in planes:
                load_x_of(work, piece, tile, into.x[t], t, (there, needed))
            load_y(work, piece, tile, into.y, (step * rows, (step + 1) * rows))
        there = needed


def load_lines(hbm, strides, channels, tile, tile_sbuf):
    """Channels (first, how many) of lines of a tile's units. strides: of lines in memory."""
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
