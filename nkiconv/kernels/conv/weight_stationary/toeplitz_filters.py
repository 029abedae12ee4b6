"""Filters of a depthwise stack: Toeplitz matrices, block-diagonal over A channels, made by a DMA for each run.

Let z[a] be the rows of channel a's filter in reverse order, a dilation apart. Row h of F is

    F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

neighbouring rows of z from a place on that moves with h: one run for each partition and M tile. z is made in SBUF for
128 channels at a time and read from a copy in HBM, so that one DMA serves row h of channel a of many M tiles. A buffer
holds the matrices of a round of M tiles; everything else is zeroed once and never written again, as the runs of all
rounds have the same places.
"""

from ...._nki import nisa, nl
from ....schedules.cuts import window_of
from ....schedules.stacked_schedule import ROUND_BUFFERS, matrix_elements
from ....schedules.tiles import div_ceil
from ..._dma import copy
from ..filter_feed import clear_words, tiles_in_turn, turn_forwards
from ..regions import load_depthwise


class ToeplitzFilters(nl.NKIObject):
    """Stationaries of a core's M tiles, a round of them in a buffer; z of their channels in HBM; the number of loaded
    rounds."""

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
            w_sbuf = turn_forwards(w_sbuf) if geometry.flipped else w_sbuf
            for t in range(planes):
                for r in range(rows.taps):
                    row, own = t * depth + (rows.taps - 1 - r) * rows.dilation, w_sbuf[:, 0, t * rows.taps + r]
                    nisa.tensor_copy(dst=z_sbuf[0:n, row, 0:S], src=own, engine=nisa.engine.vector)
            copy(found_hbm[begin : begin + n], z_sbuf.reshape((n, planes * self.plane)))
        return found_hbm
