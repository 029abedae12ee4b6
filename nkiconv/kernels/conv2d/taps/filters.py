"""Filters as stationaries: [c, tap, k] in SBUF for each chunk of input channels of a job, transposed on the array.

A row of w, one output channel, is contiguous in HBM; the array turns [k, c] of one tap into [c, k], several taps to a
PSUM bank. Filters of all jobs of a batch come in blocks and are turned in pieces, in the order in which the sums need
them, so that the loop can turn a piece between any two matmuls. Where a job has several groups, each row is first
spread over the groups' channels under a mask, so that what is turned is block-diagonal and one matmul serves all.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import START_WORK, VECTOR_WORK, is_16bit, pick
from ..._tiles import BANK_BYTES, WORD_BYTES, div_ceil, whole_words
from ..cuts import tap_blocks
from .cuts import TAPS_RAW_BYTES, tap_order
from .fold import group_depth, job_axis, tap_groups
from .fp16x3 import pair_of_filters
from .jobs import is_depthwise, stationary_columns
from .pairs_fp8 import ALONE, HALVES, again_of, slot_channels, slots_of
from .plan import TAPS_AHEAD_BYTES


@dataclass
class Block(nl.NKIObject):
    """Taps that are loaded together: of one of a job's chunks (index, first channel, channels) and of its slots, rows
    and columns."""

    job: int
    chunk: int
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int
    slot: int


@dataclass
class Piece(nl.NKIObject):
    """Taps that are turned together: of a block (index), one of its rows, groups of columns of equal depth."""

    block: int
    row: int
    first: int
    count: int
    depth: int


@dataclass
class Filters(nl.NKIObject):
    """Filters of a batch on their way from HBM to stationaries."""

    jobs: list
    blocks: list
    #: what the array turns, and indices of the blocks that DMA turns
    pieces: list
    moves: list
    #: of all chunks of all jobs in order: (blocks, pieces, moves) from the first on until it is complete
    ends: list
    #: by job and chunk: index there; and, by job, one more than that of its last chunk
    places: list
    after: list
    #: how many of them are turned while the batch before is worked on
    ahead: int
    #: blocks as loaded so far, [kn, channels, rows, columns] in SBUF, None once they are turned
    raws: list
    #: pieces and blocks turned so far
    turned: int
    moved: int
    #: by job: stationaries [depth * cn, rows of taps, groups of columns, rows of outputs, kn] of each chunk, and the
    #: mask of its groups
    tiles: list
    masks: list
    #: None, or of pairs of fp16: the Pairing of all of them, pieces whose pairs are done, low parts as tiles
    pairing: object
    ended: int
    lows: list


def start_filters(geometry, jobs, moved_from, together, ahead, pairing):
    """Filters of jobs of which nothing is loaded yet; DMA turns those of jobs from `moved_from` on. together: those of
    all jobs for a chunk of inputs before those for the next one; ahead: chunks that may be there before they are
    worked on, at most."""
    blocks, pieces, moves, ends, places, after, tiles, masks, lows = [], [], [], [], [], [], [], [], []
    for index in range(len(jobs)):
        chunks, none, nowhere, no_low = jobs[index].chunks, [], [], []
        for _ in range(len(chunks)):
            nothing = None
            none.append(nothing)
            no_low.append(nothing)
            nowhere.append(0)
        places.append(nowhere)
        after.append(0)
        tiles.append(none)
        lows.append(no_low)
        no_mask = None
        masks.append(no_mask)
    order = chunk_order(jobs, together)
    for which in range(len(order)):
        index, chunk = order[which]
        job = jobs[index]
        folded = job.rows > 1 or job.chunks[chunk][2] > 1
        by_dma = index >= moved_from and not folded
        add_chunk(geometry, job, index, chunk, blocks, moves if by_dma else pieces, by_dma)
        places[index][chunk] = len(ends)
        ends.append((len(blocks), len(pieces), len(moves)))
        after[index] = len(ends)
    return Filters(
        jobs=jobs,
        blocks=blocks,
        pieces=pieces,
        moves=moves,
        ends=ends,
        places=places,
        after=after,
        ahead=min(ahead, len(jobs[0].chunks)),
        raws=[],
        turned=0,
        moved=0,
        tiles=tiles,
        masks=masks,
        pairing=pairing,
        ended=0,
        lows=lows,
    )


def chunk_order(jobs, together):
    """(job, chunk) of all jobs in the order of the work."""
    found = []
    if together:
        chunks = jobs[0].chunks
        for chunk in range(len(chunks)):
            for index in range(len(jobs)):
                found.append((index, chunk))
        return found
    for index in range(len(jobs)):
        chunks = jobs[index].chunks
        for chunk in range(len(chunks)):
            found.append((index, chunk))
    return found


def add_chunk(geometry, job, index, chunk, blocks, pieces, by_dma):
    """Append the blocks and pieces of a chunk of a job; a depthwise filter is one block, and so is a packed one but for
    the first: x is waited for with the taps that come first in the work, not with all.

    by_dma: whether a piece is a block's index.
    """
    R, S = geometry.rows.taps, geometry.columns.taps
    per_c = geometry.C // geometry.groups
    first, count = job.chunks[chunk][0], job.chunks[chunk][1]
    own = per_c if job.pack > 1 else count
    c0 = 0 if job.pack > 1 else first % per_c
    depthwise = is_depthwise(geometry, job)
    parts = tap_blocks(geometry, own, TAPS_RAW_BYTES)
    paired = geometry.precision == "fp16x3"
    if geometry.packed > 0 and len(blocks) == 0 and not paired:
        parts = first_rows(R, S)
    elif geometry.packed > 0 or depthwise:
        parts = [(0, R, 0, S)]
    most = max(1, BANK_BYTES // (whole_words(job.kn, geometry.itemsize) * geometry.itemsize))
    for slot in range(slots_of(job.chunks[chunk])):
        # the second slot of HALVES has one tap
        last_tap = slot > 0 and job.chunks[chunk][3] == HALVES and geometry.packed == 0
        for which in range(len(parts) - 1 if last_tap else 0, len(parts)):
            r0, rn, s0, sn = parts[which]
            block = Block(job=index, chunk=chunk, c0=c0, channels=own, r0=r0, rn=rn, s0=s0, sn=sn, slot=slot)
            blocks.append(block)
            if last_tap:
                pieces.append(Piece(block=len(blocks) - 1, row=rn - 1, first=S - 1, count=1, depth=1))
            elif by_dma:
                pieces.append(len(blocks) - 1)
            elif depthwise or (paired and geometry.packed > 0):
                pieces.append(Piece(block=len(blocks) - 1, row=0, first=0, count=S, depth=1))
            elif geometry.packed == 0:
                rows = tap_order(rn)
                for at in range(rn):
                    add_row(geometry, job.chunks[chunk], block, len(blocks) - 1, rows[at], most, pieces)


def first_rows(R, S):
    """Blocks as `tap_blocks` of the middle row of taps, which is the first in the work, and the others."""
    middle = tap_order(R)[0]
    found = [(middle, 1, 0, S)]
    if middle > 0:
        found.append((0, middle, 0, S))
    if middle + 1 < R:
        found.append((middle + 1, R - middle - 1, 0, S))
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
        if waiting_bytes > TAPS_AHEAD_BYTES:
            return
        load_block(operands, geometry, filters)


def block_bytes(geometry, block):
    """Bytes a partition of a block as loaded; none where the load makes stationaries."""
    in_place = geometry.packed > 0 and geometry.precision != "fp16x3"
    return 0 if in_place else block.channels * block.rn * block.sn * geometry.itemsize


def load_block(operands, geometry, filters):
    """Load the next block."""
    block = filters.blocks[len(filters.raws)]
    job = filters.jobs[block.job]
    raw_sbuf = None
    if geometry.packed > 0:
        raw_sbuf = load_stationaries(operands, geometry, filters, block)
    elif is_depthwise(geometry, job):
        raw_sbuf = load_channels(operands, geometry, job)
    else:
        raw_sbuf = load_taps(operands, geometry, job, block)
    filters.raws.append(raw_sbuf)


def turn_to(operands, geometry, filters, last, ledger):
    """Turn pieces until chunk `last` of all is complete."""
    load_to(operands, geometry, filters, last)
    while pieces_to(filters, last) > 0:
        turn_piece(operands, geometry, filters, ledger)
    while moves_to(filters, last) > 0:
        move_block(operands, geometry, filters, ledger)


def pieces_to(filters, last):
    """Pieces that are not turned yet of chunks up to `last` of all."""
    return max(0, filters.ends[min(last, len(filters.ends) - 1)][1] - filters.turned)


def moves_to(filters, last):
    """Blocks that DMA turns and has not yet, of chunks up to `last` of all."""
    return max(0, filters.ends[min(last, len(filters.ends) - 1)][2] - filters.moved)


def turn_piece(operands, geometry, filters, ledger):
    """Turn the next piece, and load ahead where that was a block's last."""
    piece = filters.pieces[filters.turned]
    block = filters.blocks[piece.block]
    job = filters.jobs[block.job]
    while len(filters.raws) <= piece.block:
        load_block(operands, geometry, filters)
    raw_sbuf = filters.raws[piece.block]
    if filters.pairing != None and (geometry.packed > 0 or is_depthwise(geometry, job)):
        whole_sbuf = raw_sbuf if geometry.packed > 0 else make_diagonals(raw_sbuf, geometry)
        pair_chunk(geometry, filters, block, whole_sbuf, ledger)
    elif is_depthwise(geometry, job):
        filters.tiles[block.job][block.chunk] = make_diagonals(raw_sbuf, geometry)
    else:
        if job.pack > 1 and filters.masks[block.job] == None:
            filters.masks[block.job] = group_mask(job, geometry, raw_sbuf.dtype)
        dtype = raw_sbuf.dtype if filters.pairing == None else nl.float16
        tile_sbuf = slot_of(tile_of(geometry, filters, block, dtype), geometry, block.slot)
        turn_taps(tile_sbuf, raw_sbuf, filters, geometry, job, block, piece, ledger)
    filters.turned = filters.turned + 1
    after = filters.pieces[min(filters.turned, len(filters.pieces) - 1)]
    if filters.turned == len(filters.pieces) or after.block != piece.block:
        filters.raws[piece.block] = None
        load_ahead(operands, geometry, filters)


def tile_of(geometry, filters, block, dtype):
    """The stationaries that a block belongs to, in SBUF; of pairs, high parts, and low ones beside them."""
    if filters.tiles[block.job][block.chunk] == None:
        filters.tiles[block.job][block.chunk] = new_tile(geometry, filters, block, dtype)
        if filters.pairing != None:
            filters.lows[block.job][block.chunk] = new_tile(geometry, filters, block, dtype)
    return filters.tiles[block.job][block.chunk]


def new_tile(geometry, filters, block, dtype):
    """Room for stationaries; zeros are there where a row of outputs has no tap."""
    job = filters.jobs[block.job]
    chunk = job.chunks[block.chunk]
    height, groups = job_axis(geometry, job).taps, tap_groups(geometry, chunk)
    shape = (chunk[1] * chunk[2], height, groups, job.rows, stationary_columns(geometry, job))
    if chunk[3] != ALONE:
        return new_slots(geometry, chunk, shape, dtype)
    tile_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    for u in range(job.rows if job.rows > 1 else 0):
        for r in range(height):
            tap = r - u * (height - geometry.rows.taps)
            if tap < 0 or tap >= geometry.rows.taps:
                zeros = tile_sbuf[0 : shape[0], r, 0:groups, u, 0 : job.kn]
                nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    return tile_sbuf


def new_slots(geometry, chunk, shape, dtype):
    """The same [depth * cn, slots, rows of taps, groups of columns, rows of outputs, kn] of a chunk that pairs; zeros
    where the last group of columns has fewer than the others."""
    parts, height, groups, rows, kn = shape
    tile_sbuf = nl.ndarray((parts, slots_of(chunk) * height, groups, rows, kn), dtype=dtype, buffer=nl.sbuf)
    if group_depth(geometry, chunk, groups - 1) < chunk[2]:
        zeros = tile_sbuf[0:parts, 0:height, groups - 1, 0:rows, 0:kn]
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    return tile_sbuf


def slot_of(tile_sbuf, geometry, slot):
    """A slot of a chunk's stationaries."""
    parts, _, groups, rows, kn = tile_sbuf.shape
    height = geometry.rows.taps
    return tile_sbuf if slot == 0 else tile_sbuf[0:parts, slot * height : (slot + 1) * height, 0:groups, 0:rows, 0:kn]


def pair_chunk(geometry, filters, block, whole_sbuf, ledger):
    """Pairs of a chunk's stationaries that need no transposes, row by row of taps."""
    count, height, groups, rows, kn = whole_sbuf.shape
    high_sbuf = tile_of(geometry, filters, block, nl.float16)
    low_sbuf = filters.lows[block.job][block.chunk]
    order = tap_order(height)
    for at in range(height):
        r = order[at]
        pair_of_filters(
            filters,
            whole_sbuf[0:count, r, 0:groups, 0:rows, 0:kn],
            False,
            high_sbuf[0:count, r, 0:groups, 0:rows, 0:kn],
            low_sbuf[0:count, r, 0:groups, 0:rows, 0:kn],
            at + 1 == height,
            ledger,
        )


def move_block(operands, geometry, filters, ledger):
    """Let DMA turn the next of its blocks, and load ahead.

    An engine first puts the channels of a tap side by side: DMA turns rows of 128 elements of 16 bits, not single ones.
    """
    index = filters.moves[filters.moved]
    while len(filters.raws) <= index:
        load_block(operands, geometry, filters)
    block, raw_sbuf = filters.blocks[index], filters.raws[index]
    kn, cn, rn, sn = raw_sbuf.shape
    tile_sbuf = tile_of(geometry, filters, block, raw_sbuf.dtype)
    rows_sbuf = nl.ndarray((kn, rn, sn, cn), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    engine = pick(ledger, rn * sn * cn, is_16bit(raw_sbuf.dtype))
    nisa.tensor_copy(dst=rows_sbuf, src=raw_sbuf.permute((0, 2, 3, 1)), engine=engine)
    tile_sbuf = tile_sbuf.reshape((cn, geometry.rows.taps * geometry.columns.taps, kn))
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


def load_stationaries(operands, geometry, filters, block):
    """Load the stationaries of a block of rows of taps from the blocks of a packed filter: runs of a channel's taps, or
    of one tap where they are folded. What becomes pairs has a tile of its own."""
    taps, each = geometry.rows.taps * geometry.columns.taps, geometry.packed
    job = filters.jobs[block.job]
    chunk = job.chunks[block.chunk]
    c0, count, depth = chunk[:3]
    if filters.pairing != None:
        tile_sbuf = new_tile(geometry, filters, block, operands.w_dtype)
    else:
        tile_sbuf = slot_of(tile_of(geometry, filters, block, operands.w_dtype), geometry, block.slot)
    shift = job_axis(geometry, job).taps - geometry.rows.taps
    first = block.r0 * geometry.columns.taps
    parts = slot_channels(chunk, block.slot)
    for copy_index in range(depth * job.rows * len(parts)):
        d, u = copy_index % depth, copy_index // depth % job.rows
        partition, channel, count = parts[copy_index // (depth * job.rows)]
        partition += d * chunk[1]
        groups = div_ceil(geometry.columns.taps - d, depth)
        pattern = [
            [taps * each, count],
            [geometry.columns.taps * each, block.rn],
            [depth * each, groups],
            [1, each],
        ]
        for part in range(job.kn // each):
            copy(
                tile_sbuf[
                    partition : partition + count,
                    block.r0 + u * shift : block.r0 + u * shift + block.rn,
                    0:groups,
                    u,
                    part * each : (part + 1) * each,
                ],
                operands.w.ap(
                    pattern=pattern,
                    offset=(((job.k0 // each + part) * geometry.C + c0 + channel) * taps + first + d) * each,
                ),
            )
    for d in range(depth if again_of(chunk, block.slot) > 0 else 0):
        again = tile_sbuf[
            d * chunk[1] : d * chunk[1] + chunk[4],
            block.r0 : block.r0 + block.rn,
            0 : tile_sbuf.shape[2],
            0,
            0 : job.kn,
        ]
        nisa.memset(dst=again, value=0.0, engine=nisa.engine.gpsimd)
    return tile_sbuf if filters.pairing != None else None


def load_channels(operands, geometry, job):
    """Filters of a depthwise job by channel of x: [cn, multiplier, taps] in SBUF."""
    each, R, S = geometry.K // geometry.C, geometry.rows.taps, geometry.columns.taps
    c0, count = job.chunks[0][0], job.chunks[0][1]
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
    """[cn, rows, columns, 1, kn] in SBUF: filters of channel c in the columns of its outputs, zero elsewhere, by one
    select."""
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
    return filters_sbuf.reshape((count, geometry.rows.taps, geometry.columns.taps, 1, count * each))


def load_taps(operands, geometry, job, block):
    """Taps of a block: [kn, channels, rows, columns] in SBUF."""
    shape = (stationary_columns(geometry, job), block.channels, block.rn, block.sn)
    raw_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    offset = job.k0 * geometry.w_k + block.c0 * geometry.w_c + block.r0 * geometry.w_r + block.s0 * geometry.w_s
    chunk = job.chunks[block.chunk]
    parts = [(0, 0, block.channels)] if block.slot == 0 else slot_channels(chunk, block.slot)
    for index in range(len(parts)):
        at, channel, count = parts[index]
        pattern = [
            [geometry.w_k, job.kn],
            [geometry.w_c, count],
            [geometry.w_r, block.rn],
            [geometry.w_s, block.sn],
        ]
        dst = raw_sbuf[0 : job.kn, at : at + count, 0 : block.rn, 0 : block.sn]
        copy(dst, operands.w.ap(pattern=pattern, offset=offset + channel * geometry.w_c))
        if shape[0] > job.kn:
            # any numbers do
            pattern[0] = [0, shape[0] - job.kn]
            dst = raw_sbuf[job.kn : shape[0], at : at + count, 0 : block.rn, 0 : block.sn]
            copy(dst, operands.w.ap(pattern=pattern, offset=offset + channel * geometry.w_c))
    again = again_of(chunk, block.slot)
    if again > 0:
        zeros = raw_sbuf[0 : job.kn, 0:again, 0 : block.rn, 0 : block.sn]
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
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


def turn_taps(filters_sbuf, raw_sbuf, filters, geometry, job, block, piece, ledger):
    """Transposes of a piece's taps, all in one PSUM bank, then a read-out for each row of outputs."""
    channels, kn, num = raw_sbuf.shape[1], stationary_columns(geometry, job), piece.count
    mask_sbuf = filters.masks[block.job]
    pitch = whole_words(kn, geometry.itemsize)
    depth = job.chunks[block.chunk][2]
    count = piece.depth * channels if mask_sbuf == None else filters_sbuf.shape[0]
    turned_psum = nl.ndarray((count, num, pitch), dtype=raw_sbuf.dtype, buffer=nl.psum)
    for index in range(num):
        s = (piece.first + index) * depth - block.s0
        if mask_sbuf != None:
            taps = spread_groups(raw_sbuf[0:kn, 0:channels, piece.row, s], mask_sbuf, job)
        else:
            taps = raw_sbuf[0:kn, 0:channels, piece.row, s : s + piece.depth].permute((0, 2, 1))
        nisa.nc_transpose(dst=turned_psum[0:count, index, 0:kn], data=taps, engine=nisa.engine.tensor)
    shift = job_axis(geometry, job).taps - geometry.rows.taps
    for u in range(job.rows):
        r, data = block.r0 + piece.row + u * shift, turned_psum[0:count, 0:num, 0:kn]
        dst = filters_sbuf[0:count, r, piece.first : piece.first + num, u, 0:kn]
        if filters.pairing != None:
            low_sbuf = filters.lows[block.job][block.chunk]
            low = low_sbuf[0:count, r, piece.first : piece.first + num, u, 0:kn]
            pair_of_filters(filters, data, True, dst, low, u + 1 == job.rows, ledger)
        elif geometry.itemsize == 1 and kn % WORD_BYTES == 0:
            # four bytes at a time; not by Scalar, which computes
            ledger.vector = ledger.vector + START_WORK + num * kn // WORD_BYTES * VECTOR_WORK
            words = data.view(nl.float32)
            nisa.tensor_copy(dst=dst.view(nl.float32), src=words, engine=nisa.engine.vector)
        else:
            nisa.tensor_copy(dst=dst, src=data, engine=pick(ledger, num * kn, is_16bit(raw_sbuf.dtype)))


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
