"""Where a tap meets an axis: outputs that see an element of x there, not padding or a gap of a dilated axis.

Compile-time code in NKI's Python subset, for all kernels.
"""

from ._tiles import div_ceil


def greatest_common_divisor(a, b):
    """Of two positive ints."""
    while b > 0:
        rest = a % b
        a = b
        b = rest
    return a


def outputs_met(size, stride, lhs_dilation, shift, q0, qn):
    """The outputs of q0 .. q0+qn-1 at which a tap meets an element of an axis of `size`, not a zero.

    shift: of the tap against output 0, tap * dilation - padding in front.

    Returns (first output, step between outputs, how many, first element, step between elements); no output: how many is
    0.
    """
    common = greatest_common_divisor(stride, lhs_dilation)
    q_step = lhs_dilation // common
    first = q0
    if shift < 0:
        first = max(q0, div_ceil(-shift, stride))
    end = min(q0 + qn, first + q_step)
    while first < end and (first * stride + shift) % lhs_dilation != 0:
        first += 1
    top = (size - 1) * lhs_dilation
    position = first * stride + shift
    if first >= end or position > top:
        return q0, q_step, 0, 0, 1
    last = min(q0 + qn - 1, first + (top - position) // stride)
    count = (last - first) // q_step + 1
    return first, q_step, count, position // lhs_dilation, stride // common
