"""precision="fp16x3": fp32 factors as pairs of fp16, and three products for one.

    high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low

The rest of v below its first 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives the error of products of pairs.

Rows of x are loaded as fp32 parts and then split into pairs; transposed filters are split when they are evacuated;
products are summed in two banks, one of high parts and one of the rest, 2^11 too large; the evacuation adds them.
"""

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_schedule import PAIRS_MAX, PRODUCTS_OF_FP32, STAGE_BYTES, STAGE_PART_BYTES
from ....schedules.options import adds_last
from ....schedules.tiles import size_of
from ..._engines import pick, pick_sum, scaled
from ..._epilogue import evacuate
from .preparing import Preparing
from .rows import Factor, load_rows

#: From the scale of high parts to that of low parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0
#: The number of pairs in flight from which they advance: a pair's instructions wait for each other.
PAIRS_TOGETHER = 2


def pair_steps(of, data, in_psum, high_sbuf, low_sbuf, ledger):
    """The three instructions of a pair, one for each step: each waits for the one before, so other pairs' instructions
    lie between them, as engines work in order.

    of: its `ended` counts complete pairs, or None. data: fp32, in SBUF (overwritten) or in PSUM.
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
    """Splits fp32 rows of x, and filters, into pairs of fp16. pairs: those that are not complete."""

    num_tiles = 2

    def __init__(self, core):
        super().__init__(core, STAGE_PART_BYTES, STAGE_BYTES)
        self.pairs, self.matmuls = [], 0

    def planes(self, out_tile):
        """Planes of an output tile that are loaded."""
        return out_tile.dn

    def load(self, part):
        """Load a part."""
        count, planes, _, width = part.x.shape
        raw_sbuf = nl.ndarray((count, planes, part.hn, width), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        load_rows(self, part.x, raw_sbuf, part.h0)
        return raw_sbuf

    def start(self, of, data, in_psum, tiles):
        """Start a pair with its high part."""
        high_sbuf, low_sbuf = tiles
        steps = pair_steps(of, data, in_psum, high_sbuf, low_sbuf, self.ledger)
        next(steps)
        self.pairs.append(steps)

    def start_filters(self, of, data, in_psum, tiles):
        """Start a pair of filters, once fewer than PAIRS_MAX pairs are in flight."""
        while len(self.pairs) >= PAIRS_MAX:
            self.step()
        self.start(of, data, in_psum, tiles)

    def step(self):
        """Issue one instruction of every incomplete pair."""
        self.pairs = [steps for steps in self.pairs if next(steps, self) is None]

    def begin(self, part, tiles):
        """Start the pairs of a loaded part."""
        self.start(self, part.raw_sbuf, False, tiles)

    def advance(self):
        """Issue one instruction of every incomplete pair; then load parts into free room."""
        self.step()
        super().advance()

    def end(self, filters, pieces, parts):
        """Advance pairs until `pieces` pieces of filters and `parts` RowParts of x are complete."""
        while filters.ended < pieces or self.ended < parts:
            self.advance()

    def set_pace(self, matmuls):
        """Spread the start of the remaining RowParts evenly over so many matmuls."""
        super().set_pace(matmuls / PRODUCTS_OF_FP32)

    def after_matmul(self):
        """Advance pairs and start RowParts after every third matmul: an fp32 product takes three."""
        self.matmuls += 1
        if self.matmuls % PRODUCTS_OF_FP32 > 0:
            return
        if len(self.pairs) >= PAIRS_TOGETHER:
            self.advance()
        super().after_matmul()

    def factors(self, banks, x, tiles, ends):
        """Factors of a K tile, high parts first; last if the K tile ends the sums, because the rest needs one
        evacuation more."""
        (w_high, w_low), (high, low) = tiles, x.tiles
        main, left = Factor(banks[0], w_high, high), Factor(banks[1], w_low, high, low=True)
        right = Factor(banks[1], w_high, low, adds=True, low=True)
        return [left, right, main] if ends else [main, left, right]


def read_sums_out(y_sbuf, banks, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Evacuate both sums into y_sbuf with the whole epilogue.

    The scaled rest acts as a residual of the main sums; a residual before the activation is added to it.
    """
    main_psum, rest_psum = banks
    rest_sbuf = nl.ndarray(main_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    if residual_sbuf is not None and not adds_last(epilogue):
        scaled(rest_sbuf, rest_psum, DOWN, nl.add, residual_sbuf)
    else:
        engine = pick(ledger, size_of(main_psum.shape[1:]), False)
        nisa.tensor_scalar(dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, engine=engine)
    vector = nisa.engine.vector
    evacuate(y_sbuf, main_psum, bias_sbuf, residual_sbuf, epilogue, vector, rest=rest_sbuf, adder=vector)
