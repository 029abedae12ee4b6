"""Sums [pixels, k] on their way out: bias as a row, activation, residual, and runs of output channels to HBM.

    y = act(sums + bias + residual)    residual "pre_activation"
    y = act(sums + bias) + residual    residual "post_activation"

All in fp32, in the order of `_epilogue.finish`, so that the last bits do not depend on the algorithm's sides.
"""

from ...._nki import nisa, nl
from ..._engines import VECTOR_WORK
from ..._epilogue import function_of
from ..boxes import offset_at
from ..call import finish_shared


def finish_rows(y_sbuf, acc_psum, bias_sbuf, residual_sbuf, unit, epilogue, ledger, strict_nonfinite):
    """A bank's sums [pixels, tiles, k] into their place of y_sbuf [pixels, side, K], with all that is asked for."""
    pixels, tn, kn = acc_psum.shape
    y = place(y_sbuf, unit, pixels)
    if bias_sbuf == None and residual_sbuf == None:
        finish_shared(y, acc_psum, None, None, epilogue, ledger, tn * kn, strict_nonfinite)
        return
    ledger.vector = ledger.vector + tn * kn * VECTOR_WORK
    bias, residual = None, None
    if bias_sbuf != None:
        bias = bias_sbuf[0:pixels, unit.k0 : unit.k0 + kn].expand_dim(1).broadcast(1, tn)
    if residual_sbuf != None:
        residual = place(residual_sbuf, unit, pixels)
    first = epilogue.residual == "pre_activation" or epilogue.activation == ""
    sums = acc_psum
    if bias != None:
        plain = epilogue.activation == "" and residual == None
        sums = added(sums, bias, y if plain else None)
    if residual != None and first:
        sums = added(sums, residual, y if epilogue.activation == "" else None)
    if epilogue.activation != "":
        last = residual == None or first
        into = y if last else nl.ndarray(acc_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=into, op=function_of(epilogue), data=sums)
        if not last:
            added(into, residual, y)


def place(tile_sbuf, unit, pixels):
    """What a bank holds of a block's tile [pixels, side, K]."""
    return tile_sbuf[0:pixels, unit.t0 : unit.t0 + unit.tn, unit.k0 : unit.k0 + unit.kn]


def added(sums, other, into):
    """sums + other, into a tile of its own in fp32 where none is given."""
    found = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf) if into == None else into
    nisa.tensor_tensor(dst=found, data1=sums, data2=other, op=nl.add)
    return found


def block_runs(strides, band, block, side, fold, k0, kn):
    """Boxes of a block, [pixels, side, (row, K)], with output channels k0 .. k0+kn-1 of all rows of y that are beside
    each other; those channels are all of K if there are several. strides: of y or the residual along k, n, p, q."""
    s_k, s_n, s_p, s_q = strides[0], strides[1], strides[2], strides[3]
    found = []
    for row in range(fold):
        offset = offset_at(strides, (k0, band.z0 + block.z, (band.p0 + block.p) * fold + row, band.q0))
        pattern = [[s_n, block.zn], [fold * s_p, block.pn], [side * s_q, block.units], [s_q, side], [s_k, kn]]
        found.append(((0, 0, row * kn), pattern, offset))
    return found
