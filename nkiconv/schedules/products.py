"""Products of a bank of sums: which tap meets x at which outputs, and the one that the sums begin with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .cuts import put_first
from .geometry import Axis, Met, valid_range


@dataclass(frozen=True)
class Product:
    """One matmul: where it meets x along planes, rows and columns, as `valid_range` says; its filter's row and group of
    columns of taps; the partitions that it contracts, where they differ."""

    planes: Met
    rows: Met
    columns: Met
    row: int = 0
    group: int = 0
    parts: int = 0


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
