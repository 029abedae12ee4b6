"""Toeplitz matrices of all taps of a depthwise filter, made by DMAs of windows.

With rows of taps `pitch` apart, as wide as what a matrix has of a row of y, its elements are those of a sequence,

    F[k][(j, w), (p, q)] = g[(k * step + j * lhs_dilation - p) * pitch + w * lhs_dilation + lead - q],
    g[r * dilation * pitch + s * dilation] = w[r, s],

g backwards from a place on that moves with the partition: one run a partition and channel has all k, the last first.
The sequences are made in SBUF, a channel a partition, and one DMA serves a partition of many channels.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.tiles import cut_at
from ..._dma import copy
from .shape import line_length, matrix_size, place_of


@dataclass
class Matrices(nl.NKIObject):
    """Matrices of a round [places, (c, k backwards), rows, width], and biases, the same on all partitions, or None."""

    tile: object
    bias: object


def load_matrices(tile_sbuf, lines, operands, geometry, blocks, chunk):
    """Matrices of a round of channels on their way to a tile [places, c, run]. chunk: first of them among those of
    `lines`, which `copy_backwards` made, first of all, how many."""
    at, c0, cn = chunk
    size, run, most = blocks.rows * blocks.width, matrix_size(blocks), nl.tile_size.pmax
    length = line_length(geometry, blocks)
    for place in range(size):
        start, done = length - 1 - run - place_of(geometry, blocks, place), 0
        while done < cn:
            first = (at + done) % most
            count = min(cn - done, most - first)
            src = lines[(at + done) // most].ap(
                pattern=[[length, count], [1, 1], [1, run]], offset=first * length + start
            )
            copy(tile_sbuf[place : place + 1, done : done + count, 0:run], src)
            done += count
    bias_sbuf = None
    if operands.bias != None:
        bias_sbuf = nl.ndarray((most, cn), dtype=nl.float32, buffer=nl.sbuf)
        copy(bias_sbuf, operands.bias.ap(pattern=[[0, most], [1, cn]], offset=c0))
    tile_sbuf = tile_sbuf[0:size, 0:cn, 0:run]
    return Matrices(tile=tile_sbuf.reshape((size, cn * blocks.depth, blocks.step, blocks.pitch)), bias=bias_sbuf)


def load_depthwise_taps(operands, geometry, c0, cn):
    """Filters of some channels as they lie, [c, r, s], of as many as there are partitions each."""
    R, S, found = geometry.rows.taps, geometry.columns.taps, []
    by_k, by_c, by_r, by_s = geometry.w_strides
    by_k = by_c if geometry.flipped else by_k
    for part in cut_at(cn, nl.tile_size.pmax):
        w_sbuf = nl.ndarray((part[1], R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        pattern = [[by_k, part[1]], [by_r, R], [by_s, S]]
        copy(w_sbuf, operands.w.ap(pattern=pattern, offset=(c0 + part[0]) * by_k))
        found.append(w_sbuf)
    return found


def copy_backwards(w_sbuf, operands, geometry, blocks):
    """The sequence of each channel backwards, in SBUF: zeros but for taps; as many as a matrix has follow g[0]."""
    length, cn = line_length(geometry, blocks), w_sbuf.shape[0]
    R, S, dilation = geometry.rows.taps, geometry.columns.taps, (geometry.rows.dilation, geometry.columns.dilation)
    engines = (nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd)
    line_sbuf = nl.ndarray((cn, length), dtype=operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=line_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for r in range(R):
        row = length - 1 - blocks.step * blocks.pitch - r * dilation[0] * blocks.pitch
        # taps before the first element meet zeros between pixels alone
        count = min(S, row // dilation[1] + 1) if row >= 0 else 0
        if geometry.flipped and count > 0:
            first = row - (count - 1) * dilation[1]
            dst, src = line_sbuf[0:cn, first : row + 1 : dilation[1]], w_sbuf[0:cn, R - 1 - r, S - count : S]
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)
        for s in range(0 if geometry.flipped else count):
            at = row - s * dilation[1]
            engine = engines[(r * S + s) % 3]
            nisa.tensor_copy(dst=line_sbuf[0:cn, at : at + 1], src=w_sbuf[0:cn, r, s : s + 1], engine=engine)
    return line_sbuf


def moving_of(matrices, blocks, c, k, places, product):
    """F[k] of a channel for what a product sums up: [places, rows, columns]."""
    index, first = c * blocks.depth + blocks.depth - 1 - k, product.first
    down, on = blocks.matrix_steps
    end = (first + product.columns[1] - 1) * on + 1
    return matrices.tile[0:places, index, 0 : blocks.step : down, first * on : end : on]
