"""One spatial axis of a convolution."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nkiconv.errors import GeometryError, NkiconvError

#: Of every extent, so that its bytes fit 32-bit counts of elements.
EXTENT_MAX = 2**31 - 1
#: Outputs from which on one of so many along an axis must see an input: others are zeros of padding or between inputs.
BLANK_FROM, BLANK_MOST = 2**20, 1024
#: What transposed convolutions call arguments of the convolution that they are.
OF_TRANSPOSED = {"lhs_dilation": "stride", "rhs_dilation": "dilation"}


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution, in elements; the only place that knows the formula of P and Q."""

    size: int  # D, H or W
    taps: int  # T, R or S
    stride: int
    lo: int  # zeros in front; negative crops
    hi: int  # zeros behind; negative crops
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
        """Whether nearly none of the outputs sees an input."""
        return self.out > BLANK_MOST * self.size * self.taps

    @property
    def backwards(self) -> tuple[int, int]:
        """Zeros before and behind y's gradient, which has stride - 1 between, whose convolution is x's gradient."""
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
    def met(self) -> int:
        """Inputs that an output meets: not those cropped, between windows, or behind the last."""
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
    """Zeros before and behind an axis that give ceil(size / stride) outputs, the odd one behind."""
    window = (taps - 1) * dilation + 1
    total = max(0, (-(-size // stride) - 1) * stride + window - size)
    return total // 2, total - total // 2


def output_of(out: str, direction: str, size: str, taps: str) -> Callable[[Any], Iterator[NkiconvError]]:
    """The rule that there is output along an axis, and no more of it, of windows and of padded input than 32-bit ints
    count."""

    def rule(problem: Any) -> Iterator[NkiconvError]:
        axis = getattr(problem, direction)
        if max(axis.padded, axis.window, axis.dilated) > EXTENT_MAX:
            yield _too_long(axis, direction, size, taps, problem.transposed)
        elif axis.out < 1:
            yield _no_output(axis, out, direction, size, taps, problem.transposed)

    return rule


def blank_violations(letters: str, axes: Sequence[Axis], transposed: bool) -> Iterator[NkiconvError]:
    """Errors of axes that together have very many outputs, nearly all of which are zeros; letters: of their outputs.

    transposed: whether the call is of a transposed convolution, whose words are used then.
    """
    blank = [(name, axis) for name, axis in zip(letters, axes, strict=True) if axis.is_blank]
    if math.prod(axis.out for _, axis in blank) <= BLANK_FROM:
        return
    remedy = "use a smaller stride or dilation, or take off more" if transposed else "pad or spread less"
    for name, axis in blank:
        yield GeometryError(
            f"{name}={axis.out:,}: of so many outputs at most {axis.size * axis.taps:,} see an input ({axis.size} "
            f"inputs, {axis.taps} taps, {_numbers(axis, transposed)}), from {BLANK_FROM:,} on one in {BLANK_MOST:,} "
            f"must; {remedy}, and put zeros around the result"
        )


def in_words_of(transposed: bool, text: str) -> str:
    """What is said of a convolution in the words of the call: that of a transposed one names no stride, which is 1, and
    calls other arguments as `OF_TRANSPOSED` has them."""
    if not transposed:
        return text
    text = re.sub(r"\bstride=(1|\(1(, 1)+\))(, | and )", "", text)
    return re.sub(r"\b(lhs_dilation|rhs_dilation)\b", lambda found: OF_TRANSPOSED[found[0]], text)


def _numbers(axis: Axis, transposed: bool) -> str:
    """Stride, padding and dilation of an axis in the words of the call: of a transposed convolution padding is what is
    taken off, less output_padding."""
    if not transposed:
        return (
            f"stride {axis.stride}, padding {axis.lo}+{axis.hi}, dilation {axis.rhs_dilation}, lhs_dilation "
            f"{axis.lhs_dilation}"
        )
    before, after = axis.window - 1 - axis.lo, axis.window - 1 - axis.hi
    less = " less output_padding" if before != after else ""
    return f"stride {axis.lhs_dilation}, padding {before}+{after}{less}, dilation {axis.rhs_dilation}"


def _too_long(axis: Axis, direction: str, size: str, taps: str, transposed: bool) -> GeometryError:
    spread = "use a smaller stride" if transposed else "spread it less"
    lengths = {
        f"padded input {direction} {axis.padded:,}": (axis.padded, "take off more" if transposed else "pad less"),
        f"input {direction} {axis.dilated:,} with zeros between {size}={axis.size}": (axis.dilated, spread),
        f"window {axis.window:,} of {taps}={axis.taps}": (axis.window, "dilate the filter less"),
    }
    what, remedy = next((text, remedy) for text, (length, remedy) in lengths.items() if length > EXTENT_MAX)
    return GeometryError(
        f"{size}={axis.size}, {_numbers(axis, transposed)}: {what} must be at most {EXTENT_MAX:,} (32-bit ints); "
        f"{remedy}"
    )


def _no_output(axis: Axis, out: str, direction: str, size: str, taps: str, transposed: bool) -> GeometryError:
    spread = "" if axis.lhs_dilation == 1 else f" spread to {axis.dilated} by lhs_dilation {axis.lhs_dilation}"
    fits_uncropped = axis.window <= max(axis.lo, 0) + axis.dilated + max(axis.hi, 0)
    remedy = "crop less" if fits_uncropped else "pad the input or shorten the filter"
    text = (
        f"{out}={axis.out}: output {direction} must be at least 1 ({size}={axis.size}{spread} + pad {axis.lo}+{axis.hi}"
        f", window {axis.window} = dilation {axis.rhs_dilation}*({taps}-1)+1); {remedy}"
    )
    return GeometryError(in_words_of(transposed, text))


def takes_all(
    fields: dict[str, Any], stride: Any, padding: Any, output_padding: Any, dilation: Any, taps: Any
) -> Iterator[NkiconvError]:
    """Errors of padding that leaves nothing of a transposed convolution's result; see `ConvProblem.transpose`."""
    letters = zip("DHW"[-len(taps) :], "TRS"[-len(taps) :], "ZPQ"[-len(taps) :], strict=True)
    per_axis = zip(stride, padding, output_padding, dilation, taps, strict=True)
    for (size, tap, out), (step, (before, after), more, apart, count) in zip(letters, per_axis, strict=True):
        extent = fields.get(size, 1)
        whole = (extent - 1) * step + (count - 1) * apart + 1 + more
        if whole >= 1 and whole - before - after < 1:
            yield GeometryError(
                f"{out}={whole - before - after}: padding {before}+{after} takes off all {whole} outputs "
                f"(({size}={extent} - 1) * stride {step} + dilation {apart} * ({tap}={count} - 1) + 1 + output_padding "
                f"{more}); use less padding"
            )


#: What tuples hold, by how many axes there are.
_PLACES = {2: "(height, width)", 3: "(depth, height, width)"}
_SIDES = {2: "((top, bottom), (left, right))", 3: "((front, back), (top, bottom), (left, right))"}


def places_rule(name: str, value: Any, rank: int) -> Iterator[NkiconvError]:
    """Errors of what is no tuple of an int of at least 1 for each axis."""
    if not _are_ints(value, rank):
        yield _not_a_tuple(name, value, f"{rank} ints {_PLACES[rank]}", str((1,) * rank))
    elif min(value) < 1:
        every = "both" if rank == 2 else "all"
        yield GeometryError(f"{name}={value}: {every} must be at least 1 (1 means none); use {(1,) * rank} or more")
    elif max(value) > EXTENT_MAX:
        yield GeometryError(f"{name}={value}: must be at most {EXTENT_MAX:,} (32-bit ints); use smaller ones")


def padding_rule(name: str, value: Any, rank: int) -> Iterator[NkiconvError]:
    """Errors of what is no tuple of a pair of ints for each axis."""
    if not (type(value) is tuple and len(value) == rank and all(_are_ints(one, 2) for one in value)):
        yield _not_a_tuple(name, value, f"{rank} tuples of 2 ints {_SIDES[rank]}", str(((0, 0),) * rank))
    elif max(abs(one) for pair in value for one in pair) > EXTENT_MAX:
        yield GeometryError(f"{name}={value}: must be at most {EXTENT_MAX:,} (32-bit ints); pad or crop less")


def _are_ints(value: Any, count: int) -> bool:
    return type(value) is tuple and len(value) == count and all(type(item) is int for item in value)


def _not_a_tuple(name: str, value: Any, wanted: str, example: str) -> GeometryError:
    if _has_list(value):
        return GeometryError(f"{name}={value!r}: must be {wanted}; write a tuple, NKI kernels cannot take lists")
    return GeometryError(f"{name}={value!r}: must be a tuple of {wanted}; write it as {example}")


def _has_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, tuple) and any(map(_has_list, value)))
