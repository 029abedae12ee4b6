"""Sizes and shares: hardware limits that every schedule keeps, ceil division, even parts, strides of tensors in HBM."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..simulator.hardware import AXIS_SIZE_MAX, AXIS_STRIDE_MAX, PARTITIONS, SBUF_USABLE_BYTES_PER_PARTITION

#: Parts that work is cut into first: the cores of an LNC2 launch, on one core too, so that bits agree.
PARTS = 2
#: Columns of fp32 sums that one bank of PSUM holds (nki.language.tile_size.psum_fmax), and its bytes per partition.
BANK_COLUMNS = 512
BANK_BYTES = 2048
#: Banks of PSUM (trn2.toml, memory.psum_banks).
PSUM_BANKS = 8
#: Bytes of a word: transposes write rows that begin at words of PSUM, and Vector copies a word in a byte's time.
WORD_BYTES = 4
#: Engines address partitions from multiples of this (trn2.toml, rules NKI043).
QUADRANT = 32
#: Partitions, and bytes of SBUF of each for a kernel (nl.tile_size.pmax, total_available_sbuf_size).
P_MAX, SBUF_BYTES = PARTITIONS, SBUF_USABLE_BYTES_PER_PARTITION
#: Elements of an axis of one instruction, and from one to the next on chip, at most (rules NKI053).
AXIS_MAX, STEP_MAX = AXIS_SIZE_MAX, AXIS_STRIDE_MAX

Thing = TypeVar("Thing")
#: (first, count)
Part = tuple[int, int]


def div_ceil(a: int, b: int) -> int:
    """Smallest int that is at least a / b, for b > 0."""
    return (a + b - 1) // b


def fits_sbuf(count: int) -> bool:
    """Whether SBUF holds so many bytes per partition."""
    return count <= SBUF_BYTES


def sumprod(values: Iterable[float], times: Iterable[float]) -> float:
    """The sum of products of two lists (math.sumprod from Python 3.12 on)."""
    found: float = sum(map(operator.mul, values, times))
    return found


def slot_for(size: int) -> int:
    """Partitions of the smallest aligned part that engines can address and that holds `size`."""
    slot = QUADRANT
    while slot < size:
        slot = 2 * slot
    return slot


def engine_parts(first: int, count: int) -> list[Part]:
    """(first, count) of parts, each addressable by engines, of `count` partitions from `first` on, a multiple of 32."""
    found = []
    while count > 0:
        most = P_MAX if first % P_MAX == 0 else first % P_MAX & -(first % P_MAX)
        found.append((first, min(count, most)))
        first, count = first + found[-1][1], count - found[-1][1]
    return found


def require(condition: object, message: str) -> None:
    """Refuse a kernel's arguments while it is built. The simulator turns this into KernelAssertionError."""
    assert condition, message


def share(count: int, parts: int, index: int) -> Part:
    """(first, count) of part `index` of `count` elements in `parts` even parts."""
    first = (count * index) // parts
    return first, (count * (index + 1)) // parts - first


def size_of(extents: Iterable[int]) -> int:
    """Elements of a region of these extents."""
    return math.prod(extents)


def cut(count: int, most: int) -> list[Part]:
    """(first, count) of parts of at most `most`, as even as possible."""
    return cut_into(count, div_ceil(count, most))


def cut_into(count: int, parts: int) -> list[Part]:
    """(first, count) of `parts` parts, as even as possible."""
    return [share(count, parts, index) for index in range(parts)]


def cut_at(count: int, most: int) -> list[Part]:
    """(first, count) of parts of `most`, and of the rest."""
    return [(first, min(most, count - first)) for first in range(0, count, most)]


def lines_of(rows: int, each: int) -> list[tuple[int, int, int]]:
    """(first row, partitions, rows of each) of tiles of rows, `each` neighbours a partition; the last has the rest."""
    tiles = [(first * each, count, each) for first, count in cut_at(rows // each, P_MAX)]
    return [*tiles, (rows - rows % each, 1, rows % each)] if rows % each else tiles


def parts_of_images(first: int, count: int, each: int) -> list[tuple[int, int, int]]:
    """(image, first place from `first`, count) of each image's part of `count` planes from `first` on, `each` an
    image."""
    images = range(first // each, (first + count - 1) // each + 1)
    ends = [(image, max(first, image * each), min(first + count, (image + 1) * each)) for image in images]
    return [(image, low - first, high - low) for image, low, high in ends if low < high]


def some_of(things: Sequence[Thing], part: Part) -> list[Thing]:
    """The elements of a list in a part (first, count)."""
    return list(things[part[0] : part[0] + part[1]])


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements, of an HBM tensor."""
    return tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))


def whole_words(count: int, itemsize: int) -> int:
    """`count` rounded up to whole words of four bytes, in elements: each row that a matmul writes to PSUM begins at a
    word."""
    each = max(1, WORD_BYTES // itemsize)
    return div_ceil(count, each) * each


def transposes_of_bank(width: int, itemsize: int) -> int:
    """Transposes of `width` columns that fit a bank of PSUM."""
    return max(1, BANK_BYTES // (whole_words(width, itemsize) * itemsize))


def picked(values: Sequence[int], axes: Iterable[int]) -> tuple[int, ...]:
    """Values in the order of axes: the stored shape of a canonical one, or canonical strides of stored ones."""
    return tuple(values[axis] for axis in axes)


def result_strides(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Canonical strides of a tensor stored with this shape and permutation."""
    stored = dense_strides(shape)
    return tuple(stored[axes.index(index)] for index in range(len(axes)))
