"""precision="winograd": filters as sums of planes of taps, x as sums of frames, four banks of sums as two planes of y.

`pairs_of_planes` defines the sums. Taps are added just before their transposes; frames of the next output tile are
added during the current one (`preparing`).
"""

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_schedule import FRAMES_PART_BYTES
from ....schedules.options import adds_last
from ....schedules.pairs_of_planes import PRODUCTS_OF_PAIR, TAPS_OF_PLANES, frames_of_x, frames_seen, row_pieces
from ....schedules.tiles import P_MAX, div_ceil
from ..._engines import SCALAR_WORK, START_WORK, VECTOR_START_WORK_PSUM, VECTOR_WORK, pick_sum, scaled
from ..._epilogue import evacuate
from ..regions import load_filters
from .preparing import Preparing
from .rows import Factor, clear, clear_beside, load_copies

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
    """Adds rows of frames in twos. turns: the tiles of one shape that loaded frames rotate through, so that loads keep
    their order: one that waits for room would be overtaken by later ones."""

    def __init__(self, core, most_bytes):
        super().__init__(core, FRAMES_PART_BYTES, most_bytes)
        self.shape, self.turns = None, []

    def planes(self, out_tile):
        """Frames of an output tile that are loaded."""
        return frames_seen(out_tile.zn)

    def load(self, part):
        """Load a part's frames, with zeros outside x: copies of x or, if rows of taps are channels, of the rows of x
        that exist for each."""
        geometry, x = self.geometry, part.x
        first, count, before = frames_of_x(geometry, x.out_tile)
        (parts, _, _, width), seen, hn = x.shape, frames_seen(x.out_tile.zn), part.hn
        frames_sbuf = self.next_tile((seen, hn, width), part.num_bytes)[0:parts]
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

    def next_tile(self, shape, num_bytes):
        """The next tile of a shape: loaded parts that are not complete, at most `most_bytes`, keep theirs."""
        if shape != self.shape:
            self.shape, self.turns = shape, []
        full = (len(self.turns) + 1) * num_bytes > max(self.most_bytes, num_bytes)
        new = None if full else nl.ndarray((P_MAX, *shape), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        self.turns.append(self.turns.pop(0) if full else new)
        return self.turns[-1]

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
