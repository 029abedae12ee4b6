"""Results of a stack on their way out, and residuals on their way in: rows of y on the partitions that made them."""

from ...._nki import nisa, nl
from ..boxes import corner, load_boxes, store_boxes
from ..cuts import strides_of_residual, strides_of_y
from .shape import residual_depth, rows_apart


def residual_buffers(operands, geometry, stack, bands):
    """Tiles that residuals of a band and job take in turn: they cap how far loads run ahead; [] without a residual."""
    if operands.residual == None:
        return []
    images, blocks = 1, 1
    for band in bands:
        images = max(images, band.nn)
        blocks = max(blocks, band.jn)
    apart = rows_apart(stack)
    shape = (apart[0] * stack.kn, images, blocks, apart[1], geometry.columns.out)
    found = []
    for _ in range(residual_depth(geometry, stack)):
        found.append(nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf))
    return found


def load_residual(operands, geometry, stack, job, band, buffer_sbuf, hold):
    """The residual of a band and job in a buffer.

    hold: whether it is to wait for GpSimd, where it has no other reason to wait and would overtake rows of x.
    """
    kn, Q = job[1], geometry.columns.out
    apart = rows_apart(stack)
    residual_sbuf = buffer_sbuf[0 : apart[0] * kn, 0 : band.nn, 0 : band.jn, 0 : apart[1], 0:Q]
    ragged = (band.j0 + band.jn) * stack.U * stack.V > geometry.rows.out
    if hold or ragged:
        first, last = (band.jn - 1, Q) if ragged else (0, 1)
        for w in range(apart[1]):
            nisa.memset(
                dst=residual_sbuf[0 : apart[0] * kn, 0 : band.nn, first : band.jn, w, 0:last],
                value=0.0,
                engine=nisa.engine.gpsimd,
            )
    boxes = row_boxes(geometry, strides_of_residual(geometry), stack, job, band, 0, band.jn, 0)
    load_boxes(residual_sbuf, operands.residual, boxes)
    return residual_sbuf


def store_stack(y_hbm, y_sbuf, base, geometry, stack, job, band, j, jn):
    """Blocks j .. j+jn-1 of a band's results, on the partitions from `base` on: a DMA for each image, or for each part
    of the partitions where those are fewer."""
    apart = rows_apart(stack)
    if band.nn >= apart[0]:
        store_boxes(y_hbm, y_sbuf, row_boxes(geometry, strides_of_y(geometry), stack, job, band, j, jn, base))
        return
    span = apart[0] * apart[1]
    left = max(0, geometry.rows.out - (band.j0 + j) * span)
    whole = min(jn, left // span)
    # of the last block all parts with all of their rows, and the one with some
    rest = min(span, left - whole * span) if whole < jn else 0
    parts = rest // apart[1]
    last = rest - parts * apart[1]
    for n in range(band.nn):
        store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, (j, whole), (0, apart[0]), apart[1])
        store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, (j + whole, 1), (0, parts), apart[1])
        store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, (j + whole, 1), (parts, 1), last)


def store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, blocks, parts, height):
    """The first `height` rows of so many parts of so many blocks of image n, by one DMA, if there are any.

    blocks, parts: (first, how many).
    """
    if blocks[1] == 0 or parts[1] == 0 or height == 0:
        return
    k0, kn = job
    apart, by = rows_apart(stack), strides_of_y(geometry)
    span, shape = apart[0] * apart[1], y_sbuf.shape
    pattern = [[apart[1] * by[2], parts[1]], [by[1], kn], [span * by[2], blocks[1]], [by[2], height], [by[3], shape[4]]]
    offset = corner(by, band.n0 + n, k0, (band.j0 + blocks[0]) * span + parts[0] * apart[1], 0)
    image_sbuf = y_sbuf[0 : shape[0], n, 0 : shape[2], 0 : shape[3], 0 : shape[4]]
    store_boxes(y_hbm, image_sbuf, [((base + parts[0] * kn, blocks[0], 0, 0), pattern, offset)])


def row_boxes(geometry, strides, stack, job, band, j, jn, base):
    """Boxes of rows of blocks j .. j+jn-1 of a band, as far as there are any, on the partitions from `base` on.

    strides: of y or a residual along n, k, p, q.
    """
    k0, kn = job
    parts, apart = rows_apart(stack)
    span = parts * apart
    found = []
    for part in range(parts):
        p = (band.j0 + j) * span + part * apart
        left = max(0, geometry.rows.out - p)
        # blocks with all of their rows here, and the rest of one
        full = min(jn, (left + span - apart) // span)
        rest = min(apart, left - full * span) if full < jn else 0
        for piece in ((0, full, apart), (full, 1, rest)):
            first, count, height = piece
            if count > 0 and height > 0:
                blocks = [[span * strides[2], count], [strides[2], height], [strides[3], geometry.columns.out]]
                pattern = [[strides[1], kn], [strides[0], band.nn]] + blocks
                offset = corner(strides, band.n0, k0, p + first * span, 0)
                found.append(((base + part * kn, 0, j + first, 0, 0), pattern, offset))
    return found
