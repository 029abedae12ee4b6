"""The bound of `blocks`: what settings take at least, the busier of the Tensor Engine, with what it waits for, and of
DMA; the first loads, the last stores. Where the Tensor Engine transposes, evacuations, zeros, and pieces on their way
count with it, as the Schedule will have them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.timing.target import Target
from .blocks import (
    BLOCK_BYTES,
    BUFFERS_MAX,
    LINES,
    TRANSPOSED,
    BlocksSettings,
    banks_of_taps,
    matmuls_beside,
    outputs_beside,
    planes_of,
    runs_of,
    sum_banks,
    taps_beside,
    units_in,
)
from .blocks_schedule import CHAIN, SUMS_BYTES, clipped_first, gathered_bytes
from .blocks_transposes import (
    AHEAD,
    RAWS,
    RAWS_LEAST,
    SLABS,
    chunks_of,
    gang_of,
    gangs_of,
    grid_of,
    pieces_of,
    spacing_of,
)
from .cuts import window_of
from .geometry import Geometry, num_taps
from .prices import dma_ns, first_load_ns, last_store_ns, matmul_ns, matmul_rates, transpose_ns
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, div_ceil

#: The part of the less busy engine's time that the busier one does not hide.
EXPOSED = 0.1


@dataclass(frozen=True)
class SideNs:
    """Of x, or of gy, of a tile that is transposed, in ns: the Tensor Engine's transposes, and while columns stream;
    all evacuations by Vector, or by Scalar; Vector's copies and GpSimd's zeros; the last bank on its
    way to a product; loads, the ns of one, its bytes a
    partition in SBUF, and of a row with zeros, and the loads before the first product."""

    transposes: float
    streamed: float
    vector: float
    scalar: float
    copied: float
    cleared: float
    last: float
    loads: int
    load: float
    load_bytes: int
    slab_bytes: int
    first: float


@dataclass(frozen=True)
class TileNs:
    """Of a tile, in ns: the Tensor Engine's products, and while columns stream; DMA, and the loads before the first
    product; Sides that are transposed."""

    products: float
    streamed: float
    moved: float
    first: float
    sides: tuple[SideNs, ...] = ()

    @property
    def array(self) -> float:
        """The Tensor Engine's."""
        return self.products + sum(side.transposes for side in self.sides)

    @property
    def evacuated(self) -> float:
        """What Vector and Scalar take for transposes, or GpSimd for the zeros around them."""
        vector, scalar, copied, cleared = (
            sum(getattr(side, name) for side in self.sides) for name in ("vector", "scalar", "copied", "cleared")
        )
        return max(copied, cleared, (copied + vector) * scalar / (vector + scalar)) if self.sides else 0.0


@dataclass(frozen=True)
class Windows:
    """Of an axis elements of a window, and windows of a member; elements of all of these that are there, and from one
    that taps meet to the next; elements before the axis, and over its end."""

    extent: int
    blocks: int
    whole: int
    spacing: int
    before: int
    over: int

    @property
    def outside(self) -> int:
        """Elements that are not there."""
        return max(0, self.before) + max(0, self.over)


class BlocksBound:
    """Times of the busier of two cores, in ns: on one core settings are the same."""

    def __init__(self, target: Target, geometry: Geometry, source: Geometry, pixels: int, most: int) -> None:
        """geometry: of the blocks; source: of x and gy in memory; pixels: the setting; most: units of a tile."""
        self.target, self.geometry, self.source, self.pixels, self.most = target, geometry, source, pixels, most
        self.banks = sum_banks(pixels == TRANSPOSED)
        self.planes = tuple(count for _, count in planes_of(geometry.planes)) if pixels == TRANSPOSED else ()
        self.start_ns = first_load_ns(target)
        self.read_ns = target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns
        self.accumulators = functools.cache(self._accumulators_of)
        self.grid = functools.cache(functools.partial(grid_of, source))
        self._gangs = functools.cache(self._gangs_of)
        self._bank_ns, self._moved_ns = functools.cache(self._bank_ns_of), functools.cache(self._moved_ns_of)
        self._sides = functools.cache(self._sides_of)
        self._gang, self._engines = dict[Any, int](), dict[Any, TileNs]()

    def gang(self, one: BlocksSettings) -> int:
        """Members of a tile."""
        if self.pixels != TRANSPOSED:
            return 1
        kind = _without_buffers(one)
        if kind not in self._gang:
            self._gang[kind] = self._gang_of(one)
        return self._gang[kind]

    def engines(self, one: BlocksSettings) -> TileNs:
        """Of a tile."""
        kind = _without_buffers(one)
        if kind not in self._engines:
            self._engines[kind] = self._engines_of(one)
        return self._engines[kind]

    def ns(self, one: BlocksSettings) -> float:
        """From the first load to the last store."""
        (accumulators, passes), tiles, each = self.work(one), self.tiles(one), self.engines(one)
        array_ns, first_ns = self._array_ns(one, each), each.first
        # after the last loads: a row of the last tile, or all of it but for one accumulator
        last_ns = array_ns * (1 / one.rows if one.split else 1 - (1 - 1 / one.rows) / accumulators)
        if self.pixels == TRANSPOSED:
            last_ns = array_ns / 2 if passes * tiles == 1 else 0.0
        stored_ns = self._stored_ns(one, accumulators)
        again_ns = passes * tiles * self._again_ns(array_ns, each.moved) / one.buffers
        array_ns, moved_ns = passes * tiles * array_ns, passes * tiles * each.moved + (passes - 1) * stored_ns
        if accumulators > self.banks:
            # all tiles of a pass are loaded before its first accumulators leave, the next pass's meanwhile, or later
            waits_ns = moved_ns / (1 if one.buffers < 2 * tiles else passes)
            rounds = div_ceil(accumulators, self.banks) * passes
            array_ns, again_ns = max(array_ns, waits_ns + array_ns * (1 - 1 / rounds)), 0.0
        busiest_ns = max(first_ns + array_ns, moved_ns + last_ns, first_ns + again_ns)
        exposed_ns = EXPOSED * (min(array_ns, moved_ns) + passes * tiles * each.evacuated)
        return self.start_ns + busiest_ns + exposed_ns + self._end_ns(one, accumulators, passes) + stored_ns

    def _again_ns(self, array_ns: float, moved_ns: float) -> float:
        """From a tile's load into a buffer to the next one; of tiles that are transposed nothing waits for that."""
        return 0.0 if self.pixels == TRANSPOSED else self.target.hop_dma_ns + self.start_ns + moved_ns + array_ns

    def _array_ns(self, one: BlocksSettings, each: TileNs) -> float:
        """The Tensor Engine's of a tile with what it waits for. Transposes go along with the products of a row of a
        member but for the last columns, and so do evacuations and, as far as there are pieces for them, loads."""
        target, bursts = self.target, one.rows * self.gang(one)
        others_ns = each.array - each.products
        if each.sides:
            ahead_ns, raws, loads_ns = AHEAD * target.tensor_column_ns, self.raws(one), 0.0
            for side in each.sides:
                # a piece's buffer is free when it is transposed
                again_ns = self.start_ns + side.load + side.transposes / side.loads
                loads_ns += side.loads * max(side.load, again_ns / raws)
            others_ns = max(others_ns, each.evacuated - min(each.products, bursts * ahead_ns))
            hidden_ns = bursts * (ahead_ns + raws * sum(side.load for side in each.sides))
            others_ns = max(others_ns, loads_ns - min(each.products, hidden_ns))
        return self._throttled_ns(each, each.products + others_ns) + sum(side.last for side in each.sides[1:])

    def _throttled_ns(self, each: TileNs, all_ns: float) -> float:
        """So many ns of a tile at the rate that its throttle leaves the Tensor Engine: full where columns stream enough
        to come back to it, half where they do not stream enough to stay there, else between."""
        least, enough = self.target.window_work, self.target.window_work / self.target.half_rate
        slow = min(1.0, max(0.0, (enough - each.streamed / max(all_ns, each.moved)) / (enough - least)))
        return max(all_ns, each.array * (1 + slow * (1 / self.target.half_rate - 1)))

    def raws(self, one: BlocksSettings) -> int:
        """Pieces of x, and of gy, on their way together."""
        each = self.engines(one)
        room = self._room(one, each) - one.buffers * self.gang(one) * self._unit_bytes(one)
        return max(1, min(RAWS, room // sum(side.load_bytes for side in each.sides)))

    def _room(self, one: BlocksSettings, each: TileNs) -> int:
        """Bytes a partition for blocks, and pieces on their way to the Tensor Engine."""
        gathered = gathered_bytes(self.geometry, one.channels)
        return SBUF_BYTES - SUMS_BYTES - gathered - SLABS * max((side.slab_bytes for side in each.sides), default=0)

    def array_ns(self, one: BlocksSettings) -> float:
        """Of the Tensor Engine alone."""
        return self.work(one)[1] * self.tiles(one) * self.engines(one).array

    def least_ns(self, one: BlocksSettings) -> float:
        """The same, or of DMA alone."""
        each = self.engines(one)
        return self.work(one)[1] * self.tiles(one) * max(each.array, each.moved)

    def work(self, one: BlocksSettings) -> tuple[int, int]:
        """Accumulators of a pass, and passes of a core."""
        accumulators, passes, _ = self.accumulators(one.channels, one.outputs, one.inputs)
        return accumulators, passes if one.split else div_ceil(passes, PARTS)

    def _accumulators_of(self, channels: int, outputs: int, inputs: int) -> tuple[int, int, int]:
        """Accumulators of a pass, passes, and groups of a pass."""
        geometry, taps = self.geometry, banks_of_taps(self.geometry)
        ks, cs = div_ceil(geometry.K // geometry.groups, P_MAX), div_ceil(geometry.C // geometry.groups, channels)
        accumulators = min(outputs, ks) * min(inputs, cs) * taps
        if ks == cs == 1:
            together = max(1, min(geometry.groups, self.banks // accumulators))
            return together * accumulators, div_ceil(geometry.groups, together), together
        return accumulators, geometry.groups * div_ceil(ks, outputs) * div_ceil(cs, inputs), 1

    def tiles(self, one: BlocksSettings) -> int:
        """Tiles of units of a core in a pass."""
        parts = PARTS if one.split else 1
        if self.pixels != TRANSPOSED:
            units = div_ceil(units_in(self.geometry, one.rows, one.columns), parts)
            return div_ceil(units, self.most // one.side)
        return div_ceil(self._gangs(one.rows, one.columns, self.gang(one)), parts)

    def buffers(self, one: BlocksSettings) -> int:
        """Tiles that are loaded at once: so many that the Tensor Engine does not wait, or as fit; 0 if too few do."""
        tiles, each, size = self.tiles(one), self.engines(one), self._unit_bytes(one) * self.gang(one)
        if self.work(one)[0] > self.banks:
            needed, wanted = tiles, 2 * tiles
        elif self.pixels == TRANSPOSED:
            needed, wanted = 1, min(2, tiles)
        else:
            again = math.ceil(self._again_ns(each.products, each.moved) / max(each.products, each.moved))
            needed, wanted = min(2, tiles), max(2, again)
        room = self._room(one, each) - RAWS_LEAST * sum(side.load_bytes for side in each.sides)
        room = room if self.pixels == TRANSPOSED and self.gang(one) == 1 else min(BLOCK_BYTES, room)
        fit = min(BUFFERS_MAX, room // size)
        return min(wanted, fit) if needed <= fit else 0

    def _is_apart(self, rows: int, columns: int, gang: int) -> bool:
        """Whether members of gangs are not the same rows and columns."""
        _, some_rows, some_columns = self.grid(rows, columns)
        return gang > 1 and gang >= 2 * max(self.planes) and len(some_rows) * len(some_columns) > 1

    def _engines_of(self, one: BlocksSettings) -> TileNs:
        geometry, (c, k) = self.geometry, self._channels(one)
        chunks = min(one.inputs, div_ceil(geometry.C // geometry.groups, one.channels))
        at_once = chunks / div_ceil(chunks, one.side)
        products_ns, streamed_ns = self._bank_ns(one.rows, one.columns, one.beside, one.channels, at_once)
        banks = self.work(one)[0] * self.gang(one)
        if self.pixels == TRANSPOSED:
            sides = self._sides(one.rows, one.columns, c, k, self.gang(one))
            streamed_ns = banks * streamed_ns + sum(side.streamed for side in sides)
            moved_ns, first_ns = sum(side.loads * side.load for side in sides), sum(side.first for side in sides)
            return TileNs(banks * products_ns, streamed_ns, moved_ns, first_ns, sides)
        # of several row tiles, whole planes come without zeros around them
        is_whole = (one.rows, one.columns) == (geometry.rows.out, geometry.columns.out) and one.side > 1
        x_ns, y_ns = self._moved_ns(one.rows, one.columns, c, k, is_whole and self.is_clipped(one))
        first_ns = x_ns * min(1.0, geometry.rows.taps / window_of(geometry.rows, one.rows)) + y_ns / one.rows
        first_ns = x_ns + y_ns if self.pixels == LINES else first_ns
        return TileNs(banks * products_ns, banks * streamed_ns, x_ns + y_ns, first_ns)

    def is_clipped(self, one: BlocksSettings) -> bool:
        """Whether blocks that are whole planes come without zeros around them."""
        axes = self.geometry.rows, self.geometry.columns
        rows, columns = (runs_of(axis, axis.out, (0, axis.taps)) for axis in axes)
        return clipped_first(self.geometry, one, (rows, columns), (axes[0].taps, axes[1].taps)) is not None

    def _channels(self, one: BlocksSettings) -> tuple[int, int]:
        """Of x and of gy that a tile has in a pass, on a row tile."""
        geometry, together = self.geometry, self.accumulators(one.channels, one.outputs, one.inputs)[2]
        of_x = min(geometry.C // geometry.groups, one.channels * div_ceil(one.inputs, one.side))
        return of_x * together, min(geometry.K // geometry.groups, P_MAX * one.outputs) * together

    def _gang_of(self, one: BlocksSettings) -> int:
        room = min(BLOCK_BYTES // self._unit_bytes(one), CHAIN // (one.rows * one.columns))
        return gang_of(self.grid(one.rows, one.columns), self.planes, self._channels(one)[0], one.split == 1, room)

    def _unit_bytes(self, one: BlocksSettings) -> int:
        """Bytes a partition of a tile, but for its gang."""
        geometry, (c, k) = self.geometry, self._channels(one)
        x_size = window_of(geometry.rows, one.rows) * window_of(geometry.columns, one.columns) * geometry.planes.taps
        return (x_size * c + one.rows * one.columns * k) * geometry.itemsize

    def _gangs_of(self, rows: int, columns: int, gang: int) -> int:
        """Tiles of such gangs."""
        return len(gangs_of(self.grid(rows, columns), self.planes, gang))

    def _bank_ns_of(self, rows: int, columns: int, beside: int, channels: int, at_once: float) -> tuple[float, float]:
        """The Tensor Engine's for a tile and an accumulator, on average, and while columns stream: the last output
        channels may be packed."""
        geometry, target = self.geometry, self.target
        found, streamed = [], []
        for _, count in outputs_beside(geometry, beside):
            width = float(min(BANK_COLUMNS, taps_beside(geometry, count) * channels))
            matmuls = rows * matmuls_beside(geometry, columns, count) / at_once
            streamed.append(matmuls * width * matmul_rates(target, geometry)[0])
            # row tiles work at once, each matmul a few columns after the last at least
            width = max(width, at_once * target.row_tile_columns if at_once > 1 else 0)
            found.append(matmuls * matmul_ns(target, geometry, width))
        return sum(found) / len(found), sum(streamed) / len(found)

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

    def _sides_of(self, rows: int, columns: int, c: int, k: int, gang: int) -> tuple[SideNs, ...]:
        """x and gy of a tile whose channels the Tensor Engine transposes."""
        (height, wide), (planes, some_rows, some_columns) = (
            (self.source.rows, self.source.columns),
            self.grid(rows, columns),
        )
        x, gy = [], []
        for axis, extent, blocks in (height, rows, some_rows[0][1]), (wide, columns, some_columns[0][1]):
            end, tile, window = extent * div_ceil(axis.out, extent), extent * blocks, window_of(axis, extent)
            over = window_of(axis, end) - axis.before - axis.size
            whole = min(axis.size, window_of(axis, tile))
            x.append(Windows(window, blocks, whole, spacing_of(axis, extent), axis.before, over))
            gy.append(Windows(extent, blocks, min(axis.out, tile), 1, 0, end - axis.out))
        place = planes, gang, self._is_apart(rows, columns, gang)
        of_x = self._side(c, self.source.planes.taps, x, place, height.taps)
        return of_x, self._side(k, 1, gy, place, 1)

    def _side(
        self, channels: int, taps: int, windows: Sequence[Windows], place: tuple[int, int, bool], needed: int
    ) -> SideNs:
        """x, of so many planes of taps, or gy. windows: of rows and of columns; place: planes of a member, members of a
        gang, whether they are apart; needed: rows before the first product."""
        target, item, fast = self.target, self.geometry.itemsize, self.geometry.itemsize == 2
        (rows, columns), (planes, gang, apart) = windows, place
        (_, members), (_, count) = chunks_of(channels, gang)[-1]
        parts, times = members * count, taps * len(chunks_of(channels, gang))
        lines, places = times * div_ceil(rows.extent, rows.spacing), div_ceil(columns.extent, columns.spacing)
        banks, elements = lines * div_ceil(places, BANK_BYTES // (parts * item)), lines * places * parts
        vector_ns = target.vector_16bit_ns if fast else target.vector_ns
        transposes_ns = lines * places * transpose_ns(target, self.geometry)
        row = planes * rows.blocks * columns.whole
        copy_ns = target.vector_fixed_ns + row * (target.vector_4x_ns if fast else target.vector_16bit_ns)
        strip_ns = target.gpsimd_fixed_ns + planes * columns.whole * target.gpsimd_ns
        pieces = pieces_of(rows.extent, columns.whole * item, apart)
        high = rows.whole if pieces == 1 else div_ceil(rows.extent, pieces)
        load_ns = dma_ns(target, P_MAX, parts, planes * rows.whole * columns.whole, high * columns.whole, item) / pieces
        return SideNs(
            transposes=transposes_ns,
            streamed=transposes_ns * min(1.0, parts / P_MAX),
            vector=elements * vector_ns + banks * target.vector_fixed_psum_ns,
            scalar=elements * target.scalar_ns + banks * target.scalar_fixed_ns,
            copied=0.0 if apart or columns.outside == 0 else lines * copy_ns,
            cleared=0.0 if apart else times * min(rows.extent, rows.outside) * strip_ns,
            last=elements / banks * max(vector_ns, target.scalar_ns) + self.read_ns,
            loads=times * pieces,
            load=load_ns,
            load_bytes=(planes * rows.whole * columns.whole if pieces == 1 else row * high) * item,
            slab_bytes=row * item,
            first=taps * load_ns * div_ceil(min(needed, rows.extent) * pieces, rows.extent),
        )

    def _stored_ns(self, one: BlocksSettings, accumulators: int) -> float:
        """DMA's for a pass's sums where x and gy have changed places: runs of the taps of an input channel."""
        geometry, taps = self.geometry, self.geometry.rows.taps * self.geometry.columns.taps
        if not geometry.flipped:
            return 0.0
        run = taps if geometry.w_strides[1] > geometry.w_strides[3] else 1
        elements = taps * one.channels * accumulators / (PARTS if one.split else 1)
        return dma_ns(self.target, P_MAX, P_MAX, elements, run, 4)

    def _end_ns(self, one: BlocksSettings, accumulators: int, passes: int) -> float:
        """The last accumulator's evacuation, of each column of gy that shares its matmuls, and store; sums of both
        cores' halves, which nothing hides. Vector evacuates the next pass's transposes thereafter."""
        target, geometry, count = self.target, self.geometry, min(accumulators, self.banks)
        width = min(BANK_COLUMNS, taps_beside(geometry, one.beside) * one.channels)
        evacuated_ns = one.beside * (taps_beside(geometry, 1) * one.channels * target.vector_ns + self.read_ns)
        again = passes if self.pixels == TRANSPOSED else 1
        end_ns = again * evacuated_ns + last_store_ns(target)
        if not one.split:
            return end_ns
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        last = min(filters, count * BANK_BYTES * P_MAX)
        exchanged_ns = target.exchange_ns + max(0.0, last - target.exchange_bytes) * target.exchange_byte_ns
        exchanged_ns += count * width * target.vector_ns + target.hbm_ns(last / PARTS, 4.0 * width)
        # those of a round go along with the next one's products
        rounds = div_ceil(accumulators, self.banks)
        hidden_ns = self.engines(one).products * self.tiles(one) / rounds
        return end_ns + again * (exchanged_ns + (rounds - 1) * max(0.0, exchanged_ns - hidden_ns))


def _without_buffers(one: BlocksSettings) -> tuple[int, ...]:
    """What a tile's times depend on."""
    return one.rows, one.columns, one.channels, one.outputs, one.inputs, one.beside, one.side, one.split
