"""Rows of x and of residuals: loads, and the pace of background work; rows of results: their stores.

Results with channels side by side in HBM (NHWC): the Tensor Engine transposes them (DMA transposes loads).

Of a stored run of m * 128 pixels, partition p holds the neighbours p * m .. p * m + m - 1: runs of channels in HBM, or
one run if they are all channels.
"""

import itertools
from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import Bank, OutTile
from ....schedules.geometry import is_transposed
from ....schedules.implicit_gemm import ALONE, KTile, stores_channels
from ....schedules.implicit_gemm_products import XPlace, x_place
from ....schedules.pairs_of_planes import row_pieces
from ....schedules.planes import misses_planes
from ....schedules.regions import region_at
from ....schedules.tiles import BANK_COLUMNS, div_ceil, size_of, sumprod
from ..._dma import copy
from ..._engines import copy_balanced
from ..._prologue import load_x
from ..call import of_array
from ..filter_feed import transposed_bank
from ..regions import clear_window, residual_of
from .fp8 import load_paired, new_paired


@dataclass
class XTile(nl.NKIObject):
    """x of a K tile for an output tile: its place, the tiles that matmuls read, and (first row, number) of its
    RowParts."""

    k_tile: KTile
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
        #: tiles of a circular buffer, 0 for new ones; circular buffers by K tile and shape
        self.most, self.buffers = core.schedule.x_buffers, {}

    def new(self, k_tile, out_tile):
        """A new XTile without rows, but with zeros around them."""
        x = XTile(k_tile, out_tile, x_place(self.geometry, k_tile, out_tile), [], [])
        x.tiles = self.new_tiles(x)
        return x

    def new_tiles(self, x):
        """The tiles of an XTile that matmuls read."""
        if x.k_tile.pairing != ALONE:
            return [new_paired(self.operands, self.geometry, x)]
        tiles = self.buffers.setdefault((x.k_tile, x.shape), []) if self.most > 0 else []
        full = 0 < self.most == len(tiles)
        tiles.append(tiles.pop(0) if full else nl.ndarray(x.shape, dtype=self.operands.x_dtype, buffer=nl.sbuf))
        return tiles[-1:]

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
    geometry, out_tile = rows.geometry, x.out_tile
    if misses_planes(geometry, out_tile.z0, out_tile.zn):
        clear(x_sbuf, 0, x_sbuf.shape[3])
    elif x.k_tile.depth > 1:
        clear_beside(x_sbuf, geometry, x)
    load_copies(rows, x, x_sbuf, out_tile.d0, h0)


def load_copies(rows, x, x_sbuf, d0, h0):
    """Load the copies of an XTile, each shifted by one more column of taps, of planes from d0 and rows from h0 on: of x
    or, if rows of taps are channels, of the rows of x that exist for each."""
    geometry, k_tile, h0 = rows.geometry, x.k_tile, x.out_tile.h0 + h0
    own, taps = (geometry, None) if geometry.direct is None else (geometry.direct, geometry.depth)
    if is_transposed(geometry):
        load_x(x_sbuf, rows.operands, own, (k_tile.c0, d0, h0, x.place.column), ledger=rows.ledger)
        return
    for copy_index in range(k_tile.depth):
        for at, row, c, count in row_pieces(geometry, k_tile.c0, k_tile.cn):
            at += copy_index * k_tile.cn
            h = h0 + (0 if taps is None else row * taps.dilation - taps.before)
            first = (c, d0, h, x.place.column + copy_index * geometry.columns.dilation)
            load_x(x_sbuf[at : at + count], rows.operands, own, first, ledger=rows.ledger, row=at)


def clear(x_sbuf, w0, w1):
    """Zero columns w0 .. w1-1."""
    clear_window(x_sbuf, 0, x_sbuf.shape[2], w0, w1, nisa.engine.gpsimd)


def clear_beside(x_sbuf, geometry, x):
    """Zero the columns next to x that a K tile's copies lack."""
    columns, w0, wn = geometry.columns, x.place.column, x.place.columns
    left = min(wn, max(0, -w0))
    clear(x_sbuf, 0, left)
    clear(x_sbuf, max(left, min(wn, columns.size - w0 - (x.k_tile.depth - 1) * columns.dilation)), wn)


def load_residual(operands, geometry, m_tile, out_tile, banks):
    """The residual of an output tile times beta, fp32 if beta is not 1; or None. Transposes are issued bank by bank, in
    the order of the evacuations."""
    pairs = div_ceil(out_tile.pn, m_tile.rows)
    parts = banks if stores_channels(geometry) else [whole_bank(m_tile, out_tile)]
    shape = (m_tile.rows * m_tile.kn, out_tile.zn, pairs, out_tile.qn)
    ragged = (slice(None), slice(None), pairs - 1) if pairs * m_tile.rows > out_tile.pn else None
    regions = [one for bank in parts for one in regions_of_bank(geometry.y_strides, m_tile, out_tile, bank)]
    return residual_of(operands, shape, regions, ragged, stores_channels(geometry))


def regions_of_bank(strides, m_tile, out_tile, bank):
    """Regions of a result with these strides for a bank of an M tile's output tile: one for each row of outputs that
    the M tile makes at once."""
    found = []
    for u in range(m_tile.rows):
        count = min(bank.pn, div_ceil(max(0, out_tile.pn - u), m_tile.rows) - bank.p0)
        if count > 0:
            first = (m_tile.k0, out_tile.z0 + bank.z0, out_tile.p0 + bank.p0 * m_tile.rows + u, out_tile.q0 + bank.q0)
            place, counts = (u * m_tile.kn, bank.z0, bank.p0, bank.q0), (m_tile.kn, bank.zn, count, bank.qn)
            found.append(region_at(strides, place, first, counts, m_tile.rows))
    return found


def window(tile_sbuf, bank):
    """A bank's window of an output tile's tile [kn, images, rows, columns]; None of None."""
    n, p, q = bank.z0, bank.p0, bank.q0
    return None if tile_sbuf is None else tile_sbuf[:, n : n + bank.zn, p : p + bank.pn, q : q + bank.qn]


def whole_bank(m_tile, out_tile):
    """An M tile's whole output tile as one Bank, in the M tile's rows."""
    return Bank(0, out_tile.zn, 0, div_ceil(out_tile.pn, m_tile.rows), 0, out_tile.qn)


class Pace:
    """Spreads `count` pieces of background work over the next matmuls, from fraction `first` of them to fraction
    `until`."""

    def __init__(self, count=0, matmuls=1, first=0.0, until=1.0):
        self.rate = count / ((until - first) * matmuls)
        self.credit = -first * matmuls * self.rate

    def due(self):
        """After a matmul: the number of pieces to do now."""
        self.credit, count = self.credit + self.rate, 0
        while self.credit >= 1.0:
            self.credit, count = self.credit - 1.0, count + 1
        return count


class Deferred:
    """Work of the Tensor Engine on evacuated data, in order of arrival: at least `matmuls` other matmuls come between,
    which hide the evacuation."""

    def __init__(self, matmuls, work):
        self.matmuls, self.work, self.waiting, self.now = matmuls, work, [], 0

    def add(self, *what):
        """Queue the arguments of a call of `work`."""
        self.waiting.append((self.now + self.matmuls, what))

    def after_matmul(self):
        """Do the first piece of work if enough matmuls have passed."""
        self.now += 1
        if self.waiting and self.waiting[0][0] <= self.now:
            self.work(*self.waiting.pop(0)[1])

    def finish(self, most=0):
        """Do the oldest work until at most `most` pieces wait."""
        while len(self.waiting) > most:
            self.work(*self.waiting.pop(0)[1])


def store_transposed(hbm, strides, ledger, data_sbuf, offset):
    """Store [c, n, h, w] in SBUF to an HBM tensor with channels side by side; strides: along c, n, h, w in HBM."""
    cn, *counts = data_sbuf.shape
    step, outer = spacing(strides[1:], counts)
    for at in itertools.product(*map(range, counts[:outer])):
        run_sbuf = data_sbuf[(slice(None), *at)].reshape((cn, size_of(counts[outer:])))
        store_run(hbm, run_sbuf, offset + sumprod(at, strides[1:]), step, ledger)


def spacing(strides, counts):
    """(elements between neighbouring pixels that are evenly spaced, number of outer axes of (images, rows, columns)
    that are not evenly spaced)."""
    step, together, outer = 1, 1, 3
    while outer > 0 and (counts[outer - 1] == 1 or together == 1 or strides[outer - 1] == step * together):
        outer -= 1
        if together == 1:
            step = strides[outer]
        together = together * counts[outer]
    return step, outer


def store_run(hbm, data_sbuf, offset, step, ledger):
    """Store [c, pixels] in SBUF to pixels that are `step` elements apart in HBM."""
    cn, pixels = data_sbuf.shape
    for first in range(0, pixels, BANK_COLUMNS):
        count = min(BANK_COLUMNS, pixels - first)
        side = div_ceil(count, nl.tile_size.pmax)
        full, more = divmod(count, side)
        partitions = full + (more > 0)
        sources = [data_sbuf[:, first + tile : first + count : side] for tile in range(side)]
        pixels_psum = transposed_bank(sources, partitions, cn + cn % 2)
        pixels_sbuf = nl.ndarray((partitions, side, cn), dtype=data_sbuf.dtype, buffer=nl.sbuf)
        for parts, begin, end in ((partitions, 0, more), (full, more, side)):
            if begin < end:
                copy_balanced(pixels_sbuf[0:parts, begin:end], pixels_psum[0:parts, begin:end, 0:cn], ledger)
        start = offset + first * step
        pattern = [[side * step, full], [step, side], [1, cn]]
        copy(hbm.ap(pattern=pattern, offset=start), pixels_sbuf[0:full])
        if more > 0:
            pattern = [[step, more], [1, cn]]
            copy(hbm.ap(pattern=pattern, offset=start + full * side * step), pixels_sbuf[full : full + 1, 0:more])
