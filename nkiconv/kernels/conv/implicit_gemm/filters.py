"""Filters as stationaries: [c, tap, k] in SBUF for each chunk of input channels of a job, transposed on the array.

Filters of all jobs of a batch come in blocks and are transposed in pieces (stationaries.py), in the order in which the
sums need them, so that the loop can transpose a piece between any two matmuls.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import tap_blocks
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.planes import channel_runs, is_by_plane
from ....schedules.tiles import div_ceil, filled
from ..._engines import is_16bit, pick
from ..filter_feed import transposes_of_bank
from .cuts import TAPS_RAW_BYTES, home_row, tap_order
from .fold import group_depth
from .jobs import Job, by_input, is_depthwise_job, lies_ready
from .pairs_fp8 import HALVES, slots_of
from .plan import TAPS_AHEAD_BYTES
from .stationaries import (
    group_mask,
    in_order,
    load_backwards,
    load_channels,
    load_stationaries,
    load_taps,
    make_diagonals,
    pair_chunk,
    place_backwards,
    slot_of,
    tile_of,
    transpose_taps,
)
from .winograd import load_planes_of_taps, sums_of_taps, taps_in_hbm

#: Pieces that are transposed between the sums of a block's planes of taps, or copies that put its channels in order,
#: and their first transpose: an engine that waits for a later block keeps the array waiting.
SUMS_AHEAD, ORDER_AHEAD = 6, 2


@dataclass
class ChunkFilters(nl.NKIObject):
    """Filters of one of a job's chunks, `place` in the order of the work."""

    job: Job
    chunk: tuple
    place: int
    #: (blocks, pieces, moves) from the first of all on until it is complete
    end: tuple
    #: None before they are there: stationaries [depth * cn, rows of taps, groups of columns, rows of outputs, kn], low
    #: parts where they are pairs of fp16, and the mask of its groups
    tile: object = None
    low: object = None
    mask: object = None


@dataclass
class FilterBlock(nl.NKIObject):
    """Taps that are loaded together: of a chunk (first channel of a group, channels) and of its slots, rows and
    columns."""

    of: ChunkFilters
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int
    slot: int
    #: whether its channels are in the order of x on the partitions, as they come but where they are planes of taps
    ordered: bool


@dataclass
class Piece(nl.NKIObject):
    """Taps that are transposed together: of a block (index), one of its rows, groups of columns of equal depth."""

    block: int
    row: int
    first: int
    count: int
    depth: int


@dataclass
class Filters(nl.NKIObject):
    """Filters of a batch on their way from HBM to stationaries."""

    blocks: list
    #: what the array transposes, and indices of the blocks that DMA transposes
    pieces: list
    moves: list
    #: ChunkFilters in the order of the work, and by job and chunk
    order: list
    by_job: list
    #: blocks as loaded so far, [kn, channels, rows, columns] in SBUF, None once they are transposed
    raws: list
    #: None, or of pairs of fp16 the Preparing of all of them
    pairing: object
    #: bytes per partition that blocks of a core's first job may take together, 0 of a batch that is not its first
    first_bytes: int = 0
    #: pieces and blocks transposed so far, and pieces whose pairs are done
    transposed: int = 0
    moved: int = 0
    ended: int = 0


def start_filters(geometry, jobs, moved_from, together, pairing):
    """Filters of jobs of which nothing is loaded yet; DMA transposes those of jobs from `moved_from` on. together:
    those of all jobs for a chunk of inputs before those for the next one."""
    blocks, pieces, moves, order, by_job = [], [], [], [], []
    for job in jobs:
        by_job.append(filled(len(job.chunks), None))
    for one in chunk_order(jobs, together):
        index, chunk = one
        job = jobs[index]
        own = ChunkFilters(job=job, chunk=job.chunks[chunk], place=len(order), end=())
        by_dma = index >= moved_from and job.rows == 1 and own.chunk[2] == 1
        append_chunk(geometry, own, blocks, moves if by_dma else pieces, by_dma)
        own.end = (len(blocks), len(pieces), len(moves))
        by_job[index][chunk] = own
        order.append(own)
    return Filters(
        blocks=blocks,
        pieces=pieces,
        moves=moves,
        order=order,
        by_job=by_job,
        raws=[],
        pairing=pairing,
    )


def chunk_order(jobs, together):
    """(job, chunk) of all jobs in the order of the work."""
    first, found = jobs[0], []
    steps = len(first.chunks) if together else 1
    for step in range(steps):
        for index in range(len(jobs)):
            chunks = jobs[index].chunks
            for chunk in range(step, step + 1 if together else len(chunks)):
                found.append((index, chunk))
    return found


def append_chunk(geometry, of, blocks, pieces, by_dma):
    """Append the blocks and pieces of a chunk of a job; a depthwise filter is one block, and so is a packed one but for
    the first: x is waited for with the taps that come first in the work, not with all.

    by_dma: whether a piece is a block's index.
    """
    R, S, job, chunk = filter_rows(geometry), geometry.columns.taps, of.job, of.chunk
    home, _ = home_row(geometry, geometry.rows)
    per_c = geometry.C // geometry.groups
    own = per_c if job.pack > 1 else chunk[1]
    c0 = 0 if job.pack > 1 else chunk[0] % per_c
    depthwise = is_depthwise_job(geometry, job)
    parts = tap_blocks(geometry, own, TAPS_RAW_BYTES) if geometry.direct == None else [(0, R, 0, S)]
    paired = geometry.precision == "fp16x3"
    if geometry.packed > 0 and len(blocks) == 0 and not paired:
        parts = first_rows(home, R, S)
    elif geometry.packed > 0 or depthwise or geometry.flipped:
        parts = [(0, R, 0, S)]
    most = transposes_of_bank(job.kn, geometry.itemsize)
    for slot in range(slots_of(chunk)):
        # the second slot of HALVES has one tap
        last_tap = slot > 0 and chunk[3] == HALVES and geometry.packed == 0
        for which in range(len(parts) - 1 if last_tap else 0, len(parts)):
            r0, rn, s0, sn = parts[which]
            ordered = geometry.packed > 0 or not is_by_plane(geometry)
            block = FilterBlock(of=of, c0=c0, channels=own, r0=r0, rn=rn, s0=s0, sn=sn, slot=slot, ordered=ordered)
            blocks.append(block)
            if last_tap:
                pieces.append(Piece(block=len(blocks) - 1, row=rn - 1, first=S - 1, count=1, depth=1))
            elif by_dma:
                pieces.append(len(blocks) - 1)
            elif depthwise or (paired and geometry.packed > 0):
                pieces.append(Piece(block=len(blocks) - 1, row=0, first=0, count=S, depth=1))
            elif geometry.packed == 0 and not lies_ready(geometry, job, chunk):
                for row in tap_order(rn, home - r0):
                    add_row(geometry, chunk, block, len(blocks) - 1, row, most, pieces)


def first_rows(home, R, S):
    """Blocks as `tap_blocks` of the row of taps that is the first in the work, and of the others."""
    found = [(home, 1, 0, S)]
    if home > 0:
        found.append((0, home, 0, S))
    if home + 1 < R:
        found.append((home + 1, R - home - 1, 0, S))
    return found


def add_row(geometry, chunk, block, index, row, most, pieces):
    """Append the pieces of a row of a block: at most `most` groups of taps each, all of the same depth."""
    first = block.s0 // chunk[2]
    end = div_ceil(block.s0 + block.sn, chunk[2])
    whole = end if group_depth(geometry, chunk, end - 1) == chunk[2] else end - 1
    for group in range(first, whole, most):
        pieces.append(Piece(block=index, row=row, first=group, count=min(most, whole - group), depth=chunk[2]))
    if whole < end:
        depth = group_depth(geometry, chunk, whole)
        pieces.append(Piece(block=index, row=row, first=whole, count=1, depth=depth))


def load_to(operands, geometry, filters, last):
    """Load blocks until chunk `last` of all is complete."""
    while len(filters.raws) < end_of(filters, last)[0]:
        load_block(operands, geometry, filters)


def end_of(filters, last):
    """(blocks, pieces, moves) until chunk `last` of all is complete."""
    return filters.order[min(last, len(filters.order) - 1)].end


def after_job(filters, index):
    """How many chunks of all there are until a job's last one."""
    return filters.by_job[index][-1].place + 1


def load_ahead(operands, geometry, filters):
    """Load blocks while those that are not transposed yet are few enough."""
    load_within(operands, geometry, filters, len(filters.order) - 1, TAPS_AHEAD_BYTES)


def load_first(operands, geometry, filters, last):
    """Load blocks until chunk `last` of all is complete, as far as a first job's have room."""
    load_within(operands, geometry, filters, last, filters.first_bytes)


def load_within(operands, geometry, filters, last, most_bytes):
    """Load blocks until chunk `last` of all is complete, while those that are not transposed yet take so many bytes."""
    waiting_bytes = 0
    for index in range(len(filters.raws)):
        if filters.raws[index] != None:
            waiting_bytes += block_bytes(geometry, filters.blocks[index])
    while len(filters.raws) < end_of(filters, last)[0]:
        waiting_bytes += block_bytes(geometry, filters.blocks[len(filters.raws)])
        if waiting_bytes > most_bytes:
            return
        load_block(operands, geometry, filters)


def block_bytes(geometry, block):
    """Bytes a partition of a block as loaded; none where the load makes stationaries."""
    if geometry.direct != None:
        return block.channels * taps_in_hbm(geometry) * geometry.itemsize
    if by_input(geometry):
        job = block.of.job
        return 0 if lies_ready(geometry, job, block.of.chunk) else job.kn * num_taps(geometry) * geometry.itemsize
    in_place = geometry.packed > 0 and geometry.precision != "fp16x3"
    return 0 if in_place else block.channels * block.rn * block.sn * geometry.itemsize


def load_block(operands, geometry, filters):
    """Load the next block."""
    block, raw_sbuf = filters.blocks[len(filters.raws)], None
    job = block.of.job
    if geometry.packed > 0:
        raw_sbuf = load_stationaries(operands, geometry, filters, block)
    elif is_depthwise_job(geometry, job):
        raw_sbuf = load_channels(operands, geometry, job)
    elif by_input(geometry):
        raw_sbuf = load_backwards(operands, geometry, job, block.of.chunk)
        if lies_ready(geometry, job, block.of.chunk):
            own = block.of
            own.tile = raw_sbuf
            raw_sbuf = None
    elif geometry.direct != None:
        raw_sbuf = load_planes_of_taps(operands, geometry, job, block)
    else:
        raw_sbuf = load_taps(operands, geometry, job, block)
    filters.raws.append(raw_sbuf)


def transpose_until(operands, geometry, filters, last, ledger):
    """Transpose pieces until chunk `last` of all is complete."""
    load_to(operands, geometry, filters, last)
    while pieces_to(filters, last) > 0:
        transpose_piece(operands, geometry, filters, ledger)
    while moves_to(filters, last) > 0:
        move_block(operands, geometry, filters, ledger)


def pieces_to(filters, last):
    """Pieces that are not transposed yet of chunks up to `last` of all."""
    return max(0, end_of(filters, last)[1] - filters.transposed)


def moves_to(filters, last):
    """Blocks that DMA transposes and has not yet, of chunks up to `last` of all."""
    return max(0, end_of(filters, last)[2] - filters.moved)


def transpose_piece(operands, geometry, filters, ledger):
    """Transpose the next piece, and load ahead where that was a block's last."""
    piece = filters.pieces[filters.transposed]
    block = filters.blocks[piece.block]
    own, job = block.of, block.of.job
    while len(filters.raws) <= piece.block:
        load_block(operands, geometry, filters)
    raw_sbuf = raw_of_block(geometry, filters, piece.block, ledger)
    if filters.pairing != None and (geometry.packed > 0 or is_depthwise_job(geometry, job)):
        whole_sbuf = raw_sbuf if geometry.packed > 0 else make_diagonals(raw_sbuf, geometry)
        pair_chunk(geometry, filters, block, whole_sbuf, ledger)
    elif is_depthwise_job(geometry, job):
        own.tile = make_diagonals(raw_sbuf, geometry)
    else:
        if job.pack > 1 and own.mask == None:
            own.mask = group_mask(job, geometry, raw_sbuf.dtype)
        dtype = raw_sbuf.dtype if filters.pairing == None else nl.float16
        tile_sbuf = slot_of(tile_of(geometry, filters, block, dtype), geometry, block.slot)
        if by_input(geometry):
            place_backwards(tile_sbuf, raw_sbuf, geometry, block, piece, ledger)
        else:
            transpose_taps(tile_sbuf, raw_sbuf, filters, geometry, block, piece, ledger)
    filters.transposed = filters.transposed + 1
    ahead = ORDER_AHEAD if geometry.direct == None else SUMS_AHEAD
    soon = filters.pieces[min(filters.transposed + ahead, len(filters.pieces) - 1)]
    if soon.block < len(filters.raws):
        raw_of_block(geometry, filters, soon.block, ledger)
    after = filters.pieces[min(filters.transposed, len(filters.pieces) - 1)]
    if filters.transposed == len(filters.pieces) or after.block != piece.block:
        filters.raws[piece.block] = None
        load_first(operands, geometry, filters, after_job(filters, 0) - 1)
        load_ahead(operands, geometry, filters)


def raw_of_block(geometry, filters, index, ledger):
    """A block as its pieces are transposed: as it came, in the order of x, or sums of its planes of taps."""
    if geometry.direct != None:
        return sums_of_taps(filters.raws[index], geometry)
    block = filters.blocks[index]
    if not block.ordered:
        filters.raws[index] = in_order(filters.raws[index], geometry, block.c0, ledger)
        block.ordered = True
    return filters.raws[index]


def move_block(operands, geometry, filters, ledger):
    """Let DMA transpose the next of its blocks, and load ahead.

    An engine first puts the channels of a tap side by side: DMA transposes rows of 128 elements of 16 bits, not single
    ones.
    """
    index = filters.moves[filters.moved]
    while len(filters.raws) <= index:
        load_block(operands, geometry, filters)
    block, raw_sbuf = filters.blocks[index], filters.raws[index]
    kn, cn, rn, sn = raw_sbuf.shape
    tile_sbuf = tile_of(geometry, filters, block, raw_sbuf.dtype)
    rows_sbuf = nl.ndarray((kn, rn, sn, cn), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    engine, by_tap = pick(ledger, rn * sn * cn, is_16bit(raw_sbuf.dtype)), raw_sbuf.permute((0, 2, 3, 1))
    for run in channel_runs(geometry, block.c0, cn):
        at, channel, step, count = run
        first = channel - block.c0
        src = by_tap[0:kn, 0:rn, 0:sn, first : first + (count - 1) * step + 1 : step]
        nisa.tensor_copy(dst=rows_sbuf[0:kn, 0:rn, 0:sn, at : at + count], src=src, engine=engine)
    tile_sbuf = tile_sbuf.reshape((cn, num_taps(geometry), kn))
    tap = block.r0 * geometry.columns.taps + block.s0
    for r in range(rn if sn < geometry.columns.taps else 1):
        num = sn if sn < geometry.columns.taps else rn * sn
        nisa.dma_transpose(
            dst=tile_sbuf[0:cn, tap + r * geometry.columns.taps : tap + r * geometry.columns.taps + num, 0:kn],
            src=rows_sbuf.reshape((kn, rn * sn, cn))[0:kn, r * sn : r * sn + num, 0:cn],
            axes=(2, 1, 0),
        )
    filters.raws[index] = None
    filters.moved = filters.moved + 1
    load_ahead(operands, geometry, filters)
