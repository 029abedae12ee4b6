"""Rows of x on their way in: [c, chunk * planes, segments, columns], one row of each segment, zeros around x."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import places_inside, window_of
from ....schedules.frames import plane_pieces
from ....schedules.geometry import span
from ....schedules.tiles import div_ceil, whole_words
from ..boxes import clear_window, load_x, offset_at
from ..filter_feed import tiles_in_turn
from .products import parts_of
from .tiling import segment_rows, turned_window


@dataclass
class TurnedRows(nl.NKIObject):
    """Tiles that rows take in turn: which the first of an item does, and for which item (its first output) columns of
    each are zeros."""

    tiles: list
    first: int
    cleared: list


def start_rows(operands, geometry, plan):
    """TurnedRows of which none is taken."""
    segments, parts, cleared = 1, 1, []
    for item in plan.items:
        segments = max(segments, div_ceil(item.pn, segment_rows(plan, item)))
    for chunk in plan.chunks:
        parts = max(parts, parts_of(chunk, len(chunk)))
    for _ in range(plan.rows):
        cleared.append((-1, -1, -1))
    planes, width = turned_window(geometry, plan)
    shape = (parts, len(plan.chunks) * max(1, planes), segments, whole_words(width, geometry.itemsize))
    return TurnedRows(tiles=tiles_in_turn(plan.rows, shape, operands.x_dtype), first=0, cleared=cleared)


def copy_of_rows(rows):
    """The same TurnedRows, as they are now."""
    return TurnedRows(tiles=rows.tiles, first=rows.first, cleared=rows.cleared[:])


def load_turned_row(operands, geometry, plan, rows, item, row):
    """A tile with row `row` of x of each segment of an item, from the first that the segment's first row sees."""
    axis, columns = geometry.rows, geometry.columns
    which, apart = (rows.first + row) % plan.rows, segment_rows(plan, item)
    tile_sbuf, segments = rows.tiles[which], div_ceil(item.pn, apart)
    d0, dn = span(geometry.planes, item.z0, item.zn)
    width, step = window_of(columns, item.qn), apart * axis.stride
    h, w = item.p0 * axis.stride - axis.before + row, item.q0 * columns.stride - columns.before
    whose, cleared = (item.z0, item.p0, item.q0), rows.cleared
    for index in range(len(plan.chunks) if dn > 0 else 0):
        boxes, inside = [], (0, segments, 0, width)
        for piece in plan.chunks[index]:
            top, left = h + piece.r * axis.dilation, w + piece.s * columns.dilation
            first, end = places_inside(top, step, segments, axis.size)
            low, high = places_inside(left, 1, width, columns.size)
            inside = (max(inside[0], first), min(inside[1], end), max(inside[2], low), min(inside[3], high))
            for plane in plane_pieces(geometry, d0, dn) if first < end and low < high else []:
                strides = plane.strides
                pattern = [[strides[0], piece.count], [strides[1], plane.count], [step * strides[2], end - first]]
                offset = offset_at(strides, (piece.c0, plane.plane, top + first * step, left + low))
                place = (piece.part, index * dn + plane.first, first, low)
                boxes.append((place, pattern + [[strides[3], high - low]], offset, plane.framed))
        parts, _, _, whole = tile_sbuf.shape
        planes_sbuf = tile_sbuf[0:parts, index * dn : (index + 1) * dn, 0:segments, 0:whole]
        engine = nisa.engine.vector if index % 2 == 0 else nisa.engine.gpsimd
        clear_around(planes_sbuf, inside, cleared[which] != whose, engine)
        load_x(tile_sbuf, operands, boxes)
    cleared[which] = whose
    return tile_sbuf


def clear_around(planes_sbuf, inside, fresh, engine):
    """Zeros in planes of a tile where not all pieces of a chunk are inside x: (first segment, end, first column, end).
    Columns are zeros still, but in a fresh tile, where they were for the item's rows before."""
    _, _, segments, width = planes_sbuf.shape
    first, end, low, high = inside
    end, high = max(first, end), max(low, high)
    for some in ((0, first, 0, width), (end, segments, 0, width), (first, end, 0, low), (first, end, high, width)):
        g0, g1, w0, w1 = some
        if w1 - w0 == width and planes_sbuf.dtype != nl.float32:
            words_sbuf = planes_sbuf.view(nl.float32)
            clear_window(words_sbuf, g0, g1, 0, words_sbuf.shape[3], engine)
        elif fresh or w1 - w0 == width:
            clear_window(planes_sbuf, g0, g1, w0, w1, engine)
