"""Depthwise conv1d of many short rows, as in a decode step: one token (or a few) of each of many sequences.

    y[n, c, q] = sum over positions i of row[n, c, i] * band[c, i, q],      band[c, i, q] = w[c, s] if tap s of
                                                                              column q reads position i, else 0

Images are on the partitions (few images with two or four ranges of channels), (c, position) on the free dim as in HBM,
so that every DMA moves long runs. The Tensor Engine transposes groups of channels, [images, (c, i)] to
[(c, i), images], and contracts them with the block-diagonal band of the group's filters: [images, (c, q)], which is y
as stored. An initial state is a second matmul into the same sums, so rows and states are not concatenated; padding,
stride and dilation only change the bands.

Engine plan: DMA loads tiles of 2 KiB a partition, each once; Tensor transposes tile i + 1 before the matmuls of tile i;
Vector makes the bands (a mask times the transposed filters, 16-bit) while the first tiles are in flight; Scalar copies
transposed tiles to SBUF, 16-bit elements in pairs as one fp32 element; both evacuate sums, with the epilogue. Bound by
Tensor: 2 x 55 ns for 128 (c, position) of 128 (images, pieces), against 0.86 us of HBM time a tile of 8 such groups.

With few images Vector computes all but a part of the products, GpSimd's. Row p of a tile holds channels c0 + p * T + t
of some images, as runs of T * W elements (the last row ends with the last channel, and may begin with channels of the
row before). Tap s of column q is a slice of the row times the filters, broadcast over the images, and one reduction
sums the taps; the next column's products precede a column's sum, so that neither waits for the other's result. An
initial state gives the first products and x the others. Channels are never mixed there, so NaN and Inf reach exactly
the outputs of the definition.

On the Tensor Engine zeros are multiplied: a NaN or Inf in x reaches all columns of the channels of its group, in its
image; a NaN or Inf in w in every image.
"""

from dataclasses import dataclass, field, replace

from ..._nki import nisa, nl
from ...schedules.channels import full_rows, row_start
from ...schedules.depthwise import RowGeometry
from ...schedules.tiles import cut_at, div_ceil, share, size_of, some_of, transposes_of_bank, whole_words
from ...schedules.update import UpdateSchedule, channels_of, group_runs, taps_met
from .._engines import book_vector, new_ledger, pick_sum
from .._epilogue import evacuate
from .._masks import constant, keep_between
from .._prologue import finish_gates
from .._warm import accumulator, warm_up, warm_zeros
from ..conv.filter_feed import transposed_bank
from ..conv.sums import multiply
from .tensors import RowTensors


def update(tensors, geometry, options, plan):
    """Write y."""
    tiles = some_of(plan.tiles, share(len(plan.tiles), nl.num_programs(), nl.program_id(0)))
    if plan.engine == "vector":
        update_vector(tensors, geometry, options, tiles)
    elif tiles:
        update_tensor(tensors, geometry, options, plan, tiles)


@dataclass
class Loaded:
    """A tile in flight: rows of x, and of the state, as loaded, later transposed, and their bands; pending products of
    rows; and filters, if it is the first tile of these."""

    rows: list
    gates: list
    filters: object
    bands: list = field(default_factory=list)


@dataclass
class UpdateRun:
    """The state of a core's work. kinds: Rows of x, and of an initial state; masks, filters: of each kind, of
    `make_mask` and `transpose_filters`; loaded: Loaded of each tile so far, None once it is stored."""

    tensors: RowTensors
    geometry: RowGeometry
    plan: UpdateSchedule
    tiles: list
    kinds: list
    masks: list = field(default_factory=list)
    filters: list = field(default_factory=list)
    loaded: list = field(default_factory=list)


def update_tensor(tensors, geometry, options, plan, tiles):
    """Write y on the Tensor Engine. Loads run ahead, bands one tile; a tile's transposes precede the previous tile's
    matmuls."""
    kinds = [rows for rows in (tensors.x, tensors.state) if rows is not None]
    run, banded = UpdateRun(tensors, geometry, plan, tiles, kinds), 0
    warm = warm_up(warm_zeros(), plan.warmup, 1)
    fetch(run)
    run.masks = [make_mask(plan.channels, kind.size, tensors.w.dtype) for kind in kinds]
    for _ in range(plan.ahead):
        fetch(run)
    for index in range(len(tiles) + 1):
        if index > 0:
            fetch(run)
        while banded < min(index + 2, len(tiles)):
            band_tile(run, banded)
            banded += 1
        if index < len(tiles):
            now = run.loaded[index]
            finish_gates(now.gates, None)
            now.rows = [transpose_rows(one, plan, tiles[index]) for one in now.rows]
        if index > 0:
            multiply_tile(run, options, tiles[index - 1], run.loaded[index - 1], warm)
            run.loaded[index - 1] = None


def fetch(run):
    """Load the next tile, if there is one, and filters if it is their first tile."""
    index, plan, tensors = len(run.loaded), run.plan, run.tensors
    if index < len(run.tiles):
        tile, filters = run.tiles[index], None
        if index == 0 or (tile.n0 == 0 and tile.first % plan.filters == 0):
            filters = load_update_filters(run, tile)
        rows = [load_tile(kind, plan, tile) for kind in run.kinds]
        gates = [] if tensors.gate is None else tensors.gates([rows[0], load_tile(tensors.gate, plan, tile)])
        run.loaded.append(Loaded(rows, gates, filters))


def load_tile(rows, plan, tile, fills=True):
    """[rows, channels, positions] in SBUF of x, its factor, the state, the bias or the residual.

    fills: whether partitions between a piece's images and the next piece get the first image again, so that every
    partition that is read was written.
    """
    partitions, width = plan.pieces * plan.pitch if plan.pieces > 1 else tile.nn, rows.size
    start, channels = channels_of(plan, tile)
    tile_sbuf = rows.tile((partitions, channels))
    between = min(plan.pitch, partitions) - tile.nn if fills else 0
    for h in range(plan.pieces):
        row = h * plan.pitch
        for first, count, step in ((row, tile.nn, rows.steps[0]), (row + tile.nn, between, 0)):
            if count > 0:
                pattern = [[step, count], [rows.steps[1], channels], [rows.steps[2], width]]
                dst = tile_sbuf[first : first + count, 0:channels, 0:width]
                rows.move_tile(dst, pattern, tile.n0, row_start(tile.block, h) + start, rows.low)
    return tile_sbuf


def store_tile(y_sbuf, rows, plan, tile):
    """Store the channels of [rows, channels, columns] that no earlier tile or piece has."""
    _, channels, columns = y_sbuf.shape
    for h in range(plan.pieces):
        row, c = h * plan.pitch, row_start(tile.block, h)
        own = max(tile.block.c0 + h * tile.block.length, c + tile.first * plan.channels)
        skip = own - c - channels_of(plan, tile)[0]
        if skip < channels:
            pattern = [[rows.steps[0], tile.nn], [rows.steps[1], channels - skip], [rows.steps[2], columns]]
            here = y_sbuf[row : row + tile.nn, skip:channels, 0:columns]
            rows.move_tile(here, pattern, tile.n0, own, 0, is_store=True)


def band_tile(run, index):
    """Make the bands of a tile, or share the previous tile's if it has the same groups of other images."""
    now, tile, plan = run.loaded[index], run.tiles[index], run.plan
    if now.filters is not None:
        run.filters, now.filters = [transpose_filters(run, now.filters, kind) for kind in run.kinds], None
    if index > 0 and tile.n0 > 0:
        now.bands = run.loaded[index - 1].bands
    else:
        now.bands = [make_bands(*kind, plan, tile) for kind in zip(run.masks, run.filters, strict=True)]


def transpose_rows(rows_sbuf, plan, tile):
    """Groups of a tile transposed: [(c, position), group, rows] in SBUF; 16-bit elements in pairs, as fp32 bits."""
    rows, _, width = rows_sbuf.shape
    even, size = whole_words(rows, 2), plan.channels * width
    firsts = [at + g * plan.channels for _, count, at in group_runs(plan, tile) for g in range(count)]
    groups_psum = transposed_bank([rows_sbuf[0:rows, c : c + plan.channels, 0:width] for c in firsts], size, even)
    groups_sbuf = nl.ndarray((size, tile.count, rows), dtype=rows_sbuf.dtype, buffer=nl.sbuf)
    into, found = groups_sbuf, groups_psum[0:size, 0 : tile.count, 0:rows]
    if rows == even:
        into, found = groups_sbuf.view(nl.float32), groups_psum.view(nl.float32)
    nisa.tensor_copy(dst=into, src=found, engine=nisa.engine.scalar)
    return groups_sbuf


def multiply_tile(run, options, tile, loaded, warm):
    """Matmuls of a tile, then each piece's columns through the epilogue, and the store of its channels' results."""
    plan, tensors, Q = run.plan, run.tensors, run.geometry.Q
    rows, size = loaded.rows[0].shape[2], plan.channels * Q
    sums_psum, started = accumulator(warm, (rows, tile.count, plan.pieces, size))
    for g in range(tile.count):
        for kind, (rows_sbuf, bands_sbuf) in enumerate(zip(loaded.rows, loaded.bands, strict=True)):
            contraction = rows_sbuf.shape[0]
            stationary = rows_sbuf[0:contraction, g, 0:rows]
            bands = bands_sbuf[0:contraction, g, 0 : plan.pieces, 0:size]
            multiply(sums_psum[0:rows, g, 0 : plan.pieces, 0:size], stationary, bands, started or kind > 0)
    added = [None if one is None else load_tile(one, plan, tile, False) for one in (tensors.bias, tensors.residual)]
    y_sbuf = tensors.y.tile((rows, channels_of(plan, tile)[1]))
    for h in range(plan.pieces):
        images = slice(h * plan.pitch, h * plan.pitch + tile.nn)
        on_vector = plan.vector_reads and not h % plan.vector_reads
        for first, count, at in group_runs(plan, tile):
            here = images, slice(at, at + count * plan.channels)
            bias, residual = (None if one is None else one[here] for one in added)
            evacuate(
                y_sbuf[here],
                sums_psum[images, first : first + count, h].reshape_dim(2, (plan.channels, Q)),
                None if bias is None else bias.broadcast(2, Q),
                residual,
                options.epilogue,
                nisa.engine.vector if on_vector else nisa.engine.scalar,
                row=images.start,
            )
    store_tile(y_sbuf, tensors.y, plan, tile)


def make_mask(channels, width, dtype):
    """[(c, position), c'] in SBUF: 1 where c = c'."""
    mask_sbuf = constant((channels * width, channels), dtype, 1.0, nisa.engine.vector)
    keep_between(mask_sbuf, [[-width, channels]], width)
    return mask_sbuf


def load_update_filters(run, tile):
    """Filters of up to plan.filters groups, those of a tile among them: [(piece, group), channels, S] in SBUF."""
    plan, w, S, block = run.plan, run.tensors.w, run.geometry.S, tile.block
    first = tile.first // plan.filters * plan.filters
    groups = min(plan.filters, div_ceil(block.length, plan.channels) - first)
    loaded = replace(tile, first=first, count=groups)
    start = channels_of(plan, loaded)[0]
    w_sbuf = nl.ndarray((plan.pieces * groups, plan.channels, S), dtype=w.dtype, buffer=nl.sbuf)
    for h in range(plan.pieces):
        for g, count, at in group_runs(plan, loaded):
            row = h * groups + g
            pattern = [[plan.channels * w.steps[1], count], [w.steps[1], plan.channels], [w.steps[2], S]]
            dst = w_sbuf[row : row + count, 0 : plan.channels, 0:S]
            w.load(dst, pattern, 0, row_start(block, h) + start + at, 0)
    return w_sbuf


def transpose_filters(run, w_sbuf, kind):
    """[(c, position), column, piece, group] in SBUF: the factor of each position of each channel."""
    rows, channels, _ = w_sbuf.shape
    size, Q, pieces = channels * kind.size, run.geometry.Q, run.plan.pieces
    filters_sbuf = nl.ndarray((size, Q, rows), dtype=w_sbuf.dtype, buffer=nl.sbuf)
    for q0, columns in cut_at(Q, transposes_of_bank(rows, run.geometry.itemsize)):
        placed = [place_taps(w_sbuf, run.geometry, kind, q) for q in range(q0, q0 + columns)]
        placed_psum = transposed_bank(placed, size, whole_words(rows, 2))
        nisa.tensor_copy(dst=filters_sbuf[0:size, q0 : q0 + columns, 0:rows], src=placed_psum[:, :, 0:rows])
    return filters_sbuf.reshape_dim(2, (pieces, rows // pieces))


def place_taps(w_sbuf, geometry, kind_rows, q):
    """[(piece, group), channels, positions] in SBUF: a column's taps at the positions that they read, else zeros."""
    (rows, channels, _), width = w_sbuf.shape, kind_rows.size
    first, count, at = taps_met(geometry, kind_rows.low, kind_rows.high, q)
    taps_sbuf = w_sbuf[0:rows, 0:channels, first : first + count]
    if count == width:
        return taps_sbuf
    placed_sbuf = constant((rows, channels, width), w_sbuf.dtype, 0.0, nisa.engine.vector)
    if count > 0:
        end = at + (count - 1) * geometry.dilation + 1
        nisa.tensor_copy(dst=placed_sbuf[0:rows, 0:channels, at : end : geometry.dilation], src=taps_sbuf)
    return placed_sbuf


def make_bands(mask, filters, plan, tile):
    """Bands of a tile's groups from transposed filters: [(c, position), group, (h, c, q)] in SBUF."""
    (rows, columns, _, _), first, groups = filters.shape, tile.first % plan.filters, tile.count
    channels, size = plan.channels, plan.channels * columns
    bands_sbuf = nl.ndarray((rows, groups, plan.pieces, size), dtype=mask.dtype, buffer=nl.sbuf)
    same = mask.expand_dim(1).broadcast(1, groups).expand_dim(2).broadcast(2, plan.pieces)
    for q in range(columns):
        taps = filters[0:rows, q, 0 : plan.pieces, first : first + groups].permute((0, 2, 1))
        nisa.tensor_tensor(
            dst=bands_sbuf[0:rows, 0:groups, 0 : plan.pieces, q:size:columns],
            data1=taps.expand_dim(3).broadcast(3, channels),
            data2=same,
            op=nl.multiply,
        )
    return bands_sbuf


def update_vector(tensors, geometry, options, tiles):
    """Write y. Loads are one tile ahead."""
    now, ledger = {}, new_ledger()
    for before, tile in zip([None, *tiles], [*tiles, None]):
        after = {} if tile is None else load_vector_tile(tensors, tile, now)
        if before is not None:
            sum_vector_tile(tensors, geometry, options, before, now, ledger)
        now = after


def load_vector_tile(tensors, tile, before):
    """{name: [rows, images, channels, elements] in SBUF, or None} of a tile's tensors, and the pending products of x as
    "gates". It shares the previous tile's filters and bias if that has the same channels."""
    found = {}
    for name in ("w", "bias", "x", "gate", "state", "residual"):
        rows, kept = getattr(tensors, name), name in ("w", "bias")
        found[name] = None if rows is None else before[name] if kept and tile.n0 > 0 and before else None
        if rows is not None and found[name] is None:
            block, nn = tile.block, 1 if kept else tile.nn
            found[name] = rows.tile((div_ceil(block.count, block.length), nn, block.length))
            transfer(found[name], rows, tile, False)
    found["gates"] = [] if tensors.gate is None else tensors.gates([found["x"], found["gate"]])
    return found


def transfer(tile_sbuf, rows, tile, is_store):
    """[rows, images, channels, elements] from HBM to SBUF, or back.

    A last row with too few channels begins with channels of the row before, which are not stored again.
    """
    _, images, length, width = tile_sbuf.shape
    by_image, by_channel, step = rows.steps
    complete, rest = full_rows(tile.block)
    for row, count, first in ((0, complete, 0), (complete, min(1, rest), length - rest if is_store else 0)):
        if count > 0:
            part_sbuf = tile_sbuf[row : row + count, 0:images, first:length, 0:width]
            pattern = [[length * by_channel, count], [by_image, images], [by_channel, length - first], [step, width]]
            rows.move_tile(part_sbuf, pattern, tile.n0, row_start(tile.block, row) + first, rows.low, is_store)


def sum_vector_tile(tensors, geometry, options, tile, loaded, ledger):
    """Sums of a tile, their epilogue and their store."""
    finish_gates(loaded["gates"], None)
    x_sbuf, bias, residual, Q = loaded["x"], loaded["bias"], loaded["residual"], geometry.Q
    rows, images, length, _ = x_sbuf.shape
    sums_sbuf = nl.ndarray((rows, images, length, Q), dtype=nl.float32, buffer=nl.sbuf)
    products = None
    for q in range(Q + 1):
        before = products
        if q < Q:
            products = multiply_taps(tensors, loaded, geometry, q, options.strict_nonfinite, ledger)
        if q > 0:
            column = sums_sbuf[0:rows, 0:images, 0:length, q - 1]
            if before is None:
                nisa.memset(dst=column, value=0.0)
            else:
                book_vector(ledger, size_of(before.shape[1:]))
                nisa.tensor_reduce(dst=column, op=nl.add, data=before, axis=3)
    y_sbuf = tensors.y.tile((rows, images, length))
    bias = None if bias is None else bias.broadcast(1, images).broadcast(3, Q)
    evacuate(y_sbuf, sums_sbuf, bias, residual, options.epilogue, nisa.engine.vector)
    transfer(y_sbuf, tensors.y, tile, True)


def multiply_taps(tensors, loaded, geometry, q, strict, ledger):
    """Products of column q, [rows, images, channels, taps] fp32 in SBUF, of all taps inside the row or the state; None
    if there are none.

    strict: with taps in the padding too, as they may be NaN or Inf.
    """
    filters_sbuf, met = loaded["w"], []
    for name, rows in (("state", tensors.state), ("x", tensors.x)):
        if rows is not None:
            met.append((loaded[name], *taps_met(geometry, rows.low, rows.high, q)))
    met = [one for one in met if one[2] > 0]
    low, high = (met[0][1], met[-1][1] + met[-1][2]) if met else (0, 0)
    first, end = (0, geometry.S) if strict else (low, high)
    if first == end:
        return None
    rows, images, channels, _ = loaded["x"].shape
    products_sbuf = nl.ndarray((rows, images, channels, end - first), dtype=nl.float32, buffer=nl.sbuf)
    for source_sbuf, s, count, at in met:
        last = at + (count - 1) * geometry.dilation + 1
        nisa.tensor_tensor(
            dst=products_sbuf[0:rows, 0:images, 0:channels, s - first : s - first + count],
            data1=source_sbuf[0:rows, 0:images, 0:channels, at : last : geometry.dilation],
            data2=filters_sbuf[0:rows, 0:1, 0:channels, s : s + count].broadcast(1, images),
            op=nl.multiply,
            engine=pick_sum(ledger, images * channels * count, False),
        )
    for begin, stop in ((first, low), (high, end)):
        if begin < stop:
            nisa.tensor_scalar(
                dst=products_sbuf[0:rows, 0:images, 0:channels, begin - first : stop - first],
                data=filters_sbuf[0:rows, 0:1, 0:channels, begin:stop].broadcast(1, images),
                op0=nl.multiply,
                operand0=0.0,
            )
    return products_sbuf
