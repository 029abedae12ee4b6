"""Results of a stack on their way out, residuals and biases in: rows of y on the partitions that made them.

A DMA of single numbers takes an engine 55 ns for each, so that biases, one a partition, come as rows, a job a
partition, and are transposed on the array.
"""

from ...._nki import nisa, nl
from ..boxes import block_pieces, load_box, load_boxes, offset_at, store_boxes


def load_stack_residual(operands, geometry, stack, job, band, buffer_sbuf):
    """The residual of a band and job in a buffer."""
    size, Q = stack.U * job[1], geometry.columns.out
    residual_sbuf = buffer_sbuf[0:size, 0 : band.zn, 0 : band.jn, 0 : stack.V, 0:Q]
    if (band.j0 + band.jn) * stack.U * stack.V > geometry.rows.out:
        last = residual_sbuf[0:size, 0 : band.zn, band.jn - 1, 0 : stack.V, 0:Q]
        nisa.memset(dst=last, value=0.0, engine=nisa.engine.gpsimd)
    for one in boxes_of_blocks(geometry, geometry.y_strides, stack, job, band, 0, band.jn, 0):
        load_boxes(plane_of(residual_sbuf, stack, one[0]), operands.residual, one[1:])
    return residual_sbuf


def store_stack(y_hbm, y_sbuf, base, geometry, stack, job, band, j, jn):
    """Blocks j .. j+jn-1 of a band's results, on the partitions from `base` on."""
    for one in boxes_of_blocks(geometry, geometry.y_strides, stack, job, band, j, jn, base):
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
    `base` on: as few as an access pattern has dims for. strides: of y or a residual along k, n, p, q."""
    k0, kn = job
    span = stack.U * stack.V
    by_k, by_n, by_p, by_q = strides[0], strides[1], strides[2], strides[3]
    found = []
    for piece in block_pieces(geometry.rows.out, stack.U, stack.V, band.j0 + j, jn):
        first, count, part, parts, height = piece
        pattern = [[stack.V * by_p, parts], [by_k, kn], [by_n, band.zn], [span * by_p, count]]
        at = (base + part * kn, 0, j + first, 0)
        if stack.V > 1:
            pattern = [[stack.V * by_p, parts], [by_k, kn], [span * by_p, count], [by_p, height]]
            at = (base + part * kn, j + first, 0, 0)
        for n in range(1 if stack.V == 1 else band.zn):
            offset = offset_at(strides, (k0, band.z0 + n, (band.j0 + j + first) * span + part * stack.V, 0))
            found.append((n, (at, pattern + [[by_q, geometry.columns.out]], offset)))
    return found


def load_stack_biases(bias_hbm, stack):
    """Rows [jobs, (u, k)] fp32 of up to 128 jobs each, zeros behind those of few channels; none without a bias."""
    found = []
    for first in range(0, len(stack.jobs) if bias_hbm != None else 0, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, len(stack.jobs) - first)
        rows_sbuf = nl.ndarray((count, stack.U * stack.kn), dtype=nl.float32, buffer=nl.sbuf)
        alike = stack.jobs[0][1] == stack.kn
        if not alike:
            nisa.memset(dst=rows_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        # jobs of as many channels by one DMA
        together = count if alike else 1
        for job in range(0, count, together):
            k0, kn = stack.jobs[first + job]
            for u in range(stack.U):
                load_box(rows_sbuf, bias_hbm, (job, u * kn), [[kn, together], [1, kn]], k0)
        found.append(rows_sbuf)
    return found


def transpose_biases(rows, stack):
    """[(u, k), 1] fp32 of each job, None without a bias."""
    found = []
    for rows_sbuf in rows:
        jobs, outputs = rows_sbuf.shape[0], rows_sbuf.shape[1]
        biases_sbuf = nl.ndarray((outputs, jobs), dtype=nl.float32, buffer=nl.sbuf)
        biases_psum = nl.ndarray((outputs, jobs), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=biases_psum, data=rows_sbuf, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=biases_sbuf, src=biases_psum, engine=nisa.engine.vector)
        for job in range(jobs):
            found.append(biases_sbuf[0 : stack.U * stack.jobs[len(found)][1], job : job + 1])
    while len(found) < len(stack.jobs):
        found.append(None)
    return found
