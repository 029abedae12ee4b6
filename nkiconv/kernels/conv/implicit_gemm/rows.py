"""Rows of x and of residuals on their way in, results on their way out."""

from ...._nki import nisa, nl
from ....schedules.cuts import Bank
from ....schedules.frames import plane_pieces
from ....schedules.pairs_of_planes import row_pieces
from ....schedules.planes import misses_planes
from ....schedules.tiles import div_ceil
from ..boxes import boxes_of_x, clear_window, load_boxes, load_x, offset_at, pattern_of, store_boxes
from ..call import scale_residual
from ..frames import tensor_of
from ..transposes import is_transposed, load_transposed
from .fold import chunk_window
from .last import is_last


def load_rows(work, chunk, x_sbuf, band, h0, alone, held=False):
    """x of a chunk in a band's planes and columns, rows from h0 on, into [cn, images, rows, columns]. alone: whether no
    other chunk's goes with it; held: whether nothing of it may come before there is room for the tile."""
    operands, geometry = work.operands, work.geometry
    if is_transposed(geometry):
        load_side_by_side(work, geometry, chunk, x_sbuf, (band.d0, h0, band.w0), alone)
        return
    wn = x_sbuf.shape[3]
    if misses_planes(geometry, band.z0, band.zn):
        clear(x_sbuf, 0, wn)
    elif chunk[2] > 1:
        clear_beside(x_sbuf, geometry, chunk, band)
    if held and geometry.depth != None:
        # a column of all boxes: those that wait for nothing would overtake what is wanted before
        clear(x_sbuf, wn // 2, wn // 2 + 1)
    load_copies(operands, geometry, chunk, x_sbuf, band, band.d0, h0)


def load_side_by_side(work, geometry, chunk, x_sbuf, first, alone):
    """The same of channels side by side in HBM, from (plane, row, column) `first` on."""
    count, dn, hn, wn = x_sbuf.shape
    for piece in plane_pieces(geometry, first[0], dn):
        offset = offset_at(piece.strides, (chunk[0], piece.plane, first[1], first[2]))
        dst = x_sbuf[0:count, piece.first : piece.first + piece.count, 0:hn, 0:wn]
        source = tensor_of(work.operands, piece.framed)
        load_transposed(dst, source, piece.strides, offset, alone, work.ledger)


def load_copies(operands, geometry, chunk, x_sbuf, band, d0, h0):
    """Copies of a chunk, a column of taps further each, of planes from d0 and rows from h0 on: of x or, where rows of
    taps are channels, of the rows of x that there are for each."""
    first, cn, depth = chunk[:3]
    _, dn, hn, wn = x_sbuf.shape
    own, rows = geometry, None
    if geometry.direct != None:
        own, rows = geometry.direct, geometry.depth
    w0 = chunk_window(geometry, chunk, band)[0]
    for copy_index in range(depth):
        for piece in row_pieces(geometry, first, cn):
            at, row, c, count = piece
            at += copy_index * cn
            h = h0
            if rows != None:
                h += row * rows.dilation - rows.before
            low, high = max(0, h), min(own.rows.size, h + hn)
            if low < high:
                dst = x_sbuf[at : at + count, 0:dn, low - h : high - h, 0:wn]
                load_columns(operands, own, dst, c, d0, low, w0 + copy_index * geometry.columns.dilation)


def rows_tile(operands, geometry, chunk, band):
    """A tile for x of a chunk in a band."""
    shape = (chunk[2] * chunk[1], band.dn, band.hn, chunk_window(geometry, chunk, band)[1])
    return nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)


def rows_in(tile_sbuf, first, count):
    """Some rows of a tile [cn, images, rows, columns]."""
    parts, images, _, width = tile_sbuf.shape
    return tile_sbuf[0:parts, 0:images, first : first + count, 0:width]


def load_columns(operands, geometry, x_sbuf, c0, d0, h0, w0):
    """x of channels, planes and rows from c0, d0 and h0 on into [cn, images, rows, columns], the columns from w0 on
    that there are."""
    count, dn, hn, wn = x_sbuf.shape
    first = min(wn, max(0, -w0))
    end = max(first, min(wn, geometry.columns.size - w0))
    if first < end:
        boxes = boxes_of_x(geometry, (c0, count), (d0, dn), (h0, first + w0), (hn, end - first))
        load_x(x_sbuf[0:count, 0:dn, 0:hn, first:end], operands, boxes)


def clear(x_sbuf, w0, w1):
    """Zeros in columns w0 .. w1-1."""
    clear_window(x_sbuf, 0, x_sbuf.shape[2], w0, w1, nisa.engine.gpsimd)


def clear_beside(x_sbuf, geometry, chunk, band):
    """Zeros in the columns beside x that copies of a chunk's channels lack."""
    columns = geometry.columns
    w0, wn = chunk_window(geometry, chunk, band)
    left = min(wn, max(0, -w0))
    clear(x_sbuf, 0, left)
    clear(x_sbuf, max(left, min(wn, columns.size - w0 - (chunk[2] - 1) * columns.dilation)), wn)


def load_residual(operands, geometry, job, band, ledger):
    """The residual of a band times beta, fp32 if it was multiplied, or None."""
    if operands.residual == None:
        return None
    pairs = div_ceil(band.pn, job.rows)
    shape = (job.rows * job.kn, band.zn, pairs, band.qn)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    strides = geometry.y_strides
    if strides[0] == 1 and is_last(geometry):
        offset = offset_at(strides, (job.k0, band.z0, band.p0, band.q0))
        load_transposed(residual_sbuf, operands.residual, strides, offset, False, ledger)
        return scale_residual(residual_sbuf, operands.beta)
    if pairs * job.rows > band.pn:
        nisa.memset(dst=residual_sbuf[0 : shape[0], 0 : band.zn, pairs - 1, 0 : band.qn], value=0.0)
    every = Bank(z=0, zn=band.zn, p=0, pn=pairs, q=0, qn=band.qn)
    load_boxes(residual_sbuf, operands.residual, boxes_of_bank(strides, job, band, every), operands.moved)
    return scale_residual(residual_sbuf, operands.beta)


def boxes_of_bank(strides, job, band, bank):
    """Boxes of a result with these strides that a bank of a job's band has: one for each of the rows of outputs that
    the job makes at once."""
    found, by = [], (strides[0], strides[1], job.rows * strides[2], strides[3])
    for u in range(job.rows):
        count = min(bank.pn, div_ceil(max(0, band.pn - u), job.rows) - bank.p)
        if count > 0:
            first = (job.k0, band.z0 + bank.z, band.p0 + bank.p * job.rows + u, band.q0 + bank.q)
            pattern = pattern_of(by, (job.kn, bank.zn, count, bank.qn))
            found.append(((u * job.kn, bank.z, bank.p, bank.q), pattern, offset_at(strides, first)))
    return found


def window(tile_sbuf, bank):
    """What a bank holds of a band's tile [kn, images, rows, columns]."""
    n, p, q = bank.z, bank.p, bank.q
    return tile_sbuf[0 : tile_sbuf.shape[0], n : n + bank.zn, p : p + bank.pn, q : q + bank.qn]


def store_banks(operands, y_sbuf, geometry, job, band, banks):
    """Stores of some banks of a job's band: one DMA where they are whole rows, next to each other."""
    whole = True
    for bank in banks:
        whole = whole and bank.zn == band.zn and bank.qn == band.qn
    parts = banks
    if whole:
        first, end = banks[0], banks[-1]
        parts = [Bank(z=0, zn=band.zn, p=first.p, pn=end.p + end.pn - first.p, q=0, qn=band.qn)]
    for part in parts:
        store_boxes(operands.y, y_sbuf, boxes_of_bank(geometry.y_strides, job, band, part), operands.moved)
