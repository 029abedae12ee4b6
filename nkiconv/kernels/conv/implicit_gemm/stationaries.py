"""Stationary filter tiles of a chunk: allocation, loading and transposition.

A row of w, one output channel, is contiguous in HBM; the array transposes [k, c] of one tap into [c, k], several taps
to a PSUM bank. Where a job has several groups, each row is first spread over the groups' channels under a mask, so that
what is transposed is block-diagonal and one matmul serves all.
"""

from ...._nki import nisa, nl
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.planes import channel_runs
from ....schedules.tiles import WORD_BYTES, div_ceil, whole_words
from ..._engines import START_WORK, VECTOR_WORK, is_16bit, pick
from ..._masks import keep_between, keep_equal
from ..boxes import load_box, offset_at, pattern_of
from ..filter_feed import turn_forwards
from ..transposes import is_transposed
from .cuts import home_row, tap_order
from .fold import group_depth, job_axis, tap_groups
from .fp16x3 import pair_of_filters
from .jobs import lies_ready, stationary_columns
from .pairs_fp8 import ALONE, again_of, slot_channels, slots_of

#: Taps that run backwards whose diagonals GpSimd makes one by one.
SELECTED_TAPS = 16


def tile_of(geometry, filters, block, dtype):
    """The stationaries that a block belongs to, in SBUF; of pairs, high parts, and low ones beside them."""
    own = block.of
    if own.tile == None:
        own.tile = new_tile(geometry, own, dtype)
        if filters.pairing != None:
            own.low = new_tile(geometry, own, dtype)
    return own.tile


def new_tile(geometry, of, dtype, whole=False):
    """Room for stationaries, slot by slot; zeros are there where a row of outputs has no tap and, of pairs or where the
    whole tile is read, in the last group of columns."""
    job, chunk = of.job, of.chunk
    each, groups = job_axis(geometry, job).taps, tap_groups(geometry, chunk)
    height = geometry.planes.taps * each
    shape = (chunk[1] * chunk[2], slots_of(chunk) * height, groups, job.rows, stationary_columns(geometry, job))
    tile_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    for u in range(job.rows if job.rows > 1 else 0):
        for r in range(height):
            tap = r % each - u * (each - geometry.rows.taps)
            if tap < 0 or tap >= geometry.rows.taps:
                zeros = tile_sbuf[0 : shape[0], r, 0:groups, u, 0 : job.kn]
                nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    if (whole or chunk[3] != ALONE) and group_depth(geometry, chunk, groups - 1) < chunk[2]:
        for u in range(job.rows):
            zeros = tile_sbuf[0 : shape[0], 0:height, groups - 1, u, 0 : job.kn]
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
    low_sbuf = block.of.low
    order = tap_order(height, home_row(geometry, geometry.rows)[0])
    for at in range(height):
        r = order[at]
        data = whole_sbuf[0:count, r, 0:groups, 0:rows, 0:kn]
        high = high_sbuf[0:count, r, 0:groups, 0:rows, 0:kn]
        low = low_sbuf[0:count, r, 0:groups, 0:rows, 0:kn]
        pair_of_filters(filters, data, False, high, low, at + 1 == height, ledger)


def load_stationaries(operands, geometry, filters, block):
    """Load the stationaries of a block of rows of taps from the blocks of a packed filter: runs of a channel's taps, or
    of one tap where they are folded. What becomes pairs has a tile of its own."""
    taps, each = num_taps(geometry), geometry.packed
    job, chunk = block.of.job, block.of.chunk
    c0, count, depth = chunk[:3]
    if filters.pairing != None:
        tile_sbuf = new_tile(geometry, block.of, operands.w_dtype, True)
    else:
        tile_sbuf = slot_of(tile_of(geometry, filters, block, operands.w_dtype), geometry, block.slot)
    shift, S = job_axis(geometry, job).taps - geometry.rows.taps, geometry.columns.taps
    parts = runs_of_slot(geometry, c0, chunk, block.slot)
    _, height, all_groups, _, columns = tile_sbuf.shape
    for copy_index in range(depth * job.rows * len(parts)):
        d, u = copy_index % depth, copy_index // depth % job.rows
        partition, channel, step, count = parts[copy_index // (depth * job.rows)]
        partition += d * chunk[1]
        own_sbuf = tile_sbuf[partition : partition + count, 0:height, 0:all_groups, u, 0:columns]
        strides = (step * taps * each, S * each, depth * each, 1)
        pattern = pattern_of(strides, (count, block.rn, div_ceil(S - d, depth), each))
        for part in range(job.kn // each):
            tap = ((job.k0 // each + part) * geometry.C + channel) * taps + block.r0 * S + d
            load_box(own_sbuf, operands.w, (0, block.r0 + u * shift, 0, part * each), pattern, tap * each)
    for d in range(depth if again_of(chunk, block.slot) > 0 else 0):
        p, r = d * chunk[1], block.r0
        again = tile_sbuf[p : p + chunk[4], r : r + block.rn, 0:all_groups, 0, 0 : job.kn]
        nisa.memset(dst=again, value=0.0, engine=nisa.engine.gpsimd)
    return tile_sbuf if filters.pairing != None else None


def runs_of_slot(geometry, c0, chunk, slot):
    """`planes.channel_runs` of a slot of a chunk whose channels begin at c0."""
    found = []
    for part in slot_channels(chunk, slot):
        for run in channel_runs(geometry, c0 + part[1], part[2]):
            found.append((part[0] + run[0], run[1], run[2], run[3]))
    return found


def load_channels(operands, geometry, job):
    """Filters of a depthwise job by channel of x: [cn, multiplier, taps] in SBUF."""
    each, R, S = geometry.K // geometry.C, filter_rows(geometry), geometry.columns.taps
    c0, count = job.chunks[0][0], job.chunks[0][1]
    raw_sbuf = nl.ndarray((count, each, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
    by_k, _, by_r, by_s = geometry.w_strides
    pattern = pattern_of((each * by_k, by_k, by_r, by_s), (count, each, R, S))
    load_box(raw_sbuf, operands.w, (0, 0, 0, 0), pattern, c0 * each * by_k)
    return raw_sbuf.reshape((count, each, R * S))


def make_diagonals(raw_sbuf, geometry):
    """[cn, rows, columns, 1, kn] in SBUF: filters of channel c in the columns of its outputs, zero elsewhere, by one
    select. Taps that run backwards are turned first, or, a few where Vector and Scalar have x to read out, have each
    its own.
    """
    tap_by_tap = geometry.flipped and is_transposed(geometry) and raw_sbuf.shape[2] <= SELECTED_TAPS
    if geometry.flipped and not tap_by_tap:
        raw_sbuf = turn_forwards(raw_sbuf)
    count, each, taps = raw_sbuf.shape
    filters_sbuf = nl.ndarray((count, taps, count, each), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    source_sbuf = raw_sbuf.permute((0, 2, 1)).expand_dim(2).broadcast(2, count)
    if tap_by_tap:
        for tap in range(taps):
            own_sbuf, source = filters_sbuf[0:count, tap], source_sbuf[0:count, taps - 1 - tap]
            keep_equal(own_sbuf, [[-1, count], [0, each]], source)
    else:
        keep_equal(filters_sbuf, [[0, taps], [-1, count], [0, each]], source_sbuf)
    return filters_sbuf.reshape((count, filter_rows(geometry), geometry.columns.taps, 1, count * each))


def load_taps(operands, geometry, job, block):
    """Taps of a block: [kn, channels, rows, columns] in SBUF."""
    shape = (stationary_columns(geometry, job), block.channels, block.rn, block.sn)
    raw_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    strides = geometry.w_strides
    parts = [(0, 0, block.channels)] if block.slot == 0 else slot_channels(block.of.chunk, block.slot)
    for index in range(len(parts)):
        at, channel, count = parts[index]
        offset = offset_at(strides, (job.k0, block.c0 + channel, block.r0, block.s0))
        pattern = pattern_of(strides, (job.kn, count, block.rn, block.sn))
        load_box(raw_sbuf, operands.w, (0, at, 0, 0), pattern, offset)
        if shape[0] > job.kn:
            # any numbers do
            pattern[0] = [0, shape[0] - job.kn]
            load_box(raw_sbuf, operands.w, (job.kn, at, 0, 0), pattern, offset)
    again = again_of(block.of.chunk, block.slot)
    if again > 0:
        zeros = raw_sbuf[0 : job.kn, 0:again, 0 : block.rn, 0 : block.sn]
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
    return raw_sbuf


def in_order(raw_sbuf, geometry, c0, ledger):
    """Taps [kn, channels, rows, columns] as loaded, channel c0 the first, in the order of x on the partitions."""
    kn, channels, rn, sn = raw_sbuf.shape
    found_sbuf = nl.ndarray(raw_sbuf.shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    for run in channel_runs(geometry, c0, channels):
        at, channel, step, count = run
        first = channel - c0
        nisa.tensor_copy(
            dst=found_sbuf[0:kn, at : at + count, 0:rn, 0:sn],
            src=raw_sbuf[0:kn, first : first + (count - 1) * step + 1 : step, 0:rn, 0:sn],
            engine=pick(ledger, count * rn * sn, is_16bit(raw_sbuf.dtype)),
        )
    return found_sbuf


def load_backwards(operands, geometry, job, chunk):
    """All taps of a chunk of a transposed convolution's filter: [depth * channels, kn, rows, columns] in SBUF, once for
    each tap of a group of folded ones."""
    c0, count, depth = chunk[:3]
    R, S, strides = geometry.rows.taps, geometry.columns.taps, geometry.w_strides
    raw_sbuf = nl.ndarray((depth * count, job.kn, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = pattern_of((strides[1], strides[0], strides[2], strides[3]), (count, job.kn, R, S))
    for d in range(depth):
        load_box(raw_sbuf, operands.w, (d * count, 0, 0, 0), pattern, c0 * strides[1] + job.k0 * strides[0])
    return raw_sbuf


def place_backwards(filters_sbuf, raw_sbuf, geometry, block, piece, ledger):
    """Copies of a piece's taps, where folded channels leave filters no place as they come."""
    job, count, kn = block.of.job, block.of.chunk[1], block.of.job.kn
    R, S, shift = geometry.rows.taps, geometry.columns.taps, job_axis(geometry, job).taps - geometry.rows.taps
    for index in range(piece.count * piece.depth * job.rows):
        u, d, group = index % job.rows, index // job.rows % piece.depth, piece.first + index // (job.rows * piece.depth)
        r, s, p = R - 1 - piece.row, S - 1 - group * block.of.chunk[2] - d, d * count
        nisa.tensor_copy(
            dst=filters_sbuf[p : p + count, piece.row + u * shift, group, u, 0:kn],
            src=raw_sbuf[p : p + count, 0:kn, r, s],
            engine=pick(ledger, kn, is_16bit(raw_sbuf.dtype)),
        )


def stationary_of_product(filters_sbuf, geometry, job, chunk, product):
    """The stationary of a product: [partitions, k], or [partitions, rows of outputs, k]."""
    parts, row, group = product.parts, product.row, product.group
    if lies_ready(geometry, job, chunk):
        return filters_sbuf[0:parts, 0 : job.kn, geometry.rows.taps - 1 - row, geometry.columns.taps - 1 - group]
    return filters_sbuf[0:parts, row, group, 0 : job.rows, 0 : job.kn]


def group_mask(job, geometry, dtype):
    """[kn, pack] in SBUF: 1 where output channel k belongs to the group."""
    per_k = geometry.K // geometry.groups
    mask_sbuf = nl.ndarray((job.kn, job.pack), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    keep_between(mask_sbuf, [[-per_k, job.pack]], per_k, mask_sbuf)
    return mask_sbuf


def transpose_taps(filters_sbuf, raw_sbuf, filters, geometry, block, piece, ledger):
    """Transposes of a piece's taps, all in one PSUM bank, then a read-out for each row of outputs."""
    job, mask_sbuf, depth = block.of.job, block.of.mask, block.of.chunk[2]
    channels, kn, num = raw_sbuf.shape[1], stationary_columns(geometry, job), piece.count
    pitch = whole_words(kn, geometry.itemsize)
    count = piece.depth * channels if mask_sbuf == None else filters_sbuf.shape[0]
    transposed_psum = nl.ndarray((count, num, pitch), dtype=raw_sbuf.dtype, buffer=nl.psum)
    for index in range(num):
        s = (piece.first + index) * depth - block.s0
        if mask_sbuf != None:
            taps = spread_groups(raw_sbuf[0:kn, 0:channels, piece.row, s], mask_sbuf, job)
        else:
            taps = raw_sbuf[0:kn, 0:channels, piece.row, s : s + piece.depth].permute((0, 2, 1))
        nisa.nc_transpose(dst=transposed_psum[0:count, index, 0:kn], data=taps, engine=nisa.engine.tensor)
    shift, row = job_axis(geometry, job).taps - geometry.rows.taps, block.r0 + piece.row
    for u in range(job.rows):
        r, data = row + (row // geometry.rows.taps + u) * shift, transposed_psum[0:count, 0:num, 0:kn]
        dst = filters_sbuf[0:count, r, piece.first : piece.first + num, u, 0:kn]
        if filters.pairing != None:
            low = block.of.low[0:count, r, piece.first : piece.first + num, u, 0:kn]
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
