"""Schedules of outputs in blocks: weight-resident groups, output tiles, as even as possible and equally many for each
core, and their banks of PSUM.

Blocks, and places for outputs, are (first, count) along planes, rows and columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from .block_axes import BlockAxis, Part, home_element, part_of
from .cuts import axis_elements, cut_planes
from .geometry import Axis, Geometry
from .tiles import BANK_COLUMNS, PARTS, cut, cut_at, cut_into, div_ceil, share, some_of

if TYPE_CHECKING:
    from .stacked_schedule import Stack

Lane = tuple[Part, Part, Part]
#: One output tile: a Part of each axis for each segment, or for each set of row tiles with separate images or rows.
Lanes = tuple[Lane, ...]


@dataclass(frozen=True)
class RowTile:
    """Channels of a row tile of the Tensor Engine: its first row, the index of its Lanes, input channels and output
    channels (first, count)."""

    first: int
    lane: int
    c0: int
    cn: int
    k0: int
    kn: int


@dataclass(frozen=True)
class Resident:
    """A weight-resident group: M tiles, each of RowTiles that work in parallel, and their output tiles."""

    tiles: tuple[tuple[RowTile, ...], ...]
    items: tuple[Lanes, ...]


@dataclass(frozen=True)
class Place:
    """A product of a sweep: element e of a block's window along planes, rows and columns; the place of its stationary;
    for each packed output the tap as stored, or -1."""

    e: tuple[int, int, int]
    index: int
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """Outputs of a block, by column of a stationary, and their products; size: places of stationaries."""

    outputs: tuple[tuple[int, int, int], ...]
    products: tuple[Place, ...]
    size: int

    @cached_property
    def outputs_along(self) -> list[tuple[int, ...]]:
        """The distinct numbers of its outputs along each axis, ascending."""
        return [tuple(dict.fromkeys(along)) for along in zip(*self.outputs, strict=True)]

    @cached_property
    def elements_along(self) -> list[tuple[int, ...]]:
        """The distinct elements that its products read along each axis."""
        return [tuple(dict.fromkeys(place.e[axis] for place in self.products)) for axis in range(3)]


def home_first(
    geometry: Geometry, axes: Sequence[BlockAxis], v: Sequence[int], found: Sequence[Place]
) -> tuple[Place, ...]:
    """Products of sweep v. If an output reads several planes the last elements that all blocks see come first: sums
    that begin with them and go on in order round alike wherever a video is cut."""
    several = geometry.planes.taps > 1 or geometry.depth is not None
    home = [home_element(axis, one) for axis, one in zip(axes, v, strict=True)] if several else []
    return tuple(sorted(found, key=lambda one: list(one.e[: len(home)]) != home))


@dataclass(frozen=True)
class Shift:
    """M packing with shift-and-add: T columns of taps, Z planes and U rows of y in the columns of a stationary.

    sums: columns of sums as an axis of T taps; groups: of T columns of taps; tiles: as in ShiftedPart. depth: the
    planes' Axis of y without packing. lanes: row tiles, each with its own images. V: as in a Stack.
    """

    V: ClassVar[int] = 1

    T: int
    Z: int
    U: int
    groups: int
    sums: Axis
    tiles: tuple[tuple[int, int, int, int], ...]
    depth: Axis
    lanes: int


@dataclass(frozen=True)
class Schedule:
    """All work of a launch.

    k_tiles: K tiles, (first channel, count, first segment, count). rows: of a row tile. slot: columns of a stationary,
    and partitions of results, between outputs. packs: whether stationaries are composed on chip, not views of loaded
    filters. gathers: whether the rows of a block are evacuated together, and then brought to the partitions of one of
    them.
    """

    axes: tuple[BlockAxis, BlockAxis, BlockAxis]
    sweeps: tuple[Sweep, ...]
    residents: tuple[Resident, ...]
    k_tiles: tuple[tuple[int, int, int, int], ...]
    rows: int
    slot: int
    buffers: int
    warmup: int
    #: warm-up matmuls after the first stationaries
    late_warmup: int = 0
    segments: int = 1
    packs: bool = False
    gathers: bool = False
    by_channels: bool = False
    together: int = 1
    #: M packing with shift-and-add, or None
    shift: Shift | None = None
    #: K packing, or None
    stack: Stack | None = None

    @property
    def pack(self) -> Stack | Shift | None:
        """The K packing or M packing; with either, partitions of sums hold rows of y."""
        return self.stack or self.shift

    @cached_property
    def extents(self) -> tuple[int, int, int]:
        """The most planes, rows and columns of results of an output tile."""
        every = {id(one.items): one.items for one in self.residents}.values()
        lanes = [lane for items in every for own in items for lane in own]
        z, p, q = (max(lane[axis].yn for lane in lanes) for axis in range(3))
        return z, p, q

    @property
    def pages(self) -> int:
        """Pages of 128 output channels that an M tile's row tiles fill."""
        return div_ceil(self.slot, self.rows)

    @property
    def together_rows(self) -> int:
        """Outputs that are evacuated together."""
        return self.axes[1].beside if self.gathers else 1

    def width(self, kn: int) -> int:
        """Columns of a stationary of `kn` output channels, and partitions of its accumulator."""
        if self.shift is not None:
            return (self.shift.T - 1) * self.slot + kn
        return len(self.sweeps[0].outputs) * self.slot if self.packs else kn

    def steps(self, core: int, cores: int) -> list[tuple[int, int]]:
        """(weight-resident group, output tile) of a core, in order."""
        every = [(b, i) for b, one in enumerate(self.residents) for i in range(len(one.items))]
        # the cores share steps, weight-resident groups or output tiles
        shared = range(len(every)) if self.gathers else [b if self.by_channels else i for b, i in every]
        first, n = share(max(shared) + 1, cores, core)
        return [one for at, one in zip(shared, every, strict=True) if first <= at < first + n]

    def x_runs(
        self, tile: Sequence[RowTile], lanes: Lanes, k_tile: int = 0, joins: bool = True
    ) -> list[tuple[int, int, int, int]]:
        """(first partition, lane, first channel, count) of the loads of a K tile's x for an M tile; joins: row tiles of
        a lane whose channels and partitions follow each other are loaded together."""
        (first_channel, most, *_), found = self.k_tiles[k_tile], list[tuple[int, int, int, int]]()
        for one in (one for one in tile if one.lane < len(lanes)):
            first, lane, c0, cn = one.first, one.lane, one.c0 + first_channel, min(one.cn, most)
            after = (found[-1][0] + found[-1][3], found[-1][1], found[-1][2] + found[-1][3]) if found else None
            if joins and (first, lane, c0) == after:
                first, _, c0, before = found.pop()
                cn += before
            found.append((first, lane, c0, cn))
        return found

    def operands_of(self, sweep: int, lane: Lane) -> list[tuple[Sweep, Lane]]:
        """(sweep, lane) of a sweep's products with x of a lane, the same for all K tiles; of each X of K packing."""
        if self.stack is None:
            return [(self.sweeps[sweep], lane)]
        return [(one.sweeps[sweep], own) for one, own in self.stack.lanes_of(lane)]

    def m_tiles_of(self, steps: list[tuple[int, int]]) -> Iterator[tuple[list[RowTile], Lanes]]:
        """(row tiles of an M tile with lanes in an output tile, the output tile) of some steps, in order."""
        for b, i in steps:
            lanes = self.residents[b].items[i]
            for tile in self.residents[b].tiles:
                yield [one for one in tile if one.lane < len(lanes)], lanes


Along = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Bank:
    """Some blocks, from the first of each lane on, in a sweep; done: whether it completes their sweeps, or whole
    rows."""

    sweep: int
    blocks: Along
    done: bool


def banks_of(schedule: Schedule, lanes: Lanes, k0: int = 0) -> Iterator[Bank]:
    """Banks of an output tile, for the M tile from k0 on: all sweeps of some blocks, then of the next ones."""
    if schedule.stack is not None:
        yield from schedule.stack.banks(lanes, k0)
        return
    counts = [max(lane[axis].bn for lane in lanes) for axis in range(3)]
    whole = tuple((0, count) for count in counts)
    every = [[blocks_in(sweep, lane, whole) for lane in lanes] for sweep in schedule.sweeps]
    most = [max(one[axis][1] for own in every for one in own) for axis in range(3)]
    if schedule.shift is not None:
        most[2] = max(count for _, _, _, count in schedule.shift.tiles)
    rows = max(1, BANK_COLUMNS // most[2])
    room = max(1, rows // most[1]), rows, BANK_COLUMNS
    cuts = [[one] if most[axis] <= room[axis] else cut(counts[axis], room[axis]) for axis, one in enumerate(whole)]
    if schedule.shift is not None:
        cuts[2] = [(low, count) for _, _, low, count in schedule.shift.tiles]
    for blocks in itertools.product(*cuts):
        if blocks != whole:
            every = [[blocks_in(sweep, lane, blocks) for lane in lanes] for sweep in schedule.sweeps]
        own = [at for at, met in enumerate(every) if any(size_of(one) > 0 for one in met)]
        for at in own:
            yield Bank(at, blocks, at == own[-1] and (schedule.shift is None or blocks[2] == cuts[2][-1]))


def blocks_in(sweep: Sweep, lane: Any, blocks: Along) -> Along:
    """The blocks, counted from a lane's first, that hold any output of a sweep; counted from block 0."""
    found = []
    for part, outputs, (first, count) in zip(lane, sweep.outputs_along, blocks, strict=True):
        # outputs ascend: the last one has the first block, the first one the last block
        low, many = part.blocks_of(outputs[-1])
        end = low + many if len(outputs) == 1 else sum(part.blocks_of(outputs[0]))
        low, high = max(part.b0 + first, low), min(part.b0 + min(first + count, part.bn), end)
        found.append((low, max(0, high - low)))
    return tuple(found)


def blocks_met(sweep: Sweep, lane: Lane, blocks: Along) -> list[int]:
    """For each product of a sweep, how many of the blocks, counted from block 0, have its element in x."""
    of_axes = zip(lane, sweep.elements_along, blocks, strict=True)
    met = [{e: part.valid_range(e, own)[2] for e in elements} for part, elements, own in of_axes]
    return [math.prod(map(dict.__getitem__, met, place.e)) for place in sweep.products]


def size_of(blocks: Along) -> int:
    """The number of blocks."""
    return math.prod(count for _, count in blocks)


def counted_outputs(sweep: Sweep, lane: Lane, blocks: Along, together: int) -> Iterator[tuple[int, int, Along, int]]:
    """(first output of the sweep, number, blocks counted from the bank's first, first plane of y of all images) of the
    outputs inside y that statistics read together: `together` if all of them have the same blocks, else one by one."""
    planes = lane[0]
    for first in range(0, len(sweep.outputs), together):
        each = []
        for output in sweep.outputs[first : first + together]:
            found = []
            for part, (start, count), f in zip(lane, blocks, output, strict=True):
                m, mn = part.blocks_of(f, in_y=True)
                low = max(start, m)
                found.append((low - start, max(0, min(start + count, m + mn) - low)))
            each.append(tuple(found))
        alike = len(set(each)) == 1
        for at, there in enumerate(each[:1] if alike else each, first):
            plane = planes.axis.origin + (blocks[0][0] + there[0][0]) * planes.axis.step + sweep.outputs[at][0]
            if size_of(there) > 0:
                yield at, together if alike else 1, there, planes.image * planes.axis.out + plane


def places_of(lane: Lane, blocks: Along) -> Along:
    """Places of results of some blocks, counted from a lane's first."""
    return tuple(part.places(one) for part, one in zip(lane, blocks, strict=True))


def output_in(lane: Lane, blocks: Along, output: tuple[int, int, int]) -> tuple[Any, Any]:
    """The places of an output of blocks, counted from block 0, in their bank and in the results: (first, count, step)
    along each axis."""
    sums, places = [], []
    for part, (first, count), f in zip(lane, blocks, output, strict=True):
        m, mn = part.blocks_of(f)
        low, end = max(first, m), min(first + count, m + mn)
        sums.append((low - first, max(0, end - low), 1))
        places.append((part.axis.origin + low * part.axis.step + f - part.y0, max(0, end - low), part.axis.step))
    return sums, places


#: For groups, bytes per partition of an output tile's fp32 results, and of its x; rows of one block are loaded in any
#: case.
GROUPS_Y_BYTES, GROUPS_X_BYTES = 12_288, 12_288
#: For transposed convolutions, bytes per partition of an output tile's x.
X_BYTES = 32_768


def items_of_groups(geometry: Geometry, axes: tuple[BlockAxis, ...], lanes: int, both: bool) -> Iterator[Lanes]:
    """Output tiles of an M tile; both: both cores share them, so each half of the work has equally many."""
    planes, rows, columns = axes
    size, M, J = geometry.columns.size, rows.blocks, columns.blocks
    most = max(rows.window, GROUPS_X_BYTES // (axis_elements(geometry.planes, 1) * size * geometry.itemsize))
    blocks = M if geometry.rows.size <= most else min(M, (most - rows.window) // rows.apart + 1)
    blocks = min(blocks, max(1, GROUPS_Y_BYTES // (4 * rows.step * geometry.columns.out)))
    images = 1
    if blocks == M:
        images = max(1, min(BANK_COLUMNS // (M * J), most // max(1, geometry.rows.size), planes.blocks))
    # each lane has its own images, or rows if there are too few images
    total = planes.images * planes.blocks
    of_rows = total < lanes
    n_images = total if of_rows else div_ceil(total, images * lanes)
    n_blocks = div_ceil(M, blocks * lanes) if of_rows else div_ceil(M, blocks)
    if both and n_images * n_blocks % PARTS == 1:
        if not of_rows and n_images * lanes < total:
            n_images += 1
        elif n_blocks < M:
            n_blocks += 1
    whole, of_planes = part_of(columns, 0, 0, J), cache(partial(part_of, planes))
    of_rows_at = cache(partial(part_of, rows, 0, whole=True))
    for (z0, zn), (m0, mn) in itertools.product(cut_planes(total, planes.images, n_images), cut_into(M, n_blocks)):
        each, rows_at = zn // lanes, cut_into(mn, min(mn, lanes) if of_rows else 1)
        end = z0 + each * lanes
        for n, own in ((each, range(z0, end, max(1, each))), (1, range(end, z0 + zn))):
            if own:
                places = itertools.product(own, rows_at)
                yield tuple(
                    (of_planes(*divmod(z, planes.blocks), n), of_rows_at(m0 + m, k), whole) for z, (m, k) in places
                )


def items_of_phases(axes: tuple[BlockAxis, ...], sizes: Sequence[int], segments: Sequence[int]) -> Iterator[Lanes]:
    """Output tiles of so many blocks along each axis, for each of so many neighbouring segments."""
    z, p, q = (_part_lists(*one, max(segments) > 1) for one in zip(axes, sizes, segments, strict=True))
    for one in itertools.product(z, p, q):
        # at most one of the three lists has several Parts
        yield tuple((a, b, c) for a in one[0] for b in one[1] for c in one[2])


def _part_lists(axis: BlockAxis, blocks: int, segments: int, alike: bool) -> list[list[Part]]:
    """Lists of `segments` neighbouring Parts of `blocks` blocks, the last list shorter. alike: includes elements
    outside x, and places for outputs outside y."""
    found = []
    for image in range(axis.images):
        cuts = cut_at(axis.blocks, blocks)
        parts = [part_of(axis, image, b0, blocks if alike else bn, padded=alike, whole=alike) for b0, bn in cuts]
        found += [some_of(parts, some) for some in cut_at(len(parts), segments)]
    return found


def item_sizes(
    geometry: Geometry, axes: tuple[BlockAxis, ...], segments: Sequence[int], y_bytes: int, k_tiles: int, cores: int
) -> list[int]:
    """Blocks of an output tile along each axis: as many as fit with x, in so many K tiles, and results, and a multiple
    of `cores` output tiles if possible."""
    most_x, most_y = X_BYTES // (k_tiles * geometry.itemsize), y_bytes // 4
    most = [div_ceil(axis.blocks, n) for axis, n in zip(axes, segments, strict=True)]
    sizes = [1, 1, most[2]]
    room = _blocks_with_room(axes, sizes, 2, most_x, most_y)
    if room < most[2]:
        sizes[2] = room // BANK_COLUMNS * BANK_COLUMNS if room > BANK_COLUMNS else room
    if sizes[2] == most[2] or segments[2] > 1:
        sizes[1] = min(most[1], _blocks_with_room(axes, sizes, 1, most_x, most_y))
        if sizes[1] == most[1]:
            sizes[0] = min(most[0], _blocks_with_room(axes, sizes, 0, most_x, most_y))
    uneven, found = count_items(axes, sizes, segments) % cores > 0, []
    for axis, size, n in zip(axes, sizes, segments, strict=True):
        parts = div_ceil(axis.blocks, size)
        if uneven and parts + n <= axis.blocks and size > 1:
            parts, uneven = parts + n, False
        found.append(div_ceil(axis.blocks, parts))
    return found


def count_items(axes: tuple[BlockAxis, ...], sizes: Sequence[int], segments: Sequence[int]) -> int:
    """Output tiles of so many blocks and segments along each axis."""
    every = zip(axes, sizes, segments, strict=True)
    return axes[0].images * math.prod(div_ceil(div_ceil(axis.blocks, size), n) for axis, size, n in every)


def _blocks_with_room(axes: tuple[BlockAxis, ...], sizes: Sequence[int], which: int, most_x: int, most_y: int) -> int:
    """Blocks along axis `which`, at least one, whose x and results fit, with these sizes along the other axes."""
    for index, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        if index != which:
            most_x //= (size - 1) * axis.apart + axis.window
            most_y //= size * axis.step
    own = axes[which]
    return max(1, min(max(0, most_x - own.window) // own.apart + 1, most_y // own.step))
