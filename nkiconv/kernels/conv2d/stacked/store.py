"""Results of a stack on their way out, and residuals on their way in: rows of y on the partitions that made them."""

from ...._nki import nisa
from ..boxes import block_pieces, corner, load_boxes, store_boxes
from ..cuts import strides_of_residual, strides_of_y


def load_residual(operands, geometry, stack, job, band, buffer_sbuf):
    """The residual of a band and job in a buffer."""
    residual_sbuf = buffer_sbuf[0 : stack.U * job[1], 0 : band.nn, 0 : band.jn, 0 : stack.V, 0 : buffer_sbuf.shape[4]]
    if (band.j0 + band.jn) * stack.U * stack.V > geometry.rows.out:
        last = residual_sbuf[0 : stack.U * job[1], 0 : band.nn, band.jn - 1]
        nisa.memset(dst=last, value=0.0, engine=nisa.engine.gpsimd)
    for one in boxes_of_blocks(geometry, strides_of_residual(geometry), stack, job, band, 0, band.jn, 0):
        load_boxes(plane_of(residual_sbuf, stack, one[0]), operands.residual, one[1:])
    return residual_sbuf


def store_stack(y_hbm, y_sbuf, base, geometry, stack, job, band, j, jn):
    """Blocks j .. j+jn-1 of a band's results, on the partitions from `base` on."""
    for one in boxes_of_blocks(geometry, strides_of_y(geometry), stack, job, band, j, jn, base):
        store_boxes(y_hbm, plane_of(y_sbuf, stack, one[0]), one[1:])


def plane_of(tile, stack, n):
    """[(u, k), images, blocks, columns] of a tile where a partition has one row of a block, else [(u, k), blocks, rows,
    columns] of image n."""
    parts, images, blocks, rows, columns = tile.shape
    if stack.V == 1:
        return tile[0:parts, 0:images, 0:blocks, 0, 0:columns]
    return tile[0:parts, n, 0:blocks, 0:rows, 0:columns]


def boxes_of_blocks(geometry, strides, stack, job, band, j, jn, base):
    """(image, box of its plane) of blocks j .. j+jn-1 of a band, as far as there are rows, on the partitions from
    `base` on: as few as an access pattern has dims for. strides: of y or a residual along n, k, p, q."""
    k0, kn = job
    span = stack.U * stack.V
    by_n, by_k, by_p, by_q = strides
    found = []
    for piece in block_pieces(geometry.rows.out, stack.U, stack.V, band.j0 + j, jn):
        first, count, part, parts, height = piece
        pattern = [[stack.V * by_p, parts], [by_k, kn], [by_n, band.nn], [span * by_p, count]]
        at = (base + part * kn, 0, j + first, 0)
        if stack.V > 1:
            pattern = [[stack.V * by_p, parts], [by_k, kn], [span * by_p, count], [by_p, height]]
            at = (base + part * kn, j + first, 0, 0)
        for n in range(1 if stack.V == 1 else band.nn):
            offset = corner(strides, band.n0 + n, k0, (band.j0 + j + first) * span + part * stack.V, 0)
            found.append((n, (at, pattern + [[by_q, geometry.columns.out]], offset)))
    return found
