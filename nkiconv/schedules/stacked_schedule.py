"""The schedule of `stacked`: output tiles, banks of sums, loads of x, places of filters; `stacked` has the formula."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

from .block_axes import BlockAxis, part_at, plain_axis
from .block_axes import Part as BlockPart
from .block_schedule import Bank, Lane, Lanes, Place, Sweep
from .cuts import axis_elements, cut_planes, home_tap, most_of, parts_for_cores, window_of
from .geometry import Axis, Geometry, num_taps, span
from .tiles import (
    BANK_COLUMNS,
    PARTS,
    Part,
    cut,
    cut_at,
    cut_into,
    div_ceil,
    share,
    some_of,
    whole_words,
)

#: Bytes per partition of x of one output tile, of fp32 results of one output tile and M tile (half with a residual), of
#: filters of all M tiles, and of zero-padded filters in flight.
X_BYTES = 32_768
Y_BYTES = 32_768
FILTER_BYTES = 65_536
PADDED_BYTES = 49_152
#: Elements per partition that GpSimd clears while filters of several M tiles are triggered, and more for each M tile.
HOLD, HOLD_M_TILE = 180, 35
#: Runs of filters of an M tile, for each tap, that take as long as transposes: measured with 4 to 49 taps.
RUNS_A_TAP = 224
#: Columns of a matmul that keep the Tensor Engine busy until the next one.
BUSY_COLUMNS = 128
#: The fewest evacuations of an M tile's transposed filters: the first sums need not wait for the last.
FILTER_PARTS = 3
#: Pieces of the first output tile's loads, if it has as many parts of sums.
FIRST_PIECES = 6
#: Bytes of a row of x's stationaries that a DMA loads for several rows, zeros included: few take about as long.
RUN_BYTES = 256
#: For depthwise problems, buffers of stationaries: one is filled while the other is used.
ROUND_BUFFERS = 2


@dataclass(frozen=True)
class XBox:
    """Rows b .. b+bn-1 of blocks m .. m+mn-1 of all planes of X at shift d, columns low .. high-1; x is `moved` columns
    further."""

    d: int
    low: int
    high: int
    moved: int
    b: int
    bn: int
    m: int
    mn: int


@dataclass(frozen=True)
class Stack:
    """K packing of a block_schedule.Schedule; `stacked` defines B to G."""

    geometry: Geometry
    B: int
    D: int
    U: int
    V: int
    G: int
    #: one of `stacked.WAYS`; "" for depthwise problems
    filters: str
    #: output channels of the M tiles, (first, count)
    m_tiles: tuple[Part, ...]
    #: the most images and output blocks of an output tile
    images: int
    blocks: int
    #: the column of taps that is multiplied first, valid at all outputs, if X has no zeros next to x; else -1
    whole: int
    #: the most buffers of x
    ring: int
    #: columns of y, (first, count), of the output tiles of a row
    row_parts: tuple[Part, ...]
    #: depthwise: M tiles whose stationaries are loaded together; 0 with one group
    together: int = 0
    #: the Stack of the channels that do not fit beside the others, with the same outputs, or None; its first channel
    rest: Stack | None = None
    c0: int = 0

    #: planes of y packed along the columns of the array
    Z: ClassVar[int] = 1

    @property
    def depth(self) -> Axis:
        """The planes' Axis of y."""
        return self.geometry.planes

    @property
    def diagonal(self) -> bool:
        """Whether stationaries are block-diagonal: each M tile has its own x, (c, b) on the partitions and (k, u) in
        the columns, and the cores share M tiles; else they share output tiles."""
        return self.together > 0

    @property
    def kn(self) -> int:
        """The most output channels of an M tile."""
        return self.m_tiles[0][1] if self.diagonal else self.m_tiles[-1][1]

    @property
    def parts(self) -> int:
        """Partitions of X."""
        return self.D * self.B * (self.kn if self.diagonal else self.geometry.C)

    @property
    def step(self) -> int:
        """Blocks of X between neighbouring output blocks."""
        return self.U * self.V * self.geometry.rows.stride // self.G

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """Rows of zeros before the filters of output row v, by v modulo the number of phases."""
        return phases_of(self.geometry.rows.stride, self.V, self.G)

    @cached_property
    def num_taps(self) -> int:
        """Blocks of B rows of taps."""
        return 1 if self.diagonal else taps_of_window(self.geometry.rows, self.B, self.U, self.V, max(self.phases))

    @property
    def reach(self) -> int:
        """Blocks of X that an output block reads."""
        return (self.V - 1) * self.geometry.rows.stride // self.G + (self.num_taps - 1) * self.B // self.G + 1

    @property
    def top(self) -> int:
        """Rows of padding above x in X."""
        return 0 if self.diagonal else self.geometry.rows.before

    @property
    def groups(self) -> int:
        """Groups of D columns of taps."""
        return div_ceil(self.geometry.columns.taps, self.D)

    @property
    def order(self) -> list[int]:
        """Groups of columns of taps; the group `whole`, valid at all outputs, is first."""
        return sorted(range(self.groups), key=lambda g: g != self.whole)

    @cached_property
    def width(self) -> int:
        """Columns of X."""
        return x_width(self.row, self.whole, (self.groups - 1) * self.D + 1)

    @cached_property
    def row(self) -> Axis:
        """The columns of an output tile."""
        return replace(self.geometry.columns, out=most_of(self.row_parts))

    @property
    def hold(self) -> int:
        """Elements per partition that GpSimd clears before the second output tile is loaded, so that filters are loaded
        first."""
        return HOLD + HOLD_M_TILE * len(self.m_tiles) if len(self.m_tiles) > 1 else 0

    @property
    def num_filters(self) -> int:
        """Stationaries of an M tile of one group."""
        return self.geometry.planes.taps * len(self.phases) * self.num_taps * self.groups

    # output tiles and tiles of sums

    @property
    def num_blocks(self) -> int:
        """Output blocks of an image."""
        return div_ceil(self.geometry.rows.out, self.U * self.V)

    @cached_property
    def items(self) -> tuple[Lanes, ...]:
        """Output tiles, as even as possible, of one lane each; of depthwise problems whole volumes."""
        z_axis, planes, depths = self.axes[0], self.geometry.planes, []
        parts, cuts = planes.images, 1
        if not self.diagonal:
            parts, cuts = parts_for_cores(planes, self.images, self.num_blocks, self.blocks)
        for first, zn in cut_planes(planes.out, planes.images, parts):
            image, z0 = divmod(first, z_axis.out)
            d0, dn = span(planes, first, zn)
            depths.append(part_at(z_axis, z0, zn, d0 - image * z_axis.size, dn, image))
        rows = [self.rows_at(*one) for one in cut_into(self.num_blocks, cuts)]
        columns = [self.columns_at(*one) for one in self.row_parts]
        return tuple((one,) for one in itertools.product(depths, rows, columns))

    @property
    def every(self) -> tuple[Stack, ...]:
        """This Stack, and the one of the channels that it leaves."""
        return (self,) if self.rest is None else (self, self.rest)

    def lanes_of(self, lane: Lane) -> list[tuple[Stack, Lane]]:
        """(Stack, the lane with the elements of x that its X has) of each X of a lane of this Stack."""
        if self.rest is None:
            return [(self, lane)]
        z, p, q = lane
        return [(self, lane), (self.rest, (z, self.rest.rows_at(p.b0, p.bn), self.rest.columns_at(q.b0, q.bn)))]

    def rows_at(self, j0: int, jn: int) -> BlockPart:
        """Output blocks with the blocks of X that they read."""
        return part_at(self.axes[1], j0, jn, j0 * self.step, self.block_rows(jn))

    def columns_at(self, q0: int, qn: int) -> BlockPart:
        """Columns of y with the columns of X that they read."""
        return part_at(self.axes[2], q0, qn, q0 * self.row.stride, self.width)

    @cached_property
    def axes(self) -> tuple[BlockAxis, BlockAxis, BlockAxis]:
        """Axes of planes, of output blocks of V rows each, and of columns."""
        planes, columns = self.geometry.planes, self.geometry.columns
        images = planes.images
        return (
            plain_axis(planes.size // images, planes.out // images, planes.stride, images),
            plain_axis(self.block_rows(self.num_blocks), self.num_blocks * self.V, self.step, sweeps=self.V),
            plain_axis(self.width, columns.out, columns.stride),
        )

    @cached_property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Products of row v of blocks, by plane of taps, group of columns of taps and block of rows; those that are
        valid at all outputs are first."""
        planes, rows, columns, found = self.geometry.planes, self.geometry.rows, self.geometry.columns, []
        home = home_tap(planes)
        for v in range(self.V):
            products, place = [], v % len(self.phases) * self.num_taps
            for plane, (at, g), t in itertools.product(
                sorted(range(planes.taps), key=lambda plane: plane != home), enumerate(self.order), range(self.num_taps)
            ):
                index = (plane * self.groups + at) * len(self.phases) * self.num_taps + place + t
                element = g * self.D * columns.dilation - (columns.before if self.whole >= 0 else 0)
                row = v * rows.stride // self.G + t * self.B // self.G
                products.append(Place((plane * planes.dilation - planes.before, row, element), index, ()))
            found.append(Sweep(((0, v, 0),), tuple(products), self.num_filters))
        return tuple(found)

    def parts_of(self, zn: int, jn: int) -> list[Part]:
        """(first, count) of the blocks of an output tile whose sums share a bank."""
        widest = cut(self.row.out, BANK_COLUMNS)[-1][1]
        return cut(jn, max(1, BANK_COLUMNS // (zn * widest)))

    def banks(self, lanes: Lanes, k0: int) -> Iterator[Bank]:
        """Banks of an M tile of an output tile in order; banks that are stored together follow each other.

        The last evacuation and store of each core's share are short, on one core too: other banks would round sums in
        another order.
        """
        ((z, p, q),) = lanes
        columns = cut(q.bn, BANK_COLUMNS)
        widest = columns[-1][1]
        parts = self.parts_of(z.bn, p.bn)
        ends = () if self.diagonal else (share(len(self.items), PARTS, 0)[1] - 1, len(self.items) - 1)
        first, count = parts[-1]
        is_last = k0 == self.m_tiles[-1][0] and any(lanes == self.items[end] for end in ends)
        if is_last and count // 2 * z.bn * widest >= BUSY_COLUMNS:
            parts[-1:] = [(first, count - count // 2), (first + count - count // 2, count // 2)]
        planes = cut(z.bn, max(1, BANK_COLUMNS // widest))
        for part in parts:
            for v, n, across in itertools.product(range(self.V), planes, columns):
                yield Bank(v, (n, part, across), (v, n, across) == (self.V - 1, planes[-1], columns[-1]))

    # x

    def block_rows(self, blocks: int) -> int:
        """Blocks of X that so many output blocks read."""
        return (blocks - 1) * self.step + self.reach

    def whole_blocks(self, m0: int, mn: int) -> Part:
        """(first, end) of the blocks of X, among mn from m0 on, whose rows are all in x."""
        first = max(m0, div_ceil(max(0, self.top), self.G))
        room = self.geometry.rows.size + self.top - self.B
        end = min(m0 + mn, room // self.G + 1) if room >= 0 else m0
        return (m0, m0) if end <= first else (first, end)

    def spans(self, x0: int) -> list[tuple[int, int, int]]:
        """For each shift (first column of X inside x, end, column of x at column 0); x0: the first column of an output
        tile's X, of a whole row's X."""
        columns = self.geometry.columns
        if self.whole >= 0:
            return [(0, columns.size, 0)]
        found = []
        for d in range(self.D):
            moved = x0 + d * columns.dilation - columns.before
            low = min(self.width, max(0, -moved))
            found.append((low, max(low, min(self.width, columns.size - moved)), moved))
        return found

    def rows_held(self, m: int) -> Part:
        """(first, count) of the rows of block m inside x; the count may be negative."""
        b = min(self.B, max(0, self.top - m * self.G))
        return b, min(self.B, self.geometry.rows.size + self.top - m * self.G) - b

    def x_pieces(self, lane: Lane, is_first: bool) -> Iterator[tuple[int, int, list[XBox]]]:
        """Loads of an output tile's X by (first block, end): whole blocks in one for each shift, others one by one."""
        m0, begin, ends = lane[1].x0, 0, [lane[1].xn]
        if is_first:
            parts = self.parts_of(lane[0].bn, lane[1].bn)
            pieces = cut_into(len(parts), min(len(parts), FIRST_PIECES))
            ends = [self.block_rows(sum(parts[sum(some) - 1])) for some in pieces]
        for end in ends:
            found, (first, last) = [], self.whole_blocks(m0 + begin, end - begin)
            for d, (low, high, moved) in enumerate(self.spans(lane[2].x0)):
                if low >= high:
                    continue
                if first < last:
                    found.append(XBox(d, low, high, moved, 0, self.B, first, last - first))
                for m in (*range(m0 + begin, first), *range(max(last, m0 + begin), m0 + end)):
                    b, bn = self.rows_held(m)
                    if bn > 0:
                        found.append(XBox(d, low, high, moved, b, bn, m, 1))
            yield m0 + begin, m0 + end, found
            begin = end

    # filters of one group: Z [(u, k), (c, plane), rows of the window, columns of taps]

    @property
    def fits_window(self) -> bool:
        """Whether w fits without zeros or a shift."""
        return self.U == 1 and max(self.phases) == 0 and self.num_taps * self.B == self.geometry.rows.taps

    @property
    def lead(self) -> int:
        """Rows of Z before the filters of the first output row."""
        return max(self.phases) + ((self.U - 1) * self.V * self.geometry.rows.stride if self.filters == "apart" else 0)

    @property
    def z_rows(self) -> int:
        """Rows of Z."""
        return self.lead + self.num_taps * self.B

    @property
    def z_elements(self) -> int:
        """Elements per partition of Z, in whole words."""
        geometry = self.geometry
        return whole_words(geometry.planes.taps * geometry.C * self.z_rows * geometry.columns.taps, geometry.itemsize)

    @property
    def by_input(self) -> bool:
        """Whether filters are loaded by input channels."""
        return loads_by_input(self.geometry, self.kn)

    @property
    def m_tiles_ahead(self) -> int:
        """M tiles whose filters may be loaded ahead."""
        return max(2, PADDED_BYTES // (self.z_elements * self.geometry.itemsize))

    @property
    def filter_slots(self) -> int:
        """Transposes of a filter: one of all (u, k), or one for each u."""
        return self.U if self.filters == "apart" else 1

    def filter_groups(self) -> list[tuple[int, int, int]]:
        """(plane of taps, first of a group of columns of taps, count) of each filter, ordered by plane, group, phase,
        block of rows."""
        each, S = len(self.phases) * self.num_taps, self.geometry.columns.taps
        groups = [(g * self.D, min(self.D, S - g * self.D)) for g in self.order]
        return [(t, *group) for t in range(self.geometry.planes.taps) for group in groups for _ in range(each)]

    def filter_banks(self, per_bank: int) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
        """Filters of an M tile that are evacuated together, in order: (the first, columns of taps of each, (plane of
        taps, first row of Z, first column of taps) of each transpose); per_bank: transposes that fit a bank."""
        groups, each = self.filter_groups(), len(self.phases) * self.num_taps
        most = min(max(1, per_bank // self.filter_slots), div_ceil(len(groups), FILTER_PARTS))
        for dn, some in itertools.groupby(range(len(groups)), key=lambda index: groups[index][2]):
            alike = list(some)
            for part in cut_at(len(alike), most):
                sources = []
                for index in some_of(alike, part):
                    t, s, _ = groups[index]
                    row = index % self.num_taps * self.B + self.lead - self.phases[index % each // self.num_taps]
                    for u in range(self.filter_slots):
                        sources.append((t, row - u * self.V * self.geometry.rows.stride, s))
                yield alike[part[0]], dn, sources

    # memory

    @property
    def filter_bytes(self) -> int:
        """Bytes per partition of filters, as loaded and as stationaries."""
        geometry, item = self.geometry, self.geometry.itemsize
        if self.diagonal:
            reversed_taps = geometry.planes.taps * (reversed_rows(geometry) + geometry.rows.taps)
            reversed_bytes = 4 * reversed_taps * geometry.columns.taps * item
            return ROUND_BUFFERS * self.together * tile_bytes(geometry, self.kn) + reversed_bytes
        raw = self.kn * num_taps(geometry) if self.by_input else self.z_elements
        padded = min(len(self.m_tiles), self.m_tiles_ahead) * (self.z_elements + raw) * item
        return padded + len(self.m_tiles) * self.num_filters * self.U * self.kn * item

    def sbuf_bytes(self, residual: bool) -> int:
        """Upper bound of bytes per partition."""
        results = (6 if residual else 2) * 4 * self.images * self.blocks * self.V * self.row.out
        return sum(one.x_bytes + one.filter_bytes for one in self.every) + results + 4096

    @property
    def x_bytes(self) -> int:
        """Bytes per partition of all buffers of X."""
        blocks = axis_elements(self.geometry.planes, self.images) * self.block_rows(self.blocks)
        return self.ring * blocks * self.width * self.geometry.itemsize


def loads_by_input(geometry: Geometry, kn: int) -> bool:
    """Whether filters of an M tile are loaded by input channels, in runs of all `kn` of them: those of transposed
    convolutions of images, whose runs have the taps of one channel only, if that makes many."""
    return geometry.flipped and geometry.planes.taps == 1 and kn * geometry.C > RUNS_A_TAP * num_taps(geometry)


@lru_cache(maxsize=4096)
def phases_of(stride: int, V: int, G: int) -> tuple[int, ...]:
    """Rows of x between a block of X and the start of output row v, for v from 0 on until they repeat."""
    found = [v * stride % G for v in range(V)]
    return tuple(found[: found.index(0, 1)] if 0 in found[1:] else found)


def taps_of_window(rows: Axis, B: int, U: int, V: int, front: int) -> int:
    """Blocks of B rows that hold the window of U output rows V apart, at any phase."""
    return div_ceil(window_of(rows, (U - 1) * V + 1) + front, B)


def x_width(columns: Axis, whole: int, taps: int) -> int:
    """Columns of X: x's own; without a `whole_group` all that so many columns of taps read, zeros included."""
    return columns.size if whole >= 0 else window_of(columns, columns.out, taps)


def matrix_elements(geometry: Geometry) -> int:
    """For depthwise problems, elements per partition of the stationaries of a channel and plane of taps, in whole
    words."""
    window = (geometry.rows.out - 1) * geometry.rows.stride + 1
    return whole_words(window * geometry.columns.taps, geometry.itemsize)


def tile_bytes(geometry: Geometry, A: int) -> int:
    """Bytes per partition of the stationaries of an M tile of A channels."""
    return A * geometry.planes.taps * matrix_elements(geometry) * geometry.itemsize


def reversed_rows(geometry: Geometry) -> int:
    """For depthwise problems, rows of a plane of a reversed filter, with zeros before and after it."""
    return window_of(geometry.rows, 1) + 2 * (rows_of_run(geometry) - 1)


def rows_of_run(geometry: Geometry) -> int:
    """Rows of x whose stationaries a DMA loads together, with zeros around their taps."""
    row_bytes = geometry.columns.taps * geometry.itemsize
    return max(1, min(geometry.rows.size, RUN_BYTES // row_bytes - window_of(geometry.rows, 1) + 1))


def runs_of(geometry: Geometry) -> list[tuple[int, int, int, int, int]]:
    """(row h of x, rows, row of the window of outputs, row of the reversed filter for row h, count) of rows of x that
    outputs read; each further row of x begins a row earlier in the filter, perhaps before it."""
    rows, found = geometry.rows, []
    window, depth = (rows.out - 1) * rows.stride + 1, window_of(rows, 1)
    # output p meets row p * stride + r * dilation - before of x at tap r: row h of x from row h + apart of the window
    apart = rows.before - depth + 1
    h0, end = max(0, 1 - depth - apart), min(rows.size, window - apart)
    for at, count in cut(max(0, end - h0), rows_of_run(geometry)):
        place = h0 + at + apart
        first = max(0, place)
        last = min(window, place + count - 1 + depth)
        found.append((h0 + at, count, first, first - place, last - first))
    return found
