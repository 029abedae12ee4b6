"""What a stretch of outputs needs of an axis: elements of x, and the zeros around them."""

from dataclasses import dataclass

from ...._nki import nl


@dataclass
class Stored(nl.NKIObject):
    """Elements of an axis that a stretch of outputs needs: zeros in front, elements of x from `first` on, and all."""

    zeros: int
    first: int
    count: int
    extent: int


def stored(axis, first, count):
    """What outputs first .. first+count-1 need of an axis."""
    extent = extent_of(axis, count)
    start = first * axis.stride - axis.before
    low, high = max(0, start), min(axis.size, start + extent)
    if high <= low:
        return Stored(zeros=0, first=0, count=0, extent=extent)
    return Stored(zeros=low - start, first=low, count=high - low, extent=extent)


def extent_of(axis, count):
    """Elements that `count` outputs need, zeros among them."""
    return (count - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1


def is_dense(columns):
    """Whether a row of x as it is needed is a row of x: nothing is padded or cropped."""
    whole = stored(columns, 0, columns.out)
    return whole.count == columns.size and whole.extent == columns.size
