"""Filters as moving operands: the channels that share the partitions of a K tile, the products of a plane of taps, and
loads by K tile, in blocks of taps, in one of four ways from HBM.

Each 128 channels take one product a tap. The channels left over are folded: if they fit twice or more, their copies
follow each other, each shifted by one more column of taps; else, if they are a multiple of the free partitions, these
hold a part of them at another tap, a rider: as many products as there are parts then cover all of that tap, which needs
no product. Each distance between a product's tap and its rider's takes a copy of the channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

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

    k_tiles: list[list[KTilePiece]]
    places: list[list[Place]]
    way: str
    warmup: int


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
    if plan.way == "backwards" or plan.by_rows:
        return [(0, filter_rows(geometry), 0, geometry.columns.taps)]
    return tap_blocks(geometry, plan.k_tiles[k_tile][0].count, RAW_BYTES)


def raw_block_bytes(geometry: Geometry, plan: FilterSchedule, k_tile: int, block: TapBlock, kn: int) -> int:
    """Bytes a partition of a block in memory order."""
    return (kn if plan.way == "backwards" else plan.k_tiles[k_tile][0].count) * block[1] * block[3] * geometry.itemsize


def alike(plan: FilterSchedule) -> list[list[int]]:
    """Neighbouring K tiles with filters of the same channels, which are loaded once."""
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


@dataclass(frozen=True)
class KTilePiece:
    """Channels c0 .. c0+count-1 on partitions from `part` on, r rows and s columns of taps after a product's tap."""

    part: int
    c0: int
    count: int
    r: int
    s: int


@dataclass(frozen=True)
class Product:
    """A tap of a K tile (by index), with its first `pieces` KTilePieces."""

    k_tile: int
    r: int
    s: int
    pieces: int


@dataclass(frozen=True)
class Place:
    """A tap of a K tile's filters in SBUF, for its first `pieces` KTilePieces."""

    t: int
    r: int
    s: int
    pieces: int


def own_piece(c0: int, count: int) -> KTilePiece:
    """The first KTilePiece of a K tile; riders follow it."""
    return KTilePiece(part=0, c0=c0, count=count, r=0, s=0)


def parts_of(k_tile: Sequence[KTilePiece], pieces: int) -> int:
    """Partitions of a K tile's first `pieces` pieces."""
    last = k_tile[pieces - 1]
    return last.part + last.count


def products_of(geometry: Geometry, copies: int) -> tuple[list[list[KTilePiece]], list[Product]]:
    """(K tiles, Products) of all channels of x; copies: the most of the channels left over."""
    k_tiles: list[list[KTilePiece]] = []
    products: list[Product] = []
    R, S = geometry.rows.taps, geometry.columns.taps
    rest = geometry.C % P_MAX
    whole = geometry.C - rest
    for c0 in range(0, whole, P_MAX):
        products += [Product(len(k_tiles), r, s, pieces=1) for r in range(R) for s in range(S)]
        k_tiles.append([own_piece(c0, P_MAX)])
    if rest == 0:
        return k_tiles, products
    depth = min(P_MAX // rest, S) if copies > 1 else 1
    if depth == 1 and copies > 1 and rest % (P_MAX - rest) == 0:
        own, more = ridden(own_piece(whole, rest), len(k_tiles), (R, S), copies)
        return k_tiles + own, products + more
    products += [Product(len(k_tiles), r, s, min(depth, S - s)) for r in range(R) for s in range(0, S, depth)]
    pieces = [KTilePiece(part=behind * rest, c0=whole, count=rest, r=0, s=behind) for behind in range(depth)]
    return [*k_tiles, pieces], products


def ridden(
    own: KTilePiece, first: int, taps: tuple[int, int], copies: int
) -> tuple[list[list[KTilePiece]], list[Product]]:
    """(K tiles, products) of channels with riders, in at most `copies` copies; first: number of their first K tile."""
    R, S = taps
    room = P_MAX - own.count
    shares = own.count // room
    # the first `apart` taps have no product if riders cover all of their channels
    apart, found = R * S // (shares + 1), []
    riders: list[KTilePiece] = []
    used: list[int] = []
    for tap in range(apart):
        tried, hosts = riders[:], []
        places: list[int] = []
        for share in range(shares):
            rider = KTilePiece(part=own.count, c0=own.c0 + share * room, count=room, r=0, s=0)
            host = host_of(rider, tap, apart, taps, tried, copies, used + places)
            if host is not None:
                hosts.append(host)
                places.append(host[1])
        if len(hosts) < shares:
            found.append(Product(k_tile=first, r=tap // S, s=tap % S, pieces=1))
            continue
        riders, used = tried, used + places
        for host in hosts:
            copy, place = host
            found.append(Product(k_tile=first + copy, r=place // S, s=place % S, pieces=2))
    for tap in range(apart, R * S):
        if tap not in used:
            found.append(Product(k_tile=first, r=tap // S, s=tap % S, pieces=1))
    return [[own, rider] for rider in riders] or [[own]], found


def host_of(
    rider: KTilePiece,
    tap: int,
    apart: int,
    taps: tuple[int, int],
    riders: list[KTilePiece],
    copies: int,
    used: Sequence[int],
) -> tuple[int, int] | None:
    """(copy, tap) of the product that a rider at a tap joins: of a copy with that distance if possible, else of a new
    one appended to `riders`, preferably in the same column; None if `copies` are too few."""
    R, S = taps
    for copy in range(len(riders)):
        other = riders[copy]
        r, s = tap // S - other.r, tap % S - other.s
        inside = 0 <= r and r < R and 0 <= s and s < S
        if other.c0 == rider.c0 and inside and r * S + s >= apart and r * S + s not in used:
            return copy, r * S + s
    for behind in range(S + 1 if len(riders) < copies else 0):
        s = tap % S if behind == 0 else S - behind
        for r in range(R):
            if r * S + s >= apart and r * S + s not in used:
                riders.append(replace(rider, r=tap // S - r, s=tap % S - s))
                return len(riders) - 1, r * S + s
    return None


def places_of(geometry: Geometry, products: Sequence[Product]) -> list[Place]:
    """Places of a K tile's filters: the planes of taps of a product are neighbours, from last to first."""
    T = geometry.planes.taps
    return [Place(t=t, r=one.r, s=one.s, pieces=one.pieces) for one in products for t in range(T - 1, -1, -1)]


def all_places(geometry: Geometry) -> list[Place]:
    """Places of all taps of a K tile's channels, in memory order."""
    T, R, S = geometry.planes.taps, geometry.rows.taps, geometry.columns.taps
    return [Place(t=t, r=r, s=s, pieces=1) for t in range(T) for r in range(R) for s in range(S)]
