"""Sums of products in PSUM: their first product, and views of the outputs and elements of a product."""

from ..._nki import nisa, nl
from ...schedules.geometry import valid_range
from ...schedules.products import Product as Product
from ...schedules.products import covering_first as covering_first
from ...schedules.products import is_whole as is_whole


def sums_met(acc_psum, product, first):
    """The sums that a product adds to, in a bank whose first output is (z, p, q) `first`."""
    planes, rows = places_of_outputs(product.planes, first[0]), places_of_outputs(product.rows, first[1])
    return spaced(acc_psum, (0, acc_psum.shape[0]), planes, rows, places_of_outputs(product.columns, first[2]))


def elements_met(x_sbuf, parts, product, first):
    """The elements that a product reads on partitions (first, count) of a tile of x; first: the tile's (d, h, w)."""
    planes, rows = places_of_elements(product.planes, first[0]), places_of_elements(product.rows, first[1])
    return spaced(x_sbuf, parts, planes, rows, places_of_elements(product.columns, first[2]))


def spaced(tile, parts, planes, rows, columns):
    """View [partitions, planes, rows, columns] of a tile. Partitions: (first, count); other axes: (first, count,
    step)."""
    return tile[
        parts[0] : parts[0] + parts[1],
        planes[0] : planes[0] + (planes[1] - 1) * planes[2] + 1 : planes[2],
        rows[0] : rows[0] + (rows[1] - 1) * rows[2] + 1 : rows[2],
        columns[0] : columns[0] + (columns[1] - 1) * columns[2] + 1 : columns[2],
    ]


def places_of_outputs(found, first):
    """(first, count, step) of the outputs of a tap's valid range, counted from output `first`; found: of
    `valid_range`."""
    return found[0] - first, found[2], found[1]


def places_of_elements(found, first):
    """(first, count, step) of the elements of x in a tap's valid range, counted from element `first`."""
    return found[3] - first, found[2], found[4]


def taps_by_cover(axis, first, count):
    """(tap, its `valid_range`) of taps with any of outputs first .. first+count-1; taps with all of them come first, so
    that the others add to existing sums."""
    whole, partial = [], []
    for tap in range(axis.taps):
        found = valid_range(axis, tap, first, count)
        if found[2] == count:
            whole.append((tap, found))
        elif found[2] > 0:
            partial.append((tap, found))
    return whole + partial


def multiply(dst, stationary, moving, adds, side=(0, 1), below=(0, 1)):
    """A matmul, on row tile `side` (number, count) and on column tile `below` (number, count) if `dst` fits one."""
    P_MAX = nl.tile_size.pmax
    rows, columns = P_MAX // side[1], P_MAX // below[1]
    columns = columns if dst.shape[0] <= columns else P_MAX
    whole = rows == P_MAX and columns == P_MAX
    nisa.nc_matmul(
        dst=dst,
        stationary=stationary,
        moving=moving,
        accumulate=adds,
        tile_position=() if whole else (side[0] * rows, below[0] * columns),
        tile_size=() if whole else (rows, columns),
    )


def zero_sums(acc_psum, zeros_sbuf):
    """Begin sums by a product of zeros, if no product writes all of them."""
    pattern = [[zeros_sbuf.shape[1], 1]]
    for extent in acc_psum.shape[1:]:
        pattern.append([0, extent])
    multiply(acc_psum, zeros_sbuf[0:1, 0 : acc_psum.shape[0]], zeros_sbuf.ap(pattern=pattern, offset=0), False)
