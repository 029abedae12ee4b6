"""Depthwise conv2d: load blocks of x, multiply each channel's by its Toeplitz matrices, store the results.

Blocks of NHWC are loaded as they are, each pixel a run of channels. For NCHW planes are loaded in memory order and
copied into zero padding, and the Tensor Engine transposes windows of them between the matmuls of earlier blocks. These
steps overlap.

With rows of taps `pitch` apart, as wide as a matrix's columns of a row of y, and blocks `step` rows apart, zeros among
them, the elements of the Toeplitz matrices of all taps are elements of a sequence,

    F[k][(j, w), (p, q)] = g[(k * step + j * lhs_dilation - p) * pitch + w * lhs_dilation + lead - q],
    g[r * dilation * pitch + s * dilation] = w[r, s].

The sequences are made in SBUF, a channel a partition. For NHWC, where DMA of x binds and a core has many channels, the
Tensor Engine makes the matrices: column (k, p, q) of all channels is the transpose of the places that a block reads of
their sequences. For NCHW, where it binds itself, a DMA from a copy of the sequences in HBM makes those of a K tile: a
partition reads a sequence in reverse from a place of its own, one run for a channel has all k, the last first.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...._nki import nisa, nl
from ....schedules.cuts import places_inside
from ....schedules.depthwise_blocks import FRAMED, LEAST_CHANNELS, RAWS, WARM_UP, front_of, images_together
from ....schedules.tiles import (
    BANK_COLUMNS,
    cut,
    cut_at,
    div_ceil,
    share,
    size_of,
    some_of,
    transposes_of_bank,
    whole_words,
)
from ..._dma import copy, load
from ..._engines import copy_balanced, copy_by_vector, is_16bit
from ..._epilogue import evacuate, load_bias_rows
from ..._prologue import load_x
from ..._warm import warm_up
from ..filter_feed import Buffer, clear_tile, tiles_in_turn, transpose_together, transposed_bank
from ..regions import around, load_depthwise, offset_at, residual_of, store_regions
from ..sums import along
from .loop import Core, bias_of


@dataclass
class Planes(nl.NKIObject):
    """Planes [(image, c), rows, columns] of some images (first, count) of an item: `raw` in memory order, `framed` in
    zeros, None at first; its shape; filled: first row, end, first column, end of x in it."""

    images: tuple
    shape: tuple
    filled: tuple
    raw: Any
    framed: Any = None


class BlockCore(Core):
    """The loop of a core over output tiles of blocks.

    items: all of the core's; buffers: of x by blocks; taps: filters in memory order and zeros for their sequences,
    lines: their sequences, of at most 128 channels each, and of NCHW in HBM; matrices: (matrices, biases) of each K
    tile that was begun; planes: Planes of each item whose load has started, into raws.
    """

    def tiles(self, items):
        """Output tiles of items, as `run` takes them."""
        plan, operands, self.items = self.plan, self.operands, items
        shape = tuple(map(max, zip(*map(plan.x_shape, items))))
        self.buffers = [Buffer(one) for one in tiles_in_turn(plan.rotating, shape, operands.x_dtype)]
        self.chunks, (count, channels) = plan.chunks[items[0].chunk : items[-1].chunk + 1], plan.matrix_tiles
        self.matrix_tiles = tiles_in_turn(count, (shape[0], *plan.matrices_shape(channels)), operands.w_dtype)
        self.taps, self.lines, self.matrices = [self.load_taps(*part) for part in plan.lines(self.chunks)], [], []
        warm_up(self.zeros_sbuf, WARM_UP, 1)
        if not plan.by_pixels:
            lines = sum(cn for _, cn in self.chunks), plan.line_length
            self.lines_hbm = nl.ndarray(lines, dtype=operands.w_dtype, buffer=nl.private_hbm)
            self.start_planes()
        for index, item in enumerate(items):
            yield from self.item_tiles(index, item, self.load_ahead(index) + self.matrices_for(index))

    def start_planes(self):
        """Load the first planes and matrices, and transpose blocks of all items but one that the buffers hold."""
        plan, items, x_dtype, buffers = self.plan, self.items, self.operands.x_dtype, len(self.buffers)
        parts, height, width = map(max, zip(*map(plan.framed_shape, items)))
        groups = max(div_ceil(item.images[1], images_together(item)) for item in items)
        raw_shape = parts, height, self.geometry.columns.size
        self.raws = itertools.cycle(tiles_in_turn(RAWS * groups, raw_shape, x_dtype))
        framed = tiles_in_turn(FRAMED * groups, (parts, height, width), x_dtype)
        self.framed, self.planes = itertools.cycle(map(Buffer, framed)), []
        self.planes_until(1)
        self.matrices_for(0)
        for number in range(buffers):
            jobs = self.frame_jobs(number) + (self.transpose_jobs(number) if number + 1 < buffers else [])
            for job in jobs:
                job()
        self.lines_until(len(self.taps))

    def load_ahead(self, index):
        """Start the loads of the last item that the buffers hold during item number `index`; during the first item, of
        all that they hold. For NCHW return background work that transposes its blocks and puts zeros around the next
        one's planes."""
        last = index + len(self.buffers) - 1
        if not self.plan.by_pixels:
            return self.frame_jobs(last + 1) + self.transpose_jobs(last)
        for number in range(last if index > 0 else 0, min(last + 1, len(self.items))):
            self.load_pixels(number)
        return []

    def tile_of(self, index):
        """The tile of blocks of item number `index`, [pixels, beside, below, images, channels]."""
        tile_sbuf = self.buffers[index % len(self.buffers)].tile
        return tile_sbuf[tuple(slice(0, extent) for extent in self.plan.x_shape(self.items[index]))]

    def item_tiles(self, index, item, jobs):
        """All channels of item number `index`, bank by bank, with background work (`jobs`) between banks; stores the
        results."""
        plan, cn = self.plan, item.channels[1]
        x_sbuf, results = self.tile_of(index), self.start_results(item)
        spans, pieces = plan.spans, cut_at(cn, max(1, BANK_COLUMNS // size_of(plan.bank)))
        banks = list(itertools.product(pieces, spans))
        for turn, (piece, span) in enumerate(banks):
            yield self.bank_of(item, x_sbuf, span, piece, results)
            # no background work after the last bank: the next tile's first matmuls would wait for it
            for job in some_of(jobs, share(len(jobs), max(1, len(banks) - 1), turn)):
                job()
            if turn + 1 == len(banks) or (span == spans[-1] and not plan.by_pixels):
                stored = (0, cn) if plan.by_pixels else piece
                store_regions(self.operands.y, results[0], result_regions(self.geometry, plan, item, stored))

    def bank_of(self, item, x_sbuf, span, piece, results):
        """A bank of sums of a span and some channels (first, count), as `run` takes it: a product for each of the
        blocks below each other; evacuated into a tile of results."""
        plan, (c, count), below, (height, width) = self.plan, piece, self.plan.below(item), self.plan.bank
        number, (q, qn), parts = self.number_of(item), span.columns, results[0].shape[0]
        (matrices, bias_sbuf), down, on = self.matrices[number], self.geometry.rows.stride, self.geometry.columns.stride
        c0 = item.channels[0] - self.chunks[number][0] + c
        acc_psum = nl.ndarray((parts, count, height, width), dtype=nl.float32, buffer=nl.psum)

        def products(_):
            for channel, product, k in itertools.product(range(count), span.products, range(plan.depth)):
                places, b = plan.rows_of_block(k) * plan.width, product.window * below + k
                x = x_sbuf[0:places, :, b : b + item.below[1], :, c + channel]
                if plan.by_pixels:
                    moving = matrices[0:places, k * plan.sums : k * plan.sums + width, c0 + channel]
                else:
                    taken = along(product.first * on, product.columns[1], on)
                    moving = matrices[0:places, c0 + channel, 0 : plan.settings.rows : down, taken]
                dst = acc_psum[:, channel, :, product.columns[0] : sum(product.columns)]
                yield dst, x, moving, product.window % 2 + k > 0

        def leave():
            bias, acc = bias_of(bias_sbuf, c0, (parts, count, plan.out_rows, qn)), acc_psum[:, :, :, 0:qn]
            y_sbuf, residual = results
            if plan.by_pixels:
                acc = acc_psum[:, :, 0, 0 : plan.sums].reshape((parts, count, plan.out_rows, qn))
                y_sbuf, residual = (None if one is None else one.permute((0, 3, 1, 2)) for one in results)
            own = slice(None), slice(c, c + count), slice(None), slice(q, q + qn)
            y, residual = y_sbuf[own], None if residual is None else residual[own]
            evacuate(y, acc, bias, residual, self.options.epilogue, self.ledger)

        return products, leave

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
        for (v, start), (row, first) in itertools.product(enumerate(starts), enumerate(firsts)):
            end = lines[row][1]
            dst = tile_sbuf[row * width : (row + 1) * width, v, 0:end, 0:nn, 0:cn]
            load_x(dst, self.operands, geometry, (c0, n0, first, start), (cn, nn, end, width), "whnc", plan.apart)

    def planes_until(self, count):
        """Start the loads of planes of the first `count` items."""
        self.planes += [self.load_planes(item) for item in self.items[len(self.planes) : count]]

    def load_planes(self, item):
        """Start the loads of an item's planes, of as many images together as the partitions hold, into raws."""
        geometry, plan, (c0, cn), found = self.geometry, self.plan, item.channels, []
        _, height, width = plan.framed_shape(item)
        row, column = item.below[0] * plan.apart - front_of(geometry.rows), plan.windows[0].start
        h, h_end = places_inside(row, 1, height, geometry.rows.size)
        w, w_end = places_inside(column, 1, width, geometry.columns.size)
        for n, nn in cut_at(item.images[1], images_together(item)):
            raw_sbuf = next(self.raws)[0 : nn * cn, 0 : h_end - h, 0 : w_end - w]
            found.append(Planes((n, nn), (nn * cn, height, width), (h, h_end, w, w_end), raw_sbuf))
            first, counts = (c0, item.images[0] + n, row + h, column + w), (cn, nn, h_end - h, w_end - w)
            load_x(raw_sbuf, self.operands, geometry, first, counts, "nchw")
        return found

    def frame_jobs(self, index):
        """Background work that puts zeros around planes of item number `index`, if it exists; starts the loads of the
        next item's."""
        self.planes_until(index + 2)
        return [partial(self.frame, planes) for some in self.planes[index : index + 1] for planes in some]

    def frame(self, planes):
        """Copy planes between zeros; a buffer keeps those of earlier planes with zeros in the same places."""
        buffer, (parts, height, width), (h, h_end, w, w_end) = next(self.framed), planes.shape, planes.filled
        planes.framed, key = buffer.tile[0:parts, 0:height, 0:width], (planes.shape, planes.filled)
        if buffer.zeros != key:
            buffer.zeros = key
            for a, b, c, d in around(height, width, planes.filled):
                nisa.memset(dst=planes.framed[:, a:b, c:d], value=0.0, engine=nisa.engine.gpsimd)
        if h < h_end and w < w_end:
            copy_by_vector(planes.framed[:, h:h_end, w:w_end], planes.raw, self.ledger)

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
        ragged = plan.by_pixels and plan.columns * len(plan.windows) > columns
        ragged = ragged or sum(item.below) * plan.out_rows > self.geometry.rows.out
        regions = result_regions(self.geometry, plan, item, (0, item.channels[1]))
        y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
        return y_sbuf, residual_of(operands, shape, regions, slice(None) if ragged else None)

    def load_taps(self, c0, cn):
        """Filters of at most 128 channels in memory order, [c, 1, r, s], whose loads are started, and zeros for their
        sequences."""
        # transposes of fewer partitions would not keep the Tensor Engine at its full rate
        parts = max(cn, LEAST_CHANNELS) if self.plan.by_pixels else cn
        line_sbuf = nl.ndarray((parts, self.plan.line_length), dtype=self.operands.w_dtype, buffer=nl.sbuf)
        clear_tile(line_sbuf, self.geometry.itemsize, nisa.engine.gpsimd)
        return load_depthwise(self.operands, self.geometry, c0, cn), line_sbuf

    def matrices_for(self, index):
        """Start the loads of the matrices of item number `index`, and of the next item's if there is a tile; of NHWC
        make these, and return background work that makes the next item's."""
        ahead = min(index + len(self.matrix_tiles), len(self.items)) - 1
        for job in self.next_matrices(index):
            job()
        return self.next_matrices(ahead)

    def number_of(self, item):
        """The number of an item's K tile among the core's."""
        return item.chunk - self.items[0].chunk

    def next_matrices(self, index):
        """Start the loads of the matrices of item number `index`, or return background work that makes them; if that
        was done before, do nothing."""
        number, tiles, plan, jobs = len(self.matrices), self.matrix_tiles, self.plan, []
        if number > self.number_of(self.items[index]):
            return jobs
        (c0, cn), tile_sbuf = self.chunks[number], tiles[number % len(tiles)]
        if plan.by_pixels:
            matrices, jobs = tile_sbuf[0 : plan.size], self.matrix_jobs(tile_sbuf, cn)
            if number < len(tiles) and plan.bank[1] > plan.sums:  # matmuls read columns after the last matrix
                nisa.memset(dst=matrices[:, plan.matrix_size :], value=0.0, engine=nisa.engine.vector)
        else:
            matrices = self.load_matrices(tile_sbuf, c0 - self.chunks[0][0], cn)
        self.matrices.append((matrices, load_bias_rows(self.operands.bias, c0, cn)))
        return jobs

    def lines_until(self, count):
        """Make the first `count` tiles of the filters' sequences, and write those of NCHW to HBM."""
        for tap in self.taps[len(self.lines) : count]:
            done, line_sbuf = len(self.lines) * nl.tile_size.pmax, self.line_of(*tap)
            self.lines.append(line_sbuf)
            if not self.plan.by_pixels:
                copy(self.lines_hbm[done : done + line_sbuf.shape[0]], line_sbuf)

    def line_of(self, w_sbuf, line_sbuf):
        """The sequence of each channel in zeros, reversed for NCHW: step * pitch elements precede the first tap, or
        follow it. Taps of a row in the same order are copied together."""
        geometry, plan, length = self.geometry, self.plan, self.plan.line_length
        rows, columns, flipped, forwards = geometry.rows, geometry.columns, geometry.flipped, plan.by_pixels
        engines = itertools.cycle((nisa.engine.vector, nisa.engine.scalar))
        R, S, on = rows.taps, columns.taps, columns.dilation
        together = S if flipped != forwards else 1
        for (r, s), engine in zip(itertools.product(range(R), range(0, S, together)), engines):
            at = (plan.settings.rows + r * rows.dilation) * plan.pitch + s * on
            # taps beyond the last element see only zeros between pixels
            count = min(together, div_ceil(length - at, on))
            if count > 0:
                first = at if forwards else length - 1 - at - (count - 1) * on
                r, s = (R - 1 - r, S - s - count) if flipped else (r, s)
                dst, src = along(first, count, on), along(s, count)
                nisa.tensor_copy(dst=line_sbuf[0 : w_sbuf.shape[0], dst], src=w_sbuf[:, 0, r, src], engine=engine)
        return line_sbuf

    def load_matrices(self, tile_sbuf, at, cn):
        """Start the load of `cn` channels' matrices, from channel `at` of `lines` on, into a tile [places, c, run];
        returns them as [places, c, rows, pitch]."""
        plan, length, run = self.plan, self.plan.line_length, self.plan.matrix_size
        self.lines_until((at + cn - 1) // nl.tile_size.pmax + 1)
        rows, columns = self.geometry.rows.lhs_dilation * plan.pitch, self.geometry.columns.lhs_dilation
        pattern = [[-rows, plan.rows], [-columns, plan.width], [length, cn], [1, run]]
        matrices = tile_sbuf[0 : plan.size, 0:cn, 0:run]
        load(matrices, self.lines_hbm, pattern, (at + 1) * length - 1 - run - plan.place_of(0))
        return matrices.reshape((plan.size, cn, plan.settings.rows, plan.pitch))

    def matrix_jobs(self, tile_sbuf, cn):
        """Background work that makes the matrices of the next `cn` channels in a tile [places, column, c], a bank
        each."""
        P_MAX, found, first = nl.tile_size.pmax, [], len(self.lines)
        self.lines_until(first + div_ceil(cn, P_MAX))
        for line_sbuf, (c, count) in zip(self.lines[first:], cut_at(cn, P_MAX)):
            together = transposes_of_bank(line_sbuf.shape[0], self.geometry.itemsize)
            for column, columns in cut_at(self.plan.matrix_size, together):
                dst = tile_sbuf[0 : self.plan.size, column : column + columns, c : c + count]
                found.append(partial(self.matrix_bank, dst, line_sbuf, column))
        return found

    def matrix_bank(self, dst, line_sbuf, column):
        """Make columns [places, column, c] of matrices, from one on, of a tile of sequences."""
        plan, rows, columns = self.plan, self.geometry.rows, self.geometry.columns
        places = [[rows.lhs_dilation * plan.pitch, plan.rows], [columns.lhs_dilation, plan.width]]
        pattern = [[plan.line_length, line_sbuf.shape[0]], *places]
        starts = [plan.place_of_column(column + index) for index in range(dst.shape[1])]
        sources = [line_sbuf.ap(pattern=pattern, offset=start) for start in starts]
        transpose_together(dst, sources, self.geometry.itemsize, self.ledger)


def clear_blocks(buffer, shape, width, windows, lines):
    """Write zeros to all pixels of windows, and of blocks below each other, that are not wholly in x: as words if words
    hold whole channels; GpSimd writes a quarter, Vector the rest."""
    _, _, below, images, cn = shape
    key = [shape, *windows, *lines]
    if buffer.zeros == key:
        return
    buffer.zeros, tile_sbuf, count = key, buffer.tile, cn
    if is_16bit(tile_sbuf.dtype) and tile_sbuf.shape[4] % 2 == 0 and cn % 2 == 0:
        tile_sbuf, count = tile_sbuf.view(nl.float32), cn // 2
    padded = [b for b in range(below) if any(not first <= b < end for first, end in lines)]
    spots = [(v, 0, below) for v, one in enumerate(windows) if one != (0, width)]
    spots += [(v, b, b + 1) for b in padded for v, one in enumerate(windows) if one == (0, width)]
    parts = (0, count // 4, nisa.engine.gpsimd), (count // 4, count, nisa.engine.vector)
    for (v, b, end), (c, c_end, engine) in itertools.product(spots, parts):
        if c < c_end:
            nisa.memset(dst=tile_sbuf[:, v, b:end, 0:images, c:c_end], value=0.0, engine=engine)


def result_regions(geometry, plan, item, channels):
    """Regions of y, or of the residual, of some of an item's channels in a tile of results: of whole blocks, and of
    last blocks with fewer rows."""
    strides, P, height = geometry.y_strides, geometry.rows.out, plan.out_rows
    (c, cn), (n, nn), (b0, bn), found = channels, item.images, item.below, []
    c0, whole, windows = item.channels[0] + c, min(bn, P // height - b0), [(0, geometry.columns.out)]
    if plan.by_pixels:
        windows = [(window.q, window.qn) for window in some_of(plan.windows, item.windows)]
    for first, count, pn in ((0, whole, height), (whole, bn - whole, P % height)):
        if count <= 0 or pn <= 0:
            continue
        row, blocks = (b0 + first) * height, [[height * strides[2], count], [strides[1], nn]]
        for v, (q, qn) in enumerate(windows):
            place, inner = (c, 0, 0), [[strides[0], cn], [strides[2], pn], [strides[3], qn]]
            if plan.by_pixels:
                place, inner = (0, 0, c), [*inner[1:], inner[0]]
            place = (v * bn + first) * nn, *place
            found.append((place, blocks + inner, offset_at(strides, (c0, n, row, q))))
    return found
