"""`implicit_gemm`: the matmuls of a K tile for a bank of sums, and the blocks and pieces of filters in the order of the
matmuls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .cuts import Bank, OutTile, put_first, tap_blocks
from .geometry import Axis, Geometry, filter_rows, num_taps, valid_range
from .implicit_gemm_channels import (
    ALONE,
    CHUNKS,
    HALVES,
    Batch,
    KTile,
    MTile,
    by_input,
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

#: Bytes a partition of a loaded block of taps.
RAW_BYTES = 24_576
#: Kinds of filters of a K tile: packed; a transposed convolution's, stationaries as loaded or copied into order; of one
#: input channel, spread along diagonals; planes of taps, which become sums, and plain taps, which the Tensor Engine
#: transposes; taps that DMA transposes.
PACKED, READY, BACKWARDS, DIAGONALS, PLANES, TAPS, MOVED = (
    "packed", "ready", "backwards", "diagonals", "planes", "taps", "moved"
)  # fmt: skip
#: (row, group) of a tap
Tap = tuple[int, int]


def home_row(geometry: Geometry, rows: Axis) -> tuple[int, bool]:
    """(the row of taps, counted over all planes, that all sums begin with; whether it covers all outputs of planes and
    rows); if no row does, the middle one, which covers most. rows: the Axis of an M tile. Sums of separate planes have
    one plane."""
    row, taps = home_tap(rows), geometry.planes.taps if geometry.direct is None else 1
    plane = home_tap(geometry.planes) if taps > 1 else 0
    first = (plane if plane >= 0 else taps // 2) * rows.taps + (row if row >= 0 else rows.taps // 2)
    return first, plane >= 0 and row >= 0


def products(geometry: Geometry, m_tile: MTile, k_tile: KTile, out_tile: OutTile, bank: Bank) -> list[Product]:
    """Matmuls of a K tile for a bank of outputs, in the order of the taps' transposes; one that covers all outputs is
    first."""
    axis, whole = m_tile_axis(geometry, m_tile), -1
    found: list[Product] = []
    first, meets_all = home_row(geometry, axis)
    home = home_tap(geometry.columns) if k_tile.depth == 1 else 0
    # planes of taps with separate sums have the same valid ranges
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
    """One matmul of a paired K tile: (row, group) of its taps, the second None for a single tap; (first, 1, count) of
    output planes, rows and columns; half: the half of the array's rows of a single tap of HALVES, else -1."""

    first: Tap
    second: Tap | None
    planes: Sequence[int]
    rows: Sequence[int]
    columns: Sequence[int]
    half: int = -1


def matmuls_of(
    geometry: Geometry, m_tile: MTile, k_tile: KTile, out_tile: OutTile, bank: Bank, which: int
) -> Sequence[Product | TapPair]:
    """Matmuls of a K tile for a bank, `which` of its output tile: Products, or TapPairs; empty without x."""
    if 0 in (out_tile.dn, out_tile.hn, out_tile.wn):
        return []
    every = products(geometry, m_tile, k_tile, out_tile, bank)
    return every if k_tile.pairing == ALONE else _pairs_of(geometry, k_tile, every, out_tile, bank, which)


def _pairs_of(
    geometry: Geometry, k_tile: KTile, every: list[Product], out_tile: OutTile, bank: Bank, which: int
) -> list[TapPair]:
    """The TapPairs of a paired K tile; pairs of taps cover the whole bank, as zeros are stored around x."""
    rows, columns = (out_tile.p0 + bank.p, 1, bank.pn), (out_tile.q0 + bank.q, 1, bank.qn)
    if k_tile.pairing == CHUNKS:
        return [
            TapPair((one.row, one.group), None, one.planes, rows if bank.zn > 1 else one.rows, one.columns)
            for one in every
        ]
    halves = k_tile.pairing == HALVES and len(every) == num_taps(geometry)
    if halves and geometry.packed == 0:
        # the last tap after the others: the second slot of a plain filter holds no other tap
        last = (filter_rows(geometry) - 1, geometry.columns.taps - 1)
        every = sorted(every, key=lambda one: (one.row, one.group) == last)
    taps, window = [(one.row, one.group) for one in every], ((out_tile.z0 + bank.z, 1, bank.zn), rows, columns)
    twos = zip(taps[::2], taps[1::2], strict=False)
    found = [TapPair(min(one, other), max(one, other), *window) for one, other in twos]
    if len(taps) % 2 == 1:
        found.append(TapPair(taps[-1], None, *window, which % 2 if halves else -1))
    # a half on the array's last rows follows the half of the preceding bank
    return put_first(found, len(found) - 1) if found and found[-1].half == 1 else found


@dataclass(frozen=True)
class FilterBlock:
    """Taps that are loaded together, for K tile number `place` in the order of the work: their kind, channels (first
    within the group, count), rows, columns and slot, and bytes a partition before they become stationaries."""

    m_tile: MTile
    k_tile: KTile
    place: int
    kind: str
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int
    slot: int
    num_bytes: int


@dataclass(frozen=True)
class Piece:
    """Taps that are transposed together: in a row of a block (by index), groups of columns of equal depth; or the whole
    block, unless its taps are plain."""

    block: int
    row: int
    first: int
    count: int
    depth: int


@dataclass(frozen=True)
class FilterOrder:
    """Filters of a group in the order of the work: blocks, pieces that the Tensor Engine transposes, pieces that DMA
    transposes, and places of K tiles by M tile. ends: (blocks, pieces, moves) that complete the first n K tiles."""

    blocks: tuple[FilterBlock, ...]
    pieces: tuple[Piece, ...]
    moves: tuple[Piece, ...]
    places: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, int, int], ...]

    @property
    def count(self) -> int:
        """K tiles of all M tiles."""
        return len(self.ends) - 1

    def after(self, index: int) -> int:
        """The number of K tiles, in the order of the work, up to an M tile's last one."""
        return self.places[index][-1] + 1


def filter_order(geometry: Geometry, m_tiles: Batch, moved_from: int, together: bool) -> FilterOrder:
    """The FilterOrder of a group; DMA transposes from M tile `moved_from` on. together: the filters of all M tiles for
    a K tile precede those for the next K tile."""
    blocks: list[FilterBlock] = []
    pieces: list[Piece] = []
    moves: list[Piece] = []
    ends, places = [(0, 0, 0)], [[0] * len(m_tile.k_tiles) for m_tile in m_tiles]
    every = [(index, which) for index, m_tile in enumerate(m_tiles) for which in range(len(m_tile.k_tiles))]
    for index, which in sorted(every, key=lambda one: one[1]) if together else every:
        m_tile, places[index][which] = m_tiles[index], len(ends) - 1
        for block in _blocks_of(geometry, m_tile, m_tile.k_tiles[which], len(ends) - 1, index >= moved_from):
            own = pieces if block.kind != MOVED else moves
            own += _pieces_of(geometry, block, len(blocks))
            blocks.append(block)
        ends.append((len(blocks), len(pieces), len(moves)))
    return FilterOrder(tuple(blocks), tuple(pieces), tuple(moves), tuple(map(tuple, places)), tuple(ends))


def kind_of(geometry: Geometry, m_tile: MTile, k_tile: KTile, moved: bool) -> str:
    """The kind of a K tile's filters; moved: whether DMA transposes them, unless they are folded."""
    if moved and m_tile.rows == k_tile.depth == 1:
        return MOVED
    if geometry.packed > 0:
        return PACKED
    if is_depthwise_m_tile(geometry, m_tile):
        return DIAGONALS
    if by_input(geometry):
        return READY if lies_ready(geometry, m_tile, k_tile) else BACKWARDS
    return TAPS if geometry.direct is None else PLANES


def _blocks_of(geometry: Geometry, m_tile: MTile, k_tile: KTile, place: int, moved: bool) -> Iterator[FilterBlock]:
    """Blocks of a K tile; only plain taps have several."""
    R, S, kind = filter_rows(geometry), geometry.columns.taps, kind_of(geometry, m_tile, k_tile, moved)
    per_c = geometry.C // geometry.groups
    c0, own = (0, per_c) if m_tile.pack > 1 else (k_tile.c0 % per_c, k_tile.cn)
    parts = tap_blocks(geometry, own, RAW_BYTES) if kind in (TAPS, MOVED) and not geometry.flipped else [(0, R, 0, S)]
    for slot in range(k_tile.slots):
        for r0, rn, s0, sn in parts[-1:] if _is_last_tap(k_tile, slot, kind) else parts:
            elements = own * rn * sn if geometry.direct is None else own * num_taps(geometry.direct)
            if kind == BACKWARDS:
                elements = m_tile.kn * R * S
            if kind == READY or (kind == PACKED and geometry.precision != "fp16x3"):
                elements = 0
            size = elements * geometry.itemsize
            yield FilterBlock(m_tile, k_tile, place, kind, c0, own, r0, rn, s0, sn, slot, size)


def _is_last_tap(k_tile: KTile, slot: int, kind: str) -> bool:
    """Whether a slot holds only the last tap: the second slot of HALVES."""
    return slot > 0 and k_tile.pairing == HALVES and kind != PACKED


def _pieces_of(geometry: Geometry, block: FilterBlock, index: int) -> Iterator[Piece]:
    """Pieces of a block: for each row groups of taps of one depth, at most a transposed bank of them."""
    k_tile, S = block.k_tile, geometry.columns.taps
    if _is_last_tap(k_tile, block.slot, block.kind):
        yield Piece(index, block.rn - 1, S - 1, 1, 1)
    elif block.kind in (DIAGONALS, MOVED) or (block.kind == PACKED and geometry.precision == "fp16x3"):
        yield Piece(index, 0, 0, S, 1)
    elif block.kind not in (PACKED, READY):
        most, depth = transposes_of_bank(block.m_tile.kn, geometry.itemsize), k_tile.depth
        first, end = block.s0 // depth, div_ceil(block.s0 + block.sn, depth)
        rest = group_depth(geometry, k_tile, end - 1)
        whole = end if rest == depth else end - 1
        for row in in_order(block.rn, home_row(geometry, geometry.rows)[0] - block.r0):
            for group in range(first, whole, most):
                yield Piece(index, row, group, min(most, whole - group), depth)
            if whole < end:
                yield Piece(index, row, whole, 1, rest)


def needs_order(geometry: Geometry) -> bool:
    """Whether a block's channels are sorted into the order of x on the partitions after the load: they are planes of
    taps."""
    return geometry.packed == 0 and is_by_plane(geometry)
