"""What `blocks` takes: the first blocks, then the slower of the array and the DMAs, the last sums, and what the cores
add up."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
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

    def with_blocks(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Iterator[Sizes]:
        """These sizes with all blocks of such rows and columns, in the buffers that they need, that fit."""
        for p in rows:
            for q in columns:
                if q >= self.beside:
                    needed = buffers_needed(self.geometry, (p, q), self.channels, self.of_pass)
                    found = dataclasses.replace(self, rows=p, columns=q, buffers=needed)
                    if found.buffers <= found.most_buffers:
                        yield found

    @property
    def most_buffers(self) -> int:
        """Tiles that fit."""
        return min(BUFFERS_MAX, BLOCK_BYTES // self.bytes)


class BlocksPrice:
    """Times of the busier of two cores, in ns: on one core settings are the same, and so results are."""

    def __init__(self, target: Target, geometry: Any) -> None:
        self.target, self.geometry = target, geometry
        self._moved = functools.cache(self._moved_of)

    def settled(self, sizes: Sizes, given: Mapping[str, int]) -> tuple[float, Sizes]:
        """(ns from the first DMA to the last, sizes with as many buffers as pay). With more, the first tile's loads
        that wait for zeros come after those of others that wait for nothing."""
        target, geometry = self.target, self.geometry
        jobs, passes = self._jobs(sizes)
        units = units_in(geometry, sizes.rows, sizes.columns)
        of_core, turns = div_ceil(units, PARTITIONS), div_ceil(passes, PARTS)
        if sizes.split:
            units, turns = div_ceil(units, PARTS), passes
            of_core = div_ceil(units, PARTITIONS)
        mine = of_core * turns
        width = min(BANK_COLUMNS, taps_beside(geometry, sizes.beside) * sizes.channels)
        positions = sizes.rows * div_ceil(sizes.columns, sizes.beside)
        tile_ns = positions * jobs * matmul_ns(target, geometry, width)
        load_ns, first_ns = self._load_ns(sizes)
        array_ns, moving_ns = mine * tile_ns, turns * units / PARTITIONS * load_ns + self._stored_ns(sizes)
        worked_ns = max(first_ns + array_ns, moving_ns + tile_ns)
        rounds, buffers = div_ceil(jobs, PSUM_BANKS), sizes.buffers
        if rounds > 1:
            # all tiles come before the first banks are read out
            worked_ns = max(worked_ns, of_core * load_ns + array_ns - (of_core * tile_ns - tile_ns) / rounds)
            if passes > PARTS:
                # the next pass's tiles come meanwhile, or wait
                buffers = given.get("buffers", min(2 * buffers, sizes.most_buffers))
                worked_ns = worked_ns if buffers >= 2 * of_core else max(worked_ns, array_ns + moving_ns)
        else:
            # a buffer is loaded, worked on and free again
            turn_ns = target.hop_dma_ns + self._start_ns() + load_ns + tile_ns
            needed = max(2, math.ceil(turn_ns / max(tile_ns, load_ns)))
            buffers = given.get("buffers", min(needed, sizes.most_buffers))
            worked_ns = max(worked_ns, first_ns + mine * turn_ns / buffers)
        found = dataclasses.replace(sizes, buffers=buffers)
        return self._start_ns() + worked_ns + self._sums_ns(sizes, width), found

    def _jobs(self, sizes: Sizes) -> tuple[int, int]:
        """Banks of a pass, and passes."""
        K, C, groups = self.geometry.K, self.geometry.C, self.geometry.groups
        ks, cs = div_ceil(K // groups, PARTITIONS), div_ceil(C // groups, sizes.channels)
        jobs = jobs_of_pass(self.geometry, sizes.channels, sizes.of_pass)
        if ks == cs == 1:
            together = max(1, min(groups, PSUM_BANKS // jobs))
            return together * jobs, div_ceil(groups, together)
        return jobs, groups * div_ceil(ks, sizes.outputs) * div_ceil(cs, sizes.inputs)

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

    def _stored_ns(self, sizes: Sizes) -> float:
        """Of the stores of all sums, which go along with the loads but where the cores add them up at the end."""
        geometry = self.geometry
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        found: float = self.target.hbm_ns(filters, 4.0 * num_taps(geometry) * sizes.channels)
        return 0.0 if sizes.split else found / PARTS

    def _sums_ns(self, sizes: Sizes, width: int) -> float:
        """Of the last bank's read-out and store; of the sums of both cores' halves, which nothing hides."""
        target, geometry = self.target, self.geometry
        end_ns = width * target.scalar_ns + target.scalar_done_ns + target.first_packet_ns + target.dma_end_ns
        if not sizes.split:
            return float(end_ns)
        filters = 4 * geometry.K * (geometry.C // geometry.groups) * num_taps(geometry)
        each_ns = target.hbm_ns(filters, 4.0 * num_taps(geometry) * sizes.channels)
        return float(end_ns + START_NS + MEET_NS + 2 * each_ns)
