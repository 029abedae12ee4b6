"""Filters of a stack as stationaries [(d, b, c), (t, g), (u, k)], zero-padded by DMA and turned on the array.

Output row u of a block meets tap r at row u * stride + r * dilation of the block's window, so the filters of u are a
copy of w shifted down by u * stride rows: one DMA each, into zeros, with (u, k) on the partitions. A view of B rows and
D columns of taps of that is then turned by one transpose.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES


def load_padded(w_hbm, geometry, stack, job):
    """Z [(u, k), c, rows of the window, columns of taps] of a job (first channel, channels): shifted copies of w."""
    k0, kn = job
    rows, columns = geometry.rows, geometry.columns
    height, width = stack.num_taps * stack.B, stack.groups * stack.D
    z_sbuf = nl.ndarray((stack.U * kn, geometry.C, height, width), dtype=w_hbm.dtype, buffer=nl.sbuf)
    if stack.U > 1 or height > rows.taps or width > columns.taps or rows.dilation > 1:
        nisa.memset(dst=z_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for u in range(stack.U):
        first = u * rows.stride
        for c in range(geometry.C if rows.dilation > 1 else 1):
            # rows of taps that are no neighbours take a DMA for each channel: an access pattern has five dims
            cn = 1 if rows.dilation > 1 else geometry.C
            copy(
                z_sbuf[
                    u * kn : (u + 1) * kn,
                    c : c + cn,
                    first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation,
                    0 : columns.taps,
                ],
                w_hbm.ap(
                    pattern=[
                        [geometry.w_k, kn],
                        [geometry.w_c, cn],
                        [geometry.w_r, rows.taps],
                        [geometry.w_s, columns.taps],
                    ],
                    offset=k0 * geometry.w_k + c * geometry.w_c,
                ),
            )
    return z_sbuf


def turn_padded(z_sbuf, geometry, stack, job, ledger):
    """Stationaries [(d, b, c), (t, g), (u, k)] of a job."""
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
    return filters_sbuf
