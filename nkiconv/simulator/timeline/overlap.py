"""Do two views of one storage share an element? Exactly, in bytes.

On chip a view is a range of partitions times a pattern of bytes within each; patterns that are not one run are bit
masks (a Python int, bit b = byte b), made once a pattern. In HBM a view is a set of runs, compared run by run.
"""

from __future__ import annotations

import functools
from math import prod
from typing import NamedTuple

import numpy as np

from ..dtypes import DTYPES, Array
from ..memory import Region
from ..views import Ints, merged_runs, places, reach

#: Runs above which two HBM views are only compared by the bytes between their first and last.
RUNS_COMPARED = 1 << 16


class Extent(NamedTuple):
    """Where a view lies: partitions [p0, p1) on chip (0, 1 in HBM), bytes [b0, b1) in each, and its exact pattern."""

    p0: int
    p1: int
    b0: int
    b1: int
    dense: bool  # every byte of [b0, b1) belongs to it
    shape: Ints  # of the pattern, without the partition dim
    strides: Ints
    itemsize: int
    first: int  # byte of the pattern's first element


@functools.lru_cache(maxsize=1 << 16)
def _span(shape: Ints, strides: Ints) -> tuple[int, int, bool]:
    """(lowest, highest + 1) element relative to the first, and whether everything between is met."""
    low, high = reach(shape, strides)
    runs = merged_runs(shape, strides)
    dense = not runs or (len(runs) == 1 and abs(runs[0][1]) <= 1)
    return low, high + 1, dense


def extent(region: Region) -> Extent:
    """The extent of a region of its storage."""
    info, dtype, shape, strides, offset = region
    size = DTYPES[dtype].itemsize
    p0, rows, first = 0, 1, offset * size
    if info.on_chip:
        p0, first = divmod(first, info.bytes_per_partition)
        rows, shape, strides = shape[0], shape[1:], strides[1:]
    low, high, dense = _span(shape, strides)
    return Extent(p0, p0 + rows, first + low * size, first + high * size, dense, shape, strides, size, first)


def columns(e: Extent, row: int) -> tuple[int, int]:
    """Begin and end of the bytes that an HBM extent meets in its storage's rows of `row` bytes each, at most.

    All of them if it is not compared run by run: it then counts as meeting everything between its ends.
    """
    reached = _reached(e.shape, e.strides, e.itemsize, row)
    if reached is None:
        return 0, row
    begin = (e.first + reached[0]) % row
    end = begin + reached[1] - reached[0]
    return (begin, end) if end <= row else (0, row)


@functools.lru_cache(maxsize=1 << 14)
def _reached(shape: Ints, strides: Ints, itemsize: int, row: int) -> tuple[int, int] | None:
    """(lowest, highest + 1) byte of a pattern but for the dims that only lead from row to row, relative to its first
    element's; None where it is not compared run by run."""
    if not _few(_split(shape, strides, itemsize)[0]):
        return None
    inside = [(n, stride) for n, stride in zip(shape, strides, strict=True) if stride * itemsize % row]
    low, high = reach(tuple([n for n, _ in inside]), tuple([stride for _, stride in inside]))
    return low * itemsize, (high + 1) * itemsize


def overlaps(a: Extent, b: Extent) -> bool:
    """Whether two extents of one storage in HBM share a byte."""
    if a.b0 >= b.b1 or b.b0 >= a.b1 or a.p0 >= b.p1 or b.p0 >= a.p1:
        return False
    if a.dense and b.dense:
        return True
    return _runs_overlap(_pattern(a), _pattern(b), b.first - a.first)


def covers(a: Extent, b: Extent, on_chip: bool) -> bool:
    """Whether a surely contains all of b; False where that is too dear to tell."""
    if a.b0 > b.b0 or b.b1 > a.b1 or a.p0 > b.p0 or b.p1 > a.p1:
        return False
    if a.dense or (a.first == b.first and _pattern(a) == _pattern(b)):
        return True
    return on_chip and not mask(b) & ~mask(a)


def _pattern(e: Extent) -> tuple[Ints, Ints, int]:
    return e.shape, e.strides, e.itemsize


def meets_partitions(a: Extent, b: Extent) -> bool:
    """Whether two extents share a partition."""
    return a.p0 < b.p1 and b.p0 < a.p1


def covers_partitions(a: Extent, b: Extent) -> bool:
    """Whether a lies in all partitions of b."""
    return a.p0 <= b.p0 and b.p1 <= a.p1


def mask(e: Extent) -> int:
    """The bytes of a partition that an on-chip extent meets, as bits."""
    return _pattern_mask(e.shape, e.strides, e.itemsize) << e.b0


@functools.lru_cache(maxsize=1 << 14)
def _pattern_mask(shape: Ints, strides: Ints, itemsize: int) -> int:
    """Bytes that a pattern meets, its lowest byte as bit 0."""
    mask = (1 << itemsize) - 1
    for n, stride in merged_runs(shape, strides)[::-1]:
        if stride:
            mask = _repeated(mask, n, abs(stride) * itemsize)
    return mask


def _repeated(mask: int, count: int, step: int) -> int:
    """The union of `count` copies of a mask, each `step` bits above the last."""
    done, out = 1, mask
    while done < count:
        more = min(done, count - done)
        out |= out << (more * step)
        done += more
    return out


@functools.lru_cache(maxsize=1 << 14)
def _runs_overlap(a: tuple[Ints, Ints, int], b: tuple[Ints, Ints, int], shift: int) -> bool:
    """Whether two HBM patterns meet when b's first element is `shift` bytes after a's."""
    runs_a, runs_b = _runs(*a), _runs(*b)
    if runs_a is None or runs_b is None:
        return True
    starts_a, length_a = runs_a
    starts_b, length_b = runs_b
    at = np.searchsorted(starts_a, starts_b + shift, side="right")
    before = np.where(at > 0, starts_a[np.maximum(at - 1, 0)], -(1 << 60))
    after = np.where(at < len(starts_a), starts_a[np.minimum(at, len(starts_a) - 1)], 1 << 60)
    begin = starts_b + shift
    return bool(((before + length_a > begin) | (after < begin + length_b)).any())


def _few(runs: list[tuple[int, int]]) -> bool:
    """Whether a pattern's runs are compared one by one."""
    return prod([n for n, _ in runs]) <= RUNS_COMPARED


def _split(shape: Ints, strides: Ints, itemsize: int) -> tuple[list[tuple[int, int]], int]:
    """(count and stride of the dims that a pattern's runs come from, bytes of each run)."""
    runs = merged_runs(shape, strides)
    return (runs[:-1], itemsize * runs[-1][0]) if runs and runs[-1][1] == 1 else (runs, itemsize)


@functools.lru_cache(maxsize=1 << 10)
def _runs(shape: Ints, strides: Ints, itemsize: int) -> tuple[Array, int] | None:
    """(sorted byte offsets of a pattern's runs, bytes of each); None when there are too many."""
    runs, length = _split(shape, strides, itemsize)
    if not _few(runs):
        return None
    return np.unique(places((n, stride * itemsize) for n, stride in runs)), length
