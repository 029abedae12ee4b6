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
        outputs = [[stack.V * by_p, parts], [by_k, kn]]
        if stack.is_diagonal():
            outputs = [[by_k, kn], [stack.V * by_p, parts]]
        pattern = outputs + [[by_n, band.zn], [span * by_p, count]]
        at = (base + part * kn, 0, j + first, 0)
        if stack.V > 1:
            pattern = outputs + [[span * by_p, count], [by_p, height]]
            at = (base + part * kn, j + first, 0, 0)
        for n in range(1 if stack.V == 1 else band.zn):
            offset = offset_at(strides, (k0, band.z0 + n, (band.j0 + j + first) * span + part * stack.V, 0))
            found.append((n, (at, pattern + [[by_q, geometry.columns.out]], offset)))
    return found


def load_stack_biases(bias_hbm, jobs):
    """Rows [jobs, k] fp32 of up to 128 jobs each; none without a bias."""
    found = []
    for first in range(0, len(jobs) if bias_hbm != None else 0, nl.tile_size.pmax):
        some = jobs[first : first + nl.tile_size.pmax]
        sizes = [one[1] for one in some]
        rows_sbuf = nl.ndarray((len(some), max(sizes)), dtype=nl.float32, buffer=nl.sbuf)
        if min(sizes) < max(sizes):
            nisa.memset(dst=rows_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        # jobs of as many channels by one DMA
        at = 0
        while at < len(some):
            together = 1
            while at + together < len(some) and sizes[at + together] == sizes[at]:
                together += 1
            load_box(rows_sbuf, bias_hbm, (at, 0), [[sizes[at], together], [1, sizes[at]]], some[at][0])
            at += together
        found.append(rows_sbuf)
    return found


def transpose_biases(rows, stack, jobs):
    """[(u, k) or (k, u), 1] fp32 of each job, None without a bias."""
    if len(rows) == 0:
        return [None for _ in jobs]
    found = []
    for rows_sbuf in rows:
        some = jobs[len(found) : len(found) + rows_sbuf.shape[0]]
        by_size = {}
        for index in range(len(some)):
            kn = some[index][1]
            if kn not in by_size:
                by_size[kn] = transposed_biases(rows_sbuf[0 : len(some), 0:kn], stack)
            found.append(by_size[kn][0 : stack.U * kn, index : index + 1])
    return found


def transposed_biases(rows_sbuf, stack):
    """[outputs, jobs] of rows [jobs, k], each of whose biases is that of U outputs."""
    jobs, kn = rows_sbuf.shape
    axis = 2 if stack.is_diagonal() else 1
    biases_sbuf = nl.ndarray((stack.U * kn, jobs), dtype=nl.float32, buffer=nl.sbuf)
    biases_psum = nl.ndarray((stack.U * kn, jobs), dtype=nl.float32, buffer=nl.psum)
    outputs = rows_sbuf.expand_dim(axis).broadcast(axis, stack.U)
    nisa.nc_transpose(dst=biases_psum, data=outputs, engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=biases_sbuf, src=biases_psum, engine=nisa.engine.vector)
    return biases_sbuf
