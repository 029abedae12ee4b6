"""precision="fp16x3": what one matmul a tap does otherwise where fp32 factors are pairs of fp16.

    high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low

What is left of v below its 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
itself and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives what products of pairs lose.

Rows of x come in as fp32 parts that wait to become pairs; transposed filters become pairs on their way out of PSUM;
products are summed in two banks, of high parts and of the rest, 2^11 too large, which the evacuation joins.
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_schedule import PAIRS_MAX, PRODUCTS_OF_FP32, STAGE_BYTES, STAGE_PART_BYTES
from ....schedules.options import adds_last
from ....schedules.tiles import size_of
from ..._engines import pick, pick_sum
from ..._epilogue import evacuate
from .preparing import Factor, Pace, Preparing
from .rows import load_rows

#: Between the scales of low and high parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0
#: Pairs on their way from which on they go on, as engines would wait for the one before in each.
PAIRS_TOGETHER = 2


@dataclass
class Pair(nl.NKIObject):
    """Numbers on their way to pairs: how many of the three instructions are given, and what they work on.

    of: what they are part of, which counts in `ended` those that are done, or None. data: fp32, in SBUF or PSUM.
    rest_sbuf: fp32, for what the high part leaves of it: data itself, or a tile of its own where data is in PSUM.
    """

    of: object
    data: Any
    in_psum: bool
    rest_sbuf: object
    high_sbuf: object
    low_sbuf: object
    stage: int = 1

    @property
    def elements(self):
        """Of a partition."""
        return size_of(self.data.shape[1:])


def start_pair(of, data, in_psum, high_sbuf, low_sbuf, ledger):
    """A Pair with its high part."""
    engine = pick(ledger, size_of(data.shape[1:]), not in_psum)
    nisa.tensor_copy(dst=high_sbuf, src=data, engine=engine)
    rest_sbuf = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf) if in_psum else data
    return Pair(of, data, in_psum, rest_sbuf, high_sbuf, low_sbuf)


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
            if pair.of is not None:
                pair.of.ended += 1
    return left


def start_pair_of_filters(filters, data, in_psum, high_sbuf, low_sbuf, last):
    """Start the pairs of transposed filters [channels, groups, kn]; last: whether they are a piece's last."""
    pairing, ledger = filters.pairing, filters.ledger
    while len(pairing.pairs) >= PAIRS_MAX:
        pairing.pairs = advance(pairing.pairs, ledger)
    pairing.pairs.append(start_pair(filters if last else None, data, in_psum, high_sbuf, low_sbuf, ledger))


class Pairs(Preparing):
    """fp32 rows of x on their way to pairs of fp16."""

    num_tiles = 2

    def __init__(self, core):
        super().__init__(core, STAGE_PART_BYTES, STAGE_BYTES)

    def planes(self, out_tile):
        """Planes of an output tile that come."""
        return out_tile.dn

    def least(self, part):
        """Parts that come whatever room there is."""
        return 1

    def load(self, part):
        """A part as it comes."""
        shape = (part.k_tile.depth * part.k_tile.cn, part.out_tile.dn, part.hn, part.tile.tiles[0].shape[3])
        raw_sbuf = nl.ndarray(shape, dtype=self.operands.x_dtype, buffer=nl.sbuf)
        load_rows(self, part.k_tile, raw_sbuf, part.out_tile, part.out_tile.h0 + part.h0, part.k_tiles == 1)
        return raw_sbuf

    def begin(self, part, tiles):
        """Start the pairs of a part that is there."""
        self.pairs.append(start_pair(self, part.raw_sbuf, False, tiles[0], tiles[1], self.ledger))
        part.raw_sbuf = part.tile = None

    def advance(self):
        """One instruction of every pair that is not done; load what there is room for then."""
        self.pairs = advance(self.pairs, self.ledger)
        self.bring()

    def end(self, filters, pieces, parts):
        """Give the instructions of pairs until so many pieces of filters and RowParts of x are done."""
        while filters.ended < pieces or self.ended < parts:
            self.advance()

    def set_pace(self, matmuls):
        """RowParts that are not begun yet are, evenly, in the course of so many matmuls."""
        self.pace = Pace(len(self.parts) - self.started, matmuls / PRODUCTS_OF_FP32)

    def after_matmul(self, index, factors):
        """What is due after a matmul, of which there are `factors` a tap, is given after each tap's."""
        if (index + 1) % factors > 0:
            return
        if len(self.pairs) >= PAIRS_TOGETHER:
            self.advance()
        self.prepare_due()

    def factors(self, banks, w_sbuf, low_sbuf, tile, parts, ends):
        """Factors of a K tile, high parts first; where it ends the sums last, as the rest has one evacuation more to go
        through."""
        high, low = tile.tiles
        main = Factor(banks[0], w_sbuf, high, parts=parts)
        left = Factor(banks[1], low_sbuf, high, low=True, parts=parts)
        right = Factor(banks[1], w_sbuf, low, adds=True, low=True, parts=parts)
        return [left, right, main] if ends else [main, left, right]


def read_sums_out(y_sbuf, main_psum, rest_psum, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Both sums into y_sbuf, with everything that the epilogue asks for.

    The rest, scaled, is a residual of the main sums; what is to be added before the activation joins it.
    """
    rest_sbuf = nl.ndarray(main_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    if residual_sbuf is not None and not adds_last(epilogue):
        nisa.scalar_tensor_tensor(
            dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, op1=nl.add, operand1=residual_sbuf
        )
    else:
        engine = pick(ledger, size_of(main_psum.shape[1:]), False)
        nisa.tensor_scalar(dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, engine=engine)
    evacuate(
        y_sbuf,
        main_psum,
        bias_sbuf,
        residual_sbuf,
        epilogue,
        nisa.engine.vector,
        rest=rest_sbuf,
        adder=nisa.engine.vector,
    )
