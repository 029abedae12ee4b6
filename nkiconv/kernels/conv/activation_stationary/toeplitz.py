"""Toeplitz matrices of all taps of a depthwise filter, made by DMAs of windows.

With rows of taps `pitch` apart, as wide as what a matrix has of a row of y, its elements are those of a sequence,

    F[k][(j, w), (p, q)] = g[(k * step + j * lhs_dilation - p) * pitch + w * lhs_dilation + lead - q],
    g[r * dilation * pitch + s * dilation] = w[r, s],

g backwards from a place on that moves with the partition: one run a partition and channel has all k, the last first.
The sequences are made in SBUF, a channel a partition, and one DMA serves a partition of many channels.
"""

from ...._nki import nisa, nl
from ....schedules.tiles import cut_at
from ..._dma import copy


def load_taps(operands, geometry, c0, cn):
    """Filters of some channels in memory order, [c, r, s], of as many as there are partitions each."""
    R, S, found = geometry.rows.taps, geometry.columns.taps, []
    by_k, by_c, by_r, by_s = geometry.w_strides
    by_k = by_c if geometry.flipped else by_k
    for first, count in cut_at(cn, nl.tile_size.pmax):
        w_sbuf = nl.ndarray((count, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        pattern = [[by_k, count], [by_r, R], [by_s, S]]
        copy(w_sbuf, operands.w.ap(pattern=pattern, offset=(c0 + first) * by_k))
        found.append(w_sbuf)
    return found


def copy_backwards(work, w_sbuf):
    """The sequence of each channel backwards, in SBUF: zeros but for taps; as many as a matrix has follow g[0]."""
    geometry, plan, cn = work.geometry, work.plan, w_sbuf.shape[0]
    R, S, down, on = geometry.rows.taps, geometry.columns.taps, geometry.rows.dilation, geometry.columns.dilation
    engines = (nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd)
    line_sbuf = nl.ndarray((cn, plan.line_length), dtype=work.operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=line_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for r in range(R):
        row = plan.line_length - 1 - plan.step * plan.pitch - r * down * plan.pitch
        # taps before the first element meet zeros between pixels alone
        count = min(S, row // on + 1) if row >= 0 else 0
        if geometry.flipped and count > 0:
            first = row - (count - 1) * on
            dst, src = line_sbuf[0:cn, first : row + 1 : on], w_sbuf[0:cn, R - 1 - r, S - count : S]
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)
        for s in range(0 if geometry.flipped else count):
            dst, src = line_sbuf[0:cn, row - s * on : row - s * on + 1], w_sbuf[0:cn, r, s : s + 1]
            nisa.tensor_copy(dst=dst, src=src, engine=engines[(r * S + s) % 3])
    return line_sbuf


def load_matrices(work, tile_sbuf, lines, channels):
    """Matrices of channels (first among those of `lines`, how many) on their way to a tile [places, c, run]; returns
    them as [places, (c, k backwards), rows, width]."""
    plan, (at, cn), most, length = work.plan, channels, nl.tile_size.pmax, work.plan.line_length
    run = plan.matrix_size
    for place in range(plan.size):
        start, done = length - 1 - run - plan.place_of(place), 0
        while done < cn:
            first = (at + done) % most
            count = min(cn - done, most - first)
            pattern = [[length, count], [1, 1], [1, run]]
            src = lines[(at + done) // most].ap(pattern=pattern, offset=first * length + start)
            copy(tile_sbuf[place : place + 1, done : done + count, 0:run], src)
            done += count
    return tile_sbuf[0 : plan.size, 0:cn, 0:run].reshape((plan.size, cn * plan.depth, plan.step, plan.pitch))
