"""Filters as moving operands, [c, chunk, tap, k] in SBUF: chunks of input channels, all output channels of a batch.

Three ways from HBM: "copy", where output channels lie side by side (RSCK, or packed): runs of them; "turn", where input
channels do (KRSC, or one tap) and no cast is due: DMA turns them on the way; "array": blocks of taps as they lie, each
[k, c] of a tap turned on the array, several to a bank of PSUM. The last is done in pieces, in the order in which the
sums need them, so that the loop can turn one between any two matmuls.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES, div_ceil, whole_words
from ..boxes import corner, load_packed, strides_of_w
from ..cuts import most_of, tap_blocks

#: Bytes a partition of a block of taps as it lies, and of all that are on their way together, if more than one.
SWAPPED_RAW_BYTES = 16_384
SWAPPED_AHEAD_BYTES = 28_672
#: Bytes of a DMA that turns, at least, if there are so many chunks (see load.py).
TURNED_BYTES = 98_304


@dataclass
class Piece(nl.NKIObject):
    """What is turned together: of a chunk, columns of a row of taps and output channels, and which raw tiles hold it.

    raw: index of the tile of the first 128 of the output channels; row, s0 of its first tap in them.
    """

    chunk: int
    raw: int
    row: int
    s0: int
    sn: int
    tap: int
    k0: int
    kn: int


@dataclass
class Raw(nl.NKIObject):
    """A load: of a chunk, rows and columns of taps, and at most 128 output channels from the batch's first."""

    chunk: int
    r0: int
    rn: int
    s0: int
    sn: int
    k0: int
    kn: int


@dataclass
class Filters(nl.NKIObject):
    """Filters of a batch on their way; loads and pieces in order, `ends`: by chunk, pieces until it is complete."""

    way: str
    k0: int
    kn: int
    chunks: list
    loads: list
    pieces: list
    ends: list
    #: tiles of loads, None once they are turned
    raws: list
    turned: int
    #: [c, chunks, taps, kn] in SBUF, None until something comes
    tile: object
    #: chunks that are on their way, where they come straight
    started: int
    #: whether `tile` is folded
    folded: bool


def way_of(geometry, casts):
    """How filters come; casts: whether they are of another dtype in HBM."""
    if geometry.packed > 0 or geometry.w_k == 1:
        return "copy"
    if geometry.w_c == 1 and geometry.itemsize == 2 and not casts:
        return "turn"
    return "array"


def start_filters(geometry, k0, kn, chunks, way):
    """Filters of output channels k0 .. k0+kn-1 of which nothing is loaded yet."""
    loads, pieces, ends = [], [], []
    for chunk in range(len(chunks)):
        if way == "array":
            add_chunk(geometry, chunk, chunks[chunk][1], kn, loads, pieces)
        ends.append(len(pieces))
    return Filters(
        way=way,
        k0=k0,
        kn=kn,
        chunks=chunks,
        loads=loads,
        pieces=pieces,
        ends=ends,
        raws=[],
        turned=0,
        tile=None,
        started=0,
        folded=False,
    )


def add_chunk(geometry, chunk, channels, kn, loads, pieces):
    """Append the loads and pieces of a chunk."""
    P_MAX = nl.tile_size.pmax
    S = geometry.columns.taps
    wide = bank_channels(kn, geometry.itemsize)
    for block in tap_blocks(geometry, channels, SWAPPED_RAW_BYTES):
        r0, rn, s0, sn = block
        for first in range(0, kn, wide):
            count = min(wide, kn - first)
            raw = len(loads)
            for k0 in range(first, first + count, P_MAX):
                loads.append(Raw(chunk=chunk, r0=r0, rn=rn, s0=s0, sn=sn, k0=k0, kn=min(P_MAX, first + count - k0)))
            most = max(1, BANK_BYTES // (whole_words(count, 2) * geometry.itemsize))
            for row in range(rn):
                for s in range(0, sn, most):
                    tap, num = (r0 + row) * S + s0 + s, min(most, sn - s)
                    pieces.append(Piece(chunk=chunk, raw=raw, row=row, s0=s, sn=num, tap=tap, k0=first, kn=count))


def bank_channels(kn, itemsize):
    """Output channels of one tap that are turned into one bank of PSUM."""
    P_MAX = nl.tile_size.pmax
    return min(kn, BANK_BYTES // (P_MAX * itemsize) * P_MAX)


def load_bytes(geometry, load, chunks):
    """Bytes a partition of one load."""
    return chunks[load.chunk][1] * load.rn * load.sn * geometry.itemsize


def load_ahead(operands, geometry, filters, chunk):
    """Load what there is room for, up to a chunk."""
    if filters.tile == None:
        shape = (most_of(filters.chunks), len(filters.chunks), geometry.rows.taps * geometry.columns.taps, filters.kn)
        filters.tile = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    while filters.way != "array" and filters.started <= chunk and filters.started < len(filters.chunks):
        filters.started = filters.started + load_straight(operands, geometry, filters)
    waiting_bytes = 0
    for index in range(len(filters.raws)):
        if filters.raws[index] != None:
            waiting_bytes += load_bytes(geometry, filters.loads[index], filters.chunks)
    for index in range(len(filters.raws), len(filters.loads)):
        load = filters.loads[index]
        if load.chunk > chunk:
            return
        waiting_bytes += load_bytes(geometry, load, filters.chunks)
        if waiting_bytes > SWAPPED_AHEAD_BYTES:
            return
        load_raw(operands, geometry, filters)


def load_raw(operands, geometry, filters):
    """The next load: [kn, channels, rows, columns] in SBUF."""
    load, by = filters.loads[len(filters.raws)], strides_of_w(geometry)
    c0, count = filters.chunks[load.chunk]
    raw_sbuf = nl.ndarray((load.kn, count, load.rn, load.sn), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = [[by[0], load.kn], [by[1], count], [by[2], load.rn], [by[3], load.sn]]
    copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=corner(by, filters.k0 + load.k0, c0, load.r0, load.s0)))
    filters.raws.append(raw_sbuf)


def load_straight(operands, geometry, filters):
    """The next chunks straight from HBM; returns how many."""
    chunk, kn = filters.started, filters.kn
    R, S = geometry.rows.taps, geometry.columns.taps
    c0, count = filters.chunks[chunk]
    if geometry.packed > 0:
        tile_sbuf = filters.tile[0 : filters.tile.shape[0], chunk, 0 : R * S, 0:kn]
        load_packed(tile_sbuf, operands.w, geometry, c0, count, filters.k0, kn)
        return 1
    by_k, by_c, by_r, by_s = strides_of_w(geometry)
    offset = filters.k0 * by_k + c0 * by_c
    if filters.way == "copy":
        pattern = [[by_c, count], [by_r, R], [by_s, S], [1, kn]]
        copy(filters.tile[0:count, chunk, 0 : R * S, 0:kn], operands.w.ap(pattern=pattern, offset=offset))
        return 1
    together = 1
    if geometry.C % len(filters.chunks) == 0:
        one_bytes = kn * R * S * count * geometry.itemsize
        together = min(len(filters.chunks) - chunk, div_ceil(TURNED_BYTES, one_bytes))
    in_line = R == 1 or S == 1 or by_r == S * by_s
    taps = R * S if in_line else S
    for r in range(1 if in_line else R):
        pattern = [[by_k, kn], [count, together], [by_r if S == 1 else by_s, taps], [1, count]]
        nisa.dma_transpose(
            dst=filters.tile[0:count, chunk : chunk + together, r * S : r * S + taps, 0:kn],
            src=operands.w.ap(pattern=pattern, offset=offset + r * by_r),
            axes=(3, 1, 2, 0),
        )
    return together


def waiting_to(filters, chunk):
    """Pieces that are not turned yet of chunks up to one."""
    return max(0, filters.ends[min(chunk, len(filters.ends) - 1)] - filters.turned)


def turn_to(operands, geometry, filters, chunk, ledger):
    """Have all of a chunk in its place."""
    load_ahead(operands, geometry, filters, chunk)
    while waiting_to(filters, chunk) > 0:
        turn_piece(operands, geometry, filters, ledger)


def turn_piece(operands, geometry, filters, ledger):
    """Turn the next piece, and load ahead where that was the last of its loads."""
    piece = filters.pieces[filters.turned]
    blocks = cut_by(piece.kn, nl.tile_size.pmax)
    while len(filters.raws) < piece.raw + len(blocks):
        load_raw(operands, geometry, filters)
    count = filters.chunks[piece.chunk][1]
    turned_psum = nl.ndarray((count, piece.sn, whole_words(piece.kn, 2)), dtype=operands.w_dtype, buffer=nl.psum)
    for s in range(piece.sn):
        for index in range(len(blocks)):
            first, kn = blocks[index]
            nisa.nc_transpose(
                dst=turned_psum[0:count, s, first : first + kn],
                data=filters.raws[piece.raw + index][0:kn, 0:count, piece.row, piece.s0 + s],
                engine=nisa.engine.tensor,
            )
    nisa.tensor_copy(
        dst=filters.tile[0:count, piece.chunk, piece.tap : piece.tap + piece.sn, piece.k0 : piece.k0 + piece.kn],
        src=turned_psum[0:count, 0 : piece.sn, 0 : piece.kn],
        engine=pick(ledger, piece.sn * piece.kn, is_16bit(operands.w_dtype)),
    )
    filters.turned = filters.turned + 1
    after = filters.pieces[min(filters.turned, len(filters.pieces) - 1)]
    if filters.turned == len(filters.pieces) or after.raw != piece.raw:
        for index in range(len(blocks)):
            filters.raws[piece.raw + index] = None
        load_ahead(operands, geometry, filters, len(filters.chunks) - 1)


def fold_filters(geometry, source, filters):
    """Replace the filters by those of `fold` rows of y at once: [(slot, c), 1, taps, (row, k)], zero where a slot's row
    of x is none of a row's window."""
    rows, S, K = geometry.rows, geometry.columns.taps, filters.kn
    fold, slots = source.fold, source.slots
    cn = filters.chunks[0][1]
    shape = (slots * cn, 1, source.rows.taps, S, fold * K)
    folded_sbuf = nl.ndarray(shape, dtype=filters.tile.dtype, buffer=nl.sbuf)
    nisa.memset(dst=folded_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for row in range(fold):
        for r in range(rows.taps):
            place = row * rows.stride + r * rows.dilation
            slot, tap = place % slots, place // slots
            copy(
                folded_sbuf[slot * cn : (slot + 1) * cn, 0, tap, 0:S, row * K : (row + 1) * K],
                filters.tile[0:cn, 0, r * S : (r + 1) * S, 0:K],
            )
    filters.tile = folded_sbuf.reshape((slots * cn, 1, source.rows.taps * S, fold * K))
    filters.folded = True


def cut_by(count, each):
    """(first, how many) of parts of `each`, the last one smaller."""
    found = []
    for first in range(0, count, each):
        found.append((first, min(each, count - first)))
    return found


def raw_bytes(geometry, kn, chunks):
    """Bytes a partition of all loads that are there together, at most."""
    channels = most_of(chunks)
    blocks = tap_blocks(geometry, channels, SWAPPED_RAW_BYTES)
    one = channels * blocks[0][1] * blocks[0][3] * geometry.itemsize
    together = div_ceil(bank_channels(kn, geometry.itemsize), nl.tile_size.pmax)
    return max(SWAPPED_AHEAD_BYTES, one * together) + one * together


def turns_of(kn, taps, chunks, itemsize):
    """(transposes, read-outs) of the filters of kn output channels, at most."""
    wide = bank_channels(kn, itemsize)
    transposes = len(chunks) * taps * div_ceil(kn, nl.tile_size.pmax)
    return transposes, len(chunks) * taps * div_ceil(kn, wide)
