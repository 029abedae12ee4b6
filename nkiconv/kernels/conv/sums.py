"""Sums of products in PSUM: matmuls, sums without a whole first product, views of a product's outputs and elements."""

from ..._nki import nisa, nl
from ...schedules.cuts import Product as Product
from ...schedules.cuts import covering_first as covering_first
from ...schedules.cuts import is_whole as is_whole


def sums_met(acc_psum, product, first):
    """The sums that a product adds to, in a bank whose first output is (z, p, q) `first`."""
    met = product.planes, product.rows, product.columns
    return spaced(acc_psum, (0, acc_psum.shape[0]), *map(places_of_outputs, met, first))


def elements_met(x_sbuf, parts, product, first):
    """The elements that a product reads on partitions (first, count) of a tile of x; first: the tile's (d, h, w)."""
    met = product.planes, product.rows, product.columns
    return spaced(x_sbuf, parts, *map(places_of_elements, met, first))


def spaced(tile, *axes):
    """A view of a tile by (first, count) or (first, count, step) of each axis."""
    return tile[tuple(along(*axis) for axis in axes)]


def along(first, count, step=1):
    """The slice of `count` places from `first` on, `step` apart."""
    return slice(first, first + (count - 1) * step + 1, step)


def places_of_outputs(found, first):
    """(first, count, step) of the outputs of a tap's valid range, counted from output `first`; found: of
    `valid_range`."""
    return found[0] - first, found[2], found[1]


def places_of_elements(found, first):
    """(first, count, step) of the elements of x in a tap's valid range, counted from element `first`."""
    return found[3] - first, found[2], found[4]


def multiply(dst, stationary, moving, adds, side=(0, 1), below=(0, 1), **how):
    """A matmul, on row tile `side` (number, count) and on column tile `below` (number, count) if `dst` fits one.
    how: `is_stationary_onezero` or `is_moving_onezero`, of an operand of zeros and ones."""
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
        **how,
    )


def zero_sums(acc_psum, zeros_sbuf):
    """Begin sums by a product of zeros, if no product writes all of them."""
    pattern = [[zeros_sbuf.shape[1], 1], *([0, extent] for extent in acc_psum.shape[1:])]
    multiply(acc_psum, zeros_sbuf[0:1, 0 : acc_psum.shape[0]], zeros_sbuf.ap(pattern=pattern, offset=0), False)
