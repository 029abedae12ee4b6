"""Results of a stack on their way out, and residuals on their way in: rows of y on the partitions that made them."""

from ...._nki import nisa, nl
from ..._dma import copy
from .shape import residual_depth, rows_apart


def y_rows(geometry, strides, stack, job, band, part, j, jn):
    """[(pattern, offset, first block, how many, rows of each)] of rows of blocks j .. j+jn-1 of a band, as far as
    there are any. strides: of y or a residual along n, k, p, q; part: of the partitions of an output channel."""
    k0, kn = job
    apart = rows_apart(stack)
    span = apart[0] * apart[1]
    p = (band.j0 + j) * span + part * apart[1]
    left = max(0, geometry.rows.out - p)
    # blocks with all of their rows here, and the rest of one
    full = min(jn, (left + span - apart[1]) // span)
    rest = min(apart[1], left - full * span) if full < jn else 0
    found = []
    for piece in ((0, full, apart[1]), (full, 1, rest)):
        first, count, height = piece
        if count > 0 and height > 0:
            pattern = [
                [strides[1], kn],
                [strides[0], band.nn],
                [span * strides[2], count],
                [strides[2], height],
                [strides[3], geometry.columns.out],
            ]
            offset = band.n0 * strides[0] + k0 * strides[1] + (p + first * span) * strides[2]
            found.append((pattern, offset, j + first, count, height))
    return found


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
        first = band.jn - 1 if ragged else 0
        last = Q if ragged else 1
        for w in range(apart[1]):
            nisa.memset(
                dst=residual_sbuf[0 : apart[0] * kn, 0 : band.nn, first : band.jn, w, 0:last],
                value=0.0,
                engine=nisa.engine.gpsimd,
            )
    strides = (geometry.r_n, geometry.r_k, geometry.r_p, geometry.r_q)
    for part in range(apart[0]):
        for where in y_rows(geometry, strides, stack, job, band, part, 0, band.jn):
            copy(
                residual_sbuf[
                    part * kn : (part + 1) * kn, 0 : band.nn, where[2] : where[2] + where[3], 0 : where[4], 0:Q
                ],
                operands.residual.ap(pattern=where[0], offset=where[1]),
            )
    return residual_sbuf


def store_stack(y_hbm, y_sbuf, base, geometry, stack, job, band, j, jn):
    """Blocks j .. j+jn-1 of a band's results, on the partitions from `base` on: a DMA for each image, or for each part
    of the partitions where those are fewer."""
    kn, Q = job[1], geometry.columns.out
    apart = rows_apart(stack)
    if band.nn < apart[0]:
        span = apart[0] * apart[1]
        left = max(0, geometry.rows.out - (band.j0 + j) * span)
        whole = min(jn, left // span)
        # of the last block all parts with all of their rows, and the one with some
        rest = min(span, left - whole * span) if whole < jn else 0
        parts = rest // apart[1]
        for n in range(band.nn):
            store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, (j, whole), (0, apart[0]), apart[1])
            store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, (j + whole, 1), (0, parts), apart[1])
            last = rest - parts * apart[1]
            store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, (j + whole, 1), (parts, 1), last)
        return
    strides = (geometry.y_n, geometry.y_k, geometry.y_p, geometry.y_q)
    for part in range(apart[0]):
        for where in y_rows(geometry, strides, stack, job, band, part, j, jn):
            copy(
                y_hbm.ap(pattern=where[0], offset=where[1]),
                y_sbuf[
                    base + part * kn : base + (part + 1) * kn,
                    0 : band.nn,
                    where[2] : where[2] + where[3],
                    0 : where[4],
                    0:Q,
                ],
            )


def store_parts(y_hbm, y_sbuf, base, geometry, stack, job, band, n, blocks, parts, height):
    """The first `height` rows of so many parts of so many blocks of image n, by one DMA, if there are any.

    blocks, parts: (first, how many).
    """
    if blocks[1] == 0 or parts[1] == 0 or height == 0:
        return
    k0, kn = job
    apart = rows_apart(stack)
    span = apart[0] * apart[1]
    row = (band.j0 + blocks[0]) * span + parts[0] * apart[1]
    copy(
        y_hbm.ap(
            pattern=[
                [apart[1] * geometry.y_p, parts[1]],
                [geometry.y_k, kn],
                [span * geometry.y_p, blocks[1]],
                [geometry.y_p, height],
                [geometry.y_q, geometry.columns.out],
            ],
            offset=(band.n0 + n) * geometry.y_n + k0 * geometry.y_k + row * geometry.y_p,
        ),
        y_sbuf[
            base + parts[0] * kn : base + (parts[0] + parts[1]) * kn,
            n,
            blocks[0] : blocks[0] + blocks[1],
            0:height,
            0 : geometry.columns.out,
        ],
    )
