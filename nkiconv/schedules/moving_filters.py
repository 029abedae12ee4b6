"""How filters come that are moving operands: by K tile, in blocks of taps, by one of four ways from HBM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .channel_pieces import KTilePiece, Place
from .cuts import tap_blocks
from .geometry import Geometry, filter_rows, num_taps
from .tiles import P_MAX, div_ceil

#: Bytes a partition of a block of taps in memory order, and of all that are on their way together, if more than one.
RAW_BYTES = 16_384
AHEAD_BYTES = 28_672
#: (first row, rows, first column, columns) of taps
TapBlock = tuple[int, int, int, int]


@dataclass(frozen=True)
class FilterSchedule:
    """What a schedule says of moving filters: K tiles, pieces of channels each; places of their taps in SBUF; how they
    come; matmuls on zeros. by_rows: whether y leaves by rows."""

    by_rows: ClassVar[bool]

    k_tiles: list[list[KTilePiece]]
    places: list[list[Place]]
    way: str
    warmup: int


def way_of(geometry: Geometry, by_rows: bool) -> str:
    """How filters come; by_rows: of y that leaves by rows, the array transposes them."""
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
    """Whether filters are put in place when they have come."""
    return way in ("array", "backwards")


def raw_blocks(geometry: Geometry, plan: FilterSchedule, k_tile: int) -> list[TapBlock]:
    """(first row, rows, first column, columns) of blocks of taps that come together: all where pieces of channels see
    different ones."""
    if plan.way == "backwards" or plan.by_rows:
        return [(0, filter_rows(geometry), 0, geometry.columns.taps)]
    return tap_blocks(geometry, plan.k_tiles[k_tile][0].count, RAW_BYTES)


def raw_block_bytes(geometry: Geometry, plan: FilterSchedule, k_tile: int, block: TapBlock, kn: int) -> int:
    """Bytes a partition of a block in memory order."""
    return (kn if plan.way == "backwards" else plan.k_tiles[k_tile][0].count) * block[1] * block[3] * geometry.itemsize


def alike(plan: FilterSchedule) -> list[list[int]]:
    """Neighbouring K tiles whose filters are of the same channels, and are loaded once."""
    found: list[list[int]] = []
    for k_tile, pieces in enumerate(plan.k_tiles):
        if found and plan.k_tiles[found[-1][0]][0].c0 == pieces[0].c0:
            found[-1].append(k_tile)
        else:
            found.append([k_tile])
    return found


def raw_bytes(geometry: Geometry, plan: FilterSchedule) -> int:
    """Bytes a partition of all loads that are there together, at most."""
    one = total = 0
    for k_tile, *_ in alike(plan):
        for block in raw_blocks(geometry, plan, k_tile):
            each = raw_block_bytes(geometry, plan, k_tile, block, min(geometry.K, P_MAX))
            one, total = max(one, each), total + each * div_ceil(geometry.K, P_MAX)
    return min(total, max(AHEAD_BYTES, one) + one)


def num_transposes(kn: int, plan: FilterSchedule) -> int:
    """Transposes of the filters of kn output channels, and evacuations of them, at most."""
    return sum(len(places) for places in plan.places) * div_ceil(kn, P_MAX)
