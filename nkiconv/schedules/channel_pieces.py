"""Channels that share the partitions of a K tile, and the products of a plane of taps.

Each 128 channels take one product a tap. The channels left over are folded. If they fit twice or more, their copies
follow each other, each shifted by one more column of taps. Else the free partitions hold a part of them at another tap,
a rider; once riders of several products hold all parts, that tap needs no product. Each distance between a product's
tap and its rider's takes a copy of the channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .geometry import Geometry
from .tiles import P_MAX, cut


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
    if depth == 1 and copies > 1:
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
    parts = cut(own.count, P_MAX - own.count)
    # the first `apart` taps have no product if riders cover all of their channels
    apart, found = R * S // (len(parts) + 1), []
    riders: list[KTilePiece] = []
    used: list[int] = []
    for tap in range(apart):
        tried = riders[:]
        hosts: list[tuple[int, int]] = []
        for c, count in parts:
            rider = KTilePiece(part=own.count, c0=own.c0 + c, count=count, r=0, s=0)
            host = host_of(rider, tap, apart, taps, tried, copies, used + [place for _, place in hosts])
            if host is not None:
                hosts.append(host)
        if len(hosts) < len(parts):
            found.append(Product(k_tile=first, r=tap // S, s=tap % S, pieces=1))
            continue
        riders, used = tried, used + [place for _, place in hosts]
        found += [Product(k_tile=first + copy, r=place // S, s=place % S, pieces=2) for copy, place in hosts]
    alone = (tap for tap in range(apart, R * S) if tap not in used)
    found += [Product(k_tile=first, r=tap // S, s=tap % S, pieces=1) for tap in alone]
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
