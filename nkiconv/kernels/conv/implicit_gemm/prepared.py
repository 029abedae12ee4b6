"""x and filters that are prepared between matmuls: fp32 factors as pairs of fp16, sums of frames and of planes of taps.

precision="fp16x3" takes three products for one:

    high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low

The rest of v below its first 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives the error of products of pairs. Rows of x are
loaded as fp32 parts and then split into pairs; transposed filters are split when they are evacuated; products are
summed in two banks, one of high parts and one of the rest, 2^11 too large; the evacuation adds them.

precision="winograd" (`pairs_of_planes` defines the sums): filters are sums of planes of taps, x sums of frames, four
banks of sums become two planes of y. Taps are added just before their transposes; frames of the next output tile are
added during the current one.
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_schedule import PAIRS_MAX, PRODUCTS_OF_FP32, STAGE_BYTES, STAGE_PART_BYTES
from ....schedules.options import adds_last
from ....schedules.pairs_of_planes import PRODUCTS_OF_PAIR, TAPS_OF_PLANES, frames_of_x, frames_seen, row_pieces
from ....schedules.tiles import div_ceil, size_of
from ..._engines import SCALAR_WORK, START_WORK, VECTOR_START_WORK_PSUM, VECTOR_WORK, pick, pick_sum, scaled
from ..._epilogue import evacuate
from ..filter_feed import tiles_in_turn
from ..regions import load_filters
from .rows import Factor, Pace, Rows, XTile, clear, clear_beside, load_copies, load_rows

#: From the scale of high parts to that of low parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0
#: The number of pairs in flight from which they advance: a pair's instructions wait for each other.
PAIRS_TOGETHER = 2


@dataclass
class RowPart(nl.NKIObject):
    """Rows of an XTile that are prepared together, their bytes a partition as loaded, and the loaded x, or None."""

    x: XTile
    h0: int
    hn: int
    num_bytes: int
    raw_sbuf: object = None


class Preparing(Rows):
    """RowParts in the order of the work; come, started, ended: how many are loaded, begun and complete. most_bytes: a
    partition, of loaded parts that are not complete; part_bytes: of one part, if more than a row.

    A part is some rows of an output tile. Parts are loaded as room allows, during the output tile before theirs. fp32
    is split into pairs of fp16, frames are added in twos.
    """

    #: tiles of an XTile
    num_tiles = 1
    #: of a precision: the planes of an output tile that are loaded, the load of a part, and its first step
    planes: Any
    load: Any
    begin: Any

    def __init__(self, core, part_bytes, most_bytes):
        super().__init__(core)
        self.part_bytes, self.most_bytes, self.parts, self.pace = part_bytes, most_bytes, [], Pace()
        self.come = self.started = self.ended = 0

    def new_tiles(self, x):
        """Tiles of an XTile: high and low parts, or sums."""
        return tiles_in_turn(self.num_tiles, x.shape, nl.float16)

    def row_bytes(self, x):
        """Bytes a partition of a loaded row of an XTile."""
        return self.planes(x.out_tile) * x.place.columns * self.geometry.itemsize

    def add(self, x, h0, hn):
        """Add RowParts for rows of an XTile, and load as room allows."""
        each, end = self.row_bytes(x), h0 + hn
        most = max(1, self.part_bytes // each)
        for row in range(h0, end, most):
            count = min(most, end - row)
            x.parts.append((row, len(self.parts)))
            self.parts.append(RowPart(x, row, count, count * each))
        self.bring()

    def bring(self):
        """Load parts while incomplete ones are few enough; at least one."""
        waiting_bytes = sum(part.num_bytes for part in self.parts[self.ended : self.come])
        for number in range(self.come, len(self.parts)):
            part = self.parts[number]
            waiting_bytes += part.num_bytes
            if waiting_bytes > self.most_bytes and number > self.ended:
                return
            part.raw_sbuf, self.come = self.load(part), number + 1

    def prepare(self, x, products):
        """Begin all RowParts of an XTile that products read; returns their number among all."""
        last = max(product.rows[3] + (product.rows[2] - 1) * product.rows[4] for product in products)
        count = max((number + 1 for h0, number in x.parts if x.out_tile.h0 + h0 <= last), default=0)
        self.prepare_to(count)
        return count

    def prepare_to(self, count):
        """Begin the first `count` RowParts."""
        while self.started < count:
            while self.come <= self.started:
                self.advance()
            part = self.parts[self.started]
            self.started += 1
            self.begin(part, [tile_sbuf[:, :, part.h0 : part.h0 + part.hn] for tile_sbuf in part.x.tiles])
            part.x = part.raw_sbuf = None
            self.bring()

    def advance(self):
        """Load parts as room allows."""
        self.bring()

    def set_pace(self, matmuls):
        """Spread the start of the remaining RowParts evenly over so many matmuls."""
        self.pace = Pace(len(self.parts) - self.started, matmuls)

    def after_matmul(self):
        """Begin the RowParts that the pace allows."""
        self.prepare_to(min(len(self.parts), self.started + self.pace.due()))


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


#: Products in the order of the work: first the two that both planes of a pair add, as they are evacuated first.
ORDER_OF_SUMS = (1, 2, 0, 3)


def load_planes_of_taps(operands, geometry, block):
    """Load the taps of a block in memory order: [kn, c, rows of taps, columns] for each run of channels."""
    k, channels = (block.m_tile.k0, block.m_tile.kn), row_pieces(geometry, block.c0, block.channels)
    return [load_filters(operands, geometry.direct, k, (c, count)) for _, _, c, count in channels]


def sums_of_taps(raws, geometry, block):
    """The sums of `load_planes_of_taps` as [kn, channels, rows of taps of four planes, columns] in fp16."""
    R, S, own, kn = geometry.rows.taps, geometry.columns.taps, geometry.direct.rows.taps, block.m_tile.kn
    sums_sbuf = nl.ndarray((kn, block.channels, PRODUCTS_OF_PAIR * R, S), dtype=nl.float16, buffer=nl.sbuf)
    for raw_sbuf, (at, row, _, count) in zip(raws, row_pieces(geometry, block.c0, block.channels), strict=True):
        planes = [raw_sbuf[0:kn, 0:count, t * own + row : t * own + row + R, 0:S] for t in range(TAPS_OF_PLANES)]
        sums = [sums_sbuf[:, at : at + count, t * R : (t + 1) * R] for t in range(PRODUCTS_OF_PAIR)]
        outer_sbuf = nl.ndarray((kn, count, R, S), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=outer_sbuf, data1=planes[0], data2=planes[2], op=nl.add, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=sums[1], data1=outer_sbuf, data2=planes[1], op=nl.add, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=sums[2], data1=outer_sbuf, data2=planes[1], op=nl.subtract, engine=nisa.engine.vector)
        nisa.tensor_copy(dst=sums[0], src=planes[0], engine=nisa.engine.scalar)
        nisa.tensor_copy(dst=sums[3], src=planes[2], engine=nisa.engine.scalar)
    return sums_sbuf


class Frames(Preparing):
    """Adds rows of frames in twos."""

    def planes(self, out_tile):
        """Frames of an output tile that are loaded."""
        return frames_seen(out_tile.zn)

    def load(self, part):
        """Load a part's frames, with zeros outside x: copies of x or, if rows of taps are channels, of the rows of x
        that exist for each."""
        geometry, x = self.geometry, part.x
        first, count, before = frames_of_x(geometry, x.out_tile)
        (parts, _, _, width), seen, hn = x.shape, frames_seen(x.out_tile.zn), part.hn
        frames_sbuf = nl.ndarray((parts, seen, hn, width), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        if x.k_tile.depth > 1:
            clear_beside(frames_sbuf, geometry, x)
        for low, high in ((0, before), (before + count, seen)):
            if low < high:
                clear(frames_sbuf[:, low:high], 0, width)
        if count == 0:
            return frames_sbuf
        found_sbuf = frames_sbuf[:, before : before + count]
        h0, rows = x.out_tile.h0 + part.h0, geometry.depth
        if rows is not None:
            reach = (rows.taps - 1) * rows.dilation
            if h0 < rows.before or h0 + hn - 1 + reach - rows.before >= rows.size:
                clear(found_sbuf, 0, width)
        load_copies(self, x, found_sbuf, first, part.h0)
        return frames_sbuf

    def begin(self, part, tiles):
        """Add the frames of a loaded part, which completes it."""
        add_frames(part.raw_sbuf, tiles[0], self.ledger)
        self.ended = self.started

    def factors(self, banks, x, tiles, ends):
        """Factors of a K tile: one for each plane of taps, with separate sums."""
        (x_sbuf,), (w_sbuf,), each = x.tiles, tiles, tiles[0].shape[1] // self.geometry.planes.taps
        own = [plane for plane in ORDER_OF_SUMS if plane < len(banks)]
        taps = (w_sbuf[0 : x_sbuf.shape[0], plane * each : (plane + 1) * each] for plane in own)
        return [Factor(banks[plane], some, x_sbuf[:, plane : x_sbuf.shape[1]]) for plane, some in zip(own, taps)]


def add_frames(frames_sbuf, x_sbuf, ledger):
    """Add rows of frames: d0 - d2, d1 + d2, d2 - d1 and d3 - d1 of the four frames of each pair."""
    p, dn, hn, wn = frames_sbuf.shape
    end = dn - PRODUCTS_OF_PAIR + 1
    for product, (one, other, op) in enumerate(
        ((0, 2, nl.subtract), (1, 2, nl.add), (2, 1, nl.subtract), (3, 1, nl.subtract))
    ):
        nisa.tensor_tensor(
            dst=x_sbuf[0:p, product : x_sbuf.shape[1] : PRODUCTS_OF_PAIR, 0:hn, 0:wn],
            data1=frames_sbuf[:, one : one + end : 2],
            data2=frames_sbuf[:, other : other + end : 2],
            op=op,
            engine=pick_sum(ledger, end // 2 * hn * wn + hn * wn, True),
        )


def read_pair_out(y_sbuf, sums, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Evacuate four banks of sums into y_sbuf [k, planes, rows, columns], the first and the second of each pair of
    planes alternating, with the whole epilogue; an odd last plane has no second."""
    (kn, pairs, pn, qn), planes = sums[1].shape, y_sbuf.shape[1]
    elements, vector, gpsimd = pairs * pn * qn, nisa.engine.vector, nisa.engine.gpsimd
    half_sbuf = nl.ndarray(sums[1].shape, dtype=nl.float32, buffer=nl.sbuf)
    bias = {} if bias_sbuf is None else {"bias": bias_sbuf}
    nisa.activation(dst=half_sbuf, op=nl.copy, data=sums[1], scale=0.5, **bias)
    ledger.scalar += START_WORK + elements * SCALAR_WORK
    for plane in range(min(2, planes)):
        count = div_ceil(planes - plane, 2)
        rest_sbuf = nl.ndarray((kn, count, pn, qn), dtype=nl.float32, buffer=nl.sbuf)
        scaled(rest_sbuf, sums[2][:, 0:count], 0.5 - plane, nl.add, half_sbuf[:, 0:count])
        residual = None if residual_sbuf is None else residual_sbuf[:, plane:planes:2]
        if residual is not None and not adds_last(epilogue):
            nisa.tensor_tensor(dst=rest_sbuf, data1=rest_sbuf, data2=residual, op=nl.add, engine=gpsimd)
        y, own_psum = y_sbuf[:, plane:planes:2], sums[3 * plane][:, 0:count]
        evacuate(y, own_psum, None, residual, epilogue, vector, rest=rest_sbuf, adder=gpsimd)
        ledger.vector += 2 * (VECTOR_START_WORK_PSUM + elements * VECTOR_WORK)
