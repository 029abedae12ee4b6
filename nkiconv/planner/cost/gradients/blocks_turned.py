"""What turning blocks on the array takes, whose channels come on the partitions: transposes, their way out, loads."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ....kernels.gradients.plan import SUMS_BYTES
from ....kernels.gradients.turned import (
    SLABS,
    Side,
    chunks_of,
    gang_of,
    grid_of,
    pieces_of_rows,
    raw_shape,
    slab_shape,
    span_of,
    span_of_gy,
)
from ....schedules.tiles import BANK_BYTES, div_ceil, size_of
from ....simulator.hardware import SBUF_USABLE_BYTES_PER_PARTITION
from ....simulator.timing.target import Target

#: Pieces of x and of gy that are to fit at least: one is turned while the next comes.
PIECES = 2


@dataclass(frozen=True, eq=False)
class Turned:
    """Blocks of so many rows and columns. geometry: of x and gy as they lie; runs: planes that see x alike, of each how
    many."""

    geometry: Any
    runs: tuple[int, ...]
    rows: int
    columns: int

    @functools.cached_property
    def grid(self) -> Any:
        """Planes, parts of rows and of columns of blocks of a tile."""
        return grid_of(self.geometry, self.rows, self.columns)

    @functools.cached_property
    def sides(self) -> tuple[Side, Side]:
        """x at a plane of taps, and gy, of the first tile."""
        geometry, rows, columns = self.geometry, self.geometry.rows, self.geometry.columns
        planes, some_rows, some_columns = self.grid
        p, q = (0, self.rows, some_rows[-1][1]), (0, self.columns, some_columns[-1][1])
        x = span_of(rows, p, (0, rows.taps)), span_of(columns, q, (0, columns.taps))
        return (
            Side(0, geometry.x_strides, [0], planes, geometry.planes.stride, *x),
            Side(-1, geometry.y_strides, [0], planes, 1, span_of_gy(rows, p), span_of_gy(columns, q)),
        )

    @functools.cached_property
    def room(self) -> int:
        """Bytes a partition for blocks."""
        pieces = sum(size_of(raw_shape(one, self.geometry.itemsize)[1:]) for one in self.sides)
        slab = max(size_of(slab_shape(one)[1:]) for one in self.sides)
        others = (PIECES * pieces + SLABS * slab) * self.geometry.itemsize
        return int(SBUF_USABLE_BYTES_PER_PARTITION - SUMS_BYTES - others)

    def gang(self, channels: int) -> int:
        """Blocks of other planes in a unit, of so many channels of x or gy."""
        return int(gang_of(self.geometry, self.grid[0], channels))

    def tiles(self, gang: int) -> int:
        """Tiles of all blocks."""
        planes, some_rows, some_columns = self.grid
        found = sum(div_ceil(one, planes * gang) for one in self.runs)
        return int(found * len(some_rows) * len(some_columns))

    @functools.cached_property
    def _known(self) -> dict[tuple[int, int, int], tuple[float, tuple[float, float]]]:
        return {}

    def of_tile(self, target: Target, sizes: Any) -> tuple[float, tuple[float, float]]:
        """What `_turning_ns` and `_load_ns` find for Sizes."""
        key = sizes.of_x, sizes.of_gy, sizes.gang
        if key not in self._known:
            parts = self._parts(*key)
            self._known[key] = self._turning_ns(target, parts), self._load_ns(target, parts)
        return self._known[key]

    def _parts(self, of_x: int, of_gy: int, gang: int) -> list[tuple[Side, int, int, int]]:
        """Sides with (planes of taps, chunks, channels on the partitions) of a tile."""
        found = []
        for side, planes, channels in zip(self.sides, (self.geometry.planes.taps, 1), (of_x, of_gy), strict=True):
            chunks = chunks_of(channels, gang)
            found.append((side, planes, len(chunks), chunks[-1][1] * gang))
        return found

    def _turning_ns(self, target: Target, parted: list[tuple[Side, int, int, int]]) -> float:
        """Of a tile's transposes: the slower of the array, and Vector and Scalar, which read them out."""
        is_fast, found = self.geometry.itemsize == 2, 0.0
        passes = 1.0 if is_fast else target.transpose_passes_fp32
        each_ns = target.matmul_columns_min * target.tensor_column_ns * passes + target.matmul_ns
        for side, planes, chunks, parts in parted:
            places = max(1, min(side.columns.extent, BANK_BYTES // (parts * self.geometry.itemsize)))
            vector_ns = parts * (target.vector_16bit_ns if is_fast else target.vector_ns)
            vector_ns += target.vector_fixed_psum_ns / places
            scalar_ns = parts * target.scalar_ns + target.scalar_fixed_ns / places
            read_ns = vector_ns * scalar_ns / (vector_ns + scalar_ns)
            found += planes * chunks * side.rows.extent * side.columns.extent * max(each_ns, read_ns)
            if (side.columns.count - 1) * side.columns.step + side.columns.extent != side.columns.size:
                # zeros are put around the first row of a piece before its transposes, after those of others
                wait_ns = 2 * (target.vector_done_ns + target.hop_ns)
                found += planes * chunks * len(pieces_of_rows(side, self.geometry.itemsize)) * wait_ns
        # the first products of a tile wait until its last transposes are read out
        found += places * max(vector_ns, scalar_ns)
        return float(found + target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns)

    def _load_ns(self, target: Target, parted: list[tuple[Side, int, int, int]]) -> tuple[float, float]:
        """Of a tile, and of the pieces of it that the first matmul waits for."""
        all_ns, first_ns = 0.0, 0.0
        for side, planes, chunks, parts in parted:
            pieces = pieces_of_rows(side, self.geometry.itemsize)
            piece_ns = self._piece_ns(target, side, parts)
            needed = self.geometry.rows.taps if side.t == 0 else 1
            all_ns += planes * chunks * len(pieces) * piece_ns
            first_ns += div_ceil(needed, pieces[0][1]) * piece_ns
        return all_ns, first_ns

    def start_ns(self, target: Target, sizes: Any) -> float:
        """Of the first piece of x, with which the array begins."""
        side, _, _, parts = self._parts(sizes.of_x, sizes.of_gy, sizes.gang)[0]
        return self._piece_ns(target, side, parts)

    def _piece_ns(self, target: Target, side: Side, parts: int) -> float:
        """Of the DMA of a piece."""
        _, planes, blocks, rows, columns = raw_shape(side, self.geometry.itemsize)
        item, run, runs = self.geometry.hbm_itemsize, rows * columns, planes * blocks
        if side.strides[2] != side.columns.size * side.strides[3] or columns < side.columns.size:
            run, runs = columns, runs * rows
        if side.strides[3] != 1:
            run, runs = 1, runs * run
        engine_ns = target.rows_an_engine * runs * target.run_ns(run * item)
        return float(max(engine_ns, target.hbm_ns(parts * runs * run * item, run * item)))
