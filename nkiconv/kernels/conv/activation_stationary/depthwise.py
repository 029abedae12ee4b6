"""Depthwise conv2d: load blocks of x, multiply each channel's by its Toeplitz matrices, store the results.

Blocks of NHWC are loaded as they are, each pixel a run of channels. For NCHW planes are loaded in memory order and
copied into zero padding, and the Tensor Engine transposes windows of them between the matmuls of earlier blocks. These
steps overlap.

DMAs of windows make the Toeplitz matrices of all taps. With rows of taps `pitch` apart, as wide as a matrix's columns
of a row of y, its elements are elements of a sequence,

    F[k][(j, w), (p, q)] = g[(k * step + j * lhs_dilation - p) * pitch + w * lhs_dilation + lead - q],
    g[r * dilation * pitch + s * dilation] = w[r, s],

read in reverse from a place that depends on the partition: one run a partition and channel has all k, the last first.
The sequences are made in SBUF, a channel a partition, and one DMA fills a partition for many channels.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...._nki import nisa, nl
from ....schedules.cuts import places_inside
from ....schedules.depthwise_blocks import FRAMED, RAWS, WARM_UP, front_of, images_together
from ....schedules.tiles import BANK_COLUMNS, cut, cut_at, share, size_of, some_of, transposes_of_bank, whole_words
from ..._dma import copy
from ..._engines import copy_balanced, copy_by_vector, is_16bit
from ..._epilogue import evacuate, load_bias_rows
from ..._masks import constant
from ..._prologue import load_x
from ..._warm import warm_up
from ..filter_feed import Buffer, tiles_in_turn, transposed_bank
from ..regions import around, load_depthwise, offset_at, residual_of, store_regions
from .loop import Core, bias_of


@dataclass
class Planes(nl.NKIObject):
    """Planes [(image, c), rows, columns] of some images (first, count) of an item: `raw` in memory order, `framed` in
    zeros, None at first; (first, end) of the rows and columns of x in `framed`; its shape."""

    images: tuple
    rows: tuple
    columns: tuple
    shape: tuple
    raw: Any
    framed: Any = None

    def frame(self, buffer):
        """Take a buffer as `framed`, write zeros around x unless they are in the same places already, and return the
        region of x."""
        (parts, height, width), (h, h_end), (w, w_end) = self.shape, self.rows, self.columns
        self.framed, key = buffer.tile[0:parts, 0:height, 0:width], (self.shape, self.rows, self.columns)
        if buffer.zeros != key:
            buffer.zeros = key
            filled = (h, h_end, w, w_end) if h < h_end and w < w_end else (height, height, 0, width)
            for a, b, c, d in around(height, width, filled):
                nisa.memset(dst=self.framed[0:parts, a:b, c:d], value=0.0, engine=nisa.engine.gpsimd)
        return self.framed[0:parts, h:h_end, w:w_end]


class BlockCore(Core):
    """The loop of a core over output tiles of blocks.

    items: all of the core's; buffers: of x by blocks; taps: filters in memory order, lines: their sequences reversed,
    of 128 channels each; rounds: (first channel, count) of matrices loaded together; matrices: (matrices, biases) of
    each loaded round; planes: Planes of each item whose load has started, into raws.
    """

    def tiles(self, items):
        """Output tiles of items, as `run` takes them."""
        plan, operands, self.items = self.plan, self.operands, items
        shape = tuple(map(max, zip(*map(plan.x_shape, items))))
        self.buffers = [Buffer(one) for one in tiles_in_turn(plan.settings.buffers, shape, operands.x_dtype)]
        self.rounds, (count, channels) = plan.rounds(items[0].chunk, items[-1].chunk), plan.matrix_tiles
        self.matrix_tiles = tiles_in_turn(count, (shape[0], channels, plan.matrix_size), operands.w_dtype)
        c0, (end, cn) = self.rounds[0][0], self.rounds[-1]
        self.taps, self.lines, self.matrices = self.load_taps(c0, end + cn - c0), [], []
        return self.pixel_tiles() if plan.by_pixels else self.plane_tiles()

    def pixel_tiles(self):
        """Output tiles of NHWC."""
        warm_up(self.zeros_sbuf, WARM_UP, 1)
        loaded, buffers = 0, len(self.buffers)
        for index, item in enumerate(self.items):
            self.matrices_for(index)
            for number in range(loaded, min(len(self.items), index + buffers)):
                self.load_pixels(number)
                loaded = number + 1
            yield from self.item_tiles(index, item, [])

    def plane_tiles(self):
        """Output tiles of NCHW."""
        plan, items, x_dtype, self.planes = self.plan, self.items, self.operands.x_dtype, []
        parts, height, width = map(max, zip(*map(plan.framed_shape, items)))
        groups, raw_shape = max(map(plan.groups, items)), (parts, height, self.geometry.columns.size)
        self.raws = itertools.cycle(tiles_in_turn(RAWS * groups, raw_shape, x_dtype))
        framed = tiles_in_turn(FRAMED * groups, (parts, height, width), x_dtype)
        self.framed = itertools.cycle(map(Buffer, framed))
        warm_up(self.zeros_sbuf, WARM_UP, 1)
        ahead = len(self.buffers) - 1
        self.planes_until(1)
        self.matrices_for(0)
        for number in range(ahead + 1):
            for job in self.frame_jobs(number) + (self.transpose_jobs(number) if number < ahead else []):
                job()
        self.lines_until(len(self.taps))
        for index, item in enumerate(items):
            jobs = self.frame_jobs(index + ahead + 1) + self.transpose_jobs(index + ahead)
            self.matrices_for(index)
            yield from self.item_tiles(index, item, jobs)

    def tile_of(self, index):
        """The tile of blocks of item number `index`, [pixels, beside, below, images, channels]."""
        tile_sbuf = self.buffers[index % len(self.buffers)].tile
        return tile_sbuf[tuple(slice(0, extent) for extent in self.plan.x_shape(self.items[index]))]

    def item_tiles(self, index, item, jobs):
        """All channels of item number `index`, bank by bank, with background work (`jobs`) between banks; stores the
        results."""
        geometry, plan, y_hbm, cn = self.geometry, self.plan, self.operands.y, item.channels[1]
        x_sbuf, results = self.tile_of(index), self.start_results(item)
        spans, pieces = plan.spans_of(item), cut_at(cn, max(1, BANK_COLUMNS // size_of(plan.bank)))
        # no background work after the last bank: the next tile's first matmuls would wait for it
        turns, turn = max(1, len(pieces) * len(spans) - 1), 0
        for piece in pieces:
            for span in spans:
                yield self.bank_of(item, x_sbuf, span, piece, results)
                for job in some_of(jobs, share(len(jobs), turns, turn)):
                    job()
                turn += 1
            if not plan.by_pixels:
                store_regions(y_hbm, results[0], result_regions(geometry, plan, item, piece))
        if plan.by_pixels:
            store_regions(y_hbm, results[0], result_regions(geometry, plan, item, (0, cn)))

    def bank_of(self, item, x_sbuf, span, piece, results):
        """A bank of sums of a span and some channels (first, count), as `run` takes it: a product for each of the
        blocks below each other; evacuated into a tile of results."""
        plan, (c, count), below, (height, width) = self.plan, piece, self.plan.below(item), self.plan.bank
        number = (item.chunk - self.items[0].chunk) // plan.together
        (matrices, bias_sbuf), qn, parts = self.matrices[number], span.columns[1], results[0].shape[0]
        c0 = item.channels[0] - self.rounds[number][0] + c
        acc_psum = nl.ndarray((parts, count, height, width), dtype=nl.float32, buffer=nl.psum)

        def products(_):
            down, on = plan.matrix_steps
            for channel, product, k in itertools.product(range(count), span.products, range(plan.depth)):
                (v, beside), q, places = product.windows, product.first, plan.rows_of_block(k) * plan.width
                b, end = v * below + k, (q + product.columns[1] - 1) * on + 1
                x = x_sbuf[0:places, 0:beside, b : b + item.below[1], 0 : item.images[1], c + channel]
                # the last k comes first
                own = (c0 + channel + 1) * plan.depth - 1 - k
                moving = matrices[0:places, own, 0 : plan.step : down, q * on : end : on]
                dst = acc_psum[:, channel, :, product.columns[0] : sum(product.columns)]
                yield dst, x, moving, product.adds or k > 0

        def leave():
            bias, (by_row, by_column) = bias_of(bias_sbuf, c0, (parts, count, plan.out_rows, qn)), plan.bank_steps
            y, residual = (None if one is None else results_of(plan, one, piece, span.columns) for one in results)
            acc = acc_psum[:, :, 0:height:by_row, 0 : (qn - 1) * by_column + 1 : by_column]
            evacuate(y, acc, bias, residual, self.options.epilogue, self.ledger)

        return products, 1, leave

    def load_pixels(self, index):
        """Start the loads of item number `index`'s blocks: a DMA for a row of all blocks of a window. A buffer keeps
        the zeros of an earlier item with zeros in the same places."""
        geometry, plan, item, tile_sbuf = self.geometry, self.plan, self.items[index], self.tile_of(index)
        (c0, cn), (n0, nn), rows, width = item.channels, item.images, geometry.rows, plan.width
        starts = [window.start for window in some_of(plan.windows, item.windows)]
        firsts = [item.below[0] * plan.apart + row - front_of(rows) for row in range(plan.rows)]
        # only the first rows of the last block are seen
        seen = [plan.below(item) - (row >= plan.rows_of_block(plan.depth - 1)) for row in range(plan.rows)]
        windows = [places_inside(start, 1, width, geometry.columns.size) for start in starts]
        lines = [places_inside(first, plan.apart, count, rows.size) for first, count in zip(firsts, seen)]
        clear_blocks(self.buffers[index % len(self.buffers)], tile_sbuf.shape, width, windows, lines)
        for v, start in enumerate(starts):
            for row, (first, (_, end)) in enumerate(zip(firsts, lines)):
                dst = tile_sbuf[row * width : (row + 1) * width, v, 0:end, 0:nn, 0:cn]
                counts = (cn, nn, end, width)
                load_x(dst, self.operands, geometry, (c0, n0, first, start), counts, "whnc", plan.apart)

    def planes_until(self, count):
        """Start the loads of planes of the first `count` items."""
        self.planes += [self.load_planes(item) for item in self.items[len(self.planes) : count]]

    def load_planes(self, item):
        """Start the loads of an item's planes, of as many images together as the partitions hold, into raws."""
        geometry, plan, (c0, cn), found = self.geometry, self.plan, item.channels, []
        _, height, width = plan.framed_shape(item)
        row, column = item.below[0] * plan.apart - front_of(geometry.rows), plan.windows[0].start
        rows = h, h_end = places_inside(row, 1, height, geometry.rows.size)
        columns = w, w_end = places_inside(column, 1, width, geometry.columns.size)
        for n, nn in cut_at(item.images[1], images_together(item)):
            raw_sbuf = next(self.raws)[0 : nn * cn, 0 : h_end - h, 0 : w_end - w]
            found.append(Planes((n, nn), rows, columns, (nn * cn, height, width), raw_sbuf))
            first, counts = (c0, item.images[0] + n, row + h, column + w), (cn, nn, h_end - h, w_end - w)
            load_x(raw_sbuf, self.operands, geometry, first, counts, "nchw")
        return found

    def frame_jobs(self, index):
        """Background work that puts zeros around planes of item number `index`, if it exists; starts the loads of the
        next item's."""
        if index >= len(self.items):
            return []
        self.planes_until(index + 2)
        return [partial(self.frame, planes) for planes in self.planes[index]]

    def frame(self, planes):
        """Copy planes between zeros."""
        dst = planes.frame(next(self.framed))
        if dst.shape[1] * dst.shape[2] > 0:
            copy_by_vector(dst, planes.raw, self.ledger)

    def transpose_jobs(self, index):
        """Background work that transposes the blocks of item number `index`, if it exists, a bank each."""
        if index >= len(self.items):
            return []
        item, plan, tile_sbuf = self.items[index], self.plan, self.tile_of(index)
        together = transposes_of_bank(images_together(item) * item.channels[1], self.geometry.itemsize)
        banks = cut(plan.below(item) * len(plan.windows), together)
        each = itertools.product(self.planes[index], banks)
        return [partial(self.transpose_bank, tile_sbuf, planes, item, bank) for planes, bank in each]

    def transpose_bank(self, tile_sbuf, planes, item, bank):
        """Transpose some blocks (first, count), [(j, w), (image, c)], into the tile of an item."""
        plan, (first, count), (n, nn), cn = self.plan, bank, planes.images, item.channels[1]
        parts, size, below = nn * cn, plan.size, plan.below(item)
        pitch = whole_words(parts, self.geometry.itemsize)
        sources = []
        for window, block in (divmod(first + slot, below) for slot in range(count)):
            row, start = block * plan.apart, plan.windows[window].start - plan.windows[0].start
            sources.append(planes.framed[:, row : row + plan.rows, start : start + plan.width])
        bank_psum = transposed_bank(sources, size, pitch)
        blocks = bank_psum.ap(pattern=[[count * pitch, size], [pitch, count], [cn, nn], [1, cn]], offset=0)
        copy_balanced(tile_sbuf[0:size, 0, first : first + count, n : n + nn, 0:cn], blocks, self.ledger)

    def start_results(self, item):
        """(tile of results, residual times beta or None) of an item."""
        operands, plan, columns, shape = self.operands, self.plan, self.geometry.columns.out, self.plan.y_shape(item)
        ragged = sum(item.below) * plan.out_rows > self.geometry.rows.out
        ragged = ragged or (plan.by_pixels and plan.columns * len(plan.windows) > columns)
        regions = result_regions(self.geometry, plan, item, (0, item.channels[1]))
        y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
        return y_sbuf, residual_of(operands, shape, regions, slice(None) if ragged else None)

    def load_taps(self, c0, cn):
        """Load the filters of some channels in memory order, tiles [c, 1, r, s] of at most 128 channels."""
        parts = cut_at(cn, nl.tile_size.pmax)
        return [load_depthwise(self.operands, self.geometry, c0 + first, count) for first, count in parts]

    def matrices_for(self, index):
        """Start the loads of the matrices of item number `index`, and of the next item's if there is a tile."""
        tiles = self.matrix_tiles
        for item in self.items[index : index + len(tiles)]:
            while len(self.matrices) <= (item.chunk - self.items[0].chunk) // self.plan.together:
                number = len(self.matrices)
                c0, cn = self.rounds[number]
                matrices = self.load_matrices(tiles[number % len(tiles)], c0 - self.rounds[0][0], cn)
                bias_sbuf = load_bias_rows(self.operands.bias, c0, cn)
                self.matrices.append((matrices, bias_sbuf))

    def lines_until(self, count):
        """Make the first `count` tiles of the filters' sequences."""
        self.lines += [self.line_of(w_sbuf) for w_sbuf in self.taps[len(self.lines) : count]]

    def line_of(self, w_sbuf):
        """The sequence of each channel reversed, in SBUF: zeros except at taps; step * pitch elements follow g[0]."""
        geometry, plan, cn, length = self.geometry, self.plan, w_sbuf.shape[0], self.plan.line_length
        R, S, down, on = geometry.rows.taps, geometry.columns.taps, geometry.rows.dilation, geometry.columns.dilation
        engines = itertools.cycle((nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd))
        line_sbuf = constant((cn, length), self.operands.w_dtype, 0.0)
        for (r, s), engine in zip(itertools.product(range(R), range(S)), engines):
            at, tap = length - 1 - (plan.step + r * down) * plan.pitch - s * on, r * S + s
            # taps before the first element see only zeros between pixels
            if at >= 0:
                r, s = divmod(R * S - 1 - tap if geometry.flipped else tap, S)
                nisa.tensor_copy(dst=line_sbuf[:, at : at + 1], src=w_sbuf[0:cn, 0, r, s : s + 1], engine=engine)
        return line_sbuf

    def load_matrices(self, tile_sbuf, at, cn):
        """Start the loads of `cn` channels' matrices, from channel `at` of `lines` on, into a tile [places, c, run];
        returns them as [places, (c, k reversed), rows, pitch]."""
        plan, P_MAX, length, run = self.plan, nl.tile_size.pmax, self.plan.line_length, self.plan.matrix_size
        self.lines_until((at + cn - 1) // P_MAX + 1)
        for place in range(plan.size):
            start, done = length - 1 - run - plan.place_of(place), 0
            while done < cn:
                line, first = divmod(at + done, P_MAX)
                count = min(cn - done, P_MAX - first)
                src = self.lines[line].ap(pattern=[[length, count], [1, 1], [1, run]], offset=first * length + start)
                copy(tile_sbuf[place : place + 1, done : done + count, 0:run], src)
                done += count
        return tile_sbuf[0 : plan.size, 0:cn, 0:run].reshape((plan.size, cn * plan.depth, plan.step, plan.pitch))


def clear_blocks(buffer, shape, width, windows, lines):
    """Write zeros to all pixels of windows, and of blocks below each other, that are not wholly in x: as words if words
    hold whole channels; GpSimd and Vector write half each."""
    _, _, below, images, cn = shape
    key = [shape, *windows, *lines]
    if buffer.zeros == key:
        return
    buffer.zeros, tile_sbuf, count = key, buffer.tile, cn
    if is_16bit(tile_sbuf.dtype) and tile_sbuf.shape[4] % 2 == 0 and cn % 2 == 0:
        tile_sbuf, count = tile_sbuf.view(nl.float32), cn // 2
    whole = [one == (0, width) for one in windows]
    padded = [b for b in range(below) if any(not first <= b < end for first, end in lines)]
    spots = [(v, 0, below) for v in range(len(windows)) if not whole[v]]
    spots += [(v, b, b + 1) for b in padded for v in range(len(windows)) if whole[v]]
    for v, b, end in spots:
        for c, c_end, engine in ((0, count // 2, nisa.engine.gpsimd), (count // 2, count, nisa.engine.vector)):
            if c < c_end:
                dst = tile_sbuf[:, v, b:end, 0:images, c:c_end]
                nisa.memset(dst=dst, value=0.0, engine=engine)


def results_of(plan, tile_sbuf, channels, columns):
    """[blocks, c, rows, columns] of a bank in a tile of results."""
    parts, (c, count), (q, qn) = tile_sbuf.shape[0], channels, columns
    if plan.by_pixels:
        return tile_sbuf[0:parts, 0 : plan.out_rows, 0:qn, c : c + count].permute((0, 3, 1, 2))
    return tile_sbuf[0:parts, c : c + count, 0 : plan.out_rows, q : q + qn]


def result_regions(geometry, plan, item, channels):
    """Regions of y, or of the residual, of some of an item's channels in a tile of results: of whole blocks, and of
    last blocks with fewer rows."""
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
