"""What `blocks` takes: the first blocks, then the slower of the array and the DMAs, the last sums, and what the cores
add up."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....kernels._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, div_ceil
from ....kernels._warm import WARM_UP_MAX
from ....kernels.conv.cuts import window_of
from ....kernels.conv.geometry import num_taps
from ....kernels.gradients.config import (
    BLOCK_BYTES,
    BUFFERS_MAX,
    block_bytes,
    buffers_needed,
    jobs_of_pass,
    taps_beside,
    units_in,
)
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..conv.common import matmul_ns
from ..conv.relayout import MEET_NS, START_NS

#: Tiles that are there together where banks do not need them all.
BUFFERS = 6


@dataclass(frozen=True)
class Sizes:
    """Settings but for the copies and the warm-up."""

    geometry: Any
    channels: int
    outputs: int
    inputs: int
    beside: int
    split: int
    rows: int = 1
    columns: int = 1
    buffers: int = 1

    @property
    def settings(self) -> dict[str, int]:
        """By their names."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "geometry"}

    @property
    def of_pass(self) -> tuple[int, int, int]:
        """What the kernel's own rules call sizes."""
        return self.outputs, self.inputs, self.split

    @property
    def bytes(self) -> int:
        """Of a block."""
        found: int = block_bytes(self.geometry, (self.rows, self.columns), self.channels, self.of_pass)
        return found

    def with_blocks(self, rows: tuple[int, ...], columns: tuple[int, ...], buffers: int | None) -> Iterator[Sizes]:
        """These sizes with all blocks of such rows and columns that fit."""
        for p in rows:
            for q in columns:
                if q < self.beside:
                    continue
                each = block_bytes(self.geometry, (p, q), self.channels, self.of_pass)
                needed = buffers_needed(self.geometry, (p, q), self.channels, self.of_pass)
                tiles = div_ceil(units_in(self.geometry, p, q), PARTITIONS)
                count = buffers or max(needed, min(BUFFERS, BLOCK_BYTES // each))
                is_all = jobs_of_pass(self.geometry, self.channels, self.of_pass) > PSUM_BANKS
                if count * each <= BLOCK_BYTES and (buffers or not is_all or tiles <= BUFFERS_MAX):
                    yield dataclasses.replace(self, rows=p, columns=q, buffers=count)


class BlocksPrice:
    """Times of the busier core, in ns."""

    def __init__(self, target: Target, geometry: Any, cores: int) -> None:
        self.target, self.geometry, self.cores = target, geometry, cores
        self._moved = functools.cache(self._moved_of)

    def ns(self, sizes: Sizes) -> float:
        """From the first DMA to the last."""
        target, geometry = self.target, self.geometry
        K, C = geometry.K // geometry.groups, geometry.C // geometry.groups
        ks, cs = div_ceil(K, PARTITIONS), div_ceil(C, sizes.channels)
        jobs = jobs_of_pass(geometry, sizes.channels, sizes.of_pass)
        passes = geometry.groups * div_ceil(ks, sizes.outputs) * div_ceil(cs, sizes.inputs)
        if ks == cs == 1:
            together = max(1, min(geometry.groups, PSUM_BANKS // jobs))
            passes, jobs = div_ceil(geometry.groups, together), together * jobs
        tiles = div_ceil(units_in(geometry, sizes.rows, sizes.columns), PARTITIONS)
        mine = passes * div_ceil(tiles, self.cores) if sizes.split else div_ceil(passes, self.cores) * tiles
        width = min(BANK_COLUMNS, taps_beside(geometry, sizes.beside) * sizes.channels)
        positions = sizes.rows * div_ceil(sizes.columns, sizes.beside)
        tile_ns = positions * jobs * matmul_ns(target, geometry, width)
        load_ns, first_ns = self._load_ns(sizes)
        array_ns, moving_ns = mine * tile_ns, mine * load_ns
        if passes > self.cores and sizes.buffers == 1 and 2 * sizes.bytes > BLOCK_BYTES:
            # blocks of a pass wait for those of the pass before to be done with
            worked_ns = array_ns + moving_ns
        else:
            worked_ns = max(first_ns + array_ns, moving_ns + tile_ns)
        return self._start_ns() + worked_ns + self._sums_ns(sizes, width)

    def warmup(self, sizes: Sizes) -> int:
        """Matmuls on zeros until the first rows are there."""
        first_ns = self._start_ns() + self._load_ns(sizes)[1]
        each_ns = PARTITIONS * self.target.tensor_column_ns / self.target.half_rate
        return min(WARM_UP_MAX, int(first_ns / each_ns))

    def _start_ns(self) -> float:
        target = self.target
        return float(target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns)

    def _load_ns(self, sizes: Sizes) -> tuple[float, float]:
        """Of a tile's blocks, and of the rows of them that the first matmul waits for."""
        x_ns, y_ns = self._moved(sizes.rows, sizes.columns, sizes.channels * sizes.inputs, sizes.outputs)
        window = window_of(self.geometry.rows, sizes.rows)
        return x_ns + y_ns, x_ns * min(1.0, self.geometry.rows.taps / window) + y_ns / sizes.rows

    def _moved_of(self, rows: int, columns: int, channels: int, outputs: int) -> tuple[float, float]:
        """ns of the DMAs of x, and of gy, of a tile."""
        geometry = self.geometry
        h, w = window_of(geometry.rows, rows), window_of(geometry.columns, columns)
        c, k = min(geometry.C, channels), min(geometry.K, PARTITIONS * outputs)
        x_ns = self._dma_ns((h, w, c), (geometry.columns.size, geometry.C), geometry.x_strides)
        y_ns = self._dma_ns((rows, columns, k), (geometry.columns.out, geometry.K), geometry.y_strides)
        return x_ns * geometry.planes.taps, y_ns

    def _dma_ns(self, extents: tuple[int, int, int], whole: tuple[int, int], strides: Any) -> float:
        """Of so many rows, columns and channels for each partition, of tensors of so many columns and channels."""
        target, item = self.target, self.geometry.hbm_itemsize
        h, w, c = extents
        runs, run = (c * h, w) if strides[0] != 1 else (h, w * c) if c == whole[1] else (h * w, c)
        engine_ns = target.rows_an_engine * runs * target.run_ns(run * item)
        return max(engine_ns, target.hbm_ns(PARTITIONS * h * w * c * item, run * item))

    def _sums_ns(self, sizes: Sizes, width: int) -> float:
        """Of the last bank's read-out and store; of the sums of both cores' halves, which nothing hides."""
        target, geometry = self.target, self.geometry
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        run = 4.0 * num_taps(geometry) * sizes.channels
        end_ns = width * target.scalar_ns + target.scalar_done_ns + target.first_packet_ns + target.dma_end_ns
        if not sizes.split:
            return float(end_ns + target.hbm_ns(filters / self.cores, run) / 2)
        each_ns = target.hbm_ns(filters, run)
        return float(end_ns + START_NS + MEET_NS + each_ns * (1 + PARTS / self.cores / 2 + 1 / self.cores))
