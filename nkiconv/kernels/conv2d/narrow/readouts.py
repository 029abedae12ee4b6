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
    Ledger,
    new_ledger,
    pick,
)
from ..._epilogue import Epilogue, finish
from ..call import finish_shared
from .cuts import PARTIAL, covers, misses, taps_of


@dataclass
class Books(nl.NKIObject):
    """Work given to each engine; for each part of a row, buffers of sums that its banks take in turn, or none."""

    ledger: Ledger
    buffers: list
    #: banks that have taken a buffer, and the part of a row of the last one, -1: none
    banks: int
    last: int


def start_books(geometry, narrow):
    """Books of a core. Where the first tap misses outputs at an end of a row, others' sums are added to zeros there,
    in buffers that have them from the start."""
    buffers = []
    for tile in narrow.tiles:
        ring = []
        for _ in range(PARTIAL if misses(narrow, tile) else 0):
            shape = (narrow.U * geometry.K, narrow.images, narrow.blocks, tile[1])
            part_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
            clear_missed(part_sbuf, taps_of(narrow, tile)[0], tile)
            ring.append(part_sbuf)
        buffers.append(ring)
    return Books(ledger=new_ledger(), buffers=buffers, banks=0, last=-1)


def partial_sums(books, narrow, index, shape):
    """[(u, k), images, blocks, qn] fp32 in SBUF for part `index` of a row, zero where its first tap meets nothing."""
    first = taps_of(narrow, narrow.tiles[index])[0]
    ring = books.buffers[index]
    if len(ring) == 0:
        part_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        if first.met[1] > 1:
            nisa.memset(dst=part_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        return part_sbuf
    if books.last >= 0:
        # the bank before this one has added to its zeros; by now GpSimd need not wait for it
        before = books.buffers[books.last]
        tile = narrow.tiles[books.last]
        clear_missed(before[books.banks % len(before)], taps_of(narrow, tile)[0], tile)
    books.banks = books.banks + 1
    books.last = index
    return ring[books.banks % len(ring)][0 : shape[0], 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def add_taps(y_sbuf, acc_psum, narrow, index, bias_sbuf, residual_sbuf, epilogue, books):
    """The sums of all taps, each shifted to its outputs, and the epilogue, into y_sbuf [(u, k), images, blocks, qn].

    index: of the part of a row. Taps that meet only some outputs come first, one that meets all last.
    """
    tile = narrow.tiles[index]
    outputs, nn, jn, qn = y_sbuf.shape
    elements = nn * jn * qn
    order = taps_of(narrow, tile)
    if len(order) == 1 and covers(order[0], qn):
        sums = at_tap(acc_psum, order[0], narrow, outputs, tile)
        finish_shared(y_sbuf, sums, bias_sbuf, residual_sbuf, epilogue, books.ledger, elements)
        return
    part_sbuf = partial_sums(books, narrow, index, y_sbuf.shape)
    for which in range(len(order)):
        tap = order[which]
        sums = at_tap(acc_psum, tap, narrow, outputs, tile)
        first = tap.met[0] - tile[0]
        place = part_sbuf[0:outputs, 0:nn, 0:jn, first : first + (tap.met[2] - 1) * tap.met[1] + 1 : tap.met[1]]
        last = which + 1 == len(order) and covers(tap, qn)
        fused = last and epilogue.residual == ""
        if which == 0 and tap.met[1] == 1:
            nisa.tensor_copy(dst=place, src=sums, engine=pick(books.ledger, elements, False))
        elif not fused:
            nisa.tensor_tensor(dst=place, data1=sums, data2=place, op=nl.add)
            book_vector(books, elements)
        if fused and with_gpsimd(narrow, books, elements, epilogue):
            finish_with_gpsimd(y_sbuf, sums, bias_sbuf, part_sbuf, epilogue)
            return
        if fused:
            added = Epilogue(
                activation=epilogue.activation,
                bias=epilogue.bias,
                residual="pre_activation",
                y_itemsize=epilogue.y_itemsize,
            )
            finish(y_sbuf, sums, bias_sbuf, part_sbuf, added, nisa.engine.vector)
            book_vector(books, elements)
            return
    finish_shared(y_sbuf, part_sbuf, bias_sbuf, residual_sbuf, epilogue, books.ledger, elements)


def at_tap(acc_psum, tap, narrow, outputs, tile):
    """The sums of a tap for the outputs that it meets."""
    first = tap.t * narrow.slot
    w = tap.met[3] - tile[2]
    return acc_psum[
        first : first + outputs,
        0 : acc_psum.shape[1],
        0 : acc_psum.shape[2],
        w : w + (tap.met[2] - 1) * tap.met[4] + 1 : tap.met[4],
    ]


def clear_missed(part_sbuf, tap, tile):
    """Zeros before and behind the outputs, which are neighbours, that a tap meets."""
    outputs, nn, jn, qn = part_sbuf.shape
    first = tap.met[0] - tile[0]
    for side in range(2):
        low, high = (0, first) if side == 0 else (first + tap.met[2], qn)
        if low < high:
            nisa.memset(dst=part_sbuf[0:outputs, 0:nn, 0:jn, low:high], value=0.0, engine=nisa.engine.gpsimd)


def book_vector(books, elements):
    """Book a read-out that only Vector can do."""
    ledger = books.ledger
    ledger.vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK


def with_gpsimd(narrow, books, elements, epilogue):
    """Whether Scalar and GpSimd would be done with the last tap before Vector is; if so, it is booked there."""
    if not narrow.shared or epilogue.activation != "":
        return False
    ledger = books.ledger
    scalar = ledger.scalar + SCALAR_START_WORK_PSUM + elements * SCALAR_WORK
    gpsimd = ledger.gpsimd + GPSIMD_START_WORK + elements * GPSIMD_WORK
    vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
    if max(scalar, gpsimd) >= vector:
        return False
    ledger.scalar = scalar
    ledger.gpsimd = gpsimd
    return True


def finish_with_gpsimd(y_sbuf, sums, bias_sbuf, part_sbuf, epilogue):
    """y = sums + bias + part: Scalar reads PSUM, which GpSimd cannot, GpSimd adds."""
    last_sbuf = nl.ndarray(y_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    plain = Epilogue(activation="", bias=epilogue.bias, residual="", y_itemsize=4)
    finish(last_sbuf, sums, bias_sbuf, None, plain, nisa.engine.scalar)
    nisa.tensor_tensor(dst=y_sbuf, data1=last_sbuf, data2=part_sbuf, op=nl.add, engine=nisa.engine.gpsimd)
