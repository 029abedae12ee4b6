"""Patches of y: pixels of x are stationary, their filters of all taps move, rows of y are stored as runs.

Results are [pixels, k, row of taps, neighbour, column of taps] on chip; in NHWC channels are last.
"""

from itertools import product

from ...._nki import nl
from ....schedules.geometry import writes_rows
from ....schedules.pixel_tiles import blocks_of, pixels_of
from ....schedules.tiles import parts_of_images, size_of
from ..._epilogue import evacuate
from ..regions import offset_at, store_regions
from .loop import Core, bias_of
from .pixels import Bank, PixelCore


class PatchCore(PixelCore):
    """The loop of a core over output tiles of pixels of x; patch: the problem's Geometry; leaving: the tile of results
    of the block whose banks are being evacuated."""

    def __init__(self, operands, geometry, options, plan):
        super().__init__(operands, plan.points, options, plan)
        self.patch = geometry

    def load_bias(self, k0, kn, fold=1):
        """As Core's, of all output channels."""
        Core.load_bias(self, 0, self.patch.K)

    def rows_of(self, item):
        """(first, count) of rows of taps of an item."""
        size = size_of(self.plan.patch)
        return tuple(one // size for one in self.plan.batches[item.batch])

    def banks_of(self, item, columns):
        """Banks of an item, a pixel of each partition after the other."""
        plan = self.plan
        parts, tiles = plan.banks_of(self.rows_of(item)[1]), range(plan.sizes.side)
        every = product(blocks_of(plan.sizes, item.out_tile), tiles, parts)
        return [Bank(block, t, 1, 0, k[1] * r[1] * plan.patch[1], part=(k, r)) for block, t, (k, r) in every]

    def moving_of(self, filters, bank):
        """A bank's filters [c, k, row of taps, column of taps]."""
        ((k0, kn), (r0, rn)), (K, S) = bank.part, self.plan.patch
        by_rows = filters.reshape((filters.shape[0], K, filters.shape[1] // (K * S), S))
        return by_rows[:, k0 : k0 + kn, r0 : r0 + rn]

    def evacuate_bank(self, item, bank):
        """Evacuate a bank into its block's results; after the last bank of a block store them."""
        options, (K, S), ((k0, kn), (r0, rn)), side = self.options, self.plan.patch, bank.part, self.plan.sizes.side
        parts, rows, by_rows = pixels_of(bank.block), self.rows_of(item)[1], writes_rows(self.patch)
        if self.leaving is None:
            shape = (parts, K, rows, side, S) if by_rows else (parts, rows, side, S, K)
            self.leaving = nl.ndarray(shape, dtype=self.operands.y.dtype, buffer=nl.sbuf)
        y_sbuf = self.leaving if by_rows else self.leaving.permute((0, 4, 1, 2, 3))
        into, acc = y_sbuf[:, k0 : k0 + kn, r0 : r0 + rn, bank.t0], bank.psum.reshape((parts, kn, rn, S))
        bias = bias_of(self.bias_sbuf, k0, acc.shape)
        evacuate(into, acc, bias, None, options.epilogue, self.ledger, options.strict_nonfinite)
        if (bank.t0 + 1, k0 + kn, r0 + rn) == (side, K, rows):
            self.store_patches(item, bank.block)
            self.leaving = None

    def store_patches(self, item, block):
        """Store the rows of y of a block by plane of taps, and rows of NCHW by output channel, as an access pattern has
        few dimensions."""
        (_, by_n, by_p, by_q, *_), out_tile, (first, rows) = self.patch.y_strides, item.out_tile, self.rows_of(item)
        (K, S), T, R = self.plan.patch, self.patch.planes.taps, self.patch.rows.taps
        wide, n, i = self.plan.sizes.side * S, out_tile.z0 + block.z, out_tile.p0 + block.p
        outer = [[T * by_n, block.zn], [R * by_p, block.pn], [wide * by_q, block.units]]
        channels, run = (K, wide) if writes_rows(self.patch) else (1, wide * K)
        y_sbuf = self.leaving.reshape((self.leaving.shape[0], channels, rows, run))
        for k, (t, place, count) in product(range(channels), parts_of_images(first, rows, R)):
            r = first + place - t * R
            offset = offset_at(self.patch.y_strides, (k, n * T + t, i * R + r, out_tile.q0 * S))
            region = ((0, 0, 0), [*outer, [by_p, count], [1, run]], offset)
            store_regions(self.operands.y, y_sbuf[:, k, place : place + count], [region])
