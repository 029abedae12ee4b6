"""`implicit_gemm`: the matmuls of a K tile for a bank of sums, and filters as blocks and pieces in the order in which
these need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .cuts import Bank, OutTile, put_first, tap_blocks
from .geometry import Axis, Geometry, filter_rows, num_taps, valid_range
from .implicit_gemm_channels import (
    ALONE,
    HALVES,
    Batch,
    KTile,
    MTile,
    group_depth,
    is_depthwise_m_tile,
    lies_ready,
    m_tile_axis,
    tap_groups,
)
from .implicit_gemm_outputs import group_met
from .planes import is_by_plane
from .products import Product, home_tap, in_order, is_whole
from .tiles import div_ceil, transposes_of_bank

#: Bytes a partition of a block of taps as loaded.
RAW_BYTES = 24_576
#: (row, group) of a tap
Tap = tuple[int, int]


def home_row(geometry: Geometry, rows: Axis) -> tuple[int, bool]:
    """(the row of taps, those of all planes one after the other, that all sums begin with, whether it meets all outputs
    of planes and rows); where none does, the middle one, which meets most. rows: the Axis of an M tile's; sums of
    planes that stay apart have one plane."""
    row, taps = home_tap(rows), geometry.planes.taps if geometry.direct is None else 1
    plane = home_tap(geometry.planes) if taps > 1 else 0
    first = (plane if plane >= 0 else taps // 2) * rows.taps + (row if row >= 0 else rows.taps // 2)
    return first, plane >= 0 and row >= 0


def products(geometry: Geometry, m_tile: MTile, k_tile: KTile, out_tile: OutTile, bank: Bank) -> list[Product]:
    """Matmuls of a K tile for a bank of outputs, in the order in which taps are transposed; one that meets all of them
    first."""
    axis, whole = m_tile_axis(geometry, m_tile), -1
    found: list[Product] = []
    first, meets_all = home_row(geometry, axis)
    home = home_tap(geometry.columns) if k_tile.depth == 1 else 0
    # planes of taps whose sums stay apart meet the same
    rows = (geometry.planes.taps if geometry.direct is None else 1) * axis.taps
    for row in in_order(rows, first):
        on_planes = valid_range(geometry.planes, row // axis.taps, out_tile.z0 + bank.z, bank.zn)
        on_rows = valid_range(axis, row % axis.taps, out_tile.p0 + bank.p, bank.pn)
        for group in range(tap_groups(geometry, k_tile) if on_planes[2] > 0 and on_rows[2] > 0 else 0):
            on_columns = group_met(geometry, k_tile, group, out_tile.q0 + bank.q, bank.qn)
            if on_columns[2] == 0:
                continue
            parts = group_depth(geometry, k_tile, group) * k_tile.cn
            product = Product(on_planes, on_rows, on_columns, row, group, parts)
            if meets_all and home >= 0:
                is_first = (row, group) == (first, home)
            else:
                is_first = whole < 0 and is_whole(product, bank.zn, bank.pn, bank.qn)
            if is_first:
                whole = len(found)
            found.append(product)
    return put_first(found, whole) if whole > 0 else found


@dataclass(frozen=True)
class TapPair:
    """One matmul of a K tile that pairs: (row, group) of its taps, the second None where there is one only, and
    (first, 1, how many) planes, rows and columns of outputs. half: of a single tap of HALVES, which half of the array's
    rows it takes; else -1."""

    first: Tap
    second: Tap | None
    planes: Sequence[int]
    rows: Sequence[int]
    columns: Sequence[int]
    half: int


def matmuls_of(
    geometry: Geometry, m_tile: MTile, k_tile: KTile, out_tile: OutTile, bank: Bank, which: int
) -> Sequence[Product | TapPair]:
    """Matmuls of a K tile for a bank, `which` of its output tile: Products, or pairs of them."""
    every = products(geometry, m_tile, k_tile, out_tile, bank)
    return every if k_tile.pairing == ALONE else _pairs_of(geometry, k_tile, every, out_tile, bank, which)


def _pairs_of(
    geometry: Geometry, k_tile: KTile, every: list[Product], out_tile: OutTile, bank: Bank, which: int
) -> list[TapPair]:
    p0, q0 = out_tile.p0 + bank.p, out_tile.q0 + bank.q
    found: list[TapPair] = []
    step = 2 if k_tile.stores_zeros else 1
    halves = k_tile.pairing == HALVES and len(every) == num_taps(geometry)
    if halves and geometry.packed == 0:
        # the last tap after the others: a plain filter has no other in the second slot
        last = (filter_rows(geometry) - 1, geometry.columns.taps - 1)
        every = sorted(every, key=lambda one: (one.row, one.group) == last)
    for index in range(0, len(every), step):
        first = every[index]
        rows, columns, half = first.rows[:3], first.columns[:3], -1
        tap: Tap = (first.row, first.group)
        other: Tap | None = None
        if step == 2 and index + 1 < len(every):
            second = every[index + 1]
            rows, columns = _joined(rows, second.rows), _joined(columns, second.columns)
            tap, other = sorted((tap, (second.row, second.group)))
        elif halves:
            half = which % 2
        if bank.zn > 1 or half >= 0:
            rows = (p0, 1, bank.pn)
        if half >= 0:
            columns = (q0, 1, bank.qn)
        found.append(TapPair(tap, other, first.planes, rows, columns, half))
    # one that meets all of the bank first: of a half on the array's last rows that one, which then follows the half of
    # the bank before
    whole = -1
    for index, pair in enumerate(found):
        if pair.rows[2] == bank.pn and pair.columns[2] == bank.qn and (whole < 0 or pair.half == 1):
            whole = index
    return put_first(found, whole) if whole > 0 else found


def _joined(one: Sequence[int], other: Sequence[int]) -> tuple[int, int, int]:
    """The least (first, 1, how many) that holds two."""
    first = min(one[0], other[0])
    return first, 1, max(one[0] + one[2], other[0] + other[2]) - first


def num_matmuls(geometry: Geometry, m_tile: MTile) -> int:
    """Matmuls of all K tiles of an M tile for a bank, or as many for one of a few rows more."""
    taps, rows = num_taps(geometry), filter_rows(geometry)
    return sum(
        div_ceil(rows * tap_groups(geometry, k_tile), 2) if k_tile.stores_zeros else taps for k_tile in m_tile.k_tiles
    )


@dataclass(frozen=True)
class FilterBlock:
    """Taps that are loaded together: of a KFilters, by place, channels (first of a group's, how many), rows, columns
    and slot."""

    of: int
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int
    slot: int


@dataclass(frozen=True)
class Piece:
    """Taps that are transposed together: of a block, by index, one of its rows, groups of columns of equal depth."""

    block: int
    row: int
    first: int
    count: int
    depth: int


@dataclass(frozen=True)
class KFilters:
    """Filters of one of an M tile's K tiles, `place` in the order of the work. end: (blocks, pieces, moves) from the
    first of all on until they are complete."""

    m_tile: MTile
    k_tile: KTile
    place: int
    end: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class FilterOrder:
    """Filters of a group: what the Tensor Engine transposes (pieces), blocks that DMA does, by index (moves), KFilters
    in the order of the work, and their places by M tile and K tile."""

    blocks: tuple[FilterBlock, ...]
    pieces: tuple[Piece, ...]
    moves: tuple[int, ...]
    order: tuple[KFilters, ...]
    places: tuple[tuple[int, ...], ...]

    def end_of(self, last: int) -> tuple[int, int, int]:
        """(blocks, pieces, moves) until K tile `last` of all is complete."""
        return self.order[min(last, len(self.order) - 1)].end

    def after_m_tile(self, index: int) -> int:
        """How many K tiles of all there are until an M tile's last one."""
        return self.places[index][-1] + 1


def filter_order(geometry: Geometry, m_tiles: Batch, moved_from: int, together: bool) -> FilterOrder:
    """The FilterOrder of a group whose filters DMA transposes from M tile `moved_from` on. together: filters of all M
    tiles for a K tile come before those for the next one."""
    blocks: list[FilterBlock] = []
    pieces: list[Piece] = []
    moves: list[int] = []
    order: list[KFilters] = []
    places = [[0] * len(m_tile.k_tiles) for m_tile in m_tiles]
    every = [(index, which) for index, m_tile in enumerate(m_tiles) for which in range(len(m_tile.k_tiles))]
    for index, which in sorted(every, key=lambda one: one[1]) if together else every:
        of, by_dma = KFilters(m_tiles[index], m_tiles[index].k_tiles[which], len(order)), index >= moved_from
        places[index][which] = of.place
        if by_dma and of.m_tile.rows == 1 and of.k_tile.depth == 1:
            first = len(blocks)
            blocks += (block for block, _ in _blocks_of(geometry, of))
            moves += range(first, len(blocks))
        else:
            for block, last_tap in _blocks_of(geometry, of):
                pieces += _pieces_of(geometry, of, block, last_tap, len(blocks))
                blocks.append(block)
        order.append(replace(of, end=(len(blocks), len(pieces), len(moves))))
    return FilterOrder(tuple(blocks), tuple(pieces), tuple(moves), tuple(order), tuple(map(tuple, places)))


def _blocks_of(geometry: Geometry, of: KFilters) -> Iterator[tuple[FilterBlock, bool]]:
    """(block, whether it is the last tap alone) of a K tile; a packed or depthwise filter is one block."""
    R, S, m_tile, k_tile = filter_rows(geometry), geometry.columns.taps, of.m_tile, of.k_tile
    per_c = geometry.C // geometry.groups
    c0, own = (0, per_c) if m_tile.pack > 1 else (k_tile.c0 % per_c, k_tile.cn)
    whole = geometry.packed > 0 or geometry.direct is not None or geometry.flipped
    whole = whole or is_depthwise_m_tile(geometry, m_tile)
    parts = [(0, R, 0, S)] if whole else tap_blocks(geometry, own, RAW_BYTES)
    for slot in range(k_tile.slots):
        # the second slot of HALVES has one tap
        last_tap = slot > 0 and k_tile.pairing == HALVES and geometry.packed == 0
        for part in parts[-1:] if last_tap else parts:
            yield FilterBlock(of.place, c0, own, *part, slot), last_tap


def _pieces_of(geometry: Geometry, of: KFilters, block: FilterBlock, last_tap: bool, index: int) -> Iterator[Piece]:
    """Pieces of a block: of each row groups of taps of one depth, as many as a bank holds transposed."""
    m_tile, k_tile, paired = of.m_tile, of.k_tile, geometry.precision == "fp16x3" and geometry.packed > 0
    if last_tap:
        yield Piece(index, block.rn - 1, geometry.columns.taps - 1, 1, 1)
    elif is_depthwise_m_tile(geometry, m_tile) or paired:
        yield Piece(index, 0, 0, geometry.columns.taps, 1)
    elif geometry.packed == 0 and not lies_ready(geometry, m_tile, k_tile):
        most, depth = transposes_of_bank(m_tile.kn, geometry.itemsize), k_tile.depth
        first, end = block.s0 // depth, div_ceil(block.s0 + block.sn, depth)
        rest = group_depth(geometry, k_tile, end - 1)
        whole = end if rest == depth else end - 1
        for row in in_order(block.rn, home_row(geometry, geometry.rows)[0] - block.r0):
            for group in range(first, whole, most):
                yield Piece(index, row, group, min(most, whole - group), depth)
            if whole < end:
                yield Piece(index, row, whole, 1, rest)


def needs_order(geometry: Geometry) -> bool:
    """Whether channels of a block are put in the order of x on the partitions when they have come: they are planes of
    taps."""
    return geometry.packed == 0 and is_by_plane(geometry)
