"""Where taps meet a row: positions in the padded, dilated row (0 is x[0], before padding) and elements of x.

Compile-time code in NKI's Python subset, for all algorithms.
"""

from .._axis import outputs_met
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


def columns_met(geometry, s, q0, qn):
    """The columns of q0 .. q0+qn-1 at which tap s meets an element of x, not a zero, as `_axis.outputs_met` says."""
    shift = s * geometry.dilation - geometry.pad_left
    return outputs_met(geometry.W, geometry.stride, geometry.lhs_dilation, shift, q0, qn)
