"""Loads of filters as moving operands: by K tile, in blocks of taps, in one of four ways from HBM."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from .channel_pieces import KTilePiece, Place
from .cuts import tap_blocks
from .geometry import Geometry, filter_rows, num_taps
from .tiles import P_MAX, div_ceil

#: Bytes a partition of a block of taps in memory order, and of all blocks in flight, if more than one.
RAW_BYTES = 16_384
AHEAD_BYTES = 28_672
#: (first row, rows, first column, columns) of taps
TapBlock = tuple[int, int, int, int]


@dataclass(frozen=True)
class FilterSchedule:
    """Moving filters of a schedule: K tiles, each of pieces of channels; places of their taps in SBUF; the way of their
    loads; warm-up matmuls. by_rows: whether y is stored by rows."""

    by_rows: ClassVar[bool]
    #: whether K tiles are rows of taps of a channel
    of_windows: ClassVar[bool] = False
    #: whether output channels are those of taps of a channel
    of_patches: ClassVar[bool] = False

    k_tiles: list[list[KTilePiece]]
    places: list[list[Place]]
    way: str
    warmup: int
    #: whether filters are loaded whole, for a transpose that places them on the partitions of all slots and shifts, or
    #: of rows of taps
    packs: bool


def way_of(geometry: Geometry, by_rows: bool) -> str:
    """The way of filters' loads; by_rows: the Tensor Engine transposes them, for y that is stored by rows."""
    if by_rows:
        return "array"
    if geometry.flipped and (num_taps(geometry) > 1 or geometry.w_strides[0] != 1):
        return "backwards"
    if geometry.packed > 0 or geometry.w_strides[0] == 1:
        return "copy"
    if geometry.w_strides[1] == 1 and geometry.hbm_itemsize == 2:
        return "dma"
    return "array"


def comes_raw(way: str) -> bool:
    """Whether filters are put in place after the load."""
    return way in ("array", "backwards")


def raw_blocks(geometry: Geometry, plan: FilterSchedule, k_tile: int) -> list[TapBlock]:
    """(first row, rows, first column, columns) of blocks of taps that are loaded together: all taps if pieces of
    channels have different ones."""
    if plan.way == "backwards" or plan.by_rows or plan.packs:
        return [(0, filter_rows(geometry), 0, geometry.columns.taps)]
    return tap_blocks(geometry, plan.k_tiles[k_tile][0].count, RAW_BYTES)


def raw_block_bytes(geometry: Geometry, plan: FilterSchedule, k_tile: int, block: TapBlock, kn: int) -> int:
    """Bytes a partition of a block in memory order."""
    channels = geometry.C if plan.packs else plan.k_tiles[k_tile][0].count
    return (kn if plan.way == "backwards" else channels) * block[1] * block[3] * geometry.itemsize


def alike(plan: FilterSchedule) -> list[list[int]]:
    """Neighbouring K tiles with filters of the same channels, or of whole filters, which are loaded once."""
    if plan.packs:
        return [list(range(len(plan.k_tiles)))]
    every = groupby(range(len(plan.k_tiles)), key=lambda k_tile: plan.k_tiles[k_tile][0].c0)
    return [list(some) for _, some in every]


def raw_bytes(geometry: Geometry, plan: FilterSchedule) -> int:
    """Upper bound of bytes a partition of loads in SBUF together."""
    one = total = 0
    for k_tile, *_ in alike(plan):
        for block in raw_blocks(geometry, plan, k_tile):
            each = raw_block_bytes(geometry, plan, k_tile, block, min(geometry.K, P_MAX))
            one, total = max(one, each), total + each * div_ceil(geometry.K, P_MAX)
    return min(total, max(AHEAD_BYTES, one) + one)


def num_transposes(kn: int, plan: FilterSchedule) -> int:
    """Upper bound of transposes, and of their evacuations, for the filters of kn output channels."""
    return sum(len(places) for places in plan.places) * div_ceil(kn, P_MAX)
