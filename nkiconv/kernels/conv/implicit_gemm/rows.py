"""Rows of x and of residuals on their way in, results on their way out."""

from ...._nki import nisa, nl
from ....schedules.cuts import Bank
from ....schedules.implicit_gemm_channels import stores_channels
from ....schedules.implicit_gemm_outputs import k_tile_window
from ....schedules.pairs_of_planes import row_pieces
from ....schedules.planes import misses_planes
from ....schedules.regions import offset_at, pattern_of
from ....schedules.tiles import div_ceil
from ..._dma import load_transposed
from ..._prologue import load_x
from ..call import scale_residual
from ..regions import clear_window, load_regions
from ..transposes import is_transposed


def load_rows(core, k_tile, x_sbuf, out_tile, h0, alone):
    """x of a K tile in an output tile's planes and columns, rows from h0 on, into [cn, images, rows, columns].

    core: what has operands, geometry and ledger. alone: whether no other K tile's goes with it.
    """
    operands, geometry = core.operands, core.geometry
    if is_transposed(geometry):
        first = (k_tile.c0, out_tile.d0, h0, out_tile.w0)
        load_x(x_sbuf, operands, geometry, first, ledger=core.ledger, alone=alone)
        return
    if misses_planes(geometry, out_tile.z0, out_tile.zn):
        clear(x_sbuf, 0, x_sbuf.shape[3])
    elif k_tile.depth > 1:
        clear_beside(x_sbuf, geometry, k_tile, out_tile)
    load_copies(operands, geometry, k_tile, x_sbuf, out_tile, out_tile.d0, h0, core.ledger)


def load_copies(operands, geometry, k_tile, x_sbuf, out_tile, d0, h0, ledger):
    """Copies of a K tile, a column of taps further each, of planes from d0 and rows from h0 on: of x or, where rows of
    taps are channels, of the rows of x that there are for each."""
    own, rows, (_, dn, hn, wn) = geometry, None, x_sbuf.shape
    if geometry.direct is not None:
        own, rows = geometry.direct, geometry.depth
    w0 = k_tile_window(geometry, k_tile, out_tile)[0]
    for copy_index in range(k_tile.depth):
        for at, row, c, count in row_pieces(geometry, k_tile.c0, k_tile.cn):
            at += copy_index * k_tile.cn
            h = h0 if rows is None else h0 + row * rows.dilation - rows.before
            dst = x_sbuf[at : at + count, 0:dn, 0:hn, 0:wn]
            first = (c, d0, h, w0 + copy_index * geometry.columns.dilation)
            load_x(dst, operands, own, first, ledger=ledger, row=at)


def rows_tile(operands, geometry, k_tile, out_tile):
    """A tile for x of a K tile in an output tile."""
    return nl.ndarray(rows_shape(geometry, k_tile, out_tile), dtype=operands.x_dtype, buffer=nl.sbuf)


def rows_shape(geometry, k_tile, out_tile):
    """Its shape."""
    return k_tile.depth * k_tile.cn, out_tile.dn, out_tile.hn, k_tile_window(geometry, k_tile, out_tile)[1]


def rows_in(tile_sbuf, first, count):
    """Some rows of a tile [cn, images, rows, columns]."""
    parts, images, _, width = tile_sbuf.shape
    return tile_sbuf[0:parts, 0:images, first : first + count, 0:width]


def clear(x_sbuf, w0, w1):
    """Zeros in columns w0 .. w1-1."""
    clear_window(x_sbuf, 0, x_sbuf.shape[2], w0, w1, nisa.engine.gpsimd)


def clear_beside(x_sbuf, geometry, k_tile, out_tile):
    """Zeros in the columns next to x that copies of a K tile's channels lack."""
    columns = geometry.columns
    w0, wn = k_tile_window(geometry, k_tile, out_tile)
    left = min(wn, max(0, -w0))
    clear(x_sbuf, 0, left)
    clear(x_sbuf, max(left, min(wn, columns.size - w0 - (k_tile.depth - 1) * columns.dilation)), wn)


def load_residual(operands, geometry, m_tile, out_tile, ledger):
    """The residual of an output tile times beta, fp32 if it was multiplied, or None."""
    if operands.residual is None:
        return None
    pairs, strides = div_ceil(out_tile.pn, m_tile.rows), geometry.y_strides
    shape = (m_tile.rows * m_tile.kn, out_tile.zn, pairs, out_tile.qn)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    if stores_channels(geometry):
        offset = offset_at(strides, (m_tile.k0, out_tile.z0, out_tile.p0, out_tile.q0))
        load_transposed(residual_sbuf, operands.residual, strides, offset, False, ledger)
        return scale_residual(residual_sbuf, operands.beta)
    if pairs * m_tile.rows > out_tile.pn:
        nisa.memset(dst=residual_sbuf[0 : shape[0], 0 : out_tile.zn, pairs - 1, 0 : out_tile.qn], value=0.0)
    regions = regions_of_bank(strides, m_tile, out_tile, whole_bank(m_tile, out_tile))
    load_regions(residual_sbuf, operands.residual, regions, operands.moved)
    return scale_residual(residual_sbuf, operands.beta)


def regions_of_bank(strides, m_tile, out_tile, bank):
    """Regions of a result with these strides that a bank of an M tile's output tile has: one for each of the rows of
    outputs that the M tile makes at once."""
    found, by = [], (strides[0], strides[1], m_tile.rows * strides[2], strides[3])
    for u in range(m_tile.rows):
        count = min(bank.pn, div_ceil(max(0, out_tile.pn - u), m_tile.rows) - bank.p)
        if count > 0:
            first = (m_tile.k0, out_tile.z0 + bank.z, out_tile.p0 + bank.p * m_tile.rows + u, out_tile.q0 + bank.q)
            pattern = pattern_of(by, (m_tile.kn, bank.zn, count, bank.qn))
            found.append(((u * m_tile.kn, bank.z, bank.p, bank.q), pattern, offset_at(strides, first)))
    return found


def rows_of_all(m_tile, out_tile, bank):
    """Rows of a bank that are of y for all of the rows of outputs that an M tile makes at once."""
    return max(0, min(bank.pn, out_tile.pn // m_tile.rows - bank.p))


def window(tile_sbuf, bank):
    """What a bank holds of an output tile's tile [kn, images, rows, columns]."""
    n, p, q = bank.z, bank.p, bank.q
    return tile_sbuf[0 : tile_sbuf.shape[0], n : n + bank.zn, p : p + bank.pn, q : q + bank.qn]


def whole_bank(m_tile, out_tile):
    """All of an M tile's output tile as one Bank, rows of outputs in the M tile's own."""
    return Bank(z=0, zn=out_tile.zn, p=0, pn=div_ceil(out_tile.pn, m_tile.rows), q=0, qn=out_tile.qn)
