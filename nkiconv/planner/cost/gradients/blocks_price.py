"""What `blocks` takes: the first blocks, then the slower of the array and the DMAs, the last sums, and what the cores
add up."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....kernels._warm import WARM_UP_MAX
from ....kernels.gradients.defaults import (
    BLOCK_BYTES,
    block_bytes,
    buffers_needed,
    jobs_of_pass,
    outputs_beside,
    sum_banks,
    taps_beside,
    units_in,
)
from ....kernels.gradients.plan import first_of_clipped
from ....kernels.gradients.units import runs_of
from ....schedules.blocks import BUFFERS_MAX
from ....schedules.cuts import window_of
from ....schedules.geometry import met, num_taps
from ....schedules.tiles import BANK_BYTES, BANK_COLUMNS, PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..conv.common import matmul_ns


@dataclass(frozen=True)
class Sizes:
    """Settings but for the copies and the warm-up; turned: the Turned blocks of these rows and columns, or None."""

    geometry: Any
    channels: int
    outputs: int
    inputs: int
    beside: int
    split: int
    side: int = 1
    turned: Any = None
    #: units of a tile
    most: int = PARTITIONS
    rows: int = 1
    columns: int = 1
    buffers: int = 1

    @property
    def settings(self) -> dict[str, int]:
        """By their names."""
        names = [one.name for one in dataclasses.fields(self) if one.name not in ("geometry", "turned", "most")]
        return {name: getattr(self, name) for name in names}

    @property
    def of_pass(self) -> tuple[int, int, int]:
        """What the kernel's own rules call sizes."""
        return self.outputs, self.inputs, self.split

    @property
    def bytes(self) -> int:
        """Of a block."""
        found: int = block_bytes(self.geometry, (self.rows, self.columns), self.channels, self.of_pass, self.side)
        return found * self.gang

    @functools.cached_property
    def of_x(self) -> int:
        """Channels of x of a pass."""
        return min(int(self.geometry.C), self.channels * self.inputs)

    @functools.cached_property
    def of_gy(self) -> int:
        """Channels of gy of a pass."""
        return min(int(self.geometry.K), PARTITIONS * self.outputs)

    @functools.cached_property
    def gang(self) -> int:
        """Blocks of other planes below each other."""
        return 1 if self.turned is None else self.turned.gang(max(self.of_x, self.of_gy))

    @functools.cached_property
    def is_clipped(self) -> bool:
        """Whether blocks are planes, around which a kernel with several tiles of the array's rows puts no zeros."""
        rows, columns = self.geometry.rows, self.geometry.columns
        if self.side == 1 or self.rows < rows.out or self.columns < columns.out:
            return False
        runs = runs_of(rows, self.rows, (0, rows.taps)), runs_of(columns, self.columns, (0, columns.taps))
        return first_of_clipped(self.geometry, self, runs, (rows.taps, columns.taps)) is not None

    @property
    def at_once(self) -> float:
        """Matmuls that tiles of the array's rows work on side by side, of the chunks of a pass, on average."""
        channels = self.geometry.C // self.geometry.groups
        chunks: int = min(self.inputs, div_ceil(channels, self.channels))
        return float(chunks / div_ceil(chunks, self.side))

    @property
    def banks(self) -> int:
        """Banks for sums."""
        found: int = sum_banks(self.turned is not None)
        return found

    @functools.cached_property
    def of_core(self) -> tuple[int, float]:
        """Tiles of a core in a pass, and how many full ones it loads."""
        parts = PARTS if self.split else 1
        if self.turned is not None:
            tiles = div_ceil(self.turned.tiles(self.gang), parts)
            return tiles, tiles
        units = div_ceil(units_in(self.geometry, self.rows, self.columns), parts)
        return div_ceil(units, self.most), units / self.most

    def with_blocks(self, shapes: Iterable[tuple[int, int, Any]], admits: Callable[[Sizes], bool]) -> Iterator[Sizes]:
        """These sizes with all blocks of such (rows, columns, Turned or None) that are admitted, in the buffers that
        they need, that fit."""
        for rows, columns, turned in shapes:
            if columns >= self.beside:
                found = dataclasses.replace(self, rows=rows, columns=columns, turned=turned)
                if not admits(found):
                    continue
                needed = buffers_needed(
                    self.geometry, (rows, columns), self.channels, self.of_pass, found.banks, self.most
                )
                if turned is not None:
                    is_all = found.jobs > found.banks
                    needed = found.of_core[0] if is_all else 1
                if needed <= found.most_buffers:
                    yield dataclasses.replace(found, buffers=needed)

    @functools.cached_property
    def jobs(self) -> int:
        """Banks of a pass."""
        return int(jobs_of_pass(self.geometry, self.channels, self.of_pass))

    @property
    def most_buffers(self) -> int:
        """Tiles that fit."""
        room = BLOCK_BYTES
        if self.turned is not None:
            room = self.turned.room - (PARTS * min(self.jobs, self.banks) * BANK_BYTES if self.split else 0)
        return min(BUFFERS_MAX, max(0, room) // self.bytes)


def taps_met(axis: Any) -> float:
    """The part of all pairs of an output and a tap along an axis that meet an element, or a zero between elements."""
    pairs = sum(met(axis, tap, 0, axis.out)[2] for tap in range(axis.taps))
    return float(min(1.0, pairs * axis.lhs_dilation / (axis.out * axis.taps)))


class BlocksPrice:
    """Times of the busier of two cores, in ns: on one core settings are the same, and so results are."""

    def __init__(self, target: Target, geometry: Any, lines: Any = None) -> None:
        """lines: the Geometry of lines as they lie, where DMA transposes them."""
        self.target, self.geometry, self.lines = target, geometry, lines
        self._moved = functools.cache(self._moved_of)
        self._bank = functools.cache(self._bank_of)
        self._jobs = functools.cache(self._jobs_of)
        self.met = taps_met(geometry.rows), taps_met(geometry.columns)

    def least_ns(self, sizes: Sizes) -> float:
        """What `settled` finds at least, however many buffers there are: the array's products."""
        jobs, passes = self._jobs(sizes.channels, *sizes.of_pass, sizes.banks)
        turns = passes if sizes.split else div_ceil(passes, PARTS)
        return self._start_ns() + sizes.of_core[0] * turns * (jobs * self._bank_ns(sizes))

    def settled(self, sizes: Sizes, given: Mapping[str, int]) -> tuple[float, Sizes]:
        """(ns from the first DMA to the last, sizes with as many buffers as pay). With more, the first tile's loads
        that wait for zeros come after those of others that wait for nothing."""
        target, geometry, turned = self.target, self.geometry, sizes.turned
        jobs, passes = self._jobs(sizes.channels, *sizes.of_pass, sizes.banks)
        (of_core, loads), turns = sizes.of_core, passes if sizes.split else div_ceil(passes, PARTS)
        mine = of_core * turns
        width = min(BANK_COLUMNS, taps_beside(geometry, sizes.beside) * sizes.channels)
        tile_ns = jobs * self._bank_ns(sizes)
        load_ns, first_ns = self._load_ns(sizes)
        turning_ns = 0.0 if turned is None else mine * turned.of_tile(target, sizes)[0]
        array_ns, moving_ns = mine * tile_ns + turning_ns, turns * loads * load_ns + self._stored_ns(sizes)
        worked_ns = max(first_ns + array_ns, moving_ns + self._last_ns(sizes, tile_ns, jobs))
        rounds, buffers = div_ceil(jobs, sizes.banks), sizes.buffers
        if turned is not None:
            buffers = given.get("buffers", max(buffers, min(2, mine, sizes.most_buffers)))
            # the last tile goes bank by bank, as chunks of channels come
            chunks = div_ceil(max(sizes.of_x, sizes.of_gy), PARTITIONS)
            last_ns = tile_ns / chunks if mine == 1 or rounds > 1 else tile_ns * (1 - 1 / jobs)
            worked_ns = max(first_ns + array_ns, mine * load_ns + last_ns, moving_ns)
        elif rounds > 1:
            # all tiles come before the first banks are read out
            worked_ns = max(worked_ns, of_core * load_ns + array_ns - (of_core * tile_ns - tile_ns) / rounds)
            if passes > PARTS:
                # the next pass's tiles come meanwhile, or wait
                buffers = given.get("buffers", min(2 * buffers, sizes.most_buffers))
                worked_ns = worked_ns if buffers >= 2 * of_core else max(worked_ns, array_ns + moving_ns)
        else:
            # a buffer is loaded, worked on and free again
            turn_ns = target.hop_dma_ns + self._start_ns() + load_ns + tile_ns
            # of a DMA whose descriptors hardware makes the first packet comes as much later as its trigger takes
            turn_ns += 0.0 if self.lines is None else target.hwdge_issue_ns
            needed = max(2, math.ceil(turn_ns / max(tile_ns, load_ns)))
            buffers = given.get("buffers", min(needed, sizes.most_buffers))
            worked_ns = max(worked_ns, first_ns + mine * turn_ns / buffers)
        found = dataclasses.replace(sizes, buffers=buffers)
        return self._start_ns() + worked_ns + self._sums_ns(sizes, width, jobs), found

    def _bank_ns(self, sizes: Sizes) -> float:
        """Of the array for a tile and a bank, on average: the last output channels may be beside each other."""
        side = sizes.side > 1, sizes.at_once
        return self._bank(sizes.rows, sizes.columns, sizes.beside, sizes.channels, sizes.gang, side)

    def _bank_of(
        self, rows: int, columns: int, beside: int, channels: int, gang: int, side: tuple[bool, float]
    ) -> float:
        geometry, found, (is_beside, at_once) = self.geometry, [], side
        for _, count in outputs_beside(geometry, beside):
            width = min(BANK_COLUMNS, taps_beside(geometry, count) * channels) * self._seen(rows, columns)
            positions = rows * div_ceil(columns, count) * gang
            # tiles of the array's rows work side by side, each matmul a few columns behind the last at least
            least = at_once * self.target.row_tile_columns if is_beside else 0
            found.append(positions * matmul_ns(self.target, geometry, max(width, least)) / at_once)
        return float(sum(found) / len(found))

    def _seen(self, of_rows: int, of_columns: int) -> float:
        """The part of taps that meet x: zeros are left out where all units of a tile have them in the same place, as
        those of whole planes do, and those of many planes about."""
        rows, columns, units = self.geometry.rows, self.geometry.columns, self.geometry.planes.out
        no_rows = of_rows >= rows.out or units * div_ceil(columns.out, of_columns) >= PARTITIONS
        no_columns = of_columns >= columns.out or units * div_ceil(rows.out, of_rows) >= PARTITIONS
        return (self.met[0] if no_rows else 1.0) * (self.met[1] if no_columns else 1.0)

    def _last_ns(self, sizes: Sizes, tile_ns: float, jobs: int) -> float:
        """Of the array after the last load: its row for all banks; or for the first, and then the tile for others."""
        return tile_ns / sizes.rows if sizes.split else tile_ns * (1 - (1 - 1 / sizes.rows) / jobs)

    def _jobs_of(self, channels: int, outputs: int, inputs: int, split: int, banks: int) -> tuple[int, int]:
        """Banks of a pass, and passes."""
        K, C, groups = self.geometry.K, self.geometry.C, self.geometry.groups
        ks, cs = div_ceil(K // groups, PARTITIONS), div_ceil(C // groups, channels)
        jobs = int(jobs_of_pass(self.geometry, channels, (outputs, inputs, split)))
        if ks == cs == 1:
            together = max(1, min(groups, banks // jobs))
            return together * jobs, div_ceil(groups, together)
        return jobs, groups * div_ceil(ks, outputs) * div_ceil(cs, inputs)

    def warmup(self, sizes: Sizes) -> int:
        """Matmuls on zeros until the first rows are there, or what is turned first."""
        turned = sizes.turned
        loaded_ns = self._load_ns(sizes)[1] if turned is None else turned.start_ns(self.target, sizes)
        first_ns = self._start_ns() + loaded_ns
        each_ns = PARTITIONS * self.target.tensor_column_ns / self.target.half_rate
        return min(WARM_UP_MAX, int(first_ns / each_ns))

    def _start_ns(self) -> float:
        target = self.target
        return float(target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns)

    def _load_ns(self, sizes: Sizes) -> tuple[float, float]:
        """Of a tile's blocks, and of the rows of them that the first matmul waits for."""
        if sizes.turned is not None:
            all_ns, first_ns = sizes.turned.of_tile(self.target, sizes)[1]
            return all_ns, first_ns
        channels = sizes.channels * div_ceil(sizes.inputs, sizes.side)
        x_ns, y_ns = self._moved(sizes.rows, sizes.columns, channels, sizes.outputs, sizes.is_clipped)
        window = window_of(self.geometry.rows, sizes.rows)
        if self.lines is not None or (sizes.is_clipped and self.geometry.x_strides[0] != 1):
            return x_ns + y_ns, x_ns + y_ns
        return x_ns + y_ns, x_ns * min(1.0, self.geometry.rows.taps / window) + y_ns / sizes.rows

    def _moved_of(self, rows: int, columns: int, channels: int, outputs: int, clipped: bool) -> tuple[float, float]:
        """ns of the DMAs of x, and of gy, of a tile. clipped: whether these are planes without zeros around them."""
        geometry = self.geometry
        h, w = window_of(geometry.rows, rows), window_of(geometry.columns, columns)
        if clipped:
            h, w = min(h, geometry.rows.size), min(w, geometry.columns.size)
        c, k = min(geometry.C, channels), min(geometry.K, PARTITIONS * outputs)
        x_ns = self._dma_ns((h, w, c), (geometry.columns.size, geometry.C), geometry.x_strides, clipped)
        y_ns = self._dma_ns((rows, columns, k), (geometry.columns.out, geometry.K), geometry.y_strides, clipped)
        return x_ns * geometry.planes.taps, y_ns

    def _dma_ns(
        self, extents: tuple[int, int, int], whole: tuple[int, int], strides: Any, clipped: bool = False
    ) -> float:
        """Of so many rows, columns and channels for each partition, of tensors of so many columns and channels.
        clipped: as of `_moved_of`."""
        target, item = self.target, self.geometry.hbm_itemsize
        h, w, c = extents
        if self.lines is not None:
            num_bytes, run = PARTITIONS * h * w * c * item, whole[0] * item
            triggers_ns = -(-PARTITIONS // whole[0]) * target.hwdge_again_ns
            moved_ns = num_bytes * target.byte_ns / (target.dma_engines * target.transpose_rate)
            return float(max(moved_ns, target.hbm_ns(num_bytes, run), triggers_ns))
        runs, run = (c * h, w) if strides[0] != 1 else (h, w * c) if c == whole[1] else (h * w, c)
        if clipped and strides[0] == h * w:
            runs, run = 1, c * h * w
        engine_ns = target.rows_an_engine * runs * target.run_ns(run * item)
        return max(engine_ns, target.hbm_ns(PARTITIONS * h * w * c * item, run * item))

    def _stored_ns(self, sizes: Sizes) -> float:
        """Of the stores of all sums, which go along with the loads but where the cores add them up at the end."""
        geometry = self.geometry
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        found: float = self.target.hbm_ns(filters, 4.0 * num_taps(geometry) * sizes.channels)
        return 0.0 if sizes.split else found / PARTS

    def _sums_ns(self, sizes: Sizes, width: int, jobs: int) -> float:
        """Of the last bank's read-out and store; of the sums of both cores' halves, which nothing hides."""
        target, geometry = self.target, self.geometry
        end_ns = width * target.scalar_ns + target.scalar_done_ns + target.first_packet_ns + target.dma_end_ns
        if not sizes.split:
            return float(end_ns)
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        last = min(filters, sizes.banks * BANK_BYTES * PARTITIONS)
        exchanged_ns = target.exchange_ns + max(0.0, last - target.exchange_bytes) * target.exchange_byte_ns
        added_ns = min(jobs, sizes.banks) * width * target.vector_ns
        return float(end_ns + exchanged_ns + added_ns + target.hbm_ns(last / PARTS, 4.0 * width))
