"""Toeplitz matrices of depthwise filters, made by DMAs of windows.

With z[a] the rows of channel a's filter in reverse order, at distances of the dilation, row h of F has

    F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

rows of z in their order from a place on that moves with h: one run for each partition and group. z is made in SBUF for
128 channels at a time and read from a copy in HBM, so that one DMA serves row h of channel a of many groups. A buffer
has the matrices of several groups, block-diagonal over the channels; everything else is zeroed once and never written
again, as all groups' runs have the same places.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil
from ..filter_feed import clear_words
from .shape import run_of


def copy_reversed(operands, geometry, toeplitz, c0, cn):
    """z of channels c0 .. c0+cn-1 in HBM: [cn, planes of taps * depth * columns of taps]."""
    planes, rows, S = geometry.planes.taps, geometry.rows, geometry.columns.taps
    size = planes * toeplitz.depth * S
    scratch_hbm = nl.ndarray((cn, size), dtype=operands.w_dtype, buffer=nl.private_hbm)
    for begin in range(0, cn, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, cn - begin)
        w_sbuf = nl.ndarray((count, planes * rows.taps, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        by_k, by_c, by_r, by_s = geometry.w_strides
        by_k = by_c if geometry.flipped else by_k
        pattern = [[by_k, count], [by_r, planes * rows.taps], [by_s, S]]
        copy(w_sbuf, operands.w.ap(pattern=pattern, offset=(c0 + begin) * by_k))
        z_sbuf = nl.ndarray((count, planes * toeplitz.depth, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        if rows.dilation > 1:
            nisa.memset(dst=z_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        if geometry.flipped:
            turn_columns(z_sbuf, w_sbuf, geometry, toeplitz)
        for index in range(0 if geometry.flipped else planes * rows.taps):
            t, r = index // rows.taps, index % rows.taps
            row = t * toeplitz.depth + (rows.taps - 1 - r) * rows.dilation
            nisa.tensor_copy(dst=z_sbuf[0:count, row, 0:S], src=w_sbuf[0:count, index, 0:S], engine=nisa.engine.vector)
        copy(scratch_hbm[begin : begin + count, 0:size], z_sbuf.reshape((count, size)))
    return scratch_hbm


def turn_columns(z_sbuf, w_sbuf, geometry, toeplitz):
    """The same of the filter of a transposed convolution, whose rows are in reverse order already, not its planes."""
    rows, planes = geometry.rows, geometry.planes.taps
    count, _, S = w_sbuf.shape
    for index in range(planes * S):
        t, s = index // S, index % S
        first, src = t * toeplitz.depth, (planes - 1 - t) * rows.taps
        nisa.tensor_copy(
            dst=z_sbuf[0:count, first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation, s],
            src=w_sbuf[0:count, src : src + rows.taps, S - 1 - s],
            engine=nisa.engine.vector,
        )


def zero_groups(buffer_sbuf, first, end):
    """Zeros in groups first .. end-1 of a buffer, Vector and GpSimd in turn."""
    parts, _, A, planes, size = buffer_sbuf.shape
    for group in range(first, end):
        engine = nisa.engine.gpsimd if group % 3 == 2 else nisa.engine.vector
        clear_words(buffer_sbuf[0:parts, group, 0:A, 0:planes, 0:size], engine)


def load_toeplitz_runs(buffer_sbuf, scratch_hbm, geometry, toeplitz, c0, cn):
    """Matrices of channels c0 .. c0+cn-1 of the scratch, whole groups but for the last, into a buffer [(a, h), group,
    a', plane of taps, window * columns of taps]."""
    A, S, planes, height = toeplitz.A, geometry.columns.taps, geometry.planes.taps, geometry.rows.size
    channel = planes * toeplitz.depth * S
    for a in range(min(A, cn)):
        groups = div_ceil(cn - a, A)
        for h in range(height):
            row, z, count = run_of(geometry, h)
            if count > 0:
                pattern = [[channel, 1], [A * channel, groups], [toeplitz.depth * S, planes], [1, count * S]]
                partition = a * height + h
                copy(
                    buffer_sbuf[partition : partition + 1, 0:groups, a, 0:planes, row * S : (row + count) * S],
                    scratch_hbm.ap(pattern=pattern, offset=(c0 + a) * channel + z * S),
                )


def toeplitz_stationary(buffer_sbuf, geometry, slot, channels, t, s):
    """F[t, s] of so many channels of a group: [(a, h), (a', p)]."""
    step = geometry.rows.stride * geometry.columns.taps
    end = (geometry.rows.out - 1) * step + s + 1
    return buffer_sbuf[0 : channels * geometry.rows.size, slot, 0:channels, t, s:end:step]
