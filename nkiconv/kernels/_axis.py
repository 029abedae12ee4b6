"""Where a tap meets an axis: outputs that see an element of x there, not padding or a gap of a dilated axis.

Compile-time code, for all kernels.
"""

from ._tiles import div_ceil


def greatest_common_divisor(a, b):
    """Of two positive ints."""
    while b > 0:
        rest = a % b
        a = b
        b = rest
    return a


def inverse(a, modulus):
    """The number b of 0 .. modulus-1 with a * b = 1 modulo `modulus`, to which a has no common divisor."""
    before, last, rest, divisor = 0, 1 % modulus, modulus, a % modulus
    while divisor > 0:
        times = rest // divisor
        before, last = last, (before + modulus * times - times * last) % modulus
        rest, divisor = divisor, rest - times * divisor
    return before


def outputs_met(size, stride, lhs_dilation, shift, q0, qn):
    """The outputs of q0 .. q0+qn-1 at which a tap meets an element of an axis of `size`, not a zero.

    shift: of the tap against output 0, tap * dilation - padding in front.

    Returns (first output, step between outputs, how many, first element, step between elements); no output: how many is
    0.
    """
    common = greatest_common_divisor(stride, lhs_dilation) if lhs_dilation > 1 else 1
    q_step = lhs_dilation // common
    first = q0
    if shift < 0:
        first = max(q0, div_ceil(-shift, stride))
    lacking = (lhs_dilation - (first * stride + shift) % lhs_dilation) % lhs_dilation
    if lacking > 0:
        if lacking % common > 0:
            return q0, q_step, 0, 0, 1
        first += lacking if stride == 1 else lacking // common * inverse(stride // common, q_step) % q_step
    top = (size - 1) * lhs_dilation
    position = first * stride + shift
    if first >= q0 + qn or position > top:
        return q0, q_step, 0, 0, 1
    last = min(q0 + qn - 1, first + (top - position) // stride)
    count = (last - first) // q_step + 1
    return first, q_step, count, position // lhs_dilation, stride // common
