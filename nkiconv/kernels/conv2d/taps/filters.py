"""Filters as stationaries: [c, tap, k] in SBUF for each chunk of input channels of a job, transposed on the array.

A row of w, one output channel, is contiguous in HBM; the array turns [k, c] of one tap into [c, k], several taps to a
PSUM bank. Filters of all jobs of a batch come in blocks and are turned in pieces, in the order in which the sums need
them, so that the loop can turn a piece between any two matmuls. Where a job has several groups, each row is first
spread over the groups' channels under a mask, so that what is turned is block-diagonal and one matmul serves all.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES, psum_pitch
from .plan import AHEAD_BYTES, is_depthwise, tap_blocks, tap_order


@dataclass
class Block(nl.NKIObject):
    """Taps that are loaded together: of one of a job's chunks (index, first channel, channels), rows and columns."""

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
    """Taps that are turned together: of a block (index), in one row, columns; both from the block's first."""

    block: int
    row: int
    s0: int
    sn: int


@dataclass
class Filters(nl.NKIObject):
    """Filters of a batch on their way from HBM to stationaries."""

    jobs: list
    blocks: list
    pieces: list
    #: of all chunks of all jobs in order: (blocks, pieces) from the first on until it is complete
    ends: list
    #: by job: index of its first chunk there; one more at the end
    firsts: list
    #: blocks as loaded so far, [kn, channels, rows, columns] in SBUF, None once they are turned
    raws: list
    #: pieces turned so far
    turned: int
    #: by job: stationaries [cn, taps, kn] of each chunk, and its mask of groups
    tiles: list
    masks: list


def start_filters(geometry, jobs):
    """Filters of jobs of which nothing is loaded yet."""
    blocks, pieces, ends, firsts, tiles, masks = [], [], [], [0], [], []
    for index in range(len(jobs)):
        none = []
        for chunk in range(len(jobs[index].chunks)):
            add_chunk(geometry, jobs[index], index, chunk, blocks, pieces)
            ends.append((len(blocks), len(pieces)))
            nothing = None
            none.append(nothing)
        firsts.append(len(ends))
        tiles.append(none)
        no_mask = None
        masks.append(no_mask)
    return Filters(
        jobs=jobs,
        blocks=blocks,
        pieces=pieces,
        ends=ends,
        firsts=firsts,
        raws=[],
        turned=0,
        tiles=tiles,
        masks=masks,
    )


def add_chunk(geometry, job, index, chunk, blocks, pieces):
    """Append the blocks and pieces of a chunk of a job; a packed filter and a depthwise one are one block each."""
    R, S = geometry.rows.taps, geometry.columns.taps
    per_c = geometry.C // geometry.groups
    first, count = job.chunks[chunk]
    own = per_c if job.pack > 1 else count
    c0 = 0 if job.pack > 1 else first % per_c
    depthwise = is_depthwise(geometry, job)
    whole = geometry.packed > 0 or depthwise
    parts = [(0, R, 0, S)] if whole else tap_blocks(geometry, own)
    most = max(1, BANK_BYTES // (psum_pitch(job.kn, geometry.itemsize) * geometry.itemsize))
    for which in range(len(parts)):
        r0, rn, s0, sn = parts[which]
        blocks.append(Block(job=index, chunk=chunk, c0=c0, channels=own, r0=r0, rn=rn, s0=s0, sn=sn))
        if depthwise:
            pieces.append(Piece(block=len(blocks) - 1, row=0, s0=0, sn=R * S))
        elif geometry.packed == 0:
            rows = tap_order(rn)
            for at in range(rn):
                for column in range(0, sn, most):
                    pieces.append(Piece(block=len(blocks) - 1, row=rows[at], s0=column, sn=min(most, sn - column)))


def load_to(operands, geometry, filters, last):
    """Load blocks until chunk `last` of all is complete."""
    while len(filters.raws) < filters.ends[min(last, len(filters.ends) - 1)][0]:
        load_block(operands, geometry, filters)


def load_ahead(operands, geometry, filters):
    """Load blocks while those that are not turned yet are few enough."""
    waiting_bytes = 0
    for index in range(len(filters.raws)):
        if filters.raws[index] != None:
            waiting_bytes += block_bytes(geometry, filters.blocks[index])
    while len(filters.raws) < len(filters.blocks):
        waiting_bytes += block_bytes(geometry, filters.blocks[len(filters.raws)])
        if waiting_bytes > AHEAD_BYTES:
            return
        load_block(operands, geometry, filters)


def block_bytes(geometry, block):
    """Bytes a partition of a block as loaded; none where the load makes stationaries."""
    return 0 if geometry.packed > 0 else block.channels * block.rn * block.sn * geometry.itemsize


def load_block(operands, geometry, filters):
    """Load the next block."""
    block = filters.blocks[len(filters.raws)]
    job = filters.jobs[block.job]
    raw_sbuf = None
    if geometry.packed > 0:
        filters.tiles[block.job][block.chunk] = load_stationaries(operands, geometry, job, job.chunks[block.chunk])
    elif is_depthwise(geometry, job):
        raw_sbuf = load_channels(operands, geometry, job)
    else:
        raw_sbuf = load_taps(operands, geometry, job, block)
    filters.raws.append(raw_sbuf)


def turn_to(operands, geometry, filters, last, ledger):
    """Turn pieces until chunk `last` of all is complete."""
    load_to(operands, geometry, filters, last)
    while filters.turned < filters.ends[min(last, len(filters.ends) - 1)][1]:
        turn_piece(operands, geometry, filters, ledger)


def pieces_to(filters, last):
    """Pieces that are not turned yet of chunks up to `last` of all."""
    return max(0, filters.ends[min(last, len(filters.ends) - 1)][1] - filters.turned)


def turn_piece(operands, geometry, filters, ledger):
    """Turn the next piece, and load ahead where that was a block's last."""
    piece = filters.pieces[filters.turned]
    block = filters.blocks[piece.block]
    job = filters.jobs[block.job]
    while len(filters.raws) <= piece.block:
        load_block(operands, geometry, filters)
    raw_sbuf = filters.raws[piece.block]
    if is_depthwise(geometry, job):
        filters.tiles[block.job][block.chunk] = make_diagonals(raw_sbuf, geometry)
    else:
        if filters.tiles[block.job][block.chunk] == None:
            taps = geometry.rows.taps * geometry.columns.taps
            shape = (job.chunks[block.chunk][1], taps, job.kn)
            filters.tiles[block.job][block.chunk] = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
        if job.pack > 1 and filters.masks[block.job] == None:
            filters.masks[block.job] = group_mask(job, geometry, raw_sbuf.dtype)
        tile_sbuf = filters.tiles[block.job][block.chunk]
        turn_taps(tile_sbuf, raw_sbuf, filters.masks[block.job], geometry, job, block, piece, ledger)
    filters.turned = filters.turned + 1
    if filters.turned == len(filters.pieces) or filters.pieces[filters.turned].block != piece.block:
        filters.raws[piece.block] = None
        load_ahead(operands, geometry, filters)


def load_stationaries(operands, geometry, job, chunk):
    """[cn, taps, kn] in SBUF of a chunk of a job, from the blocks of a packed filter: runs of a channel's taps."""
    taps, each = geometry.rows.taps * geometry.columns.taps, geometry.packed
    size = taps * each
    c0, count = chunk
    filters_sbuf = nl.ndarray((count, taps, job.kn), dtype=operands.w_dtype, buffer=nl.sbuf)
    for block in range(job.kn // each):
        copy(
            filters_sbuf[0:count, 0:taps, block * each : (block + 1) * each],
            operands.w.ap(
                pattern=[[size, count], [each, taps], [1, each]],
                offset=((job.k0 // each + block) * geometry.C + c0) * size,
            ),
        )
    return filters_sbuf


def load_channels(operands, geometry, job):
    """Filters of a depthwise job by channel of x: [cn, multiplier, taps] in SBUF."""
    each, R, S = geometry.K // geometry.C, geometry.rows.taps, geometry.columns.taps
    c0, count = job.chunks[0]
    raw_sbuf = nl.ndarray((count, each, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = [
        [each * geometry.w_k, count],
        [geometry.w_k, each],
        [geometry.w_r, R],
        [geometry.w_s, S],
    ]
    copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=c0 * each * geometry.w_k))
    return raw_sbuf.reshape((count, each, R * S))


def make_diagonals(raw_sbuf, geometry):
    """[cn, taps, kn] in SBUF: filters of channel c in the columns of its outputs, zero elsewhere, by one select."""
    count, each, taps = raw_sbuf.shape
    filters_sbuf = nl.ndarray((count, taps, count, each), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=filters_sbuf,
        pattern=[[0, taps], [-1, count], [0, each]],
        channel_multiplier=1,
        on_true_tile=raw_sbuf.permute((0, 2, 1)).expand_dim(2).broadcast(2, count),
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=0,
    )
    return filters_sbuf.reshape((count, taps, count * each))


def load_taps(operands, geometry, job, block):
    """Taps of a block: [kn, channels, rows, columns] in SBUF."""
    raw_sbuf = nl.ndarray((job.kn, block.channels, block.rn, block.sn), dtype=operands.w_dtype, buffer=nl.sbuf)
    offset = job.k0 * geometry.w_k + block.c0 * geometry.w_c + block.r0 * geometry.w_r + block.s0 * geometry.w_s
    pattern = [
        [geometry.w_k, job.kn],
        [geometry.w_c, block.channels],
        [geometry.w_r, block.rn],
        [geometry.w_s, block.sn],
    ]
    copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=offset))
    return raw_sbuf


def group_mask(job, geometry, dtype):
    """[kn, pack] in SBUF: 1 where output channel k belongs to the group."""
    per_k = geometry.K // geometry.groups
    mask_sbuf = nl.ndarray((job.kn, job.pack), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    for side in range(2):
        nisa.affine_select(
            dst=mask_sbuf,
            pattern=[[-per_k, job.pack]],
            channel_multiplier=1,
            on_true_tile=mask_sbuf,
            on_false_value=0.0,
            cmp_op=nl.greater_equal if side == 0 else nl.less,
            offset=0 if side == 0 else -per_k,
        )
    return mask_sbuf


def turn_taps(filters_sbuf, raw_sbuf, mask_sbuf, geometry, job, block, piece, ledger):
    """Transposes of a piece's taps, all in one PSUM bank, then one read-out."""
    count, kn, sn = filters_sbuf.shape[0], job.kn, piece.sn
    pitch = psum_pitch(kn, geometry.itemsize)
    turned_psum = nl.ndarray((count, sn, pitch), dtype=raw_sbuf.dtype, buffer=nl.psum)
    for s in range(sn):
        taps = raw_sbuf[0:kn, 0 : raw_sbuf.shape[1], piece.row, piece.s0 + s]
        if mask_sbuf != None:
            taps = spread_groups(taps, mask_sbuf, job)
        nisa.nc_transpose(dst=turned_psum[0:count, s, 0:kn], data=taps, engine=nisa.engine.tensor)
    tap = (block.r0 + piece.row) * geometry.columns.taps + block.s0 + piece.s0
    nisa.tensor_copy(
        dst=filters_sbuf[0:count, tap : tap + sn, 0:kn],
        src=turned_psum[0:count, 0:sn, 0:kn],
        engine=pick(ledger, sn * kn, is_16bit(raw_sbuf.dtype)),
    )


def spread_groups(taps, mask_sbuf, job):
    """[kn, pack * channels of a group] in SBUF: each row at its group's channels, zeros at the others'."""
    kn, channels = taps.shape[0], taps.shape[1]
    wide_sbuf = nl.ndarray((kn, job.pack, channels), dtype=mask_sbuf.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=wide_sbuf,
        data1=taps.expand_dim(1).broadcast(1, job.pack),
        data2=mask_sbuf.expand_dim(2).broadcast(2, channels),
        op=nl.multiply,
    )
    return wide_sbuf
