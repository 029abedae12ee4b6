"""fp32 numbers as pairs of fp16: high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low.

What is left of v below its 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
itself and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives what products of pairs lose.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import GPSIMD_START_WORK, GPSIMD_WORK, START_WORK, VECTOR_WORK, pick

#: Between the scales of low and high parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0


@dataclass
class Pair(nl.NKIObject):
    """Numbers on their way to pairs: how many of the three instructions are given, and what they work on.

    of: what they are part of, which counts in `ended` those that are done. data: fp32, in SBUF or PSUM. rest_sbuf:
    fp32, for what the high part leaves of it: data itself, or a tile of its own where data is in PSUM. elements: a
    partition.
    """

    of: object
    data: object
    in_psum: bool
    rest_sbuf: object
    high_sbuf: object
    low_sbuf: object
    elements: int
    stage: int


def start_pair(of, data, in_psum, rest_sbuf, high_sbuf, low_sbuf, elements, ledger):
    """A Pair with its high part."""
    engine = pick(ledger, elements, not in_psum)
    nisa.tensor_copy(dst=high_sbuf, src=data, engine=engine)
    return Pair(
        of=of,
        data=data,
        in_psum=in_psum,
        rest_sbuf=rest_sbuf,
        high_sbuf=high_sbuf,
        low_sbuf=low_sbuf,
        elements=elements,
        stage=1,
    )


def advance(pairs, ledger):
    """Give each Pair its next instruction; those that are not done then.

    Engines work in order: between two instructions of one Pair, which wait for each other, lie those of others.
    """
    left = []
    for index in range(len(pairs)):
        pair = pairs[index]
        if pair.stage == 1:
            engine = pick_difference(ledger, pair.elements, pair.in_psum)
            nisa.tensor_tensor(dst=pair.rest_sbuf, data1=pair.data, data2=pair.high_sbuf, op=nl.subtract, engine=engine)
            pair.stage = 2
            left.append(pair)
        else:
            engine = pick(ledger, pair.elements, True)
            nisa.tensor_scalar(dst=pair.low_sbuf, data=pair.rest_sbuf, op0=nl.multiply, operand0=UP, engine=engine)
            of = pair.of
            of.ended = of.ended + 1
    return left


def pick_difference(ledger, elements, in_psum):
    """The engine of a difference of tensors: Vector or, of what is in SBUF, GpSimd; booked there."""
    vector_work = START_WORK + elements * VECTOR_WORK
    gpsimd_work = GPSIMD_START_WORK + elements * GPSIMD_WORK
    if in_psum or ledger.vector + vector_work < ledger.gpsimd + gpsimd_work:
        ledger.vector = ledger.vector + vector_work
        return nisa.engine.vector
    ledger.gpsimd = ledger.gpsimd + gpsimd_work
    return nisa.engine.gpsimd
