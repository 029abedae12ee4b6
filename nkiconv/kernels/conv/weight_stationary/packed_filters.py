"""Filters of M packing as stationaries, [c, (plane, row of x), g, (t, u, k)] in SBUF for each K tile; stationaries of K
packing: zero-padded filters transposed by the Tensor Engine, or Toeplitz matrices.

M packing: a row of w, one output channel, is contiguous in HBM; the Tensor Engine transposes [k, c] of one tap into
[c, k], several taps to a PSUM bank. Tap r of row u of a block reads row u * stride + r * dilation of x, so the filters
of u are one copy of all taps, shifted down by u * stride rows, beside those of the other rows; all else is zero.
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.cuts import window_of
from ....schedules.geometry import filter_rows
from ....schedules.planes import is_by_plane
from ....schedules.stacked_schedule import ROUND_BUFFERS, matrix_elements
from ....schedules.tiles import cut_at, cut_into, div_ceil
from ..._dma import copy
from ..._engines import copy_balanced
from ..filter_feed import (
    clear_tile,
    clear_words,
    copy_backwards,
    tiles_in_turn,
    transpose_together,
    transposes_of_bank,
    turn_forwards,
    turn_into,
)
from ..regions import load_depthwise, load_packed, load_region, offset_at, pattern_of


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

    def start(self, residents):
        """Zeroed stationaries [c, (plane, row of x), g, t, slot] for each K tile."""
        geometry, schedule, shift = self.geometry, self.schedule, self.schedule.shift
        rows = geometry.planes.taps * schedule.axes[1].window
        for k_tile in range(len(schedule.k_tiles)):
            shape = (self._parts(k_tile), rows, shift.groups, shift.T, schedule.slot)
            self.made.append(nl.ndarray(shape, dtype=self.operands.w_dtype, buffer=nl.sbuf))
            clear_words(self.made[-1], nisa.engine.vector if k_tile % 2 == 0 else nisa.engine.gpsimd)

    def prepare(self):
        """Prepare nothing: nothing is loaded ahead."""

    def make(self, tiles):
        """Transpose loaded filters, and copy them to their places."""
        K = self.geometry.K
        for k_tiles, raw_sbuf in self.loaded:
            taps_sbuf = self._by_taps(raw_sbuf)
            for index, k_tile in enumerate(k_tiles):
                own_sbuf = taps_sbuf[0 : self._parts(k_tile), :, :, index * K : (index + 1) * K]
                for u in range(self.schedule.shift.U):
                    self._place(self.made[k_tile], own_sbuf, u)
        for k_tile, made_sbuf in enumerate(self.made):
            parts, rows, groups, T, slot = made_sbuf.shape
            self.made[k_tile] = made_sbuf.reshape((parts, rows * groups, T * slot))

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
        for t, (g, (s, count)) in itertools.product(range(self.geometry.planes.taps), enumerate(cut_at(S, T))):
            if met is None:
                continue
            src = taps_sbuf[:, t * self.geometry.rows.taps :][:, met[0], s : s + count]
            dst = made_sbuf[0:parts, t * rows.window :][:, met[1], g, 0:count, u * K : u * K + K]
            copy_balanced(dst, src, self.ledger)


#: DMAs of the first filters, if they have many channels: a DMA of fewer partitions begins earlier.
FIRST_DMAS = 2


class TransposedFilters(nl.NKIObject):
    """Stationaries of M tiles that are made, and padded filters of M tiles that are loaded: (w [k, (c, plane), r, s] or
    None, Z [(u, k), (c, plane), rows of the window, columns of taps]).

    Tap r of output row u of a block reads row u * V * stride + r * dilation of the block's window, so the filters of u
    are a copy of w shifted down by u * V * stride rows. They are loaded straight to partitions (u, k) if that makes
    long runs; else w is loaded once, and each u has a transpose of its own rows (`schedules.stacked.WAYS`), after
    reversed taps are put in order. Each transpose reads a view of B rows and D columns of taps; if the last group has
    fewer than D columns of taps, the partitions of the others are left out.
    """

    def __init__(self, operands, geometry, schedule, m_tiles, ledger):
        self.operands, self.geometry, self.schedule, self.m_tiles = operands, geometry, schedule, m_tiles
        self.ledger, self.padded, self.ready = ledger, [], []
        self.tiles = {m_tile[0]: index for index, m_tile in enumerate(m_tiles)}

    def start(self):
        """Load the filters of the first M tile."""
        self._load(1)

    def load(self, m_tile):
        """Load the filters of M tiles before `m_tile`, and of as many after them as there is room for."""
        self._load(m_tile + self.schedule.m_tiles_ahead)

    def place(self, m_tile):
        """Make the stationaries of this M tile and of the next one, which is transposed before this one's sums and
        evacuated during them; those of the second and third M tile follow the first rows. Taps of the M tile after them
        are placed, so that they do not wait for evacuations of sums."""
        m_tiles = self.m_tiles
        while len(self.ready) < min(len(m_tiles), 1 if m_tile == 0 else m_tile + 2):
            index = len(self.ready)
            self._place_taps(index)
            self.ready.append(self._transpose(self.padded[index][1], m_tiles[index][1]))
            self.padded[index] = None
            if index + 1 < len(m_tiles):
                self._place_taps(index + 1)

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary [(d, b, c), (u, k)] of a product of an M tile, by plane, group of columns of taps, phase,
        block of rows."""
        return self.ready[self.tiles[row_tile.k0]][product.index]

    def _load(self, count):
        """Load the filters of M tiles until there are `count`, or all. Z lacks filters that are placed on chip."""
        schedule, geometry, w_dtype = self.schedule, self.geometry, self.operands.w_dtype
        C, rows, taps, height = geometry.planes.taps * geometry.C, geometry.rows, geometry.columns.taps, schedule.z_rows
        while len(self.padded) < min(count, len(self.m_tiles)):
            m_tile = self.m_tiles[len(self.padded)]
            dmas = FIRST_DMAS if len(self.padded) == 0 and m_tile[1] > nl.tile_size.pmax // FIRST_DMAS else 1
            parts = m_tile[1] if schedule.filters == "apart" else schedule.U * m_tile[1]
            flat_sbuf = nl.ndarray((parts, schedule.z_elements), dtype=w_dtype, buffer=nl.sbuf)
            z_sbuf = flat_sbuf[:, 0 : C * height * taps].reshape((parts, C, height, taps))
            if not schedule.fits_window:
                clear_words(flat_sbuf, nisa.engine.vector)
            raw_sbuf = None
            if schedule.filters == "straight":
                # rows of taps that are not neighbours take a DMA each: an access pattern has few dims
                together = rows.taps if rows.dilation == 1 else 1
                for u, (r, rn) in itertools.product(range(schedule.U), cut_at(rows.taps, together)):
                    row = schedule.lead + u * schedule.V * rows.stride + r * rows.dilation
                    self._load_taps(z_sbuf, m_tile, u * m_tile[1], row, (r, rn), dmas)
            else:
                raw_sbuf = nl.ndarray((m_tile[1], C, rows.taps, taps), dtype=w_dtype, buffer=nl.sbuf)
                self._load_taps(raw_sbuf, m_tile, 0, 0, (0, rows.taps), dmas)
            self.padded.append((raw_sbuf, z_sbuf))

    def _load_taps(self, tile, m_tile, partition, row, taps, dmas):
        """Load rows of taps (first, count) of an M tile to a partition and row of a tile, by `dmas` DMAs."""
        geometry, strides = self.geometry, self.geometry.w_strides
        planes_sbuf = tile.reshape((tile.shape[0], geometry.C, geometry.planes.taps, tile.shape[2], tile.shape[3]))
        planes = [strides[2] * geometry.rows.taps, geometry.planes.taps]
        for first, n in cut_into(m_tile[1], min(dmas, m_tile[1])):
            channels = [[strides[0], n], [strides[1], geometry.C]]
            pattern = [*channels, planes, [strides[2], taps[1]], [strides[3], geometry.columns.taps]]
            offset = offset_at(strides, (m_tile[0] + first, 0, taps[0], 0))
            load_region(planes_sbuf, self.operands.w, (partition + first, 0, 0, row, 0), pattern, offset)

    def _place_taps(self, m_tile):
        """Complete Z of an M tile."""
        rows, (raw_sbuf, z_sbuf) = self.geometry.rows, self.padded[m_tile]
        if raw_sbuf != None:
            first = self.schedule.lead
            place = z_sbuf[:, :, first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation]
            if self.geometry.flipped:
                turn_into(place, raw_sbuf)
            else:
                nisa.tensor_copy(dst=place, src=raw_sbuf, engine=nisa.engine.vector)
        self.padded[m_tile] = (None, z_sbuf)

    def _transpose(self, z_sbuf, kn):
        """Stationaries [(d, b, c), (u, k)] of an M tile from its Z."""
        schedule, geometry = self.schedule, self.geometry
        B, C, T, item, slots = schedule.B, geometry.C, geometry.planes.taps, geometry.itemsize, schedule.filter_slots
        width, count = schedule.U * kn // slots, schedule.num_filters
        filters_sbuf = nl.ndarray((schedule.parts, count * slots, width), dtype=z_sbuf.dtype, buffer=nl.sbuf)
        for first, dn, transposes in schedule.filter_banks(transposes_of_bank(width, item)):
            sources = []
            for t, row, s in transposes:
                channels = z_sbuf[0:width, t : (C - 1) * T + t + 1 : T]
                sources.append(channels[0:width, 0:C, row : row + B, s : s + dn].permute((0, 3, 2, 1)))
            own_sbuf = filters_sbuf[0 : dn * B * C, first * slots : first * slots + len(sources), 0:width]
            transpose_together(own_sbuf, sources, item, self.ledger)
        filters_sbuf = filters_sbuf.reshape((schedule.parts, count, slots * width))
        parts = [schedule.columns_of(g) * B * C for _, g in schedule.filter_groups()]
        return [filters_sbuf[0:size, index, 0 : slots * width] for index, size in enumerate(parts)]


class ToeplitzFilters(nl.NKIObject):
    """Stationaries of a core's M tiles, a round of them in a buffer; z of their channels in HBM; the number of loaded
    rounds.

    Let z[a] be the rows of channel a's filter in reverse order, a dilation apart. Row h of F is

        F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

    neighbouring rows of z from a place on that moves with h: one run for each partition and M tile. z is made in SBUF
    for 128 channels at a time and read from a copy in HBM, so that one DMA serves row h of channel a of many M tiles. A
    buffer holds the matrices of a round of M tiles; everything else is zeroed once and never written again, as the runs
    of all rounds have the same places.
    """

    def __init__(self, operands, geometry, schedule, m_tiles, ledger):
        self.operands, self.geometry, self.schedule, self.m_tiles = operands, geometry, schedule, m_tiles
        self.buffers, self.rounds = [], 0
        #: elements of z of a plane of taps
        self.plane = window_of(geometry.rows, 1) * geometry.columns.taps

    def start(self):
        """Zero the first buffer, and make z."""
        self._add_buffer()
        self.reversed_hbm = self._reverse()

    def load(self, m_tile):
        """Load nothing: all filters are in HBM as runs."""

    def place(self, m_tile):
        """Load the matrices of an M tile's round and of the next one, whose buffer the round before used."""
        together = self.schedule.together
        rounds = min(m_tile // together + ROUND_BUFFERS, div_ceil(len(self.m_tiles), together))
        while self.rounds < rounds:
            if 0 < self.rounds < ROUND_BUFFERS:
                self._add_buffer()
            self._load_round()

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary [(a, h), (a', p)] of a plane and column of taps of an M tile."""
        geometry, schedule, count = self.geometry, self.schedule, row_tile.cn
        m_tile = self.m_tiles.index((row_tile.c0, count))
        step, (t, place) = geometry.rows.stride * geometry.columns.taps, divmod(product.index, schedule.groups)
        s = schedule.order[place]
        end = (geometry.rows.out - 1) * step + s + 1
        buffer_sbuf = self.buffers[m_tile // schedule.together % len(self.buffers)]
        return buffer_sbuf[0 : count * geometry.rows.size, m_tile % schedule.together, 0:count, t, s:end:step]

    def _add_buffer(self):
        """Add a zeroed buffer [(a, h), M tile, a', plane of taps, window * columns of taps]; Vector and GpSimd write
        it."""
        geometry, schedule = self.geometry, self.schedule
        shape = (schedule.parts, schedule.together, schedule.kn, geometry.planes.taps, matrix_elements(geometry))
        self.buffers = self.buffers + tiles_in_turn(1, shape, self.operands.w_dtype)
        for tile in range(schedule.together):
            engine = nisa.engine.gpsimd if tile % 3 == 2 else nisa.engine.vector
            clear_words(self.buffers[-1][0 : schedule.parts, tile], engine)

    def _load_round(self):
        """Load the matrices of the next round into its buffer."""
        geometry, schedule, S = self.geometry, self.schedule, self.geometry.columns.taps
        A, planes, first = schedule.kn, geometry.planes.taps, self.rounds * schedule.together
        m_tiles = self.m_tiles[first : first + schedule.together]
        c0, cn = m_tiles[0][0] - self.m_tiles[0][0], m_tiles[-1][0] + m_tiles[-1][1] - m_tiles[0][0]
        buffer_sbuf = self.buffers[self.rounds % len(self.buffers)]
        for a in range(min(A, cn)):
            tiles = div_ceil(cn - a, A)
            for h, row, z, count in schedule.runs:
                pattern = [[planes * self.plane, 1], [A * planes * self.plane, tiles], [self.plane, planes]]
                src = self.reversed_hbm.ap(
                    pattern=[*pattern, [1, count * S]], offset=(c0 + a) * planes * self.plane + z * S
                )
                part = a * geometry.rows.size + h
                copy(buffer_sbuf[part : part + 1, 0:tiles, a, 0:planes, row * S : (row + count) * S], src)
        self.rounds += 1

    def _reverse(self):
        """Write z of the core's channels to HBM: [channels, planes of taps * rows of z * columns of taps]."""
        geometry, dtype, pmax = self.geometry, self.operands.w_dtype, nl.tile_size.pmax
        rows, planes, S, depth = geometry.rows, geometry.planes.taps, geometry.columns.taps, window_of(geometry.rows, 1)
        c0, cn = self.m_tiles[0][0], self.m_tiles[-1][0] + self.m_tiles[-1][1] - self.m_tiles[0][0]
        found_hbm = nl.ndarray((cn, planes * self.plane), dtype=dtype, buffer=nl.private_hbm)
        for begin in range(0, cn, pmax):
            n = min(pmax, cn - begin)
            w_sbuf = load_depthwise(self.operands, geometry, c0 + begin, n)
            z_sbuf = nl.ndarray((n, planes * depth, S), dtype=dtype, buffer=nl.sbuf)
            if rows.dilation > 1:
                nisa.memset(dst=z_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            if geometry.flipped:
                w_sbuf = turn_forwards(w_sbuf)
            for t in range(planes):
                for r in range(rows.taps):
                    row, own = t * depth + (rows.taps - 1 - r) * rows.dilation, w_sbuf[:, 0, t * rows.taps + r]
                    nisa.tensor_copy(dst=z_sbuf[:, row], src=own, engine=nisa.engine.vector)
            copy(found_hbm[begin : begin + n], z_sbuf.reshape((n, planes * self.plane)))
        return found_hbm
