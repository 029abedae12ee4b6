"""Depthwise conv2d: sizes of blocks of x, and the blocks of one matmul.

Blocks of `rows` rows and `width` columns of x are on the partitions, X[(j, w), block] = x[b * apart + j, w0 + w] of a
channel; a block of y has out_rows rows, and the columns whose taps are among the columns of x. It is the sum over
`depth` blocks k below each other, mostly two, of one matmul each. If windows overlap and no zeros are between pixels,

    F[k][(j, w), (p, q)] = w[r, s]   where   k * rows + j = p * stride + r * dilation,  w = q * stride + s * dilation,

zero elsewhere: with rows as far apart as a block is wide, one Toeplitz matrix of all taps. It has a column for each
pixel of a block of y. Matmuls of fewer columns read the next matrices' too: they cost nothing below 128, and keep the
Tensor Engine at its full rate. Windows of NCHW are disjoint: a block has all rows that its rows of y see, and several
windows add to a column of y. Zeros between pixels (lhs_dilation) are left out of blocks, which are then
rows / lhs_dilation rows apart and begin at the same distance of outputs from an element; matrices have columns for the
outputs between.

Overlapping windows have all columns of x that their columns of y see, and their own part of a bank. Two neighbouring
disjoint windows contribute to the same columns of y, and a bank accumulates their products. Windows 0, 2, 4 and so on
come first and overwrite, each up to the start of the next of them and with zeros in columns that it does not see, so
that they cover a row of y without a gap. Windows 1, 3, 5 are added to them. A bank begins with an even window.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .cuts import most_of, window_of
from .geometry import Axis, Geometry, is_transposed, num_phases, num_taps
from .options import Options
from .settings import BY_SHAPE, Settings, count, double, half
from .tiles import BANK_COLUMNS, P_MAX, PARTS, Part, cut, cut_at, cut_into, div_ceil

#: Rotating buffers for: zero-padded planes; raw planes.
FRAMED, RAWS = 2, 2
#: Columns of a matmul of NHWC, at least, five of which fill a bank: as many keep the Tensor Engine at its full rate.
LEAST_COLUMNS = BANK_COLUMNS // 5
#: Channels of a transpose that makes matrices of NHWC, at least, zeros among them, for the same reason.
LEAST_CHANNELS = 64
#: Channels of a K tile, at most; matmuls of 128 columns on zeros while the first x is loaded.
CHANNELS_MOST, WARM_UP = 1024, 40


@dataclass(frozen=True)
class DepthwiseSettings(Settings):
    """Settings of depthwise conv2d; beside * below * images is at most 128."""

    algorithm = "activation_stationary"
    tried = ("channels", "rows")
    keeps = "blocks, matrices and results"
    instead = "fewer images and channels of a block"

    rows: int = count("depthwise: rows of a block, multiple of stride and lhs_dilation", 1, BANK_COLUMNS, near=BY_SHAPE)
    columns: int = count("columns of y of a window, of whole lhs_dilation / gcd(stride, lhs_dilation)", 1, BANK_COLUMNS)
    beside: int = count("blocks of a row in a matmul; 1 for NCHW", 1, P_MAX)
    below: int = count("blocks of a column in a matmul", 1, P_MAX)
    images: int = count("images in a matmul", 1, P_MAX)
    channels: int = count("channels of a K tile; for NCHW at most 128", 1, CHANNELS_MOST, near=(half, double))


@dataclass(frozen=True)
class BlocksItem:
    """Blocks of some images: (first, count) of channels, images, blocks below each other and windows; the number of
    their K tile."""

    chunk: int
    channels: Part
    images: Part
    below: Part
    windows: Part


@dataclass(frozen=True)
class BlockSchedule:
    """All sizes of one problem under DepthwiseSettings."""

    geometry: Geometry
    settings: DepthwiseSettings
    #: whether channels of x and y are neighbours (NHWC), not planes
    by_pixels: bool = field(init=False)
    #: rows of x from a block to the next, and of a block; rows of y of a block; blocks of x below each other that these
    #: see
    apart: int = field(init=False)
    rows: int = field(init=False)
    out_rows: int = field(init=False)
    depth: int = field(init=False)
    #: columns of x of a window; columns of y of a tile of results; columns of a matrix from a row to the next
    width: int = field(init=False)
    columns: int = field(init=False)
    pitch: int = field(init=False)
    #: all windows; spans of columns of y; rows and columns of a channel's sums in a bank; (first, count) of channels of
    #: each K tile
    windows: list[Window] = field(init=False, repr=False, compare=False)
    spans: list[Span] = field(init=False, repr=False, compare=False)
    bank: tuple[int, int] = field(init=False, repr=False, compare=False)
    chunks: list[Part] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settings, rows, columns = self.settings, self.geometry.rows, self.geometry.columns
        by_pixels, out_rows = is_transposed(self.geometry), settings.rows // rows.stride
        windows, seen = windows_of(columns, settings.columns, not by_pixels), pixels_of(rows, out_rows)
        found: dict[str, Any] = {"windows": windows, "out_rows": out_rows, "by_pixels": by_pixels}
        found |= {"apart": settings.rows // rows.lhs_dilation, "chunks": cut(self.geometry.C, settings.channels)}
        if by_pixels:
            widest = max(window.qn for window in windows)
            bank = 1, max(out_rows * widest, LEAST_COLUMNS)
            spans = [Span((0, widest), (WindowProduct(0, (0, bank[1]), 0),))]
            found |= {"rows": found["apart"], "depth": div_ceil(seen, found["apart"]), "columns": widest}
            found |= {"width": pixels_of(columns, widest), "pitch": window_of(columns, widest)}
        else:
            spans = disjoint_spans(windows, columns.out, out_rows)
            bank = out_rows, max(span.columns[1] for span in spans)
            ends = [one.first + one.columns[1] for span in spans for one in span.products]
            # rows of taps are so far apart that columns of a matrix see no tap of another row
            pitch = settings.columns * columns.stride + window_of(columns, 1) - columns.lhs_dilation
            found |= {"rows": seen, "depth": 1, "columns": columns.out}
            width = window_width(columns, settings.columns, True)
            found |= {"width": width, "pitch": max(pitch, max(ends) * columns.stride)}
        vars(self).update(found, spans=spans, bank=bank)

    @property
    def rotating(self) -> int:
        """Tiles of blocks, and of matrices, in rotation: in fp32, of more channels each rather than of a third one."""
        return 2 if self.geometry.itemsize == 4 else 3

    @property
    def size(self) -> int:
        """Pixels of a block."""
        return self.rows * self.width

    @property
    def num_items(self) -> int:
        """The number of items."""
        return math.prod(map(len, (self.chunks, *self.cuts)))

    @property
    def cuts(self) -> tuple[list[Part], list[Part], list[Part]]:
        """(first, count) of windows, of blocks below each other and of images of items."""
        windows, below = len(self.windows), div_ceil(self.geometry.rows.out, self.out_rows)
        of_windows = cut(windows, self.settings.beside if self.by_pixels else windows)
        return of_windows, cut(below, self.settings.below), cut(self.geometry.planes.out, self.settings.images)

    @functools.cached_property
    def items(self) -> list[BlocksItem]:
        """All items, in order. Of an odd number of NHWC with one K tile the smallest is two, each core's first, with
        half of the channels each."""
        every = itertools.product(enumerate(self.chunks), *self.cuts)
        found = [BlocksItem(*chunk, images, below, windows) for chunk, windows, below, images in every]
        if self.by_pixels and len(self.chunks) == 1 and self.geometry.C > 1 and len(found) % PARTS > 0:
            least = min(found, key=lambda one: one.images[1] * one.below[1] * one.windows[1])
            found.remove(least)
            for at, half in zip((0, len(found) // PARTS + 1), cut_into(self.geometry.C, PARTS), strict=True):
                found.insert(at, replace(least, channels=half))
        return found

    @property
    def sums(self) -> int:
        """Sums of a block and channel of NHWC."""
        return self.out_rows * self.columns

    @property
    def matrix_size(self) -> int:
        """Elements a partition and channel of the matrices of all blocks below each other."""
        return self.depth * self.sums if self.by_pixels else self.settings.rows * self.pitch

    def matrices_shape(self, channels: int) -> tuple[int, ...]:
        """The shape but for partitions of a tile of so many channels' matrices; those of NHWC have columns after the
        last for matmuls of more columns than y has."""
        size = self.matrix_size
        return (size + self.bank[1] - self.sums, channels) if self.by_pixels else (channels, size)

    def place_of_column(self, column: int) -> int:
        """The offset of column (k, p, q) of a matrix of NHWC, for the first place of a block, in the sequence."""
        k, sums = divmod(column, self.sums)
        p, q = divmod(sums, self.columns)
        rows = (k + 1) * self.settings.rows - p * self.geometry.rows.stride
        return rows * self.pitch - q * self.geometry.columns.stride + self.place_of(0)

    def rows_of_block(self, k: int) -> int:
        """Rows that a block of y sees of its k-th block of x."""
        return min(self.rows, pixels_of(self.geometry.rows, self.out_rows) - k * self.apart)

    def below(self, item: BlocksItem) -> int:
        """Blocks of x below each other that an item's rows of y see."""
        return item.below[1] + self.depth - 1

    def x_shape(self, item: BlocksItem) -> tuple[int, ...]:
        """[pixels, beside, below, images, channels]; for planes the blocks of all windows are in sequence."""
        beside, below = item.windows[1], self.below(item)
        beside, below = (beside, below) if self.by_pixels else (1, below * beside)
        return self.size, beside, below, item.images[1], item.channels[1]

    def y_shape(self, item: BlocksItem) -> tuple[int, int, int, int]:
        """The shape of an item's tile of results."""
        together, cn = item.below[1] * item.images[1], item.channels[1]
        if self.by_pixels:
            return (together * item.windows[1], self.out_rows, self.columns, cn)
        return (together, cn, self.out_rows, self.geometry.columns.out)

    def lines(self, chunks: Sequence[Part]) -> list[Part]:
        """(first channel, channels) of tiles of sequences of neighbouring K tiles. The Tensor Engine reads channels
        from partition 0 on, and each K tile has its own; DMAs read any."""
        every = chunks if self.by_pixels else [(chunks[0][0], sum(chunks[-1]) - chunks[0][0])]
        return [(c0 + c, count) for c0, cn in every for c, count in cut_at(cn, P_MAX)]

    @property
    def matrix_tiles(self) -> Part:
        """(tiles that matrices of K tiles rotate through, channels of one tile); one tile if a core of two has one K
        tile."""
        return min(self.rotating, div_ceil(len(self.chunks), PARTS)), most_of(self.chunks)

    def place_of(self, place: int) -> int:
        """The offset of a place of a block, its pixels in row order, in the sequence of its filter."""
        rows, columns, first = self.geometry.rows, self.geometry.columns, self.windows[0]
        row = rows.before % rows.lhs_dilation + place // self.width * rows.lhs_dilation
        column = columns.before + (place % self.width + first.start) * columns.lhs_dilation - first.q * columns.stride
        return row * self.pitch + column

    @property
    def line_length(self) -> int:
        """Elements of a filter's sequence."""
        return self.depth * self.settings.rows * self.pitch + self.place_of(self.size - 1) + 1

    def framed_shape(self, item: BlocksItem) -> tuple[int, int, int]:
        """[(image, c), rows, columns] of the planes of a group of an item's images, with the padding that taps see."""
        parts = min(item.images[1], images_together(item)) * item.channels[1]
        width = self.windows[-1].start - self.windows[0].start + self.width
        return parts, (self.below(item) - 1) * self.apart + self.rows, width


def images_together(item: BlocksItem) -> int:
    """The number of images that the partitions hold, with an item's channels."""
    return P_MAX // item.channels[1]


def block_bytes(geometry: Geometry, plan: BlockSchedule, options: Options) -> int:
    """An upper bound of bytes a partition."""
    item, y_item, most = geometry.itemsize, options.epilogue.y_itemsize, 0
    tiles, most_channels = plan.matrix_tiles
    fixed = tiles * math.prod(plan.matrices_shape(most_channels)) * item
    fixed += len(plan.lines(plan.chunks)) * (plan.line_length + num_taps(geometry)) * item
    fixed += 4 * (plan.rotating * most_channels if options.epilogue.bias else 0) + 2 * P_MAX
    for one in plan.items:
        x = plan.rotating * math.prod(plan.x_shape(one)[1:])
        if not plan.by_pixels:
            (_, height, width), groups = plan.framed_shape(one), div_ceil(one.images[1], images_together(one))
            x += groups * height * (FRAMED * width + RAWS * geometry.columns.size)
        y_bytes = 2 * y_item + (2 * 8 if options.residual else 0)
        most = max(most, x * item + math.prod(plan.y_shape(one)[1:]) * y_bytes)
    return fixed + most + 4 * 3 * BANK_COLUMNS


def blocks_of(geometry: Geometry, settings: DepthwiseSettings) -> tuple[BlockSchedule | None, str]:
    """(the schedule of settings, "") or (None, why sizes of blocks contradict each other)."""
    rows, columns, disjoint = geometry.rows, geometry.columns, not is_transposed(geometry)
    asked = f"config rows={settings.rows}, columns={settings.columns}"
    unit, phases = math.lcm(rows.stride, rows.lhs_dilation), num_phases(columns)
    if settings.rows % unit > 0 or settings.columns % phases > 0:
        return None, (
            f"{asked}: rows must be a multiple of {unit}, for stride and lhs_dilation, columns of {phases}, as all "
            f"blocks see x alike"
        )
    if settings.beside * settings.below * settings.images > P_MAX:
        return None, (
            f"config beside={settings.beside}, below={settings.below}, images={settings.images}: their product must be "
            f"at most {P_MAX}; use fewer"
        )
    if disjoint and (settings.beside > 1 or settings.channels > P_MAX):
        return None, (
            f"config beside={settings.beside}, channels={settings.channels}: planes (NCHW) take beside=1 and at most "
            f"{P_MAX} channels; use these"
        )
    least = least_columns(columns, disjoint)
    if settings.columns < least:
        return None, (
            f"config columns={settings.columns}, S={columns.taps}: windows of NCHW do not overlap, and must be as wide "
            f"as all taps, which then share y with neighbours alone; use {least}"
        )
    made = BlockSchedule(geometry, settings)
    if made.size * made.depth == 0:
        return None, (
            f"{asked}, lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: a block sees no pixel; use more, or "
            f"implicit_gemm"
        )
    if made.size > P_MAX or math.prod(made.bank) > BANK_COLUMNS:
        return None, (
            f"{asked}, S={columns.taps}: {made.size} elements of x must fit {P_MAX} partitions, {math.prod(made.bank)} "
            f"sums a bank, {BANK_COLUMNS}; use fewer"
        )
    return made, ""


@dataclass(frozen=True)
class Window:
    """start: its first column of x, below 0 for padding; q, qn: (first, count) of the columns of y that see it."""

    start: int
    q: int
    qn: int


@dataclass(frozen=True)
class WindowProduct:
    """One matmul into a bank: its window of a tile of x, or the first of several neighbours; (first, count) of
    columns of the bank; the first's column in the matrix. Odd windows accumulate."""

    window: int
    columns: Part
    first: int


@dataclass(frozen=True)
class Span:
    """(first, count) of the columns of y in a bank, and their products in order."""

    columns: Part
    products: tuple[WindowProduct, ...]


def front_of(axis: Axis) -> int:
    """Places for elements in front of x in the window of the first output; below 0 if the window begins inside x."""
    return axis.before // axis.lhs_dilation


def pixels_of(axis: Axis, outputs: int) -> int:
    """Elements of x in the window of so many outputs, the first of them as far from an element as the first of all."""
    return div_ceil(max(0, window_of(axis, outputs) - axis.before % axis.lhs_dilation), axis.lhs_dilation)


def windows_of(columns: Axis, most: int, disjoint: bool) -> list[Window]:
    """Windows of `most` columns of y, a multiple of `num_phases`."""
    stride, apart = columns.stride, columns.lhs_dilation
    if not disjoint:
        parts = cut(columns.out, most) if apart == 1 else cut_at(columns.out, most)
        return [Window(q * stride // apart - front_of(columns), q, qn) for q, qn in parts]
    found, far = [], (columns.taps - 1) * columns.dilation
    end = min(columns.size, ((columns.out - 1) * stride + far - columns.before) // apart + 1)
    for start in range(max(0, -front_of(columns)), end, most * stride // apart):
        first, last = start * apart + columns.before, min(start + most * stride // apart, end) - 1
        q = div_ceil(first - far, stride)
        found.append(Window(start, q, (last * apart + columns.before) // stride - q + 1))
    return found


def least_columns(columns: Axis, disjoint: bool) -> int:
    """The fewest columns of y of a window, a multiple of `num_phases`; disjoint windows are as wide as all taps."""
    far, each = (columns.taps - 1) * columns.dilation, num_phases(columns)
    return max(each, div_ceil(far, columns.stride * each) * each) if disjoint else each


def window_width(columns: Axis, most: int, disjoint: bool) -> int:
    """Columns of x of a window of `most` columns of y, a multiple of `num_phases`."""
    return most * columns.stride // columns.lhs_dilation if disjoint else pixels_of(columns, most)


def disjoint_spans(windows: Sequence[Window], out: int, out_rows: int) -> list[Span]:
    """The fewest spans of all `out` columns of y, for disjoint windows; a span is too wide for a bank if the columns
    from an even window to the next are."""
    edges = [0, *(window.q for window in windows[2::2]), out]
    seen = [(one.q, one.q + one.qn) if v % 2 else (edges[v // 2], edges[v // 2 + 1]) for v, one in enumerate(windows)]
    found, begin = [], 0
    for end, after in itertools.pairwise([*edges[1:], out + BANK_COLUMNS]):
        if (after - begin) * out_rows <= BANK_COLUMNS:
            continue
        products = []
        for v in sorted(range(len(windows)), key=lambda v: v % 2):  # even ones overwrite
            low, high = max(begin, seen[v][0]), min(end, seen[v][1])
            if low < high:
                products.append(WindowProduct(v, (low - begin, high - low), low - windows[v].q))
        found.append(Span((begin, end - begin), tuple(products)))
        begin = end
    return found
