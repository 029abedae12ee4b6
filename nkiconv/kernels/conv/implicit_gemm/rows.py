"""Rows of x and of residuals: loads; rows of results: regions of stores."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import Bank, OutTile
from ....schedules.implicit_gemm_channels import ALONE, KTile, stores_channels
from ....schedules.implicit_gemm_outputs import XPlace, x_place
from ....schedules.pairs_of_planes import row_pieces
from ....schedules.planes import misses_planes
from ....schedules.regions import offset_at, pattern_of
from ....schedules.tiles import div_ceil
from ..._dma import load_transposed
from ..._prologue import load_x
from ..call import of_array, scale_residual
from ..regions import clear_window, residual_of
from ..transposes import is_transposed
from .fp8 import load_paired, new_paired


@dataclass
class XTile(nl.NKIObject):
    """x of a K tile (one of k_tiles) for an output tile: its place, the tiles that matmuls read, and (first row,
    number) of its RowParts."""

    k_tile: KTile
    k_tiles: int
    out_tile: OutTile
    place: XPlace
    tiles: list
    parts: list

    @property
    def shape(self):
        """[channels, planes, rows, columns]."""
        return self.k_tile.depth * self.k_tile.cn, self.place.planes, self.place.rows, self.place.columns


@dataclass
class Factor(nl.NKIObject):
    """Factors of a K tile's products and their sums. adds: to existing sums; low: of low parts."""

    acc_psum: object
    w_sbuf: object
    x_sbuf: object
    adds: bool = False
    low: bool = False


class Rows:
    """x that is multiplied as loaded."""

    def __init__(self, core):
        self.operands, self.geometry, self.ledger = core.operands, core.geometry, core.ledger

    def new(self, k_tile, k_tiles, out_tile):
        """A new XTile without rows, but with zeros around them."""
        x = XTile(k_tile, k_tiles, out_tile, x_place(self.geometry, k_tile, out_tile), [], [])
        x.tiles = self.new_tiles(x)
        return x

    def new_tiles(self, x):
        """The tiles of an XTile that matmuls read."""
        if x.k_tile.pairing != ALONE:
            return [new_paired(self.operands, self.geometry, x)]
        return [nl.ndarray(x.shape, dtype=self.operands.x_dtype, buffer=nl.sbuf)]

    def add(self, x, h0, hn):
        """Load `hn` rows of an XTile, from row h0 of its output tile on."""
        if x.k_tile.pairing == ALONE:
            load_rows(self, x, x.tiles[0][:, :, h0 : h0 + hn], h0)
        else:
            load_paired(self.operands, self.geometry, x, h0, hn)

    def factors(self, banks, x, tiles, ends):
        """Factors of a K tile by banks of sums and tiles of stationaries; ends: whether the last of several K tiles."""
        return [Factor(banks[0], of_array(tiles[0], self.operands), of_array(x.tiles[0], self.operands))]

    def prepare(self, x, products):
        """Prepare nothing: x is multiplied as loaded."""

    def set_pace(self, matmuls):
        """Spread nothing: no background work."""

    def after_matmul(self):
        """Do nothing: no background work."""


def load_rows(rows, x, x_sbuf, h0):
    """Load rows of an XTile from h0 on into [cn, images, rows, columns]. rows: has operands, geometry and ledger."""
    operands, geometry, out_tile = rows.operands, rows.geometry, x.out_tile
    if is_transposed(geometry):
        first = (x.k_tile.c0, out_tile.d0, out_tile.h0 + h0, out_tile.w0)
        load_x(x_sbuf, operands, geometry, first, ledger=rows.ledger, alone=x.k_tiles == 1)
        return
    if misses_planes(geometry, out_tile.z0, out_tile.zn):
        clear(x_sbuf, 0, x_sbuf.shape[3])
    elif x.k_tile.depth > 1:
        clear_beside(x_sbuf, geometry, x)
    load_copies(rows, x, x_sbuf, out_tile.d0, h0)


def load_copies(rows, x, x_sbuf, d0, h0):
    """Load the copies of an XTile, each shifted by one more column of taps, of planes from d0 and rows from h0 on: of x
    or, if rows of taps are channels, of the rows of x that exist for each."""
    geometry, k_tile, (_, dn, hn, wn) = rows.geometry, x.k_tile, x_sbuf.shape
    own, taps = (geometry, None) if geometry.direct is None else (geometry.direct, geometry.depth)
    for copy_index in range(k_tile.depth):
        for at, row, c, count in row_pieces(geometry, k_tile.c0, k_tile.cn):
            at += copy_index * k_tile.cn
            h = x.out_tile.h0 + h0 + (0 if taps is None else row * taps.dilation - taps.before)
            first = (c, d0, h, x.place.column + copy_index * geometry.columns.dilation)
            load_x(x_sbuf[at : at + count, 0:dn, 0:hn, 0:wn], rows.operands, own, first, ledger=rows.ledger, row=at)


def clear(x_sbuf, w0, w1):
    """Zero columns w0 .. w1-1."""
    clear_window(x_sbuf, 0, x_sbuf.shape[2], w0, w1, nisa.engine.gpsimd)


def clear_beside(x_sbuf, geometry, x):
    """Zero the columns next to x that a K tile's copies lack."""
    columns, w0, wn = geometry.columns, x.place.column, x.place.columns
    left = min(wn, max(0, -w0))
    clear(x_sbuf, 0, left)
    clear(x_sbuf, max(left, min(wn, columns.size - w0 - (x.k_tile.depth - 1) * columns.dilation)), wn)


def load_residual(operands, geometry, m_tile, out_tile, ledger):
    """The residual of an output tile times beta, fp32 if beta is not 1; or None."""
    if operands.residual is None:
        return None
    pairs, strides = div_ceil(out_tile.pn, m_tile.rows), geometry.y_strides
    shape = (m_tile.rows * m_tile.kn, out_tile.zn, pairs, out_tile.qn)
    if stores_channels(geometry):
        residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
        offset = offset_at(strides, (m_tile.k0, out_tile.z0, out_tile.p0, out_tile.q0))
        load_transposed(residual_sbuf, operands.residual, strides, offset, False, ledger)
        return scale_residual(residual_sbuf, operands.beta)
    ragged = (slice(None), slice(None), pairs - 1) if pairs * m_tile.rows > out_tile.pn else None
    regions = regions_of_bank(strides, m_tile, out_tile, whole_bank(m_tile, out_tile))
    return residual_of(operands, shape, regions, ragged)


def regions_of_bank(strides, m_tile, out_tile, bank):
    """Regions of a result with these strides for a bank of an M tile's output tile: one for each row of outputs that
    the M tile makes at once."""
    found, by = [], (strides[0], strides[1], m_tile.rows * strides[2], strides[3])
    for u in range(m_tile.rows):
        count = min(bank.pn, div_ceil(max(0, out_tile.pn - u), m_tile.rows) - bank.p)
        if count > 0:
            first = (m_tile.k0, out_tile.z0 + bank.z, out_tile.p0 + bank.p * m_tile.rows + u, out_tile.q0 + bank.q)
            pattern = pattern_of(by, (m_tile.kn, bank.zn, count, bank.qn))
            found.append(((u * m_tile.kn, bank.z, bank.p, bank.q), pattern, offset_at(strides, first)))
    return found


def window(tile_sbuf, bank):
    """A bank's window of an output tile's tile [kn, images, rows, columns]; None of None."""
    if tile_sbuf is None:
        return None
    n, p, q = bank.z, bank.p, bank.q
    return tile_sbuf[0 : tile_sbuf.shape[0], n : n + bank.zn, p : p + bank.pn, q : q + bank.qn]


def whole_bank(m_tile, out_tile):
    """An M tile's whole output tile as one Bank, in the M tile's rows."""
    return Bank(z=0, zn=out_tile.zn, p=0, pn=div_ceil(out_tile.pn, m_tile.rows), q=0, qn=out_tile.qn)
