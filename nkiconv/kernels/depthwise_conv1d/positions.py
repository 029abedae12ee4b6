"""Where taps meet a row: positions in the padded, dilated row (0 is x[0], before padding) and elements of x.

Compile-time code in NKI's Python subset, for all algorithms.
"""

from .._tiles import div_ceil


def first_position(geometry, s0, q0):
    """Position in the dilated row (0 is x[0], before padding) that tap s0 meets at column q0."""
    return q0 * geometry.stride + s0 * geometry.dilation - geometry.pad_left


def last_position(geometry, s0, sn, q0, qn):
    """Position that the last tap of a tile meets at its last column."""
    return first_position(geometry, s0 + sn - 1, q0 + qn - 1)


def first_element(geometry, first):
    """Index of the first element of x at or after a position of the dilated row."""
    return div_ceil(max(0, first), geometry.lhs_dilation)


def last_element(geometry, last):
    """Index of the last element of x at or before a position of the dilated row; -1 if there is none."""
    if last < 0:
        return -1
    return min(geometry.W - 1, last // geometry.lhs_dilation)


def only_zeros(geometry, s0, sn, q0, qn, state):
    """Whether a tile lies wholly in the padding; with a `state` there is none on the left."""
    before = last_position(geometry, s0, sn, q0, qn) < 0 and not state
    return before or first_position(geometry, s0, q0) > (geometry.W - 1) * geometry.lhs_dilation


def greatest_common_divisor(a, b):
    """Of two positive ints."""
    while b > 0:
        rest = a % b
        a = b
        b = rest
    return a


def columns_met(geometry, s, q0, qn):
    """The columns of q0 .. q0+qn-1 at which tap s meets an element of x, not a zero.

    Returns (first column, step between columns, how many, first element of x, step between elements); no column: how
    many is 0.
    """
    common = greatest_common_divisor(geometry.stride, geometry.lhs_dilation)
    q_step = geometry.lhs_dilation // common
    shift = s * geometry.dilation - geometry.pad_left
    first = q0
    if shift < 0:
        first = max(q0, div_ceil(-shift, geometry.stride))
    end = min(q0 + qn, first + q_step)
    while first < end and (first * geometry.stride + shift) % geometry.lhs_dilation != 0:
        first += 1
    top = (geometry.W - 1) * geometry.lhs_dilation
    position = first * geometry.stride + shift
    if first >= end or position > top:
        return q0, q_step, 0, 0, 1
    last = min(q0 + qn - 1, first + (top - position) // geometry.stride)
    count = (last - first) // q_step + 1
    return first, q_step, count, position // geometry.lhs_dilation, geometry.stride // common
