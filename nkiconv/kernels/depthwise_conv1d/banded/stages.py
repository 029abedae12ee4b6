"""The stages of `banded`, piece by piece: rows to blocks, blocks to sums, sums to rows."""

from dataclasses import replace
from functools import partial
from itertools import groupby

from ...._nki import nisa, nl
from ....schedules.banded import in_pieces, outs_a_bank, row_spans, sum_spans, transposes_a_bank
from ....schedules.tiles import cut_at, div_ceil, share, some_of, whole_words
from ..._engines import SCALAR_WORK, VECTOR_WORK, copy_balanced, pick
from ..._epilogue import evacuate
from ..._masks import keep_equal
from ..._prologue import finish_gates
from ..._warm import accumulator
from ...conv.filter_feed import transpose_into
from .bands import as_words, bands_of


def move_chunks(run, tile, rows_sbuf, rows, begin, size, is_store=False, whole=False):
    """DMAs of a tile's rows [(chunk, group, image), a, columns], or [(chunk, image), channel, columns] if `whole`: the
    existing columns of each chunk; chunks are `size` elements apart, from `begin` on. One DMA moves neighbouring chunks
    with the same existing columns; a chunk takes two DMAs if the last of several groups has fewer channels."""
    (n_step, c_step, step), A = rows.steps, run.blocks.per_group
    spans = [(0, 1, (tile.gn - 1) * A + tile.last)] if whole else [(0, tile.gn, tile.last)]
    if not whole and tile.gn > 1 and tile.last < A:
        spans = [(0, tile.gn - 1, A), (tile.gn - 1, 1, tile.last)]
    lines = tile.nn if whole else tile.rows
    last = rows_sbuf.shape[0] // lines - 1

    def columns_of(chunk):
        first, width = begin + chunk * size, rows_sbuf.shape[2] if chunk == last else size
        return max(0, rows.low - first), min(width, rows.high - first), chunk if len(spans) > 1 else 0

    for (r0, r1, _), alike in groupby(range(last + 1), columns_of):
        chunk, *more = alike
        for g, groups, channels in spans if r0 < r1 else []:
            chunks, row, element = 1 + len(more), chunk * lines + g * tile.nn, begin + chunk * size + r0
            lead = [[size * step, chunks], [A * c_step, groups], [n_step, tile.nn]]
            here = rows_sbuf[row : row + chunks * groups * tile.nn, 0:channels, r0:r1]
            pattern = [*lead, [c_step, channels], [step, r1 - r0]]
            rows.move(here, pattern, tile.n0, (tile.g0 + g) * A, element, is_store)


def load_banded_rows(run, index):
    """rows_in [(chunk, group, image), a, columns] of a tile, in the circular buffer: data, and zeros outside them. The
    circular buffer limits how far loads run ahead, as they would delay bands."""
    if index >= len(run.tiles) or run.tiles[index].datan == 0:
        return
    tile, tensors, tiles = run.tiles[index], run.tensors, []
    # the factor first: its sigmoid comes before the product
    for source, ring in reversed([*zip(tensors.sources, run.rings)]):
        tiles.insert(0, load_source(run, tile, ring[index % len(ring)], source))
    run.held[index].rows_in, run.held[index].gates = tiles[0], tensors.gates(tiles) + arrivals(run, tile, tiles[0])


def clear_padding(x_sbuf, rows, below, _ledger):
    """Write the zeros of columns before or after rows again, after a prologue: on the partitions below `rows`, or on
    the others."""
    op = nl.greater_equal if below else nl.less
    keep_equal(x_sbuf, [[0, x_sbuf.shape[1]], [0, x_sbuf.shape[2]]], x_sbuf, -rows, op)


def arrivals(run, tile, rows_sbuf):
    """The prologue of a tile's rows, channel by channel, and the zeros of their padding; [] without a prologue."""
    prologue, geometry = run.tensors.prologue, run.geometry
    if prologue is None:
        return []
    (partitions, A, size), found, numbers = rows_sbuf.shape, [], []
    for rows in run.tensors.numbers():
        numbers.append(None if rows is None else nl.ndarray((partitions, A, 1), dtype=nl.float32, buffer=nl.sbuf))
        if rows is not None:
            if tile.last < A:
                nisa.memset(dst=numbers[-1], value=0.0, engine=nisa.engine.gpsimd)
            # the same for every chunk
            every = replace(rows, steps=(*rows.steps[:2], 0), high=tile.chunks_in)
            move_chunks(run, tile, numbers[-1], every, 0, 1)
    for a in range(A):
        of_a = (None if one is None else one[0:partitions, a, 0:1] for one in numbers)
        own = rows_sbuf[0:partitions, a, 0:size]
        found.append(partial(prologue.issue, own, own, *of_a))
    begin = (tile.j0 + tile.data0) * run.blocks.block - geometry.pad_left
    after = begin + tile.chunks_in * size - geometry.W
    if begin < 0:
        found.append(partial(clear_padding, rows_sbuf[0:partitions, 0:A, 0:-begin], tile.rows, True))
    if after > 0:
        last = (tile.chunks_in - 1) * tile.rows
        found.append(partial(clear_padding, rows_sbuf[0:partitions, 0:A, size - after : size], last, False))
    return found


def load_source(run, tile, buffer, source):
    """A tile's rows of x, with the state before it, or of its factor, in a RowsBuffer; columns without data keep the
    values of the last tile of this shape."""
    blocks, state = run.blocks, run.tensors.state if source is run.tensors.x else None
    A, size, partitions = blocks.per_group, tile.blocks_in * blocks.block, tile.chunks_in * tile.rows
    begin = (tile.j0 + tile.data0) * blocks.block - run.geometry.pad_left
    left = 0 if state is not None else max(0, -begin)
    right = max(0, begin + tile.chunks_in * size - source.high)
    shape = (tile.chunks_in, tile.gn, tile.nn, tile.last, size, left, right)
    if shape != buffer.shape:
        buffer.shape = shape
        for a, r0, r1 in ((tile.last, 0, size), (0, 0, min(size, left)), (0, max(0, size - right), size)):
            if a < A and r0 < r1:
                clear_rows(buffer.sbuf, partitions, a, A, r0, r1, source.outside)
    rows_sbuf = buffer.sbuf[0:partitions, 0:A, 0:size]
    for rows in (state, source):
        if rows is not None:
            move_chunks(run, tile, rows_sbuf, rows, begin, size)
    return rows_sbuf


def clear_rows(ring_sbuf, partitions, a0, a1, r0, r1, outside):
    """Zeros, or a factor's value `outside`, in columns r0 .. r1-1 of channels a0 .. a1-1, and perhaps in a neighbouring
    column; two zeros of 16 bits at a time."""
    if outside != 0.0:
        last = min(ring_sbuf.shape[2], r1 + 1)
        nisa.memset(dst=ring_sbuf[0:partitions, a0:a1, r0:last], value=outside, engine=nisa.engine.vector)
        return
    words, per_word = as_words(ring_sbuf), 1 if ring_sbuf.dtype == nl.float32 else 2
    dst = words[0:partitions, a0:a1, r0 // per_word : div_ceil(r1, per_word)]
    nisa.memset(dst=dst, value=0.0, engine=nisa.engine.vector)


def transpose_in(run, index, parts, part):
    """X[(a, i), J, row] = transposed block columns of a tile's rows_in: the pieces of one of `parts` equal parts."""
    if index >= len(run.tiles):
        return
    tile, held, blocks, x_dtype = run.tiles[index], run.held[index], run.blocks, run.tensors.x.dtype
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
    for j0, jn in some_of(cut_at(tile.blocks_in, at_once), (first, count)):
        begins = [first_position(blocks.apart, blocks.block, j) for j in range(j0, j0 + jn)]
        columns = [slice(begin, begin + (blocks.block - 1) * blocks.apart + 1, blocks.apart) for begin in begins]
        sources = [held.rows_in[0:partitions, 0 : blocks.per_group, some] for some in columns]
        transposed_psum = nl.ndarray((size, at_once, whole_words(partitions, 2)), dtype=x_dtype, buffer=nl.psum)
        transpose_into(transposed_psum, sources)
        rows, chunks = tile.rows, [tile.blocks_in * tile.rows, tile.chunks_in]
        pattern = [[rows * tile.x_width, size], [rows, jn], chunks, [1, rows]]
        places = held.x_blocks.ap(pattern=pattern, offset=(tile.data0 + j0) * rows)
        copy_balanced(places, transposed_psum[0:size, 0:jn, 0:partitions], run.ledger)


def first_position(apart, block, j):
    """Position of block j's first element; its elements are `apart` positions apart."""
    return j // apart * apart * block + j % apart


def start_blocks(tile, size, dtype, is_whole):
    """X [(a, i), J, row], with zeros in blocks without data that share a matmul with blocks with data, or in all blocks
    without data."""
    x_sbuf = nl.ndarray((size, tile.x_width, tile.rows), dtype=dtype, buffer=nl.sbuf)
    end = tile.data0 + tile.chunks_in * tile.blocks_in
    before, after = max(0, tile.data0 - tile.jn + 1), min(tile.x_width, end + tile.jn - 1)
    if tile.datan == 0 or is_whole:
        before, after = 0, tile.x_width
    elif tile.jn > nl.tile_size.psum_fmax:  # sums of a bank may have no data at all
        after = tile.x_width
    for first, last in ((before, tile.data0), (end, after)):
        if first < last:
            nisa.memset(dst=x_sbuf[0:size, first:last, 0 : tile.rows], value=0.0, engine=nisa.engine.gpsimd)
    return x_sbuf


def multiply_group(run, index, group, bands_sbuf):
    """Sums of one group; evacuates a PSUM bank to Y when it is full of groups. bands_sbuf: the buffer of its bands."""
    tile, held, size = run.tiles[index], run.held[index], run.blocks.per_group * run.blocks.out_block
    spans = sum_spans(tile)
    for span in spans:
        columns = span[1] * span[3]
        slots = nl.tile_size.psum_fmax // (tile.repeats * columns) if len(spans) == 1 else 1
        slot = group % slots
        if slot == 0:
            held.acc, held.started = accumulator(run.warm, (size, slots, tile.repeats, columns))
        sums_psum = held.acc[0:size, slot, 0 : tile.repeats, 0:columns]
        multiply_columns(run, index, group, bands_sbuf, sums_psum, span)
        if slot == slots - 1 or group == tile.gn - 1:
            found = held.acc[0:size, 0 : slot + 1, 0, 0:columns].reshape_dim(2, (span[1], span[3]))
            read_sums(run, index, found, group - slot, span)


def multiply_columns(run, index, group, bands_sbuf, acc_psum, span):
    """Sum over the tap blocks for some output blocks of some images of one group."""
    blocks, tile, held, (n0, nn, j0, jn) = run.blocks, run.tiles[index], run.held[index], span
    started = add_bias(run, index, group, acc_psum, True)
    contraction = (tile.last if group == tile.gn - 1 else blocks.per_group) * blocks.block
    repeated = [[0, tile.repeats]] if tile.repeats > 1 else []
    pattern = [[tile.rows * tile.x_width, contraction], *repeated, [1, nn], [tile.rows, jn]]
    for k in range(blocks.num_taps):
        first = j0 + k * blocks.apart
        meets = first < tile.data0 + tile.datan and first + jn > tile.data0
        if meets or (k == blocks.num_taps - 1 and not started):
            nisa.nc_matmul(
                dst=acc_psum,
                stationary=bands_of(run, bands_sbuf, contraction, k, False),
                moving=held.x_blocks.ap(pattern=pattern, offset=first * tile.rows + group * tile.nn + n0),
                accumulate=started,
            )
            started = True


def add_bias(run, index, group, sums_psum, is_stationary):
    """Begin sums of a group with its bias, as a product of its parts with ones; whether sums have begun.

    is_stationary: whether channels are on the partitions of sums, [(a, o'), columns], or else an axis, [rows, a, o].
    """
    if run.bias is None:
        return run.held[index].started
    lines, *columns = sums_psum.shape
    (parts, most), A = run.bias.shape, run.blocks.per_group
    repeated, counts = (run.blocks.out_block, columns) if is_stationary else (columns[-1], [lines])
    offset = (run.tiles[index].g0 + group - run.g0) * A
    bias = run.bias.ap(pattern=[[most, parts], [1, A], [0, repeated]], offset=offset)
    ones = run.ones.ap(pattern=[[1, parts], *([0, count] for count in counts)], offset=0)
    stationary, moving = (bias, ones) if is_stationary else (ones, bias)
    nisa.nc_matmul(dst=sums_psum, stationary=stationary, moving=moving, accumulate=run.held[index].started)
    return True


def read_sums(run, index, sums_psum, group, span):
    """Sums [(a, o'), groups, images, output blocks] from PSUM to Y, through an activation."""
    tile, held, (n0, nn, j0, jn) = run.tiles[index], run.held[index], span
    size, groups = sums_psum.shape[:2]
    pattern = [[tile.rows * tile.y_width, size], [tile.y_width, groups * nn], [1, jn]]
    y = held.y_blocks.ap(pattern=pattern, offset=(group * tile.nn + n0) * tile.y_width + j0)
    evacuate(y, sums_psum, None, None, run.middle, reader(run, run.middle, groups * nn * jn))


def reader(run, epilogue, elements):
    """The engine of an evacuation: Scalar for an activation, Vector for a residual without one, else by the ledger."""
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


def start_results(run, tile):
    """Y [(a, o'), row, j], and zeros after each row's blocks."""
    size = run.blocks.per_group * run.blocks.out_block
    y_sbuf = nl.ndarray((size, tile.rows, tile.y_width), dtype=run.sum_dtype, buffer=nl.sbuf)
    if tile.jn < tile.y_width:
        nisa.memset(dst=y_sbuf[0:size, 0 : tile.rows, tile.jn : tile.y_width], value=0.0, engine=nisa.engine.gpsimd)
    return y_sbuf


def start_rows(run, index):
    """Tiles for rows of y, [(chunk, group, image), a, columns], or [(chunk, image), channel, columns] if x is
    stationary, and for their residual, with zeros outside y."""
    tile, held, blocks, whole = run.tiles[index], run.held[index], run.blocks, run.blocks.settings.x_stationary
    lines, channels = (tile.nn, tile.gn) if whole else (tile.rows, 1)
    shape = (tile.chunks_out * lines, channels * blocks.per_group, tile.blocks_out * blocks.out_block)
    held.rows_out = nl.ndarray(shape, dtype=run.tensors.y.dtype, buffer=nl.sbuf)
    if run.tensors.residual is not None:
        held.residual = nl.ndarray(shape, dtype=run.tensors.residual.dtype, buffer=nl.sbuf)
        nisa.memset(dst=held.residual, value=0.0, engine=nisa.engine.gpsimd)
        move_results(run, tile, held.residual, run.tensors.residual, False)


def move_results(run, tile, rows_sbuf, rows, is_store):
    """Store a tile's columns of y from SBUF, or load the residual's."""
    Bo = run.blocks.out_block
    rows = replace(rows, high=min(rows.high, (tile.j0 + tile.jn) * Bo))
    whole = run.blocks.settings.x_stationary
    move_chunks(run, tile, rows_sbuf, rows, tile.j0 * Bo, tile.step_out * Bo, is_store, whole)


def evacuate_rows(run, index, pattern, offset, sums_psum, elements):
    """Sums to a region of the rows of y, with the end epilogue."""
    held = run.held[index]
    y, residual = (
        None if one is None else one.ap(pattern=pattern, offset=offset) for one in (held.rows_out, held.residual)
    )
    evacuate(y, sums_psum, None, residual, run.end, reader(run, run.end, elements))


def multiply_rows(run, index, group, bands_sbuf):
    """Sums of one group as rows, [(chunk, image), channel, columns]: X is the stationary operand, blocks a chunk apart,
    and the bands are the moving one. The last group stores the tile's rows."""
    tile, held, blocks = run.tiles[index], run.held[index], run.blocks
    A, Bo, rows = blocks.per_group, blocks.out_block, tile.chunks_out * tile.nn
    width = tile.step_out * Bo
    for first, count in row_spans(blocks, tile):
        sums_psum, held.started = accumulator(run.warm, (rows, A, count * Bo))
        multiply_chunks(run, index, group, bands_sbuf, sums_psum, first)
        pattern = [[tile.gn * A * width, rows], [width, A], [1, count * Bo]]
        evacuate_rows(run, index, pattern, group * A * width + first * Bo, sums_psum, A * count * Bo)
    if group == tile.gn - 1:
        move_results(run, tile, held.rows_out, run.tensors.y, True)


def multiply_chunks(run, index, group, bands_sbuf, sums_psum, first):
    """Sums [(chunk, image), channel, columns] of some blocks of each chunk, from block `first` on."""
    tile, held, blocks = run.tiles[index], run.held[index], run.blocks
    rows, A, columns = sums_psum.shape
    Bo, started = blocks.out_block, add_bias(run, index, group, sums_psum, False)
    contraction = (tile.last if group == tile.gn - 1 else A) * blocks.block
    pattern = [[tile.rows * tile.x_width, contraction], [tile.step_out * tile.rows, tile.chunks_out], [1, tile.nn]]
    for j in range(columns // Bo):
        for k in range(blocks.num_taps):
            nisa.nc_matmul(
                dst=sums_psum[0:rows, 0:A, j * Bo : (j + 1) * Bo],
                stationary=held.x_blocks.ap(pattern=pattern, offset=(first + j + k) * tile.rows + group * tile.nn),
                moving=bands_of(run, bands_sbuf, contraction, k, not run.geometry.flipped),
                accumulate=started or k > 0,
            )


def transpose_out(run, index, parts, part):
    """rows_out = transposed and unmirrored block columns of a tile's Y: the pieces of one of `parts` equal parts; the
    last part stores."""
    if index < 0:
        return
    tile, held, blocks = run.tiles[index], run.held[index], run.blocks
    A, Bo, D, at_once = blocks.per_group, blocks.out_block, blocks.apart, outs_a_bank(blocks, tile)
    pieces = cut_at(tile.blocks_out, at_once)
    first, count = share(len(pieces), parts, part)
    if first == 0 and count > 0:
        start_rows(run, index)
    column = [[tile.rows * tile.y_width, A * Bo], [tile.step_out, tile.chunks_out], [tile.y_width, tile.rows]]
    for j0, jn in some_of(pieces, (first, count)):
        partitions, _, width = held.rows_out.shape
        transposed_psum = nl.ndarray((partitions, at_once, A * Bo), dtype=nl.float32, buffer=nl.psum)
        for j in range(jn):
            nisa.nc_matmul(
                dst=transposed_psum[0:partitions, j, 0 : A * Bo],
                stationary=held.y_blocks.ap(pattern=column, offset=j0 + j),
                moving=run.mirror,
                is_moving_onezero=True,
                accumulate=False,
            )
        pattern = [[A * width, partitions], [Bo if D == 1 else 1, jn], [width, A], [D, Bo]]
        sums_psum, offset = transposed_psum[0:partitions, 0:jn, 0 : A * Bo], first_position(D, Bo, j0)
        evacuate_rows(run, index, pattern, offset, sums_psum, jn * A * Bo)
    if count > 0 and first + count == len(pieces):
        move_results(run, tile, held.rows_out, run.tensors.y, True)
