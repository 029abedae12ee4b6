"""What `grouped` takes: the array, the read-outs or the DMAs, and what nothing hides at both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....kernels.conv.grouped.filters import is_by_input
from ....kernels.conv.grouped.units import banks_of_unit, y_pages
from ....schedules.geometry import num_taps
from ....schedules.tiles import BANK_COLUMNS, PARTS, div_ceil, share
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..clock import Clock
from .common import matmul_rates

#: ns until Vector clears the first stationaries, until the first matmul on zeros, until GpSimd has made masks and
#: identities.
CLEAR_START_NS = 180.0
WARM_UP_START_NS = 260.0
RULERS_NS = 1350.0


@dataclass(frozen=True)
class _Build:
    """ns of what makes a wave's stationaries: GpSimd clears, Vector fills what lies between its groups, the array
    transposes that, taps are put in place, block by block of taps."""

    zeros_ns: float
    spread_ns: float
    transposed_ns: float
    placed_ns: float
    blocks: int


class GroupedPrice:
    """Times of a kernel's Grouped on two cores."""

    def __init__(self, target: Target, geometry: Any, grouped: Any) -> None:
        self.target, self.geometry, self.grouped = target, geometry, grouped
        self.fast = geometry.itemsize == 2
        self.per_c, self.per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
        self.taps = num_taps(geometry)
        #: ns of a column of the array at full rate, of an element that Vector copies inside SBUF
        self.column_ns = matmul_rates(target, geometry)[0]
        self.copy_ns = target.vector_16bit_ns / 2 if self.fast else target.vector_16bit_ns
        self.build = self._build_by_input() if is_by_input(geometry) else self._build()

    def total_ns(self) -> float:
        """ns of the busier core."""
        shares = [share(len(self.grouped.units), PARTS, core) for core in range(PARTS)]
        return max(self._core_ns(self.grouped.units[first : first + count]) for first, count in shares if count)

    def _core_ns(self, units: list[Any]) -> float:
        """ns of a core's units."""
        target, build = self.target, self.build
        array_ns = work_ns = engines_ns = zeros_ns = x_ns = y_ns = unit_ns = read_ns = 0.0
        for before, unit in zip((units[0], *units), units, strict=False):
            if before.wave != unit.wave:
                engines_ns += (build.spread_ns + build.placed_ns) / 2
                zeros_ns += build.zeros_ns
                array_ns += build.transposed_ns
                work_ns += build.transposed_ns * self.grouped.Kt / PARTITIONS
            unit_ns = 0.0
            for _, blocks, _, width in banks_of_unit(self.grouped, unit):
                columns = unit.zn * blocks * width
                unit_ns += self._sums_ns(columns)
                work_ns += len(self.grouped.window) * columns * self.column_ns
                read_ns = self._read_out_ns(unit, columns, blocks)
                engines_ns += read_ns
            array_ns += unit_ns
            moved = self._dma_ns(unit)
            x_ns, y_ns = x_ns + moved[0], y_ns + moved[1]
        count = len(units)
        clock, start_ns = self._started(self._first_load_ns(units[0]), array_ns / count)
        sums = clock.sums_end(start_ns, array_ns, work_ns)
        # sums of the last bank are read out, rows moved and stored
        chain_ns = target.matmul_done_ns + target.hop_ns + read_ns + target.scalar_done_ns + target.hop_dma_ns
        if self.grouped.Uh > 1:
            chain_ns += target.hop_ns + target.vector_done_ns
        end_ns = target.first_packet_ns + target.store_skew_ns + target.dma_end_ns + self._last_store_ns(units[-1])
        computed_ns = max(sums, start_ns + max(engines_ns, zeros_ns))
        # stores begin with the first unit's results; those before the last load make it later
        loaded_ns = target.first_packet_ns + target.load_skew_ns + x_ns
        stores_ns = start_ns + max(array_ns, engines_ns) / count + chain_ns + target.first_packet_ns
        stored_ns = max(loaded_ns, stores_ns) + y_ns + target.dma_end_ns
        loaded_ns += max(0.0, min(y_ns * (count - 1) / count, loaded_ns - stores_ns)) + target.dma_done_ns
        if count > 1:
            computed_ns = max(computed_ns, loaded_ns + unit_ns)
        return max(computed_ns + chain_ns + end_ns, stored_ns)

    def _started(self, x_ns: float, unit_ns: float) -> tuple[Clock, float]:
        """(the array's clock, ns until the first sums begin): stationaries are cleared, filters have come and are put
        in place, and so has the first x, x_ns of a DMA engine.

        unit_ns: of the array for a unit, which needs stationaries bit by bit.
        """
        target, grouped, build = self.target, self.grouped, self.build
        window = self.geometry.planes.taps * grouped.rows.taps * grouped.columns.taps
        words = window * grouped.Uw * grouped.Uh * grouped.Kt * self.geometry.itemsize / 4
        cleared_ns = CLEAR_START_NS + target.vector_fixed_memset_ns + words * target.vector_memset_ns
        w_ns = target.rows_an_engine * target.run_ns(self.per_c * self.taps * self.geometry.itemsize)
        come_ns = target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns
        there_ns = max(cleared_ns, come_ns + w_ns + (0.0 if self._fills() else x_ns))
        clock = Clock(target)
        time = clock.stream(WARM_UP_START_NS, grouped.warmup * target.matmul_columns_min * target.tensor_column_ns)
        if build.zeros_ns > 0.0:
            zeros_ns = RULERS_NS
            if len(grouped.waves) > 1:
                zeros_ns += target.gpsimd_fixed_ns + words * target.gpsimd_ns
            there_ns = max(there_ns, zeros_ns + build.zeros_ns / build.blocks)
        done_ns = target.vector_done_ns
        spread_ns = there_ns + max(build.spread_ns, build.zeros_ns * (1 - 1 / build.blocks)) + done_ns
        if build.transposed_ns > 0.0:
            begin = max(time, there_ns + build.spread_ns / build.blocks + done_ns)
            time = clock.sums_end(begin, build.transposed_ns, build.transposed_ns * grouped.Kt / PARTITIONS)
            spread_ns = max(time, spread_ns + build.transposed_ns / build.blocks) + target.matmul_done_ns
        placed_ns = max(build.placed_ns / build.blocks, build.placed_ns - unit_ns) + done_ns
        return clock, max(time, spread_ns + placed_ns + target.hop_tensor_ns, come_ns + w_ns + x_ns)

    def _fills(self) -> bool:
        """Whether the first wave's filters leave no gaps, whose zeros would let x come first."""
        geometry, grouped = self.geometry, self.grouped
        _, tiles, lanes = grouped.waves[0]
        size, used, channels = grouped.Kt, grouped.G * self.per_k, geometry.K
        if is_by_input(geometry):
            size, used, channels = grouped.T, grouped.G * self.per_c, geometry.C
        return bool(lanes == 1 and tiles * size <= channels and used == size)

    def _build_by_input(self) -> _Build:
        target, grouped = self.target, self.grouped
        blocks = div_ceil(self.taps, BANK_COLUMNS // grouped.Kt)
        elements = self.taps * grouped.G * self.per_k
        spread_ns = blocks * target.vector_fixed_ns + elements * self._product_ns
        if self.geometry.flipped:  # two engines put taps forwards
            spread_ns += self.taps * (target.vector_fixed_ns + self.per_k * self.copy_ns) / 2
        placed_ns = grouped.Uh * grouped.Uw * (blocks * target.vector_fixed_ns + elements * self.copy_ns)
        return _Build(0.0, spread_ns, 0.0, placed_ns, blocks)

    def _build(self) -> _Build:
        target, grouped, taps = self.target, self.grouped, self.taps
        pages, blocks = y_pages(grouped), div_ceil(taps, BANK_COLUMNS // grouped.Kt)
        read_ns = blocks * target.scalar_fixed_ns + taps * grouped.Kt * target.scalar_ns
        one_ns = blocks * target.vector_fixed_ns + taps * grouped.Kt * self.copy_ns
        gaps = grouped.G * self.per_c < grouped.T
        return _Build(
            zeros_ns=pages * (blocks * target.gpsimd_fixed_ns + taps * PARTITIONS * target.gpsimd_ns) if gaps else 0.0,
            spread_ns=pages * (blocks * target.vector_fixed_ns + taps * PARTITIONS * self._product_ns),
            transposed_ns=pages * taps * (target.matmul_columns_min * self.column_ns + target.matmul_ns),
            placed_ns=pages * max(read_ns, (grouped.Uh * grouped.Uw - 1) * one_ns),
            blocks=pages * blocks,
        )

    @property
    def _product_ns(self) -> float:
        """ns of an element that Vector multiplies inside SBUF."""
        return self.target.vector_16bit_ns if self.fast else self.target.vector_ns

    def _sums_ns(self, columns: int) -> float:
        """ns of the array for a bank of so many columns of each tile; tiles without channels are busy too."""
        turn_ns = self.target.row_tile_columns * self.column_ns + self.target.matmul_ns
        return float(len(self.grouped.window) * max(columns * self.column_ns, self.grouped.tiles * turn_ns))

    def _tiles(self, unit: Any) -> int:
        """Tiles of the array that have work in a unit."""
        return int(self.grouped.waves[unit.wave][1] * len(unit.parts))

    def _read_out_ns(self, unit: Any, columns: int, blocks: int) -> float:
        """ns of Vector and Scalar, both at work, for the read-outs of a bank of all tiles, and moves of rows."""
        target, grouped, tiles = self.target, self.grouped, self._tiles(unit)
        # what Scalar would take alone, beside which Vector does its share and the moves
        read_ns = tiles * grouped.Uw * (target.scalar_fixed_ns + columns * target.scalar_ns)
        moved = unit.zn * blocks * self.geometry.columns.out
        moves_ns = tiles * (grouped.Uh - 1) * (target.vector_fixed_ns + moved * self.copy_ns)
        speed = target.scalar_ns / target.vector_ns
        return float(max(read_ns + moves_ns * speed, moves_ns * (1.0 + speed)) / (1.0 + speed))

    def _dma_ns(self, unit: Any) -> tuple[float, float]:
        """ns of a core's busiest DMA engine, or HBM, for (a unit's x, its results)."""
        target, geometry, grouped = self.target, self.geometry, self.grouped
        each, tiles = target.rows_an_engine, self._tiles(unit)
        part = tiles * grouped.G / geometry.groups
        x_bytes = unit.hn * unit.wn * geometry.itemsize
        y_bytes = min(unit.mn * grouped.Uh, geometry.rows.out) * geometry.columns.out * geometry.itemsize
        # of a tile's rows and their DMA engines, those that have channels
        used = div_ceil(grouped.G * self.per_c, each) * each / grouped.T
        x_engines = target.dma_engines * used * tiles / grouped.tiles
        # tiles of different pages lie on the same partitions
        y_engines = min(tiles, PARTITIONS // grouped.Kt) * div_ceil(grouped.G * self.per_k, each)
        runs = 1 if geometry.x_strides[2] == unit.wn else max(1, unit.hn)
        x_ns = geometry.C * max(runs * target.run_ns(x_bytes / runs) / x_engines, x_bytes * target.hbm_byte_ns)
        y_ns = geometry.K * max(target.run_ns(y_bytes) / y_engines, y_bytes * target.hbm_byte_ns)
        return part * unit.dn * x_ns, part * unit.zn * y_ns

    def _first_load_ns(self, unit: Any) -> float:
        """ns of a DMA engine for the rows of x of a unit's first bank."""
        blocks = banks_of_unit(self.grouped, unit)[0][1]
        rows = min(unit.hn, (blocks - 1) * self.grouped.rows.stride + self.grouped.rows.taps)
        return float(self._dma_ns(unit)[0] * rows / max(1, unit.hn))

    def _last_store_ns(self, unit: Any) -> float:
        """ns of one tile's last store."""
        width = self.geometry.columns.out
        rows = min(unit.mn * self.grouped.Uh, self.geometry.rows.out)
        blocks = div_ceil(unit.zn * unit.mn * width, self.grouped.Uw * BANK_COLUMNS)
        run_ns = self.target.run_ns(rows // max(1, blocks) * width * self.geometry.itemsize)
        return float(self.target.rows_an_engine * unit.zn * run_ns)
