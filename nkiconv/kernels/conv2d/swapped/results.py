"""Sums [pixels, k] on their way out: bias as a row, activation, residual, and runs of output channels to HBM.

    y = act(sums + bias + residual)    residual "pre_activation"
    y = act(sums + bias) + residual    residual "post_activation"

All in fp32, in the order of `_epilogue.finish`, so that the last bits do not depend on the algorithm's sides.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import VECTOR_WORK
from ..._epilogue import function_of
from ..call import finish_shared, scale_residual
from .shape import units_at


def load_bias_row(bias_hbm, k0, kn, fold):
    """Bias of channels k0 .. k0+kn-1, `fold` times, on every partition, [128, fold * kn] fp32 in SBUF; or None."""
    if bias_hbm == None:
        return None
    P_MAX = nl.tile_size.pmax
    bias_sbuf = nl.ndarray((P_MAX, fold * kn), dtype=nl.float32, buffer=nl.sbuf)
    copy(bias_sbuf, bias_hbm.ap(pattern=[[0, P_MAX], [0, fold], [1, kn]], offset=k0))
    return bias_sbuf


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


def runs_of(strides, band, block, side, t0, tn, k0, kn):
    """(first partition, partitions, pixels of each, pattern, offset) of the DMAs between a block and HBM.

    strides: of the tensor along n, k, p, q. Two where the last partition of a row has fewer pixels than the others.
    """
    s_n, s_k, s_p, s_q = strides
    full = units_at(block, side, t0 + tn - 1)
    units = units_at(block, side, t0)
    offset = (band.n0 + block.n) * s_n + (band.p0 + block.p) * s_p + (band.q0 + block.q + t0) * s_q + k0 * s_k
    found = []
    if full > 0:
        pattern = [[s_n, block.nn], [s_p, block.pn], [side * s_q, full], [s_q, tn], [s_k, kn]]
        found.append((0, block.nn * block.pn * full, tn, pattern, offset))
    if units > full:
        rest = min(tn, block.qn - full * side - t0)
        pattern = [[s_q, rest], [s_k, kn]]
        found.append((full, 1, rest, pattern, offset + full * side * s_q))
    return found


def store(operands, geometry, band, block, side, fold, y_sbuf, k0, t0, tn, first, kn):
    """Tiles t0 .. t0+tn-1 of a block's results, output channels first .. first+kn-1 of those from k0 on, of all rows of
    y that are beside each other; those are all of K if there are several."""
    strides = (geometry.y_n, geometry.y_k, fold * geometry.y_p, geometry.y_q)
    parts = runs_of(strides, band, block, side, t0, tn, k0 + first, kn)
    for row in range(fold):
        for index in range(len(parts)):
            start, count, pixels, pattern, offset = parts[index]
            copy(
                operands.y.ap(pattern=pattern, offset=offset + row * geometry.y_p),
                y_sbuf[start : start + count, t0 : t0 + pixels, first + row * kn : first + (row + 1) * kn],
            )


def load_residual(operands, geometry, band, block, side, fold, shape, k0):
    """The residual of a block times beta, [pixels, side, (row, K)] in SBUF, fp32 if it was multiplied; or None."""
    if operands.residual == None:
        return None
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    strides = (geometry.r_n, geometry.r_k, fold * geometry.r_p, geometry.r_q)
    kn = shape[2] // fold
    parts = runs_of(strides, band, block, side, 0, shape[1], k0, kn)
    if len(parts) > 1:
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for row in range(fold):
        for index in range(len(parts)):
            start, count, pixels, pattern, offset = parts[index]
            copy(
                residual_sbuf[start : start + count, 0:pixels, row * kn : (row + 1) * kn],
                operands.residual.ap(pattern=pattern, offset=offset + row * geometry.r_p),
            )
    return scale_residual(residual_sbuf, operands.beta)
