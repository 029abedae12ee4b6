"""A storage in HBM cut into cells, so that accesses that may share a byte are found without comparing all with all.

Views of a tensor interleave: some rows of 128 channels reach almost from its first byte to its last, as do the next
rows. So its bytes are folded into rows as long as the stride of the views that are written, and cut both ways: views
that are neighbours in the rows, or in other rows, share no cell.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..views import merged_runs
from .overlap import Extent, columns


class Grid:
    """The cells of one storage.

    Args:
        typical: a view as it is written most often; cells are as big as that.
        num_bytes: of the storage. most: slices along either side.
    """

    __slots__ = ("_across", "_height", "_row", "_width")

    def __init__(self, typical: Extent, num_bytes: int, most: int) -> None:
        strides = {abs(stride) * typical.itemsize for _, stride in merged_runs(typical.shape, typical.strides)} - {0}
        cuts = [_cut(typical, row, num_bytes, most) for row in (num_bytes, *sorted(strides))]
        _, self._row, self._height, self._width = max(cuts)
        self._across = -(-self._row // self._width)

    def cells(self, e: Extent) -> Iterator[int]:
        """Every cell that a view of the storage has a byte in, and maybe others, as a number."""
        row, height, width = self._row, self._height, self._width
        begin, end = columns(e, row)
        across = range(begin // width, (end - 1) // width + 1)
        for i in range(e.b0 // row // height, (e.b1 - 1) // row // height + 1):
            for j in across:
                yield i * self._across + j


def _cut(typical: Extent, row: int, num_bytes: int, most: int) -> tuple[int, int, int, int]:
    """(cells, bytes of a row, rows of a cell, bytes of a cell in each) of a grid of rows of this many bytes."""
    begin, end = columns(typical, row)
    rows = -(-num_bytes // row)
    height = max(1 + (typical.b1 - 1) // row - typical.b0 // row, -(-rows // most))
    width = max(end - begin, -(-row // most))
    return -(-rows // height) * -(-row // width), row, height, width
