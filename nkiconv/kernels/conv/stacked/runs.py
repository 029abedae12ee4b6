"""Filters of a depthwise stack: Toeplitz matrices, block-diagonal over A channels, made by DMAs of runs.

With z[a] the rows of channel a's filter in reverse order, at distances of the dilation, row h of F has

    F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

neighbouring rows of z from a place on that moves with h: one run for each partition and M tile. z is made in SBUF for
128 channels at a time and read from a copy in HBM, so that one DMA serves row h of channel a of many M tiles. A buffer
has the matrices of a round of M tiles; everything else is zeroed once and never written again, as all runs have the
same places.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.geometry import Geometry
from ....schedules.tiles import div_ceil
from ..._dma import copy
from ..call import Operands, of_array
from ..filter_feed import clear_words, tiles_in_turn
from .diagonal import ROUND_BUFFERS, matrix_elements, reversed_rows, run_of
from .shape import Stack, order_of_groups


@dataclass
class RunFilters(nl.NKIObject):
    """Stationaries of a core's M tiles, a round of them in a buffer; z of their channels in HBM; rounds that are
    loaded."""

    operands: Operands
    geometry: Geometry
    stack: Stack
    jobs: list
    buffers: list
    reversed_hbm: object = None
    rounds: int = 0

    def start(self):
        """Zeros in the first buffer, and z, which waits for few of them."""
        stack, first = self.stack, self.jobs[0][0]
        self._add_buffer()
        zero_tiles(self.buffers[0], 0, stack.early)
        self.reversed_hbm = copy_reversed(
            self.operands, self.geometry, first, self.jobs[-1][0] + self.jobs[-1][1] - first
        )
        zero_tiles(self.buffers[0], stack.early, stack.together)

    def load(self, job):
        """Nothing: all filters are in HBM as runs."""

    def place(self, job):
        """Matrices of a job's round and of the next one, whose buffer the M tile before `job` was the last to use."""
        stack = self.stack
        rounds = min(job // stack.together + ROUND_BUFFERS, div_ceil(len(self.jobs), stack.together))
        while self.rounds < rounds:
            if 0 < self.rounds < ROUND_BUFFERS:
                self._add_buffer()
                zero_tiles(self.buffers[self.rounds], 0, stack.together)
            self._load_round()

    def of_job(self, job):
        """Stationaries [(a, h), (a', p)] of an M tile, by plane of taps and column of taps in order of work."""
        geometry, stack, count = self.geometry, self.stack, self.jobs[job][1]
        buffer_sbuf = self.buffers[job // stack.together % len(self.buffers)]
        step, slot = geometry.rows.stride * geometry.columns.taps, job % stack.together
        parts, found = count * geometry.rows.size, []
        for t in range(geometry.planes.taps):
            for s in order_of_groups(stack):
                end = (geometry.rows.out - 1) * step + s + 1
                found.append(of_array(buffer_sbuf[0:parts, slot, 0:count, t, s:end:step], self.operands))
        return found

    def _add_buffer(self):
        geometry, stack = self.geometry, self.stack
        shape = (stack.parts, stack.together, stack.kn, geometry.planes.taps, matrix_elements(geometry))
        self.buffers = self.buffers + tiles_in_turn(1, shape, self.operands.w_dtype)

    def _load_round(self):
        """Matrices of the next round into the buffer that it takes."""
        first = self.rounds * self.stack.together
        jobs = self.jobs[first : first + self.stack.together]
        channels = jobs[0][0] - self.jobs[0][0], jobs[-1][0] + jobs[-1][1] - jobs[0][0]
        buffer_sbuf = self.buffers[self.rounds % len(self.buffers)]
        load_runs(buffer_sbuf, self.reversed_hbm, self.geometry, self.stack.kn, channels)
        self.rounds += 1


def copy_reversed(operands, geometry, c0, cn):
    """z of channels c0 .. c0+cn-1 in HBM: [cn, planes of taps * depth * columns of taps]."""
    planes, rows, S = geometry.planes.taps, geometry.rows, geometry.columns.taps
    size = planes * reversed_rows(geometry) * S
    scratch_hbm = nl.ndarray((cn, size), dtype=operands.w_dtype, buffer=nl.private_hbm)
    for begin in range(0, cn, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, cn - begin)
        w_sbuf = nl.ndarray((count, planes * rows.taps, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        by_k, by_c, by_r, by_s = geometry.w_strides
        by_k = by_c if geometry.flipped else by_k
        pattern = [[by_k, count], [by_r, planes * rows.taps], [by_s, S]]
        copy(w_sbuf, operands.w.ap(pattern=pattern, offset=(c0 + begin) * by_k))
        z_sbuf = nl.ndarray((count, planes * reversed_rows(geometry), S), dtype=operands.w_dtype, buffer=nl.sbuf)
        if rows.dilation > 1:
            nisa.memset(dst=z_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        if geometry.flipped:
            turn_columns(z_sbuf, w_sbuf, geometry)
        for index in range(0 if geometry.flipped else planes * rows.taps):
            t, r = index // rows.taps, index % rows.taps
            row = t * reversed_rows(geometry) + (rows.taps - 1 - r) * rows.dilation
            nisa.tensor_copy(dst=z_sbuf[0:count, row, 0:S], src=w_sbuf[0:count, index, 0:S], engine=nisa.engine.vector)
        copy(scratch_hbm[begin : begin + count, 0:size], z_sbuf.reshape((count, size)))
    return scratch_hbm


def turn_columns(z_sbuf, w_sbuf, geometry):
    """The same of the filter of a transposed convolution, whose rows are in reverse order already, not its planes."""
    rows, planes = geometry.rows, geometry.planes.taps
    count, _, S = w_sbuf.shape
    for index in range(planes * S):
        t, s = index // S, index % S
        first, src = t * reversed_rows(geometry), (planes - 1 - t) * rows.taps
        nisa.tensor_copy(
            dst=z_sbuf[0:count, first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation, s],
            src=w_sbuf[0:count, src : src + rows.taps, S - 1 - s],
            engine=nisa.engine.vector,
        )


def zero_tiles(buffer_sbuf, first, end):
    """Zeros in M tiles first .. end-1 of a buffer, Vector and GpSimd in turn."""
    parts, _, A, planes, size = buffer_sbuf.shape
    for tile in range(first, end):
        engine = nisa.engine.gpsimd if tile % 3 == 2 else nisa.engine.vector
        clear_words(buffer_sbuf[0:parts, tile, 0:A, 0:planes, 0:size], engine)


def load_runs(buffer_sbuf, reversed_hbm, geometry, A, channels):
    """Matrices of `channels` (first, how many) of z, A a M tile but for the last, into a buffer [(a, h), M tile, a',
    plane of taps, window * columns of taps]."""
    c0, cn = channels
    S, planes, height = geometry.columns.taps, geometry.planes.taps, geometry.rows.size
    plane = reversed_rows(geometry) * S
    for a in range(min(A, cn)):
        tiles = div_ceil(cn - a, A)
        for h in range(height):
            row, z, count = run_of(geometry, h)
            if count > 0:
                pattern = [[planes * plane, 1], [A * planes * plane, tiles], [plane, planes], [1, count * S]]
                partition = a * height + h
                copy(
                    buffer_sbuf[partition : partition + 1, 0:tiles, a, 0:planes, row * S : (row + count) * S],
                    reversed_hbm.ap(pattern=pattern, offset=(c0 + a) * planes * plane + z * S),
                )
