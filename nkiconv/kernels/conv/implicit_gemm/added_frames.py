"""precision="winograd": frames on their way in, which become sums of two between matmuls (see `pairs_of_planes`).

Rows of frames take tiles in turn; sums of those of the next band are made in the course of one (`parts`).
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import pick_sum
from ..._tiles import BANK_BYTES
from ..cuts import chunks_of
from ..pairs_of_planes import PRODUCTS_OF_PAIR, frames_of_x, frames_seen
from ..transposes import is_transposed
from .fold import chunk_window
from .rows import clear, clear_beside, load_copies, load_side_by_side

#: Bytes a partition of frames that are added together, if more than a row.
FRAMES_PART_BYTES = 8192
#: Tiles that frames of a chunk take in turn, at least and at most.
TURNS_MIN, TURNS_MAX = 2, 4
#: Banks of PSUM whose sums are on their way out together, in parts.
SUMS_BANKS = 6
#: Share of a band's first job before the frames of the next are added, as they are on their way, and until they are.
ADD_FROM, ADD_UNTIL = 0.35, 0.95


@dataclass
class FrameTurns(nl.NKIObject):
    """Tiles of a shape, and first column, that frames of a chunk take in turn, and how many have."""

    key: tuple
    tiles: list
    taken: int


def adding_bytes(geometry, plan, row_bytes, x_bytes):
    """Bytes a partition beside those of other precisions: frames that are not added yet, and sums on their way out.
    row_bytes, x_bytes: of all sums of frames in a row of a band, and in a band."""
    if geometry.direct == None:
        return 0
    chunks, pairs = 1, geometry.planes.out
    for index in range(len(plan.items)):
        item = plan.items[index]
        chunks = max(chunks, len(chunks_of(plan.batches[item.batch])))
        pairs = min(pairs, item.band.zn)
    frames_bytes = min(x_bytes, max(row_bytes, chunks * FRAMES_PART_BYTES))
    if row_bytes >= chunks * FRAMES_PART_BYTES:
        frames_bytes = frames_bytes * frames_seen(pairs) // (PRODUCTS_OF_PAIR * pairs)
    return TURNS_MIN * frames_bytes + SUMS_BANKS * BANK_BYTES


def adding_instructions(geometry, band, chunks):
    """Instructions for the frames of a band that so many chunks of a job see, and its filters, at most."""
    if geometry.direct == None:
        return 0
    return chunks * ((band.hn + 4) * (PRODUCTS_OF_PAIR + 4) + 5)


def load_frames(work, part, row_bytes):
    """A RowPart's frames, zeros where there are none: copies of x or, where rows of taps are channels, of the rows of x
    that there are for each. row_bytes: a partition of a row of them."""
    geometry, band, chunk = work.geometry, part.band, part.chunk
    first, count, before = frames_of_x(geometry, band)
    w0, width = chunk_window(geometry, chunk, band)
    frames_sbuf = next_tile(work, part, (chunk[2] * chunk[1], frames_seen(band.zn), part.hn, width), row_bytes)
    parts, seen, hn, _ = frames_sbuf.shape
    for run in ((0, before), (before + count, seen)):
        if run[0] < run[1]:
            clear(frames_sbuf[0:parts, run[0] : run[1], 0:hn, 0:width], 0, width)
    if count == 0:
        return frames_sbuf
    found_sbuf = frames_sbuf[0:parts, before : before + count, 0:hn, 0:width]
    h0, rows = band.h0 + part.h0, geometry.depth
    if is_transposed(geometry):
        load_side_by_side(work, geometry.direct, chunk, found_sbuf, (first, h0, w0), True)
        return frames_sbuf
    if rows != None:
        reach = (rows.taps - 1) * rows.dilation
        if h0 < rows.before or h0 + hn - 1 + reach - rows.before >= rows.size:
            clear(found_sbuf, 0, width)
    load_copies(work.operands, geometry, chunk, found_sbuf, band, first, h0)
    return frames_sbuf


def next_tile(work, part, shape, row_bytes):
    """The next of the tiles that frames of a chunk take in turn, so that loads do not run further ahead; zeros are in
    the columns beside x that copies of channels lack, once for all loads."""
    preparing, chunk = work.preparing, part.chunk
    key = shape + (chunk_window(work.geometry, chunk, part.band)[0],)
    while len(preparing.turns) <= part.index:
        preparing.turns.append(FrameTurns(key=(), tiles=[], taken=0))
    turns = preparing.turns[part.index]
    if turns.key != key:
        turns.key = key
        turns.tiles = []
        turns.taken = 0
    most = preparing.most_bytes // (part.chunks * part.hn * row_bytes)
    turn = turns.taken % min(TURNS_MAX, max(TURNS_MIN, most))
    turns.taken = turns.taken + 1
    if turn == len(turns.tiles):
        tile_sbuf = nl.ndarray(shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
        if chunk[2] > 1:
            clear_beside(tile_sbuf, work.geometry, chunk, part.band)
        turns.tiles.append(tile_sbuf)
    return turns.tiles[turn]


def add_frames(frames_sbuf, x_sbuf, ledger):
    """The sums of some rows: d0 - d2, d1 + d2, d2 - d1 and d3 - d1 of the four frames of each pair."""
    p, dn, hn, wn = frames_sbuf.shape
    for sums in ((0, 0, 2, nl.subtract), (1, 1, 2, nl.add), (2, 2, 1, nl.subtract), (3, 3, 1, nl.subtract)):
        product, one, other, op = sums
        end = dn - PRODUCTS_OF_PAIR + 1
        nisa.tensor_tensor(
            dst=x_sbuf[0:p, product : x_sbuf.shape[1] : PRODUCTS_OF_PAIR, 0:hn, 0:wn],
            data1=frames_sbuf[0:p, one : one + end : 2, 0:hn, 0:wn],
            data2=frames_sbuf[0:p, other : other + end : 2, 0:hn, 0:wn],
            op=op,
            engine=pick_sum(ledger, end // 2 * hn * wn + hn * wn, True),
        )
