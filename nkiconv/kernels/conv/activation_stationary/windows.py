"""Windows that do not overlap: loaded with pixels of y on the partitions, transposed by the Tensor Engine.

x of a block is [pixels, row of taps, (column of taps, c)] as loaded, and [(row, column of taps), K tile, pixels] as
stationaries; filters are [(row, column of taps), K tile, k].
"""

from ...._nki import nl
from ....schedules.pixel_tiles import blocks_of, pixels_of
from ....schedules.tiles import P_MAX, cut
from ..._dma import load
from ..._warm import warm_up
from ..filter_feed import transpose_together
from ..regions import load_as_stored, offset_at
from .pixels import Bank, PixelCore


class WindowCore(PixelCore):
    """The loop of a core over blocks of pixels; weights: filters of the batch; waiting: its filters as loaded, with
    (first, count) of output channels, that are to be transposed."""

    def tiles(self, items):
        """Banks of items; windows of the next one are loaded before one is computed, and transposed before its last
        bank is."""
        batch, now, x_sbuf = -1, None, None
        warm_up(self.zeros_sbuf, self.plan.warmup, 1)
        for index, item in enumerate(items):
            (k0, kn), fresh, batch = self.plan.batches[item.batch], item.batch != batch, item.batch
            now = self.load_windows(item) if now is None else now
            if fresh:
                self.load_weights(k0, kn)
                self.load_bias(k0, kn)
            after = self.load_windows(items[index + 1]) if index + 1 < len(items) else None
            x_sbuf = self.transpose_windows(now) if x_sbuf is None else x_sbuf
            block, after_sbuf = blocks_of(self.plan.sizes, item.out_tile)[0], None
            parts = cut(kn, self.plan.most_k)
            for part in parts:
                self.transpose_weights(sum(part))
                if part == parts[-1] and after is not None:
                    after_sbuf = self.transpose_windows(after)
                yield self.sums_of_bank(item, x_sbuf, Bank(block, 0, 1, *part))
            now, x_sbuf = after, after_sbuf

    def load_windows(self, item):
        """Load the windows of a block, a row of taps as one run."""
        geometry, out_tile = self.geometry, item.out_tile
        block, (rows, columns) = blocks_of(self.plan.sizes, out_tile)[0], (geometry.rows, geometry.columns)
        run = columns.taps * geometry.C
        x_sbuf = nl.ndarray((pixels_of(block), rows.taps, run), dtype=self.operands.x_dtype, buffer=nl.sbuf)
        _, by_n, by_h, by_w = geometry.x_strides
        pattern = [[by_n, block.zn], [rows.stride * by_h, block.pn], [columns.stride * by_w, block.units]]
        first = out_tile.p0 * rows.stride - rows.before, out_tile.q0 * columns.stride - columns.before
        offset = offset_at(geometry.x_strides, (0, out_tile.z0, *first))
        load(x_sbuf, self.operands.x, [*pattern, [by_h, rows.taps], [1, run]], offset)
        return x_sbuf

    def transpose_windows(self, raw_sbuf):
        """The stationaries of a block's windows as loaded."""
        positions, rows, run = raw_sbuf.shape
        taps_sbuf = raw_sbuf.reshape((positions, rows, run // self.geometry.C, self.geometry.C))
        x_sbuf = self.new_tiles(positions, raw_sbuf.dtype)
        self.transpose_views(x_sbuf, [taps_sbuf[:, one.r0 : one.r0 + one.rn, :, one.c] for one in self.plan.tiles])
        return x_sbuf

    def new_tiles(self, width, dtype):
        """A tile [(row, column of taps), K tile, width]."""
        tiles, S = self.plan.tiles, self.geometry.columns.taps
        return nl.ndarray((max(one.rn for one in tiles) * S, len(tiles), width), dtype=dtype, buffer=nl.sbuf)

    def transpose_views(self, dst_sbuf, views):
        """Transpose a view [w, row, column of taps] of each K tile into [(row, column of taps), K tile, w]."""
        for index, view in enumerate(views):
            into = dst_sbuf[0 : view.shape[1] * view.shape[2], index : index + 1]
            transpose_together(into, [view], self.geometry.itemsize, self.ledger)

    def load_weights(self, k0, kn):
        """Load filters of output channels: to their places if these are neighbours in HBM, else in memory order."""
        geometry, (by_k, _, by_r, by_s) = self.geometry, self.geometry.w_strides
        self.weights, self.waiting = self.new_tiles(kn, self.operands.w_dtype), []
        if self.plan.way == "copy":
            for index, one in enumerate(self.plan.tiles):
                into = self.weights[0 : one.rn * geometry.columns.taps, index : index + 1]
                pattern = [[by_r, one.rn], [by_s, geometry.columns.taps], [1, 1], [by_k, kn]]
                load(into, self.operands.w, pattern, offset_at(geometry.w_strides, (k0, one.c, one.r0, 0)))
            return
        for part in cut(kn, P_MAX):
            self.waiting.append((part, load_as_stored(self.operands, geometry, (k0 + part[0], part[1]))))

    def transpose_weights(self, end):
        """Transpose filters of output channels before `end` that wait."""
        while self.waiting and self.waiting[0][0][0] < end:
            (first, count), raw_sbuf = self.waiting.pop(0)
            views = [raw_sbuf[:, one.c, one.r0 : one.r0 + one.rn] for one in self.plan.tiles]
            self.transpose_views(self.weights[:, :, first : first + count], views)

    def sums_of_bank(self, item, x_sbuf, bank):
        """A bank of sums, as `run` takes it."""
        bank.psum = nl.ndarray((pixels_of(bank.block), 1, bank.kn), dtype=nl.float32, buffer=nl.psum)

        def products(_):
            for index, one in enumerate(self.plan.tiles):
                parts = one.rn * self.geometry.columns.taps
                moving = self.weights[0:parts, index, bank.k0 : bank.k0 + bank.kn]
                yield bank.psum[:, 0], x_sbuf[0:parts, index], moving, index > 0

        def leave():
            self.evacuate_bank(item, bank)

        return products, leave
