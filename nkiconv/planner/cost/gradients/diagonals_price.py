"""What `diagonals` takes: steps of the slowest of the array, the DMAs and the read-outs, and its start and end."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ....kernels.gradients.diagonals.defaults import (
    READ_MOST,
    ROOM_BYTES,
    unit_elements,
    window_columns,
)
from ....schedules.cuts import window_of
from ....schedules.diagonals import DiagonalsSettings
from ....schedules.tiles import BANK_COLUMNS, PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..conv.common import matmul_rates

#: ns of the array and of a read-out at the end of a pass for each tile of rows: sums of latencies, as timelines show.
END_NS = 180.0
#: What settings cost a byte for which there is no room, in ns: more than any that fit.
OVER_NS = 1e3


class DiagonalsPrice:
    """Times of the busier of two cores, in ns; on one core settings are the same, and so results are."""

    def __init__(self, target: Target, geometry: Any, bias: bool) -> None:
        self.target, self.geometry, self.bias = target, geometry, bias
        self.column_ns, self.matmul_ns = matmul_rates(target, geometry)
        self.k = geometry.K // geometry.groups
        self.taps = geometry.C // geometry.groups * geometry.rows.taps * geometry.columns.taps
        self.columns = functools.cache(self._columns)
        self.product_ns = functools.cache(self._product_ns)
        self._dma_ns = functools.cache(self._dma_ns_of)

    def _columns(self, rows: int, columns: int) -> int:
        found: int = window_columns(self.geometry, rows, columns)
        return found

    def fits(self, rows: int, columns: int, beside: int, below: int) -> bool:
        """Whether a block of so many groups fits the partitions, and a bank holds its sums."""
        is_small = rows * columns * beside * self.k <= PARTITIONS // below
        return is_small and beside * self.columns(rows, columns) <= BANK_COLUMNS

    def _product_ns(self, rows: int, columns: int, beside: int, side: int) -> float:
        """Of the array for a block and so many groups of units on each of so many tiles of rows."""
        least = side * self.target.row_tile_columns if side > 1 else self.target.matmul_columns_min
        return float(max(beside * self.columns(rows, columns), least) * self.column_ns + self.matmul_ns)

    def array_least_ns(
        self, side: int, below: int, beside: int, rows: int, columns: int, down: int, across: int
    ) -> float:
        """Of the array, at least, whichever groups a pass has: all products, evenly shared by the cores, at its full
        rate."""
        geometry, T = self.geometry, self.geometry.planes.taps
        units = geometry.planes.out * div_ceil(geometry.rows.out, rows * down)
        units *= div_ceil(geometry.columns.out, columns * across)
        sets = geometry.groups // beside / side
        steps = div_ceil(units, PARTITIONS // side)
        products_ns = sets * T * down * across * self.product_ns(rows, columns, beside, side)
        return float(steps * products_ns / PARTS)

    def with_room(self, one: DiagonalsSettings, given: Mapping[str, Any]) -> DiagonalsSettings:
        """These settings, with a buffer less where that many do not fit, if the number of them is left open."""
        size = self._bytes(one, one.rows * one.down, one.columns * one.across, one.buffers)
        few = "buffers" not in given and size > ROOM_BYTES
        return dataclasses.replace(one, buffers=one.buffers - 1) if few else one

    def ns(self, one: Any) -> float:
        """From the first DMA to the last."""
        geometry, target, T = self.geometry, self.target, self.geometry.planes.taps
        rows, columns = one.rows * one.down, one.columns * one.across
        down, units = div_ceil(geometry.rows.out, rows), geometry.planes.out * div_ceil(geometry.columns.out, columns)
        size = PARTITIONS // one.side
        steps = down * div_ceil(units, size) if one.strips else div_ceil(down * units, size)
        passes = div_ceil(geometry.groups // one.beside, one.side * one.groups)
        steps, passes = (div_ceil(steps, PARTS), passes) if one.split else (steps, div_ceil(passes, PARTS))
        products, jobs = one.groups * T * one.down * one.across, div_ceil(one.groups, one.below) * T
        whole = one.below * one.rows * one.columns * one.beside * self.k == PARTITIONS
        products += jobs if one.below > 1 and not whole else 0
        array_ns = products * self.product_ns(one.rows, one.columns, one.beside, one.side) + one.side * END_NS
        moving_ns = self._moving_ns(one, rows, columns)
        reads_ns = one.side * (jobs * self._read_ns(one) + END_NS) + self._shared_ns(one, rows, columns)
        streamed_ns = products * one.beside * self.columns(one.rows, one.columns) * self.column_ns
        # short products at half rate never bring the array back to the full one
        is_short = target.half_rate * streamed_ns < target.window_work * array_ns
        if is_short or streamed_ns < target.window_work * max(array_ns, moving_ns, reads_ns):
            array_ns /= target.half_rate
        step_ns = max(array_ns, moving_ns, reads_ns)
        start_ns = target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns
        over_ns = OVER_NS * max(0, self._bytes(one, rows, columns, steps * passes) - ROOM_BYTES)
        return float(step_ns * (steps * passes - 1) + array_ns + moving_ns + reads_ns + start_ns + over_ns)

    def _shared_ns(self, one: Any, rows: int, columns: int) -> float:
        """Of the copies of rows of x that a unit shares with that above."""
        geometry, target = self.geometry, self.target
        count = max(0, window_of(geometry.rows, rows) - rows * geometry.rows.stride) if one.strips else 0
        elements = count * min(window_of(geometry.columns, columns), geometry.columns.size) * self._channels(one)[1]
        each_ns = target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns
        return float(geometry.planes.taps * elements * each_ns / PARTS)

    def _moving_ns(self, one: Any, rows: int, columns: int) -> float:
        """Of the DMAs of a step, on average."""
        geometry = self.geometry
        height = min(window_of(geometry.rows, rows), geometry.rows.size)
        if one.strips:
            height = div_ceil(geometry.rows.size, div_ceil(geometry.rows.out, rows))
        width = min(window_of(geometry.columns, columns), geometry.columns.size)
        k, c = self._channels(one)
        x = self._dma_ns((height, width, c), (geometry.columns.size, geometry.C), geometry.x_strides)
        y = self._dma_ns((rows, columns, k), (geometry.columns.out, geometry.K), geometry.y_strides)
        return float(geometry.planes.taps * x + y)

    def _dma_ns_of(self, extents: tuple[int, int, int], whole: tuple[int, int], strides: Any) -> float:
        """Of so many rows, columns and channels for each partition. whole: columns and channels that there are."""
        target, item = self.target, self.geometry.hbm_itemsize
        h, w, c = extents
        if strides[0] != 1:
            runs, run = (c, h * w) if w >= whole[0] else (c * h, w)
        else:
            runs, run = (h, w * c) if c == whole[1] else (h * w, c)
        engine_ns = target.rows_an_engine * runs * target.run_ns(run * item)
        return max(engine_ns, target.hbm_ns(PARTITIONS * h * w * c * item, run * item))

    def _channels(self, one: Any) -> tuple[int, int]:
        """Of gy and of x on a tile of rows in a pass."""
        groups = one.groups * one.beside
        return groups * self.k, groups * (self.geometry.C // self.geometry.groups)

    def _read_ns(self, one: Any) -> float:
        """Of the read-out of a set's sums on a tile of rows, which Vector and Scalar share, or of what GpSimd gathers
        of them."""
        target, sums = self.target, one.beside * self.columns(one.rows, one.columns)
        fixed = target.vector_fixed_psum_ns / max(1, BANK_COLUMNS // sums)
        rate = 1.0 / (1.0 / target.vector_ns + 1.0 / target.scalar_ns)
        return float(max(sums * rate + fixed / PARTS, self.taps * target.gather_ns))

    def _bytes(self, one: Any, rows: int, columns: int, steps: int) -> int:
        """A partition's, about."""
        geometry = self.geometry
        size = sum(unit_elements(geometry, rows, columns)) * one.groups * one.beside
        jobs = div_ceil(one.groups, one.below) * geometry.planes.taps
        sums = 8 * one.side * (jobs * self.taps + 2 * READ_MOST)
        return int(size * geometry.itemsize * min(one.buffers, steps) + sums)
