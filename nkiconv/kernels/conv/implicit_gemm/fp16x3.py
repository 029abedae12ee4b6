"""precision="fp16x3": what one matmul a tap does otherwise where fp32 factors are pairs of fp16.

    high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low

What is left of v below its 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
itself and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives what products of pairs lose.

Rows of x come in as fp32 parts that wait to become pairs; transposed filters become pairs on their way out of PSUM;
products are summed in two banks, of high parts and of the rest, 2^11 too large, which the evacuation joins.
"""

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_schedule import PAIRS_MAX, PRODUCTS_OF_FP32, STAGE_BYTES, STAGE_PART_BYTES
from ....schedules.options import adds_last
from ....schedules.tiles import size_of
from ..._engines import pick, pick_sum
from ..._epilogue import evacuate
from .preparing import Preparing
from .rows import Factor, load_rows

#: Between the scales of low and high parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0
#: Pairs on their way from which on they go on, as engines would wait for the one before in each.
PAIRS_TOGETHER = 2


def pair_steps(of, data, in_psum, high_sbuf, low_sbuf, ledger):
    """The three instructions of a pair, one each time it goes on: other pairs' lie between, as each waits for the one
    before and engines work in order.

    of: what counts pairs that are done in `ended`, or None. data: fp32, in SBUF, where it is lost, or in PSUM.
    """
    elements = size_of(data.shape[1:])
    nisa.tensor_copy(dst=high_sbuf, src=data, engine=pick(ledger, elements, not in_psum))
    rest_sbuf = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf) if in_psum else data
    yield
    engine = pick_sum(ledger, elements, False, in_psum)
    nisa.tensor_tensor(dst=rest_sbuf, data1=data, data2=high_sbuf, op=nl.subtract, engine=engine)
    yield
    engine = pick(ledger, elements, True)
    nisa.tensor_scalar(dst=low_sbuf, data=rest_sbuf, op0=nl.multiply, operand0=UP, engine=engine)
    if of is not None:
        of.ended += 1


class Pairs(Preparing):
    """fp32 rows of x on their way to pairs of fp16, and filters'. pairs: those that are not done."""

    num_tiles = 2

    def __init__(self, core):
        super().__init__(core, STAGE_PART_BYTES, STAGE_BYTES)
        self.pairs, self.matmuls = [], 0

    def planes(self, out_tile):
        """Planes of an output tile that come."""
        return out_tile.dn

    def load(self, part):
        """A part as it comes."""
        count, planes, _, width = part.x.shape
        raw_sbuf = nl.ndarray((count, planes, part.hn, width), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        load_rows(self, part.x, raw_sbuf, part.h0)
        return raw_sbuf

    def start(self, of, data, in_psum, tiles):
        """Start a pair: its high part."""
        high_sbuf, low_sbuf = tiles
        steps = pair_steps(of, data, in_psum, high_sbuf, low_sbuf, self.ledger)
        next(steps)
        self.pairs.append(steps)

    def start_filters(self, of, data, in_psum, tiles):
        """Start a pair of filters, of which few are on their way together."""
        while len(self.pairs) >= PAIRS_MAX:
            self.step()
        self.start(of, data, in_psum, tiles)

    def step(self):
        """One instruction of every pair that is not done."""
        self.pairs = [steps for steps in self.pairs if next(steps, self) is None]

    def begin(self, part, tiles):
        """Start the pairs of a part that is there."""
        self.start(self, part.raw_sbuf, False, tiles)

    def advance(self):
        """One instruction of every pair that is not done; load what there is room for then."""
        self.step()
        super().advance()

    def end(self, filters, pieces, parts):
        """Give the instructions of pairs until so many pieces of filters and RowParts of x are done."""
        while filters.ended < pieces or self.ended < parts:
            self.advance()

    def set_pace(self, matmuls):
        """RowParts that are not begun yet are, evenly, in the course of so many matmuls."""
        super().set_pace(matmuls / PRODUCTS_OF_FP32)

    def after_matmul(self):
        """What is due after a matmul is given after those of a tap, of each kind of products."""
        self.matmuls += 1
        if self.matmuls % PRODUCTS_OF_FP32 > 0:
            return
        if len(self.pairs) >= PAIRS_TOGETHER:
            self.advance()
        super().after_matmul()

    def factors(self, banks, x, tiles, ends):
        """Factors of a K tile, high parts first; where it ends the sums last, as the rest has one evacuation more to go
        through."""
        (w_high, w_low), (high, low) = tiles, x.tiles
        main, left = Factor(banks[0], w_high, high), Factor(banks[1], w_low, high, low=True)
        right = Factor(banks[1], w_high, low, adds=True, low=True)
        return [left, right, main] if ends else [main, left, right]


def read_sums_out(y_sbuf, banks, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Both sums into y_sbuf, with everything that the epilogue asks for.

    The rest, scaled, is a residual of the main sums; what is to be added before the activation joins it.
    """
    main_psum, rest_psum = banks
    rest_sbuf = nl.ndarray(main_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    if residual_sbuf is not None and not adds_last(epilogue):
        nisa.scalar_tensor_tensor(
            dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, op1=nl.add, operand1=residual_sbuf
        )
    else:
        engine = pick(ledger, size_of(main_psum.shape[1:]), False)
        nisa.tensor_scalar(dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, engine=engine)
    vector = nisa.engine.vector
    evacuate(y_sbuf, main_psum, bias_sbuf, residual_sbuf, epilogue, vector, rest=rest_sbuf, adder=vector)
