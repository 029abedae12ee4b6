"""Bands of x on their way in: X [(d, b, c), planes, blocks, columns], zeros where a window meets no x."""

import math

from ...._nki import nisa
from ....schedules.cuts import largest_band
from ....schedules.geometry import span
from ....schedules.planes import misses_planes
from ..boxes import boxes_of_x, clear_window
from ..ring import load_until, start_ring, tile_of_load
from .shape import band_rows, first_pieces, whole_blocks


def ring_of_bands(operands, geometry, stack, loads):
    """The Ring of X of loads, ((first channel, how many), band) each, their planes below each other; rows that the
    first sums need not wait for follow the others."""
    planes, height, found = 1, height_of(stack, loads), []
    for channels, band in loads:
        planes = max(planes, planes_of_band(geometry, band)[1])
        pieces = [band_rows(stack, band.jn)]
        if len(found) == 0:
            pieces = first_pieces(stack, band, geometry.columns.out)
        found.append(boxes_of_band(geometry, stack, channels, band, pieces, height))
    return start_ring(stack.ring, (stack.parts, planes * height, stack.width), operands.x_dtype, found)


def height_of(stack, loads):
    """Blocks of X of a plane in a tile of the ring."""
    return band_rows(stack, largest_band([band for _, band in loads])[1])


def planes_of_band(geometry, band):
    """(first, how many) planes of x that a band needs."""
    return span(geometry.planes, band.z0, band.zn)


def x_of_load(ring, geometry, stack, loads, index):
    """X of a load in its tile."""
    band, tile, height = loads[index][1], tile_of_load(ring, index), height_of(stack, loads)
    planes = max(1, planes_of_band(geometry, band)[1])
    planes_sbuf = tile.reshape((stack.parts, tile.shape[1] // height, height, stack.width))
    return planes_sbuf[0 : stack.parts, 0:planes, 0 : band_rows(stack, band.jn), 0 : stack.width]


def load_bands(operands, geometry, stack, loads, ring, count):
    """Issue loads, all but the first, until `count` of them are, or all.

    Each of a band waits for columns that are cleared although x comes there, as loads that have no other reason to wait
    would overtake what is wanted before them: the second band for the triggers of the filters, others for the band
    before.
    """
    while ring.issued < min(count, len(loads)):
        _, band = loads[ring.issued]
        hold = stack.hold // (band.zn * band_rows(stack, band.jn)) if ring.issued == 1 else 0
        clear_rims(ring, geometry, stack, loads, ring.issued, 0 if stack.is_diagonal() else 1 + hold)
        load_until(ring, operands, ring.issued + 1)


def same_zeros(geometry, one, other):
    """Whether two bands have zeros at the same places of a tile."""
    planes, others = planes_of_band(geometry, one)[1], planes_of_band(geometry, other)[1]
    return planes == others and (one.j0, one.jn) == (other.j0, other.jn)


def spans_of(geometry, stack):
    """(first column of X that holds x, end, the element of x at column 0) of each shift."""
    columns, found = geometry.columns, []
    if stack.whole >= 0:
        return [(0, columns.size, 0)]
    for d in range(stack.D):
        shift = d * columns.dilation - columns.before
        low = min(stack.width, max(0, -shift))
        found.append((low, max(low, min(stack.width, columns.size - shift)), shift))
    return found


def clear_rims(ring, geometry, stack, loads, index, hold):
    """Zeros where not all partitions of a load hold x, and in `hold` columns beside them, unless they are there
    already; those of the first come first."""
    band, tiles = loads[index][1], len(ring.tiles)
    missing = misses_planes(geometry, band.z0, band.zn)
    if index >= tiles and same_zeros(geometry, loads[index - tiles][1], band) and not missing:
        return
    engine = nisa.engine.vector if index == 0 else nisa.engine.gpsimd
    if missing:
        nisa.memset(dst=tile_of_load(ring, index), value=0.0, engine=engine)
        return
    x_sbuf, m0 = x_of_load(ring, geometry, stack, loads, index), band.j0 * stack.step
    spans = spans_of(geometry, stack)
    left, right = max(one[0] for one in spans), min(one[1] for one in spans)
    mn = x_sbuf.shape[2]
    first, last = whole_blocks(geometry.rows, stack, m0, mn)
    first, last = first - m0, last - m0
    clear_window(x_sbuf, 0, first, 0, stack.width, engine)
    clear_window(x_sbuf, last, mn, 0, stack.width, engine)
    clear_window(x_sbuf, first, last, max(left, right), stack.width, engine)
    clear_window(x_sbuf, first, last, 0, min(stack.width, left + hold), engine)


def boxes_of_band(geometry, stack, channels, band, pieces, height):
    """X of a band of some channels as boxes: whole blocks in one DMA a shift and plane. pieces: blocks, from the band's
    first on, at which loads end, so that sums of the first need not wait for the last."""
    rows, spans, m0, begin, found = geometry.rows, spans_of(geometry, stack), band.j0 * stack.step, 0, []
    for end in pieces:
        first, last = whole_blocks(rows, stack, m0 + begin, end - begin)
        for d in range(stack.D):
            if spans[d][0] >= spans[d][1]:
                continue
            if first < last:
                append_boxes(
                    found, geometry, stack, channels, band, d, spans[d], (0, stack.B), (first, last - first), height
                )
            for m in range(m0 + begin, m0 + end):
                b0 = min(stack.B, max(0, stack.top - m * stack.G))
                b1 = max(b0, min(stack.B, rows.size + stack.top - m * stack.G))
                if b0 < b1 and (m < first or m >= last):
                    append_boxes(found, geometry, stack, channels, band, d, spans[d], (b0, b1 - b0), (m, 1), height)
        begin = end
    return found


def append_boxes(found, geometry, stack, channels, band, d, columns, rows, blocks, height):
    """Append the boxes of some channels, rows and blocks, all (first, how many), shift d; columns: of the shift, see
    `spans_of`."""
    low, high, shift = columns
    by_h = geometry.x_strides[2]
    h = blocks[0] * stack.G + rows[0] - stack.top
    d0, dn = planes_of_band(geometry, band)
    # one block of each plane is as many blocks as there are planes
    each = max(1, dn) if stack.is_diagonal() else 1
    for plane in range(0, dn, each):
        for box in boxes_of_x(geometry, channels, (d0 + plane, each), (h, low + shift), (blocks[1], high - low)):
            place, pattern, offset, framed = box
            # all channels of planes that see x alike: all rows together; else a row at a time
            ahead = pattern[:-3]
            together = math.prod(count for _, count in ahead) == channels[1]
            row_of_blocks = pattern[-3] if stack.is_diagonal() else [stack.G * by_h, blocks[1]]
            for b in range(1 if together else rows[1]):
                part = (d * stack.B + rows[0] + b) * channels[1] + place[0]
                first = (part, (plane + place[1]) * height + blocks[0] - band.j0 * stack.step, low)
                own = [[by_h, rows[1]]] if together else []
                own = ahead + own if stack.is_diagonal() else own + ahead
                own = own + [row_of_blocks, [geometry.x_strides[3], high - low]]
                found.append((first, own, offset + b * by_h, framed))
