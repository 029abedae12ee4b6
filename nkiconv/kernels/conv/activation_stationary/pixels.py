"""y as NHWC: load windows of x of an output tile, store rows of pixels.

The first banks of a weight-resident group, one bank if there are several taps, take the filters K tile by K tile as
these arrive and are transposed; later output is computed bank by bank. Every sum adds K tiles and taps in the same
order.
"""

from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from typing import Any

from ...._nki import nisa, nl
from ....schedules.geometry import is_transposed
from ....schedules.pixel_tiles import (
    Block,
    adds_bias_by_ones,
    blocks_of,
    inside,
    load_parts,
    pixels_of,
    place_in,
    rows_inside,
    sees_x,
    window_shape,
)
from ....schedules.tiles import BANK_COLUMNS, cut, cut_at, div_ceil, size_of
from ..._dma import load
from ..._epilogue import BIAS_PARTS, bias_in_parts
from ..._masks import constant
from ..._prologue import load_x
from ..._warm import warm_up
from ..regions import around, clear_window, offset_at, residual_of, store_regions
from ..sums import spaced
from .filters import Filters
from .loop import Core


@dataclass
class Bank(nl.NKIObject):
    """Sums [pixels, tile, k] of tiles t0 .. t0+tn-1 of a block, output channels k0 .. k0+kn-1 from the group's first;
    taps: the taps at which each tile sees x; part: of patches, output channels and rows of taps."""

    block: Block
    t0: int
    tn: int
    k0: int
    kn: int
    psum: object = None
    taps: object = None
    part: object = None

    def of(self, tile_sbuf, fold, side):
        """The bank's part [pixels, tile, row, k] of its block's tile [pixels, (row, side, K)]; None for None."""
        if tile_sbuf is None:
            return None
        columns = size_of(tile_sbuf.shape[1:]) // (fold * side)
        t, k = slice(self.t0, self.t0 + self.tn), slice(self.k0, min(self.k0 + self.kn, columns))
        return tile_sbuf.reshape((tile_sbuf.shape[0], fold, side, columns))[:, :, t, k].permute((0, 2, 1, 3))


class PixelCore(Core):
    """The loop of a core over output tiles of pixels; leaving: tiles [pixels, (row, side, K)] of results, of the
    residual and of a norm's input, for the block whose banks are being evacuated."""

    leaving: Any = None
    bias_parts: Any = None
    ones_sbuf: Any = None

    def __init__(self, *given):
        super().__init__(*given)
        self.turns = {}
        if adds_bias_by_ones(self.geometry, self.options, self.plan):
            self.ones_sbuf = constant((BIAS_PARTS, nl.tile_size.pmax), nl.bfloat16, 1.0)

    def load_bias(self, k0, kn, fold=1):
        """As Core's; or in parts, for matmuls with ones."""
        if self.ones_sbuf is None:
            super().load_bias(k0, kn, fold)
            return
        bias_sbuf = nl.ndarray((1, fold * kn), dtype=nl.float32, buffer=nl.sbuf)
        load(bias_sbuf, self.operands.bias, [[0, 1], [0, fold], [1, kn]], k0)
        self.bias_parts = bias_in_parts(bias_sbuf)

    def tiles(self, items):
        """Output tiles of items; x of the next one is loaded before one is computed."""
        plan, now, batch = self.plan, None, -1
        warm_up(self.zeros_sbuf, plan.warmup, 1)
        for index, item in enumerate(items):
            (k0, kn), fresh, batch = plan.batches[item.batch], item.batch != batch, item.batch
            if fresh:
                self.filters = Filters(self, k0, kn)
                if self.filters.to_fold and not is_transposed(self.geometry):  # DMA places them, and may load x later
                    self.filters.complete(0, kn)
            first = self.load_out_tile(item.out_tile, True) if index == 0 else None
            if fresh:
                self.load_bias(k0, kn, plan.source.fold)
            after, later = items[min(index + 1, len(items) - 1)].out_tile, None
            if after != item.out_tile:
                later = self.load_out_tile(after, False)
            now = now if first is None else self.arrived(item.out_tile, first)
            banks = self.banks_of(item, kn * plan.source.fold)
            together = min(len(banks), plan.banks if fresh else 1)
            for some in [banks[:together], *([bank] for bank in banks[together:])]:
                if later is not None and some[-1] is banks[-1]:
                    later = self.arrived(after, later)
                yield self.sums_of(item, now, some)
            now = now if later is None else later

    def load_out_tile(self, out_tile, start):
        """Load x of an output tile, the windows of its K tiles. start: it is the first: the first block's x and the
        filters of each K tile come first, then the rest."""
        plan, windows = self.plan, []
        for source, some in groupby(zip(plan.sources, plan.k_tiles), key=itemgetter(0)):
            windows += self.new_windows(source, [k_tile for _, k_tile in some], out_tile)
        every = [load_parts(self.geometry, plan, source, out_tile, start) for source in plan.sources]
        for index, parts in enumerate(zip(*every)):
            for k_tile, part in enumerate(parts):
                self.load_part(out_tile, windows[k_tile], k_tile, *part)
                if start and index == 0:
                    self.filters.load(k_tile)
        return windows

    def arrived(self, out_tile, windows):
        """The windows of K tiles of x as `load_out_tile` loaded it: before an output tile's last bank those of the
        next."""
        return windows

    def new_windows(self, source, k_tiles, out_tile):
        """Windows [c, planes, rows, columns] of K tiles, side by side, with only the zeros of loads written."""
        planes, rows, columns = window_shape(source, out_tile)
        parts = max(k_tile[0].count for k_tile in k_tiles) * source.copies
        x_sbuf = nl.ndarray((parts, len(k_tiles) * planes, rows, columns), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        _, dn, before, _ = inside(source.planes, out_tile.z0, out_tile.zn)
        by_plane = x_sbuf.reshape((parts, len(k_tiles), planes, rows * columns))
        for first, end in ((0, before), (before + dn, planes)):
            clear_window(by_plane, first, end, 0, rows * columns, nisa.engine.vector)
        _, wn, left, w_step = inside(source.columns, out_tile.q0, out_tile.qn, source.dense)
        top, end = 0, rows if w_step == 1 else 0
        right = left + wn - (source.shifts - 1) * source.columns.dilation
        for slot in range(source.slots):
            _, hn, first, h_step = rows_inside(source, out_tile.p0, out_tile.pn, slot)
            top, end = max(top, first), min(end, first + hn if h_step == 1 else 0)
        for h0, h1, w0, w1 in around(rows, columns, (top, end, left, right)):
            clear_window(x_sbuf, h0, h1, w0, w1, nisa.engine.vector)
        return [x_sbuf[:, first : first + planes] for first in range(0, len(k_tiles) * planes, planes)]

    def load_part(self, out_tile, x_sbuf, k_tile, first_plane, planes, start, count):
        """Load a part of a K tile's window: planes, and `count` rows from `start` on."""
        source, own = self.plan.sources[k_tile], self.plan.k_tiles[k_tile][0]
        d0, num_planes, before, _ = inside(source.planes, out_tile.z0, out_tile.zn)
        n = max(first_plane, before)
        nn = max(0, min(first_plane + planes, before + num_planes) - n)
        w0, wn, left, w_step = inside(source.columns, out_tile.q0, out_tile.qn, source.dense)
        for shift, slot in product(range(source.shifts), range(source.slots)):
            h0, hn, top, h_step = rows_inside(source, out_tile.p0, out_tile.pn, slot)
            moved = shift * source.columns.dilation
            hidden = max(0, moved - left)
            skip, end = (div_ceil(max(0, place - top), h_step) for place in (start, start + count))
            hn, part = min(hn, end) - skip, (shift * source.slots + slot) * own.count
            if hn <= 0 or nn <= 0 or wn <= hidden:
                continue
            rows, columns = (top + skip * h_step, hn, h_step), (max(0, left - moved), wn - hidden, w_step)
            dst = spaced(x_sbuf, (part, own.count), (n, nn, 1), rows, columns)
            row = (h0 + skip) * source.step + (slot - source.rows.before if source.slots > 1 else 0)
            first = (own.c0, d0 + n - before, row, w0 + hidden)
            load_x(dst, self.operands, self.geometry, first, row_step=source.step, ledger=self.ledger, row=part)

    def banks_of(self, item, columns):
        """Banks of an item with `columns` columns of filters, in the order that they are computed."""
        plan, parts = self.plan, cut(columns, self.plan.most_k)
        groups = cut_at(plan.sizes.side, max(1, BANK_COLUMNS // parts[-1][1]))
        blocks = blocks_of(plan.sizes, item.out_tile)
        return [Bank(block, *group, *part) for block in blocks for group in groups for part in parts]

    def sums_of(self, item, windows, banks):
        """Some banks that take the filters together, as `run` takes them."""
        out_tile = item.out_tile
        for bank in banks:
            shape = (pixels_of(bank.block), bank.tn, bank.kn)
            bank.psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
            bank.taps = [self.taps_seen(out_tile, bank.block, bank.t0 + tile) for tile in range(bank.tn)]
            for tile in range(bank.tn):
                if len(bank.taps[tile]) == 0 and self.ones_sbuf is None:
                    zeros = bank.psum[:, tile]
                    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)

        def products(k_tile):
            self.filters.complete(k_tile, max(bank.k0 + bank.kn for bank in banks))
            filters, source = self.filters.tiles[k_tile], self.plan.sources[k_tile]
            for tap in range(source.taps):
                for bank in banks:
                    moving = self.moving_of(filters[:, tap], bank)
                    for tile, seen in enumerate(bank.taps):
                        if tap in seen or source is self.plan.rest:
                            x = self.pixels_at(out_tile, windows[k_tile], bank, tile, k_tile, tap)
                            dst = bank.psum[:, tile]
                            yield dst, x, moving, k_tile > 0 or tap != seen[0]
            if self.ones_sbuf is not None and k_tile + 1 == len(self.plan.k_tiles):
                for bank in banks:
                    ones, parts = self.ones_sbuf[:, 0 : bank.psum.shape[0]], self.bias_parts
                    for tile in range(bank.tn):
                        adds = len(bank.taps[tile]) > 0
                        yield bank.psum[:, tile], ones, parts[:, bank.k0 : bank.k0 + bank.kn], adds

        def leave():
            for bank in banks:
                self.evacuate_bank(item, bank)

        return products, leave

    def moving_of(self, filters, bank):
        """A bank's filters of one tap."""
        return filters[:, bank.k0 : bank.k0 + bank.kn]

    def taps_seen(self, out_tile, block, tile):
        """Taps at which the pixels of a block's tile do not see zeros between elements of x."""
        source, rows, columns = self.plan.source, self.plan.source.rows, self.plan.source.columns
        if rows.lhs_dilation * columns.lhs_dilation == 1:
            return range(source.taps)
        down = [sees_x(rows, out_tile.p0 + block.p, block.apart, r) for r in range(source.down)]
        on = [sees_x(columns, out_tile.q0 + tile, self.plan.sizes.side, s) for s in range(columns.taps)]
        return [tap for tap in range(source.taps) if down[tap // columns.taps % source.down] and on[tap % columns.taps]]

    def pixels_at(self, out_tile, x_sbuf, bank, tile, k_tile, tap):
        """The stationary of a tile: its pixels at a tap."""
        source, block = self.plan.sources[k_tile], bank.block
        planes, rows, columns, dense = source.planes, source.rows, source.columns, source.dense
        row, s = tap // source.across, tap % source.across * source.shifts
        t, r = divmod(row, source.down)
        d = block.z * planes.stride + t * planes.dilation
        h = place_in(rows, out_tile.p0, out_tile.p0 + block.p, r, dense)
        w = place_in(columns, out_tile.q0, out_tile.q0 + bank.t0 + tile, s, dense)
        by_row, by_column = block.apart * rows.stride, self.plan.sizes.side * columns.stride
        if dense:
            by_row, by_column = by_row // rows.lhs_dilation, by_column // columns.lhs_dilation
        every = (d, block.zn, planes.stride), (h, block.pn, by_row), (w, block.units, by_column)
        return spaced(x_sbuf, (0, self.plan.k_tiles[k_tile][0].count * source.copies), *every)

    def evacuate_bank(self, item, bank):
        """Evacuate a bank into its block's results; after the last bank of a block store them."""
        operands, side, regions = self.operands, self.plan.sizes.side, [self.region_of(item, bank.block)]
        fold, columns = self.plan.source.fold, self.plan.batches[item.batch][1]
        if self.leaving is None:
            shape = (pixels_of(bank.block), *([side, columns] if fold == 1 else [fold, side * columns]))
            y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
            residual_sbuf, kept_sbuf = residual_of(operands, shape, regions, turns=self.turns), None
            if operands.kept is not None:
                kept_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
            self.leaving = y_sbuf, residual_sbuf, kept_sbuf
        y, residual, kept = (bank.of(one, fold, side) for one in self.leaving)
        self.evacuate_pixels(y, bank.psum.reshape(y.shape), bank.k0, residual, kept)
        if bank.t0 + bank.tn == side and bank.k0 + bank.kn == fold * columns:
            store_regions(operands.y, self.leaving[0], regions)
            if operands.kept is not None:
                store_regions(operands.kept, self.leaving[2], regions)
            self.leaving = None

    def region_of(self, item, block):
        """The region of a block's tile [pixels, side, K], or with several folded rows of y [pixels, row, (side, K)]: a
        group has all output channels then, so that neighbours of a row are one run."""
        plan, out_tile, (k0, kn) = self.plan, item.out_tile, self.plan.batches[item.batch]
        side, fold = plan.sizes.side, plan.source.fold
        by_k, by_n, by_p, by_q, *_ = strides = self.geometry.y_strides
        pattern = [[by_n, block.zn], [fold * block.apart * by_p, block.pn], [side * by_q, block.units]]
        # of one output channel, by_k may be any number
        pattern += [[by_q, side], [by_k, kn]] if fold == 1 else [[by_p, fold], [by_q // kn, side * kn]]
        first = k0, out_tile.z0 + block.z, (out_tile.p0 + block.p) * fold, out_tile.q0
        return (0, 0, 0), pattern, offset_at(strides, first)
