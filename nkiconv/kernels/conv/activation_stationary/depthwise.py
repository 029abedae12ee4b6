"""Depthwise conv2d: blocks of x come in, each channel's are multiplied by its Toeplitz matrices, results leave.

Blocks of NHWC are loaded as they are, each pixel a run of channels. Of NCHW planes come in memory order, zeros are put
around them, and the array transposes windows of them, between the sums of earlier ones; where windows have the columns
of x and no others, planes come to where there are zeros above and below. Several of these steps are on their way.

Toeplitz matrices of all taps are made by DMAs of windows. With rows of taps `pitch` apart, as wide as what a matrix has
of a row of y, its elements are those of a sequence,

    F[k][(j, w), (p, q)] = g[(k * step + j * lhs_dilation - p) * pitch + w * lhs_dilation + lead - q],
    g[r * dilation * pitch + s * dilation] = w[r, s],

g backwards from a place on that moves with the partition: one run a partition and channel has all k, the last first.
The sequences are made in SBUF, a channel a partition, and one DMA serves a partition of many channels.
"""

import itertools
from dataclasses import dataclass, field

from ...._nki import nisa, nl
from ....schedules.block_windows import front_of
from ....schedules.cuts import places_inside
from ....schedules.depthwise_blocks import FRAMED, LOADED, RAWS, WARM_UP, images_together
from ....schedules.tiles import cut, cut_at, div_ceil, share, some_of
from ..._dma import copy
from ..._engines import START_WORK, copy_work, is_16bit, pick
from ..._epilogue import evacuate
from ..._prologue import load_x
from ..._warm import warm_up
from ..call import scale_residual
from ..filter_feed import tiles_in_turn
from ..regions import around, load_bias_as, load_regions, offset_at, store_regions


@dataclass
class Buffer(nl.NKIObject):
    """A tile that is rotated through, and where it has zeros that stay."""

    tile: object
    zeros: object = None


@dataclass
class Blocks(nl.NKIObject):
    """What one core has at hand besides a Work: buffers, matrices by round, planes by item."""

    items: list
    tiles: list
    #: filters in memory order, their sequences reversed; (first channel, how many) of each round of matrices
    taps: list
    rounds: list
    matrix_tiles: list
    lines: list = field(default_factory=list)
    matrices: list = field(default_factory=list)
    #: of planes, in turn
    raws: object = None
    framed: object = None
    planes: list = field(default_factory=list)


@dataclass
class Planes(nl.NKIObject):
    """Planes of some images (first, how many) of an item, [(image, c), rows, columns]: in memory order, with zeros
    around them; (first, end) of rows and columns of x among those with zeros."""

    images: tuple
    rows: tuple
    columns: tuple
    raw: object = None
    framed: object = None


def block_tiles(work, items):
    """Output tiles of items of a core."""
    plan, blocks = work.plan, start_blocks(work, items)
    warm_up(work.zeros_sbuf, WARM_UP, 1)
    if plan.by_pixels:
        tiles = []
        for index, item in enumerate(items):
            matrices_for(work, blocks, index)
            while len(tiles) < min(len(items), index + len(blocks.tiles)):
                tiles.append(load_pixels(work, blocks, len(tiles)))
            yield from item_tiles(work, blocks, item, tiles[index], [])
        return
    ahead = len(blocks.tiles) - 1
    planes_until(work, blocks, 1)
    matrices_for(work, blocks, 0)
    for number in range(ahead):
        for job in frame_jobs(work, blocks, number) + transpose_jobs(work, blocks, number):
            job()
    for job in frame_jobs(work, blocks, ahead):
        job()
    lines_until(work, blocks, len(blocks.taps))
    for index, item in enumerate(items):
        jobs = frame_jobs(work, blocks, index + ahead + 1) + transpose_jobs(work, blocks, index + ahead)
        matrices_for(work, blocks, index)
        yield from item_tiles(work, blocks, item, tile_of(blocks, index, plan.x_shape(item)), jobs)


def start_blocks(work, items):
    """Blocks of some items, with nothing on its way."""
    operands, plan = work.operands, work.plan
    shape = tuple(map(max, zip(*map(plan.x_shape, items))))
    tiles = [Buffer(one) for one in tiles_in_turn(plan.settings.buffers, shape, operands.x_dtype)]
    rounds = plan.rounds(items[0].chunk, items[-1].chunk)
    count, channels = plan.matrix_tiles
    matrix_tiles = tiles_in_turn(count, (shape[0], channels, plan.matrix_size), operands.w_dtype)
    c0, (end, cn) = rounds[0][0], rounds[-1]
    blocks = Blocks(items, tiles, load_taps(operands, work.geometry, c0, end + cn - c0), rounds, matrix_tiles)
    if not plan.by_pixels:
        parts, height, width = map(max, zip(*map(plan.framed_shape, items)))
        groups, own = max(map(plan.groups, items)), plan.has_own_columns
        if not own:
            raw_shape = parts, height, work.geometry.columns.size
            blocks.raws = itertools.cycle(tiles_in_turn(RAWS * groups, raw_shape, operands.x_dtype))
        framed = tiles_in_turn((LOADED if own else FRAMED) * groups, (parts, height, width), operands.x_dtype)
        blocks.framed = itertools.cycle(map(Buffer, framed))
    return blocks


def tile_of(blocks, number, shape):
    """The tile number `number` of a shape, of those that are rotated through."""
    tile_sbuf = blocks.tiles[number % len(blocks.tiles)].tile
    return tile_sbuf[0 : shape[0], 0 : shape[1], 0 : shape[2], 0 : shape[3], 0 : shape[4]]


def matrices_for(work, blocks, index):
    """Have the matrices of item number `index` be on their way, and those of the next one, if there is a tile."""
    items, tiles = blocks.items, blocks.matrix_tiles
    for item in items[index : index + len(tiles)]:
        number = (item.chunk - items[0].chunk) // work.plan.together
        while len(blocks.matrices) <= number:
            c0, cn = blocks.rounds[len(blocks.matrices)]
            at = c0 - blocks.rounds[0][0]
            lines_until(work, blocks, div_ceil(at + cn, nl.tile_size.pmax))
            tile_sbuf = tiles[len(blocks.matrices) % len(tiles)]
            matrices = load_matrices(work, tile_sbuf, blocks.lines, (at, cn))
            P_MAX = nl.tile_size.pmax
            bias_sbuf = load_bias_as(work.operands.bias, (P_MAX, cn), [[0, P_MAX], [1, cn]], c0)
            blocks.matrices.append((matrices, bias_sbuf))


def lines_until(work, blocks, count):
    """Have the first `count` parts of the filters' sequences be there."""
    while len(blocks.lines) < min(count, len(blocks.taps)):
        blocks.lines.append(copy_backwards(work, blocks.taps[len(blocks.lines)]))


def item_tiles(work, blocks, item, x_sbuf, jobs):
    """All channels of an item, a bank of some at a time, and the jobs between them; what they complete leaves."""
    geometry, plan, results = work.geometry, work.plan, start_results(work, item)
    spans, cn, y_sbuf = plan.spans_of(item), x_sbuf.shape[4], results[0]
    pieces = cut_at(cn, plan.bank_channels)
    # none after the last bank: the next tile's first matmuls would wait for them
    turns, turn = max(1, len(pieces) * len(spans) - 1), 0
    for piece in pieces:
        for span in spans:
            yield bank_of(work, blocks, item, x_sbuf, span, piece, results)
            for job in some_of(jobs, share(len(jobs), turns, turn)):
                job()
            turn += 1
        if not plan.by_pixels:
            store_regions(work.operands.y, y_sbuf, result_regions(geometry, plan, item, piece))
    if plan.by_pixels:
        store_regions(work.operands.y, y_sbuf, result_regions(geometry, plan, item, (0, cn)))


def bank_of(work, blocks, item, x_sbuf, span, piece, results):
    """Sums of a span of some channels (first, how many), a bank of them, as `work_tiles` takes them: a product for each
    of the blocks below each other, on their way to a tile of results."""
    plan, (c, count), qn, below = work.plan, piece, span.columns[1], work.plan.below(item)
    number = (item.chunk - blocks.items[0].chunk) // plan.together
    matrices, bias_sbuf = blocks.matrices[number]
    c0, parts = item.channels[0] - blocks.rounds[number][0] + c, results[0].shape[0]
    acc_psum = nl.ndarray((parts, count, plan.bank[0], plan.bank[1]), dtype=nl.float32, buffer=nl.psum)

    def products(_):
        down, on = plan.matrix_steps
        for channel, product, k in itertools.product(range(count), span.products, range(plan.depth)):
            (v, beside), q, places = product.windows, product.first, plan.rows_of_block(k) * plan.width
            b, end = v * below + k, (q + product.columns[1] - 1) * on + 1
            x = x_sbuf[0:places, 0:beside, b : b + item.below[1], 0 : item.images[1], c + channel]
            # the last comes first
            own = (c0 + channel + 1) * plan.depth - 1 - k
            moving = matrices[0:places, own, 0 : plan.step : down, q * on : end : on]
            dst = acc_psum[0:parts, channel, 0 : plan.bank[0], product.columns[0] : sum(product.columns)]
            yield dst, x, moving, product.adds or k > 0

    def leave():
        bias = None
        if bias_sbuf != None:
            bias = bias_sbuf[0:parts, c0 : c0 + count].expand_dim(2).expand_dim(3)
            bias = bias.broadcast(2, plan.out_rows).broadcast(3, qn)
        y, residual = (None if one == None else results_of(plan, one, piece, span.columns) for one in results)
        by_row, by_column = plan.bank_steps
        acc = acc_psum[0:parts, 0:count, 0 : plan.bank[0] : by_row, 0 : (qn - 1) * by_column + 1 : by_column]
        evacuate(y, acc, bias, residual, work.options.epilogue, work.ledger)

    return products, 1, leave


# ------------------------------------------------------------------------------------------------ NHWC


def load_pixels(work, blocks, index):
    """The tile of item number `index`: a DMA for a row of all blocks of a window; a buffer keeps zeros from an item
    whose blocks have them in the same places."""
    geometry, plan, item = work.geometry, work.plan, blocks.items[index]
    shape, (c0, _), rows = plan.x_shape(item), item.channels, geometry.rows
    _, beside, below, images, cn = shape
    tile_sbuf, windows, lines = tile_of(blocks, index, shape), [], []
    for window in plan.windows[item.windows[0] : item.windows[0] + beside]:
        windows.append((window.start, places_inside(window.start, 1, plan.width, geometry.columns.size)))
    for row in range(plan.rows):
        first = item.below[0] * plan.apart + row - front_of(rows)
        # the last block is seen by its first rows alone
        seen = below if row < plan.rows_of_block(plan.depth - 1) else below - 1
        lines.append((first, places_inside(first, plan.apart, seen, rows.size)))
    clear_blocks(blocks.tiles[index % len(blocks.tiles)], shape, plan.width, windows, lines)
    for v, (start, _) in enumerate(windows):
        for row, (first, (_, end)) in enumerate(lines):
            dst = tile_sbuf[row * plan.width : (row + 1) * plan.width, v, 0:end, 0:images, 0:cn]
            place, counts = (c0, item.images[0], first, start), (cn, images, end, plan.width)
            load_x(dst, work.operands, geometry, place, counts, "whnc", plan.apart)
    return tile_sbuf


def clear_blocks(buffer, shape, width, windows, lines):
    """Zeros in all pixels of windows, and of blocks below each other, that are not all x: by words where these hold
    whole channels, half of them by Vector."""
    _, _, below, images, cn = shape
    key = [shape, *(one[1] for one in windows + lines)]
    if buffer.zeros == key:
        return
    buffer.zeros, tile_sbuf, count = key, buffer.tile, cn
    if is_16bit(tile_sbuf.dtype) and tile_sbuf.shape[4] % 2 == 0 and cn % 2 == 0:
        tile_sbuf, count = tile_sbuf.view(nl.float32), cn // 2
    whole = [inside == (0, width) for _, inside in windows]
    padded = [b for b in range(below) if any(not first <= b < end for _, (first, end) in lines)]
    spots = [(v, 0, below) for v in range(len(windows)) if not whole[v]]
    spots += [(v, b, b + 1) for b in padded for v in range(len(windows)) if whole[v]]
    for v, b, end in spots:
        for c, c_end, engine in ((0, count // 2, nisa.engine.gpsimd), (count // 2, count, nisa.engine.vector)):
            if c < c_end:
                dst = tile_sbuf[0 : tile_sbuf.shape[0], v, b:end, 0:images, c:c_end]
                nisa.memset(dst=dst, value=0.0, engine=engine)


# ------------------------------------------------------------------------------------------------ NCHW


def planes_until(work, blocks, count):
    """Have planes of the first `count` items be on their way."""
    blocks.planes += [load_planes(work, blocks, item) for item in blocks.items[len(blocks.planes) : count]]


def load_planes(work, blocks, item):
    """Planes of an item on their way, those of as many images together as there are partitions, to raws, or to where
    there are zeros if there are no raws."""
    geometry, plan, (c0, cn), found = work.geometry, work.plan, item.channels, []
    _, height, width = plan.framed_shape(item)
    rows, columns = geometry.rows, geometry.columns
    row, column = item.below[0] * plan.apart - front_of(rows), plan.windows[0].start
    (h, h_end), (w, w_end) = places_inside(row, 1, height, rows.size), places_inside(column, 1, width, columns.size)
    hn, wn = h_end - h, w_end - w
    for n, nn in cut_at(item.images[1], images_together(item)):
        one, parts = Planes((n, nn), (h, h_end), (w, w_end)), nn * cn
        found.append(one)
        if blocks.raws != None:
            one.raw = into_sbuf = next(blocks.raws)[0:parts, 0:hn, 0:wn]
        else:
            one.framed = framed_sbuf = zeros_around(one, next(blocks.framed), (parts, height, width))
            into_sbuf = framed_sbuf[0:parts, h:h_end, 0:width]
        first = (c0, item.images[0] + n, row + h, column + w)
        load_x(into_sbuf, work.operands, geometry, first, (cn, nn, hn, wn), "nchw")
    return found


def zeros_around(planes, buffer, shape):
    """A buffer of a shape with zeros around what planes fill; it keeps them where they are in the same places."""
    parts, height, width = shape
    (h, h_end), (w, w_end) = planes.rows, planes.columns
    framed_sbuf = buffer.tile[0:parts, 0:height, 0:width]
    key = (shape, planes.rows, planes.columns)
    if buffer.zeros != key:
        buffer.zeros = key
        filled = (h, h_end, w, w_end) if h < h_end and w < w_end else (height, height, 0, width)
        for a, b, c, d in around(height, width, filled):
            nisa.memset(dst=framed_sbuf[0:parts, a:b, c:d], value=0.0, engine=nisa.engine.gpsimd)
    return framed_sbuf


def frame_jobs(work, blocks, index):
    """Jobs that put zeros around planes of item number `index`, if there is one; the next one's are on their way."""
    if index >= len(blocks.items):
        return []
    planes_until(work, blocks, index + 2)
    item = blocks.items[index]
    return [lambda planes=planes: put_zeros_around(work, blocks, planes, item) for planes in blocks.planes[index]]


def put_zeros_around(work, blocks, planes, item):
    """Put zeros around planes that are without."""
    if planes.framed != None:
        return
    _, height, width = work.plan.framed_shape(item)
    parts, (h, h_end), (w, w_end) = planes.images[1] * item.channels[1], planes.rows, planes.columns
    planes.framed = zeros_around(planes, next(blocks.framed), (parts, height, width))
    count = (h_end - h) * (w_end - w)
    if count > 0:
        work.ledger.vector += START_WORK + count * copy_work(planes.raw.dtype)
        dst = planes.framed[0:parts, h:h_end, w:w_end]
        nisa.tensor_copy(dst=dst, src=planes.raw, engine=nisa.engine.vector)


def transpose_jobs(work, blocks, index):
    """Jobs that transpose the blocks of item number `index`, if there is one, a bank of them each."""
    if index >= len(blocks.items):
        return []
    item, plan = blocks.items[index], work.plan
    tile_sbuf = tile_of(blocks, index, plan.x_shape(item))
    banks = cut(plan.below(item) * len(plan.windows), plan.transposes_together(item))
    return [
        lambda group=group, bank=bank: transpose_bank(work, tile_sbuf, blocks.planes[index][group], item, bank)
        for group in range(plan.groups(item))
        for bank in banks
    ]


def transpose_bank(work, tile_sbuf, planes, item, bank):
    """Some blocks (first, how many), [(j, w), (image, c)], into the tile of an item."""
    plan, (first, count), (n, nn), cn = work.plan, bank, planes.images, item.channels[1]
    parts, size, below = nn * cn, plan.size, plan.below(item)
    pitch = parts + parts % 2  # what the array writes begins at words
    bank_psum = nl.ndarray((size, count, pitch), dtype=tile_sbuf.dtype, buffer=nl.psum)
    for slot in range(count):
        row = (first + slot) % below * plan.apart
        start = plan.windows[(first + slot) // below].start - plan.windows[0].start
        nisa.nc_transpose(
            dst=bank_psum[0:size, slot, 0:parts],
            data=planes.framed[0:parts, row : row + plan.rows, start : start + plan.width],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(
        dst=tile_sbuf[0:size, 0, first : first + count, n : n + nn, 0:cn],
        src=bank_psum.ap(pattern=[[count * pitch, size], [pitch, count], [cn, nn], [1, cn]], offset=0),
        engine=pick(work.ledger, count * parts, is_16bit(tile_sbuf.dtype)),
    )


# ------------------------------------------------------------------------------------------------ results


def start_results(work, item):
    """(tile of results, residual times beta, or None) of an item."""
    operands, plan, shape = work.operands, work.plan, work.plan.y_shape(item)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    if operands.residual == None:
        return y_sbuf, None
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    rows = sum(item.below) * plan.out_rows > work.geometry.rows.out
    if rows or (plan.by_pixels and plan.columns * len(plan.windows) > work.geometry.columns.out):
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    load_regions(residual_sbuf, operands.residual, result_regions(work.geometry, plan, item, (0, item.channels[1])))
    return y_sbuf, scale_residual(residual_sbuf, operands.beta)


def results_of(plan, tile_sbuf, channels, columns):
    """[blocks, c, rows, columns] of a bank in a tile of results."""
    parts, (c, count), (q, qn) = tile_sbuf.shape[0], channels, columns
    if plan.by_pixels:
        return tile_sbuf[0:parts, 0 : plan.out_rows, 0:qn, c : c + count].permute((0, 3, 1, 2))
    return tile_sbuf[0:parts, c : c + count, 0 : plan.out_rows, q : q + qn]


def result_regions(geometry, plan, item, channels):
    """Regions of y, or of the residual, of some of an item's channels in a tile of results: of whole blocks, and of the
    last ones with fewer rows."""
    strides, P, height = geometry.y_strides, geometry.rows.out, plan.out_rows
    (c, cn), (n, nn), (b0, bn), found = channels, item.images, item.below, []
    c0, whole = item.channels[0] + c, min(bn, P // height - b0)
    for first, count, pn in ((0, whole, height), (whole, bn - whole, P % height)):
        if count <= 0 or pn <= 0:
            continue
        rows, images, row = [height * strides[2], count], [strides[1], nn], (b0 + first) * height
        if not plan.by_pixels:
            pattern = [rows, images, [strides[0], cn], [strides[2], pn], [strides[3], geometry.columns.out]]
            found.append(((first * nn, c, 0, 0), pattern, offset_at(strides, (c0, n, row, 0))))
            continue
        for v, window in enumerate(plan.windows[item.windows[0] : sum(item.windows)]):
            pattern = [rows, images, [strides[2], pn], [strides[3], window.qn], [strides[0], cn]]
            place = ((v * bn + first) * nn, 0, 0, c)
            found.append((place, pattern, offset_at(strides, (c0, n, row, window.q))))
    return found


# ------------------------------------------------------------------------------------------------ matrices


def load_taps(operands, geometry, c0, cn):
    """Filters of some channels in memory order, [c, r, s], of as many as there are partitions each."""
    R, S, found = geometry.rows.taps, geometry.columns.taps, []
    by_k, by_c, by_r, by_s = geometry.w_strides
    by_k = by_c if geometry.flipped else by_k
    for first, count in cut_at(cn, nl.tile_size.pmax):
        w_sbuf = nl.ndarray((count, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
        pattern = [[by_k, count], [by_r, R], [by_s, S]]
        copy(w_sbuf, operands.w.ap(pattern=pattern, offset=(c0 + first) * by_k))
        found.append(w_sbuf)
    return found


def copy_backwards(work, w_sbuf):
    """The sequence of each channel reversed, in SBUF: zeros but for taps; as many as a matrix has follow g[0]."""
    geometry, plan, cn = work.geometry, work.plan, w_sbuf.shape[0]
    R, S, down, on = geometry.rows.taps, geometry.columns.taps, geometry.rows.dilation, geometry.columns.dilation
    engines = (nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd)
    line_sbuf = nl.ndarray((cn, plan.line_length), dtype=work.operands.w_dtype, buffer=nl.sbuf)
    nisa.memset(dst=line_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for r in range(R):
        row = plan.line_length - 1 - plan.step * plan.pitch - r * down * plan.pitch
        # taps before the first element meet zeros between pixels alone
        count = min(S, row // on + 1) if row >= 0 else 0
        if geometry.flipped and count > 0:
            first = row - (count - 1) * on
            dst, src = line_sbuf[0:cn, first : row + 1 : on], w_sbuf[0:cn, R - 1 - r, S - count : S]
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)
        for s in range(0 if geometry.flipped else count):
            dst, src = line_sbuf[0:cn, row - s * on : row - s * on + 1], w_sbuf[0:cn, r, s : s + 1]
            nisa.tensor_copy(dst=dst, src=src, engine=engines[(r * S + s) % 3])
    return line_sbuf


def load_matrices(work, tile_sbuf, lines, channels):
    """Matrices of channels (first among those of `lines`, how many) on their way to a tile [places, c, run]; returns
    them as [places, (c, k reversed), rows, width]."""
    plan, (at, cn), most, length = work.plan, channels, nl.tile_size.pmax, work.plan.line_length
    run = plan.matrix_size
    for place in range(plan.size):
        start, done = length - 1 - run - plan.place_of(place), 0
        while done < cn:
            first = (at + done) % most
            count = min(cn - done, most - first)
            pattern = [[length, count], [1, 1], [1, run]]
            src = lines[(at + done) // most].ap(pattern=pattern, offset=first * length + start)
            copy(tile_sbuf[place : place + 1, done : done + count, 0:run], src)
            done += count
    return tile_sbuf[0 : plan.size, 0:cn, 0:run].reshape((plan.size, cn * plan.depth, plan.step, plan.pitch))
