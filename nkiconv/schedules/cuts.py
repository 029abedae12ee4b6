"""Cuts that several algorithms share: M tiles into batches, outputs into output tiles and banks, filters into blocks of
taps; the products of a bank of sums: which tap meets x at which outputs, and the one that the sums begin with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from .geometry import Axis, Geometry, Met, filter_rows, valid_range
from .tiles import PARTS, Part, cut_into, div_ceil, share, some_of

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Outputs:
    """Outputs z0 .. z0+zn-1, p0 .. p0+pn-1, q0 .. q0+qn-1 along planes, rows and columns."""

    z0: int
    zn: int
    p0: int
    pn: int
    q0: int
    qn: int


#: One bank of sums: Outputs counted from the first of its output tile.
Bank = Outputs


@dataclass(frozen=True)
class OutTile(Outputs):
    """Outputs, and the elements d, h, w of x that they need."""

    d0: int
    dn: int
    h0: int
    hn: int
    w0: int
    wn: int


def cut_planes(count: int, volumes: int, parts: int) -> list[Part]:
    """(first, count) of `parts` parts of `count` planes, as even as possible, or of a few more: no part has planes of
    two volumes."""
    each = count // volumes
    cuts = cut_into(each, parts if volumes == 1 else min(each, div_ceil(parts, volumes)))
    return [(volume * each + first, many) for volume in range(volumes) for first, many in cuts]


def num_plane_parts(axis: Axis, most: int) -> int:
    """The number of parts of at most `most` planes, each of one volume."""
    return axis.images * div_ceil(axis.out // axis.images, most)


def axis_elements(axis: Axis, count: int) -> int:
    """The most elements of an axis that `count` neighbouring outputs need."""
    return min(axis.size // axis.images, (window_of(axis, count) - 1) // axis.lhs_dilation + 1)


def in_batches(m_tiles: Sequence[Thing], most: int, halves: int) -> list[list[Thing]]:
    """M tiles in batches of at most `most`, as even as possible; halves 2: each half of the M tiles has equally many,
    so that two cores can share them."""
    found = []
    count = div_ceil(div_ceil(len(m_tiles), halves), most)
    for half in range(halves):
        first, mine = share(len(m_tiles), halves, half)
        found += [some_of(m_tiles, (first + part[0], part[1])) for part in cut_into(mine, min(count, mine))]
    return found


def k_tiles_of(batch: Sequence[Any]) -> list[Any]:
    """K tiles of a batch's M tiles, each once, in order."""
    return list(dict.fromkeys(k_tile for m_tile in batch for k_tile in m_tile.k_tiles))


def tap_blocks(geometry: Geometry, elements: int, most_bytes: int) -> list[tuple[int, int, int, int]]:
    """Blocks of taps that are loaded together: all taps, some rows, or part of a row.

    elements: a partition, of a tap; most_bytes: of a block, if it has several taps.
    """
    most = max(1, most_bytes // (elements * geometry.itemsize))
    return blocks_of_taps(filter_rows(geometry), geometry.columns.taps, most)


def put_first(products: Sequence[Thing], first: int) -> list[Thing]:
    """Products with number `first` before all others: it writes the sums that the others add to."""
    return [products[first], *products[:first], *products[first + 1 :]]


def blocks_of_taps(R: int, S: int, most: int) -> list[tuple[int, int, int, int]]:
    """(first row, rows, first column, columns) of blocks of at most `most` of R x S taps."""
    height, width = min(R, max(1, most // S)), min(S, most)
    return [
        (r0, min(height, R - r0), s0, min(width, S - s0)) for r0 in range(0, R, height) for s0 in range(0, S, width)
    ]


def parts_for_cores(planes: Axis, most_planes: int, blocks: int, most_blocks: int) -> tuple[int, int]:
    """(parts of all planes, parts of each one's blocks) of output tiles, a multiple of the cores if possible."""
    image_parts, block_parts = num_plane_parts(planes, most_planes), div_ceil(blocks, most_blocks)
    if image_parts * block_parts % PARTS == 1 and image_parts < planes.out:
        image_parts = len(cut_planes(planes.out, planes.images, image_parts + 1))
    elif image_parts * block_parts % PARTS == 1 and block_parts < blocks:
        block_parts += 1
    return image_parts, block_parts


def most_of(parts: Iterable[Part]) -> int:
    """The largest count of (first, count) parts."""
    return max((part[1] for part in parts), default=0)


def window_of(axis: Axis, outputs: int, taps: int | None = None) -> int:
    """Elements of an axis that so many neighbouring outputs span at so many taps, or at all, padding and gaps
    included."""
    return (outputs - 1) * axis.stride + ((axis.taps if taps is None else taps) - 1) * axis.dilation + 1


def hull(parts: Sequence[Part], nothing: Part) -> Part:
    """(first, count) from the first to the last of some parts; `nothing` without parts."""
    if not parts:
        return nothing
    low = min(first for first, _ in parts)
    return low, max(first + count for first, count in parts) - low


def places_inside(first: int, step: int, count: int, size: int) -> Part:
    """(first, end) of the places first, first + step, .., `count` of them, that are in 0 .. size-1."""
    low = min(count, div_ceil(max(0, -first), step))
    end = div_ceil(max(0, size - first), step)
    return low, max(low, min(count, end))


@dataclass(frozen=True)
class Product:
    """One matmul: where it meets x along planes, rows and columns, as `valid_range` says; its filter's row and group of
    columns of taps; the partitions that it contracts, where they differ; (row, group) of a pair's other tap."""

    planes: Met
    rows: Met
    columns: Met
    row: int = 0
    group: int = 0
    parts: int = 0
    second: tuple[int, int] | None = None


def is_whole(product: Product, zn: int, pn: int, qn: int) -> bool:
    """Whether it meets x at all outputs of a bank."""
    return (product.planes[2], product.rows[2], product.columns[2]) == (zn, pn, qn)


def covering_first(products: list[Product], zn: int, pn: int, qn: int) -> list[Product]:
    """Products of a bank in their order, but the first that meets x at all its outputs, if one does, before others."""
    for index, product in enumerate(products):
        if is_whole(product, zn, pn, qn):
            return put_first(products, index)
    return products


@lru_cache(maxsize=256)
def home_tap(axis: Axis) -> int:
    """The last tap that meets x at all outputs of an axis; -1: none does. Sums that begin with it and go on by number
    round alike wherever banks are cut, and in a chunk of a video as in all of it: padding in front leaves the last."""
    out = axis.out // axis.images
    return max((tap for tap in range(axis.taps) if valid_range(axis, tap, 0, out)[2] == out), default=-1)


def in_order(count: int, first: int) -> Iterator[int]:
    """So many in order, but this one first; the middle one if it is none of them."""
    home = first if 0 <= first < count else count // 2
    yield home
    yield from (one for one in range(count) if one != home)
