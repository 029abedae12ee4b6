"""Windows of columns of x of depthwise problems, and their products that a bank of PSUM accumulates.

Overlapping windows have all columns of x that their columns of y see, and their own part of a bank. Two neighbouring
disjoint windows contribute to the same columns of y, and a bank accumulates their products. Windows 0, 2, 4 and so on
come first and overwrite, each up to the start of the next of them and with zeros in columns that it does not see, so
that they cover a row of y without a gap. Windows 1, 3, 5 are added to them. A bank begins with an even window.

With lhs_dilation the zeros between elements of x are never loaded. A block computes the outputs between elements too,
and all blocks begin at the same distance of outputs from an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cuts import window_of
from .geometry import Axis, num_phases
from .tiles import BANK_COLUMNS, P_MAX, Part, cut, cut_at, div_ceil


@dataclass(frozen=True)
class Window:
    """start: its first column of x, below 0 for padding; q, qn: (first, count) of the columns of y that see it."""

    start: int
    q: int
    qn: int


@dataclass(frozen=True)
class WindowProduct:
    """One matmul into a bank: (first, count) of windows of a tile of x, (first, count) of columns of the bank, the
    first's column in the matrix, and whether the matmul accumulates."""

    windows: Part
    columns: Part
    first: int
    adds: bool


@dataclass(frozen=True)
class Span:
    """(first, count) of the columns of y in a bank, and their products in order."""

    columns: Part
    products: tuple[WindowProduct, ...]


def front_of(axis: Axis) -> int:
    """Places for elements in front of x in the window of the first output; below 0 if the window begins inside x."""
    apart = axis.lhs_dilation
    return axis.before // apart if axis.before >= 0 else -div_ceil(-axis.before, apart)


def pixels_among(axis: Axis, places: int) -> int:
    """Elements of x among a window's first `places`, which count zeros between elements; the window begins at the same
    distance from an element as the first output's."""
    first = axis.before - front_of(axis) * axis.lhs_dilation
    return div_ceil(max(0, places - first), axis.lhs_dilation)


def windows_of(columns: Axis, most: int, disjoint: bool) -> list[Window]:
    """Windows of `most` columns of y, a multiple of `num_phases`."""
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
    """The fewest columns of y of a window, a multiple of `num_phases`; disjoint windows are as wide as all taps."""
    far, each = (columns.taps - 1) * columns.dilation, num_phases(columns)
    return max(each, div_ceil(far, columns.stride * each) * each) if disjoint else each


def window_width(columns: Axis, most: int, disjoint: bool) -> int:
    """Columns of x of a window of `most` columns of y, a multiple of `num_phases`."""
    if disjoint:
        return most * columns.stride // columns.lhs_dilation
    return pixels_among(columns, window_of(columns, most))


def bank_columns(columns: Axis, most: int, rows: int) -> int:
    """Columns a row that matmuls take of the matrix of overlapping windows of `most` columns of y: the whole window, as
    if the stride were 1, if `rows` rows of that cost nothing; otherwise the columns from y's first to its last."""
    whole = window_of(columns, most)
    return whole if rows * whole <= P_MAX else (most - 1) * columns.stride + 1


def disjoint_spans(windows: Sequence[Window], out: int, out_rows: int) -> list[Span]:
    """The fewest spans of all `out` columns of y, for disjoint windows; a span is too wide for a bank if the columns
    from an even window to the next are."""
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
    """Columns from a row of taps to the next, for disjoint windows: enough for all columns of a matrix, so that they
    see no tap of another row."""
    seen = most * columns.stride - columns.lhs_dilation + (columns.taps - 1) * columns.dilation + 1
    return max(seen, *((one.first + one.columns[1]) * columns.stride for span in spans for one in span.products))
