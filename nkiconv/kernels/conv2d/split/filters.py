"""Filters as pairs of stationaries: [c, tap, k] fp16 in SBUF, high and low parts, for each chunk of a job's channels.

A row of w, one output channel, is contiguous in HBM; the array turns [k, c] of one tap into [c, k] in fp32, which moves
bits only, and the pair is made on the way out of PSUM. Filters of all jobs of a batch come in blocks and are turned in
pieces, in the order in which the sums need them. Packed filters need no turning.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..call import load_bias
from ..cuts import chunks_of, tap_blocks
from ..taps.filters import group_mask, load_taps, spread_groups
from .cuts import SPLIT_RAW_BYTES, piece_taps, tap_elements
from .pairs import start_pair
from .work import SPLIT_AHEAD_BYTES


@dataclass
class Block(nl.NKIObject):
    """Taps that are loaded together: of a job's chunk (first channel within its group, channels), rows and columns."""

    job: int
    chunk: int
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int


@dataclass
class Piece(nl.NKIObject):
    """Taps that are turned together, and whose products follow each other: of a block (index), in one row, columns."""

    block: int
    job: int
    chunk: int
    r: int
    s0: int
    sn: int


@dataclass
class Filters(nl.NKIObject):
    """Filters of a batch on their way from HBM to stationaries."""

    jobs: list
    chunks: list
    blocks: list
    pieces: list
    #: by job: index of its first piece; one more at the end
    firsts: list
    #: blocks as loaded so far, fp32 in SBUF, None once they are turned
    raws: list
    #: pieces turned so far, and those that have low parts
    turned: int
    ended: int
    #: by job and chunk: high and low parts, [channels, taps, kn] fp16 in SBUF
    highs: list
    lows: list
    #: by job: mask of its groups; bias of its channels
    masks: list
    biases: list


def start_filters(geometry, jobs):
    """Filters of a batch of jobs of which nothing is loaded yet."""
    blocks, pieces, firsts, highs, lows, masks = [], [], [0], [], [], []
    for index in range(len(jobs)):
        job, no_highs, no_lows = jobs[index], [], []
        for chunk in range(len(job.chunks)):
            add_chunk(geometry, job, index, chunk, blocks, pieces)
            nothing = None
            no_highs.append(nothing)
            no_lows.append(nothing)
        firsts.append(len(pieces))
        highs.append(no_highs)
        lows.append(no_lows)
        no_mask = None
        masks.append(no_mask)
    return Filters(
        jobs=jobs,
        chunks=chunks_of(jobs),
        blocks=blocks,
        pieces=pieces,
        firsts=firsts,
        raws=[],
        turned=0,
        ended=0,
        highs=highs,
        lows=lows,
        masks=masks,
        biases=[],
    )


def add_chunk(geometry, job, index, chunk, blocks, pieces):
    """Append the blocks and pieces of a chunk of a job; of a block's rows the middle one, which meets most, first."""
    per_c = geometry.C // geometry.groups
    first, count = job.chunks[chunk]
    parts = tap_blocks(geometry, tap_elements(geometry, job, job.chunks[chunk]), SPLIT_RAW_BYTES)
    most = piece_taps(job)
    for which in range(len(parts)):
        r0, rn, s0, sn = parts[which]
        blocks.append(
            Block(
                job=index,
                chunk=chunk,
                c0=0 if job.pack > 1 else first % per_c,
                channels=per_c if job.pack > 1 else count,
                r0=r0,
                rn=rn,
                s0=s0,
                sn=sn,
            )
        )
        for at in range(rn):
            r = rn // 2 if at == 0 else (at - 1 if at <= rn // 2 else at)
            for s in range(0, sn, most):
                pieces.append(
                    Piece(
                        block=len(blocks) - 1,
                        job=index,
                        chunk=chunk,
                        r=r0 + r,
                        s0=s0 + s,
                        sn=min(most, sn - s),
                    )
                )


def load_ahead(operands, geometry, filters, following, most):
    """Load at most so many blocks, then those of the following batch, while those that are not turned are few enough.

    There is always one.
    """
    waiting_bytes = bytes_waiting(geometry, filters)
    if following != None:
        waiting_bytes += bytes_waiting(geometry, following)
    for _ in range(most):
        of = filters if len(filters.raws) < len(filters.blocks) else following
        if of == None or len(of.raws) == len(of.blocks):
            return
        block_bytes = bytes_of(geometry, of, len(of.raws))
        if waiting_bytes > 0 and waiting_bytes + block_bytes > SPLIT_AHEAD_BYTES:
            return
        waiting_bytes += block_bytes
        load_block(operands, geometry, of)


def bytes_waiting(geometry, filters):
    """Bytes a partition of the blocks that are loaded and not turned."""
    total = 0
    for index in range(len(filters.raws)):
        if filters.raws[index] != None:
            total += bytes_of(geometry, filters, index)
    return total


def bytes_of(geometry, filters, index):
    """Bytes a partition of a block as loaded."""
    block = filters.blocks[index]
    job = filters.jobs[block.job]
    return tap_elements(geometry, job, job.chunks[block.chunk]) * block.rn * block.sn * geometry.itemsize


def load_block(operands, geometry, filters):
    """Load the next block, with the bias of its job if that is the first of it."""
    block = filters.blocks[len(filters.raws)]
    job = filters.jobs[block.job]
    if geometry.packed > 0:
        filters.raws.append(load_packed(operands, geometry, job, block))
    else:
        filters.raws.append(load_taps(operands, geometry, job, block))
    if len(filters.biases) == block.job:
        filters.biases.append(load_bias(operands.bias, job.k0, job.kn, 1))


def load_packed(operands, geometry, job, block):
    """Taps of a block of a packed filter: [channels, rows, columns, kn] fp32 in SBUF."""
    each = geometry.packed
    row = geometry.columns.taps * each
    size = geometry.rows.taps * row
    first, count = job.chunks[block.chunk]
    raw_sbuf = nl.ndarray((count, block.rn, block.sn, job.kn), dtype=operands.w_dtype, buffer=nl.sbuf)
    for index in range(job.kn // each):
        copy(
            raw_sbuf[0:count, 0 : block.rn, 0 : block.sn, index * each : (index + 1) * each],
            operands.w.ap(
                pattern=[[size, count], [row, block.rn], [each, block.sn], [1, each]],
                offset=((job.k0 // each + index) * geometry.C + first) * size + block.r0 * row + block.s0 * each,
            ),
        )
    return raw_sbuf


def turn_piece(operands, geometry, filters, ledger):
    """The Pair of the stationaries of the next piece."""
    piece = filters.pieces[filters.turned]
    block, job = filters.blocks[piece.block], filters.jobs[piece.job]
    while len(filters.raws) <= piece.block:
        load_block(operands, geometry, filters)
    raw_sbuf, count = filters.raws[piece.block], job.chunks[piece.chunk][1]
    if filters.highs[piece.job][piece.chunk] == None:
        shape = (count, geometry.rows.taps * geometry.columns.taps, job.kn)
        filters.highs[piece.job][piece.chunk] = nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf)
        filters.lows[piece.job][piece.chunk] = nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf)
    row, column = piece.r - block.r0, piece.s0 - block.s0
    if geometry.packed > 0:
        data = raw_sbuf[0:count, row, column : column + piece.sn, 0 : job.kn]
        rest_sbuf = data
    else:
        if job.pack > 1 and filters.masks[piece.job] == None:
            filters.masks[piece.job] = group_mask(job, geometry, raw_sbuf.dtype)
        data = nl.ndarray((count, piece.sn, job.kn), dtype=nl.float32, buffer=nl.psum)
        rest_sbuf = nl.ndarray((count, piece.sn, job.kn), dtype=nl.float32, buffer=nl.sbuf)
        for s in range(piece.sn):
            taps = raw_sbuf[0 : job.kn, 0 : raw_sbuf.shape[1], row, column + s]
            if job.pack > 1:
                taps = spread_groups(taps, filters.masks[piece.job], job)
            nisa.nc_transpose(dst=data[0:count, s, 0 : job.kn], data=taps, engine=nisa.engine.tensor)
    filters.turned = filters.turned + 1
    after = filters.pieces[min(filters.turned, len(filters.pieces) - 1)]
    if filters.turned == len(filters.pieces) or after.block != piece.block:
        filters.raws[piece.block] = None
    tap = piece.r * geometry.columns.taps + piece.s0
    return start_pair(
        filters,
        data,
        geometry.packed == 0,
        rest_sbuf,
        filters.highs[piece.job][piece.chunk][0:count, tap : tap + piece.sn, 0 : job.kn],
        filters.lows[piece.job][piece.chunk][0:count, tap : tap + piece.sn, 0 : job.kn],
        piece.sn * job.kn,
        ledger,
    )
