"""How the pixels of y are cut: bands that share a load of x, blocks whose results leave together, tiles of the array.

A block is some rows of some images, its pixels in the order of memory: partition m of the results holds the `side`
neighbours m * side .. m * side + side - 1 of a row, side of Q's divisors, so that they leave as one run of side * K
elements. Its tile t is pixel t of each partition, at most 128 of them: a window of x with steps of side * stride
columns.
"""

from dataclasses import dataclass
from math import gcd

from ...._nki import nl
from ....schedules.cuts import Outputs, most_of, window_of
from ....schedules.geometry import Axis
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_into, div_ceil, share
from ..transposes import is_transposed

#: Elements between neighbours of a free axis on chip, at most (rules NKI053).
STEP_MAX = 32_767


@dataclass
class Source(nl.NKIObject):
    """Axes of x as this algorithm loads them.

    fold: rows of y beside each other in the columns of the array, with slots = fold * stride rows of x on the
    partitions: padded row g of x is row g // slots of slot g % slots. Where fold is 1, slots is 1. dense: rows and
    columns of x are stored without zeros between elements, as all pixels of a tile see x at the same taps.
    """

    planes: Axis
    rows: Axis
    columns: Axis
    fold: int
    slots: int
    dense: bool


@dataclass
class Block(nl.NKIObject):
    """Images and rows, each so many `apart`, from the first of its band, all of its columns; units: partitions of a
    row."""

    z: int
    zn: int
    p: int
    pn: int
    apart: int
    units: int


@dataclass
class Cut(nl.NKIObject):
    """Sizes of blocks: neighbours on a partition, (first column, columns) of parts of a row, rows and how far they are
    apart, images."""

    side: int
    parts: list
    rows: int
    apart: int
    images: int


def source_of(geometry, fold, side):
    """The Source of a problem; of folded rows `before` and `size` are those of all slots together, in rows of x."""
    rows, slots = geometry.rows, 1
    if fold > 1:
        slots = fold * rows.stride
        reach = (fold - 1) * rows.stride + (rows.taps - 1) * rows.dilation
        rows = Axis(size=rows.size, taps=reach // slots + 1, out=rows.out // fold, before=rows.before)
    columns = geometry.columns
    dense = rows.lhs_dilation * columns.lhs_dilation > 1 and side % outputs_apart(columns) == 0
    return Source(planes=geometry.planes, rows=rows, columns=columns, fold=fold, slots=slots, dense=dense)


def casts_x(geometry):
    """Whether an engine casts x after it has come: DMA does not while it transposes."""
    return geometry.itemsize != geometry.hbm_itemsize and is_transposed(geometry)


def can_fold(geometry, fold):
    """Whether `fold` output rows fit in the array's columns. (Engines cannot cast across partitions.)"""
    rows = geometry.rows
    fits = fold * rows.stride * geometry.C <= nl.tile_size.pmax and fold * geometry.K <= BANK_COLUMNS
    whole = rows.out % fold == 0 and geometry.planes.taps == 1 and rows.before >= 0 and rows.lhs_dilation == 1
    return fold == 1 or (fits and whole and not casts_x(geometry))


def window_shape(source, band):
    """Planes, rows and columns of padded x that a band (Outputs) sees; of folded rows those of a slot."""
    rows, columns = held(source.rows, band.pn, source.dense), held(source.columns, band.qn, source.dense)
    return window_of(source.planes, band.zn), rows, columns


def held(axis, outputs, dense):
    """Elements of the window that so many neighbouring outputs span, as stored."""
    return div_ceil(window_of(axis, outputs), axis.lhs_dilation if dense else 1)


def first_held(axis, output):
    """The first element of x, or what would be it, of the dense window of outputs from one on."""
    start = output * axis.stride - axis.before
    return div_ceil(start, axis.lhs_dilation) if start > 0 else -(-start // axis.lhs_dilation)


def place_in(axis, first, output, tap, dense):
    """Where an output sees x at a tap, in the window of outputs from `first` on."""
    if not dense:
        return (output - first) * axis.stride + tap * axis.dilation
    place = output * axis.stride + tap * axis.dilation - axis.before - first_held(axis, first) * axis.lhs_dilation
    return place // axis.lhs_dilation


def inside(axis, first, count, dense=False):
    """(first element, how many, place of the first, step) of x within the window of outputs first .. first+count-1."""
    out, size = axis.out // axis.images, axis.size // axis.images
    image = first // out
    start = (first - image * out) * axis.stride - axis.before
    end = start + window_of(axis, count) - 1
    low = div_ceil(start, axis.lhs_dilation) if start > 0 else 0
    high = min(size - 1, end // axis.lhs_dilation) if end >= 0 else -1
    if high < low:
        return 0, 0, 0, 1
    if dense:
        return low, high - low + 1, low - first_held(axis, first), 1
    return image * size + low, high - low + 1, low * axis.lhs_dilation - start, axis.lhs_dilation


def rows_inside(source, first, count, slot):
    """`inside` of the rows of one slot, counted from its own first one."""
    rows, slots = source.rows, source.slots
    if slots == 1:
        return inside(rows, first, count, source.dense)
    low = max(first, div_ceil(max(0, rows.before - slot), slots))
    last = rows.size - 1 + rows.before - slot
    high = min(first + window_of(rows, count) - 1, last // slots) if last >= 0 else -1
    return (low, high - low + 1, low - first, 1) if high >= low else (0, 0, 0, 1)


def is_padded(axis):
    """Whether a window holds zeros that are no elements of x: around it, or between its elements."""
    out = axis.out // axis.images
    return axis.lhs_dilation > 1 or inside(axis, 0, out)[1] < window_of(axis, out)


def cut_of(source, geometry, side, most_elements):
    """The Cut for `side` neighbours on a partition; most_elements: of one image's window of x, if more than a row."""
    P_MAX = nl.tile_size.pmax
    P, Q = source.rows.out, source.columns.out
    units = Q // side
    width = min(units, P_MAX)
    height = window_of(source.planes, 1) * held(source.rows, 1, source.dense)
    while width > 1 and height * held(source.columns, width * side, source.dense) > most_elements:
        width = div_ceil(width, 2)
    parts = []
    for piece in cut(units, width):
        parts.append((piece[0] * side, piece[1] * side))
    rows, images, apart = 1, 1, outputs_apart(source.rows)
    if len(parts) == 1 and apart * source.rows.stride * window_of(source.columns, Q) <= STEP_MAX:
        rows = min(div_ceil(P, apart), P_MAX // units)
        if rows * apart >= P:
            images = min(geometry.planes.out // geometry.planes.images, P_MAX // (rows * units))
    return Cut(side=side, parts=parts, rows=rows, apart=apart, images=images)


def outputs_apart(axis):
    """How far apart outputs are that see elements of x at the same taps: others see zeros between elements there."""
    return axis.lhs_dilation // gcd(axis.stride, axis.lhs_dilation)


def sees_x(axis, output, apart, tap):
    """Whether an output, and those that are a multiple of `apart` further, see elements of x at a tap, or what would be
    some around it, not zeros between them."""
    if apart % outputs_apart(axis) > 0:
        return True
    place = output * axis.stride + tap * axis.dilation - axis.before
    return place % axis.lhs_dilation == 0


def pixel_bands(source, geometry, sizes, most_elements, halves):
    """Bands (Outputs) of all planes, at least `halves` where that shares the work: blocks of whole images, or of rows
    of one; most_elements: of x on one partition."""
    each, P, found = geometry.planes.out // geometry.planes.images, source.rows.out, []
    row_blocks, image_blocks = cut(P, sizes.rows * sizes.apart), cut(each, sizes.images)
    columns, height = held(source.columns, most_of(sizes.parts), source.dense), held(source.rows, P, source.dense)
    images = most_blocks(source.planes, sizes.images, most_elements // (height * columns))
    odd = halves > 1 and (len(image_blocks) * len(sizes.parts)) % PARTS == 1
    if images >= 1 and not (odd and len(row_blocks) > 1):
        for z0 in range(0, geometry.planes.out, each):
            for half in range(halves):
                mine = share(len(image_blocks), halves, half)
                for group in cut(mine[1], images):
                    first, count = joined_blocks(image_blocks, mine[0] + group[0], group[1])
                    add_bands(found, sizes, (z0 + first, count), (0, P))
        return found
    most, step = most_elements // (window_of(source.planes, 1) * columns), 1
    if source.dense:
        step = source.rows.lhs_dilation
    rows = max(1, most_blocks(source.rows, sizes.rows * sizes.apart, most * step))
    count = div_ceil(len(row_blocks), min(len(row_blocks), rows))
    if odd and count % PARTS == 1 and count < len(row_blocks):
        count += 1
    for image in range(geometry.planes.out):
        for mine in cut_into(len(row_blocks), count):
            add_bands(found, sizes, (image, 1), joined_blocks(row_blocks, mine[0], mine[1]))
    return found


def most_blocks(axis, size, elements):
    """Blocks of so many outputs whose window of x has at most so many elements."""
    reach = window_of(axis, 1)
    return ((elements - reach) // axis.stride + 1) // size if elements >= reach else 0


def joined_blocks(blocks, first, count):
    """(first, how many) of what neighbouring blocks hold together."""
    last = blocks[first + count - 1]
    return blocks[first][0], last[0] + last[1] - blocks[first][0]


def add_bands(found, sizes, images, rows):
    """Append the bands of (first, how many) images and rows, of all columns."""
    for part in sizes.parts:
        found.append(Outputs(z0=images[0], zn=images[1], p0=rows[0], pn=rows[1], q0=part[0], qn=part[1]))


def blocks_of(sizes, band):
    """Blocks of a band, in the order of the work."""
    found = []
    for image in cut(band.zn, sizes.images):
        for row in cut(band.pn, sizes.rows * sizes.apart):
            for first in range(min(row[1], sizes.apart)):
                pn = div_ceil(row[1] - first, sizes.apart)
                units = band.qn // sizes.side
                found.append(Block(z=image[0], zn=image[1], p=row[0] + first, pn=pn, apart=sizes.apart, units=units))
    return found


def pixels_of(block):
    """Partitions of the sums of a block."""
    return block.zn * block.pn * block.units
