"""Band matrices of depthwise filters, made by DMAs of windows.

With z[a] the rows of channel a's filter in reverse order, at distances of the dilation, row h of F has

    F[(a, h), p, s] = w[a, (h + top - p * stride) / dilation, s] = z[a][p * stride + shift - h, s],

rows of z in their order from a place on that moves with h: one run for each partition and group. z is made in SBUF for
128 channels at a time and read from a copy in HBM, so that one DMA serves row h of channel a of many groups. A buffer
has the bands of several groups, block-diagonal over the channels; everything else is zeroed once and never written
again, as all groups' runs have the same places. Where a partition has several rows of x, F has those beside each other.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil, whole_words
from .shape import runs_of


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


def new_buffer(operands, geometry, bands):
    """A buffer [(tile, a, m), group, i, a', window * columns of taps]."""
    size = bands.window * geometry.columns.taps
    shape = (parts_of(geometry, bands), bands.together, bands.fold, bands.A, whole_words(size, geometry.itemsize))
    return nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)


def zero_groups(buffer_sbuf, first, end):
    """Zeros in groups first .. end-1 of a buffer, Vector and GpSimd in turn."""
    parts, groups, fold, A, size = buffer_sbuf.shape
    flat = buffer_sbuf.reshape((parts, groups, fold * A * size))
    # a word of four bytes at a time
    words = flat if buffer_sbuf.dtype == nl.float32 else flat.view(nl.float32)
    for group in range(first, end):
        nisa.memset(
            dst=words[0:parts, group, 0 : words.shape[2]],
            value=0.0,
            engine=nisa.engine.gpsimd if group % 3 == 2 else nisa.engine.vector,
        )


def load_bands(buffer_sbuf, scratch_hbm, geometry, bands, c0, cn):
    """Bands of channels c0 .. c0+cn-1 of the scratch, whole groups but for the last, into a buffer."""
    A, fold, S = bands.A, bands.fold, geometry.columns.taps
    channel = bands.depth * S
    for which in range(min(fold * A, cn)):
        tile, a = which // A, which % A
        groups = div_ceil(cn - which, fold * A)
        for m in range(geometry.rows.size // fold):
            partition = tile * bands.tile_rows + a * (geometry.rows.size // fold) + m
            for run in runs_of(geometry, fold, m):
                i, times, first, row, count = run
                load_run(
                    buffer_sbuf,
                    scratch_hbm.ap(
                        pattern=[[channel, 1], [fold * A * channel, groups], [0, times], [1, count * S]],
                        offset=(c0 + which) * channel + row * S,
                    ),
                    (partition, groups, i, times, a, first * S),
                    S,
                )


def load_run(buffer_sbuf, src, place, S):
    """A run of each of some groups, `times` rows of x one below the other. place: (partition, groups, first row of the
    partition, times, a, first element)."""
    partition, groups, i, times, a, first = place
    together, fold, A, size = buffer_sbuf.shape[1:]
    free = together * fold * A * size
    # one row of x further, a run begins a row of the window later
    pattern = [[free, 1], [fold * A * size, groups], [A * size + S, times], [1, src.shape[3]]]
    copy(buffer_sbuf.ap(pattern=pattern, offset=partition * free + (i * A + a) * size + first), src)


def parts_of(geometry, bands):
    """Partitions of x and of bands."""
    return (bands.fold - 1) * bands.tile_rows + bands.A * (geometry.rows.size // bands.fold)


def channels_of(bands, tile, channels):
    """Channels of a tile, of so many of a group."""
    return max(0, min(bands.A, channels - tile * bands.A))


def stationary(buffer_sbuf, geometry, bands, slot, tile, channels, i, s):
    """F[s] of row i of a tile's partitions: [(a, m), (a', p)] of so many of the tile's channels."""
    S, stride, P = geometry.columns.taps, geometry.rows.stride, geometry.rows.out
    first, count = tile * bands.tile_rows, channels * (geometry.rows.size // bands.fold)
    end = (P - 1) * stride * S + s + 1
    return buffer_sbuf[first : first + count, slot, i, 0:channels, s : end : stride * S]
