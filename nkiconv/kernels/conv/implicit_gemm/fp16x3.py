"""precision="fp16x3": what one matmul a tap does otherwise where fp32 factors are pairs of fp16.

Rows of x come in as fp32 parts that wait to become pairs; transposed filters become pairs on their way out of PSUM;
products are summed in two banks, of high parts and of the rest, 2^11 too large, which the read-out joins.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import pick
from ..._epilogue import Epilogue, finish
from ..._tiles import BANK_BYTES
from ..cuts import Band, with_rows
from ..pairs_of_planes import PRODUCTS_OF_PAIR
from .fold import chunk_window
from .pairs_fp16 import DOWN, advance, start_pair
from .rows import load_rows

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
class PairPart(nl.NKIObject):
    """Rows of a band, from its first, of a chunk (index) of channels, on their way to its tile."""

    chunks: list
    index: int
    band: Band
    h0: int
    hn: int
    tile: object


@dataclass
class PairTile(nl.NKIObject):
    """x of a chunk in a band: high and low parts, (first row, number) of its Parts."""

    high_sbuf: object
    low_sbuf: object
    parts: list


@dataclass
class Pairing(nl.NKIObject):
    """Pairs on their way. ended: of parts of x. credit, rate: parts to start a tap's products."""

    parts: list
    staged: list
    started: int
    ended: int
    pairs: list
    credit: float
    rate: float


@dataclass
class Count(nl.NKIObject):
    """Pairs that are done."""

    ended: int


def start_pairing(geometry):
    """A Pairing of nothing, or None where factors are what they are."""
    if geometry.precision != "fp16x3":
        return None
    return Pairing(parts=[], staged=[], started=0, ended=0, pairs=[], credit=0.0, rate=0.0)


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


def add_part(work, chunks, tiles, index, band, part):
    """As `load_rows`, for rows that become pairs: they come in as far as there is room."""
    pairing = work.pairing
    width = chunk_window(work.geometry, chunks[index], band)[1]
    if tiles[index] == None:
        shape = (chunks[index][2] * chunks[index][1], band.dn, band.hn, width)
        tiles[index] = PairTile(
            high_sbuf=nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf),
            low_sbuf=nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf),
            parts=[],
        )
    tile = tiles[index]
    most = max(1, STAGE_PART_BYTES // (4 * band.dn * width))
    for h0 in range(part[0], part[0] + part[1], most):
        hn = min(most, part[0] + part[1] - h0)
        tile.parts.append((h0, len(pairing.parts)))
        pairing.parts.append(PairPart(chunks=chunks, index=index, band=band, h0=h0, hn=hn, tile=tile))
    stage_parts(work)


def stage_parts(work):
    """Load parts while those that are no pairs yet are few enough."""
    pairing = work.pairing
    staged_bytes = 0
    for number in range(pairing.ended, len(pairing.staged)):
        staged_bytes += part_elements(work, pairing.parts[number]) * 4
    while len(pairing.staged) < len(pairing.parts):
        part = pairing.parts[len(pairing.staged)]
        staged_bytes += part_elements(work, part) * 4
        if staged_bytes > STAGE_BYTES and len(pairing.staged) > pairing.ended:
            return
        band, found = part.band, []
        for _ in range(len(part.chunks)):
            nothing = None
            found.append(nothing)
        rows = with_rows(band, (band.p0, band.pn), (band.h0 + part.h0, part.hn))
        load_rows(work, part.chunks, found, part.index, rows, (0, part.hn))
        pairing.staged.append(found[part.index])


def part_elements(work, part):
    """Elements a partition of a Part."""
    return part.band.dn * part.hn * chunk_window(work.geometry, part.chunks[part.index], part.band)[1]


def parts_to(tile, hn):
    """How many of all Parts hold the first hn rows of a PairTile."""
    count = 0
    for index in range(len(tile.parts)):
        h0, number = tile.parts[index]
        if h0 < hn:
            count = number + 1
    return count


def split_part(work):
    """Start the pairs of the next Part."""
    pairing = work.pairing
    while len(pairing.staged) <= pairing.started:
        advance_pairs(work)
    part, part_sbuf = pairing.parts[pairing.started], pairing.staged[pairing.started]
    tile, end = part.tile, part.h0 + part.hn
    count, nn, hn, wn = part_sbuf.shape
    high_sbuf = tile.high_sbuf[0:count, 0:nn, part.h0 : end, 0:wn]
    low_sbuf = tile.low_sbuf[0:count, 0:nn, part.h0 : end, 0:wn]
    elements = nn * hn * wn
    pairing.pairs.append(start_pair(pairing, part_sbuf, False, part_sbuf, high_sbuf, low_sbuf, elements, work.ledger))
    pairing.staged[pairing.started] = None
    pairing.started = pairing.started + 1


def split_to(work, count):
    """Start the pairs of Parts until so many are."""
    while work.pairing.started < count:
        split_part(work)


def advance_pairs(work):
    """One instruction of every pair that is not done; load what there is room for then."""
    pairing = work.pairing
    pairing.pairs = advance(pairing.pairs, work.ledger)
    stage_parts(work)


def set_pairing_rate(work, taps):
    """Parts of x become pairs evenly during the products of so many taps."""
    pairing = work.pairing
    pairing.rate = (len(pairing.parts) - pairing.started) / taps
    pairing.credit = 0.0


def advance_due(work):
    """After the products of a tap: what is due of x, and of pairs."""
    pairing = work.pairing
    if len(pairing.pairs) >= PAIRS_TOGETHER:
        advance_pairs(work)
    pairing.credit = pairing.credit + pairing.rate
    while pairing.credit >= 1.0:
        pairing.credit = pairing.credit - 1.0
        if pairing.started < len(pairing.parts):
            split_part(work)


def pair_of_filters(filters, data, in_psum, high_sbuf, low_sbuf, last, ledger):
    """Start the pairs of transposed filters [channels, groups, kn]; last: whether they are a piece's last."""
    pairing = filters.pairing
    while len(pairing.pairs) >= PAIRS_MAX:
        pairing.pairs = advance(pairing.pairs, ledger)
    rest_sbuf = data
    if in_psum:
        rest_sbuf = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    elements = 1
    for axis in range(1, len(data.shape)):
        elements *= data.shape[axis]
    of = filters if last else Count(ended=0)
    pairing.pairs.append(start_pair(of, data, in_psum, rest_sbuf, high_sbuf, low_sbuf, elements, ledger))


def read_sums_out(y_sbuf, main_psum, rest_psum, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Both sums into y_sbuf, with everything that the epilogue asks for.

    The rest, scaled, is a residual of the main sums; what is to be added before the activation joins it.
    """
    shape = main_psum.shape
    rest_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    last = epilogue.residual == "post_activation" and epilogue.activation != ""
    if residual_sbuf != None and not last:
        nisa.scalar_tensor_tensor(
            dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, op1=nl.add, operand1=residual_sbuf
        )
    else:
        engine = pick(ledger, shape[1] * shape[2] * shape[3], False)
        nisa.tensor_scalar(dst=rest_sbuf, data=rest_psum, op0=nl.multiply, operand0=DOWN, engine=engine)
    joined = Epilogue(
        activation=epilogue.activation,
        bias=epilogue.bias,
        residual="pre_activation",
        y_itemsize=epilogue.y_itemsize,
    )
    done_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) if last else y_sbuf
    finish(done_sbuf, main_psum, bias_sbuf, rest_sbuf, joined, nisa.engine.vector)
    if last:
        nisa.tensor_tensor(dst=y_sbuf, data1=done_sbuf, data2=residual_sbuf, op=nl.add)
