"""Read-outs of narrow: the sums of several columns of taps, each shifted to its outputs, added in fp32.

Vector adds one tap's sums while it reads them; the first tap's are copied, by Scalar if it has less to do. Where these
read-outs bound everything, Scalar copies the last tap's sums too and GpSimd adds them, for as many banks as balances
the three: the order of the additions is the same, and so are the bits.
"""

from dataclasses import dataclass

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
from .cuts import lane_steps, outputs_of_tile, zeros_ahead


def add_shifted(y_sbuf, acc_psum, narrow, index, bias_sbuf, residual_sbuf, epilogue, ledger, ahead):
    """The sums of all taps, each shifted to its outputs, and the epilogue, into y_sbuf [(u, k), images, blocks, qn].

    index: of the part of a row; ahead: the core's Parts. Taps that meet only some outputs come first, one that meets
    all last.
    """
    parts, nn, jn, _ = y_sbuf.shape
    for one in outputs_of_tile(narrow, narrow.tiles[index]):
        every = (one.first, one.count, one.step)
        y = spaced(y_sbuf, (0, parts), (0, nn, 1), (0, jn, 1), every)
        residual = None if residual_sbuf == None else spaced(residual_sbuf, (0, parts), (0, nn, 1), (0, jn, 1), every)
        part_sbuf = None if is_direct(one) else take_part(ahead, narrow, y.shape)
        add_outputs(y, acc_psum, narrow, index, one, part_sbuf, bias_sbuf, residual, epilogue, ledger)


def add_outputs(y_sbuf, acc_psum, narrow, index, one, part_sbuf, bias_sbuf, residual_sbuf, epilogue, ledger):
    """The same of OutputsMet; part_sbuf: fp32, of their sums, if they are of several taps."""
    outputs, nn, jn, qn = y_sbuf.shape
    tile, elements = narrow.tiles[index], nn * jn * qn
    for which in range(len(one.taps)):
        tap = one.taps[which]
        sums = spaced(
            acc_psum,
            (tap[0] * narrow.slot, outputs),
            (0, nn, 1),
            (0, jn, 1),
            places_of_elements(tap[1], tile[2]),
        )
        whole = tap[1][1] == one.step and tap[1][2] == qn
        if is_direct(one):
            finish_shared(y_sbuf, sums, bias_sbuf, residual_sbuf, epilogue, ledger, elements)
            return
        place = spaced(part_sbuf, (0, outputs), (0, nn, 1), (0, jn, 1), place_among(one, tile, tap[1]))
        fused = which + 1 == len(one.taps) and whole and epilogue.residual == ""
        if which == 0 and tap[1][1] == one.step:
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


def place_among(one, tile, found):
    """(first, how many, step) of what a tap meets, among OutputsMet."""
    first, count, step = places_of_outputs(found, tile[0])
    return (first - one.first) // one.step, count, step // one.step


@dataclass
class Parts(nl.NKIObject):
    """(part of a row, OutputsMet) of all sums of several taps of a core, in the order of the work; the tiles for them
    that are made, ahead of it, None once they are taken, and how many are."""

    wanted: list
    made: list
    taken: int


def parts_of_steps(geometry, narrow, steps):
    """The Parts of a core's steps."""
    wanted = []
    for step in steps:
        for tile in narrow.tiles:
            own = outputs_of_tile(narrow, tile)
            for _ in range(len(lane_steps(geometry, narrow, step))):
                for one in own:
                    if not is_direct(one):
                        wanted.append((tile, one))
    return Parts(wanted=wanted, made=[], taken=0)


def is_direct(one):
    """Whether these outputs are of one tap that meets all of them."""
    met = one.taps[0][1]
    return len(one.taps) == 1 and met[1] == one.step and met[2] == one.count


def take_part(parts, narrow, shape):
    """The next fp32 sums in SBUF of a shape [(u, k), images, blocks, outputs]."""
    index = parts.taken
    parts.taken = index + 1
    while len(parts.made) < min(parts.taken + zeros_ahead(narrow) - 1, len(parts.wanted)):
        tile, one = parts.wanted[len(parts.made)]
        parts.made.append(zeros_beside(narrow, tile, one, shape[0]))
    found = parts.made[index]
    parts.made[index] = None
    return found[0 : shape[0], 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def zeros_beside(narrow, tile, one, outputs):
    """fp32 sums [(u, k), images, blocks, outputs] of OutputsMet of a part of a row in SBUF, zero at outputs that their
    first tap misses."""
    blocks, tap = narrow.blocks, one.taps[0]
    part_sbuf = nl.ndarray((outputs, narrow.images, blocks, one.count), dtype=nl.float32, buffer=nl.sbuf)
    first, count, step = place_among(one, tile, tap[1])
    # where it meets every other output, it is added too
    end = first + count if step == 1 else 0
    clear_window(part_sbuf, 0, blocks, 0, first if step == 1 else 0, nisa.engine.gpsimd)
    clear_window(part_sbuf, 0, blocks, end, one.count, nisa.engine.gpsimd)
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
