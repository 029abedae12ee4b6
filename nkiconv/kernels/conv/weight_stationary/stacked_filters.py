"""Stationaries of K packing: zero-padded filters transposed by the Tensor Engine, or Toeplitz matrices."""

import itertools

from ...._nki import nisa, nl
from ....schedules.stacked_schedule import ROUND_BUFFERS, matrix_elements, reversed_rows, rows_of_run, runs_of
from ....schedules.tiles import cut_at, cut_into, div_ceil, transposes_of_bank
from ..._dma import copy
from ..filter_feed import clear_words, tiles_in_turn, transpose_together, turn_forwards, turn_into
from ..regions import load_depthwise, load_filters, load_region, offset_at

#: DMAs of the first filters, if they have many channels: a DMA of fewer partitions begins earlier.
FIRST_DMAS = 2


class TransposedFilters(nl.NKIObject):
    """Stationaries of M tiles that are made, and padded filters of M tiles that are loaded: (w [k, (c, plane), r, s] or
    None, Z [(u, k), (c, plane), rows of the window, columns of taps]).

    Tap r of output row u of a block reads row u * V * stride + r * dilation of the block's window, so the filters of u
    are a copy of w shifted down by u * V * stride rows. They are loaded straight to partitions (u, k) if that makes
    long runs; else w is loaded once, and each u has a transpose of its own rows (`schedules.stacked.WAYS`), after
    reversed taps are put in order. Rotated filters of many channels are loaded by input channels, in runs of all k, and
    transposed tap by tap into their places. Each transpose reads a view of B rows and D columns of taps; if the last
    group has fewer than D columns of taps, the partitions of the others are left out.
    """

    def __init__(self, operands, geometry, schedule, m_tiles, ledger):
        self.operands, self.geometry, self.schedule, self.m_tiles = operands, geometry, schedule, m_tiles
        self.ledger, self.padded, self.ready = ledger, [], []
        #: these filters, and those of the channels that have an X of their own
        self.every = [self]
        for rest in schedule.every[1:]:
            self.every.append(TransposedFilters(operands, rest.geometry, rest, m_tiles, ledger))
        self.tiles = {m_tile[0]: index for index, m_tile in enumerate(m_tiles)}

    def start(self):
        """Load the filters of the first M tile."""
        for one in self.every:
            one._load(1)

    def load(self, m_tile):
        """Load the filters of M tiles before `m_tile`, and of as many after them as there is room for."""
        for one in self.every:
            one._load(m_tile + one.schedule.m_tiles_ahead)

    def place(self, m_tile):
        """Make the stationaries of this M tile and of the next one, which is transposed before this one's sums and
        evacuated during them; those of the second and third M tile follow the first rows. Taps of the M tile after them
        are placed, so that they do not wait for evacuations of sums."""
        m_tiles = self.m_tiles
        while len(self.ready) < min(len(m_tiles), 1 if m_tile == 0 else m_tile + 2):
            index = len(self.ready)
            for one in reversed(self.every):  # few channels first: all evacuations follow
                one._place_taps(index)
            for one in self.every:
                one.ready.append(one._transpose(one.padded[index][1], m_tiles[index][1]))
                one.padded[index] = None
            for one in self.every if index + 1 < len(m_tiles) else []:
                one._place_taps(index + 1)

    def stationary(self, tile, k_tile, sweep, row_tile, product):
        """The stationary [(d, b, c), (u, k)] of a product of an M tile, by plane, group of columns of taps, phase,
        block of rows."""
        return self.every[k_tile].ready[self.tiles[row_tile.k0]][product.index]

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
            elif schedule.by_input:
                raw_sbuf = load_filters(self.operands, geometry, m_tile, (schedule.c0, C), by_input=True)
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
            offset = offset_at(strides, (m_tile[0] + first, self.schedule.c0, taps[0], 0))
            load_region(planes_sbuf, self.operands.w, (partition + first, 0, 0, row, 0), pattern, offset)

    def _place_taps(self, m_tile):
        """Complete Z of an M tile."""
        rows, first, (raw_sbuf, z_sbuf) = self.geometry.rows, self.schedule.lead, self.padded[m_tile]
        if raw_sbuf != None and self.schedule.by_input:
            self._place_rotated(z_sbuf, raw_sbuf)
        elif raw_sbuf != None:
            place = z_sbuf[:, :, first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation]
            T = self.geometry.planes.taps if self.geometry.flipped else 0
            for t in range(T):
                turn_into(place[:, t::T], raw_sbuf[:, T - 1 - t :: T])
            if T == 0:
                nisa.tensor_copy(dst=place, src=raw_sbuf, engine=nisa.engine.vector)
        self.padded[m_tile] = (None, z_sbuf)

    def _place_rotated(self, z_sbuf, raw_sbuf):
        """Transpose w [c, k, r, s] with taps in reverse order into its rows of Z."""
        geometry, (C, _, R, S) = self.geometry, raw_sbuf.shape
        for r, (s, n) in itertools.product(range(R), cut_at(S, transposes_of_bank(C, geometry.itemsize))):
            sources = [raw_sbuf[:, :, R - 1 - r, S - 1 - column] for column in range(s, s + n)]
            row = self.schedule.lead + r * geometry.rows.dilation
            dst = z_sbuf[:, :, row, s : s + n].permute((0, 2, 1))
            transpose_together(dst, sources, geometry.itemsize, self.ledger)

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
        groups = enumerate(schedule.filter_groups())
        return [filters_sbuf[0 : dn * B * C, index, 0 : slots * width] for index, (_, _, dn) in groups]


class ToeplitzFilters(nl.NKIObject):
    """Stationaries of a core's M tiles, a round of them in a buffer; z of their channels in HBM; the number of loaded
    rounds.

    Let z[a] be the rows of channel a's filter in reverse order, a dilation apart. Row h of F is

        F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

    neighbouring rows of z from a place on that moves with h: overlapping windows of z, among zeros, so that one DMA
    serves neighbouring rows of channel a of many M tiles. z is made in SBUF for 128 channels at a time and read from a
    copy in HBM. A buffer holds the matrices of a round of M tiles; everything else is zeroed once and never written
    again, as the windows of all rounds have the same places.
    """

    def __init__(self, operands, geometry, schedule, m_tiles, ledger):
        self.operands, self.geometry, self.schedule, self.m_tiles = operands, geometry, schedule, m_tiles
        self.buffers, self.rounds = [], 0
        #: elements of z of a plane of taps; rows of zeros before the filter's, and after them
        self.plane, self.before = reversed_rows(geometry) * geometry.columns.taps, rows_of_run(geometry) - 1

    def start(self):
        """Make z, and zero the first buffer."""
        self.reversed_hbm = self._reverse()
        self._add_buffer()

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
        buffer_sbuf, each = self.buffers[self.rounds % len(self.buffers)], planes * self.plane
        for a in range(min(A, cn)):
            tiles = div_ceil(cn - a, A)
            for h, rows, row, z, count in runs_of(geometry):
                pattern = [[-S, rows], [A * each, tiles], [self.plane, planes], [1, count * S]]
                src = self.reversed_hbm.ap(pattern=pattern, offset=(c0 + a) * each + (self.before + z) * S)
                part = a * geometry.rows.size + h
                copy(buffer_sbuf[part : part + rows, 0:tiles, a, 0:planes, row * S : (row + count) * S], src)
        self.rounds += 1

    def _reverse(self):
        """Write z of the core's channels to HBM: [channels, planes of taps * rows of z * columns of taps]."""
        geometry, dtype, pmax = self.geometry, self.operands.w_dtype, nl.tile_size.pmax
        rows, planes, S, depth = geometry.rows, geometry.planes.taps, geometry.columns.taps, reversed_rows(geometry)
        c0, cn = self.m_tiles[0][0], self.m_tiles[-1][0] + self.m_tiles[-1][1] - self.m_tiles[0][0]
        found_hbm = nl.ndarray((cn, planes * self.plane), dtype=dtype, buffer=nl.private_hbm)
        for begin, n in cut_at(cn, pmax):
            w_sbuf = load_depthwise(self.operands, geometry, c0 + begin, n)
            z_sbuf = nl.ndarray((n, planes * depth, S), dtype=dtype, buffer=nl.sbuf)
            if self.before > 0 or rows.dilation > 1:
                nisa.memset(dst=z_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            if geometry.flipped:
                w_sbuf = turn_forwards(w_sbuf)
            for t, r in itertools.product(range(planes), range(rows.taps)):
                row = t * depth + self.before + (rows.taps - 1 - r) * rows.dilation
                own = w_sbuf[:, 0, t * rows.taps + r]
                nisa.tensor_copy(dst=z_sbuf[:, row], src=own, engine=nisa.engine.vector)
            copy(found_hbm[begin : begin + n], z_sbuf.reshape((n, planes * self.plane)))
        return found_hbm
