"""Windows that do not overlap: loaded with pixels of y on the partitions, transposed by the Tensor Engine.

x of a block is [pixels, row of taps, column of taps, c] as loaded, and for each K tile [(row, column of taps), pixels]
as stationary: of one tap, as that of a 1x1 convolution.
"""

from ...._nki import nl
from ....schedules.pixel_tiles import window_shape
from ..._dma import load
from ..filter_feed import transpose_together
from ..regions import offset_at
from .pixels import PixelCore


class WindowCore(PixelCore):
    """The loop of a core over blocks of pixels."""

    def load_out_tile(self, out_tile, start):
        """Load the windows of a block, a row of taps as one run; then filters, if the block is the first."""
        geometry, (planes, height, width) = self.geometry, window_shape(self.plan.source, out_tile)
        rows, columns, (_, by_n, by_h, by_w) = geometry.rows, geometry.columns, geometry.x_strides
        shape = planes * height * width, rows.taps, columns.taps, geometry.C
        x_sbuf = nl.ndarray(shape, dtype=self.operands.x_dtype, buffer=nl.sbuf)
        pattern = [[by_n, planes], [rows.stride * by_h, height], [columns.stride * by_w, width]]
        pattern += [[by_h, rows.taps], [1, columns.taps * geometry.C]]
        first = out_tile.p0 * rows.stride - rows.before, out_tile.q0 * columns.stride - columns.before
        load(x_sbuf, self.operands.x, pattern, offset_at(geometry.x_strides, (0, out_tile.z0, *first)))
        if start:
            self.filters.load(len(self.plan.k_tiles) - 1)
        return x_sbuf

    def arrived(self, out_tile, windows):
        """Windows of K tiles [(row, column of taps), planes, rows, columns of pixels]."""
        tiles = [own for own, *_ in self.plan.k_tiles]
        shape = max(own.count for own in tiles), len(tiles), windows.shape[0]
        x_sbuf = nl.ndarray(shape, dtype=windows.dtype, buffer=nl.sbuf)
        for index, own in enumerate(tiles):
            view = windows[:, own.r : own.r + own.count // self.geometry.columns.taps, :, own.c0]
            transpose_together(x_sbuf[0 : own.count, index : index + 1], [view], self.geometry.itemsize, self.ledger)
        extents = window_shape(self.plan.source, out_tile)
        return [x_sbuf[:, index].reshape((shape[0], *extents)) for index in range(len(tiles))]
