"""Where taps meet a row: positions in the padded, dilated row (0 is x[0], before padding) and elements of x.

Compile-time code in NKI's Python subset.
"""

from .._axis import outputs_met


def columns_met(geometry, s, q0, qn):
    """The columns of q0 .. q0+qn-1 at which tap s meets an element of x, not a zero, as `_axis.outputs_met` says."""
    shift = s * geometry.dilation - geometry.pad_left
    return outputs_met(geometry.W, geometry.stride, geometry.lhs_dilation, shift, q0, qn)
