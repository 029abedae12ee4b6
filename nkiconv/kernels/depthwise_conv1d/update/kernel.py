"""Depthwise conv1d of many short rows, as a decoder's step: one token (or a few) for each of many sequences.

    y[n, c, q] = sum over positions i of row[n, c, i] * band[c, i, q],      band[c, i, q] = w[c, s] where tap s of
                                                                              column q meets position i, else 0

Images lie on the partitions (two or four ranges of channels side by side where there are few), (c, position) on the
free dim as in HBM, so that every DMA moves long runs. The array transposes groups of channels, [images, (c, i)] to
[(c, i), images], and contracts them with the block-diagonal band of the group's filters: [images, (c, q)], which is y
as stored. An initial state is a second matmul into the same sums, so nothing is put together in memory; padding,
stride and dilation only change the bands.

Engine plan: DMA loads chunks of 2 KiB a partition, each once; Tensor transposes chunk i + 1 before the matmuls of
chunk i; Vector makes the bands (a mask times the transposed filters, 16-bit) while the first chunks are on their way;
Scalar moves transposed chunks to SBUF, 16-bit elements in pairs as one fp32 element; both read sums out, with the
epilogue. Bound by Tensor: 2 x 55 ns for 128 (c, position) of 128 (images, pieces), against 0.86 us of HBM time a
chunk of 8 such groups.

With few images Vector does it alone, channels on partitions (vector.py).

On the array zeros are multiplied: a NaN or Inf in x reaches all columns of the channels of its group, in its image;
one in w those of every image.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.channels import row_start
from ....schedules.depthwise import residual_places
from ....schedules.tiles import div_ceil, share, some_of
from ....schedules.update import group_runs, group_start, taps_met, update_chunks
from ..._dma import copy
from ..._epilogue import evacuate
from ..._masks import keep_between
from ..._prologue import finish_gates, load_rows
from ..._warm import accumulator, warm_up, warm_zeros
from ..geometry import gates_due
from .vector import update_vector


def update(operands, geometry, options, plan):
    """Write operands.y."""
    if plan.engine == "vector":
        update_vector(operands, geometry, options)
        return
    every = update_chunks(geometry, plan)
    mine = share(len(every), nl.num_programs(), nl.program_id(0))
    if mine[1] > 0:
        run_chunks(operands, geometry, options, plan, some_of(every, mine))


@dataclass
class RowKind:
    """What rows are made of, x or an initial state: `width` positions of each channel, which begin at place `shift` of
    the padded row; steps: HBM elements between images, channels and positions; filters: transposed, of each column, of
    the groups at work."""

    source: object
    width: int
    shift: int
    steps: tuple
    filters: object = None
    mask: object = None


def row_kinds(operands, geometry, plan):
    """The kinds of rows: x, and the state if there is one."""
    left = geometry.pad_left
    of_x = RowKind(operands.x, geometry.W, left, (geometry.x_n, geometry.x_c, geometry.x_w))
    of_state = RowKind(operands.state, left, 0, (geometry.C * left, left, 1))
    return [of_x, of_state] if plan.state > 0 else [of_x]


@dataclass
class Loaded:
    """Of a chunk, for each kind: rows as loaded, and then transposed; bands. And products that rows wait for, and the
    filters that start with it."""

    rows: list
    gates: list
    bands: list
    filters: object


def run_chunks(operands, geometry, options, plan, work):
    """Loads run ahead, bands one chunk; transposes of a chunk go before the matmuls of the one before it."""
    kinds = row_kinds(operands, geometry, plan)
    warm = warm_up(warm_zeros(), plan.warmup, 1)
    loaded = []
    fetch(loaded, operands, geometry, plan, kinds, work)
    for kind in kinds:
        kind.mask = make_mask(plan.channels, kind.width, operands.w.dtype)
    for _ in range(plan.ahead):
        fetch(loaded, operands, geometry, plan, kinds, work)
    for index in range(len(work) + 1):
        if 0 < index and index < len(work):
            fetch(loaded, operands, geometry, plan, kinds, work)
        for target in range(min(index, 1) * (index + 1), min(index + 2, len(work))):
            band_chunk(loaded, geometry, plan, kinds, work, target)
        if index < len(work):
            now = loaded[index]
            finish_gates(now.gates, None)
            pairs = zip(now.rows, kinds)
            now.rows = [transpose_rows(rows_sbuf, plan, work[index], kind.width) for rows_sbuf, kind in pairs]
        if index > 0:
            multiply_chunk(operands, geometry, options, plan, work[index - 1], loaded[index - 1], warm)
            loaded[index - 1] = None


def fetch(loaded, operands, geometry, plan, kinds, work):
    """Load the next chunk of the work, if there is one, and filters where it is the first to need them."""
    index = len(loaded)
    if index < len(work):
        chunk = work[index]
        filters = None
        if index == 0 or (chunk.n0 == 0 and chunk.first % plan.filters == 0):
            filters = load_update_filters(operands, geometry, plan, chunk.block, first_loaded(plan, chunk))
        rows = [load_chunk(kind, kind.source, plan, chunk) for kind in kinds]
        gates = []
        if operands.gate is not None:
            gates = gates_due(geometry, [rows[0], load_chunk(kinds[0], operands.gate, plan, chunk)])
        loaded.append(Loaded(rows=rows, gates=gates, bands=[], filters=filters))


def first_loaded(plan, chunk):
    """First group of the filters that are loaded together with those of a chunk."""
    return chunk.first // plan.filters * plan.filters


def rows_of(plan, chunk):
    """Partitions of a chunk's tiles."""
    return plan.pieces * plan.pitch if plan.pieces > 1 else chunk.nn


def load_chunk(kind, source, plan, chunk):
    """A chunk's rows of one kind, or of x's factor: [rows, (c, position)] in SBUF.

    Partitions between a piece's images and the next piece get image 0 again, so that nothing is read that was never
    written.
    """
    nn, size, (n_step, c_step, w_step) = chunk.nn, chunk.width * kind.width, kind.steps
    rows_sbuf = nl.ndarray((rows_of(plan, chunk), size), dtype=source.dtype, buffer=nl.sbuf)
    for h in range(plan.pieces):
        offset = chunk.n0 * n_step + (row_start(chunk.block, h) + chunk.start) * c_step
        row, end = h * plan.pitch, min((h + 1) * plan.pitch, rows_of(plan, chunk))
        for first, count, step in ((row, nn, n_step), (row + nn, end - row - nn, 0)):
            pattern = [[step, count], [c_step, chunk.width], [w_step, kind.width]]
            if count > 0:
                load_rows(rows_sbuf[first : first + count, 0:size], source, pattern, offset)
    return rows_sbuf


def band_chunk(loaded, geometry, plan, kinds, work, index):
    """Bands of a chunk: those of the work before it where that is the same groups of other images."""
    now, chunk = loaded[index], work[index]
    if now.filters != None:
        for kind in kinds:
            kind.filters = transpose_filters(now.filters, geometry, plan, kind.width, kind.shift)
        now.filters = None
    if index > 0 and chunk.n0 > 0:
        now.bands = loaded[index - 1].bands
    else:
        first = chunk.first - first_loaded(plan, chunk)
        now.bands = [make_bands(kind.filters, kind.mask, plan, first, chunk.count) for kind in kinds]


def transpose_rows(rows_sbuf, plan, chunk, width):
    """Groups of a chunk transposed: [(c, position), group, rows] in SBUF; 16-bit elements in pairs, as fp32 bits."""
    rows, size = rows_sbuf.shape[0], plan.channels * width
    even = rows + rows % 2  # a matmul starts at an even 16-bit element of PSUM
    groups_psum = nl.ndarray((size, chunk.count, even), dtype=rows_sbuf.dtype, buffer=nl.psum)
    groups_sbuf = nl.ndarray((size, chunk.count, rows), dtype=rows_sbuf.dtype, buffer=nl.sbuf)
    for g in range(chunk.count):
        at = (group_start(chunk.block, plan, chunk.first + g) - chunk.start) * width
        nisa.nc_transpose(
            dst=groups_psum[0:size, g, 0:rows], data=rows_sbuf[0:rows, at : at + size], engine=nisa.engine.tensor
        )
    into, found = groups_sbuf, groups_psum[0:size, 0 : chunk.count, 0:rows]
    if rows == even:
        into, found = groups_sbuf.view(nl.float32), groups_psum.view(nl.float32)
    nisa.tensor_copy(dst=into, src=found, engine=nisa.engine.scalar)
    return groups_sbuf


def multiply_chunk(operands, geometry, options, plan, chunk, loaded, warm):
    """Matmuls of a chunk, then each piece's own columns through the epilogue, and its channels' results to HBM.

    Of each piece those channels leave that no chunk or piece before it has.
    """
    Q, rows, size = geometry.Q, rows_of(plan, chunk), plan.channels * geometry.Q
    y_places = (geometry.y_n, geometry.y_c, geometry.y_q, 0)
    sums_psum, started = accumulator(warm, (rows, chunk.count, plan.pieces, size))
    for g in range(chunk.count):
        for kind in range(len(loaded.rows)):
            contraction = loaded.rows[kind].shape[0]
            nisa.nc_matmul(
                dst=sums_psum[0:rows, g, 0 : plan.pieces, 0:size],
                stationary=loaded.rows[kind][0:contraction, g, 0:rows],
                moving=loaded.bands[kind][0:contraction, g, 0 : plan.pieces, 0:size],
                accumulate=started or kind > 0,
            )
    y_sbuf = nl.ndarray((rows, chunk.width * Q), dtype=operands.y.dtype, buffer=nl.sbuf)
    for h in range(plan.pieces):
        row, on_vector = h * plan.pitch, plan.vector_reads > 0 and h % max(1, plan.vector_reads) == 0
        end = row + chunk.nn
        for first, count, start in group_runs(chunk.block, plan, chunk.first, chunk.count):
            at, width = (start - chunk.start) * Q, count * size
            bias, residual = load_options(operands, geometry, plan, chunk, h, count, start)
            evacuate(
                y_sbuf[row:end, at : at + width].reshape_dim(1, (count, size)),
                sums_psum[row:end, first - chunk.first : first - chunk.first + count, h, 0:size],
                bias,
                residual,
                options.epilogue,
                nisa.engine.vector if on_vector else nisa.engine.scalar,
                row=row,
            )
    for h in range(plan.pieces):
        c0 = row_start(chunk.block, h)
        own = chunk.block.c0 + h * chunk.block.length - c0
        skip = max(chunk.first * plan.channels, own) - chunk.start
        if skip < chunk.width:
            copy(
                y_of(operands.y, geometry, y_places, chunk, c0 + chunk.start + skip, chunk.width - skip),
                y_sbuf[h * plan.pitch : h * plan.pitch + chunk.nn, skip * Q : chunk.width * Q],
            )


def y_of(tensor_hbm, geometry, places, chunk, c0, channels):
    """View [images, channels, columns] of y, or of the residual as `residual_places`, of a chunk's images."""
    n_step, c_step, q_step, start = places
    return tensor_hbm.ap(
        pattern=[[n_step, chunk.nn], [c_step, channels], [q_step, geometry.Q]],
        offset=start + chunk.n0 * n_step + c0 * c_step,
    )


def load_options(operands, geometry, plan, chunk, h, count, start):
    """(bias, residual) of groups of piece h of a chunk, from channel `start` on, in SBUF as its sums lie, or None."""
    rows, row, c0 = rows_of(plan, chunk), h * plan.pitch, row_start(chunk.block, h) + start
    end, size, channels = row + chunk.nn, plan.channels * geometry.Q, count * plan.channels
    bias, residual = None, None
    if operands.bias != None:
        bias_sbuf = nl.ndarray((rows, channels, 1), dtype=operands.bias.dtype, buffer=nl.sbuf)
        bias = bias_sbuf[row:end, 0:channels, 0:1]
        copy(bias, operands.bias.ap(pattern=[[0, chunk.nn], [1, channels], [1, 1]], offset=c0))
        bias = bias.broadcast(2, geometry.Q)
    if operands.residual != None:
        residual_sbuf = nl.ndarray((rows, count, size), dtype=operands.residual.dtype, buffer=nl.sbuf)
        residual = residual_sbuf[row:end, 0:count, 0:size]
        copy(residual, y_of(operands.residual, geometry, residual_places(geometry), chunk, c0, channels))
    return bias, residual


def make_mask(channels, width, dtype):
    """[(c, position), c'] in SBUF: 1 where c = c'."""
    rows = channels * width
    mask_sbuf = nl.ndarray((rows, channels), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0)
    keep_between(mask_sbuf, [[-width, channels]], width, mask_sbuf)
    return mask_sbuf


def load_update_filters(operands, geometry, plan, block, group0):
    """Filters of up to plan.filters groups from group0 on: [(piece, group), channels, S] in SBUF."""
    groups = min(plan.filters, div_ceil(block.length, plan.channels) - group0)
    w_sbuf = nl.ndarray((plan.pieces * groups, plan.channels, geometry.S), dtype=operands.w.dtype, buffer=nl.sbuf)
    for h in range(plan.pieces):
        for first, count, start in group_runs(block, plan, group0, groups):
            row = h * groups + first - group0
            pattern = [[plan.channels * geometry.w_c, count], [geometry.w_c, plan.channels], [geometry.w_s, geometry.S]]
            copy(
                w_sbuf[row : row + count, 0 : plan.channels, 0 : geometry.S],
                operands.w.ap(pattern=pattern, offset=(row_start(block, h) + start) * geometry.w_c),
            )
    return w_sbuf


def transpose_filters(w_sbuf, geometry, plan, width, shift):
    """For each column q: [(c, position), piece, group] in SBUF, what each position of each channel is multiplied by.

    Placing taps of a column, transposing those of the one before and reading out the one before that: none waits.
    """
    size, rows = plan.channels * width, w_sbuf.shape[0]
    placed, raw, found = [], [], []
    for step in range(geometry.Q + 2):
        if step < geometry.Q:
            placed.append(place_taps(w_sbuf, geometry, width, taps_met(geometry, width, shift, step)))
        if 1 <= step and step <= geometry.Q:
            raw.append(transpose_column(placed[step - 1], size))
            placed[step - 1] = None
        if step >= 2:
            filters_sbuf = nl.ndarray((size, plan.pieces, rows // plan.pieces), dtype=w_sbuf.dtype, buffer=nl.sbuf)
            if raw[step - 2] == None:
                nisa.memset(dst=filters_sbuf, value=0.0)
            else:
                nisa.tensor_copy(dst=filters_sbuf.reshape((size, rows)), src=raw[step - 2][0:size, 0:rows])
            raw[step - 2] = None
            found.append(filters_sbuf)
    return found


def place_taps(w_sbuf, geometry, width, valid_range):
    """[(piece, group), channels, width] in SBUF: taps where they meet positions, else zeros; None if none do."""
    rows, channels, (first, count, at) = w_sbuf.shape[0], w_sbuf.shape[1], valid_range
    if count == 0:
        return None
    taps_sbuf = w_sbuf[0:rows, 0:channels, first : first + count]
    if count == width:
        return taps_sbuf
    placed_sbuf = nl.ndarray((rows, channels, width), dtype=w_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=placed_sbuf, value=0.0)
    end = at + (count - 1) * geometry.dilation + 1
    nisa.tensor_copy(dst=placed_sbuf[0:rows, 0:channels, at : end : geometry.dilation], src=taps_sbuf)
    return placed_sbuf


def transpose_column(placed_sbuf, size):
    """Placed taps transposed: [(c, position), (piece, group)] in PSUM, or None where there are none."""
    if placed_sbuf == None:
        return None
    rows = placed_sbuf.shape[0]
    even = rows + rows % 2  # a matmul starts at an even 16-bit element of PSUM
    placed_psum = nl.ndarray((size, even), dtype=placed_sbuf.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=placed_psum[0:size, 0:rows], data=placed_sbuf, engine=nisa.engine.tensor)
    return placed_psum


def make_bands(filters, mask_sbuf, plan, first, groups):
    """Bands of groups first .. of transposed filters: [(c, position), group, (h, c, q)] in SBUF."""
    rows, channels, columns = mask_sbuf.shape[0], plan.channels, len(filters)
    size = channels * columns
    bands_sbuf = nl.ndarray((rows, groups, plan.pieces, size), dtype=mask_sbuf.dtype, buffer=nl.sbuf)
    same = mask_sbuf.expand_dim(1).broadcast(1, groups).expand_dim(2).broadcast(2, plan.pieces)
    for q in range(columns):
        taps = filters[q][0:rows, 0 : plan.pieces, first : first + groups].permute((0, 2, 1))
        nisa.tensor_tensor(
            dst=bands_sbuf[0:rows, 0:groups, 0 : plan.pieces, q:size:columns],
            data1=taps.expand_dim(3).broadcast(3, channels),
            data2=same,
            op=nl.multiply,
        )
    return bands_sbuf
