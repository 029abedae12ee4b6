"""Windows of columns of x, and of which of their products a bank has the sums.

Windows that overlap have all columns that their columns of y see: each has a bank, or a part of one, to itself. Of
disjoint ones neighbours see the same columns of y. Those of every other window lie beside each other, or with others
between them that no window of these sees: they come first, and what is between gets zeros with them; sums of the other
windows are added. Banks begin where windows of the first kind do.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, cut, div_ceil


@dataclass
class Window(nl.NKIObject):
    """First of its columns of x, those between zeros of lhs_dilation; (first, how many) columns of y that see it."""

    start: int
    q: int
    qn: int


@dataclass
class WindowProduct(nl.NKIObject):
    """What one matmul adds to a bank: windows (first, how many) of a tile of x, columns (first, how many) of the bank,
    the first of these among those of a matrix, whether there are sums of them."""

    windows: tuple
    columns: tuple
    first: int
    adds: bool


@dataclass
class Span(nl.NKIObject):
    """Columns of y (first, how many) of a tile of results that a bank has, and their products in order."""

    columns: tuple
    products: list


def windows_of(columns, most, disjoint):
    """Windows of `most` columns of y."""
    found = []
    if not disjoint:
        for part in cut(columns.out, most):
            found.append(Window(start=part[0] * columns.stride - columns.before, q=part[0], qn=part[1]))
        return found
    size, far = (columns.size - 1) * columns.lhs_dilation + 1, (columns.taps - 1) * columns.dilation
    end = min(size, (columns.out - 1) * columns.stride + far + 1 - columns.before)
    for start in range(max(0, -columns.before), end, most * columns.stride):
        q = (
            div_ceil(start + columns.before + far * (columns.stride - 1), columns.stride) - far
        )  # // of what is 0 or more
        last = min(start + most * columns.stride, end) - 1
        found.append(Window(start=start, q=q, qn=(last + columns.before) // columns.stride - q + 1))
    return found


def disjoint_spans(windows, out, out_rows):
    """Spans of all `out` columns of y, of disjoint windows; one is too wide for a bank if its own window's columns
    are."""
    edges = [0]
    for v in range(2, len(windows), 2):
        edges.append(windows[v].q)
    edges.append(out)
    found, first = [], 0
    for last in range(1, len(edges)):
        if last + 1 == len(edges) or (edges[last + 1] - edges[first]) * out_rows > BANK_COLUMNS:
            found.append(span_between(windows, edges, first, last))
            first = last
    return found


def span_between(windows, edges, first, last):
    """The span from one edge to another."""
    begin, end, products = edges[first], edges[last], []
    for index in range(first, last):
        q, qn = edges[index], edges[index + 1] - edges[index]
        products.append(
            WindowProduct(windows=(2 * index, 1), columns=(q - begin, qn), first=q - windows[2 * index].q, adds=False)
        )
    for v in range(1, len(windows), 2):
        q, stop = max(begin, windows[v].q), min(end, windows[v].q + windows[v].qn)
        if q < stop:
            products.append(
                WindowProduct(windows=(v, 1), columns=(q - begin, stop - q), first=q - windows[v].q, adds=True)
            )
    return Span(columns=(begin, end - begin), products=products)


def pitch_of(spans, columns, most):
    """Columns from a row of taps to the next, of disjoint windows: all of a matrix, and no tap of another row is among
    them."""
    found = 2 * most
    for span in spans:
        for one in span.products:
            found = max(found, one.first + one.columns[1])
    return found * columns.stride


def disjoint_misfit(columns, settings, out_rows):
    """Why windows of some columns of y cannot be disjoint, or ""."""
    far = (columns.taps - 1) * columns.dilation
    if settings.columns * columns.stride < far:
        return (
            f"config disjoint=1, columns={settings.columns}, S={columns.taps}: windows that do not overlap must be "
            f"{far} columns of x wide, so that each shares columns of y with its neighbours alone"
        )
    windows = windows_of(columns, settings.columns, True)
    if len(windows) == 0 or columns.before > far:
        return (
            f"config disjoint=1, padding={columns.before} in front of a row: windows that do not overlap take at most "
            f"{far}, and x within reach; use disjoint=0"
        )
    for span in disjoint_spans(windows, columns.out, out_rows):
        if span.columns[1] * out_rows > BANK_COLUMNS:
            return (
                f"config disjoint=1, rows={settings.rows}, columns={settings.columns}: {out_rows} rows of "
                f"{span.columns[1]} columns of y must fit a bank, {BANK_COLUMNS}; use fewer"
            )
    return ""
