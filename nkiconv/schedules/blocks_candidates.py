"""Settings of `blocks` in order of the least time that they can take: of a bare kernel, and for the host, whose search
begins with them. The bound: the busier of the Tensor Engine and DMA, the first loads and the last stores.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice, product
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .blocks import (
    BLOCK_BYTES,
    BUFFERS_MAX,
    FEW_PASSES,
    LINES,
    TRANSPOSED,
    BlocksSettings,
    banks_of_taps,
    blocks_geometry,
    config_unsupported,
    exchange_unsupported,
    in_places,
    is_transposed,
    max_channels,
    most_beside,
    outputs_beside,
    planes_of,
    runs_of,
    sum_banks,
    takes_lines,
    taps_beside,
    units_in,
    units_of_tile,
)
from .blocks_schedule import BlocksSchedule, build, clipped_first
from .blocks_transposes import RAWS_LEAST, RUN_BYTES, chunks_of, gang_of, gangs_of, grid_of, members_of, spacing_of
from .cuts import window_of
from .geometry import Geometry, num_taps
from .prices import dma_ns, first_load_ns, last_store_ns, matmul_ns, transpose_ns
from .settings import Config, once_a_config
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, div_ceil

#: Rows and columns of a block that are tried, besides all of them.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)
#: Accumulators of a pass along output and input channels that are tried, besides half of them and all.
OUTPUTS, INPUTS = (1, 2, 4, 8), (1, 2, 3, 4, 6)
#: Row tiles that are tried.
SIDES = (1, 2, 4)
#: What blocks may take of the Tensor Engine over those that take least.
IDLE = 1.3
#: Matmuls on zeros of settings to compare.
WARM_UP = 28
#: Settings to fall back on where better ones do not fit.
SPARE = 6


def plan(geometry: Geometry, config: Config, bias: bool, cores: int) -> tuple[BlocksSchedule | None, str]:
    """What `build` returns, of the settings that a config leaves open as candidates have them best."""
    return build(geometry, chosen(geometry, config, bias, cores), bias, cores)


@once_a_config
def chosen(geometry: Geometry, config: Config, bias: bool, cores: int) -> Config:
    """A config with all settings: those that it leaves open as candidates have them best; itself where none fits."""
    if config_unsupported(geometry, config, bias) or len(config or ()) == len(fields(BlocksSettings)):
        return config
    found = candidates(Target.of(Rates()), geometry, dict(config or ()), 1, bias, cores)
    return found[0][1] if found else config


def candidates(
    target: Target, geometry: Geometry, given: Mapping[str, Any], count: int, bias: bool, cores: int
) -> list[tuple[float, Config]]:
    """(ns, config) of so many of least time that have the given settings and fit. geometry: of x and gy in memory."""
    found: list[tuple[float, Config]] = []
    for exchanged in choices(given, "exchanged", (0, 1) if pays_exchanged(geometry, bias) else (0,)):
        own = {**given, "exchanged": exchanged}
        found += _in_places(target, geometry, own, count, bias, cores)
    return heapq.nsmallest(count, found, key=lambda one: one[0])


def pays_exchanged(geometry: Geometry, bias: bool) -> bool:
    """Whether x and gy may change places, so that the Tensor Engine has less to do."""
    (K, C), config = (geometry.K, geometry.C), (("exchanged", 1),)
    return div_ceil(C, P_MAX) * K < div_ceil(K, P_MAX) * C and not exchange_unsupported(geometry, config, bias)


def _in_places(
    target: Target, geometry: Geometry, given: Mapping[str, Any], count: int, bias: bool, cores: int
) -> list[tuple[float, Config]]:
    """`candidates` with x and gy in the places that are given."""
    found: list[tuple[float, int, Config]] = []
    source = in_places(geometry, tuple(given.items()))
    for pixels in choices(given, "pixels", (0,) if given.get("side", 1) > 1 else (0, LINES, TRANSPOSED)):
        config: Config = (("pixels", pixels),)
        lines, known = takes_lines(source, config), {"warmup": WARM_UP, **given, "pixels": pixels}
        if pixels and not (lines or is_transposed(source, config) or "pixels" in given):
            continue
        known |= {"columns": 1, "beside": 1} if lines else {}
        blocks = blocks_geometry(source, config)[0]
        bound = BlocksBound(target, blocks, source, 0 if blocks is source else pixels, units_of_tile(blocks, lines))
        least = _least(bound, known, count + SPARE)
        every = ((ns, _fitting(geometry, bound, one, known, bias, cores)) for ns, one in least)
        for ns, config in islice((one for one in every if one[1] is not None), count):
            found.append((ns, len(found), config))
    return [(ns, config) for ns, _, config in heapq.nsmallest(count, found)]


def _fitting(
    geometry: Geometry, bound: BlocksBound, one: BlocksSettings, given: Mapping[str, Any], bias: bool, cores: int
) -> Config:
    """The settings if they fit, or with one buffer where two do not; else None."""
    found = replace(one, warmup=given["warmup"], pixels=given["pixels"], exchanged=given["exchanged"])
    counts = (one.buffers, 1) if bound.pixels == TRANSPOSED and "buffers" not in given else (one.buffers,)
    for buffers in counts:
        config = replace(found, buffers=buffers).pairs
        if build(geometry, config, bias, cores)[0] is not None:
            return config
    return None


def _least(bound: BlocksBound, given: Mapping[str, Any], count: int) -> list[tuple[float, BlocksSettings]]:
    """(ns, settings) of the few of least time, the first of those alike."""
    kept: list[tuple[float, int, BlocksSettings]] = []
    for at, one in enumerate(_sizes(bound, given)):
        if len(kept) < count or bound.array_ns(one) < -kept[0][0]:
            buffers = given.get("buffers") or bound.buffers(one)
            if buffers:
                one = replace(one, buffers=buffers)
                add = heapq.heappush if len(kept) < count else heapq.heappushpop
                add(kept, (-bound.ns(one), -at, one))
    return [(-ns, one) for ns, _, one in sorted(kept, key=lambda one: one[:2], reverse=True)]


def choices(given: Mapping[str, Any], name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Values of a setting: the given one, or these."""
    return (given[name],) if name in given else tuple(dict.fromkeys(values))


def _sizes(bound: BlocksBound, given: Mapping[str, Any]) -> Iterator[BlocksSettings]:
    """Settings to compare that have the given ones, but for buffers and warm-up."""
    geometry, is_transposed = bound.geometry, bound.pixels > 0
    P, Q, K, C = geometry.rows.out, geometry.columns.out, geometry.K // geometry.groups, geometry.C // geometry.groups
    # x's runs would be short otherwise
    wide = (Q,) if geometry.x_strides[0] != 1 else _parts(Q, EXTENTS)
    shapes = list(product(choices(given, "rows", _parts(P, EXTENTS)), choices(given, "columns", wide)))
    whole = div_ceil(K, P_MAX)
    besides = choices(given, "beside", (one for one in (1, 2, 4) if one <= most_beside(geometry)))
    for beside, side in product(besides, choices(given, "side", (1,) if is_transposed else SIDES)):
        most = max_channels(geometry, beside)
        # several row tiles pay where planes are blocks, whose zeros are left out
        some = [one for one in shapes if one[1] >= beside and (side == 1 or "side" in given or one == (P, Q))]
        every = BlocksSettings(1, 1, most, whole, div_ceil(C, most), beside, side, 1, 0, 0, 0, 0)
        blocks, own = _full(bound, some, every), div_ceil(C, side)
        # accumulators of channels that are transposed together need not wait for others
        widths = (most, min(most, P_MAX)) if bound.pixels == TRANSPOSED else (most,)
        for channels in choices(given, "channels", (div_ceil(own, div_ceil(own, one)) for one in widths)):
            parts = div_ceil(C, channels)
            ways = choices(given, "outputs", _parts(whole, OUTPUTS)), choices(given, "inputs", _parts(parts, INPUTS))
            for outputs, inputs in product(*ways):
                passes = geometry.groups * div_ceil(whole, outputs) * div_ceil(parts, inputs)
                # many passes are shared as well as halves are, whose sums the cores need not add
                splits = choices(given, "split", (0, 1) if passes < FEW_PASSES else (0,))
                for split, (rows, columns) in product(splits, blocks):
                    yield BlocksSettings(rows, columns, channels, outputs, inputs, beside, side, 1, 0, split, 0, 0)


def _full(bound: BlocksBound, shapes: list[tuple[int, int]], every: BlocksSettings) -> list[tuple[int, int]]:
    """Of shapes of blocks (rows, columns) those that leave little of the Tensor Engine idle, if a pass has all sums."""
    taken = [bound.array_ns(replace(every, rows=rows, columns=columns)) for rows, columns in shapes]
    return [one for one, ns in zip(shapes, taken, strict=True) if ns <= IDLE * min(taken)]


def _parts(whole: int, values: tuple[int, ...]) -> list[int]:
    """These values as far as a whole, half of it and all."""
    return sorted({one for one in (*values, div_ceil(whole, 2), whole) if one <= whole})


#: The part of the less busy engine's time that the busier one does not hide.
EXPOSED = 0.1
#: Bytes of a partition for blocks that are transposed on the Tensor Engine, about.
TRANSPOSED_BYTES = 170_000


class BlocksBound:
    """Times of the busier of two cores, in ns: on one core settings are the same."""

    def __init__(self, target: Target, geometry: Geometry, source: Geometry, pixels: int, most: int) -> None:
        """geometry: of the blocks; source: of x and gy in memory; pixels: the setting; most: units of a tile."""
        self.target, self.geometry, self.source, self.pixels, self.most = target, geometry, source, pixels, most
        self.banks = sum_banks(pixels == TRANSPOSED)
        self.planes = tuple(count for _, count in planes_of(geometry.planes)) if pixels == TRANSPOSED else ()
        self.start_ns = first_load_ns(target)
        self.accumulators = functools.cache(self._accumulators_of)
        self.grid = functools.cache(functools.partial(grid_of, source))
        self.members = functools.cache(functools.partial(members_of, source))
        self._gangs = functools.cache(self._gangs_of)
        self._bank_ns, self._moved_ns = functools.cache(self._bank_ns_of), functools.cache(self._moved_ns_of)
        self._transposed_ns = functools.cache(self._transposed_ns_of)

    def ns(self, one: BlocksSettings) -> float:
        """From the first load to the last store."""
        (accumulators, passes), tiles = self.work(one), self.tiles(one)
        array_ns, moved_ns, first_ns = self.engines(one)
        # after the last loads: a row of the last tile, or all of it but for one accumulator
        last_ns = array_ns * (1 / one.rows if one.split else 1 - (1 - 1 / one.rows) / accumulators)
        if self.pixels == TRANSPOSED:
            last_ns = array_ns / 2 if passes * tiles == 1 else 0.0
        stored_ns = self._stored_ns(one, accumulators)
        again_ns = passes * tiles * self._again_ns(array_ns, moved_ns) / one.buffers
        array_ns, moved_ns = passes * tiles * array_ns, passes * tiles * moved_ns + (passes - 1) * stored_ns
        if accumulators > self.banks:
            # all tiles of a pass are loaded before its first accumulators leave, the next pass's meanwhile, or later
            waits_ns = moved_ns / (1 if one.buffers < 2 * tiles else passes)
            rounds = div_ceil(accumulators, self.banks) * passes
            array_ns, again_ns = max(array_ns, waits_ns + array_ns * (1 - 1 / rounds)), 0.0
        busiest_ns = max(first_ns + array_ns, moved_ns + last_ns, first_ns + again_ns)
        exposed_ns = EXPOSED * min(array_ns, moved_ns)
        return self.start_ns + busiest_ns + exposed_ns + self._end_ns(one, accumulators) + stored_ns

    def _again_ns(self, array_ns: float, moved_ns: float) -> float:
        """From a tile's load into a buffer to the next one; of tiles that are transposed nothing waits for that."""
        return 0.0 if self.pixels == TRANSPOSED else self.target.hop_dma_ns + self.start_ns + moved_ns + array_ns

    def array_ns(self, one: BlocksSettings) -> float:
        """Of the Tensor Engine alone."""
        return self.work(one)[1] * self.tiles(one) * self.engines(one)[0]

    def work(self, one: BlocksSettings) -> tuple[int, int]:
        """Accumulators of a pass, and passes of a core."""
        accumulators, passes = self.accumulators(one.channels, one.outputs, one.inputs)
        return accumulators, passes if one.split else div_ceil(passes, PARTS)

    def _accumulators_of(self, channels: int, outputs: int, inputs: int) -> tuple[int, int]:
        """Accumulators of a pass, and passes."""
        geometry, taps = self.geometry, banks_of_taps(self.geometry)
        ks, cs = div_ceil(geometry.K // geometry.groups, P_MAX), div_ceil(geometry.C // geometry.groups, channels)
        accumulators = min(outputs, ks) * min(inputs, cs) * taps
        if ks == cs == 1:
            together = max(1, min(geometry.groups, self.banks // accumulators))
            return together * accumulators, div_ceil(geometry.groups, together)
        return accumulators, geometry.groups * div_ceil(ks, outputs) * div_ceil(cs, inputs)

    def tiles(self, one: BlocksSettings) -> int:
        """Tiles of units of a core in a pass."""
        parts = PARTS if one.split else 1
        if self.pixels != TRANSPOSED:
            units = div_ceil(units_in(self.geometry, one.rows, one.columns), parts)
            return div_ceil(units, self.most // one.side)
        return div_ceil(self._gangs(one.rows, one.columns, self._gang(one)), parts)

    def buffers(self, one: BlocksSettings) -> int:
        """Tiles that are loaded at once: so many that the Tensor Engine does not wait, or as fit; 0 if too few do."""
        geometry, tiles, (c, k) = self.geometry, self.tiles(one), self._channels(one)
        x_size = window_of(geometry.rows, one.rows) * window_of(geometry.columns, one.columns) * geometry.planes.taps
        size, room = (x_size * c + one.rows * one.columns * k) * geometry.itemsize, BLOCK_BYTES
        if self.pixels == TRANSPOSED:
            size, room = size * self._gang(one), TRANSPOSED_BYTES - self._pieces_bytes(one)
        if self.work(one)[0] > self.banks:
            needed, wanted = tiles, 2 * tiles
        elif self.pixels == TRANSPOSED:
            needed, wanted = 1, min(2, tiles)
        else:
            array_ns, moved_ns, _ = self.engines(one)
            again = math.ceil(self._again_ns(array_ns, moved_ns) / max(array_ns, moved_ns))
            needed, wanted = min(2, tiles), max(2, again)
        fit = min(BUFFERS_MAX, room // size)
        return min(wanted, fit) if needed <= fit else 0

    def _pieces_bytes(self, one: BlocksSettings) -> int:
        """Of a partition for pieces of x on their way to the Tensor Engine, all rows of a gang's members each, if these
        are not the same rows and columns."""
        _, some_rows, some_columns = self.grid(one.rows, one.columns)
        if self._gang(one) < 2 * max(self.planes) or len(some_rows) * len(some_columns) == 1:
            return 0
        high, wide = window_of(self.source.rows, one.rows * some_rows[0][1]), self.source.columns.size
        return RAWS_LEAST * high * wide * self.geometry.itemsize

    def engines(self, one: BlocksSettings) -> tuple[float, float, float]:
        """A tile's ns of the Tensor Engine and of DMA, and ns of the loads before the first product."""
        geometry, (c, k) = self.geometry, self._channels(one)
        chunks = min(one.inputs, div_ceil(geometry.C // geometry.groups, one.channels))
        at_once = chunks / div_ceil(chunks, one.side)
        array_ns = self.work(one)[0] * self._bank_ns(one.rows, one.columns, one.beside, one.channels, at_once)
        if self.pixels == TRANSPOSED:
            transposes_ns, moved_ns, first_ns = self._transposed_ns(one.rows, one.columns, c, k, self._gang(one))
            return array_ns * self._gang(one) + transposes_ns, moved_ns, first_ns
        # of several row tiles, whole planes come without zeros around them
        is_whole = (one.rows, one.columns) == (geometry.rows.out, geometry.columns.out) and one.side > 1
        x_ns, y_ns = self._moved_ns(one.rows, one.columns, c, k, is_whole and self.is_clipped(one))
        first_ns = x_ns * min(1.0, geometry.rows.taps / window_of(geometry.rows, one.rows)) + y_ns / one.rows
        return array_ns, x_ns + y_ns, x_ns + y_ns if self.pixels == LINES else first_ns

    def is_clipped(self, one: BlocksSettings) -> bool:
        """Whether blocks that are whole planes come without zeros around them."""
        axes = self.geometry.rows, self.geometry.columns
        rows, columns = (runs_of(axis, axis.out, (0, axis.taps)) for axis in axes)
        return clipped_first(self.geometry, one, (rows, columns), (axes[0].taps, axes[1].taps)) is not None

    def _channels(self, one: BlocksSettings) -> tuple[int, int]:
        """Of x and of gy that a tile has in a pass, on a row tile."""
        of_x = one.channels * div_ceil(one.inputs, one.side)
        return min(self.geometry.C, of_x), min(self.geometry.K, P_MAX * one.outputs)

    def _gang(self, one: BlocksSettings) -> int:
        """Members of a tile that is transposed."""
        return gang_of(self.members(one.rows, one.columns, self.planes), self._channels(one)[0], one.split == 1)

    def _gangs_of(self, rows: int, columns: int, gang: int) -> int:
        """Tiles of such gangs."""
        planes, some_rows, some_columns = self.grid(rows, columns)
        places = len(some_rows) * len(some_columns)
        return sum(len(gangs_of(count, planes, gang, places)) for count in self.planes)

    def _bank_ns_of(self, rows: int, columns: int, beside: int, channels: int, at_once: float) -> float:
        """The Tensor Engine's for a tile and an accumulator, on average: the last output channels may be packed."""
        geometry, target = self.geometry, self.target
        found = []
        for _, count in outputs_beside(geometry, beside):
            width = float(min(BANK_COLUMNS, taps_beside(geometry, count) * channels))
            # row tiles work at once, each matmul a few columns after the last at least
            width = max(width, at_once * target.row_tile_columns if at_once > 1 else 0)
            found.append(rows * div_ceil(columns, count) * matmul_ns(target, geometry, width) / at_once)
        return float(sum(found) / len(found))

    def _moved_ns_of(self, rows: int, columns: int, c: int, k: int, whole: bool) -> tuple[float, float]:
        """DMA's for x and for gy of a tile. whole: whether x's planes come without zeros around them."""
        geometry, found = self.geometry, []
        h, w = window_of(geometry.rows, rows), window_of(geometry.columns, columns)
        if whole:
            h, w = min(h, geometry.rows.size), min(w, geometry.columns.size)
        of_x = h, w, c, geometry.columns.size, geometry.C, geometry.x_strides
        of_gy = rows, columns, k, geometry.columns.out, geometry.K, geometry.y_strides
        for high, wide, count, width, channels, strides in (of_x, of_gy):
            if strides[0] == 1:
                run = wide * count if count == channels else count
            else:
                run = count * high * wide if whole and strides[0] == high * wide else wide
            found.append(self._runs_ns(high * wide * count, run, width))
        return geometry.planes.taps * found[0], found[1]

    def _runs_ns(self, elements: int, run: int, width: int) -> float:
        """DMA's for so many elements of a unit, in runs. width: elements of a line."""
        target, item = self.target, self.geometry.hbm_itemsize
        if self.pixels != LINES:
            return dma_ns(target, P_MAX, P_MAX, elements, run, item)
        num_bytes = self.most * elements * item
        moved_ns = num_bytes * target.byte_ns / (target.dma_engines * target.transpose_rate)
        return max(moved_ns, target.hbm_ns(num_bytes, width * item), self.most // width * target.hwdge_again_ns)

    def _transposed_ns_of(self, rows: int, columns: int, c: int, k: int, gang: int) -> tuple[float, float, float]:
        """A tile's ns of transposes and of DMA, and ns of the loads before the first product."""
        geometry, axes, item = self.source, (self.source.rows, self.source.columns), self.source.hbm_itemsize
        planes, some_rows, some_columns = self.grid(rows, columns)
        block, tile = (rows, columns), (rows * some_rows[0][1], columns * some_columns[0][1])
        of_block, of_tile = ((window_of(axes[0], one[0]), window_of(axes[1], one[1])) for one in (block, tile))
        spacing = spacing_of(axes[0], rows), spacing_of(axes[1], columns)
        of_x = of_block, of_tile, [axis.size for axis in axes], c, (geometry.planes.taps, axes[0].taps), spacing
        of_gy = block, tile, [axis.out for axis in axes], k, (1, 1), (1, 1)
        array_ns, moved_ns, first_ns, last_ns = 0.0, 0.0, 0.0, 0.0
        for (height, width), extents, sizes, channels, (taps, needed), (down, along) in (of_x, of_gy):
            high, wide = (min(extent, size) for extent, size in zip(extents, sizes, strict=True))
            (_, members), (_, count) = chunks_of(channels, gang)[-1]
            parts, times = members * count, taps * len(chunks_of(channels, gang))
            one_ns, last_ns = self._transpose_ns(parts, width)
            array_ns += times * div_ceil(height, down) * div_ceil(width, along) * one_ns
            # rows that a DMA takes at once
            lines = min(high, div_ceil(RUN_BYTES, wide * item))
            pieces = max(1, round(height / lines))
            each_ns = dma_ns(self.target, P_MAX, parts, planes * high * wide, lines * wide, item)
            moved_ns += times * each_ns
            first_ns += taps * each_ns * min(1.0, div_ceil(needed * pieces, height) / pieces)
        return array_ns + last_ns, moved_ns, first_ns

    def _transpose_ns(self, parts: int, width: int) -> tuple[float, float]:
        """(Of a transpose: the slower of the Tensor Engine and of Vector and Scalar that evacuate it; of the last bank
        until a product reads it.)"""
        target, is_fast = self.target, self.geometry.itemsize == 2
        places = max(1, min(width, BANK_BYTES // (parts * self.geometry.itemsize)))
        vector_ns = parts * (target.vector_16bit_ns if is_fast else target.vector_ns)
        vector_ns += target.vector_fixed_psum_ns / places
        scalar_ns = parts * target.scalar_ns + target.scalar_fixed_ns / places
        last_ns = places * max(vector_ns, scalar_ns) + target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns
        return max(transpose_ns(target, self.geometry), vector_ns * scalar_ns / (vector_ns + scalar_ns)), last_ns

    def _stored_ns(self, one: BlocksSettings, accumulators: int) -> float:
        """DMA's for a pass's sums where x and gy have changed places: runs of the taps of an input channel."""
        geometry, taps = self.geometry, self.geometry.rows.taps * self.geometry.columns.taps
        if not geometry.flipped:
            return 0.0
        run = taps if geometry.w_strides[1] > geometry.w_strides[3] else 1
        elements = taps * one.channels * accumulators / (PARTS if one.split else 1)
        return dma_ns(self.target, P_MAX, P_MAX, elements, run, 4)

    def _end_ns(self, one: BlocksSettings, accumulators: int) -> float:
        """The last accumulator's evacuation and store; the sums of both cores' halves, which nothing hides."""
        target, geometry, count = self.target, self.geometry, min(accumulators, self.banks)
        width = min(BANK_COLUMNS, taps_beside(geometry, one.beside) * one.channels)
        end_ns = width * target.scalar_ns + last_store_ns(target)
        if not one.split:
            return end_ns
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        last = min(filters, count * BANK_BYTES * P_MAX)
        exchanged_ns = target.exchange_ns + max(0.0, last - target.exchange_bytes) * target.exchange_byte_ns
        return end_ns + exchanged_ns + count * width * target.vector_ns + target.hbm_ns(last / PARTS, 4.0 * width)
