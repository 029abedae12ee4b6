"""Few input channels: rows of taps side by side on the partitions, so that one matmul contracts over several.

Tile b of a band holds x[c, row that tap row b * stack + r meets at output row p, :] on partition r * C + c, row p: x is
loaded once for each tap row, shifted, in whole rows of HBM; rows outside x are zeros. Taps along a row stay strided
views of it.
"""

from ..._nki import nisa, nl
from .._dma import copy
from .._tiles import div_ceil
from .geometry import met


def load_stacked(x_hbm, geometry, stack, band):
    """Tiles [(r, c), images, rows of outputs, columns] of a band in SBUF; None where it meets no column of x."""
    tiles = []
    for b in range(div_ceil(geometry.rows.taps, stack)):
        tile_sbuf = None
        rn = min(stack, geometry.rows.taps - b * stack)
        if band.wn > 0:
            tile_sbuf = nl.ndarray((rn * geometry.C, band.nn, band.pn, band.wn), dtype=x_hbm.dtype, buffer=nl.sbuf)
            rows = []
            least = band.pn
            for r in range(rn):
                rows.append(met(geometry.rows, b * stack + r, band.p0, band.pn))
                least = min(least, rows[r][2])
            if least < band.pn:
                nisa.memset(dst=tile_sbuf, value=0.0)
            for r in range(rn):
                load_row(tile_sbuf, x_hbm, geometry, band, r, rows[r])
        tiles.append(tile_sbuf)
    return tiles


def load_row(tile_sbuf, x_hbm, geometry, band, r, rows):
    """What one row of taps meets, all images and channels."""
    if rows[2] == 0:
        return
    first = rows[0] - band.p0
    pattern = [
        [geometry.x_c, geometry.C],
        [geometry.x_n, band.nn],
        [rows[4] * geometry.x_h, rows[2]],
        [geometry.x_w, band.wn],
    ]
    offset = band.n0 * geometry.x_n + rows[3] * geometry.x_h + band.w0 * geometry.x_w
    copy(
        tile_sbuf[
            r * geometry.C : (r + 1) * geometry.C,
            0 : band.nn,
            first : first + (rows[2] - 1) * rows[1] + 1 : rows[1],
            0 : band.wn,
        ],
        x_hbm.ap(pattern=pattern, offset=offset),
    )
