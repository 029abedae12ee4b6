"""The stages of `banded`, piece by piece: rows to blocks, blocks to sums, sums to rows."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import SCALAR_WORK, VECTOR_WORK, Ledger, is_16bit, pick
from ..._epilogue import Epilogue, finish
from ..._tiles import div_ceil, share
from ..call import Extras, Operands
from ..geometry import Geometry
from .bands import Filters, ensure_filters, load_bands, zero_bands
from .blocks import Blocks
from .tiles import even, in_pieces, out_pieces, outs_a_bank, transposes_a_bank
from .work import channels_of_last

#: Buffers at the start whose bands do not wait for the filters' copy in HBM.
SOON = 1


@dataclass
class Run(nl.NKIObject):
    """What the stages share."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    blocks: Blocks
    filters: Filters
    mirror: object
    ledger: Ledger
    #: what happens where sums leave PSUM for Y, and where they leave it for rows
    middle: Epilogue
    end: Epilogue
    #: dtype of Y
    sum_dtype: object


def prefetch_bands(run, tiles, queue, buffers, position):
    """Bands of the groups at a position of the queue, (tile, first group, groups), into the buffer whose turn it is."""
    if position < len(queue):
        one = queue[position]
        blocks = run.blocks
        c0 = (tiles[one[0]].work.g0 + one[1]) * blocks.per_group
        cn = min(one[2] * blocks.per_group, run.geometry.C - c0)
        ensure_filters(run.filters, run.operands, run.geometry, blocks, c0, cn)
        if position < len(buffers):
            zero_bands(buffers[position], blocks, run.ledger)
        soon = position < SOON or not blocks.config.scratch
        load_bands(buffers[position % len(buffers)], run.filters, blocks, c0, cn, soon)


def load_rows(run, tile, ring_sbuf):
    """rows_in [(chunk, group, image), a, columns], in a buffer of the ring: data where there is any, zeros elsewhere.

    The ring caps how far loads run ahead; they would keep bands from coming.
    """
    work, geometry, blocks, extras = tile.work, run.geometry, run.blocks, run.extras
    if tile.datan == 0:
        return
    A, size = blocks.per_group, tile.blocks_in * blocks.block
    rows_sbuf = ring_sbuf[0 : tile.chunks_in * tile.rows, 0:A, 0:size]
    tile.rows_in = rows_sbuf
    last = channels_of_last(geometry, blocks, work)
    if last < A:
        zero(ring_sbuf, tile.chunks_in * tile.rows, last, A, 0, size)
    begin = (work.j0 + tile.data0) * blocks.block - geometry.pad_left
    missing_left = 0
    if not extras.state:
        missing_left = max(0, 0 - begin)
    missing_right = max(0, begin + tile.chunks_in * size - geometry.W)
    if missing_left > 0:
        zero(ring_sbuf, tile.chunks_in * tile.rows, 0, A, 0, min(size, missing_left))
    if missing_right > 0:
        zero(ring_sbuf, tile.chunks_in * tile.rows, 0, A, max(0, size - missing_right), size)
    x_strides = (geometry.x_n, geometry.x_c, geometry.x_w)
    full = (0, 0)
    if last == A or work.gn == 1:
        first_full = div_ceil(max(0, 0 - begin), size)
        full = (first_full, min(tile.chunks_in, (geometry.W - begin) // size) - first_full)
    for chunk in range(tile.chunks_in):
        first = begin + chunk * size
        if chunk == full[0] and full[1] > 0:
            load_chunks(run.operands.x, rows_sbuf, run, tile, x_strides, chunk, full[1], first, 0, size)
        elif chunk < full[0] or chunk >= full[0] + full[1]:
            from_state = 0
            if extras.state and first < 0:
                from_state = min(size, 0 - first)
                strides = (geometry.C * geometry.pad_left, geometry.pad_left, 1)
                load_chunks(
                    run.operands.state,
                    rows_sbuf,
                    run,
                    tile,
                    strides,
                    chunk,
                    1,
                    geometry.pad_left + first,
                    0,
                    from_state,
                )
            r0 = max(from_state, max(0, 0 - first))
            r1 = min(size, geometry.W - first)
            if r0 < r1:
                load_chunks(run.operands.x, rows_sbuf, run, tile, x_strides, chunk, 1, first + r0, r0, r1)


def zero(ring_sbuf, partitions, a0, a1, r0, r1):
    """Zeros in columns r0 .. r1-1 of channels a0 .. a1-1, and in a neighbouring column; two of 16 bits at a time."""
    words, per_word = ring_sbuf, 1
    if ring_sbuf.dtype != nl.float32:
        words, per_word = ring_sbuf.view(nl.float32), 2
    nisa.memset(
        dst=words[0:partitions, a0:a1, r0 // per_word : div_ceil(r1, per_word)],
        value=0.0,
        engine=nisa.engine.vector,
    )


def load_chunks(src_hbm, rows_sbuf, run, tile, strides, chunk, chunks, element, r0, r1):
    """Columns r0 .. r1-1 of some chunks of all rows, from `element` of each row of src_hbm on."""
    transfers = row_transfers(run, tile, strides, chunk, chunks, element, r1 - r0)
    for index in range(len(transfers)):
        one = transfers[index]
        copy(
            rows_sbuf[one[0] : one[0] + one[1], 0 : one[2], r0:r1],
            src_hbm.ap(pattern=one[3], offset=one[4]),
        )


def row_transfers(run, tile, strides, chunk, chunks, element, count):
    """DMAs of `chunks` chunks of `count` columns: (first partition, partitions, channels, HBM pattern, HBM offset).

    A chunk takes two where the last group of several has fewer channels than the others.
    """
    work, A = tile.work, run.blocks.per_group
    last = channels_of_last(run.geometry, run.blocks, work)
    c0 = work.g0 * A
    offset = work.n0 * strides[0] + c0 * strides[1] + element * strides[2]
    if last == A or work.gn == 1:
        pattern = [[A * strides[1], work.gn], [strides[0], work.nn], [strides[1], last], [strides[2], count]]
        if chunks > 1:
            pattern = [[count * strides[2], chunks], pattern[0], pattern[1], pattern[2], pattern[3]]
        return [(chunk * tile.rows, chunks * tile.rows, last, pattern, offset)]
    found = []
    for one in range(chunks):
        p0 = (chunk + one) * tile.rows
        start = offset + one * count * strides[2]
        full = work.gn - 1
        if full > 0:
            pattern = [[A * strides[1], full], [strides[0], work.nn], [strides[1], A], [strides[2], count]]
            found.append((p0, full * work.nn, A, pattern, start))
        pattern = [[strides[0], work.nn], [strides[1], last], [strides[2], count]]
        found.append((p0 + full * work.nn, work.nn, last, pattern, start + full * A * strides[1]))
    return found


def transpose_in(run, tile, first, count):
    """Pieces first .. first+count-1 of X[(a, i), J, row] = rows_in, block columns transposed."""
    if count == 0:
        return
    blocks, x_dtype = run.blocks, run.operands.x.dtype
    size = blocks.per_group * blocks.block
    if first == 0:
        start_blocks(tile, size, x_dtype)
    if tile.datan == 0:
        return
    partitions = tile.chunks_in * tile.rows
    at_once = transposes_a_bank(run.geometry, tile)
    for piece in range(first, first + count):
        j0 = piece * at_once
        jn = min(at_once, tile.blocks_in - j0)
        transposed_psum = nl.ndarray((size, at_once, even(partitions)), dtype=x_dtype, buffer=nl.psum)
        for j in range(jn):
            nisa.nc_transpose(
                dst=transposed_psum[0:size, j, 0:partitions],
                data=tile.rows_in[
                    0:partitions, 0 : blocks.per_group, (j0 + j) * blocks.block : (j0 + j + 1) * blocks.block
                ],
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(
            dst=tile.x_blocks.ap(
                pattern=[
                    [tile.rows * tile.x_width, size],
                    [tile.rows, jn],
                    [tile.blocks_in * tile.rows, tile.chunks_in],
                    [1, tile.rows],
                ],
                offset=(tile.data0 + j0) * tile.rows,
            ),
            src=transposed_psum[0:size, 0:jn, 0:partitions],
            engine=pick(run.ledger, jn * partitions, is_16bit(x_dtype)),
        )
    if first + count == in_pieces(run.geometry, tile):
        tile.rows_in = None


def start_blocks(tile, size, dtype):
    """X [(a, i), J, row] with zeros in the blocks that hold no data and share a matmul with some that do."""
    x_sbuf = nl.ndarray((size, tile.x_width, tile.rows), dtype=dtype, buffer=nl.sbuf)
    tile.x_blocks = x_sbuf
    end = tile.data0 + tile.chunks_in * tile.blocks_in
    zero0, zero_end = max(0, tile.data0 - tile.work.jn + 1), min(tile.x_width, end + tile.work.jn - 1)
    if tile.datan == 0:
        zero0, zero_end = 0, tile.x_width
    if zero0 < tile.data0:
        nisa.memset(dst=x_sbuf[0:size, zero0 : tile.data0, 0 : tile.rows], value=0.0, engine=nisa.engine.gpsimd)
    if end < zero_end:
        nisa.memset(dst=x_sbuf[0:size, end:zero_end, 0 : tile.rows], value=0.0, engine=nisa.engine.gpsimd)


def start_results(run, tile):
    """Y [(a, o'), row, j], zeros behind each row's blocks, and the bias of its groups."""
    size = run.blocks.per_group * run.blocks.out_block
    y_sbuf = nl.ndarray((size, tile.rows, tile.y_width), dtype=run.sum_dtype, buffer=nl.sbuf)
    tile.y_blocks = y_sbuf
    if tile.work.jn < tile.y_width:
        nisa.memset(
            dst=y_sbuf[0:size, 0 : tile.rows, tile.work.jn : tile.y_width], value=0.0, engine=nisa.engine.gpsimd
        )


def multiply_group(run, tile, group, bands_sbuf, buffer_slot):
    """Sums of one group, into Y once a PSUM bank is full of groups."""
    work, most = tile.work, nl.tile_size.psum_fmax
    size = run.blocks.per_group * run.blocks.out_block
    columns = work.nn * work.jn
    if columns <= most:
        slots = most // (tile.repeats * columns)
        slot = group % slots
        if slot == 0:
            tile.acc = nl.ndarray((size, slots, tile.repeats, columns), dtype=nl.float32, buffer=nl.psum)
        acc_psum = tile.acc[0:size, slot, 0 : tile.repeats, 0:columns]
        multiply_columns(run, tile, group, bands_sbuf, buffer_slot, acc_psum, 0, work.nn, 0, work.jn)
        if slot == slots - 1 or group == work.gn - 1:
            sums_psum = tile.acc.ap(
                pattern=[
                    [slots * tile.repeats * columns, size],
                    [tile.repeats * columns, slot + 1],
                    [work.jn, work.nn],
                    [1, work.jn],
                ],
                offset=0,
            )
            sums_out(run, tile, sums_psum, group - slot, slot + 1, 0, work.nn, 0, work.jn)
    else:
        pieces = div_ceil(work.jn, most)
        for n in range(work.nn):
            for piece in range(pieces):
                j = share(work.jn, pieces, piece)
                acc_psum = nl.ndarray((size, 1, 1, j[1]), dtype=nl.float32, buffer=nl.psum)
                multiply_columns(run, tile, group, bands_sbuf, buffer_slot, acc_psum, n, 1, j[0], j[1])
                sums_out(run, tile, acc_psum, group, 1, n, 1, j[0], j[1])


def multiply_columns(run, tile, group, bands_sbuf, buffer_slot, acc_psum, n0, nn, j0, jn):
    """Sum over the tap blocks for output blocks j0 .. j0+jn-1 of images n0 .. n0+nn-1 of one group."""
    blocks = run.blocks
    c0 = (tile.work.g0 + group) * blocks.per_group
    contraction = min(blocks.per_group, run.geometry.C - c0) * blocks.block
    pattern = [[tile.rows * tile.x_width, contraction], [1, nn], [tile.rows, jn]]
    if tile.repeats > 1:
        pattern = [pattern[0], [0, tile.repeats], pattern[1], pattern[2]]
    started = False
    for k in range(blocks.num_taps):
        meets = j0 + k < tile.data0 + tile.datan and j0 + k + jn > tile.data0
        if meets or (k == blocks.num_taps - 1 and not started):
            nisa.nc_matmul(
                dst=acc_psum,
                stationary=bands_sbuf[
                    0:contraction,
                    buffer_slot,
                    0 : blocks.per_group,
                    k * blocks.block : (k + 1) * blocks.block : run.geometry.stride,
                ],
                moving=tile.x_blocks.ap(
                    pattern=pattern,
                    offset=(j0 + k) * tile.rows + group * tile.work.nn + n0,
                ),
                accumulate=started,
            )
            started = True


def sums_out(run, tile, sums_psum, group, groups, n0, nn, j0, jn):
    """Sums of some groups, images and output blocks from PSUM to Y, through bias and activation."""
    size = run.blocks.per_group * run.blocks.out_block
    free = tile.rows * tile.y_width
    if run.middle.bias:
        for g in range(groups):
            offset = ((group + g) * tile.work.nn + n0) * tile.y_width + j0
            finish(
                tile.y_blocks.ap(pattern=[[free, size], [tile.y_width, nn], [1, jn]], offset=offset),
                sums_psum[0:size, g, 0:nn, 0:jn],
                tile.bias[0:size, group + g : group + g + 1],
                None,
                run.middle,
                reader(run, run.middle, nn * jn, False),
            )
    else:
        offset = (group * tile.work.nn + n0) * tile.y_width + j0
        finish(
            tile.y_blocks.ap(pattern=[[free, size], [tile.y_width, groups * nn], [1, jn]], offset=offset),
            sums_psum,
            None,
            None,
            run.middle,
            reader(run, run.middle, groups * nn * jn, False),
        )


def reader(run, epilogue, elements, fast):
    """The engine of a read-out; an activation is Scalar's, a residual without one Vector's."""
    ledger = run.ledger
    if epilogue.activation != "":
        ledger.scalar = ledger.scalar + elements * SCALAR_WORK
        return nisa.engine.scalar
    if epilogue.residual != "":
        ledger.vector = ledger.vector + elements * VECTOR_WORK
        return nisa.engine.vector
    return pick(ledger, elements, fast)


def transpose_out(run, tile, first, count):
    """Pieces first .. first+count-1 of rows_out = Y, block columns transposed and unmirrored; the last one stores."""
    blocks = run.blocks
    A, Bo = blocks.per_group, blocks.out_block
    partitions = tile.chunks_out * tile.rows
    width = tile.blocks_out * Bo
    at_once = outs_a_bank(run.blocks, tile)
    if count > 0 and first == 0:
        tile.rows_out = nl.ndarray((partitions, A, width), dtype=run.operands.y.dtype, buffer=nl.sbuf)
        load_residual_rows(run, tile, partitions, A, width)
    for piece in range(first, first + count):
        j0 = piece * at_once
        jn = min(at_once, tile.blocks_out - j0)
        transposed_psum = nl.ndarray((partitions, at_once, A * Bo), dtype=nl.float32, buffer=nl.psum)
        for j in range(jn):
            nisa.nc_matmul(
                dst=transposed_psum[0:partitions, j, 0 : A * Bo],
                stationary=tile.y_blocks.ap(
                    pattern=[
                        [tile.rows * tile.y_width, A * Bo],
                        [tile.step_out, tile.chunks_out],
                        [tile.y_width, tile.rows],
                    ],
                    offset=j0 + j,
                ),
                moving=run.mirror,
                is_moving_onezero=True,
                accumulate=False,
            )
        pattern = [[A * width, partitions], [Bo, jn], [width, A], [1, Bo]]
        residual_sbuf = None
        if tile.residual != None:
            residual_sbuf = tile.residual.ap(pattern=pattern, offset=j0 * Bo)
        finish(
            tile.rows_out.ap(pattern=pattern, offset=j0 * Bo),
            transposed_psum[0:partitions, 0:jn, 0 : A * Bo],
            None,
            residual_sbuf,
            run.end,
            reader(run, run.end, jn * A * Bo, False),
        )
    if count > 0 and first + count == out_pieces(run.blocks, tile):
        store_rows(run, tile)


def y_chunk(run, tile, chunk):
    """(first column, columns) of y that a chunk of a tile's results holds."""
    Bo = run.blocks.out_block
    q0 = (tile.work.j0 + chunk * tile.step_out) * Bo
    end = min(run.geometry.Q, (tile.work.j0 + tile.work.jn) * Bo)
    if chunk < tile.chunks_out - 1:
        end = min(end, q0 + tile.step_out * Bo)
    return q0, end - q0


def load_residual_rows(run, tile, partitions, A, width):
    """The residual of a tile, as rows_out lies; zeros where there is no output."""
    if run.operands.residual == None:
        return
    geometry = run.geometry
    residual_sbuf = nl.ndarray((partitions, A, width), dtype=run.operands.residual.dtype, buffer=nl.sbuf)
    nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    tile.residual = residual_sbuf
    strides = (geometry.y_n, geometry.y_c, geometry.y_q)
    for chunk in range(tile.chunks_out):
        q = y_chunk(run, tile, chunk)
        load_chunks(run.operands.residual, residual_sbuf, run, tile, strides, chunk, 1, q[0], 0, q[1])


def store_rows(run, tile):
    """rows_out to y: all chunks that are full at once."""
    geometry = run.geometry
    strides = (geometry.y_n, geometry.y_c, geometry.y_q)
    width = tile.step_out * run.blocks.out_block
    full = 0
    while full < tile.chunks_out and y_chunk(run, tile, full)[1] == width:
        full += 1
    if full > 0:
        store_chunks(run, tile, strides, 0, full, y_chunk(run, tile, 0))
    for chunk in range(full, tile.chunks_out):
        store_chunks(run, tile, strides, chunk, 1, y_chunk(run, tile, chunk))


def store_chunks(run, tile, strides, chunk, chunks, q):
    """`chunks` chunks of rows_out, q = (first column, columns of each)."""
    transfers = row_transfers(run, tile, strides, chunk, chunks, q[0], q[1])
    for index in range(len(transfers)):
        one = transfers[index]
        copy(
            run.operands.y.ap(pattern=one[3], offset=one[4]),
            tile.rows_out[one[0] : one[0] + one[1], 0 : one[2], 0 : q[1]],
        )
