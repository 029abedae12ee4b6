"""What is convolved with what: `ConvProblem`, checked when it is made, and everything that follows from it.

    y[n, k, p, q] = sum over c, r, s of
        w[k, c, r, s] * x_pad[n, g*C/groups + c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w]

where g = k // (K/groups) and x_pad is x with lhs_dilation - 1 zeros between neighbours and then the padding around it.
These are the semantics of XLA's ConvGeneralDilated: cross-correlation, and negative padding crops.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nkiconv.errors import DtypeError, GeometryError, LayoutError, NkiconvError, raise_all

#: Data types that the kernels read and write, by nkiconv's name.
DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

#: What to do with float8_e4m3fn: its bits are those of NKI's float8_e4m3 up to 240, where that has infinities.
E4M3FN_REMEDY = (
    "scale by a power of 2 so that no magnitude is above 240 (float8_e4m3fn goes up to 448), cast with "
    ".astype(ml_dtypes.float8_e4m3), and scale the result back"
)

#: Orders of the axes of x and y in memory, outermost first; the order of y has K for C, P for H, Q for W.
LAYOUTS = ("NCHW", "NHWC")

#: Bytes of HBM that a logical core of trn2 has: one of the chip's four banks, with two physical cores (AWS Neuron docs,
#: Logical NeuronCore configuration). What does not fit is no problem of one launch.
HBM_BYTES = 24 << 30
#: Of every extent, so that its bytes fit 32-bit counts of elements.
EXTENT_MAX = 2**31 - 1

#: What each extent counts.
_COUNTS = {
    "N": "images",
    "C": "input channels",
    "H": "input rows",
    "W": "input columns",
    "K": "output channels",
    "R": "filter rows",
    "S": "filter columns",
    "groups": "channel groups",
}


def dtype_name(dtype: Any) -> str:
    """Return nkiconv's name of a data type, as in "bf16".

    Args:
        dtype: a key of `DTYPES` or NumPy's name of it ("bfloat16"), in any case, or a NumPy or ml_dtypes type.

    Raises:
        DtypeError: it is none of `DTYPES`.
    """
    wanted = dtype.lower() if isinstance(dtype, str) else _numpy_name(dtype)
    for name, known in DTYPES.items():
        if wanted in (name, known.name):
            return name
    if wanted in ("fp8_e4m3fn", "float8_e4m3fn"):
        raise DtypeError(f"dtype={dtype!r}: NKI's float8_e4m3 is another format; {E4M3FN_REMEDY}")
    raise DtypeError(f"dtype={dtype!r}: unknown (accepted are {', '.join(DTYPES)}); cast to one of these")


def _numpy_name(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return ""


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution, in elements; the only place that knows the formula of P and Q."""

    size: int  # H or W
    taps: int  # R or S
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
        """P or Q: how many places the window has; below 1 if it has none."""
        return (self.padded - self.window) // self.stride + 1


@dataclass(frozen=True, kw_only=True)
class ConvProblem:
    """A convolution, described once: extents as counts, pairs as (height, width).

    Raises:
        GeometryError, DtypeError, LayoutError: the fields contradict a rule. The message lists every violation; the
            class is that of the first.
    """

    N: int  # images
    C: int  # input channels
    W: int  # input columns
    S: int  # filter columns
    H: int = 1  # input rows
    K: int = None  # type: ignore[assignment]  # output channels; None is replaced by C, so a reader always sees an int
    R: int = 1  # filter rows
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))  # ((top, bottom), (left, right)), < 0 crops
    rhs_dilation: tuple[int, int] = (1, 1)  # distance of neighbouring taps
    lhs_dilation: tuple[int, int] = (1, 1)  # distance of neighbouring inputs, before padding
    groups: int = 1
    dtype: str = "bf16"  # of x, w and (see out_dtype) y; anything that `dtype_name` takes, stored by its short name
    layout: str = "NCHW"  # of x and y, one of `LAYOUTS`

    def __post_init__(self) -> None:
        """Fill in K, normalise dtype and refuse what cannot be."""
        raise_all("ConvProblem cannot be built", list(_violations(self)))
        object.__setattr__(self, "K", _output_channels(self))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def height(self) -> Axis:
        """The axis of H, R and P."""
        return self._axis(0, self.H, self.R)

    @property
    def width(self) -> Axis:
        """The axis of W, S and Q."""
        return self._axis(1, self.W, self.S)

    def _axis(self, i: int, size: int, taps: int) -> Axis:
        lo, hi = self.padding[i]
        return Axis(size, taps, self.stride[i], lo, hi, self.rhs_dilation[i], self.lhs_dilation[i])

    @property
    def P(self) -> int:
        """Output rows."""
        return self.height.out

    @property
    def Q(self) -> int:
        """Output columns."""
        return self.width.out

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel reads the input channel of its own number and no other."""
        return self.groups == self.C == self.K

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """Shape of x in memory: [N, C, H, W] or, for layout NHWC, [N, H, W, C]."""
        return self._in_layout(self.C, self.H, self.W)

    @property
    def filter_shape(self) -> tuple[int, int, int, int]:
        """Canonical shape of w, whatever the layout: [K, C/groups, R, S]."""
        return (self.K, self.C // self.groups, self.R, self.S)

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape of y in memory: [N, K, P, Q] or, for layout NHWC, [N, P, Q, K]."""
        return self._in_layout(self.K, self.P, self.Q)

    def _in_layout(self, channels: int, rows: int, columns: int) -> tuple[int, int, int, int]:
        if self.layout == "NCHW":
            return (self.N, channels, rows, columns)
        return (self.N, rows, columns, channels)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of x or w."""
        return DTYPES[self.dtype].itemsize

    @property
    def out_dtype(self) -> str:
        """Of y where a call asks for none: dtype, but bf16 for fp8, as sums hardly fit its 2 or 3 bits."""
        return "bf16" if self.dtype.startswith("fp8") else self.dtype

    @property
    def flops(self) -> int:
        """Multiplications and additions of the definition, those with padding and dilation zeros included."""
        return 2 * math.prod(self.output_shape) * math.prod(self.filter_shape[1:])

    @property
    def min_bytes(self) -> int:
        """Bytes moved if x and w are read once and y is written once."""
        inputs = self.itemsize * (math.prod(self.input_shape) + math.prod(self.filter_shape))
        return inputs + DTYPES[self.out_dtype].itemsize * math.prod(self.output_shape)

    def memory_violations(self) -> Iterator[NkiconvError]:
        """An error where x, w and y do not fit the HBM of one logical core, as they must for one launch."""
        if self.min_bytes > HBM_BYTES:
            extents = " ".join(f"{name}={getattr(self, name)}" for name in ("N", "C", "H", "W", "K", "P", "Q"))
            yield GeometryError(
                f"{extents}: x, w and y take {self.min_bytes / 2**30:,.0f} GiB, a logical core's HBM holds "
                f"{HBM_BYTES >> 30}; split the problem"
            )

    def replace(self, **changes: Any) -> ConvProblem:
        """Return this problem with some fields changed; K keeps its value when only C changes.

        Raises:
            GeometryError, DtypeError, LayoutError: as the constructor.
            TypeError: a name is not a field.
        """
        return dataclasses.replace(self, **changes)


def _output_channels(problem: ConvProblem) -> int:
    return problem.C if problem.K is None else problem.K


def _violations(problem: ConvProblem) -> Iterator[NkiconvError]:
    """Yield an error for each violated rule; a rule over several fields is left out where one of them is malformed."""
    malformed = set()
    for name, check in _FIELD_CHECKS.items():
        for error in check(name, getattr(problem, name)):
            malformed.add(name)
            yield error
    for fields, rule in _JOINT_CHECKS:
        if malformed.isdisjoint(fields):
            yield from rule(problem)


def _extent(name: str, value: Any) -> Iterator[NkiconvError]:
    if type(value) is not int:
        kind = type(value).__name__
        yield GeometryError(f"{name}={value!r}: must be an int, not {kind} (it counts {_COUNTS[name]}); pass an int")
    elif value < 1:
        yield GeometryError(f"{name}={value}: must be at least 1 (it counts {_COUNTS[name]}); pass a positive int")
    elif value > EXTENT_MAX:
        yield GeometryError(
            f"{name}={value}: must be at most {EXTENT_MAX:,} (extents are 32-bit ints); split the problem"
        )


def _optional_extent(name: str, value: Any) -> Iterator[NkiconvError]:
    if value is not None:
        yield from _extent(name, value)


def _pair(name: str, value: Any) -> Iterator[NkiconvError]:
    if not _is_int_pair(value):
        yield _not_a_tuple(name, value, "2 ints (height, width)", "(1, 1)")
    elif min(value) < 1:
        yield GeometryError(f"{name}={value}: both must be at least 1 (1 means none); use (1, 1) or more")


def _padding(name: str, value: Any) -> Iterator[NkiconvError]:
    if not (type(value) is tuple and len(value) == 2 and all(map(_is_int_pair, value))):
        yield _not_a_tuple(name, value, "2 tuples of 2 ints ((top, bottom), (left, right))", "((0, 0), (0, 0))")


def _is_int_pair(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and all(type(item) is int for item in value)


def _not_a_tuple(name: str, value: Any, wanted: str, example: str) -> GeometryError:
    if _has_list(value):
        return GeometryError(f"{name}={value!r}: must be {wanted}; write a tuple, NKI kernels cannot take lists")
    return GeometryError(f"{name}={value!r}: must be a tuple of {wanted}; write it as {example}")


def _has_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, tuple) and any(map(_has_list, value)))


def _dtype(_name: str, value: Any) -> Iterator[NkiconvError]:
    try:
        dtype_name(value)
    except DtypeError as error:
        yield error


def _layout(name: str, value: Any) -> Iterator[NkiconvError]:
    if value not in LAYOUTS:
        yield LayoutError(f"{name}={value!r}: unknown (accepted are {', '.join(LAYOUTS)}); transpose x to one of these")


def _groups(problem: ConvProblem) -> Iterator[NkiconvError]:
    groups, C, K = problem.groups, problem.C, _output_channels(problem)
    common = math.gcd(C, K)
    if common % groups:
        yield GeometryError(
            f"groups={groups}: must divide C={C} and K={K} (a group has C/groups inputs and K/groups outputs); "
            f"use {_first_divisors(common)}"
        )


def _first_divisors(n: int, count: int = 3) -> str:
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return ", ".join(map(str, divisors[:count])) + (", ..." if len(divisors) > count else "")


def _output_rows(problem: ConvProblem) -> Iterator[NkiconvError]:
    if problem.P < 1:
        yield _no_output(problem.height, "P", "height", "H", "R")


def _output_columns(problem: ConvProblem) -> Iterator[NkiconvError]:
    if problem.Q < 1:
        yield _no_output(problem.width, "Q", "width", "W", "S")


def _no_output(axis: Axis, out: str, direction: str, size: str, taps: str) -> GeometryError:
    spread = "" if axis.lhs_dilation == 1 else f" spread to {axis.dilated} by lhs_dilation {axis.lhs_dilation}"
    fits_uncropped = axis.window <= max(axis.lo, 0) + axis.dilated + max(axis.hi, 0)
    remedy = "crop less" if fits_uncropped else "pad the input or shorten the filter"
    return GeometryError(
        f"{out}={axis.out}: output {direction} must be at least 1 ({size}={axis.size}{spread} + pad {axis.lo}+{axis.hi}"
        f", window {axis.window} = dilation {axis.rhs_dilation}*({taps}-1)+1); {remedy}"
    )


_FIELD_CHECKS: dict[str, Callable[[str, Any], Iterator[NkiconvError]]] = {
    **dict.fromkeys(_COUNTS, _extent),
    "K": _optional_extent,
    "stride": _pair,
    "padding": _padding,
    "rhs_dilation": _pair,
    "lhs_dilation": _pair,
    "dtype": _dtype,
    "layout": _layout,
}

_PER_AXIS = {"stride", "padding", "rhs_dilation", "lhs_dilation"}

#: The fields that a rule reads, and the rule.
_JOINT_CHECKS: list[tuple[set[str], Callable[[ConvProblem], Iterator[NkiconvError]]]] = [
    ({"C", "K", "groups"}, _groups),
    ({"H", "R"} | _PER_AXIS, _output_rows),
    ({"W", "S"} | _PER_AXIS, _output_columns),
]
