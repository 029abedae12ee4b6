"""Windows of columns of x of depthwise problems, and which of their products a bank of PSUM adds up.

Windows that overlap have all columns of x that their columns of y see, and a part of a bank to themselves. Of disjoint
windows two neighbours see the same columns of y, so that their products add up: windows 0, 2, 4 and so on come first
and overwrite, each up to where the next of these begins, with zeros in columns that it does not see, so that they cover
a row of y without a gap; windows 1, 3, 5 are added to them. A bank begins where one of the first kind does.

With lhs_dilation the zeros between elements of x are never loaded: blocks have what is between them, and begin where
outputs are as far from an element as those of the first block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cuts import window_of
from .geometry import Axis
from .pixel_tiles import outputs_apart
from .tiles import BANK_COLUMNS, P_MAX, Part, cut, cut_at, div_ceil


@dataclass(frozen=True)
class Window:
    """First of its columns of x, below 0 in front of them; (first, how many) columns of y that see it."""

    start: int
    q: int
    qn: int


@dataclass(frozen=True)
class WindowProduct:
    """What one matmul adds to a bank: windows (first, how many) of a tile of x, columns (first, how many) of the bank,
    the first of these among those of a matrix, whether there are sums of them."""

    windows: Part
    columns: Part
    first: int
    adds: bool


@dataclass(frozen=True)
class Span:
    """Columns of y (first, how many) of a tile of results that a bank has, and their products in order."""

    columns: Part
    products: tuple[WindowProduct, ...]


def front_of(axis: Axis) -> int:
    """Places for elements in front of x in the window of the first output; below 0 where it begins inside x."""
    apart = axis.lhs_dilation
    return axis.before // apart if axis.before >= 0 else -div_ceil(-axis.before, apart)


def pixels_among(axis: Axis, places: int) -> int:
    """How many of a window's first places, zeros between elements counted, have an element of x; of a window that
    begins as the first output's does."""
    first = axis.before - front_of(axis) * axis.lhs_dilation
    return div_ceil(max(0, places - first), axis.lhs_dilation)


def windows_of(columns: Axis, most: int, disjoint: bool) -> list[Window]:
    """Windows of `most` columns of y, which are as many as begin alike or several times as many."""
    stride, apart = columns.stride, columns.lhs_dilation
    if not disjoint:
        parts = cut(columns.out, most) if apart == 1 else cut_at(columns.out, most)
        return [Window(q * stride // apart - front_of(columns), q, qn) for q, qn in parts]
    found, far = [], (columns.taps - 1) * columns.dilation
    seen = (columns.out - 1) * stride + far - columns.before
    end = min(columns.size, seen // apart + 1 if seen >= 0 else 0)
    for start in range(max(0, -front_of(columns)), end, most * stride // apart):
        first, last = start * apart + columns.before, min(start + most * stride // apart, end) - 1
        q = div_ceil(first + far * (stride - 1), stride) - far  # (first - far) / stride, which may be below 0
        found.append(Window(start, q, (last * apart + columns.before) // stride - q + 1))
    return found


def least_columns(columns: Axis, disjoint: bool) -> int:
    """Columns of y of a window, at least: those that begin alike, or several times as many; disjoint windows are as
    wide as all taps."""
    far, each = (columns.taps - 1) * columns.dilation, outputs_apart(columns)
    return max(each, div_ceil(far, columns.stride * each) * each) if disjoint else each


def window_width(columns: Axis, most: int, disjoint: bool) -> int:
    """Columns of x of a window of `most` columns of y, which are as many as begin alike or several times as many."""
    if disjoint:
        return most * columns.stride // columns.lhs_dilation
    return pixels_among(columns, window_of(columns, most))


def bank_columns(columns: Axis, most: int, rows: int) -> int:
    """Columns of a matrix of windows that overlap that the array takes, of `most` columns of y: all that such a window
    has, as if the stride were 1, while `rows` of them cost nothing, or those of y and what is between them."""
    whole = window_of(columns, most)
    return whole if rows * whole <= P_MAX else (most - 1) * columns.stride + 1


def disjoint_spans(windows: Sequence[Window], out: int, out_rows: int) -> list[Span]:
    """Spans of all `out` columns of y, of disjoint windows: as few as there can be; one is too wide for a bank if the
    columns from one window of the first kind to the next are."""
    edges = [0, *(window.q for window in windows[2::2]), out]
    found, first = [], 0
    for last in range(1, len(edges)):
        if last + 1 == len(edges) or (edges[last + 1] - edges[first]) * out_rows > BANK_COLUMNS:
            found.append(span_between(windows, edges, first, last))
            first = last
    return found


def span_between(windows: Sequence[Window], edges: Sequence[int], first: int, last: int) -> Span:
    """The span from one edge to another."""
    begin, end, products = edges[first], edges[last], []
    for index in range(first, last):
        q, qn = edges[index], edges[index + 1] - edges[index]
        products.append(WindowProduct((2 * index, 1), (q - begin, qn), q - windows[2 * index].q, False))
    for v in range(1, len(windows), 2):
        q, stop = max(begin, windows[v].q), min(end, windows[v].q + windows[v].qn)
        if q < stop:
            products.append(WindowProduct((v, 1), (q - begin, stop - q), q - windows[v].q, True))
    return Span((begin, end - begin), tuple(products))


def pitch_of(spans: Sequence[Span], columns: Axis, most: int) -> int:
    """Columns from a row of taps to the next, of disjoint windows: all of a matrix, and no tap of another row is among
    what they see."""
    seen = most * columns.stride - columns.lhs_dilation + (columns.taps - 1) * columns.dilation + 1
    return max(seen, *((one.first + one.columns[1]) * columns.stride for span in spans for one in span.products))
