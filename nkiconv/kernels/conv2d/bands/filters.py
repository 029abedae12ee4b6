"""Band matrices of depthwise filters, made by DMAs of windows.

With z[a] the rows of channel a's filter in reverse order, at distances of the dilation, row h of F has

    F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

rows of z in their order from a place on that moves with h: one run for each partition and group. z is made in SBUF for
128 channels at a time and read from a copy in HBM, so that one DMA serves row h of channel a of many groups. A buffer
has the bands of several groups, block-diagonal over the channels; everything else is zeroed once and never written
again, as all groups' runs have the same places.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil


def copy_reversed(operands, geometry, bands, c0, cn):
    """z of channels c0 .. c0+cn-1 in HBM: [cn, depth * columns of taps]."""
    rows, S = geometry.rows, geometry.columns.taps
    size = bands.depth * S
    scratch_hbm = nl.ndarray((cn, size), dtype=operands.w_dtype, buffer=nl.private_hbm)
    for begin in range(0, cn, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, cn - begin)
        w_sbuf = nl.ndarray((count, rows.taps, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        pattern = [[geometry.w_k, count], [geometry.w_r, rows.taps], [geometry.w_s, S]]
        copy(w_sbuf, operands.w.ap(pattern=pattern, offset=(c0 + begin) * geometry.w_k))
        z_sbuf = nl.ndarray((count, bands.depth, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        if rows.dilation > 1:
            nisa.memset(dst=z_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for r in range(rows.taps):
            row = (rows.taps - 1 - r) * rows.dilation
            nisa.tensor_copy(dst=z_sbuf[0:count, row, 0:S], src=w_sbuf[0:count, r, 0:S], engine=nisa.engine.vector)
        copy(scratch_hbm[begin : begin + count, 0:size], z_sbuf.reshape((count, size)))
    return scratch_hbm


def start_buffer(operands, geometry, bands):
    """A buffer [(a, h), group, a', window * columns of taps], zeroed."""
    size = bands.window * geometry.columns.taps
    shape = (bands.A * geometry.rows.size, bands.together, bands.A, size + size % 2)
    buffer_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    words = buffer_sbuf if operands.w_dtype == nl.float32 else buffer_sbuf.view(nl.float32)
    for group in range(bands.together):
        nisa.memset(
            dst=words[0 : shape[0], group, 0 : bands.A, 0 : words.shape[3]],
            value=0.0,
            engine=nisa.engine.gpsimd if group % 3 == 2 else nisa.engine.vector,
        )
    return buffer_sbuf


def load_bands(buffer_sbuf, scratch_hbm, geometry, bands, c0, cn):
    """Bands of channels c0 .. c0+cn-1 of the scratch, whole groups but for the last, into a buffer."""
    A, H, S = bands.A, geometry.rows.size, geometry.columns.taps
    channel = bands.depth * S
    for a in range(min(A, cn)):
        groups = div_ceil(cn - a, A)
        for h in range(H):
            first, row, count = run_of(geometry, bands, h)
            if count > 0:
                copy(
                    buffer_sbuf[a * H + h : a * H + h + 1, 0:groups, a, first * S : (first + count) * S],
                    scratch_hbm.ap(
                        pattern=[[channel, 1], [A * channel, groups], [1, count * S]],
                        offset=(c0 + a) * channel + row * S,
                    ),
                )


def run_of(geometry, bands, h):
    """(row of the window, row of z, how many) that row h of x meets; none is 0."""
    rows = geometry.rows
    # output p meets row p * stride + r * dilation - top of x at tap r
    place = h + rows.before - bands.depth + 1
    first = max(0, place)
    return first, first - place, max(0, min(bands.window, place + bands.depth) - first)


def stationary(buffer_sbuf, geometry, bands, group, channels, s):
    """F[s] of a group of a buffer: [(a, h), (a', p)]."""
    S, stride, P = geometry.columns.taps, geometry.rows.stride, geometry.rows.out
    end = (P - 1) * stride * S + s + 1
    return buffer_sbuf[0 : channels * geometry.rows.size, group, 0:channels, s : end : stride * S]
