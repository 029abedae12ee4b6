"""Settings of `blocks`, filter gradients with a block of gy on each partition: ranges, defaults and combinations; and
the partitions of blocks: 128 blocks are a tile, loaded with the window of x around each block.

If channels are not neighbours in memory (NCHW), blocks have another Geometry: `blocks_geometry`. A unit is `rows`
neighbouring rows of a plane of gy and `columns` columns. Units whose windows are inside x at the same elements have
neighbouring partitions, so that a DMA loads many of them; the last units of an axis may have fewer rows or columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

from .cuts import places_inside, window_of
from .geometry import Axis, Geometry, is_evenly_apart, num_taps, valid_range, windows_of_outputs
from .settings import BY_SHAPE, Config, Settings, count, double, half, less, more, setting, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, PSUM_BANKS, QUADRANT, Part, cut, cut_at, div_ceil, size_of

#: The most tiles of blocks in SBUF at once.
BUFFERS_MAX = 64
_BANK = BANK_COLUMNS


@dataclass(frozen=True)
class BlocksSettings(Settings):
    """Settings of `blocks`."""

    algorithm = "blocks"
    tried = ("buffers", "rows", "columns", "outputs", "inputs", "warmup", "split")

    rows: int = count("rows of gy of a block; a partition holds one", 1, _BANK, near=BY_SHAPE)
    columns: int = count("columns of gy of a block", 1, _BANK, near=BY_SHAPE)
    channels: int = count("input channels of an accumulator", 1, _BANK)
    outputs: int = count("accumulators of a pass along output channels, 128 each", 1, _BANK, near=(half, double))
    inputs: int = count("accumulators of a pass along input channels", 1, _BANK, near=(less, more, double))
    beside: int = count(
        "columns of gy packed along an accumulator's rows, if the last output channels leave room", 1, 4
    )
    side: int = count("row tiles, each with its part of a pass's input channels: 1, 2 or 4", 1, 4, default=1)
    buffers: int = count("tiles of blocks that are loaded at once", 1, BUFFERS_MAX, near=(less, more, double))
    pixels: int = count(
        "of NCHW: 1: DMA transposes lines; 2: the Tensor Engine transposes x and gy; 3: gy alone; 0: both keep their "
        "memory order",
        0,
        3,
        default=0,
    )
    split: int = count("1: the cores share blocks and add their sums; 0: they share passes", 0, 1, near=(0, 1))
    exchanged: int = count(
        "1: x and gy are exchanged: input channels are the rows of accumulators, output channels their columns; 0: not",
        0,
        1,
        default=0,
    )
    warmup: int = warm_up(0, near=(0, 28, 44, 60, 80))


#: Values of `pixels`: DMA transposes lines; the Tensor Engine transposes x and gy; gy alone.
LINES, TRANSPOSED, GY_TRANSPOSED = 1, 2, 3
#: The fewest pixels of a line, a run of HBM, unless it is a whole plane. Our choice: the time of short ones is unknown.
LINE_LEAST = 32
#: The fewest banks of PSUM for transposes of x and gy by the Tensor Engine.
TRANSPOSE_BANKS = 3
#: Bytes a partition of SBUF for all blocks of x and gy at once.
BLOCK_BYTES = 147_456


def config_unsupported(geometry: Geometry, config: Config, bias: bool) -> str:
    """Why a filter gradient does not take a geometry, or a config's names or values; "" if it does. geometry: of x and
    gy in memory."""
    reason = BlocksSettings.unsupported_reason(config) or gradient_unsupported(geometry)
    if reason := reason or exchange_unsupported(geometry, config, bias):
        return reason
    geometry = in_places(geometry, config)
    one = completed(geometry, config)
    beside, columns = one.beside, one.columns
    if one.side == 3 or (one.side > 1 and one.pixels > 0):
        return f"config side={one.side} pixels={one.pixels}: must be 1, 2 or 4, and 1 but for pixels=0"
    if beside > most_beside(geometry):
        return (
            f"config beside={beside}, K={geometry.K}, stride={geometry.columns.stride}: at most "
            f"{most_beside(geometry)}, where a group has up to {2 * QUADRANT} output channels, or that remainder of "
            f"{P_MAX}, gy as many columns and a bank holds the wider window; use less"
        )
    if reason := pixels_unsupported(geometry, one.pixels):
        return reason
    if one.pixels == LINES and max(beside, columns) > 1:
        return f"config beside={beside} columns={columns} pixels=1: a block of lines is one column; use 1"
    if columns < columns_beside(geometry, beside):
        least = columns_beside(geometry, beside)
        return f"config columns={columns} beside={beside}: must be at least {least}; use more"
    if one.channels > max_channels(geometry, beside):
        return (
            f"config channels={one.channels}: a bank of {BANK_COLUMNS} columns holds all taps of "
            f"{max_channels(geometry, beside)} input channels; use at most as many"
        )
    return ""


def gradient_unsupported(geometry: Geometry) -> str:
    """Why no settings compute the filter gradient of a geometry; "" if some do."""
    if geometry.hbm_itemsize == 1:
        return "img_ref.dtype=float8: a filter gradient takes 16 and 32 bits; cast x and gy"
    if geometry.precision in ("fp16x3", "winograd"):
        return f"precision={geometry.precision}: a filter gradient takes None, bf16 and tf32; use one of them"
    return ""


def spread_unsupported(geometry: Geometry, what: str, instead: str) -> str:
    """Why `what` does not take a geometry with lhs_dilation; "" without lhs_dilation."""
    apart = (geometry.planes.lhs_dilation, geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
    return "" if apart == (1, 1, 1) else f"lhs_dilation={apart}: {what} takes 1; use {instead}"


def pixels_unsupported(geometry: Geometry, pixels: int) -> str:
    """Why x and gy cannot lie as a value of `pixels` says; "" if they can."""
    if pixels == 0:
        return ""
    if geometry.x_strides[0] == geometry.y_strides[0] == 1:
        return f"config pixels={pixels}: channels of x and gy are neighbours (NHWC), nothing is transposed; use 0"
    if pixels == LINES and not has_lines(geometry):
        return (
            f"config pixels=1, {geometry.rows.size} x {geometry.columns.size} pixels: DMA transposes 16 bits, planes "
            f"without gaps which lines of {LINE_LEAST} to {P_MAX} pixels cut evenly, one tap that reads each pixel; "
            f"use 2 (the Tensor Engine transposes)"
        )
    if pixels == GY_TRANSPOSED and not has_all_windows(geometry):
        return "config pixels=3, padding or lhs_dilation: x keeps its memory order where all windows are in it; use 2"
    return spread_unsupported(geometry, "pixels=2", "pixels=0") if pixels == TRANSPOSED else ""


def in_places(geometry: Geometry, config: Config) -> Geometry:
    """The Geometry with x and gy exchanged if a config says so: then taps are in reverse order."""
    if setting(config, "exchanged", 0) == 0:
        return geometry
    k, c, r, s = geometry.w_strides
    return replace(
        geometry,
        C=geometry.K,
        K=geometry.C,
        planes=windows_of_outputs(geometry.planes),
        rows=windows_of_outputs(geometry.rows),
        columns=windows_of_outputs(geometry.columns),
        x_strides=geometry.y_strides,
        w_strides=(c, k, r, s),
        y_strides=geometry.x_strides,
        flipped=True,
    )


def exchange_unsupported(geometry: Geometry, config: Config, bias: bool) -> str:
    """Why x and gy cannot be exchanged as a config says; "" if they can."""
    strides = geometry.planes.stride, geometry.rows.stride, geometry.columns.stride
    if setting(config, "exchanged", 0) == 0:
        return ""
    if geometry.groups > 1 or max(strides) > 1:
        return (
            f"config exchanged=1, feature_group_count={geometry.groups}, stride={strides}: x and gy are exchanged "
            f"only with one group and stride 1; use 0"
        )
    if bias and len(whole_taps(in_places(geometry, config))) < len(geometry.axes):
        return (
            "config exchanged=1, bias_gradient=True: sums of gy need a tap at which x sees all of gy, and there is "
            "none; use 0"
        )
    return ""


def whole_taps(geometry: Geometry) -> list[int]:
    """The first tap of planes, of rows and of columns at which outputs see all elements; fewer if an axis has none."""
    ends = [(axis, axis.size // axis.images, axis.out // axis.images) for axis in geometry.axes]
    seen = (
        next((tap for tap in range(axis.taps) if valid_range(axis, tap, 0, out)[2] == size), -1)
        for axis, size, out in ends
    )
    return [tap for tap in seen if tap >= 0]


def has_lines(geometry: Geometry) -> bool:
    """Whether lines are possible: one tap that sees each pixel, 16 bits, planes without gaps that lines cut evenly."""
    width = geometry.columns.size
    return (
        num_taps(geometry) == 1
        and geometry.hbm_itemsize == 2
        and line_width(geometry.rows.size * width) > 0
        and all(axis.before == 0 and axis.size == axis.out for axis in geometry.axes)
        and all(axis.out == 1 or axis.stride == axis.lhs_dilation for axis in geometry.axes)
        and all(one[0] != 1 and one[2:4] == (width, 1) for one in (geometry.x_strides, geometry.y_strides))
    )


def has_all_windows(geometry: Geometry) -> bool:
    """Whether all windows are inside x, with no zeros between its elements."""
    return all(
        axis.lhs_dilation == 1
        and axis.before <= 0
        and window_of(axis, axis.out // axis.images) - axis.before <= axis.size // axis.images
        for axis in geometry.axes
    )


def blocks_geometry(geometry: Geometry, pixels: int) -> tuple[Geometry, Geometry]:
    """(Geometry of the blocks, with channels as neighbours if they are transposed, Geometry of x and gy in memory)."""
    if pixels == LINES:
        return lines_of(geometry)
    blocks = geometry if pixels == 0 else transposed_of(geometry)
    return (replace(blocks, x_strides=geometry.x_strides) if pixels == GY_TRANSPOSED else blocks), geometry


def lines_of(geometry: Geometry) -> tuple[Geometry, Geometry]:
    """(Geometry of lines after DMA has transposed them, with channels as neighbours, Geometry of lines in memory)."""
    size, planes = geometry.rows.size * geometry.columns.size, geometry.planes
    width = line_width(size)
    count = size // width
    x_strides, y_strides = ((*s[0:2], width, 1, *s[4:]) for s in (geometry.x_strides, geometry.y_strides))
    if count == 1 and is_evenly_apart(geometry):
        count, planes = planes.size, Axis(size=1, taps=1, out=1)
        x_strides, y_strides = ((s[0], 0, s[1], 1) for s in (geometry.x_strides, geometry.y_strides))
    rows, columns = Axis(size=count, taps=1, out=count), Axis(size=width, taps=1, out=width)
    source = replace(geometry, planes=planes, rows=rows, columns=columns, x_strides=x_strides, y_strides=y_strides)
    return transposed_of(source), source


def transposed_of(geometry: Geometry) -> Geometry:
    """The Geometry of blocks after a transpose, with channels as neighbours."""
    (K, C), rows, columns = (geometry.K, geometry.C), geometry.rows, geometry.columns
    x_strides = 1, C * rows.size * columns.size, C * columns.size, C
    return replace(geometry, x_strides=x_strides, y_strides=(1, K * rows.out * columns.out, K * columns.out, K))


def line_width(size: int) -> int:
    """Pixels of a line, LINE_LEAST or more, or all, that divide `size` and leave the fewest partitions idle; or 0."""
    widths = [width for width in range(min(size, LINE_LEAST), min(size, P_MAX) + 1) if size % width == 0]
    return max(widths, key=lambda width: (P_MAX // width * width, width), default=0)


def units_of_tile(geometry: Geometry, pixels: int) -> int:
    """The most units of a tile; a multiple of a line's pixels for lines."""
    width = geometry.columns.out
    return P_MAX // width * width if pixels == LINES else P_MAX


def apart_beside(geometry: Geometry) -> int:
    """The distance of columns of gy that share a matmul, at which their windows are whole taps apart."""
    columns = geometry.columns
    return columns.dilation // math.gcd(columns.stride, columns.dilation)


def further_beside(geometry: Geometry) -> int:
    """The distance of the windows of such columns of gy, in columns of taps."""
    return apart_beside(geometry) * geometry.columns.stride // geometry.columns.dilation


def columns_beside(geometry: Geometry, beside: int) -> int:
    """Columns of gy from the first to the last of `beside` that share a matmul."""
    return (beside - 1) * apart_beside(geometry) + 1


def matmuls_beside(geometry: Geometry, columns: int, beside: int) -> int:
    """The number of matmuls of `columns` columns of gy."""
    apart = apart_beside(geometry)
    whole, rest = divmod(columns, beside * apart)
    return whole * apart + min(rest, apart)


def pitch_beside(outputs: int, beside: int) -> int:
    """Rows of an accumulator from a column of gy to the next of its matmul: engines read PSUM from quadrants on."""
    return outputs if beside == 1 else div_ceil(outputs, QUADRANT) * QUADRANT


def most_beside(geometry: Geometry) -> int:
    """The most columns of gy that can share a matmul."""
    last, columns = geometry.K // geometry.groups % P_MAX, geometry.columns
    most = P_MAX // pitch_beside(last, 2) if last else 1
    fits = geometry.rows.taps * (columns.taps + 3 * further_beside(geometry)) <= BANK_COLUMNS
    return min(most, div_ceil(columns.out, apart_beside(geometry))) if fits else 1


def outputs_beside(geometry: Geometry, beside: int) -> list[tuple[Part, int]]:
    """((first, count) of a group's output channels, columns of gy that share a matmul) for each accumulator along k."""
    K = geometry.K // geometry.groups
    parts = cut(K, P_MAX) if beside == 1 else cut_at(K, P_MAX)
    return [(part, beside if beside * pitch_beside(part[1], beside) <= P_MAX else 1) for part in parts]


def max_channels(geometry: Geometry, beside: int) -> int:
    """The most input channels of an accumulator."""
    return max(1, min(geometry.C // geometry.groups, BANK_COLUMNS // taps_beside(geometry, beside)))


def taps_beside(geometry: Geometry, beside: int) -> int:
    """Taps of a plane in the window of `beside` columns of gy that share a matmul."""
    return geometry.rows.taps * (geometry.columns.taps + (beside - 1) * further_beside(geometry))


def completed(geometry: Geometry, config: Config) -> BlocksSettings:
    """All settings of a config; open ones take the least memory. geometry: of the blocks."""
    beside = setting(config, "beside", 1)
    channels = max_channels(geometry, beside)
    return BlocksSettings.read(config, columns=columns_beside(geometry, beside), channels=channels)


def sum_banks(pixels: int) -> int:
    """Banks of PSUM for accumulators, beside those that transpose x and gy."""
    return PSUM_BANKS - TRANSPOSE_BANKS if pixels >= TRANSPOSED else PSUM_BANKS


def banks_of_taps(geometry: Geometry) -> int:
    """Banks for all taps of an accumulator's output and input channels."""
    rows, columns = taps_of_banks(geometry)
    return geometry.planes.taps * len(rows) * len(columns)


def taps_of_banks(geometry: Geometry) -> tuple[list[Part], list[Part]]:
    """(first, count) of rows, and of columns, of taps of each bank: several rows of taps, if they fit."""
    R, S = geometry.rows.taps, geometry.columns.taps
    return cut(R, max(1, BANK_COLUMNS // S)), cut(S, BANK_COLUMNS)


@dataclass(frozen=True)
class Run:
    """Blocks first .. first+count-1 of an axis, of `extent` outputs each, whose starts are `apart` outputs apart.
    Elements low .. high-1 of their windows of x, spread by lhs_dilation, are inside x; low and high-1 are x's."""

    first: int
    count: int
    apart: int
    extent: int
    low: int
    high: int


@dataclass(frozen=True)
class Region:
    """Units on partitions from `part` on: `counts` planes, rows and columns of blocks of Runs, from (z, p, q) on."""

    part: int
    rows: Run
    columns: Run
    z: int
    p: int
    q: int
    counts: tuple[int, int, int]


#: The Regions of a tile.
Tile = tuple[Region, ...]


@dataclass(frozen=True)
class Accumulator:
    """An accumulator: (first, count) of output and input channels, and of rows and columns of taps of plane t. beside:
    columns of gy that share a matmul, each with its own rows of the accumulator; part: number of the row tile; bias:
    whether it sums the bias's gradient, with ones in x's place (t is -1), or in gy's if x and gy are exchanged."""

    k: Part
    c: Part
    t: int
    r: Part
    s: Part
    beside: int
    part: int
    bias: bool = False

    @property
    def pitch(self) -> int:
        """Rows from one column of gy's output channels to the next column's."""
        return pitch_beside(self.k[1], self.beside)


@dataclass(frozen=True)
class Pass:
    """Accumulators, at most as many as banks, that share loads; passes of equal channels and taps share tiles in SBUF.

    k, c, r, s, h, w: (first, count) of channels of gy, of channels of x on each row tile, of rows and columns of taps,
    and of rows and columns of a window; planes: of taps; first: (row, column) of gy whose products write all sums."""

    accumulators: tuple[Accumulator, ...]
    k: Part
    c: tuple[Part, ...]
    planes: tuple[int, ...]
    r: Part
    s: Part
    h: Part
    w: Part
    first: tuple[int, int]
    tiles: tuple[Tile, ...] = ()

    @property
    def loads(self) -> tuple[object, ...]:
        """What its tiles hold."""
        return self.k, self.c, self.planes, self.r, self.s

    @property
    def half(self) -> int:
        """The number of tiles of the first half of the units."""
        return div_ceil(len(self.tiles), PARTS)


def runs_of(axis: Axis, extent: int, taps: Part) -> tuple[Run, ...]:
    """Runs of an axis in blocks of `extent` outputs. taps: (first, count) of the taps of their windows."""
    out, spread = axis.out // axis.images, axis.lhs_dilation
    window, end = window_of(axis, extent, taps[1]), (axis.size // axis.images - 1) * spread + 1
    step, begin, blocks = extent * axis.stride, taps[0] * axis.dilation - axis.before, div_ceil(out, extent)
    # whole blocks whose windows are inside an x without gaps are alike
    first = min(blocks, max(0, div_ceil(-begin, step)))
    last = max(first, min(out // extent, (end - window - begin) // step + 1)) if spread == 1 else first
    found = [Run(first, last - first, extent, extent, 0, window)] if last > first else []
    for block in (*range(first), *range(last, blocks)):
        start = block * step + begin
        low = min(window, div_ceil(max(0, start), spread) * spread - start)
        high = div_ceil(max(0, min(start + window, end)), spread) * spread - spread + 1 - start
        there = low, max(low, min(window, high))
        found.append(Run(block, 1, extent, min(extent, out - block * extent), *there))
    return joined(sorted(found, key=lambda one: one.first))


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs with equal neighbours merged."""
    alike = [list(some) for _, some in groupby(runs, key=lambda one: (one.extent, one.low, one.high))]
    return tuple(replace(some[0], count=sum(one.count for one in some)) for some in alike)


def planes_of(axis: Axis) -> tuple[Part, ...]:
    """(first, count) of planes of outputs of a volume that see planes of x at the same taps, for all volumes."""

    def seen(z: int) -> tuple[int, ...]:
        return z * axis.images // axis.out, *(valid_range(axis, tap, z, 1)[2] > 0 for tap in range(axis.taps))

    runs = [list(some) for _, some in groupby(range(axis.out), key=seen)]
    return tuple((some[0], len(some)) for some in runs)


def tiles_of_units(
    planes: Sequence[Part], rows: Sequence[Run], columns: Sequence[Run], most: int, end_at: int = 0
) -> tuple[Tile, ...]:
    """Tiles of up to `most` units of Runs. end_at: the number of units after which a tile ends, too."""
    tiles: list[list[Region]] = []
    part, done = most, 0
    for (plane, num), row, column in product(planes, rows, columns):
        shape, at = (num, row.count, column.count), 0
        while at < size_of(shape):
            if part == most or done == end_at:
                tiles.append([])
                part = 0
            room = min(size_of(shape) - at, most - part)
            counts = most_at(shape, at, min(room, end_at - done) if done < end_at else room)
            z, rest = divmod(at, shape[1] * shape[2])
            p, q = divmod(rest, shape[2])
            place = plane + z, (row.first + p) * row.apart, (column.first + q) * column.apart
            tiles[-1].append(Region(part, row, column, *place, counts))
            at, part, done = (number + size_of(counts) for number in (at, part, done))
    return tuple(map(tuple, tiles))


def most_at(shape: tuple[int, int, int], at: int, most: int) -> tuple[int, int, int]:
    """(planes, rows, columns) of the most units from number `at` on, up to `most`, evenly spaced along two axes."""
    planes, rows, columns = shape
    if columns > 1 and (at % columns > 0 or most < columns):
        return 1, 1, min(columns - at % columns, most)
    lines = min(rows - at // columns % rows, most // columns)
    if at // columns % rows > 0 or lines < rows or (columns > 1 and rows > 1):
        return 1, lines, columns
    return min(planes - at // (columns * rows), most // (columns * rows)), rows, columns


def units_of(tile: Tile) -> int:
    """The number of units of a tile."""
    return tile[-1].part + size_of(tile[-1].counts)


def taps_seen(first: int, count: int, step: int, there: Part) -> Part:
    """(first, end) of `count` taps, `step` elements apart from element `first` on, that see elements `there`."""
    return places_inside(first - there[0], step, count, there[1] - there[0])
