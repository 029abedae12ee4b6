"""Blocks of x of planes (NCHW): planes come as they lie, zeros are put around them, the array transposes windows. Where
windows have the columns of x and no others, planes come to where there are zeros above and below."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import places_inside
from ....schedules.tiles import cut, cut_at
from ..._dma import copy
from ..._engines import START_WORK, copy_work, is_16bit, pick
from ..boxes import offset_at
from .shape import blocks_below, framed_shape, groups_of, images_on_partitions, transposes_together, windows_together
from .windows import front_of


@dataclass
class Planes(nl.NKIObject):
    """Planes of some images of an item, [(image, c), rows, columns]: as they come, with zeros around them."""

    images: tuple
    raw: object
    framed: object
    #: (first, end) of rows and columns of x among those with zeros
    rows: tuple
    columns: tuple


def load_planes(operands, geometry, blocks, item, raws, buffers, index):
    """Planes of an item on their way, those of as many images together as there are partitions, in the raws from number
    `index` on, or in the buffers if there are no raws."""
    c0, cn = blocks.chunks[item.chunk]
    _, height, width = framed_shape(geometry, blocks, item)
    rows, columns, strides = geometry.rows, geometry.columns, geometry.x_strides
    row, column, found = item.below[0] * blocks.apart - front_of(rows), blocks.windows[0].start, []
    met, across = places_inside(row, 1, height, rows.size), places_inside(column, 1, width, columns.size)
    hn, wn = met[1] - met[0], across[1] - across[0]
    for images in cut_at(item.images[1], images_on_partitions(cn)):
        one = Planes(images=images, raw=None, framed=None, rows=met, columns=across)
        parts, number = images[1] * cn, index + len(found)
        found.append(one)
        if len(raws) > 0:
            into_sbuf = raws[number % len(raws)][0:parts, 0:hn, 0:wn]
            one.raw = into_sbuf
        else:
            framed_sbuf = zeros_around(one, buffers[number % len(buffers)], (parts, height, width))
            into_sbuf = framed_sbuf[0:parts, met[0] : met[1], 0:width]
            one.framed = framed_sbuf
        element = (c0, item.images[0] + images[0], row + met[0], column + across[0])
        pattern = [[strides[1], images[1]], [strides[0], cn], [strides[2], hn], [strides[3], wn]]
        if hn > 0 and wn > 0:
            copy(into_sbuf, operands.x.ap(pattern=pattern, offset=offset_at(strides, element)))
    return found


def put_zeros_around(planes, buffers, index, geometry, blocks, item, ledger):
    """Put zeros around planes that are without, in the buffer number `index`."""
    if planes.framed != None:
        return
    _, height, width = framed_shape(geometry, blocks, item)
    parts = planes.images[1] * blocks.chunks[item.chunk][1]
    h, h_end = planes.rows
    w, w_end = planes.columns
    framed_sbuf = zeros_around(planes, buffers[index % len(buffers)], (parts, height, width))
    count = (h_end - h) * (w_end - w)
    if count > 0:
        ledger.vector = ledger.vector + START_WORK + count * copy_work(planes.raw.dtype)
        dst = framed_sbuf[0:parts, h:h_end, w:w_end]
        nisa.tensor_copy(dst=dst, src=planes.raw, engine=nisa.engine.vector)
    planes.framed = framed_sbuf


def zeros_around(planes, buffer, shape):
    """A buffer of a shape with zeros around what planes fill; it keeps them where they are in the same places."""
    parts, height, width = shape
    h, h_end = planes.rows
    w, w_end = planes.columns
    framed_sbuf = buffer.tile[0:parts, 0:height, 0:width]
    key = (parts, height, width, planes.rows, planes.columns)
    if buffer.zeros != key:
        buffer.zeros = key
        around = [(0, h, 0, width), (h_end, height, 0, width), (h, h_end, 0, w), (h, h_end, w_end, width)]
        if h == h_end or w == w_end:
            around = [(0, height, 0, width)]
        for one in around:
            if one[0] < one[1] and one[2] < one[3]:
                dst = framed_sbuf[0:parts, one[0] : one[1], one[2] : one[3]]
                nisa.memset(dst=dst, value=0.0, engine=nisa.engine.gpsimd)
    return framed_sbuf


def banks_of_step(geometry, blocks, item):
    """What the array transposes of windows that are together, a bank at a time: (number of the planes, first of the
    blocks of all these windows, how many)."""
    below = blocks_below(blocks, item) * windows_together(blocks)
    most = transposes_together(blocks.chunks[item.chunk][1], geometry.itemsize)
    found = []
    for number in range(groups_of(blocks, item)):
        for part in cut(below, most):
            found.append((number, part[0], part[1]))
    return found


def transpose_bank(tile_sbuf, planes, bank, geometry, blocks, item, window, ledger):
    """Some blocks of windows from `window` on, [(j, w), (image, c)], into the tile of an item's blocks."""
    number, first, count = bank
    one, cn = planes[number], blocks.chunks[item.chunk][1]
    parts, size = one.images[1] * cn, blocks.rows * blocks.width
    below = blocks_below(blocks, item)
    pitch = parts + parts % 2  # what the array writes begins at words
    bank_psum = nl.ndarray((size, count, pitch), dtype=tile_sbuf.dtype, buffer=nl.psum)
    for slot in range(count):
        row = (first + slot) % below * blocks.apart
        start = blocks.windows[window + (first + slot) // below].start - blocks.windows[0].start
        nisa.nc_transpose(
            dst=bank_psum[0:size, slot, 0:parts],
            data=one.framed[0:parts, row : row + blocks.rows, start : start + blocks.width],
            engine=nisa.engine.tensor,
        )
    n, nn = one.images
    nisa.tensor_copy(
        dst=tile_sbuf[0:size, 0, first : first + count, n : n + nn, 0:cn],
        src=bank_psum.ap(pattern=[[count * pitch, size], [pitch, count], [cn, nn], [1, cn]], offset=0),
        engine=pick(ledger, count * parts, is_16bit(tile_sbuf.dtype)),
    )
