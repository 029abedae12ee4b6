"""Where x arrives: its loads into SBUF, as access patterns of HBM or transposed by the DMA.

A tile holds x in one of these orders, its first letters on the partitions:

    | order | partitions       | free axes              | for                                           |
    |-------|------------------|------------------------|-----------------------------------------------|
    | cnhw  | channels         | planes, rows, columns  | all kernels but those below                   |
    | nchw  | planes, channels | rows, columns          | Toeplitz blocks of NCHW, which are transposed |
    | whnc  | columns          | rows, planes, channels | Toeplitz blocks of NHWC                       |
    | cnw   | channels         | planes, rows as a run  | fp8 pairs, which GpSimd puts in place         |

Of padding nothing is loaded: what a view has beside x keeps the zeros that the kernel stored. What each DMA fills is x
alone, so that a fused prologue has its place behind it, here (docs/architecture.md).
"""

from ..schedules.cuts import places_inside
from ..schedules.frames import is_transposed
from ..schedules.regions import regions_of_x
from ._dma import load, load_region, load_transposed, spot


def load_x(
    dst, operands, geometry, first, counts=None, order="cnhw", row_step=1, ledger=None, alone=False, transposes=True
):
    """Load what there is of x, from (channel, plane, row, column) `first` on, into a view of SBUF.

    counts: of channels, planes, rows and columns; None: dst's. Rows and columns may begin before x and end after it.
    order: what dst's axes are, above; row_step: rows of x from one of dst to the next. ledger, alone: as of
    `load_transposed`, which takes channels that are neighbours in HBM to partitions. transposes: False of kernels that
    work on copies of NHWC: single pixels, whose channels are neighbours too, then come by plain loads.
    """
    (c0, d0, h0, w0), (cn, dn, hn, wn) = first, counts or dst.shape
    top, bottom = places_inside(h0, row_step, hn, geometry.rows.size)
    left, right = places_inside(w0, 1, wn, geometry.columns.size if "h" in order else wn)
    if bottom <= top or right <= left:
        return
    start, extents = (h0 + top * row_step, w0 + left), (bottom - top, right - left)
    for place, pattern, offset, framed in regions_of_x(geometry, (c0, cn), (d0, dn), start, extents):
        *channels, planes, (by_row, _), columns = pattern
        axes = {"c": channels, "n": [planes], "h": [[by_row * row_step, extents[0]]], "w": [columns]}
        at, pattern = {"c": place[0], "n": place[1], "h": top, "w": left}, [one for axis in order for one in axes[axis]]
        into = [at[axis] for axis in order[-len(dst.shape) :]]
        if order == "cnhw" and transposes and is_transposed(geometry):
            x_hbm, strides = operands.frames if framed else operands.x, [step for step, _ in pattern]
            load_transposed(spot(dst, into, pattern), x_hbm, strides, offset, alone, ledger)
        else:
            load_region_of_x(dst, operands, into, pattern, offset, framed)


def load_region_of_x(tile, operands, first, pattern, offset, framed):
    """Load a region of x, or of the halo frames, into a tile, at `first`: every load but those that transpose."""
    load_region(tile, operands.frames if framed else operands.x, first, pattern, offset, operands.moved)


def load_rows(dst, x_hbm, pattern, offset):
    """Load an access pattern of rows [N, C, W], of x or of the state in front of it, into a view of SBUF."""
    load(dst, x_hbm, pattern, offset)
