"""x that is multiplied otherwise than it comes: it comes in parts, which are prepared between the matmuls of others.

fp32 becomes pairs of fp16 (fp16x3.py), frames become sums of two (winograd.py). A part is some rows of a band: they
come in as far as there is room, those of a band in the course of the one before it.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import Band
from ....schedules.pairs_of_planes import frames_seen
from ..filter_feed import tiles_in_turn
from .fold import chunk_window
from .fp16x3 import PAIRS_TOGETHER, STAGE_BYTES, STAGE_PART_BYTES, advance, kinds_of, start_pair
from .pace import Pace, due_now, start_pace
from .rows import load_rows, rows_in
from .winograd import ADD_FROM, ADD_UNTIL, FRAMES_PART_BYTES, add_frames, load_frames


@dataclass
class RowPart(nl.NKIObject):
    """Rows of a band, from its first, of a chunk (its index, of so many): what they are prepared for, and x as it came,
    or None."""

    chunk: tuple
    index: int
    chunks: int
    band: Band
    h0: int
    hn: int
    tile: object
    raw_sbuf: object = None


@dataclass
class PreparedTile(nl.NKIObject):
    """x of a chunk in a band as it is multiplied: high and low parts, or sums; (first row, number) of its RowParts."""

    tiles: list
    parts: list


@dataclass
class Preparing(nl.NKIObject):
    """RowParts in the order of the work: how many have come, are begun and done. most_bytes: a partition of those that
    have come and are not done."""

    parts: list
    most_bytes: int
    pace: Pace
    #: Pairs on their way, of filters too; by chunk, tiles that frames take in turn
    pairs: list
    turns: list
    come: int = 0
    started: int = 0
    ended: int = 0


def start_preparing(geometry, frames_bytes):
    """A Preparing of nothing, or None where x is multiplied as it is. frames_bytes: of sums of frames, `most_bytes`."""
    if geometry.direct == None and geometry.precision != "fp16x3":
        return None
    most_bytes = STAGE_BYTES if geometry.direct == None else frames_bytes
    return Preparing(parts=[], most_bytes=most_bytes, pace=Pace(), pairs=[], turns=[])


def prepared_tile(geometry, chunk, band):
    """A PreparedTile of a chunk in a band, of which no part is there."""
    shape = (chunk[2] * chunk[1], band.dn, band.hn, chunk_window(geometry, chunk, band)[1])
    return PreparedTile(tiles=tiles_in_turn(1 if geometry.direct != None else 2, shape, nl.float16), parts=[])


def add_parts(work, chunks, index, tile, band, part):
    """RowParts of rows (first, how many) of a band, for a PreparedTile; they come in as far as there is room."""
    preparing = work.preparing
    row_bytes = part_row_bytes(work.geometry, chunks[index], band)
    most = max(1, (STAGE_PART_BYTES if work.geometry.direct == None else FRAMES_PART_BYTES) // row_bytes)
    for h0 in range(part[0], part[0] + part[1], most):
        hn = min(most, part[0] + part[1] - h0)
        tile.parts.append((h0, len(preparing.parts)))
        preparing.parts.append(
            RowPart(chunk=chunks[index], index=index, chunks=len(chunks), band=band, h0=h0, hn=hn, tile=tile)
        )
    bring_parts(work)


def part_row_bytes(geometry, chunk, band):
    """Bytes a partition of a row of a band as it comes."""
    planes = band.dn if geometry.direct == None else frames_seen(band.zn)
    return planes * chunk_window(geometry, chunk, band)[1] * geometry.itemsize


def bring_parts(work):
    """Load parts while those that are not done yet are few enough: one at least, of frames one of each chunk."""
    preparing, geometry = work.preparing, work.geometry
    waiting_bytes = 0
    for number in range(preparing.ended, len(preparing.parts)):
        part = preparing.parts[number]
        waiting_bytes += part.hn * part_row_bytes(geometry, part.chunk, part.band)
        if number >= preparing.come:
            least = preparing.ended + (1 if geometry.direct == None else part.chunks)
            if waiting_bytes > preparing.most_bytes and number >= least:
                return
            if geometry.direct != None:
                part.raw_sbuf = load_frames(work, part, part_row_bytes(geometry, part.chunk, part.band))
            else:
                shape = (part.chunk[2] * part.chunk[1], part.band.dn, part.hn, part.tile.tiles[0].shape[3])
                part.raw_sbuf = nl.ndarray(shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
                load_rows(work, part.chunk, part.raw_sbuf, part.band, part.band.h0 + part.h0, part.chunks == 1)
            preparing.come = number + 1


def parts_to(tile, hn):
    """How many of all RowParts hold the first hn rows of a PreparedTile."""
    count = 0
    for part in tile.parts:
        h0, number = part
        if h0 < hn:
            count = number + 1
    return count


def prepare_part(work):
    """Begin with the next RowPart: start its pairs, or add its frames."""
    preparing = work.preparing
    while preparing.come <= preparing.started:
        advance_pairs(work)
    part = preparing.parts[preparing.started]
    tiles = []
    for tile_sbuf in part.tile.tiles:
        tiles.append(rows_in(tile_sbuf, part.h0, part.hn))
    preparing.started = preparing.started + 1
    if work.geometry.direct != None:
        add_frames(part.raw_sbuf, tiles[0], work.ledger)
        preparing.ended = preparing.started
    else:
        pair = start_pair(preparing, part.raw_sbuf, False, tiles[0], tiles[1], work.ledger)
        preparing.pairs.append(pair)
    part.raw_sbuf = None
    part.tile = None
    if work.geometry.direct != None:
        bring_parts(work)


def prepare_to(work, count):
    """Begin with RowParts until so many are."""
    while work.preparing.started < count:
        prepare_part(work)


def advance_pairs(work):
    """One instruction of every pair that is not done; load what there is room for then."""
    preparing = work.preparing
    preparing.pairs = advance(preparing.pairs, work.ledger)
    bring_parts(work)


def end_pairs(work, pieces, parts):
    """Give the instructions of pairs until so many pieces of filters and RowParts of x are done."""
    filters, preparing = work.batch.filters, work.preparing
    while filters.ended < pieces or preparing.ended < parts:
        advance_pairs(work)


def set_preparing_pace(work, matmuls):
    """RowParts that are not begun yet are, evenly, in the course of so many matmuls: of frames in a share of them, as
    they are on their way at first."""
    preparing = work.preparing
    left = len(preparing.parts) - preparing.started
    if work.geometry.direct == None:
        preparing.pace = start_pace(left, matmuls / kinds_of(work.geometry), 0.0, 1.0)
    else:
        preparing.pace = start_pace(left, matmuls, ADD_FROM, ADD_UNTIL)


def prepare_due(work, index, factors):
    """After a matmul, of which there are `factors` a tap: what is due of x, and of pairs, then after each tap's."""
    preparing, adds = work.preparing, work.geometry.direct != None
    if not adds and (index + 1) % factors > 0:
        return
    if len(preparing.pairs) >= PAIRS_TOGETHER:
        advance_pairs(work)
    for _ in range(due_now(preparing.pace)):
        if preparing.started < len(preparing.parts):
            prepare_part(work)
