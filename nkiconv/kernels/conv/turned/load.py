"""Rows of x on their way in: [c, chunk * planes, segments, columns], one row of each segment, zeros around x."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._tiles import div_ceil, whole_words
from ..boxes import load_x, offset_at
from ..cuts import axis_elements
from ..filter_feed import tiles_in_turn
from ..frames import plane_pieces
from ..geometry import span
from .products import parts_of
from .tiling import TurnedItem, segment_rows, window_width


@dataclass
class TurnedRows(nl.NKIObject):
    """Tiles that rows take in turn: how many have, and for which item (its first output) columns of each are zeros."""

    tiles: list
    issued: int
    cleared: list


@dataclass
class TurnedRow(nl.NKIObject):
    """Row `row` of x of an item, from the first that the first row of each segment sees."""

    item: TurnedItem
    row: int
    x_sbuf: object


def start_rows(operands, geometry, plan):
    """TurnedRows of which none is taken."""
    planes, width, segments, parts, cleared = 1, 1, 1, 1, []
    for item in plan.items:
        planes, width = max(planes, axis_elements(geometry.planes, item.zn)), max(width, window_width(geometry, item))
        segments = max(segments, div_ceil(item.pn, segment_rows(plan, item)))
    for chunk in plan.chunks:
        parts = max(parts, parts_of(chunk, len(chunk.riders)))
    for _ in range(plan.rows):
        cleared.append((-1, -1, -1))
    shape = (parts, len(plan.chunks) * planes, segments, whole_words(width, geometry.itemsize))
    return TurnedRows(tiles=tiles_in_turn(plan.rows, shape, operands.x_dtype), issued=0, cleared=cleared)


def load_turned_row(operands, geometry, plan, rows, item, row):
    """The TurnedRow of a row, in the next tile."""
    axis, columns = geometry.rows, geometry.columns
    which, apart = rows.issued % plan.rows, segment_rows(plan, item)
    segments = div_ceil(item.pn, apart)
    rows.issued = rows.issued + 1
    tile_sbuf = rows.tiles[which]
    d0, dn = span(geometry.planes, item.z0, item.zn)
    width, step = window_width(geometry, item), apart * axis.stride
    h, w = item.p0 * axis.stride - axis.before + row, item.q0 * columns.stride - columns.before
    whose, cleared = (item.z0, item.p0, item.q0), rows.cleared
    fresh = cleared[which] != whose
    for index in range(len(plan.chunks) if dn > 0 else 0):
        boxes, inside = [], (0, segments, 0, width)
        for piece in pieces_of_chunk(geometry, plan.chunks[index]):
            part, c0, count, r, s = piece
            first, end = places_inside(h + r, step, segments, axis.size)
            low, high = places_inside(w + s, 1, width, columns.size)
            inside = (max(inside[0], first), min(inside[1], end), max(inside[2], low), min(inside[3], high))
            for plane in plane_pieces(geometry, d0, dn) if first < end and low < high else []:
                strides = plane.strides
                pattern = [[strides[0], count], [strides[1], plane.count], [step * strides[2], end - first]]
                offset = offset_at(strides, (c0, plane.plane, h + r + first * step, w + s + low))
                place = (part, index * dn + plane.first, first, low)
                boxes.append((place, pattern + [[strides[3], high - low]], offset, plane.framed))
        clear_around(tile_sbuf, (index * dn, dn), inside, segments, fresh, index)
        load_x(tile_sbuf, operands, boxes)
    cleared[which] = whose
    return TurnedRow(item=item, row=row, x_sbuf=tile_sbuf)


def pieces_of_chunk(geometry, chunk):
    """(first partition, first channel, how many, rows and columns further) of a chunk and its riders."""
    found = [(0, chunk.c0, chunk.count, 0, 0)]
    for rider in chunk.riders:
        r, s = rider.r * geometry.rows.dilation, rider.s * geometry.columns.dilation
        found.append((rider.part, rider.c0, rider.count, r, s))
    return found


def clear_around(tile_sbuf, planes, inside, segments, fresh, turn):
    """Zeros in planes (first, how many) of a tile where not all pieces of a chunk are inside x: (first segment, end,
    first column, end). Columns are zeros still where they were for the item's rows before. turn: whose it is."""
    parts, _, _, width = tile_sbuf.shape
    engine = nisa.engine.vector if turn % 2 == 0 else nisa.engine.gpsimd
    first, end, low, high = inside
    end, high = max(first, end), max(low, high)
    for some in ((0, first, 0, width), (end, segments, 0, width), (first, end, 0, low), (first, end, high, width)):
        g0, g1, w0, w1 = some
        if g0 < g1 and w0 < w1 and (fresh or w1 - w0 == width):
            zeros = tile_sbuf[0:parts, planes[0] : planes[0] + planes[1], g0:g1, w0:w1]
            whole = w1 - w0 == width and tile_sbuf.dtype != nl.float32
            nisa.memset(dst=zeros.view(nl.float32) if whole else zeros, value=0.0, engine=engine)


def places_inside(first, step, count, size):
    """(first, end) of the places first, first + step, .. that are in 0 .. size-1, of so many."""
    low = min(count, div_ceil(max(0, -first), step))
    end = div_ceil(max(0, size - first), step)
    return low, max(low, min(count, end))
