"""Read-outs of narrow: the sums of several columns of taps, each shifted to its outputs, added in fp32.

Vector adds one tap's sums while it reads them; the first tap's are copied, by Scalar if it has less to do. Where these
read-outs bound everything, Scalar copies the last tap's sums too and GpSimd adds them, for as many banks as balances
the three: the order of the additions is the same, and so are the bits.
"""

from ...._nki import nisa, nl
from ..._engines import (
    GPSIMD_START_WORK,
    GPSIMD_WORK,
    SCALAR_START_WORK_PSUM,
    SCALAR_WORK,
    VECTOR_START_WORK_PSUM,
    VECTOR_WORK,
    pick,
)
from ..._epilogue import finish, finish_joined
from ..boxes import clear_window
from ..call import finish_shared
from ..sums import places_of_elements, places_of_outputs, spaced
from .cuts import taps_of_tile, zeros_ahead


def add_shifted(y_sbuf, acc_psum, narrow, index, bias_sbuf, residual_sbuf, epilogue, ledger, zeros, turn):
    """The sums of all taps, each shifted to its outputs, and the epilogue, into y_sbuf [(u, k), images, blocks, qn].

    index: of the part of a row; zeros: what `zeros_beside` made for banks, of which this is the turn-th. Taps that meet
    only some outputs come first, one that meets all last.
    """
    tile = narrow.tiles[index]
    outputs, nn, jn, qn = y_sbuf.shape
    elements = nn * jn * qn
    order = taps_of_tile(narrow, tile)
    if len(order) == 1 and order[0][1][2] == qn:
        sums = sums_at(acc_psum, order[0], narrow, outputs, tile)
        finish_shared(y_sbuf, sums, bias_sbuf, residual_sbuf, epilogue, ledger, elements)
        return
    while len(zeros) < turn + zeros_ahead(narrow):
        zeros.append(zeros_beside(narrow, len(zeros) % len(narrow.tiles), outputs))
    part_sbuf = zeros[turn][0:outputs, 0:nn, 0:jn, 0:qn]
    zeros[turn] = None
    for which in range(len(order)):
        met = order[which][1]
        sums = sums_at(acc_psum, order[which], narrow, outputs, tile)
        place = spaced(part_sbuf, (0, outputs), (0, nn, 1), (0, jn, 1), places_of_outputs(met, tile[0]))
        fused = which + 1 == len(order) and met[2] == qn and epilogue.residual == ""
        if which == 0 and met[1] == 1:
            nisa.tensor_copy(dst=place, src=sums, engine=pick(ledger, elements, False))
        elif not fused:
            nisa.tensor_tensor(dst=place, data1=sums, data2=place, op=nl.add)
            ledger.vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
        elif with_gpsimd(narrow, ledger, elements, epilogue):
            # Scalar reads PSUM, which GpSimd cannot
            last_sbuf = nl.ndarray(y_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
            finish(last_sbuf, sums, bias_sbuf, None, epilogue, nisa.engine.scalar)
            nisa.tensor_tensor(dst=y_sbuf, data1=last_sbuf, data2=part_sbuf, op=nl.add, engine=nisa.engine.gpsimd)
            return
        else:
            finish_joined(y_sbuf, sums, part_sbuf, bias_sbuf, None, epilogue, nisa.engine.vector)
            ledger.vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
            return
    finish_shared(y_sbuf, part_sbuf, bias_sbuf, residual_sbuf, epilogue, ledger, elements)


def sums_at(acc_psum, tap, narrow, outputs, tile):
    """The sums of a tap for the outputs that it meets."""
    _, nn, jn, _ = acc_psum.shape
    parts, columns = (tap[0] * narrow.slot, outputs), places_of_elements(tap[1], tile[2])
    return spaced(acc_psum, parts, (0, nn, 1), (0, jn, 1), columns)


def zeros_beside(narrow, index, outputs):
    """fp32 sums [(u, k), images, blocks, qn] of a part of a row in SBUF, zero at outputs that its first tap misses."""
    tile, blocks = narrow.tiles[index], narrow.blocks
    tap = taps_of_tile(narrow, tile)[0]
    part_sbuf = nl.ndarray((outputs, narrow.images, blocks, tile[1]), dtype=nl.float32, buffer=nl.sbuf)
    first, count, step = places_of_outputs(tap[1], tile[0])
    # where it meets every other output, it is added too
    end = first + count if step == 1 else 0
    clear_window(part_sbuf, 0, blocks, 0, first if step == 1 else 0, nisa.engine.gpsimd)
    clear_window(part_sbuf, 0, blocks, end, tile[1], nisa.engine.gpsimd)
    return part_sbuf


def with_gpsimd(narrow, ledger, elements, epilogue):
    """Whether Scalar and GpSimd would be done with the last tap before Vector is; if so, it is booked there."""
    scalar = ledger.scalar + SCALAR_START_WORK_PSUM + elements * SCALAR_WORK
    gpsimd = ledger.gpsimd + GPSIMD_START_WORK + elements * GPSIMD_WORK
    vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
    if not narrow.shared or epilogue.activation != "" or max(scalar, gpsimd) >= vector:
        return False
    ledger.scalar = scalar
    ledger.gpsimd = gpsimd
    return True
