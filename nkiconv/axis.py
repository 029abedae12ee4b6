"""One spatial axis of a convolution."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Of every extent, so that its bytes fit 32-bit counts of elements.
EXTENT_MAX = 2**31 - 1
#: Outputs from which on one of so many along an axis must see an input: others are zeros of padding or between inputs.
BLANK_FROM, BLANK_MOST = 2**20, 1024


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution, in elements; the only place that knows the formula of P and Q."""

    size: int  # D, H or W
    taps: int  # T, R or S
    stride: int
    lo: int  # zeros in front; negative crops
    hi: int  # zeros after; negative crops
    rhs_dilation: int  # distance of neighbouring taps
    lhs_dilation: int  # distance of neighbouring inputs, before padding

    @property
    def dilated(self) -> int:
        """Extent of the input with lhs_dilation - 1 zeros between neighbours."""
        return (self.size - 1) * self.lhs_dilation + 1

    @property
    def padded(self) -> int:
        """Extent of the dilated input after padding or cropping; below 1 if the crop leaves nothing."""
        return self.lo + self.dilated + self.hi

    @property
    def window(self) -> int:
        """Extent that the dilated filter covers."""
        return (self.taps - 1) * self.rhs_dilation + 1

    @property
    def out(self) -> int:
        """Z, P or Q: how many places the window has; below 1 if it has none."""
        return (self.padded - self.window) // self.stride + 1

    @property
    def is_blank(self) -> bool:
        """Whether almost all outputs read padding only."""
        return self.out > BLANK_MOST * self.size * self.taps

    @property
    def backwards(self) -> tuple[int, int]:
        """Zeros before and after y's gradient, which has stride - 1 between, whose convolution is x's gradient."""
        before, outputs = self.window - 1 - self.lo, (self.out - 1) * self.stride + 1
        return before, self.dilated + self.window - 1 - before - outputs

    @property
    def products(self) -> int:
        """Pairs of an output and a tap that meet an input or padding, not a zero that lhs_dilation puts in between."""
        spread = self.lhs_dilation
        if spread == 1:
            return self.out * self.taps
        common = math.gcd(self.stride, spread)
        period, found = spread // common, 0
        for tap in range(min(self.taps, spread)):
            # taps that are spread apart meet the same outputs, each period-th from q on
            alike = -(-(self.taps - tap) // spread)
            place = (self.lo - tap * self.rhs_dilation) % spread
            if place % common == 0:
                q = place // common * pow(self.stride // common, -1, period) % period
                found += alike * max(0, -(-(self.out - q) // period))
        return found

    @property
    def num_read(self) -> int:
        """Inputs that an output meets: not those cropped, between windows, or after the last."""
        dense = self.rhs_dilation == 1 and self.taps >= self.stride
        if dense or (self.stride == 1 and self.out >= self.rhs_dilation):
            end = (self.out - 1) * self.stride + self.window
            before = max(0, -(self.lo // self.lhs_dilation))
            return max(0, min(self.size, (end - 1 - self.lo) // self.lhs_dilation + 1) - before)
        common = math.gcd(self.stride, self.lhs_dilation)
        period, found, starts = self.lhs_dilation // common, 0, defaultdict[int, list[int]](list)
        for tap in range(self.taps):
            start, rest = divmod(tap * self.rhs_dilation, self.stride)
            starts[rest].append(start)  # the tap is at places rest + stride * j, j from start on
        for rest, ascending in starts.items():
            place = rest - self.lo
            if place % common:
                continue
            # each period-th j meets an input
            first = -(place // common) * pow(self.stride // common, -1, period) % period
            seen, end = (
                max(0, -(place // self.stride)),
                ((self.size - 1) * self.lhs_dilation - place) // self.stride + 1,
            )
            for start in ascending:
                low, high = max(seen, start), min(end, start + self.out)
                if low < high:
                    found += -((first - high) // period) + (first - low) // period
                    seen = high
        return found


def same_padding(size: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    """Zeros before and after an axis that give ceil(size / stride) outputs, the odd one after it."""
    window = (taps - 1) * dilation + 1
    total = max(0, (-(-size // stride) - 1) * stride + window - size)
    return total // 2, total - total // 2


def padding_pairs(padding: Any, axes: Sequence[tuple[int, int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each axis of a `padding` that the rules take; axes: (size, taps, stride, dilation)."""
    if padding == "same":
        return tuple(same_padding(*one) for one in axes)
    if padding == "causal":
        return tuple(((taps - 1) * dilation, 0) for _, taps, _, dilation in axes)
    if padding == "valid" or not isinstance(padding, tuple):
        zeros = 0 if padding == "valid" else padding
        return ((zeros, zeros),) * len(axes)
    if isinstance(padding[0], tuple):
        return padding
    return (padding,) if len(axes) == 1 else tuple((one, one) for one in padding)
