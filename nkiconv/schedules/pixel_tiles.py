"""Tiling of y's pixels: output tiles that share a load of x, blocks whose results are stored together, tiles of the
Tensor Engine.

A block is some rows of some images, its pixels in memory order: partition m of the results holds the `side` neighbours
m * side .. m * side + side - 1 of a row, with side a divisor of Q, so that they are stored as one run of side * K
elements. Its tile t is pixel t of each of its at most 128 partitions: a window of x in steps of side * stride columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from .channel_pieces import all_places, own_piece
from .cuts import Outputs, hull, most_of, window_of
from .geometry import Axis, Geometry, is_transposed, num_phases, num_taps
from .moving_filters import RAW_BYTES, FilterSchedule, comes_raw, raw_bytes, way_of
from .options import Options, keeps_sums, norm_bytes, prologue_bytes
from .regions import residuals_in_turn
from .settings import BY_SHAPE, WARM_UPS, Settings, choice, count, warm_up
from .tiles import (
    BANK_COLUMNS,
    P_MAX,
    PARTS,
    STEP_MAX,
    Part,
    cut,
    cut_into,
    div_ceil,
    fits_sbuf,
    share,
    some_of,
)

#: Bytes a partition of x of an output tile, two of which are loaded at once, and of filters of a weight-resident group.
X_BYTES, FILTER_BYTES = 32_768, 118_784
#: Bytes a partition of one load of a later output tile, if it has as many; half as many of a single K tile.
LOAD_BYTES = 8192

SHARDS = ("channels", "images")


@dataclass(frozen=True)
class PixelSettings(Settings):
    """Settings of y as NHWC."""

    algorithm = "activation_stationary"
    tried = ("shard", "side", "fold", "shifts", "warmup")
    keeps = f"padded windows in steps of at most {STEP_MAX} elements, and filters of all input channels,"

    shard: str = choice(
        "of y as NHWC: the two cores share channels of y, or images and their rows; images if fold > 1",
        SHARDS,
        near=("images", "channels"),
    )
    side: int = count("neighbouring pixels of a partition", 1, 4096, near=BY_SHAPE)
    fold: int = count(
        "rows of y in the columns of the Tensor Engine; fold * stride rows of x, or more, are on its rows, if they fit",
        1,
        P_MAX,
        near=(1, 2, 3, 4, 6, 8),
    )
    shifts: int = count(
        "copies of x on the rows of the Tensor Engine, each shifted by one more column of taps",
        1,
        P_MAX,
        near=(1, 2, 3, 4),
    )
    rest: int = count("channels in a K tile of their own, with as many copies as it has room for", 0, P_MAX, default=0)
    warmup: int = warm_up(28, near=WARM_UPS)


@dataclass(frozen=True)
class Source:
    """Axes of x as the algorithm loads them.

    fold: rows of y packed along the columns of the Tensor Engine. slots: rows of x on the partitions; row h of slot j
    is padded row h * step + j of x. A product takes the taps of all slots, and a column of taps `down` products. slots
    and step are 1 if rows of x are not packed; then `rows` has as taps the rows that `fold` rows of y see, or is the
    problem's if fold is 1. shifts: copies of all slots, each one tap further on the right, so that a product takes so
    many columns of taps; `columns` has a multiple of them. dense: rows and columns of x are stored without zeros
    between elements, as all pixels of a tile see x at the same taps.
    """

    planes: Axis
    rows: Axis
    columns: Axis
    fold: int
    step: int
    slots: int
    shifts: int
    dense: bool

    @property
    def copies(self) -> int:
        """Copies of the channels on the partitions: (shift, slot)."""
        return self.shifts * self.slots

    @property
    def packed_taps(self) -> bool:
        """Whether products are not those of the problem's rows of taps."""
        return self.fold > 1 or self.slots > 1

    @property
    def again(self) -> int:
        """Rows at the end of a window that products do not read: slots from `step` on have those of earlier slots."""
        return div_ceil(self.slots, self.step) - 1

    @property
    def down(self) -> int:
        """Products of a column of taps."""
        return self.rows.taps - self.again

    @property
    def across(self) -> int:
        """Products of a row of taps."""
        return self.columns.taps // self.shifts

    def product_of(self, row: int) -> tuple[int, int]:
        """(product of a column of taps, slot) of a padded row from the first one on that an output row sees."""
        product = div_ceil(max(0, row - self.slots + 1), self.step)
        return product, row - product * self.step

    @property
    def taps(self) -> int:
        """Products of an output."""
        return self.planes.taps * self.down * self.across


@dataclass(frozen=True)
class Block:
    """Images z .. z+zn-1 and pn rows from p on, `apart` from each other, counted in the output tile, with all its
    columns; units: partitions of a row."""

    z: int
    zn: int
    p: int
    pn: int
    apart: int
    units: int


@dataclass(frozen=True)
class Cut:
    """Sizes of blocks: neighbours on a partition, (first column, columns) of parts of a row, rows and their distance,
    images."""

    side: int
    parts: list[Part]
    rows: int
    apart: int
    images: int


def source_of(geometry: Geometry, fold: int, shifts: int, side: int) -> Source:
    """The Source of a problem; `before` and `size` of packed rows count rows of x, of all slots together."""
    rows, step, slots = geometry.rows, *slots_of(geometry, fold, shifts)
    if fold > 1 or slots > 1:
        stride = 1 if slots > 1 else fold * rows.stride
        taps = seen_rows(rows, fold) // step + 1
        rows = Axis(size=rows.size, taps=taps, out=rows.out // fold, stride=stride, before=rows.before)
    columns = replace(geometry.columns, taps=div_ceil(geometry.columns.taps, shifts) * shifts)
    dense = rows.lhs_dilation * columns.lhs_dilation > 1 and side % num_phases(columns) == 0
    return Source(geometry.planes, rows, columns, fold, step, slots, shifts, dense)


def source_of_rest(geometry: Geometry, fold: int, rest: int) -> Source:
    """The Source of so many channels with the fewest products; of these the fewest copies."""
    own, taps = replace(geometry, C=rest), geometry.columns.taps
    tried = sorted({div_ceil(taps, groups) for groups in range(1, taps + 1)})
    every = [source_of(own, fold, shifts, 1) for shifts in tried if shifts * rest <= P_MAX]
    return min(every, key=lambda one: (one.taps, one.copies))


def seen_rows(rows: Axis, fold: int) -> int:
    """The last padded row that `fold` neighbouring rows of outputs see, from the first one on."""
    return (fold - 1) * rows.stride + (rows.taps - 1) * rows.dilation


def slots_of(geometry: Geometry, fold: int, shifts: int) -> tuple[int, int]:
    """(step, slots) of a Source: the fewest products that the partitions have room for, by the fewest slots, at least
    `step`. (1, 1) without packed rows of x: if there is no room; a single row of outputs has slots only where x has
    copies."""
    rows, most = geometry.rows, P_MAX // (shifts * geometry.C)
    step, seen = fold * rows.stride, seen_rows(rows, fold) + 1
    if step > most or (fold == 1 and (shifts == 1 or rows.dilation > 1 or step > seen)):
        return 1, 1
    slots = max(step, seen - div_ceil(max(0, seen - most), step) * step)
    return (1, 1) if slots == 1 else (step, slots)


def casts_x(geometry: Geometry) -> bool:
    """Whether an engine casts x after its load: DMA does not cast while it transposes."""
    return geometry.itemsize != geometry.hbm_itemsize and is_transposed(geometry)


def can_fold(geometry: Geometry, fold: int, shifts: int, rest: int) -> bool:
    """Whether `fold` output rows fit the columns of the Tensor Engine, and the copies of x its rows. (Engines cannot
    cast across partitions.)"""
    rows, columns, own = geometry.rows, geometry.columns, geometry.C - rest
    if fold == shifts == 1 and rest == 0:
        return True
    fits = own > 0 and (shifts == 1 or shifts * own <= P_MAX) and (fold == 1 or fold * geometry.K <= BANK_COLUMNS)
    fits = fits and ((shifts == 1 and rest == 0) or (shifts <= columns.taps and columns.lhs_dilation == 1))
    whole = rows.out % fold == 0 and rows.before >= 0 and rows.lhs_dilation == 1
    return fits and whole and not casts_x(geometry)


def window_shape(source: Source, out_tile: Outputs) -> tuple[int, int, int]:
    """Planes, rows and columns of padded x that an output tile (Outputs) sees; rows of one slot if rows are folded."""
    rows, columns = held(source.rows, out_tile.pn, source.dense), held(source.columns, out_tile.qn, source.dense)
    return window_of(source.planes, out_tile.zn), rows, columns


def held(axis: Axis, outputs: int, dense: bool) -> int:
    """Stored elements of the window of `outputs` neighbouring outputs."""
    return div_ceil(window_of(axis, outputs), axis.lhs_dilation if dense else 1)


def place_in(axis: Axis, first: int, output: int, tap: int, dense: bool) -> int:
    """The place that an output sees at a tap, in the window of outputs from `first` on."""
    apart = axis.lhs_dilation if dense else 1
    seen = (output * axis.stride + tap * axis.dilation - axis.before) // apart
    return seen - div_ceil(first * axis.stride - axis.before, apart)


def inside(axis: Axis, first: int, count: int, dense: bool = False) -> tuple[int, int, int, int]:
    """(first element, count, place of the first, step) of x within the window of outputs first .. first+count-1."""
    out, size, apart = axis.out // axis.images, axis.size // axis.images, axis.lhs_dilation if dense else 1
    image = first // out
    start = (first - image * out) * axis.stride - axis.before
    low = max(0, div_ceil(start, axis.lhs_dilation))
    high = min(size - 1, (start + window_of(axis, count) - 1) // axis.lhs_dilation)
    if high < low:
        return 0, 0, 0, 1
    place = low * axis.lhs_dilation // apart - div_ceil(start, apart)
    return image * size + low, high - low + 1, place, axis.lhs_dilation // apart


def rows_inside(source: Source, first: int, count: int, slot: int) -> tuple[int, int, int, int]:
    """`inside` for the rows of one slot before `step`, counted from the slot's first row."""
    rows, step = source.rows, source.step
    if source.slots == 1:
        return inside(rows, first, count, source.dense)
    low = max(first, div_ceil(rows.before - slot, step))
    high = min(first + window_of(rows, count) - 1, (rows.size - 1 + rows.before - slot) // step)
    return (low, high - low + 1, low - first, 1) if high >= low else (0, 0, 0, 1)


def is_padded(axis: Axis) -> bool:
    """Whether a window holds zeros around x or between its elements."""
    out = axis.out // axis.images
    return axis.lhs_dilation > 1 or inside(axis, 0, out)[1] < window_of(axis, out)


def cut_of(source: Source, geometry: Geometry, side: int, most_elements: int) -> Cut:
    """The Cut for `side` neighbours on a partition; most_elements: the most elements of x that a part of a row sees, if
    it has several partitions."""
    P, Q = source.rows.out, source.columns.out
    units = Q // side
    width = min(units, P_MAX)
    height = window_of(source.planes, 1) * held(source.rows, 1, source.dense)
    while width > 1 and height * held(source.columns, width * side, source.dense) > most_elements:
        width = div_ceil(width, 2)
    parts = [(first * side, count * side) for first, count in cut(units, width)]
    rows, images, apart = 1, 1, num_phases(source.rows)
    if len(parts) == 1 and apart * source.rows.stride * window_of(source.columns, Q) <= STEP_MAX:
        rows = min(div_ceil(P, apart), P_MAX // units)
        if rows * apart >= P:
            images = min(geometry.planes.out // geometry.planes.images, P_MAX // (rows * units))
    return Cut(side=side, parts=parts, rows=rows, apart=apart, images=images)


def sees_x(axis: Axis, output: int, apart: int, tap: int) -> bool:
    """Whether an output, and the outputs at multiples of `apart` after it, see elements of x or of its padding at a
    tap, not zeros between elements."""
    if apart % num_phases(axis) > 0:
        return True
    place = output * axis.stride + tap * axis.dilation - axis.before
    return place % axis.lhs_dilation == 0


def pixel_out_tiles(source: Source, geometry: Geometry, sizes: Cut, most_elements: int, halves: int) -> list[Outputs]:
    """Output tiles (Outputs) of all planes, at least `halves` if that shares the work: blocks of whole images, or of
    rows of one image; most_elements: the most elements of x on a partition."""
    each, P = geometry.planes.out // geometry.planes.images, source.rows.out
    row_blocks, image_blocks = cut(P, sizes.rows * sizes.apart), cut(each, sizes.images)
    columns, height = held(source.columns, most_of(sizes.parts), source.dense), held(source.rows, P, source.dense)
    images = most_blocks(source.planes, sizes.images, most_elements // (height * columns))
    odd = halves > 1 and (len(image_blocks) * len(sizes.parts)) % PARTS == 1
    if images >= 1 and not (odd and len(row_blocks) > 1):
        shares = [share(len(image_blocks), halves, half) for half in range(halves)]
        groups = [(first + at, count) for first, mine in shares for at, count in cut(mine, images)]
        some = [hull(some_of(image_blocks, group), (0, 0)) for group in groups]
        out_tiles = [((z0 + z, zn), (0, P)) for z0 in range(0, geometry.planes.out, each) for z, zn in some]
    else:
        step = source.rows.lhs_dilation if source.dense else 1
        most = most_elements // (window_of(source.planes, 1) * columns) * step
        rows = max(1, most_blocks(source.rows, sizes.rows * sizes.apart, most))
        count = div_ceil(len(row_blocks), min(len(row_blocks), rows))
        if odd and count % PARTS == 1 and count < len(row_blocks):
            count += 1
        some = [hull(some_of(row_blocks, mine), (0, 0)) for mine in cut_into(len(row_blocks), count)]
        out_tiles = [((image, 1), rows) for image in range(geometry.planes.out) for rows in some]
    return [Outputs(*images, *rows, *part) for images, rows in out_tiles for part in sizes.parts]


def most_blocks(axis: Axis, size: int, elements: int) -> int:
    """The number of blocks of `size` outputs whose window of x has at most `elements` elements."""
    reach = window_of(axis, 1)
    return ((elements - reach) // axis.stride + 1) // size if elements >= reach else 0


def blocks_of(sizes: Cut, out_tile: Outputs) -> list[Block]:
    """Blocks of an output tile, in the order that they are computed."""
    found = []
    for image in cut(out_tile.zn, sizes.images):
        for row in cut(out_tile.pn, sizes.rows * sizes.apart):
            for first in range(min(row[1], sizes.apart)):
                pn = div_ceil(row[1] - first, sizes.apart)
                units = out_tile.qn // sizes.side
                found.append(Block(z=image[0], zn=image[1], p=row[0] + first, pn=pn, apart=sizes.apart, units=units))
    return found


def pixels_of(block: Block) -> int:
    """Partitions of a block's accumulators."""
    return block.zn * block.pn * block.units


#: Banks of accumulators that take filters of one tap as these arrive; the other banks are for transposes.
FIRST_BANKS = 5


@dataclass(frozen=True)
class PixelItem:
    """One output tile and the output channels of one weight-resident group."""

    batch: int
    out_tile: Outputs


@dataclass(frozen=True)
class PixelSchedule(FilterSchedule):
    """The schedule of y as NHWC: K tiles of one KTilePiece each; batches (first, count) of output channels whose
    filters are in SBUF together; items in order."""

    by_rows = False

    source: Source
    sizes: Cut
    batches: list[Part]
    #: most output channels of a matmul
    most_k: int
    items: list[PixelItem]
    #: banks of accumulators that take a group's filters as these arrive
    banks: int
    #: the Source of the last K tile, if it has its own
    rest: Source | None

    @cached_property
    def sources(self) -> list[Source]:
        """The Source of each K tile."""
        rest = [] if self.rest is None else [self.rest]
        return [self.source] * (len(self.k_tiles) - len(rest)) + rest

    def run(self, columns: int) -> int:
        """Elements of a run of y with so many columns of filters."""
        return columns * self.sizes.side


def padded_taps(geometry: Geometry, source: Source) -> tuple[int, int, int]:
    """(zeros above, rows, columns) of a filter's taps with zeros around them, and between rows that are apart: the taps
    that a product sees for an output row are a block of it."""
    rows, top = geometry.rows, (source.fold - 1) * geometry.rows.stride
    apart = rows.dilation if source.packed_taps else 1
    height = top + max((rows.taps - 1) * apart + 1, (source.down - 1) * source.step + source.slots)
    return top, height, source.columns.taps


def packs_filters(geometry: Geometry, source: Source, way: str) -> bool:
    """Whether filters of several slots or shifts are loaded whole, and transposed to all their partitions at once."""
    _, height, width = padded_taps(geometry, source)
    fits = geometry.C * height * width * geometry.itemsize <= RAW_BYTES
    plain = geometry.packed == 0 and geometry.planes.taps == 1
    return way in ("array", "dma") and plain and source.copies > 1 and fits


def make_pixels(geometry: Geometry, options: Options, config: PixelSettings, each: int = 1) -> PixelSchedule | None:
    """The PixelSchedule of settings. None if SBUF has no room or a window's steps are too large, or if rows of y are
    folded and cores share channels or the filters need several groups. each: of patches, the output channels that
    groups of filters have together."""
    fold, own, item = config.fold, geometry.C - config.rest, geometry.itemsize
    source = source_of(replace(geometry, C=own), fold, config.shifts, config.side)
    rest = source_of_rest(geometry, fold, config.rest) if config.rest else None
    k_tiles = [[own_piece(*part)] for part in (*cut(own, P_MAX), *([(own, config.rest)] if rest else ()))]
    way = way_of(geometry, False) if each == 1 else "copy"
    packs = packs_filters(geometry, source, way)
    k_bytes = item * (source.taps * fold if packs else len(k_tiles) * num_taps(geometry))
    if not fits_sbuf(k_bytes * each):
        return None
    channels = geometry.K // each
    count = div_ceil(channels, max(1, FILTER_BYTES // (k_bytes * each)))
    if fold > 1 and (count > 1 or config.shard == "channels"):
        return None
    if count > 1 or config.shard == "channels":
        count = min(channels, div_ceil(count, PARTS) * PARTS)
    batches = [(first * each, some * each) for first, some in cut_into(channels, count)]
    most_elements = X_BYTES // (len(k_tiles) * item)
    sizes = cut_of(source, geometry, config.side, most_elements)
    # the least output tile of all is a block of rows
    rows, columns = most_of(cut(source.rows.out, sizes.rows * sizes.apart)), most_of(sizes.parts)
    if not fits_sbuf(2 * math.prod(window_shape(source, Outputs(0, 1, 0, rows, 0, columns))) * len(k_tiles) * item):
        return None
    out_tiles = pixel_out_tiles(source, geometry, sizes, most_elements, PARTS if count == 1 else 1)
    sources = [(source, len(k_tiles))] if rest is None else [(source, len(k_tiles) - 1), (rest, 1)]
    if max(widest_step(one, sizes, tile, count) for one, count in sources for tile in out_tiles) > STEP_MAX:
        return None
    found = PixelSchedule(
        source=source,
        sizes=sizes,
        k_tiles=k_tiles,
        places=[all_places(geometry)] * len(k_tiles),
        batches=batches,
        most_k=most_of(cut(fold * most_of(batches), BANK_COLUMNS)),
        items=[PixelItem(batch, out_tile) for batch in range(count) for out_tile in out_tiles],
        way=way,
        warmup=config.warmup,
        banks=FIRST_BANKS if num_taps(geometry) == 1 else 1,
        packs=packs,
        rest=rest,
    )
    return found if fits_sbuf(pixel_bytes(geometry, found, options)) else None


def adds_bias_by_ones(geometry: Geometry, options: Options, plan: PixelSchedule) -> bool:
    """Whether the Tensor Engine adds the bias, a matmul of ones and of three parts of bf16 after the others: if that
    takes less, 0.42 ns a column, than Vector's pass for the bias, 1.04 ns as another for the residual."""
    products = 1 + sum(source.taps for source in plan.sources)
    epilogue, passes = options.epilogue, 1 + options.residual
    plain = geometry.fast and epilogue.norm is None and not (options.strict_nonfinite or plan.of_patches)
    return epilogue.bias and plain and 2 * products < 5 * passes


def widest_step(source: Source, sizes: Cut, out_tile: Outputs, num_k_tiles: int) -> int:
    """The largest distance, in elements, of neighbours of an axis in the engines' views of a window."""
    dn, hn, wn = window_shape(source, out_tile)
    row = sizes.apart * source.rows.stride * wn if hn > 1 else 1
    image = source.planes.stride * hn * wn if dn * num_k_tiles > 1 else 1
    return max(max(row, image), sizes.side * source.columns.stride if out_tile.qn > sizes.side else 1)


def pixel_bytes(geometry: Geometry, plan: PixelSchedule, options: Options) -> int:
    """An upper bound of bytes a partition: x of two output tiles, filters, blocks of taps, results, bias."""
    item, y_item, fold, kn = geometry.itemsize, options.epilogue.y_itemsize, plan.source.fold, most_of(plan.batches)
    sources = plan.sources
    elements = max(sum(math.prod(window_shape(one, item.out_tile)) for one in sources) for item in plan.items)
    x_bytes = 2 * elements * (item + (geometry.hbm_itemsize if casts_x(geometry) else 0))
    packed = sum(one.taps * fold for one in sources if one.copies * fold > 1)
    filters = ((0 if plan.packs else len(sources) * num_taps(geometry)) + packed) * kn * item
    if plan.packs:
        padded = sum(math.prod(padded_taps(geometry, one)[1:]) for one in sources)
        filters += 4 * geometry.C * padded * item
    if plan.packs or comes_raw(plan.way):
        filters += raw_bytes(geometry, plan)
    stored = 4 if keeps_sums(options.epilogue) else 2
    elements = plan.sizes.side * fold * kn
    # residuals, and two times beta
    residuals = (residuals_in_turn(elements) + 2) * 4 if options.residual else 0
    results = elements * (stored * y_item + residuals)
    # accumulators, bias, zeros; then operands of a prologue and of a norm
    fixed = 3 * 4 * BANK_COLUMNS + (2 * 4 * fold * kn if options.epilogue.bias else 0) + P_MAX * 2
    numbers = prologue_bytes(options.prologue, geometry, geometry.planes.size) + norm_bytes(options.epilogue, kn)
    return x_bytes + filters + results + fixed + numbers


def load_parts(
    geometry: Geometry, plan: PixelSchedule, own: Source, out_tile: Outputs, start: bool
) -> list[tuple[int, int, int, int]]:
    """(first plane, planes, first row, rows of the window of a K tile with its own Source) of the loads of an output
    tile, in whole blocks, which are those of all K tiles. start: the first load is of one block and each later one
    doubles the loaded part, as no earlier tile hides it."""
    source, block = plan.source, blocks_of(plan.sizes, out_tile)[0]
    _, rows, columns = window_shape(source, out_tile)
    own_planes, own_rows, _ = window_shape(own, out_tile)
    several, tall = out_tile.zn > 1, block.pn * block.apart
    if several:
        axis, most, each, height = own.planes, out_tile.zn, block.zn, rows
    else:
        axis, most, each, height = own.rows, out_tile.pn, tall, tall * source.rows.stride
    load_bytes = LOAD_BYTES // (2 if len(plan.k_tiles) == 1 else 1)
    at_once = each * div_ceil(load_bytes, block.zn * height * columns * geometry.itemsize)
    found, outputs, first = [], 0, 0
    while outputs < most:
        outputs = min(most, outputs + (max(each, outputs) if start else at_once))
        end = held(axis, outputs, own.dense and not several)
        found.append((first, end - first, 0, own_rows) if several else (0, own_planes, first, end - first))
        first = end
    return found
