"""Blocks of x whose channels lie side by side (NHWC): a DMA for a row of all blocks of a window, zeros around x."""

from ...._nki import nisa
from ....schedules.cuts import places_inside
from ..._dma import copy
from ..boxes import offset_at
from .shape import rows_of_block, x_shape
from .windows import front_of


def load_pixels(operands, geometry, blocks, item, buffers, index):
    """Tile number `index`, of an item; a buffer keeps zeros from an item whose blocks have them in the same places."""
    buffer = buffers[index % len(buffers)]
    shape, c0 = x_shape(blocks, item), blocks.chunks[item.chunk][0]
    _, beside, below, images, cn = shape
    tile_sbuf = buffer.tile[0 : shape[0], 0:beside, 0:below, 0:images, 0:cn]
    strides, rows, columns = geometry.x_strides, geometry.rows, geometry.columns
    windows = []
    for one in range(item.windows[0], item.windows[0] + beside):
        start = blocks.windows[one].start
        windows.append((start, places_inside(start, 1, blocks.width, columns.size)))
    lines = []
    for row in range(blocks.rows):
        first = item.below[0] * blocks.apart + row - front_of(rows)
        # the last block is seen by its first rows alone
        seen = below if row < rows_of_block(geometry, blocks, blocks.depth - 1) else below - 1
        lines.append((first, places_inside(first, blocks.apart, seen, rows.size)))
    clear_around_blocks(buffer, tile_sbuf, blocks, windows, lines)
    for v in range(beside):
        start, met = windows[v]
        w, wn = met[0], met[1] - met[0]
        for row in range(blocks.rows if wn > 0 else 0):
            first, there = lines[row]
            b, bn = there[0], there[1] - there[0]
            if bn > 0:
                place = row * blocks.width + w
                element = (c0, item.images[0], first + b * blocks.apart, start + w)
                pattern = [[strides[3], wn], [blocks.apart * strides[2], bn], [strides[1], images], [strides[0], cn]]
                src = operands.x.ap(pattern=pattern, offset=offset_at(strides, element))
                copy(tile_sbuf[place : place + wn, v, b : b + bn, 0:images, 0:cn], src)
    return tile_sbuf


def clear_around_blocks(buffer, tile_sbuf, blocks, windows, lines):
    """Zeros in all pixels of windows, and of blocks below each other, that are not all x."""
    _, _, below, images, cn = tile_sbuf.shape
    key = [tile_sbuf.shape]
    for one in windows + lines:
        key.append(one[1])
    if buffer.zeros == key:
        return
    buffer.zeros = key
    for v in range(len(windows)):
        if not is_whole_window(windows[v], blocks):
            clear_blocks(buffer, v, (0, below), images, cn)
    for b in range(below):
        whole = True
        for line in lines:
            whole = whole and line[1][0] <= b and b < line[1][1]
        for v in range(0 if whole else len(windows)):
            if is_whole_window(windows[v], blocks):
                clear_blocks(buffer, v, (b, 1), images, cn)


def is_whole_window(window, blocks):
    """Whether all columns of a window (start, (first, end) of those that are elements) are elements."""
    return window[1] == (0, blocks.width)


def clear_blocks(buffer, v, below, images, cn):
    """Zeros in some blocks of a window, (first, how many) below each other, by words where these hold whole channels,
    half of them by Vector."""
    tile_sbuf, count = buffer.tile, cn
    if buffer.words != None and cn % 2 == 0:
        tile_sbuf, count = buffer.words, cn // 2
    b, end = below[0], below[0] + below[1]
    for part in ((0, count // 2, nisa.engine.gpsimd), (count // 2, count, nisa.engine.vector)):
        if part[0] < part[1]:
            dst = tile_sbuf[0 : tile_sbuf.shape[0], v, b:end, 0:images, part[0] : part[1]]
            nisa.memset(dst=dst, value=0.0, engine=part[2])
