"""Results of an item's blocks in SBUF, and their way out."""

from ...._nki import nisa, nl
from ..boxes import load_boxes, offset_at
from ..call import scale_residual
from .shape import y_shape


def results_of_bank(blocks, tile_sbuf, c, count, q, qn):
    """[blocks, c, rows, columns] of a bank in a tile of results."""
    parts = tile_sbuf.shape[0]
    if blocks.by_pixels:
        return tile_sbuf[0:parts, 0 : blocks.out_rows, 0:qn, c : c + count].permute((0, 3, 1, 2))
    return tile_sbuf[0:parts, c : c + count, 0 : blocks.out_rows, q : q + qn]


def start_block_results(work, item):
    """(tile of results, residual times beta, or None) of an item."""
    operands, shape = work.operands, y_shape(work.geometry, work.blocks, item)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    if operands.residual == None:
        return y_sbuf, None
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    boxes = boxes_of_block_results(work.geometry, work.blocks, item, (0, work.blocks.chunks[item.chunk][1]))
    if is_ragged(work.geometry, work.blocks, item):
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    load_boxes(residual_sbuf, operands.residual, boxes)
    return y_sbuf, scale_residual(residual_sbuf, operands.beta)


def is_ragged(geometry, blocks, item):
    """Whether some blocks of an item have fewer rows or columns of y than others."""
    rows = (item.below[0] + item.below[1]) * blocks.out_rows > geometry.rows.out
    return rows or (blocks.by_pixels and blocks.columns * len(blocks.windows) > geometry.columns.out)


def boxes_of_block_results(geometry, blocks, item, channels):
    """Boxes of y, or of the residual, of some of a chunk's channels in a tile of results: of whole blocks, and of the
    last ones with fewer rows."""
    strides, P, height = geometry.y_strides, geometry.rows.out, blocks.out_rows
    c, cn = channels
    c0 = blocks.chunks[item.chunk][0] + c
    n, nn = item.images
    b0, bn = item.below
    whole = min(bn, P // height - b0)
    found = []
    for piece in ((0, whole, height), (whole, bn - whole, P % height)):
        first, count, pn = piece
        rows, images = [height * strides[2], count], [strides[1], nn]
        at = (c0, n, (b0 + first) * height, 0)
        if count > 0 and pn > 0 and not blocks.by_pixels:
            pattern = [rows, images, [strides[0], cn], [strides[2], pn], [strides[3], geometry.columns.out]]
            found.append(((first * nn, c, 0, 0), pattern, offset_at(strides, at)))
        for v in range(item.windows[1] if count > 0 and pn > 0 and blocks.by_pixels else 0):
            window = blocks.windows[item.windows[0] + v]
            pattern = [rows, images, [strides[2], pn], [strides[3], window.qn], [strides[0], cn]]
            there = (c0, n, (b0 + first) * height, window.q)
            found.append((((v * bn + first) * nn, 0, 0, c), pattern, offset_at(strides, there)))
    return found
