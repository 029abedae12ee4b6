"""Bands of x on their way in: X [(d, b, c), images, blocks, columns], zeros where a window meets no x."""

from ...._nki import nisa
from ..boxes import clear_window, load_box
from ..call import of_array
from ..cuts import largest_band
from ..filter_feed import tiles_in_turn
from .shape import band_rows, whole_blocks


def ring_of_bands(operands, stack, bands):
    """Buffers that bands take in turn."""
    images, blocks = largest_band(bands)
    shape = (stack.parts, images, band_rows(stack, blocks), stack.width)
    return tiles_in_turn(min(stack.ring, len(bands)), shape, operands.x_dtype)


def clear_next(geometry, stack, bands, index, ring, hold):
    """Zeros that a band needs in its buffer, unless the one before left them there; those of the first band come first.

    hold: columns that are cleared although x comes there: loads wait for that, or, as they have no other reason to
    wait, they would overtake what is wanted before them.
    """
    band = bands[index]
    held = bands[index - len(ring)] if index >= len(ring) else None
    if held == None or (held.zn, held.j0, held.jn) != (band.zn, band.j0, band.jn):
        engine = nisa.engine.vector if index == 0 else nisa.engine.gpsimd
        clear_rims(x_of_band(stack, bands, index, ring), geometry, stack, band.j0 * stack.step, hold, engine)


def x_of_band(stack, bands, index, ring):
    """X of a band in the buffer whose turn it is."""
    band, x_sbuf = bands[index], ring[index % len(ring)]
    return x_sbuf[0 : stack.parts, 0 : band.zn, 0 : band_rows(stack, band.jn), 0 : stack.width]


def load_stack(operands, geometry, stack, bands, index, ring, pieces):
    """X of a band in its buffer, where `clear_next` has been.

    pieces: blocks of X, counted from the band's first, at which loads end, so that sums of the first need not wait for
    the last.
    """
    band, x_sbuf = bands[index], x_of_band(stack, bands, index, ring)
    m0, mn, begin = band.j0 * stack.step, x_sbuf.shape[2], 0
    for end in pieces:
        load_blocks(operands.x, x_sbuf, geometry, stack, band, m0 + begin, m0 + min(end, mn))
        begin = min(end, mn)
    return of_array(x_sbuf, operands)


def spans_of(geometry, stack):
    """(first column of X that holds x, end, the element of x at column 0) of each shift."""
    columns = geometry.columns
    if stack.whole >= 0:
        return [(0, columns.size, 0)]
    found = []
    for d in range(stack.D):
        shift = d * columns.dilation - columns.before
        low = min(stack.width, max(0, -shift))
        found.append((low, max(low, min(stack.width, columns.size - shift)), shift))
    return found


def clear_rims(x_sbuf, geometry, stack, m0, hold, engine):
    """Zeros where not all partitions hold x, before it comes: they stay while bands at the same place follow."""
    left, right = 0, stack.width
    for span in spans_of(geometry, stack):
        left, right = max(left, span[0]), min(right, span[1])
    mn = x_sbuf.shape[2]
    first, last = whole_blocks(geometry.rows, stack, m0, mn)
    first, last = first - m0, last - m0
    clear_window(x_sbuf, 0, first, 0, stack.width, engine)
    clear_window(x_sbuf, last, mn, 0, stack.width, engine)
    clear_window(x_sbuf, first, last, max(left, right), stack.width, engine)
    clear_window(x_sbuf, first, last, 0, min(stack.width, left + hold), engine)


def load_blocks(x_hbm, x_sbuf, geometry, stack, band, m_begin, m_end):
    """Blocks m_begin .. m_end-1 of X, which holds those from the band's first on: whole ones in one DMA a shift."""
    rows, spans = geometry.rows, spans_of(geometry, stack)
    first, last = whole_blocks(rows, stack, m_begin, m_end - m_begin)
    for d in range(stack.D):
        if spans[d][0] < spans[d][1]:
            if first < last:
                load_rows_of_blocks(
                    x_hbm, x_sbuf, geometry, stack, band, d, spans[d], (0, stack.B), (first, last - first)
                )
            for m in range(m_begin, m_end):
                b0 = min(stack.B, max(0, rows.before - m * stack.G))
                b1 = max(b0, min(stack.B, rows.size + rows.before - m * stack.G))
                if b0 < b1 and (m < first or m >= last):
                    load_rows_of_blocks(x_hbm, x_sbuf, geometry, stack, band, d, spans[d], (b0, b1 - b0), (m, 1))


def load_rows_of_blocks(x_hbm, x_sbuf, geometry, stack, band, d, span, rows, blocks):
    """Rows of blocks, both (first, how many), shift d; span: of the shift, see `spans_of`."""
    low, high, shift = span
    by_c, by_n, by_h, by_w = geometry.x_strides
    pattern = [[by_h, rows[1]], [by_c, geometry.C], [stack.G * by_h, blocks[1]], [by_w, high - low]]
    first = ((d * stack.B + rows[0]) * geometry.C, blocks[0] - band.j0 * stack.step, low)
    for n in range(band.zn):
        h = blocks[0] * stack.G + rows[0] - geometry.rows.before
        offset = (band.z0 + n) * by_n + h * by_h + (low + shift) * by_w
        load_box(x_sbuf[0 : stack.parts, n, 0 : x_sbuf.shape[2], 0 : stack.width], x_hbm, first, pattern, offset)
