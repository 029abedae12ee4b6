"""ns for an M tile's filters of `weight_stationary` and `stacked`, by how they reach their places."""

from __future__ import annotations

from typing import NamedTuple

from ..simulator.timing.target import Target
from .block_schedule import RowTile, Schedule, Shift
from .geometry import Geometry, num_taps
from .prices import READERS, Busy, matmul_ns, moved_ns, round_trip_ns, transpose_ns
from .stacked_schedule import FILTER_PARTS, Stack, loads_by_input, runs_of, tile_bytes
from .tiles import P_MAX, div_ceil
from .weight_stationary import pages


class Filters(NamedTuple):
    """ns of DMA; of transposes by the Tensor Engine, and their share before the first sums; of Vector and Scalar before
    the first sums, and later; before the last of the first loads; of triggers."""

    moved: float
    transposed: float = 0.0
    first: float = 1.0
    placed: float = 0.0
    later: float = 0.0
    waits: float = 0.0
    issued: float = 0.0

    @property
    def busy(self) -> Busy:
        """The Busy of all of them."""
        read = (self.placed + self.later) / READERS
        return Busy(self.transposed, self.transposed, read, dma=self.moved, issued=self.issued)


def filters_of(target: Target, geometry: Geometry, schedule: Schedule, tile: tuple[RowTile, ...]) -> Filters:
    """The Filters of an M tile."""
    if schedule.stack is not None:
        if schedule.stack.diagonal:
            return _toeplitz(target, geometry, schedule.stack)
        every = [_stacked(target, one.geometry, one) for one in schedule.stack.every]
        return every[0]._replace(
            **{
                name: sum(getattr(one, name) for one in every)
                for name in ("moved", "transposed", "placed", "waits", "issued")
            }
        )
    if schedule.shift is not None:
        return _packed(target, geometry, schedule, schedule.shift)
    if schedule.gathers:
        return _of_groups(target, geometry, schedule, tile[0].cn)
    # in memory order, or copied to their places
    taps, (_, channels, _, held), kn = num_taps(geometry), schedule.k_tiles[0], tile[0].kn
    moved = moved_ns(target, held * channels * kn * taps, kn * taps, held * channels, geometry.hbm_itemsize)
    placed = taps * held * kn * target.copy_ns(geometry.itemsize) / READERS if schedule.packs else 0.0
    return Filters(len(schedule.k_tiles) * moved, placed=placed)


def _stacked(target: Target, geometry: Geometry, stack: Stack) -> Filters:
    """By a DMA to the columns of each row of y, or padded with zeros; then transposed."""
    slots, straight = stack.filter_slots, stack.filters == "straight"
    moved = filters_moved_ns(target, geometry, stack.kn, stack.U, straight, stack.fits_window)
    transposed = stack.num_filters * slots * transpose_ns(target, geometry, stack.U * stack.kn / slots)
    rotated = num_taps(geometry) * transpose_ns(target, geometry, geometry.C) if stack.by_input else 0.0
    first = (transposed / FILTER_PARTS + rotated) / (transposed + rotated)
    placed = stack.U * stack.kn * target.copy_ns(geometry.itemsize)
    placed += 0.0 if straight else geometry.C * num_taps(geometry) * target.vector_4x_ns
    issued = stack.U * target.static_issue_ns if straight else 0.0
    waits = max(0.0, issued - target.static_issue_ns)
    return Filters(moved, transposed + rotated, first, placed, waits=waits, issued=issued)


def filters_moved_ns(target: Target, geometry: Geometry, kn: int, U: int, straight: bool, fits_window: bool) -> float:
    """ns of DMA for the filters of an M tile of K packing; straight: to the places of each of U rows of y."""
    size, runs, parts = geometry.C * num_taps(geometry), geometry.C if geometry.flipped else 1, kn
    if loads_by_input(geometry, kn):
        size, runs, parts = kn * num_taps(geometry), 1, geometry.C
    if straight:
        parts *= U
        if not fits_window:
            runs = geometry.C * geometry.planes.taps * (1 if geometry.rows.dilation == 1 else geometry.rows.taps)
    run = 1 if geometry.w_strides[3] > 1 and geometry.columns.taps > 1 else size / runs
    return moved_ns(target, parts * size, run, parts, geometry.hbm_itemsize)


def _toeplitz(target: Target, geometry: Geometry, stack: Stack) -> Filters:
    """w is loaded, reversed, stored to HBM, and loaded among zeros by a DMA for each run of taps of each row of x."""
    runs = runs_of(geometry.rows)
    if not runs:  # all outputs meet padding alone
        return Filters(0.0)
    triggers = stack.kn * len(runs) * target.static_issue_ns
    zeros = stack.together * tile_bytes(geometry, stack.kn) / 4 * target.vector_memset_ns
    run = sum(count for *_, count in runs) / len(runs) * geometry.columns.taps
    moved = moved_ns(target, stack.parts * run * geometry.planes.taps, run, stack.parts, geometry.hbm_itemsize)
    waits = round_trip_ns(target) + zeros + max(triggers, stack.together * moved)
    return Filters(moved, waits=waits, issued=triggers / stack.together)


def _packed(target: Target, geometry: Geometry, schedule: Schedule, shift: Shift) -> Filters:
    """Transposed unless they come in order, then copied to the places of each row of y."""
    K, taps, k_tiles, channels = geometry.K, num_taps(geometry), len(schedule.k_tiles), schedule.k_tiles[-1][1]
    size, in_order = k_tiles * channels * taps, geometry.packed > 0 or geometry.flipped
    run = channels * taps if shift.Z == 1 else shift.depth.taps * taps
    moved = moved_ns(target, K * size, run, K if in_order else min(P_MAX, K * k_tiles), geometry.hbm_itemsize)
    transposed = 0.0 if in_order else div_ceil(k_tiles * K, P_MAX) * taps * transpose_ns(target, geometry)
    placed = shift.U * (taps * K * target.copy_ns(geometry.itemsize) + shift.groups * target.vector_fixed_ns) / READERS
    waits = (k_tiles * max(shift.lanes, shift.Z) - 1) * target.static_issue_ns
    return Filters(moved, transposed, placed=placed, later=(k_tiles - 1) * placed, waits=waits)


def _of_groups(target: Target, geometry: Geometry, schedule: Schedule, channels: int) -> Filters:
    """Spread between zeros if row tiles have several groups, transposed, copied to the places of each output."""
    by_input, size = geometry.groups == geometry.C, geometry.C // geometry.groups * num_taps(geometry)
    taps = num_taps(geometry) * (1 if by_input else pages(schedule))
    moved = moved_ns(target, P_MAX * size, size, P_MAX, geometry.hbm_itemsize)
    transposed = 0.0 if by_input else taps * matmul_ns(target, geometry, 0)
    each_ns = target.gpsimd_ns if channels < schedule.rows and not by_input else target.copy_ns(geometry.itemsize)
    placed = taps * (schedule.slot if by_input else P_MAX) * each_ns
    if channels == geometry.C // geometry.groups:  # several taps together
        transposed, placed = transposed * schedule.rows / P_MAX, 0.0
    copied_ns = target.vector_fixed_ns + taps * schedule.slot * target.vector_4x_ns
    return Filters(moved, transposed, placed=placed, later=len(schedule.sweeps[0].outputs) * copied_ns)
