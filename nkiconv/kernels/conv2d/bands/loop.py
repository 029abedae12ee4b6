"""The loop of depthwise conv2d by bands: one group of channels after another, rows of x come in, rows of y go out."""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger
from ..._epilogue import finish
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..call import of_array, reader, scale_residual
from ..geometry import met
from .filters import copy_reversed, load_bands, start_buffer, stationary
from .plan import BAND_BUFFERS, WARM_UP_BLOCKS


def run_bands(operands, geometry, extras, bands):
    """This core's part of the groups."""
    parts = share(PARTS, nl.num_programs(), nl.program_id(0))
    first = share(bands.groups, PARTS, parts[0])
    last = share(bands.groups, PARTS, parts[0] + parts[1] - 1)
    g0, gn = first[0], last[0] + last[1] - first[0]
    if gn == 0:
        return
    A = bands.A
    c0 = g0 * A
    cn = min(geometry.C, (g0 + gn) * A) - c0
    ring = x_ring(operands, geometry, bands, min(bands.buffers, gn))
    rounds = div_ceil(gn, bands.together)
    buffers = [start_buffer(operands, geometry, bands)]
    scratch_hbm = copy_reversed(operands, geometry, bands, c0, cn)
    xs = []
    for group in range(len(ring)):
        xs.append(load_group(operands, geometry, bands, c0, cn, group, ring))
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, bands.warmup, WARM_UP_BLOCKS)
    take_round(buffers, scratch_hbm, geometry, bands, cn, 0)
    for index in range(1, min(BAND_BUFFERS, rounds)):
        buffers.append(start_buffer(operands, geometry, bands))
        take_round(buffers, scratch_hbm, geometry, bands, cn, index)
    ledger = Ledger(vector_ns=0.0, scalar_ns=0.0)
    for group in range(gn):
        if group >= len(xs):
            xs.append(load_group(operands, geometry, bands, c0, cn, group, ring))
        index = group // bands.together
        channels = min(A, cn - group * A)
        work_group(
            operands,
            geometry,
            extras.epilogue,
            bands,
            c0 + group * A,
            channels,
            xs[group],
            buffers[index % len(buffers)],
            group % bands.together,
            zeros_sbuf,
            ledger,
        )
        if group + len(ring) < gn and group + len(ring) == len(xs):
            xs.append(load_group(operands, geometry, bands, c0, cn, group + len(ring), ring))
        if group % bands.together == bands.together - 1 and index + len(buffers) < rounds:
            take_round(buffers, scratch_hbm, geometry, bands, cn, index + len(buffers))


def take_round(buffers, scratch_hbm, geometry, bands, cn, index):
    """Bands of the groups of a round, into the buffer whose turn it is."""
    first = index * bands.together * bands.A
    count = min(cn - first, bands.together * bands.A)
    load_bands(buffers[index % len(buffers)], scratch_hbm, geometry, bands, first, count)


def x_ring(operands, geometry, bands, count):
    """Buffers [(a, h), images, columns] of x; none where no tap meets any column."""
    ring = []
    for _ in range(count if bands.width > 0 else 0):
        shape = (bands.A * geometry.rows.size, geometry.N, bands.width)
        ring.append(nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf))
    return ring


def load_group(operands, geometry, bands, c0, cn, group, ring):
    """x of a group of channels: [(a, h), images, columns] in the buffer whose turn it is, or None."""
    if len(ring) == 0:
        return None
    rows = geometry.rows
    channels = min(bands.A, cn - group * bands.A)
    x_sbuf = ring[group % len(ring)]
    copy(
        x_sbuf[0 : channels * rows.size, 0 : geometry.N, 0 : bands.width],
        operands.x.ap(
            pattern=[
                [geometry.x_c, channels],
                [geometry.x_h, rows.size],
                [geometry.x_n, geometry.N],
                [geometry.x_w, bands.width],
            ],
            offset=(c0 + group * bands.A) * geometry.x_c + bands.w0 * geometry.x_w,
        ),
    )
    return x_sbuf


def work_group(operands, geometry, epilogue, bands, c0, channels, x_sbuf, buffer_sbuf, slot, zeros_sbuf, ledger):
    """Results of a group of channels, from c0 on."""
    outputs, Q = channels * geometry.rows.out, geometry.columns.out
    y_sbuf = nl.ndarray((outputs, geometry.N, Q), dtype=operands.y.dtype, buffer=nl.sbuf)
    bias_sbuf = load_bias_of_rows(operands.bias, geometry, c0, channels)
    residual_sbuf = load_residual(operands, geometry, c0, channels)
    at_once = max(1, BANK_COLUMNS // Q)
    for n in range(0, geometry.N, at_once):
        nn = min(at_once, geometry.N - n)
        acc_psum = nl.ndarray((outputs, nn, Q), dtype=nl.float32, buffer=nl.psum)
        accumulate(acc_psum, operands, geometry, bands, channels, x_sbuf, buffer_sbuf, slot, n, zeros_sbuf)
        residual = None
        if residual_sbuf != None:
            residual = residual_sbuf[0:outputs, n : n + nn, 0:Q]
        engine = reader(ledger, epilogue, nn * Q)
        finish(y_sbuf[0:outputs, n : n + nn, 0:Q], acc_psum, bias_sbuf, residual, epilogue, engine)
    copy(operands.y.ap(pattern=y_pattern(geometry, channels), offset=c0 * geometry.y_k), y_sbuf)


def accumulate(acc_psum, operands, geometry, bands, channels, x_sbuf, buffer_sbuf, slot, n, zeros_sbuf):
    """Sums [(a, p), images, columns] of images n, n+1, ... in PSUM.

    Columns of taps that meet x at all columns of y come first, so that the others add to what is there, where they meet
    x; where none does, a product of zeros does.
    """
    columns, inputs = geometry.columns, channels * geometry.rows.size
    outputs, nn, Q = acc_psum.shape
    whole, partial = [], []
    for s in range(columns.taps):
        found = met(columns, s, 0, Q)
        if found[2] == Q:
            whole.append((s, found))
        elif found[2] > 0:
            partial.append((s, found))
    if len(whole) == 0:
        nisa.nc_matmul(
            dst=acc_psum,
            stationary=zeros_sbuf[0:1, 0:outputs],
            moving=zeros_sbuf.ap(pattern=[[zeros_sbuf.shape[1], 1], [0, nn], [0, Q]], offset=0),
            accumulate=False,
        )
    every = whole + partial
    for index in range(len(every)):
        s, found = every[index]
        q, count, w, step = found[0], found[2], found[3] - bands.w0, found[4]
        bands_sbuf = stationary(buffer_sbuf, geometry, bands, slot, channels, s)
        moving_sbuf = x_sbuf[0:inputs, n : n + nn, w : w + (count - 1) * step + 1 : step]
        nisa.nc_matmul(
            dst=acc_psum[0:outputs, 0:nn, q : q + count],
            stationary=of_array(bands_sbuf, operands),
            moving=of_array(moving_sbuf, operands),
            accumulate=index > 0 or len(whole) == 0,
        )


def y_pattern(geometry, channels):
    """y of some channels: [(a, p), images, columns]."""
    return [
        [geometry.y_k, channels],
        [geometry.y_p, geometry.rows.out],
        [geometry.y_n, geometry.N],
        [geometry.y_q, geometry.columns.out],
    ]


def load_bias_of_rows(bias_hbm, geometry, c0, channels):
    """[(a, p), 1] fp32 in SBUF, or None."""
    if bias_hbm == None:
        return None
    P = geometry.rows.out
    bias_sbuf = nl.ndarray((channels * P, 1), dtype=nl.float32, buffer=nl.sbuf)
    copy(bias_sbuf, bias_hbm.ap(pattern=[[1, channels], [0, P], [1, 1]], offset=c0))
    return bias_sbuf


def load_residual(operands, geometry, c0, channels):
    """The residual of a group times beta, fp32 if it was multiplied, or None."""
    if operands.residual == None:
        return None
    shape = (channels * geometry.rows.out, geometry.N, geometry.columns.out)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    copy(residual_sbuf, operands.residual.ap(pattern=y_pattern(geometry, channels), offset=c0 * geometry.y_k))
    return scale_residual(residual_sbuf, operands.beta)
