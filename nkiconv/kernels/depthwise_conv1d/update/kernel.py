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
from ..._dma import copy
from ..._engines import SCALAR_WORK, START_WORK, VECTOR_WORK, VECTOR_WORK_16BIT, new_ledger, pick
from ..._tiles import INSTRUCTIONS_MAX, div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..free_channels import finish_free
from .bands import load_filters, make_bands, make_mask, turn_filters
from .config import read_update, update_config_refusal, update_defaults
from .plan import (
    ROW_MAX,
    batches_of,
    chunk_channels,
    chunk_groups,
    count_batches,
    group_start,
    piece_skip,
    piece_start,
    plan_update,
)
from .vector import count_vector, parts_of, update_vector


def update_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = update_config_refusal(config)
    if reason != "":
        return reason
    settings = read_update(config, update_defaults(geometry, extras))
    on_tensor = settings.engine == "tensor"
    if extras.strict_nonfinite and on_tensor:
        return 'strict_nonfinite=True: the array adds zeros times other channels; leave out engine="tensor"'
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: update takes 1; use mixed, vector or taps_on_partition"
    longest = max(geometry.W, geometry.pad_left if extras.state else 0)
    if longest > ROW_MAX:
        return (
            f"W={geometry.W}: update takes rows (and states) of at most {ROW_MAX} elements; use mixed, vector or "
            f"taps_on_partition"
        )
    plan = plan_update(geometry, extras.state, settings)
    if on_tensor and plan.channels == 0:
        return (
            f"Q={geometry.Q}, S={geometry.S}: the columns of one channel must fit a PSUM bank, its taps SBUF; use "
            f"mixed or vector"
        )
    if on_tensor:
        count = count_instructions(geometry, plan, settings, cores)
    else:
        parts = len(parts_of(geometry, extras, plan.state))
        if parts == 0:
            return (
                f"C={geometry.C}, W={geometry.W}, S={geometry.S}, Q={geometry.Q}: rows, filters and products of one "
                f"image must fit SBUF on 256 partitions; split C over several calls, or use vector"
            )
        count = count_vector(geometry, parts, cores)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, C={geometry.C}, Q={geometry.Q}: update needs {count} instructions on a core, the "
            f"compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls"
        )
    return ""


def count_instructions(geometry, plan, settings, cores):
    """Instructions of the busiest core, at most: loads, transposes, bands, matmuls, read-outs, stores."""
    kinds = 2 if plan.state > 0 else 1
    per_chunk = plan.pieces * (4 + 2 + 5) + kinds * (3 * plan.groups + 4 + geometry.Q)
    batch = plan.leave * per_chunk + 4 * plan.pieces
    filters = 2 + plan.pieces * 2 + geometry.Q * kinds * 4
    per_load = plan.filters // (plan.groups * plan.leave) * plan.image_tiles
    batches = div_ceil(count_batches(geometry, plan), cores)
    warmup = settings.warmup + settings.warmup_rows
    return batches * batch + (div_ceil(batches, per_load) + 2) * filters + warmup + 12


def update(operands, geometry, extras, config):
    """Write operands.y. config: (name, value) pairs of an UpdateConfig."""
    settings = read_update(config, update_defaults(geometry, extras))
    plan = plan_update(geometry, extras.state, settings)
    if settings.engine == "vector":
        update_vector(operands, geometry, extras, plan.state)
        return
    every = batches_of(geometry, plan)
    mine = share(len(every), nl.num_programs(), nl.program_id(0))
    work = []
    for index in range(mine[0], mine[0] + mine[1]):
        batch = every[index]
        for chunk in range(batch.first, batch.first + batch.number):
            work.append((batch, chunk))
    if len(work) > 0:
        run_chunks(operands, geometry, extras, plan, settings, work)


def kinds_of(geometry, plan):
    """(width, place in the padded row of position 0) of what rows are made of: x, and the state if there is one."""
    kinds = ((geometry.W, geometry.pad_left),)
    if plan.state > 0:
        kinds = kinds + ((plan.state, 0),)
    return kinds


def run_chunks(operands, geometry, extras, plan, settings, work):
    """Loads run ahead, bands one chunk; transposes of a chunk go before the matmuls of the one before it."""
    kinds = kinds_of(geometry, plan)
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, settings.warmup, 1)
    loaded = []
    fetch(loaded, operands, geometry, plan, work)
    masks = []
    for kind in range(len(kinds)):
        masks.append(make_mask(plan.channels, kinds[kind][0], operands.w.dtype))
    for _ in range(plan.ahead):
        fetch(loaded, operands, geometry, plan, work)

    ledger = new_ledger()
    turned_filters, bands, before, y_sbuf = [], [], None, None
    for index in range(len(work) + 1):
        now = None
        if 0 < index and index < len(work):
            fetch(loaded, operands, geometry, plan, work)
        for target in range(min(index, 1) * (index + 1), min(index + 2, len(work))):
            filters = loaded[target].filters
            if filters != None:
                turned_filters = []
                for kind in range(len(kinds)):
                    turned_filters.append(turn_filters(filters, geometry, plan, kinds[kind][0], kinds[kind][1]))
                if target == 0:
                    warm_up(zeros_sbuf, settings.warmup_rows, 1)
            bands.append(bands_of(turned_filters, masks, bands, plan, work, target, ledger))
        if index < len(work):
            by_vector = 0 < settings.vector_moves and index % settings.vector_moves == settings.vector_moves - 1
            turned = []
            for kind in range(len(kinds)):
                tile_sbuf = loaded[index].tiles[kind]
                turned.append(
                    turn_chunk(tile_sbuf, plan, work[index][0].block, work[index][1], kinds[kind][0], by_vector)
                )
                if not by_vector:
                    words = turned[kind].shape[1] * turned[kind].shape[2] * geometry.itemsize // 4
                    ledger.scalar = ledger.scalar + START_WORK + words * SCALAR_WORK
            loaded[index] = None
            now = Turned(tiles=turned, bands=bands[index])
            if index > 0:
                bands[index - 1] = None
        if before != None:
            batch, chunk = work[index - 1]
            first = chunk_channels(batch.block, plan, batch.first)[0]
            if chunk == batch.first:
                last = chunk_channels(batch.block, plan, batch.first + batch.number - 1)
                width = (last[0] + last[1] - first) * geometry.Q
                y_sbuf = nl.ndarray((rows_of(plan, batch), width), dtype=operands.y.dtype, buffer=nl.sbuf)
            multiply_chunk(operands, geometry, extras, plan, batch, chunk, before, y_sbuf, first, settings, ledger)
            if chunk == batch.first + batch.number - 1:
                store_batch(operands, geometry, plan, batch, y_sbuf, first)
        before = now


@dataclass
class Loaded(nl.NKIObject):
    """What is on its way for a chunk: rows of x (and of the state), and the filters that start with it, or None."""

    tiles: object
    filters: object


@dataclass
class Turned(nl.NKIObject):
    """Operands of a chunk's matmuls, one of each for x and the state: rows transposed and bands."""

    tiles: object
    bands: object


def bands_of(turned_filters, masks, bands, plan, work, index, ledger):
    """Bands of a chunk, for x and the state: those of the work before it where that is the same chunk."""
    block, chunk = work[index][0].block, work[index][1]
    before = work[max(0, index - 1)][0].block
    if index > 0 and work[index - 1][1] == chunk and before.c0 == block.c0:
        return bands[index - 1]
    groups = chunk_groups(block, plan, chunk)
    first = groups[0] - first_group(plan, work[index])
    made = []
    for kind in range(len(masks)):
        made.append(make_bands(turned_filters[kind], masks[kind], plan, first, groups[1]))
        columns = len(turned_filters[kind])
        work = VECTOR_WORK if masks[kind].dtype == nl.float32 else VECTOR_WORK_16BIT
        elements = groups[1] * plan.pieces * plan.channels
        ledger.vector = ledger.vector + columns * (START_WORK + elements * work)
    return made


def fetch(loaded, operands, geometry, plan, work):
    """Load the next chunk of the work, if there is one, and filters where it is the first to need them."""
    index = len(loaded)
    if index < len(work):
        block, group0 = work[index][0].block, first_group(plan, work[index])
        filters = None
        before = work[max(0, index - 1)]
        before_block = before[0].block
        if index == 0 or before_block.c0 != block.c0 or first_group(plan, before) != group0:
            filters = load_filters(operands, geometry, plan, block, group0)
        loaded.append(Loaded(tiles=load_chunk(operands, geometry, plan, work[index]), filters=filters))


def first_group(plan, item):
    """First group of the filters that are loaded together with those of a chunk."""
    return (item[1] * plan.groups) // plan.filters * plan.filters


def rows_of(plan, batch):
    """Partitions of a tile of a batch's images."""
    return plan.pieces * plan.pitch if plan.pieces > 1 else batch.nn


def load_chunk(operands, geometry, plan, item):
    """What a chunk's rows are made of, x and the state: [rows, (c, position)] in SBUF each.

    Partitions between a piece's images and the next piece get image 0 again, so that nothing is read that was never
    written.
    """
    batch = item[0]
    channels = chunk_channels(batch.block, plan, item[1])
    tiles = []
    for kind in range(2 if plan.state > 0 else 1):
        source, width = operands.x, geometry.W
        n_step, c_step, w_step = geometry.x_n, geometry.x_c, geometry.x_w
        if kind == 1:
            source, width = operands.state, plan.state
            n_step, c_step, w_step = geometry.C * plan.state, plan.state, 1
        tile_sbuf = nl.ndarray((rows_of(plan, batch), channels[1] * width), dtype=source.dtype, buffer=nl.sbuf)
        for h in range(plan.pieces):
            offset = batch.n0 * n_step + (piece_start(batch.block, h) + channels[0]) * c_step
            columns = [[c_step, channels[1]], [w_step, width]]
            row = h * plan.pitch
            copy(
                tile_sbuf[row : row + batch.nn, 0 : channels[1] * width],
                source.ap(pattern=[[n_step, batch.nn], columns[0], columns[1]], offset=offset),
            )
            more = plan.pitch - batch.nn if plan.pieces > 1 else 0
            if more > 0:
                copy(
                    tile_sbuf[row + batch.nn : row + plan.pitch, 0 : channels[1] * width],
                    source.ap(pattern=[[0, more], columns[0], columns[1]], offset=offset),
                )
        tiles.append(tile_sbuf)
    return tiles


def turn_chunk(tile_sbuf, plan, block, chunk, width, by_vector):
    """Groups of a chunk transposed: [(c, position), group, rows] in SBUF; 16-bit elements in pairs, as fp32 bits."""
    rows = tile_sbuf.shape[0]
    size = plan.channels * width
    groups = chunk_groups(block, plan, chunk)
    first = group_start(block, plan, groups[0])
    even = rows + rows % 2  # a matmul starts at an even 16-bit element of PSUM
    turned_psum = nl.ndarray((size, groups[1], even), dtype=tile_sbuf.dtype, buffer=nl.psum)
    turned_sbuf = nl.ndarray((size, groups[1], rows), dtype=tile_sbuf.dtype, buffer=nl.sbuf)
    for g in range(groups[1]):
        start = (group_start(block, plan, groups[0] + g) - first) * width
        nisa.nc_transpose(
            dst=turned_psum[0:size, g, 0:rows],
            data=tile_sbuf[0:rows, start : start + size],
            engine=nisa.engine.tensor,
        )
    engine = nisa.engine.vector if by_vector else nisa.engine.scalar
    if rows == even:
        nisa.tensor_copy(dst=turned_sbuf.view(nl.float32), src=turned_psum.view(nl.float32), engine=engine)
    else:
        nisa.tensor_copy(dst=turned_sbuf, src=turned_psum[0:size, 0 : groups[1], 0:rows], engine=engine)
    return turned_sbuf


def multiply_chunk(operands, geometry, extras, plan, batch, chunk, operand, y_sbuf, first, settings, ledger):
    """Matmuls of a chunk, then each piece's own columns through the epilogue into the batch's results."""
    rows, size = rows_of(plan, batch), plan.channels * geometry.Q
    groups = chunk_groups(batch.block, plan, chunk)
    sums_psum = nl.ndarray((rows, groups[1], plan.pieces, size), dtype=nl.float32, buffer=nl.psum)
    for g in range(groups[1]):
        for kind in range(len(operand.tiles)):
            contraction = operand.tiles[kind].shape[0]
            nisa.nc_matmul(
                dst=sums_psum[0:rows, g, 0 : plan.pieces, 0:size],
                stationary=operand.tiles[kind][0:contraction, g, 0:rows],
                moving=operand.bands[kind][0:contraction, g, 0 : plan.pieces, 0:size],
                accumulate=kind > 0,
            )
    channels = chunk_channels(batch.block, plan, chunk)
    regular = channels[1] // plan.channels
    for h in range(plan.pieces):
        row = h * plan.pitch
        c0 = piece_start(batch.block, h) + channels[0]
        extra = load_extras(operands, geometry, extras, batch, row, rows, c0, channels[1])
        engine = nisa.engine.scalar
        if settings.balanced:
            engine = pick(ledger, groups[1] * size, False)
        elif settings.vector_reads > 0 and h % settings.vector_reads == 0:
            engine = nisa.engine.vector
        for part in range(1 if regular == groups[1] else 2):
            g = 0 if part == 0 else regular
            gn = regular if part == 0 else 1
            at = 0 if part == 0 else channels[1] - plan.channels
            begin = (channels[0] + at - first) * geometry.Q
            read_out(
                y_sbuf[row : row + batch.nn, begin : begin + gn * size],
                sums_psum[row : row + batch.nn, g : g + gn, h, 0:size],
                extra,
                extras,
                geometry,
                row,
                at,
                engine,
            )


def read_out(y_sbuf, sums_psum, extra, extras, geometry, row, at, engine):
    """Sums [images, groups, (c, q)] of a piece through the epilogue; `at`: their first channel in the chunk."""
    images, groups, size = sums_psum.shape
    bias_sbuf, residual_sbuf = extra
    channels = groups * (size // geometry.Q)
    bias, residual = None, None
    if bias_sbuf != None:
        bias = bias_sbuf[row : row + images, at : at + channels, 0:1].broadcast(2, geometry.Q)
    if residual_sbuf != None:
        begin = at * geometry.Q
        residual = residual_sbuf[row : row + images, begin : begin + groups * size].reshape_dim(1, (groups, size))
    finish_free(y_sbuf.reshape_dim(1, (groups, size)), sums_psum, bias, residual, extras.epilogue, engine, row)


def load_extras(operands, geometry, extras, batch, row, rows, c0, count):
    """(bias [rows, count, 1], residual [rows, count * Q]) of a piece's channels of a chunk, in SBUF, or None."""
    bias_sbuf, residual_sbuf = None, None
    if extras.epilogue.bias:
        bias_sbuf = nl.ndarray((rows, count, 1), dtype=operands.bias.dtype, buffer=nl.sbuf)
        copy(
            bias_sbuf[row : row + batch.nn, 0:count, 0:1],
            operands.bias.ap(pattern=[[0, batch.nn], [1, count], [1, 1]], offset=c0),
        )
    if extras.epilogue.residual != "":
        residual_sbuf = nl.ndarray((rows, count * geometry.Q), dtype=operands.residual.dtype, buffer=nl.sbuf)
        copy(
            residual_sbuf[row : row + batch.nn, 0 : count * geometry.Q],
            operands.residual.ap(
                pattern=[[geometry.y_n, batch.nn], [geometry.y_c, count], [geometry.y_q, geometry.Q]],
                offset=batch.n0 * geometry.y_n + c0 * geometry.y_c,
            ),
        )
    return bias_sbuf, residual_sbuf


def store_batch(operands, geometry, plan, batch, y_sbuf, first):
    """Results of a batch to HBM: of each piece the channels that no batch or piece before it has."""
    Q = geometry.Q
    own = batch.first * plan.groups * plan.channels
    count = y_sbuf.shape[1] // Q
    for h in range(plan.pieces):
        skip = max(own, piece_skip(batch.block, h)) - first
        if skip < count:
            c0 = piece_start(batch.block, h) + first + skip
            row = h * plan.pitch
            copy(
                operands.y.ap(
                    pattern=[[geometry.y_n, batch.nn], [geometry.y_c, count - skip], [geometry.y_q, Q]],
                    offset=batch.n0 * geometry.y_n + c0 * geometry.y_c,
                ),
                y_sbuf[row : row + batch.nn, skip * Q : count * Q],
            )
