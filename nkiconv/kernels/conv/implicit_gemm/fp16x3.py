"""precision="fp16x3": what one matmul a tap does otherwise where fp32 factors are pairs of fp16.

    high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low

What is left of v below its 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
itself and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives what products of pairs lose.

Rows of x come in as fp32 parts that wait to become pairs (`parts`); transposed filters become pairs on their way out of
PSUM; products are summed in two banks, of high parts and of the rest, 2^11 too large, which the read-out joins.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.options import adds_last
from ....schedules.pairs_of_planes import PRODUCTS_OF_PAIR
from ....schedules.tiles import BANK_BYTES, size_of
from ..._engines import pick, pick_sum
from ..._epilogue import finish_joined

#: Between the scales of low and high parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0
#: Products that stand for one of two fp32 factors.
PRODUCTS = 3
#: Pairs on their way that begin in PSUM, at most.
PAIRS_MAX = 3
#: Pairs on their way from which on they go on, as engines would wait for the one before in each.
PAIRS_TOGETHER = 2
#: Bytes a partition of fp32 elements that become pairs together, if more than a row, and of all that are no pairs yet.
STAGE_PART_BYTES = 4096
STAGE_BYTES = 16_384


@dataclass
class Count(nl.NKIObject):
    """Pairs that are done."""

    ended: int


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
    stage: int = 1


def start_pair(of, data, in_psum, high_sbuf, low_sbuf, ledger):
    """A Pair with its high part."""
    elements = size_of(data.shape[1:])
    engine = pick(ledger, elements, not in_psum)
    nisa.tensor_copy(dst=high_sbuf, src=data, engine=engine)
    rest_sbuf = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf) if in_psum else data
    return Pair(
        of=of,
        data=data,
        in_psum=in_psum,
        rest_sbuf=rest_sbuf,
        high_sbuf=high_sbuf,
        low_sbuf=low_sbuf,
        elements=elements,
    )


def advance(pairs, ledger):
    """Give each Pair its next instruction; those that are not done then.

    Engines work in order: between two instructions of one Pair, which wait for each other, lie those of others.
    """
    left = []
    for pair in pairs:
        if pair.stage == 1:
            engine = pick_sum(ledger, pair.elements, False, pair.in_psum)
            nisa.tensor_tensor(dst=pair.rest_sbuf, data1=pair.data, data2=pair.high_sbuf, op=nl.subtract, engine=engine)
            pair.stage = 2
            left.append(pair)
        else:
            engine = pick(ledger, pair.elements, True)
            nisa.tensor_scalar(dst=pair.low_sbuf, data=pair.rest_sbuf, op0=nl.multiply, operand0=UP, engine=engine)
            of = pair.of
            of.ended = of.ended + 1
    return left


def kinds_of(geometry):
    """Products that stand for one."""
    return PRODUCTS if geometry.precision == "fp16x3" else 1


def sums_of(geometry):
    """Banks of PSUM for sums of one bank of outputs."""
    if geometry.direct != None:
        return PRODUCTS_OF_PAIR
    return 2 if geometry.precision == "fp16x3" else 1


def pairing_bytes(geometry, x_bytes, row_bytes):
    """Bytes a partition beside those of other precisions: parts and filters that are no pairs yet, sums to join.
    x_bytes: of a band; row_bytes: of a row of it."""
    if geometry.precision != "fp16x3":
        return 0
    return min(2 * x_bytes, STAGE_BYTES) + max(row_bytes, STAGE_PART_BYTES) + (PAIRS_MAX + 5) * BANK_BYTES


def pairing_raw_bytes(geometry, raw_bytes, all_bytes):
    """Bytes a partition of blocks of taps on their way; of pairs no more than of all, where that is less."""
    if geometry.precision != "fp16x3":
        return raw_bytes
    return min(raw_bytes, all_bytes + 2 * BANK_BYTES)


def pair_of_filters(filters, data, in_psum, high_sbuf, low_sbuf, last, ledger):
    """Start the pairs of transposed filters [channels, groups, kn]; last: whether they are a piece's last."""
    pairing = filters.pairing
    while len(pairing.pairs) >= PAIRS_MAX:
        pairing.pairs = advance(pairing.pairs, ledger)
    of = filters if last else Count(ended=0)
    pairing.pairs.append(start_pair(of, data, in_psum, high_sbuf, low_sbuf, ledger))


def read_sums_out(y_sbuf, main_psum, rest_psum, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Both sums into y_sbuf, with everything that the epilogue asks for.

    The rest, scaled, is a residual of the main sums; what is to be added before the activation joins it.
    """
    rest_sbuf = nl.ndarray(main_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    if residual_sbuf != None and not adds_last(epilogue):
        nisa.scalar_tensor_tensor(
            dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, op1=nl.add, operand1=residual_sbuf
        )
    else:
        engine = pick(ledger, size_of(main_psum.shape[1:]), False)
        nisa.tensor_scalar(dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, engine=engine)
    finish_joined(y_sbuf, main_psum, rest_sbuf, bias_sbuf, residual_sbuf, epilogue, nisa.engine.vector)
