"""Arithmetic of strided views: shapes and strides in, shapes and strides out, no tensor and no data."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = tuple[int, ...]


def dense_strides(shape: Ints) -> Ints:
    """Row-major strides, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def is_dense(shape: Ints, strides: Ints) -> bool:
    """Whether the dims are row-major without gaps; size-1 dims do not count."""
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def merged_runs(shape: Ints, strides: Ints, most: float = inf) -> list[tuple[int, int]]:
    """(count, stride) of the dims with size-1 dims dropped and contiguous neighbours merged, up to `most` elements."""
    runs: list[tuple[int, int]] = []
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == s * n and runs[-1][0] * n <= most:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    return runs


def reshaped_strides(shape: Ints, strides: Ints, new: Ints) -> Ints | None:
    """Strides of the same elements in shape `new`, or None when that needs a copy."""
    out: list[int] = []
    sizes = list(new)
    for count, stride in merged_runs(shape, strides):
        group: list[int] = []
        while sizes and prod(group) < count:
            group.append(sizes.pop(0))
        if prod(group) != count:
            return None
        out += [s * stride for s in dense_strides(tuple(group))]
    return (*out, *(1 for _ in sizes))


def whole_sizes(sizes: Ints, total: int) -> Ints | None:
    """Sizes whose product is `total`, a single -1 worked out; None when there are none."""
    known = prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and known > 0 and total % known == 0:
        sizes = tuple(total // known if n == -1 else n for n in sizes)
    return sizes if sizes and min(sizes) >= 1 and prod(sizes) == total else None


def reach(shape: Ints, strides: Ints) -> tuple[int, int]:
    """Lowest and highest element that a view meets, relative to its first."""
    spans = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)


def places(dims: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Where the elements of a pattern lie; dims: (count, stride), outermost first."""
    found = np.zeros(1, dtype=np.int64)
    for count, stride in dims:
        found = (found[:, None] + stride * np.arange(count)).reshape(-1)
    return found


def outside(shape: Ints, strides: Ints, first: int, limit: int, free: int) -> str:
    """How a view leaves a storage of `limit` elements, or a partition of `free` (0: not on chip); "" if it does not."""
    if free:
        least, most = reach(shape[1:], strides[1:])
        if first % free + most >= free or first % free + least < 0:
            return f"offset {first} leaves the partition of {free} elements"
    low, high = reach(shape, strides)
    if first + low < 0 or first + high >= limit:
        return f"reaches elements {first + low}..{first + high} of a storage of {limit}"
    return ""


def name_groups(pattern: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """A rearrange pattern with every entry as a tuple of names."""
    return [tuple(entry) if isinstance(entry, (tuple, list)) else (entry,) for entry in pattern]


def plain_index(key: tuple[Any, ...], shape: Ints, strides: Ints, on_chip: bool) -> tuple[Ints, Ints, int] | None:
    """(shape, strides, first element) of the view by plain ints and slices inside a tensor, the most common kind.

    None for other keys, and if dim 0 on chip would be dropped or strided.
    """
    if len(key) > len(shape):
        return None
    sizes: list[int] = []
    steps: list[int] = []
    first = dim = 0
    for k in key:  # the dims left over stay as they are
        n, s = shape[dim], strides[dim]
        dim += 1
        if type(k) is slice:
            start, stop, step = k.start, k.stop, k.step
            if start is None:
                start = 0
            if stop is None:
                stop = n
            if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= n:
                return None
            if step is None:
                sizes.append(stop - start)
                steps.append(s)
            elif type(step) is int and step > 0:
                sizes.append((stop - start + step - 1) // step)
                steps.append(s * step)
            else:
                return None
            first += start * s
        elif type(k) is int and 0 <= k < n and (sizes or not on_chip):
            first += k * s
        else:
            return None
    if dim < len(shape):
        sizes += shape[dim:]
        steps += strides[dim:]
    if len(sizes) < (2 if on_chip else 1) or (on_chip and steps[0] != strides[0]):
        return None
    return tuple(sizes), tuple(steps), first
