"""Filters as stationaries [(d, b, c), (plane, g, z, t), (u, k)], zero-padded and transposed by the Tensor Engine.

Tap r of output row u of a block reads row u * V * stride + r * dilation of the block's window, so the filters of u are
a copy of w shifted down by u * V * stride rows. They are loaded straight to partitions (u, k) if that makes long runs;
else w is loaded once, and each u has a transpose of its own rows (`schedules.stacked.WAYS`), after reversed taps are
put in order. Each transpose reads a view of B rows and D columns of taps; if the last group has fewer than D columns of
taps, the partitions of the others are left out.
"""

from ...._nki import nisa, nl
from ....schedules.tiles import cut_into
from ..filter_feed import clear_words, transpose_together, transposes_of_bank, turn_into
from ..regions import load_region, offset_at

#: DMAs of the first filters, if they have many channels: a DMA of fewer partitions begins earlier.
FIRST_DMAS = 2


class TransposedFilters(nl.NKIObject):
    """Stationaries of M tiles that are made, and padded filters of M tiles that are loaded: (w [k, (c, plane), r, s] or
    None, Z [(u, k), (c, plane), rows of the window, columns of taps])."""

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
            z_sbuf = flat_sbuf[0:parts, 0 : C * height * taps].reshape((parts, C, height, taps))
            if not schedule.fits_window:
                clear_words(flat_sbuf, nisa.engine.vector)
            raw_sbuf = None
            if schedule.filters == "straight":
                for u, r, rn in schedule.z_loads:
                    row = schedule.z_row(u) + r * rows.dilation
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
            first, (parts, channels, _, _) = self.schedule.lead, z_sbuf.shape
            place = z_sbuf[0:parts, 0:channels, first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation]
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
