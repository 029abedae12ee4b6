"""Sizes of the blocks, and what is worked on together: see `plan.py` for what they mean."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_BYTES, BANK_COLUMNS, PARTS, cut, div_ceil, fits_sbuf, share, whole_words
from ..cuts import most_of, window_of
from ..geometry import num_taps
from ..transposes import is_transposed
from .config import ToeplitzBlocksConfig

#: Buffers of matrices, of planes with zeros around them, and of planes as they come, that take turns.
MATRICES, FRAMED, RAWS = 2, 2, 2


@dataclass
class ToeplitzBlocks(nl.NKIObject):
    """Sizes of one problem."""

    #: rows of x and columns of x of a block, its rows and columns of y, and how many blocks below each other a row of y
    #: sees
    rows: int
    width: int
    out_rows: int
    columns: int
    depth: int
    #: (first, how many): columns of y of each window, channels of each chunk
    windows: list
    chunks: list
    #: chunks whose matrices come together
    together: int
    #: what is worked on together, in order
    items: list
    #: channels of x and y that lie side by side (NHWC), or planes
    by_pixels: bool
    settings: ToeplitzBlocksConfig


@dataclass
class BlocksItem(nl.NKIObject):
    """Blocks of some images: (first, how many) images, blocks below each other, windows; number of their chunk."""

    chunk: int
    images: tuple
    below: tuple
    windows: tuple


def sizes_of_blocks(geometry, config):
    """The ToeplitzBlocks of a ToeplitzBlocksConfig."""
    rows, columns = geometry.rows, geometry.columns
    out_rows = config.rows // rows.stride
    by_pixels = is_transposed(geometry)
    windows, chunks = cut(columns.out, config.columns), cut(geometry.C, config.channels)
    items = []
    for chunk in range(len(chunks)):
        for beside in cut(len(windows), config.beside if by_pixels else len(windows)):
            for below in cut(div_ceil(rows.out, out_rows), config.below):
                for images in cut(geometry.planes.out, config.images):
                    items.append(BlocksItem(chunk=chunk, images=images, below=below, windows=beside))
    widest = most_of(windows)
    return ToeplitzBlocks(
        rows=config.rows,
        width=window_of(columns, widest),
        out_rows=out_rows,
        columns=widest,
        depth=div_ceil(window_of(rows, out_rows), config.rows),
        windows=windows,
        chunks=chunks,
        together=min(config.together, div_ceil(len(chunks), PARTS)),
        items=items,
        by_pixels=by_pixels,
        settings=config,
    )


def matrix_size(blocks):
    """Elements of a partition and channel: matrices of all blocks below each other."""
    return blocks.depth * blocks.rows * blocks.width


def rows_of_block(geometry, blocks, k):
    """Rows of the block k below that a block of y sees."""
    return min(blocks.rows, window_of(geometry.rows, blocks.out_rows) - k * blocks.rows)


def x_shape(blocks, item):
    """Shape of the tile of an item's blocks: [pixels, beside, below, images, channels]; of planes a window's."""
    beside = item.windows[1] if blocks.by_pixels else 1
    cn = blocks.chunks[item.chunk][1]
    return (blocks.rows * blocks.width, beside, item.below[1] + blocks.depth - 1, item.images[1], cn)


def y_shape(geometry, blocks, item):
    """Shape of the tile of an item's results."""
    cn = blocks.chunks[item.chunk][1]
    together = item.below[1] * item.images[1]
    if blocks.by_pixels:
        return (together * item.windows[1], blocks.out_rows, blocks.columns, cn)
    return (together, cn, blocks.out_rows, geometry.columns.out)


def rounds_of(blocks, first, last):
    """(first channel, how many) of chunks first .. last whose matrices come together."""
    found = []
    for number in range(first, last + 1, blocks.together):
        end = blocks.chunks[min(last, number + blocks.together - 1)]
        c0 = blocks.chunks[number][0]
        found.append((c0, end[0] + end[1] - c0))
    return found


def matrices_shape(blocks):
    """(tiles that rounds of matrices take in turn, channels of one): one where a core of two has no other round."""
    share_chunks = div_ceil(len(blocks.chunks), PARTS)
    most = blocks.together * most_of(blocks.chunks)
    return min(MATRICES, div_ceil(share_chunks, blocks.together)), most


def channels_of_bank(blocks):
    """Channels whose sums fill a bank."""
    return max(1, BANK_COLUMNS // (blocks.rows * blocks.width))


def images_on_partitions(cn):
    """Images of a chunk of channels that go on the partitions together."""
    return nl.tile_size.pmax // cn


def groups_of(blocks, item):
    """Groups of images of an item that go on the partitions one after the other."""
    return div_ceil(item.images[1], images_on_partitions(blocks.chunks[item.chunk][1]))


def framed_shape(geometry, blocks, item):
    """[(image, c), rows, columns] of an item's planes that go on the partitions together, with what a tap may see
    around them."""
    cn, last = blocks.chunks[item.chunk][1], blocks.windows[-1][0] * geometry.columns.stride
    parts = min(item.images[1], images_on_partitions(cn)) * cn
    return parts, (item.below[1] + blocks.depth - 1) * blocks.rows, last + blocks.width


def transposes_together(cn, itemsize):
    """Transposes that a bank holds, of all images of a chunk that are together."""
    return max(1, BANK_BYTES // (whole_words(images_on_partitions(cn) * cn, itemsize) * itemsize))


def blocks_bytes(geometry, blocks, extras):
    """Bytes a partition, at most."""
    item, y_item, most = geometry.itemsize, extras.epilogue.y_itemsize, 0
    tiles, most_channels = matrices_shape(blocks)
    fixed = tiles * most_channels * matrix_size(blocks) * item
    lines = div_ceil(geometry.C, nl.tile_size.pmax)
    fixed += lines * (matrix_size(blocks) + blocks.rows * blocks.width + num_taps(geometry)) * item
    fixed += 4 * (MATRICES * most_channels if extras.epilogue.bias else 0) + 2 * nl.tile_size.pmax
    for one in blocks.items:
        _, beside, below, images, count = x_shape(blocks, one)
        y = elements_of(y_shape(geometry, blocks, one)) * (2 * y_item + (2 * 8 if extras.residual else 0))
        x = blocks.settings.buffers * beside * below * images * count * item
        if not blocks.by_pixels:
            _, height, width = framed_shape(geometry, blocks, one)
            x += groups_of(blocks, one) * (
                FRAMED * height * width * item + RAWS * height * geometry.columns.size * item
            )
        most = max(most, x + y)
    epilogue = 4 * 3 * BANK_COLUMNS
    return fixed + most + epilogue


def elements_of(shape):
    """Elements of a partition of a tile."""
    return shape[1] * shape[2] * shape[3]


def blocks_fit(geometry, blocks, extras):
    """Whether SBUF holds all that is there at a time."""
    return fits_sbuf(blocks_bytes(geometry, blocks, extras))


def blocks_instructions(geometry, blocks, cores):
    """Instructions of the busiest core, at most."""
    most = 0
    made = matrix_instructions(geometry, blocks)
    for core in range(cores):
        mine, total, chunk = share(len(blocks.items), cores, core), 8 + blocks.settings.warmup, -1
        for index in range(mine[0], mine[0] + mine[1]):
            one = blocks.items[index]
            if one.chunk != chunk:
                total += made
                chunk = one.chunk
            total += item_instructions(geometry, blocks, one)
        most = max(most, total)
    return most


def matrix_instructions(geometry, blocks):
    """Of a chunk's matrices: taps in their places, and a DMA a partition, of each 128 channels that it has some of."""
    parts = 1 + div_ceil(most_of(blocks.chunks), nl.tile_size.pmax)
    return parts * (num_taps(geometry) + 4 + blocks.rows * blocks.width)


def item_instructions(geometry, blocks, item):
    """Of an item: its loads and zeros, transposes, sums and stores."""
    cn = blocks.chunks[item.chunk][1]
    beside = item.windows[1]
    banks = div_ceil(cn, channels_of_bank(blocks))
    steps = 1 if blocks.by_pixels else beside
    sums = steps * (cn * blocks.depth + 4 * banks)
    if blocks.by_pixels:
        return sums + beside * (blocks.rows + 4 + 2 * blocks.depth) + 8 * beside
    below = item.below[1] + blocks.depth - 1
    turned = below + div_ceil(below, transposes_together(cn, geometry.itemsize))
    return sums + groups_of(blocks, item) * (steps * turned + 6 + images_on_partitions(cn)) + 8
