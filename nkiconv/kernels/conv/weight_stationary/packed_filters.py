"""Filters of M packing as stationaries, [c, (plane, row of x), g, (t, u, k)] in SBUF for each K tile.

A row of w, one output channel, is contiguous in HBM; the Tensor Engine transposes [k, c] of one tap into
[c, k], several taps to a PSUM bank. Tap r of row u of a block reads row u * stride + r * dilation of x, so the filters
of u are one copy of all taps, shifted down by u * stride rows, beside those of the other rows; all else is zero.
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.geometry import filter_rows
from ....schedules.planes import is_by_plane
from ....schedules.tiles import cut_at, transposes_of_bank
from ..._engines import copy_balanced
from ..filter_feed import clear_tile, clear_words, copy_backwards, transpose_together
from ..regions import load_packed, load_region, pattern_of


class PackedFilters(nl.NKIObject):
    """Filters of one M tile: (K tiles, tile) as loaded, and stationaries by K tile."""

    def __init__(self, operands, geometry, schedule, ledger):
        self.operands, self.geometry, self.schedule, self.ledger = operands, geometry, schedule, ledger
        self.loaded, self.made = [], []
        #: whether filters are loaded with input channels on the partitions
        self.by_input = geometry.packed > 0 or geometry.flipped

    def load(self, tile, k_tile):
        """Load all filters, as many K tiles together as fit the partitions, so that one transpose of a tap serves all;
        if planes of taps are channels, only K tiles with equally many channels."""
        if k_tile > 0:
            return
        sizes = [one[1] if is_by_plane(self.geometry) else 0 for one in self.schedule.k_tiles]
        most = 1 if self.by_input else nl.tile_size.pmax // self.geometry.K
        for _, alike in itertools.groupby(range(len(sizes)), key=lambda one: sizes[one]):
            own = [*alike]
            for first, count in cut_at(len(own), most):
                k_tiles = own[first : first + count]
                self.loaded.append((k_tiles, self._by_input(*k_tiles) if self.by_input else self._by_output(k_tiles)))

    def make(self, tiles):
        """Transpose loaded filters, and copy them to their places in zeroed stationaries [c, (plane, row of x), g, t,
        slot]."""
        K, schedule, shift, w_dtype = self.geometry.K, self.schedule, self.schedule.shift, self.operands.w_dtype
        rows, zeroed = self.geometry.planes.taps * schedule.axes[1].window, []
        for k_tile in range(len(schedule.k_tiles)):
            shape = (self._parts(k_tile), rows, shift.groups, shift.T, schedule.slot)
            zeroed.append(nl.ndarray(shape, dtype=w_dtype, buffer=nl.sbuf))
            clear_words(zeroed[-1], nisa.engine.vector if k_tile % 2 == 0 else nisa.engine.gpsimd)
        for k_tiles, raw_sbuf in self.loaded:
            taps_sbuf = self._by_taps(raw_sbuf)
            for index, k_tile in enumerate(k_tiles):
                own_sbuf = taps_sbuf[0 : self._parts(k_tile), :, :, index * K : (index + 1) * K]
                for u in range(shift.U):
                    self._place(zeroed[k_tile], own_sbuf, u)
        self.made = [one.reshape((one.shape[0], rows * shift.groups, shift.T * schedule.slot)) for one in zeroed]

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary of a product of a row tile: [c, (t, u, k)]."""
        first, cn = row_tile.first, self.schedule.k_tiles[k_tile][1]
        return self.made[k_tile][first : first + cn, product.index, 0 : self.schedule.width(row_tile.kn)]

    def _parts(self, k_tile):
        """Partitions of a K tile, over all row tiles."""
        return (self.schedule.shift.lanes - 1) * self.schedule.rows + self.schedule.k_tiles[k_tile][1]

    def _by_input(self, k_tile):
        """Load a packed filter as [c, taps, k], a transposed convolution's as [c, k, r, s] with reversed taps."""
        geometry, (c0, cn, *_), strides = self.geometry, self.schedule.k_tiles[k_tile], self.geometry.w_strides
        K, R, S, parts = geometry.K, filter_rows(geometry), geometry.columns.taps, self._parts(k_tile)
        shape = (parts, R * S, K) if geometry.packed > 0 else (parts, K, R, S)
        tile_sbuf = nl.ndarray(shape, dtype=self.operands.w_dtype, buffer=nl.sbuf)
        if cn < self.schedule.rows and parts > cn:
            nisa.memset(dst=tile_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for first in range(0, parts, self.schedule.rows):
            if geometry.packed > 0:
                load_packed(tile_sbuf[first : first + cn], self.operands.w, geometry, c0, cn, 0, K)
            else:
                pattern = pattern_of((strides[1], strides[0], *strides[2:]), (cn, K, R, S))
                load_region(tile_sbuf, self.operands.w, (first, 0, 0, 0), pattern, c0 * strides[1])
        return tile_sbuf

    def _by_output(self, k_tiles):
        """Load a plain filter as [(K tile, k), c, r, s], with c of all row tiles. The last K tile has the most
        channels, so each can be loaded as if it had as many."""
        geometry, schedule, strides = self.geometry, self.schedule, self.geometry.w_strides
        last = k_tiles[-1] if is_by_plane(geometry) else len(schedule.k_tiles) - 1
        (_, cn, *_), parts, K, Z = schedule.k_tiles[last], self._parts(last), geometry.K, schedule.shift.Z
        R, S = filter_rows(geometry), geometry.columns.taps
        tile_sbuf = nl.ndarray((len(k_tiles) * K, parts, R, S), dtype=self.operands.w_dtype, buffer=nl.sbuf)
        if Z > 1:
            self._load_windows(tile_sbuf, k_tiles)
            return tile_sbuf
        for first in range(cn, parts, schedule.rows):
            if cn < schedule.rows:
                gap_sbuf = tile_sbuf[:, first : first - cn + schedule.rows]
                nisa.memset(dst=gap_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for index, first in itertools.product(range(len(k_tiles)), range(0, parts, schedule.rows)):
            pattern, offset = pattern_of(strides, (K, cn, R, S)), schedule.k_tiles[k_tiles[index]][0] * strides[1]
            load_region(tile_sbuf, self.operands.w, (index * K, first, 0, 0), pattern, offset)
        return tile_sbuf

    def _load_windows(self, tile_sbuf, k_tiles):
        """Load filters into [(K tile, plane, k), c, r, s] for each plane of y of a window: c counts all planes of x of
        the window, with zeros in those that the plane of y does not read."""
        (rows, channels, R, S), geometry, shift = tile_sbuf.shape, self.geometry, self.schedule.shift
        each, depth, apart = geometry.depth.taps, shift.depth, geometry.w_strides
        K, C = geometry.K // shift.Z, channels // each
        clear_tile(tile_sbuf, geometry.itemsize, nisa.engine.vector)
        planes_sbuf = tile_sbuf.reshape((rows, C, each, R, S))
        pattern = [[apart[0], K], [apart[1], C], [R * apart[2], depth.taps], [apart[2], R], [apart[3], S]]
        for part in range(rows // K):
            d = part % shift.Z * depth.stride
            seen = planes_sbuf[0:rows, 0:C, d : d + (depth.taps - 1) * depth.dilation + 1 : depth.dilation, 0:R, 0:S]
            offset = self.schedule.k_tiles[k_tiles[part // shift.Z]][0] // each * apart[1]
            load_region(seen, self.operands.w, (part * K, 0, 0, 0, 0), pattern, offset)

    def _by_taps(self, raw_sbuf):
        """Filters as [c, r, s, (K tile, k)]: reversed tap by tap, or transposed, a PSUM bank of taps at a time."""
        R, S, itemsize = filter_rows(self.geometry), self.geometry.columns.taps, self.geometry.itemsize
        if self.geometry.packed > 0:
            return raw_sbuf.reshape((raw_sbuf.shape[0], R, S, self.geometry.K))
        rows, channels = raw_sbuf.shape[:2] if not self.by_input else raw_sbuf.shape[1::-1]
        taps_sbuf = nl.ndarray((channels, R * S, rows), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
        if self.by_input:
            copy_backwards(taps_sbuf, raw_sbuf, self.ledger)
            return taps_sbuf.reshape((channels, R, S, rows))
        each = self.geometry.depth.taps if is_by_plane(self.geometry) else 1
        by_tap = raw_sbuf.reshape((rows, channels // each, each, R * S))
        for first, count in cut_at(R * S, transposes_of_bank(rows, itemsize)):
            sources = [by_tap[:, :, :, tap].permute((0, 2, 1)) for tap in range(first, first + count)]
            transpose_together(taps_sbuf[:, first : first + count], sources, itemsize, self.ledger)
        return taps_sbuf.reshape((channels, R, S, rows))

    def _place(self, made_sbuf, taps_sbuf, u):
        """Copy taps [c, r, s, k] of row u of a block to its columns, at the rows of x that they read, for each group of
        columns of taps."""
        (parts, _, S, K), T, rows = taps_sbuf.shape, self.schedule.shift.T, self.schedule.axes[1]
        met = rows.places_met(u, 0, self.geometry.rows.taps, 0)
        planes = range(self.geometry.planes.taps if met is not None else 0)
        for t, (g, (s, count)) in itertools.product(planes, enumerate(cut_at(S, T))):
            src = taps_sbuf[:, t * self.geometry.rows.taps :][:, met[0], s : s + count]
            dst = made_sbuf[0:parts, t * rows.window :][:, met[1], g, 0:count, u * K : u * K + K]
            copy_balanced(dst, src, self.ledger)
