"""Sizes of the blocks, and what is worked on together: see `plan.py` for what they mean."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import most_of, window_of
from ....schedules.geometry import num_taps
from ....schedules.tiles import BANK_BYTES, BANK_COLUMNS, PARTS, cut, div_ceil, fits_sbuf, share, whole_words
from ....schedules.toeplitz_blocks import WARM_UP, ToeplitzBlocksSettings
from ..transposes import is_transposed
from .windows import (
    Span,
    WindowProduct,
    bank_columns,
    disjoint_spans,
    front_of,
    have_own_columns,
    pitch_of,
    pixels_among,
    window_width,
    windows_of,
)

#: Rotating buffers for: Toeplitz matrices; zero-padded planes; raw planes; planes loaded into their padding.
MATRICES, FRAMED, RAWS, LOADED = 2, 2, 2, 3


@dataclass
class ToeplitzBlocks(nl.NKIObject):
    """Sizes of one problem."""

    #: rows from a block to the next, those of x among them, and of x of a block; its rows of y, and how many blocks
    #: below each other these see
    step: int
    apart: int
    rows: int
    out_rows: int
    depth: int
    #: columns of x of a window; all windows; of a tile of results, columns
    width: int
    windows: list
    columns: int
    #: columns of a matrix from a row to the next; rows and columns that the array skips to the next, and so in a bank
    pitch: int
    matrix_steps: tuple
    bank_steps: tuple
    #: rows and columns of a channel's sums in a bank, and spans of all windows where they are disjoint
    bank: tuple
    spans: list
    #: (first, how many) channels of each chunk
    chunks: list
    #: chunks whose matrices come together
    together: int
    #: what is worked on together, in order
    items: list
    #: channels of x and y that lie side by side (NHWC), or planes
    by_pixels: bool
    settings: ToeplitzBlocksSettings


@dataclass
class BlocksItem(nl.NKIObject):
    """Blocks of some images: (first, how many) images, blocks below each other, windows; number of their chunk."""

    chunk: int
    images: tuple
    below: tuple
    windows: tuple


def sizes_of_blocks(geometry, config):
    """The ToeplitzBlocks of a ToeplitzBlocksSettings."""
    rows, columns = geometry.rows, geometry.columns
    out_rows = config.rows // rows.stride
    by_pixels, disjoint = is_transposed(geometry), config.disjoint == 1
    windows, chunks = windows_of(columns, config.columns, disjoint), cut(geometry.C, config.channels)
    items = []
    for chunk in range(len(chunks)):
        for beside in cut(len(windows), config.beside if by_pixels else len(windows)):
            for below in cut(div_ceil(rows.out, out_rows), config.below):
                for images in cut(geometry.planes.out, config.images):
                    items.append(BlocksItem(chunk=chunk, images=images, below=below, windows=beside))
    widest, strides = widest_of(windows), (rows.stride, columns.stride)
    height, pitch, spans = config.rows // rows.lhs_dilation, window_of(columns, widest), []
    bank = (config.rows, bank_columns(columns, widest, config.rows))
    if disjoint:
        height, spans = pixels_among(rows, window_of(rows, out_rows)), disjoint_spans(windows, columns.out, out_rows)
        pitch, bank = pitch_of(spans, columns, config.columns), (out_rows, widest_span(spans))
    return ToeplitzBlocks(
        step=config.rows,
        apart=config.rows // rows.lhs_dilation,
        rows=height,
        out_rows=out_rows,
        depth=div_ceil(pixels_among(rows, window_of(rows, out_rows)), height),
        width=window_width(columns, config.columns if disjoint else widest, disjoint),
        windows=windows,
        columns=widest if by_pixels else columns.out,
        pitch=pitch,
        matrix_steps=strides if disjoint else (1, 1),
        bank_steps=(1, 1) if disjoint else strides,
        bank=bank,
        spans=spans,
        chunks=chunks,
        together=min(config.together, div_ceil(len(chunks), PARTS)),
        items=items,
        by_pixels=by_pixels,
        settings=config,
    )


def widest_of(windows):
    """Most columns of y of a window."""
    most = 0
    for window in windows:
        most = max(most, window.qn)
    return most


def widest_span(spans):
    """Most columns of y of a span."""
    most = 0
    for span in spans:
        most = max(most, span.columns[1])
    return most


def matrix_size(blocks):
    """Elements of a partition and channel: matrices of all blocks below each other."""
    return blocks.depth * blocks.step * blocks.pitch


def rows_of_block(geometry, blocks, k):
    """Rows of the block k below that a block of y sees."""
    seen = pixels_among(geometry.rows, window_of(geometry.rows, blocks.out_rows))
    return min(blocks.rows, seen - k * blocks.apart)


def windows_together(blocks):
    """Windows of an item that are worked on together: of planes all if disjoint, one if not."""
    return len(blocks.windows) if blocks.settings.disjoint == 1 else 1


def spans_of_tile(blocks, windows):
    """Spans of the tile of x of some windows (first, how many)."""
    if blocks.settings.disjoint == 1:
        return blocks.spans
    q, qn = 0, blocks.columns
    if not blocks.by_pixels:
        q, qn = blocks.windows[windows[0]].q, blocks.windows[windows[0]].qn
    product = WindowProduct(windows=(0, windows[1]), columns=(0, blocks.bank[1]), first=0, adds=False)
    return [Span(columns=(q, qn), products=[product])]


def x_shape(blocks, item):
    """Shape of the tile of an item's blocks: [pixels, beside, below, images, channels]; of planes with blocks of
    windows that are worked on together one after the other."""
    beside, below = item.windows[1], blocks_below(blocks, item)
    if not blocks.by_pixels:
        beside, below = 1, below * windows_together(blocks)
    return (blocks.rows * blocks.width, beside, below, item.images[1], blocks.chunks[item.chunk][1])


def blocks_below(blocks, item):
    """Blocks of x below each other that an item's rows of y see."""
    return item.below[1] + blocks.depth - 1


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


def place_of(geometry, blocks, place):
    """How far a place of a block, its pixels row after row, is in the sequence of its filter."""
    rows, columns, first = geometry.rows, geometry.columns, blocks.windows[0]
    row = rows.before + (place // blocks.width - front_of(rows)) * rows.lhs_dilation
    column = columns.before + (place % blocks.width + first.start) * columns.lhs_dilation - first.q * columns.stride
    return row * blocks.pitch + column


def line_length(geometry, blocks):
    """Elements of the sequence of a filter."""
    return matrix_size(blocks) + place_of(geometry, blocks, blocks.rows * blocks.width - 1) + 1


def channels_of_bank(blocks):
    """Channels whose sums fill a bank."""
    return max(1, BANK_COLUMNS // (blocks.bank[0] * blocks.bank[1]))


def images_on_partitions(cn):
    """Images of a chunk of channels that go on the partitions together."""
    return nl.tile_size.pmax // cn


def groups_of(blocks, item):
    """Groups of images of an item that go on the partitions one after the other."""
    return div_ceil(item.images[1], images_on_partitions(blocks.chunks[item.chunk][1]))


def framed_shape(geometry, blocks, item):
    """[(image, c), rows, columns] of an item's planes that go on the partitions together, with what a tap may see
    around them."""
    cn, last = blocks.chunks[item.chunk][1], blocks.windows[-1].start - blocks.windows[0].start
    parts = min(item.images[1], images_on_partitions(cn)) * cn
    return parts, (blocks_below(blocks, item) - 1) * blocks.apart + blocks.rows, last + blocks.width


def has_own_columns(geometry, blocks):
    """Whether disjoint windows have all columns of x and no others."""
    return blocks.settings.disjoint == 1 and have_own_columns(geometry.columns, blocks.windows, blocks.width)


def transposes_together(cn, itemsize):
    """Transposes that a bank holds, of all images of a chunk that are together."""
    return max(1, BANK_BYTES // (whole_words(images_on_partitions(cn) * cn, itemsize) * itemsize))


def blocks_bytes(geometry, blocks, extras):
    """Bytes a partition, at most."""
    item, y_item, most = geometry.itemsize, extras.epilogue.y_itemsize, 0
    tiles, most_channels = matrices_shape(blocks)
    fixed = tiles * most_channels * matrix_size(blocks) * item
    lines = div_ceil(geometry.C, nl.tile_size.pmax)
    fixed += lines * (line_length(geometry, blocks) + num_taps(geometry)) * item
    fixed += 4 * (MATRICES * most_channels if extras.epilogue.bias else 0) + 2 * nl.tile_size.pmax
    for one in blocks.items:
        _, beside, below, images, count = x_shape(blocks, one)
        y = elements_of(y_shape(geometry, blocks, one)) * (2 * y_item + (2 * 8 if extras.residual else 0))
        x = blocks.settings.buffers * beside * below * images * count * item
        if not blocks.by_pixels:
            _, height, width = framed_shape(geometry, blocks, one)
            planes = FRAMED * width + RAWS * geometry.columns.size
            planes = LOADED * width if has_own_columns(geometry, blocks) else planes
            x += groups_of(blocks, one) * height * planes * item
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
        mine, total, chunk = share(len(blocks.items), cores, core), 8 + WARM_UP, -1
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
    products, spans = 1, max(1, len(blocks.spans))
    if blocks.settings.disjoint == 1:
        steps, products = 1, 0
        for span in blocks.spans:
            products += len(span.products)
    sums = steps * (cn * blocks.depth * products + 4 * banks * spans)
    if blocks.by_pixels:
        return sums + beside * (blocks.rows + 4 + 2 * blocks.depth) + 8 * beside
    below = blocks_below(blocks, item)
    turned = below + div_ceil(below, transposes_together(cn, geometry.itemsize))
    return sums + groups_of(blocks, item) * (beside * turned + 6 + images_on_partitions(cn)) + 8
