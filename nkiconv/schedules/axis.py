"""Where a tap meets an axis: outputs that see an element of x there, not padding or a gap of a dilated axis."""

from __future__ import annotations

import math

from .tiles import div_ceil


def outputs_met(
    size: int, stride: int, lhs_dilation: int, shift: int, q0: int, qn: int
) -> tuple[int, int, int, int, int]:
    """The outputs of q0 .. q0+qn-1 at which a tap meets an element of an axis of `size`, not a zero.

    shift: of the tap against output 0, tap * dilation - padding in front.

    Returns (first output, step between outputs, how many, first element, step between elements); no output: how many is
    0.
    """
    common = math.gcd(stride, lhs_dilation)
    q_step = lhs_dilation // common
    first = q0
    if shift < 0:
        first = max(q0, div_ceil(-shift, stride))
    lacking = -(first * stride + shift) % lhs_dilation
    if lacking > 0:
        if lacking % common > 0:
            return q0, q_step, 0, 0, 1
        first += lacking // common * pow(stride // common, -1, q_step) % q_step
    top = (size - 1) * lhs_dilation
    position = first * stride + shift
    if first >= q0 + qn or position > top:
        return q0, q_step, 0, 0, 1
    last = min(q0 + qn - 1, first + (top - position) // stride)
    count = (last - first) // q_step + 1
    return first, q_step, count, position // lhs_dilation, stride // common
