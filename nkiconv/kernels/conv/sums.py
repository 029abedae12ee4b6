"""Sums of products in PSUM: how they begin, what they are of, and where what is evenly spaced lies."""

from ..._nki import nisa
from ...schedules.geometry import valid_range
from ...schedules.products import Product as Product
from ...schedules.products import covering_first as covering_first
from ...schedules.products import is_whole as is_whole


def sums_met(acc_psum, product, first):
    """What a product adds to, of a bank of sums whose first output (z, p, q) is this one."""
    planes, rows = places_of_outputs(product.planes, first[0]), places_of_outputs(product.rows, first[1])
    return spaced(acc_psum, (0, acc_psum.shape[0]), planes, rows, places_of_outputs(product.columns, first[2]))


def elements_met(x_sbuf, parts, product, first):
    """What it multiplies on partitions (first, how many) of a tile of x whose first element (d, h, w) is this one."""
    planes, rows = places_of_elements(product.planes, first[0]), places_of_elements(product.rows, first[1])
    return spaced(x_sbuf, parts, planes, rows, places_of_elements(product.columns, first[2]))


def spaced(tile, parts, planes, rows, columns):
    """[partitions, planes, rows, columns] of a tile. Partitions: (first, how many); the others: the same and the
    step."""
    return tile[
        parts[0] : parts[0] + parts[1],
        planes[0] : planes[0] + (planes[1] - 1) * planes[2] + 1 : planes[2],
        rows[0] : rows[0] + (rows[1] - 1) * rows[2] + 1 : rows[2],
        columns[0] : columns[0] + (columns[1] - 1) * columns[2] + 1 : columns[2],
    ]


def places_of_outputs(found, first):
    """(first, how many, step) of the outputs at which a tap meets x, counted from output `first`; found: of
    `valid_range`."""
    return found[0] - first, found[2], found[1]


def places_of_elements(found, first):
    """(first, how many, step) of the elements of x that it meets there, counted from element `first`."""
    return found[3] - first, found[2], found[4]


def taps_by_cover(axis, first, count):
    """(tap, what `valid_range` returns) of taps that meet x at outputs first .. first+count-1; those that do at all
    come first, so that the others add to what is there."""
    whole, partial = [], []
    for tap in range(axis.taps):
        found = valid_range(axis, tap, first, count)
        if found[2] == count:
            whole.append((tap, found))
        elif found[2] > 0:
            partial.append((tap, found))
    return whole + partial


def zero_sums(acc_psum, zeros_sbuf):
    """Zeros that others are added to, where no product writes all sums: a product of zeros."""
    pattern = [[zeros_sbuf.shape[1], 1]]
    for extent in acc_psum.shape[1:]:
        pattern.append([0, extent])
    nisa.nc_matmul(
        dst=acc_psum,
        stationary=zeros_sbuf[0:1, 0 : acc_psum.shape[0]],
        moving=zeros_sbuf.ap(pattern=pattern, offset=0),
        accumulate=False,
    )
