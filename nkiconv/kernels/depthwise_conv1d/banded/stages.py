"""The stages of `banded`, piece by piece: rows to blocks, blocks to sums, sums to rows."""

from dataclasses import dataclass
from typing import Any

from ...._nki import nisa, nl
from ....schedules.banded import (
    ROWS_BANKS,
    even,
    in_pieces,
    is_ragged,
    out_pieces,
    outs_a_bank,
    row_spans,
    sum_spans,
    transposes_a_bank,
)
from ....schedules.depthwise import residual_places
from ....schedules.tiles import BANK_COLUMNS, div_ceil, share
from ..._dma import load, store
from ..._engines import SCALAR_WORK, VECTOR_WORK, is_16bit, pick
from ..._epilogue import evacuate
from ..._prologue import Arrival, finish_gates, load_rows, outside_of
from ..._warm import accumulator
from ..geometry import gates_due, sources_of
from .bands import BIAS_PARTS, as_words, bands_of


def load_banded_rows(run, index):
    """rows_in [(chunk, group, image), a, columns] of a tile, in the circular buffer: data where there is any, zeros
    elsewhere. The circular buffer caps how far loads run ahead; they would keep bands from coming."""
    if index >= len(run.tiles):
        return
    tile, held = run.tiles[index], run.held[index]
    if tile.datan == 0:
        return
    geometry, tiles = run.geometry, []
    # the factor first: its sigmoid comes before the product
    for source, ring in reversed([*zip(sources_of(run.operands), run.rings)]):
        tiles.insert(0, load_source(run, tile, ring[index % len(ring)], source))
    held.rows_in, held.gates = tiles[0], gates_due(geometry, tiles) + arrivals(run, tile, tiles[0])


@dataclass
class Padding:
    """Columns in front of rows, or after them, that are zeros again once a prologue has met them: of partitions below
    `rows`, or of the others."""

    x_sbuf: Any
    rows: int
    below: bool

    def finish(self, _ledger):
        """Have the zeros written."""
        _, channels, columns = self.x_sbuf.shape
        nisa.affine_select(
            dst=self.x_sbuf,
            pattern=[[0, channels], [0, columns]],
            channel_multiplier=1,
            on_true_tile=self.x_sbuf,
            on_false_value=0.0,
            cmp_op=nl.greater_equal if self.below else nl.less,
            offset=-self.rows,
        )


def arrivals(run, tile, rows_sbuf):
    """The prologue of a tile's rows, channel by channel, and the zeros of their padding; none without one."""
    prologue, geometry = run.operands.prologue, run.geometry
    if prologue is None:
        return []
    partitions, A, size = rows_sbuf.shape
    numbers = [load_numbers(run, tile, hbm) for hbm in (prologue.scale, prologue.shift)]
    found = []
    for a in range(A):
        of_a = (None if one is None else one[0:partitions, a, 0:1] for one in numbers)
        found.append(Arrival(rows_sbuf[0:partitions, a, 0:size], prologue, *of_a))
    begin = (tile.j0 + tile.data0) * run.blocks.block - geometry.pad_left
    after = begin + tile.chunks_in * size - geometry.W
    if begin < 0:
        found.append(Padding(rows_sbuf[0:partitions, 0:A, 0 : 0 - begin], tile.rows, True))
    if after > 0:
        last = (tile.chunks_in - 1) * tile.rows
        found.append(Padding(rows_sbuf[0:partitions, 0:A, size - after : size], last, False))
    return found


def load_numbers(run, tile, hbm):
    """Numbers of x's channels for a tile's rows, fp32 [partitions, a, 1]; None of None."""
    if hbm is None:
        return None
    numbers_sbuf = nl.ndarray((tile.chunks_in * tile.rows, run.blocks.per_group, 1), dtype=nl.float32, buffer=nl.sbuf)
    if tile.last < run.blocks.per_group:
        nisa.memset(dst=numbers_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    strides = (0 if len(hbm.shape) == 1 else run.geometry.C, 1, 0)
    move_chunks(run, tile, numbers_sbuf, hbm, strides, (0, tile.chunks_in), 0, 0, 1, load)
    return numbers_sbuf


def load_source(run, tile, buffer, source):
    """A tile's rows of x, or of its factor, in a RowsBuffer; columns without data stay as a tile of this shape left
    them."""
    geometry, blocks, outside = run.geometry, run.blocks, outside_of(source)
    has_state = run.options.state and source is run.operands.x
    A, size = blocks.per_group, tile.blocks_in * blocks.block
    partitions = tile.chunks_in * tile.rows
    ring_sbuf = buffer.sbuf
    rows_sbuf = ring_sbuf[0:partitions, 0:A, 0:size]
    begin = (tile.j0 + tile.data0) * blocks.block - geometry.pad_left
    missing_left = 0 if has_state else max(0, 0 - begin)
    missing_right = max(0, begin + tile.chunks_in * size - geometry.W)
    shape = (tile.chunks_in, tile.gn, tile.nn, tile.last, size, missing_left, missing_right)
    if shape != buffer.shape:
        if tile.last < A:
            clear_rows(ring_sbuf, partitions, tile.last, A, 0, size, outside)
        if missing_left > 0:
            clear_rows(ring_sbuf, partitions, 0, A, 0, min(size, missing_left), outside)
        if missing_right > 0:
            clear_rows(ring_sbuf, partitions, 0, A, max(0, size - missing_right), size, outside)
        buffer.shape = shape
    if has_state and begin < 0:
        L = geometry.pad_left
        load_held(run, tile, rows_sbuf, run.operands.state, (geometry.C * L, L, 1), begin, 0 - L, 0)
    load_held(run, tile, rows_sbuf, source, (geometry.x_n, geometry.x_c, geometry.x_w), begin, 0, geometry.W)
    return rows_sbuf


def clear_rows(ring_sbuf, partitions, a0, a1, r0, r1, outside):
    """Zeros, or what a factor has for them, in columns r0 .. r1-1 of channels a0 .. a1-1, and in a neighbouring column;
    two zeros of 16 bits at a time."""
    if outside != 0.0:
        last = min(ring_sbuf.shape[2], r1 + 1)
        nisa.memset(dst=ring_sbuf[0:partitions, a0:a1, r0:last], value=outside, engine=nisa.engine.vector)
        return
    words, per_word = as_words(ring_sbuf), 1 if ring_sbuf.dtype == nl.float32 else 2
    dst = words[0:partitions, a0:a1, r0 // per_word : div_ceil(r1, per_word)]
    nisa.memset(dst=dst, value=0.0, engine=nisa.engine.vector)


def load_held(run, tile, rows_sbuf, src_hbm, strides, begin, low, high):
    """What of a tile's rows, from element `begin` on, src_hbm holds, which has elements low .. high-1: whole chunks at
    once, others one by one."""
    size = tile.blocks_in * run.blocks.block
    whole, num_whole = 0, 0
    if not is_ragged(run.blocks, tile):
        whole = div_ceil(max(0, low - begin), size)
        num_whole = max(0, min(tile.chunks_in, (high - begin) // size) - whole)
    for chunk in range(tile.chunks_in):
        first = begin + chunk * size
        if chunk == whole and num_whole > 0:
            move_chunks(run, tile, rows_sbuf, src_hbm, strides, (chunk, num_whole), first - low, 0, size, load_rows)
        elif chunk < whole or chunk >= whole + num_whole:
            r0, r1 = max(0, low - first), min(size, high - first)
            if r0 < r1:
                move_chunks(run, tile, rows_sbuf, src_hbm, strides, (chunk, 1), first + r0 - low, r0, r1, load_rows)


def move_chunks(run, tile, rows_sbuf, hbm, strides, chunks, element, r0, r1, move, start=0):
    """DMAs of columns r0 .. r1-1 of some chunks of all rows, (first, how many), from `element` of each row in HBM on.

    strides: of images, channels and elements in HBM, from `start` on; move: `load_rows`, `load` or `store`. A chunk
    takes two where the last group of several has fewer channels than the others.
    """
    A, count = run.blocks.per_group, r1 - r0
    n_step, c_step, step = strides
    offset = start + tile.n0 * n_step + tile.g0 * A * c_step + element * step
    if not is_ragged(run.blocks, tile):
        pattern = [[A * c_step, tile.gn], [n_step, tile.nn], [c_step, tile.last], [step, count]]
        if chunks[1] > 1:
            pattern = [[count * step, chunks[1]], pattern[0], pattern[1], pattern[2], pattern[3]]
        first = chunks[0] * tile.rows
        here = rows_sbuf[first : first + chunks[1] * tile.rows, 0 : tile.last, r0:r1]
        move(here, hbm, pattern, offset)
        return
    full = tile.gn - 1
    for one in range(chunks[1]):
        first, start = (chunks[0] + one) * tile.rows, offset + one * count * step
        pattern = [[A * c_step, full], [n_step, tile.nn], [c_step, A], [step, count]]
        middle = first + full * tile.nn
        move(rows_sbuf[first:middle, 0:A, r0:r1], hbm, pattern, start)
        pattern = [[n_step, tile.nn], [c_step, tile.last], [step, count]]
        move(rows_sbuf[middle : middle + tile.nn, 0 : tile.last, r0:r1], hbm, pattern, start + full * A * c_step)


def transpose_in(run, index, parts, part):
    """One of equal parts of the pieces of X[(a, i), J, row] = rows_in of a tile, block columns transposed."""
    if index >= len(run.tiles):
        return
    tile, held, blocks, x_dtype = run.tiles[index], run.held[index], run.blocks, run.operands.x.dtype
    first, count = share(in_pieces(run.geometry, tile), parts, part)
    if count == 0:
        return
    size, partitions = blocks.per_group * blocks.block, tile.chunks_in * tile.rows
    if first == 0:
        held.x_blocks = start_blocks(tile, size, x_dtype, blocks.settings.x_stationary)
    if tile.datan == 0:
        return
    finish_gates(held.gates, run.ledger if index > 0 else None)
    at_once = transposes_a_bank(run.geometry, tile)
    for piece in range(first, first + count):
        j0 = piece * at_once
        jn = min(at_once, tile.blocks_in - j0)
        transposed_psum = nl.ndarray((size, at_once, even(partitions)), dtype=x_dtype, buffer=nl.psum)
        for j in range(jn):
            begin = first_position(blocks.apart, blocks.block, j0 + j)
            end = begin + (blocks.block - 1) * blocks.apart + 1
            nisa.nc_transpose(
                dst=transposed_psum[0:size, j, 0:partitions],
                data=held.rows_in[0:partitions, 0 : blocks.per_group, begin : end : blocks.apart],
                engine=nisa.engine.tensor,
            )
        rows, chunks = tile.rows, [tile.blocks_in * tile.rows, tile.chunks_in]
        pattern = [[rows * tile.x_width, size], [rows, jn], chunks, [1, rows]]
        nisa.tensor_copy(
            dst=held.x_blocks.ap(pattern=pattern, offset=(tile.data0 + j0) * rows),
            src=transposed_psum[0:size, 0:jn, 0:partitions],
            engine=pick(run.ledger, jn * partitions, is_16bit(x_dtype)),
        )


def first_position(apart, block, j):
    """Position of block j's first element, the others being `apart` from one to the next."""
    return j // apart * apart * block + j % apart


def start_blocks(tile, size, dtype, is_whole):
    """X [(a, i), J, row] with zeros in the blocks that hold no data and share a matmul with some that do, or in all."""
    x_sbuf = nl.ndarray((size, tile.x_width, tile.rows), dtype=dtype, buffer=nl.sbuf)
    end = tile.data0 + tile.chunks_in * tile.blocks_in
    zero0, zero_end = max(0, tile.data0 - tile.jn + 1), min(tile.x_width, end + tile.jn - 1)
    if tile.datan == 0 or is_whole:
        zero0 = 0
    if tile.datan == 0 or is_whole or tile.jn > nl.tile_size.psum_fmax:  # sums of a bank may meet no data at all
        zero_end = tile.x_width
    if zero0 < tile.data0:
        nisa.memset(dst=x_sbuf[0:size, zero0 : tile.data0, 0 : tile.rows], value=0.0, engine=nisa.engine.gpsimd)
    if end < zero_end:
        nisa.memset(dst=x_sbuf[0:size, end:zero_end, 0 : tile.rows], value=0.0, engine=nisa.engine.gpsimd)
    return x_sbuf


def start_results(run, tile):
    """Y [(a, o'), row, j], and zeros after each row's blocks."""
    size = run.blocks.per_group * run.blocks.out_block
    y_sbuf = nl.ndarray((size, tile.rows, tile.y_width), dtype=run.sum_dtype, buffer=nl.sbuf)
    if tile.jn < tile.y_width:
        nisa.memset(dst=y_sbuf[0:size, 0 : tile.rows, tile.jn : tile.y_width], value=0.0, engine=nisa.engine.gpsimd)
    return y_sbuf


def multiply_group(run, index, group, bands_sbuf):
    """Sums of one group, into Y once a PSUM bank is full of groups. bands_sbuf: the buffer that has its bands."""
    tile, held, size = run.tiles[index], run.held[index], run.blocks.per_group * run.blocks.out_block
    spans = sum_spans(tile)
    for span in spans:
        columns = span[1] * span[3]
        slots = 1
        if len(spans) == 1:
            slots = nl.tile_size.psum_fmax // (tile.repeats * columns)
        slot = group % slots
        if slot == 0:
            held.acc, held.started = accumulator(run.warm, (size, slots, tile.repeats, columns))
        sums_psum = held.acc[0:size, slot, 0 : tile.repeats, 0:columns]
        multiply_columns(run, index, group, bands_sbuf, sums_psum, span)
        if slot == slots - 1 or group == tile.gn - 1:
            found = held.acc[0:size, 0 : slot + 1, 0, 0:columns].reshape_dim(2, (span[1], span[3]))
            read_sums(run, index, found, group - slot, slot + 1, span)


def multiply_columns(run, index, group, bands_sbuf, acc_psum, span):
    """Sum over the tap blocks for some output blocks of some images of one group."""
    blocks, tile, held = run.blocks, run.tiles[index], run.held[index]
    started = held.started
    n0, nn, j0, jn = span
    contraction = (tile.last if group == tile.gn - 1 else blocks.per_group) * blocks.block
    pattern = [[tile.rows * tile.x_width, contraction], [1, nn], [tile.rows, jn]]
    if tile.repeats > 1:
        pattern = [pattern[0], [0, tile.repeats], pattern[1], pattern[2]]
    for k in range(blocks.num_taps):
        first = j0 + k * blocks.apart
        meets = first < tile.data0 + tile.datan and first + jn > tile.data0
        if meets or (k == blocks.num_taps - 1 and not started):
            nisa.nc_matmul(
                dst=acc_psum,
                stationary=bands_of(run, bands_sbuf, group, contraction, k, False),
                moving=held.x_blocks.ap(pattern=pattern, offset=first * tile.rows + group * tile.nn + n0),
                accumulate=started,
            )
            started = True


def start_rows(run, tile):
    """Rows of y, [(chunk, image), channel, columns of a chunk], and the residual that is added to them."""
    channels, width = tile.gn * run.blocks.per_group, tile.step_out * run.blocks.out_block
    shape = (tile.chunks_out * tile.nn, channels, width)
    rows_sbuf, residual = nl.ndarray(shape, dtype=run.operands.y.dtype, buffer=nl.sbuf), run.operands.residual
    if residual is None:
        return rows_sbuf, None
    residual_sbuf = nl.ndarray(shape, dtype=residual.dtype, buffer=nl.sbuf)
    nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    move_rows(run, tile, residual_sbuf, residual, residual_places(run.geometry), load)
    return rows_sbuf, residual_sbuf


def multiply_rows(run, index, group, bands_sbuf):
    """Sums of one group as rows, [(chunk, image), channel, columns]: X is the stationary operand, blocks a chunk apart,
    and the bands are the moving one. Sums of ROWS_BANKS banks leave together; the last group stores the tile's rows."""
    tile, held, blocks, residual_sbuf = run.tiles[index], run.held[index], run.blocks, None
    A, Bo, rows = blocks.per_group, blocks.out_block, tile.chunks_out * tile.nn
    width, spans, is_last = tile.step_out * Bo, row_spans(blocks, tile), group == tile.gn - 1
    slots = ROWS_BANKS if len(spans) == 1 else 1
    for first, count in spans:
        slot, columns = group % slots, A * count * Bo
        if slot == 0:
            shape = (rows, slots, BANK_COLUMNS if slots > 1 else columns)
            held.acc, held.started = accumulator(run.warm, shape)
        sums_psum = held.acc[0:rows, 0:slots, 0:columns].reshape_dim(2, (A, count * Bo))
        multiply_chunks(run, index, group, bands_sbuf, sums_psum[0:rows, slot, 0:A, 0 : count * Bo], first)
        if slot == slots - 1 or is_last:
            pattern = [[tile.gn * A * width, rows], [A * width, slot + 1], [width, A], [1, count * Bo]]
            offset = (group - slot) * A * width + first * Bo
            if held.residual is not None:
                residual_sbuf = held.residual.ap(pattern=pattern, offset=offset)
            y, sums_psum = held.rows_out.ap(pattern=pattern, offset=offset), sums_psum[0:rows, 0 : slot + 1]
            evacuate(y, sums_psum, None, residual_sbuf, run.end, reader(run, run.end, (slot + 1) * columns))
    if is_last:
        y_places = (run.geometry.y_n, run.geometry.y_c, run.geometry.y_q, 0)
        move_rows(run, tile, held.rows_out, run.operands.y, y_places, store)


def multiply_chunks(run, index, group, bands_sbuf, sums_psum, first):
    """Sums [(chunk, image), channel, columns] of some blocks of each chunk, from block `first` on."""
    tile, held, blocks = run.tiles[index], run.held[index], run.blocks
    rows, A, columns = sums_psum.shape
    Bo, started = blocks.out_block, held.started
    contraction = (tile.last if group == tile.gn - 1 else A) * blocks.block
    if run.bias is not None:
        pattern = [[run.bias.shape[1], BIAS_PARTS], [1, A], [0, columns]]
        bias = run.bias.ap(pattern=pattern, offset=(tile.g0 + group) * A - run.filters.c0)
        nisa.nc_matmul(dst=sums_psum, stationary=run.ones[0:BIAS_PARTS, 0:rows], moving=bias, accumulate=started)
        started = True
    pattern = [[tile.rows * tile.x_width, contraction], [tile.step_out * tile.rows, tile.chunks_out], [1, tile.nn]]
    for j in range(columns // Bo):
        for k in range(blocks.num_taps):
            nisa.nc_matmul(
                dst=sums_psum[0:rows, 0:A, j * Bo : (j + 1) * Bo],
                stationary=held.x_blocks.ap(pattern=pattern, offset=(first + j + k) * tile.rows + group * tile.nn),
                moving=bands_of(run, bands_sbuf, group, contraction, k, not run.geometry.flipped),
                accumulate=started or k > 0,
            )


def move_rows(run, tile, rows_sbuf, hbm, places, move):
    """The same of rows [(chunk, image), channel, columns]."""
    by_image, by_channel, by_column, start = places
    size, q0 = tile.step_out * run.blocks.out_block, tile.j0 * run.blocks.out_block
    channels = (tile.gn - 1) * run.blocks.per_group + tile.last
    count = min(run.geometry.Q, (tile.j0 + tile.jn) * run.blocks.out_block) - q0
    full = count // size
    offset = start + tile.n0 * by_image + tile.g0 * run.blocks.per_group * by_channel + q0 * by_column
    for chunk, chunks, columns in ((0, full, size), (full, 1, count - full * size)):
        if chunks > 0 and columns > 0:
            pattern = [[size * by_column, chunks], [by_image, tile.nn], [by_channel, channels], [by_column, columns]]
            here = rows_sbuf[chunk * tile.nn : (chunk + chunks) * tile.nn, 0:channels, 0:columns]
            move(here, hbm, pattern, offset + chunk * size * by_column)


def read_sums(run, index, sums_psum, group, groups, span):
    """Sums of some groups, images and output blocks from PSUM to Y, through bias and activation."""
    tile, held, size = run.tiles[index], run.held[index], run.blocks.per_group * run.blocks.out_block
    n0, nn, j0, jn = span
    each = 1 if run.middle.bias else groups
    for g in range(0, groups, each):
        bias = held.bias[0:size, group + g : group + g + 1] if run.middle.bias else None
        pattern = [[tile.rows * tile.y_width, size], [tile.y_width, each * nn], [1, jn]]
        y = held.y_blocks.ap(pattern=pattern, offset=((group + g) * tile.nn + n0) * tile.y_width + j0)
        sums = sums_psum[0:size, g : g + each, 0:nn, 0:jn]
        evacuate(y, sums, bias, None, run.middle, reader(run, run.middle, each * nn * jn))


def reader(run, epilogue, elements):
    """The engine that evacuates; an activation is Scalar's, a residual without one Vector's."""
    ledger = run.ledger
    if epilogue.activation != "":
        ledger.scalar = ledger.scalar + elements * SCALAR_WORK
        if epilogue.by_sigmoid:
            ledger.vector = ledger.vector + elements * VECTOR_WORK
        return nisa.engine.scalar
    if epilogue.residual != "":
        ledger.vector = ledger.vector + elements * VECTOR_WORK
        return nisa.engine.vector
    return pick(ledger, elements, False)


def transpose_out(run, index, parts, part):
    """One of equal parts of the pieces of rows_out = Y of a tile, block columns transposed and unmirrored; the last
    one stores."""
    if index < 0:
        return
    tile, held, blocks = run.tiles[index], run.held[index], run.blocks
    first, count = share(out_pieces(blocks, tile), parts, part)
    if count == 0:
        return
    A, Bo = blocks.per_group, blocks.out_block
    partitions, width = tile.chunks_out * tile.rows, tile.blocks_out * Bo
    at_once = outs_a_bank(blocks, tile)
    if first == 0:
        held.rows_out = nl.ndarray((partitions, A, width), dtype=run.operands.y.dtype, buffer=nl.sbuf)
        held.residual = load_banded_residual(run, tile, partitions, width)
    for piece in range(first, first + count):
        j0 = piece * at_once
        jn = min(at_once, tile.blocks_out - j0)
        transposed_psum = nl.ndarray((partitions, at_once, A * Bo), dtype=nl.float32, buffer=nl.psum)
        column = [[tile.rows * tile.y_width, A * Bo], [tile.step_out, tile.chunks_out], [tile.y_width, tile.rows]]
        for j in range(jn):
            nisa.nc_matmul(
                dst=transposed_psum[0:partitions, j, 0 : A * Bo],
                stationary=held.y_blocks.ap(pattern=column, offset=j0 + j),
                moving=run.mirror,
                is_moving_onezero=True,
                accumulate=False,
            )
        D, offset = blocks.apart, first_position(blocks.apart, Bo, j0)
        pattern = [[A * width, partitions], [Bo if D == 1 else 1, jn], [width, A], [D, Bo]]
        residual_sbuf = None if held.residual is None else held.residual.ap(pattern=pattern, offset=offset)
        y, sums = held.rows_out.ap(pattern=pattern, offset=offset), transposed_psum[0:partitions, 0:jn, 0 : A * Bo]
        evacuate(y, sums, None, residual_sbuf, run.end, reader(run, run.end, jn * A * Bo))
    if first + count == out_pieces(blocks, tile):
        y_places = (run.geometry.y_n, run.geometry.y_c, run.geometry.y_q, 0)
        move_results(run, tile, held.rows_out, run.operands.y, y_places, store)


def move_results(run, tile, rows_sbuf, hbm, places, move):
    """Rows of a tile to y, or from the residual: all chunks that are full at once; places: elements between images,
    channels and columns in HBM, and of the first."""
    geometry, Bo = run.geometry, run.blocks.out_block
    strides, start = places[:3], places[3]
    size, q0 = tile.step_out * Bo, tile.j0 * Bo
    count = min(geometry.Q, (tile.j0 + tile.jn) * Bo) - q0
    # columns of the last chunk
    rest = count - (tile.chunks_out - 1) * size
    full = tile.chunks_out if rest == size else tile.chunks_out - 1
    if full > 0:
        move_chunks(run, tile, rows_sbuf, hbm, strides, (0, full), q0, 0, size, move, start)
    if full < tile.chunks_out:
        move_chunks(run, tile, rows_sbuf, hbm, strides, (full, 1), q0 + full * size, 0, rest, move, start)


def load_banded_residual(run, tile, partitions, width):
    """The residual of a tile, in rows_out's order, zeros where there is no output; None without one."""
    residual = run.operands.residual
    if residual is None:
        return None
    residual_sbuf = nl.ndarray((partitions, run.blocks.per_group, width), dtype=residual.dtype, buffer=nl.sbuf)
    nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    move_results(run, tile, residual_sbuf, residual, residual_places(run.geometry), load)
    return residual_sbuf
