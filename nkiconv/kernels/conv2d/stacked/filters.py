"""Filters of a stack as stationaries [(d, b, c), (t, g), (u, k)], zero-padded and turned on the array.

Output row u of a block meets tap r at row u * stride + r * dilation of the block's window, so the filters of u are a
copy of w shifted down by u * stride rows, with (u, k) on the partitions. They come from HBM in long runs and are
shifted on chip where engines may address the partitions of one u, else straight to their places, in short runs. A view
of B rows and D columns of taps of that is then turned by one transpose.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES
from ..call import of_array

#: Engines address partitions from a multiple of this on.
QUADRANT = 32


def load_padded(operands, geometry, stack, job):
    """(w as loaded [(u, k), c, r, s] or None, Z [(u, k), c, rows of the window, columns of taps]) of a job.

    job: (first channel, channels). Z lacks what is to be shifted on chip.
    """
    k0, kn = job
    rows, columns = geometry.rows, geometry.columns
    height, width = stack.num_taps * stack.B, stack.groups * stack.D
    fits = stack.U == 1 and height == rows.taps and width == columns.taps
    on_chip = not fits and (stack.U == 1 or kn % QUADRANT == 0)
    pattern = [
        [geometry.w_k, kn],
        [geometry.w_c, geometry.C],
        [geometry.w_r, rows.taps],
        [geometry.w_s, columns.taps],
    ]
    size = geometry.C * height * width
    flat_sbuf = nl.ndarray((stack.U * kn, size + size % 2), dtype=operands.w_dtype, buffer=nl.sbuf)
    z_sbuf = flat_sbuf[0 : stack.U * kn, 0:size].reshape((stack.U * kn, geometry.C, height, width))
    if not fits:
        # two elements of 16 bits at a time
        words = flat_sbuf if operands.w_dtype == nl.float32 else flat_sbuf.view(nl.float32)
        nisa.memset(dst=words, value=0.0, engine=nisa.engine.vector)
    if on_chip:
        shape = (stack.U * kn, geometry.C, rows.taps, columns.taps)
        raw_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
        for u in range(stack.U):
            copy(
                raw_sbuf[u * kn : (u + 1) * kn, 0 : geometry.C, 0 : rows.taps, 0 : columns.taps],
                operands.w.ap(pattern=pattern, offset=k0 * geometry.w_k),
            )
        return raw_sbuf, z_sbuf
    for u in range(stack.U):
        if rows.dilation == 1:
            copy(place_of(z_sbuf, geometry, kn, u), operands.w.ap(pattern=pattern, offset=k0 * geometry.w_k))
        else:
            # rows of taps that are no neighbours take a DMA for each: an access pattern has few dims
            for r in range(rows.taps):
                first = u * rows.stride + r * rows.dilation
                copy(
                    z_sbuf[u * kn : (u + 1) * kn, 0 : geometry.C, first, 0 : columns.taps],
                    operands.w.ap(
                        pattern=[pattern[0], pattern[1], pattern[3]], offset=k0 * geometry.w_k + r * geometry.w_r
                    ),
                )
    return None, z_sbuf


def place_of(z_sbuf, geometry, kn, u):
    """Where the filters of output row u are in Z."""
    rows, columns = geometry.rows, geometry.columns
    first = u * rows.stride
    return z_sbuf[
        u * kn : (u + 1) * kn,
        0 : geometry.C,
        first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation,
        0 : columns.taps,
    ]


def shift_rows(padded, geometry, stack, job):
    """Z, complete."""
    raw_sbuf, z_sbuf = padded
    kn = job[1]
    if raw_sbuf != None:
        for u in range(stack.U):
            nisa.tensor_copy(
                dst=place_of(z_sbuf, geometry, kn, u),
                src=raw_sbuf[u * kn : (u + 1) * kn, 0 : geometry.C, 0 : raw_sbuf.shape[2], 0 : raw_sbuf.shape[3]],
                engine=nisa.engine.vector,
            )
    return z_sbuf


def turn_padded(operands, padded, geometry, stack, job, ledger):
    """Stationaries [(d, b, c), (t, g), (u, k)] of a job, from what `load_padded` returned."""
    z_sbuf = shift_rows(padded, geometry, stack, job)
    B, D, C = stack.B, stack.D, geometry.C
    parts, outputs = D * B * C, stack.U * job[1]
    count = stack.num_taps * stack.groups
    even = outputs + outputs % 2
    filters_sbuf = nl.ndarray((parts, count, outputs), dtype=z_sbuf.dtype, buffer=nl.sbuf)
    most = max(1, BANK_BYTES // (even * geometry.itemsize))
    for first in range(0, count, most):
        num = min(most, count - first)
        turned_psum = nl.ndarray((parts, num, even), dtype=z_sbuf.dtype, buffer=nl.psum)
        for index in range(num):
            t = (first + index) // stack.groups
            g = (first + index) % stack.groups
            nisa.nc_transpose(
                dst=turned_psum[0:parts, index, 0:outputs],
                data=z_sbuf[0:outputs, 0:C, t * B : (t + 1) * B, g * D : (g + 1) * D].permute((0, 3, 2, 1)),
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(
            dst=filters_sbuf[0:parts, first : first + num, 0:outputs],
            src=turned_psum[0:parts, 0:num, 0:outputs],
            engine=pick(ledger, num * outputs, is_16bit(z_sbuf.dtype)),
        )
    return of_array(filters_sbuf, operands)
