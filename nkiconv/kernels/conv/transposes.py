"""Results with channels side by side in HBM (NHWC): the Tensor Engine transposes them (DMA transposes loads).

Of a stored run of m * 128 pixels, partition p holds the neighbours p * m .. p * m + m - 1: runs of channels in HBM, or
one run if they are all channels.
"""

from ..._nki import nl
from ...schedules.frames import is_transposed as is_transposed
from ...schedules.tiles import BANK_COLUMNS, div_ceil
from .._dma import copy
from .._engines import copy_balanced
from .filter_feed import transpose_into


def store_transposed(hbm, strides, ledger, data_sbuf, offset):
    """Store [c, n, h, w] in SBUF to an HBM tensor with channels side by side; strides: along c, n, h, w in HBM."""
    cn, nn, hn, wn = data_sbuf.shape
    step, outer = spacing(strides[1:], (nn, hn, wn))
    if outer == 0:
        store_run(hbm, data_sbuf.reshape((cn, nn * hn * wn)), offset, step, ledger)
        return
    for n in range(nn):
        image_sbuf, first = data_sbuf[0:cn, n, 0:hn, 0:wn], offset + n * strides[1]
        if outer == 1:
            store_run(hbm, image_sbuf.reshape((cn, hn * wn)), first, step, ledger)
        for h in range(hn if outer == 2 else 0):
            store_run(hbm, image_sbuf[0:cn, h, 0:wn], first + h * strides[2], step, ledger)


def spacing(strides, counts):
    """(elements between neighbouring pixels that are evenly spaced, number of outer axes of (images, rows, columns)
    that are not evenly spaced)."""
    step, together, outer = 1, 1, 3
    while outer > 0 and (counts[outer - 1] == 1 or together == 1 or strides[outer - 1] == step * together):
        outer -= 1
        if together == 1:
            step = strides[outer]
        together = together * counts[outer]
    return step, outer


def store_run(hbm, data_sbuf, offset, step, ledger):
    """Store [c, pixels] in SBUF to pixels that are `step` elements apart in HBM."""
    cn, pixels = data_sbuf.shape
    for first in range(0, pixels, BANK_COLUMNS):
        count = min(BANK_COLUMNS, pixels - first)
        side = div_ceil(count, nl.tile_size.pmax)
        full, more = count // side, count % side
        partitions = full + (1 if more > 0 else 0)
        pixels_psum = nl.ndarray((partitions, side, cn + cn % 2), dtype=data_sbuf.dtype, buffer=nl.psum)
        transpose_into(pixels_psum, [data_sbuf[:, first + tile : first + count : side] for tile in range(side)])
        pixels_sbuf = nl.ndarray((partitions, side, cn), dtype=data_sbuf.dtype, buffer=nl.sbuf)
        read_pixels_out(pixels_sbuf, pixels_psum, partitions, 0, more, ledger)
        read_pixels_out(pixels_sbuf, pixels_psum, full, more, side, ledger)
        start = offset + first * step
        pattern = [[side * step, full], [step, side], [1, cn]]
        copy(hbm.ap(pattern=pattern, offset=start), pixels_sbuf[0:full, 0:side, 0:cn])
        if more > 0:
            pattern = [[step, more], [1, cn]]
            copy(hbm.ap(pattern=pattern, offset=start + full * side * step), pixels_sbuf[full : full + 1, 0:more, 0:cn])


def read_pixels_out(pixels_sbuf, pixels_psum, partitions, first, end, ledger):
    """Evacuate tiles first .. end-1 of transposed pixels; none if end <= first."""
    cn = pixels_sbuf.shape[2]
    if end > first:
        src = pixels_psum[0:partitions, first:end, 0:cn]
        copy_balanced(pixels_sbuf[0:partitions, first:end, 0:cn], src, ledger)
