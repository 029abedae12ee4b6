"""Schedule of `implicit_gemm`: weight-resident groups of M tiles, and output tiles; any number of cores share the list.
Its SBUF bytes, and the output tiles of a device loop's body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from math import prod
from operator import attrgetter
from typing import Any

from .cuts import OutTile, k_tiles_of
from .geometry import Axis, Geometry, is_transposed, num_taps, valid_range
from .implicit_gemm import (
    FILTER_BYTES,
    NEIGHBOURS,
    Batch,
    ImplicitGemmSettings,
    KTile,
    MTile,
    batches_of,
    by_input,
    counted,
    m_tile_axis,
    m_tile_bytes,
    m_tiles_of,
    moved_from,
    stores_channels,
)
from .implicit_gemm_products import RAW_BYTES, banks_of, m_tile_out_tile, needs_order, out_tiles_of, x_place
from .options import ROUNDED_BANKS, STATISTICS_BYTES, Options, keeps_sums, prologue_bytes
from .pairs_of_planes import PRODUCTS_OF_PAIR, bank_of_y, frames_seen, out_tile_of_y, planes_at_once
from .planes import misses_planes
from .regions import Register, offset_at, regions_of_x, register_of
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, div_ceil, share

#: Bytes a partition of blocks of taps in flight, if more than one.
AHEAD_BYTES = 24_576
#: The fewest buffers of x of a shape, one more with a device loop, as x of the output tile after the loop is in the
#: older one of its two; the most: images of 400 x 400 and 700 x 640 take as long with 4 to 64, 1.001 times with 3.
X_BUFFERS_MIN, X_BUFFERS_MAX = 2, 16
#: fp32 tiles of a bank's outputs that a norm needs besides the sums.
NORM_BANKS = 6
#: Tiles of a norm's input on their way to HBM.
KEPT_BANKS = 4
#: Divisors of FILTER_BYTES, for a group's filters, in the order of trial.
SHORTER = (1, 2, 4, 8)
#: For y as NHWC: most banks that wait for their transposes; transposed results in flight.
WAITING_MAX, ON_THE_WAY = 4, 3
#: For fp16x3: products for one fp32 product; most pairs in flight that begin in PSUM; bytes a partition of fp32
#: elements that are split together, if more than a row, and of all elements that are not split yet.
PRODUCTS_OF_FP32, PAIRS_MAX, STAGE_PART_BYTES, STAGE_BYTES = 3, 3, 4096, 16_384
#: For winograd: bytes a partition of frames that are added together, if more than a row; the fewest tiles of frames of
#: a K tile; banks of PSUM whose sums are evacuated together, in parts.
FRAMES_PART_BYTES, TILES_MIN, SUMS_BANKS = 8192, 2, 6

#: Sizes of an output tile, and its place without that of its planes.
IN_PLANE = attrgetter("zn", "p0", "pn", "q0", "qn", "dn", "h0", "hn", "w0", "wn")


@dataclass(frozen=True)
class Item:
    """One output tile of one group; last: whether it is the last of either of two cores."""

    batch: int
    out_tile: OutTile
    last: bool = False


@dataclass(frozen=True)
class Repeat:
    """Items from `first` on as `count` iterations of a device loop's body of `out_tiles` output tiles."""

    first: int
    out_tiles: int
    count: int
    register: Register


@dataclass(frozen=True)
class Schedule:
    """All work: groups of M tiles whose filters are in SBUF together, and items in the order of the work.

    moved: for each group its first M tile whose filters DMA transposes.
    """

    geometry: Geometry
    options: Options
    settings: ImplicitGemmSettings
    batches: tuple[Batch, ...]
    items: tuple[Item, ...]
    moved: tuple[int, ...]

    @property
    def together(self) -> bool:
        """Whether an output tile's sums of all M tiles are made together, one K tile of x after the other."""
        return self.settings.order == "chunks"

    @cached_property
    def k_tiles(self) -> tuple[list[KTile], ...]:
        """K tiles of x by group."""
        return tuple(map(k_tiles_of, self.batches))

    @cached_property
    def kinds(self) -> list[tuple[Item, int, int]]:
        """(an item, bytes a partition of its x, how many) of items that need the same room and work: output tiles of a
        group that differ in the place of their planes alone."""
        found: dict[Any, list[Item]] = {}
        for one in self.items:
            found.setdefault((one.batch, *IN_PLANE(one.out_tile)), []).append(one)
        return [(some[0], self.x_bytes(some[0]), len(some)) for some in found.values()]

    @cached_property
    def row_bytes(self) -> int:
        """Most bytes a partition of a row of x."""
        return max(num_bytes // max(1, item.out_tile.hn) for item, num_bytes, _ in self.kinds)

    def x_bytes(self, item: Item) -> int:
        """Bytes a partition of an item's x."""
        every = counted(self.k_tiles[item.batch])
        places = ((x_place(self.geometry, one, item.out_tile), n * one.slots) for one, n in every)
        return sum(slots * place.elements for place, slots in places) * self.geometry.itemsize

    def banks_of_y(self, first: int, count: int) -> list[tuple[MTile, int, int]]:
        """(M tile, first plane, planes of y) of each bank of sums of items first .. first + count - 1."""
        found = []
        for item in self.items[first : first + count]:
            batch, z0 = self.batches[item.batch], out_tile_of_y(self.geometry, item.out_tile).z0
            for index, m_tile in enumerate(batch):
                for bank in banks_of(m_tile_out_tile(item.out_tile, m_tile), item.last and index + 1 == len(batch)):
                    own = bank_of_y(self.geometry, item.out_tile, bank)
                    found.append((m_tile, z0 + own.z0, own.zn))
        return found

    def banks_together(self, index: int) -> int:
        """Most banks of PSUM for a group's sums of an output tile, without a last bank's cut, plus one for transposed
        filters."""
        most = max((len(banks_of(item.out_tile, False)) for item in self.items if item.batch == index), default=0)
        return len(self.batches[index]) * most * sums_of(self.geometry) + 1

    @cached_property
    def x_sizes(self) -> list[tuple[int, int]]:
        """(bytes a partition of x, items) of each shape of x."""
        found = dict[Any, tuple[int, int]]()
        for one, num_bytes, items in self.kinds:
            shape = tuple(self.k_tiles[one.batch]), _x_sizes(one.out_tile)
            found[shape] = num_bytes, items + found.get(shape, (0, 0))[1]
        return list(found.values())

    @cached_property
    def x_buffers(self) -> int:
        """Most buffers of x of a shape, through which output tiles rotate if x of all does not fit SBUF: loads that
        wait for room would be overtaken by those of later output tiles. 0: no such buffers."""
        largest = max(num_bytes for num_bytes, _ in self.x_sizes)
        room = self.spare_bytes + 2 * largest
        if len(self.items) * largest <= PARTS * room:
            return 0
        counts = range(X_BUFFERS_MAX, X_BUFFERS_MIN + (self.settings.loop > 0) - 1, -1)
        return next((most for most in counts if sum(one * min(most, items) for one, items in self.x_sizes) <= room), 0)

    @cached_property
    def frames_bytes(self) -> int:
        """Bytes a partition of TILES_MIN tiles of frames of each K tile."""
        most = max(len(self.k_tiles[one.batch]) for one in self.items) * FRAMES_PART_BYTES
        pairs = min(item.out_tile.zn for item in self.items)
        found = min(max(num_bytes for _, num_bytes, _ in self.kinds), max(self.row_bytes, most))
        if self.row_bytes >= most:
            found = found * frames_seen(pairs) // (PRODUCTS_OF_PAIR * pairs)
        return TILES_MIN * found

    @property
    def spare_bytes(self) -> int:
        """Bytes per partition of SBUF that are left; negative if the schedule does not fit."""
        return SBUF_BYTES - self.sbuf_bytes

    @cached_property
    def sbuf_bytes(self) -> int:
        """Upper bound of bytes a partition: x of two output tiles, filters, blocks of taps, results; `x_buffers` may
        hold more of x."""
        geometry, options, item, taps = self.geometry, self.options, self.geometry.itemsize, num_taps(self.geometry)
        tiles, x_bytes = [one.out_tile for one, *_ in self.kinds], max(num_bytes for _, num_bytes, _ in self.kinds)
        y_elements = planes_at_once(geometry) * max(one.zn * one.pn * one.qn for one in tiles)
        y_item = 4 if geometry.direct is None or options.residual else options.epilogue.y_itemsize
        m_tiles = [m_tile for batch in self.batches for m_tile in batch]
        pairs = 2 if m_tiles[0].k_tiles[0].pairing == NEIGHBOURS else 1
        channels = [pairs * m_tile.k_tiles[0].cn // m_tile.pack for m_tile in m_tiles]
        blocks = [max(cn * item, min(RAW_BYTES, cn * taps * item)) for cn in channels]
        if by_input(geometry, m_tiles[0]):
            blocks = [m_tile.kn // m_tile.pack * taps * item for m_tile in m_tiles]
        # also the block in the order of x on the partitions
        own = 2 if needs_order(geometry) else 1
        raw_bytes = 2 * (max(max(AHEAD_BYTES, block) + own * block for block in blocks) + P_MAX * item)
        filters = max(sum(m_tile_bytes(geometry, m_tile) for m_tile in batch) for batch in self.batches)
        if len(self.batches) > 1:
            # stationaries of a K tile of the next group's first M tile
            filters += max(div_ceil(m_tile_bytes(geometry, batch[0]), len(batch[0].k_tiles)) for batch in self.batches)
        beside = 0
        if stores_channels(geometry):
            # two tiles of results are counted for rows, of four bytes an element: of two bytes, one that waits fits
            y = options.epilogue.y_itemsize
            tile = y_elements * y_item // 4
            waiting = WAITING_MAX * min(tile, BANK_COLUMNS) + (tile if y == 4 else 0)
            beside += y * (waiting + ON_THE_WAY * BANK_COLUMNS)
        prologue = options.prologue
        if (is_transposed(geometry) or prologue.asked) and geometry.hbm_itemsize != item:
            beside += 2 * geometry.hbm_itemsize * max(one.dn * one.hn * one.wn for one in tiles)
        elif geometry.upsample > 1:
            # pixels in HBM of an output tile's rows and columns of x, at most
            held = [(one.dn, *(div_ceil(n, geometry.upsample) + 1 for n in (one.hn, one.wn))) for one in tiles]
            beside += 2 * item * max(map(prod, held))
        beside += prologue_bytes(prologue, geometry, max(one.dn for one in tiles))
        if geometry.precision == "fp16x3":
            beside += min(2 * x_bytes, STAGE_BYTES) + max(self.row_bytes, STAGE_PART_BYTES)
            beside += (PAIRS_MAX + 5) * BANK_BYTES
            raws = sum(len(m_tile.k_tiles) * cn for m_tile, cn in zip(m_tiles, channels, strict=True)) * taps * item
            raw_bytes = min(raw_bytes, raws + 2 * filters + 2 * BANK_BYTES)
        if geometry.direct is not None:
            beside += self.frames_bytes + SUMS_BANKS * BANK_BYTES
            # where a block is as long as its sums: blocks in flight, two of sums, and one of fp32 for a plane
            block = max(channels) * max(taps, num_taps(geometry.direct)) * item
            raw_bytes = max(AHEAD_BYTES, block) + 2 * block
        if options.statistics:
            # triples of the M tiles of an ending image and of a beginning one; fp32 results before rounding
            beside += 2 * max(sum(m_tile.rows for m_tile in batch) for batch in self.batches) * STATISTICS_BYTES
            beside += ROUNDED_BANKS * planes_at_once(geometry) * BANK_BYTES
        at_once = max(map(len, self.batches)) if self.together else 1
        results = (4 if options.residual else 2) * at_once * y_elements * y_item
        if options.epilogue.norm is not None:
            # sums in fp32 of all M tiles, and of the next output tile's first; residuals, if any, as long
            at_once += max(map(len, self.batches))
            results = (2 if options.residual else 1) * at_once * y_elements * 4 + NORM_BANKS * BANK_BYTES + P_MAX * 4
            results += KEPT_BANKS * BANK_BYTES if keeps_sums(options.epilogue) else 0
        return 2 * x_bytes + filters + raw_bytes + results + beside

    @property
    def is_looped(self) -> bool:
        """Whether a device loop runs some output tiles: the compiler sees its body once."""
        return any(True for core in range(PARTS) for _ in self.repeats(*share(len(self.items), PARTS, core), most=2))

    def repeats(self, first: int, count: int, most: int | None = None) -> Iterator[Repeat]:
        """The Repeats among a core's items first .. first + count - 1, of `most` iterations at most; each also loads x
        of the item after it."""
        out_tiles, index, end = 2 * self.settings.loop, first + 1, first + count
        while 0 < out_tiles < end - index:
            times = self._times(index, out_tiles, end if most is None else min(end, index + (most + 1) * out_tiles))
            register = register_of(self.geometry, self._apart(index, out_tiles)) if times > 1 else None
            if register is not None:
                yield Repeat(index, out_tiles, times, register)
            index += 1 if register is None else times * out_tiles

    def _times(self, first: int, out_tiles: int, end: int) -> int:
        """Iterations of a body of so many items from item `first` on: all are of one group, and so is the item before;
        their x and the next item's have one shape."""
        apart, index = self._apart(first, out_tiles), first
        sizes = {_x_sizes(one.out_tile) for one in self.items[first : first + out_tiles + 1]}
        if self.items[first - 1].batch != self.items[first].batch or len(sizes) > 1:
            return 0
        while index + out_tiles < end and self._body(index)[2] == self._body(index + out_tiles)[2] is not None:
            if self._apart(index, out_tiles) != apart:
                break
            index += 1
        return (index - first + out_tiles - 1) // out_tiles

    def _apart(self, index: int, count: int) -> tuple[int, int]:
        """Elements of HBM between x, and between y, of an item and of the item `count` further."""
        (x, y, _), (next_x, next_y, _) = self._body(index), self._body(index + count)
        return next_x - x, next_y - y

    @cached_property
    def _body(self) -> Callable[[int], tuple[int, int, object]]:
        return cache(lambda index: self._body_of(self.items[index]))

    def _body_of(self, item: Item) -> tuple[int, int, object]:
        """The offsets in HBM of an item's x and y, which a register moves, and its work relative to them; None as work
        if it has no x."""
        geometry, one = self.geometry, item.out_tile
        y = offset_at(geometry.y_strides, (0, one.z0, one.p0, one.q0))
        regions = regions_of_x(geometry, (0, geometry.C), (one.d0, one.dn), (one.h0, one.w0), (one.hn, one.wn))
        if one.dn * one.hn * one.wn == 0 or not regions:
            return 0, y, None
        steps = {m_tile.rows: m_tile_axis(geometry, m_tile) for m_tile in self.batches[item.batch]}
        rows = [
            (one.p0 % step, _met(axis, div_ceil(one.pn, step), one.p0 // step, one.h0)) for step, axis in steps.items()
        ]
        planes, missed = _met(geometry.planes, one.zn, one.z0, one.d0), misses_planes(geometry, one.z0, one.zn)
        # prologue operands by image do not move with x
        image = one.d0 // geometry.image_planes if self.options.prologue.by_image else 0
        sizes, x = (one.zn, one.pn, one.q0, one.w0, *_x_sizes(one)), regions[0][2]
        apart = [(place, pattern, offset - x, framed) for place, pattern, offset, framed in regions]
        return x, y, (item.batch, item.last, sizes, image, missed, planes, rows, apart)


@lru_cache(maxsize=16)
def build(geometry: Geometry, options: Options, settings: ImplicitGemmSettings) -> Schedule:
    """The Schedule of supported settings, with the largest filter bytes that SBUF holds, or the smallest tried."""
    for shorter in SHORTER:
        found = _cut(geometry, options, settings, FILTER_BYTES // shorter)
        if found.spare_bytes >= 0:
            break
    return found


def _cut(geometry: Geometry, options: Options, settings: ImplicitGemmSettings, filter_bytes: int) -> Schedule:
    m_tiles = m_tiles_of(geometry, settings, options.strict_nonfinite, filter_bytes)
    batches = batches_of(geometry, m_tiles, settings.shard == "channels", filter_bytes)
    halves, items = 1 if len(batches) > 1 else PARTS, []
    cuts: dict[tuple[KTile, ...], list[OutTile]] = {}
    for index, batch in enumerate(batches):
        k_tiles = k_tiles_of(batch)
        alike = tuple(k_tiles)
        if alike not in cuts:
            strict = options.strict_nonfinite
            cuts[alike] = out_tiles_of(geometry, k_tiles, m_tiles[-1].rows, halves, settings, strict)
        items += [Item(index, out_tile) for out_tile in cuts[alike]]
    for first, count in (share(len(items), PARTS, half) for half in range(PARTS)):
        items[first + count - 1] = replace(items[first + count - 1], last=True)
    return Schedule(geometry, options, settings, batches, tuple(items), moved_from(batches, settings.moved))


def kinds_of(geometry: Geometry) -> int:
    """Products that compute one."""
    return PRODUCTS_OF_FP32 if geometry.precision == "fp16x3" else 1


def sums_of(geometry: Geometry) -> int:
    """Banks of PSUM for one bank of outputs."""
    if geometry.direct is not None:
        return PRODUCTS_OF_PAIR
    return 2 if geometry.precision == "fp16x3" else 1


@lru_cache(maxsize=1024)
def _met(axis: Axis, count: int, first: int, element: int) -> object:
    """Valid ranges of an axis's taps for outputs first .. first + count - 1, relative to `first` and to `element`."""
    every = (valid_range(axis, tap, first, count) for tap in range(axis.taps))
    return tuple(one[2] > 0 and (one[0] - first, *one[1:3], one[3] - element, one[4]) for one in every)


def _x_sizes(out_tile: OutTile) -> tuple[int, ...]:
    """Sizes of x of an output tile, and its output columns: output tiles with equal ones share the shape of tiles."""
    return out_tile.dn, out_tile.hn, out_tile.wn, out_tile.qn
