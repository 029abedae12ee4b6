"""`ConvProblem`: one convolution's shapes, dtype and layout, checked when it is made, and everything that follows.

    y[n, k, p, q] = sum over c, r, s of
        w[k, c, r, s] * x_pad[n, g*C/groups + c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w]

where g = k // (K/groups) and x_pad is x with lhs_dilation - 1 zeros between neighbours and then the padding around it.
These are the semantics of XLA's ConvGeneralDilated: cross-correlation, and negative padding crops. Volumes have one
more axis before the rows, with D input planes, T filter planes and Z output planes. Transposed convolutions have
lhs_dilation and a filter stored in torch's order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nkiconv import rules
from nkiconv.axis import Axis
from nkiconv.dgrad import is_dgrad_transposed
from nkiconv.errors import (
    DtypeError,
    GeometryError,
    LayoutError,
    NkiconvError,
    UnsupportedError,
    is_array,
    raise_all,
    refuse,
    refused,
    shown,
)
from nkiconv.integers import plain_ints, takes_ints
from nkiconv.rules import DIRECTIONS, LAYOUTS, VOLUME_LAYOUTS

#: Data types that the kernels read and write, by nkiconv's name.
DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

#: Bytes of HBM of a logical core of trn2: one of the chip's four banks, with two physical cores (AWS Neuron docs,
#: Logical NeuronCore configuration). A problem of one launch must fit.
HBM_BYTES = 24 << 30

#: The unit of each extent.
_COUNTS = {
    "N": "images",
    "C": "input channels",
    "D": "input planes",
    "H": "input rows",
    "W": "input columns",
    "K": "output channels",
    "T": "filter planes",
    "R": "filter rows",
    "S": "filter columns",
    "groups": "channel groups",
}


def dtype_name(dtype: Any) -> str:
    """Return nkiconv's name of a data type, such as "bf16".

    Args:
        dtype: a key of `DTYPES` or NumPy's name of it ("bfloat16"), in any case, or a NumPy or ml_dtypes type.

    Raises:
        DtypeError: it is not one of `DTYPES`.
    """
    refuse(DtypeError, _dtype_refusal(dtype))
    return next(name for name, known in DTYPES.items() if _wanted(dtype) in (name, known.name))


def _dtype_refusal(dtype: Any) -> str:
    """Why this is no name of a data type; "" if it is."""
    wanted = _wanted(dtype)
    if any(wanted in (name, known.name) for name, known in DTYPES.items()):
        return ""
    if wanted in ("fp8_e4m3fn", "float8_e4m3fn"):
        return f"dtype={dtype!r}: NKI's float8_e4m3 is another format; {rules.E4M3FN_REMEDY}"
    return f"dtype={dtype!r}: accepted are {', '.join(DTYPES)}; cast to one of these"


def _wanted(dtype: Any) -> str:
    return dtype.lower() if isinstance(dtype, str) else _numpy_name(dtype)


def _numpy_name(dtype: Any) -> str:
    if isinstance(dtype, np.generic | np.ndarray):
        return ""  # NumPy reads an array as its own dtype
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return ""


@dataclass(frozen=True, kw_only=True)
class ConvProblem:
    """A convolution, described once: extents as counts, pairs as (height, width); with D, of volumes, triples as
    (depth, height, width).

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
    stride: tuple[int, ...] = None  # type: ignore[assignment]  # as all below, None is replaced: here by (1, 1)
    padding: tuple[tuple[int, int], ...] = None  # type: ignore[assignment]  # ((top, bottom), (left, right)), < 0 crops
    rhs_dilation: tuple[int, ...] = None  # type: ignore[assignment]  # distance of neighbouring taps
    lhs_dilation: tuple[int, ...] = None  # type: ignore[assignment]  # distance of neighbouring inputs, before padding
    groups: int = 1
    dtype: str = "bf16"  # of x, w and (see out_dtype) y; anything that `dtype_name` takes, stored by its short name
    layout: str = None  # type: ignore[assignment]  # of x and y, one of `LAYOUTS`, or `VOLUME_LAYOUTS`; the first
    D: int | None = None  # input planes of a volume; None: images, which have no such axis
    T: int | None = None  # filter planes of a volume; None is replaced by 1 there
    transposed: bool = False  # whether w is [C, K / groups, ...] with taps in reverse order; see `transpose`
    direction: str = "forward"  # compute y, or, with "wgrad", the gradient of w from x and the gradient of y

    def __post_init__(self) -> None:
        """Fill in defaults for None, normalise ints and dtype, and refuse invalid fields."""
        arrays = {name: shown(value) for name, value in vars(self).items() if is_array(value)}
        wrong = [
            GeometryError(f"{name}={text}: must be no array; pass ints and names") for name, text in arrays.items()
        ]
        raise_all("ConvProblem cannot be built", wrong)
        for name in (*_COUNTS, *_PER_AXIS):
            object.__setattr__(self, name, plain_ints(getattr(self, name)))
        filled = _filled(self)
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        raise_all("ConvProblem cannot be built", list(_violations(self, filled)))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def is_volume(self) -> bool:
        """Whether there is an axis of planes."""
        return self.D is not None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Spatial axes: rows and columns; in a volume planes first."""
        return (*((self.depth,) * self.is_volume), self.height, self.width)

    @property
    def depth(self) -> Axis:
        """The axis of D, T and Z; of images one plane that one tap sees."""
        return self._axis(0, self.D, self.T) if self.is_volume else Axis(1, 1, 1, 0, 0, 1, 1)

    @property
    def height(self) -> Axis:
        """The axis of H, R and P."""
        return self._axis(-2, self.H, self.R)

    @property
    def width(self) -> Axis:
        """The axis of W, S and Q."""
        return self._axis(-1, self.W, self.S)

    def _axis(self, i: int, size: Any, taps: Any) -> Axis:
        lo, hi = self.padding[i]
        return Axis(size, taps, self.stride[i], lo, hi, self.rhs_dilation[i], self.lhs_dilation[i])

    @property
    def Z(self) -> int:
        """Output planes, 1 of images."""
        return self.depth.out

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
    def input_shape(self) -> tuple[int, ...]:
        """Shape of x in memory: [N, C, H, W] or, for layout NHWC, [N, H, W, C]; of volumes with D before H."""
        return self._in_layout(self.C, tuple(axis.size for axis in self.axes))

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Canonical shape of w, for any layout: [K, C/groups, R, S], of volumes [K, C/groups, T, R, S]; of transposed
        convolutions [C, K/groups, ...]."""
        taps = (axis.taps for axis in self.axes)
        if self.transposed:
            return (self.C, self.K // self.groups, *taps)
        return (self.K, self.C // self.groups, *taps)

    @property
    def terms(self) -> int:
        """Products that are summed for one output, at most: C/groups * R * S, of volumes times T."""
        return self.C // self.groups * math.prod(axis.taps for axis in self.axes)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of y in memory: [N, K, P, Q] or, for layout NHWC, [N, P, Q, K]; of volumes with Z before P."""
        return self._in_layout(self.K, tuple(axis.out for axis in self.axes))

    def _in_layout(self, channels: int, extents: tuple[int, ...]) -> tuple[int, ...]:
        return (self.N, channels, *extents) if self.channels_first else (self.N, *extents, channels)

    @property
    def channels_first(self) -> bool:
        """Whether channels are outside rows in memory: layout NCHW or NCDHW."""
        return self.layout in (LAYOUTS[0], VOLUME_LAYOUTS[0])

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
        """Multiplications and additions of the definition, those with padding zeros included, but not those with the
        zeros that lhs_dilation puts between inputs."""
        return 2 * self.N * self.K * (self.C // self.groups) * math.prod(axis.products for axis in self.axes)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that are read, and written, at least: `held` once, but for pixels of x that no output meets."""
        return self._bytes(math.prod(axis.num_read for axis in self.axes))

    @property
    def held(self) -> tuple[int, int]:
        """(bytes read, bytes written): x and w, and y; for a filter gradient x and gy, and dw in fp32."""
        return self._bytes(math.prod(axis.size for axis in self.axes))

    @property
    def min_bytes(self) -> int:
        """Bytes moved at least."""
        return sum(self.moved)

    def _bytes(self, pixels: int) -> tuple[int, int]:
        x, w, y = self.N * self.C * pixels, math.prod(self.filter_shape), math.prod(self.output_shape)
        if self.direction == "wgrad":
            return self.itemsize * (x + y), DTYPES["fp32"].itemsize * w
        return self.itemsize * (x + w), DTYPES[self.out_dtype].itemsize * y

    def launch_violations(self) -> Iterator[NkiconvError]:
        """Errors of problems too large for a logical core's HBM, or almost only zeros (`Axis.is_blank`)."""
        yield from refused(GeometryError, *rules.blank("ZPQ"[-len(self.axes) :], self.axes, self.transposed))
        if sum(self.held) > HBM_BYTES:
            names = ("N", "C", *("D" * self.is_volume), "H", "W", "K", *("Z" * self.is_volume), "P", "Q")
            extents = " ".join(f"{name}={getattr(self, name)}" for name in names)
            yield GeometryError(
                f"{extents}: x, w and y take {sum(self.held) / 2**30:,.0f} GiB, a logical core's HBM holds "
                f"{HBM_BYTES >> 30}; split the problem"
            )

    @staticmethod
    @takes_ints
    def transpose(
        *,
        stride: tuple[int, ...],
        padding: tuple[tuple[int, int], ...],
        output_padding: tuple[int, ...],
        dilation: tuple[int, ...],
        taps: tuple[int, ...],
        **fields: Any,
    ) -> ConvProblem:
        """The transposed convolution that torch.nn.functional.conv_transpose2d or 3d computes: the convolution of x,
        with stride - 1 zeros between neighbours, with the reversed filter.

        Args:
            stride, padding, output_padding, dilation: torch's; padding in pairs, the elements cut off the result before
                and after each axis.
            taps: (R, S) or (T, R, S). fields: those of a ConvProblem without taps, stride, padding and dilations.

        Raises: as the constructor; GeometryError if padding cuts off all of the result.
        """
        fields = {name: plain_ints(value) for name, value in fields.items()}
        stride, padding, output_padding, dilation, taps = plain_ints((stride, padding, output_padding, dilation, taps))
        rank = len(taps)
        cannot = "ConvProblem.transpose cannot be built"
        named = (("stride", stride), ("dilation", dilation))
        raise_all(cannot, list(refused(GeometryError, *(rules.places(*one, rank, alone=False) for one in named))))
        around, left = [], []
        per_axis = zip(taps, stride, dilation, padding, output_padding, strict=True)
        letters = zip("ZPQ"[-rank:], "DHW"[-rank:], "TRS"[-rank:], strict=True)
        for names, (count, step, apart, sides, more) in zip(letters, per_axis, strict=True):
            window = (count - 1) * apart
            around.append((window - sides[0], window - sides[1] + more))
            size = fields.get(names[1], 1)
            left.append(rules.leaves_output("".join(names), size, step, sides, more, apart, count))
        raise_all(cannot, list(refused(GeometryError, *left)))
        fields |= zip("TRS"[-len(taps) :], taps, strict=True)
        return ConvProblem(
            **fields,
            padding=tuple(around),
            rhs_dilation=dilation,
            lhs_dilation=stride,
            transposed=True,
        )

    @takes_ints
    def toward(self, direction: str) -> ConvProblem:
        """The problem that computes y ("forward"), the gradient of x from y's ("dgrad"), or that of w ("wgrad").

        "dgrad" is the transposed convolution with the same w; for a problem with lhs_dilation it is a convolution with
        strides, whose w has taps reversed and channels exchanged. "wgrad" of a transposed convolution, and of one with
        lhs_dilation and no strides, is the filter gradient of its dgrad, with x and y exchanged.

        Raises UnsupportedError: another direction, or this is a gradient.
        """
        refuse(UnsupportedError, rules.accepted("direction", direction, DIRECTIONS))
        if direction == "forward":
            return self
        if self.direction != "forward":
            raise UnsupportedError(f"direction={direction!r}: the problem is a gradient itself; pass the convolution's")
        if direction == "dgrad":
            return self._dgrad()
        spread = max(self.lhs_dilation) > 1 and max(self.stride) == 1
        return (self._dgrad() if spread or self.transposed else self).replace(direction="wgrad")

    def _dgrad(self) -> ConvProblem:
        return self.replace(
            C=self.K,
            K=self.C,
            **dict(zip("DHW"[-len(self.axes) :], (axis.out for axis in self.axes), strict=True)),
            stride=self.lhs_dilation,
            lhs_dilation=self.stride,
            padding=tuple(axis.backwards for axis in self.axes),
            transposed=is_dgrad_transposed(self.lhs_dilation) and not self.transposed,
        )

    def replace(self, **changes: Any) -> ConvProblem:
        """Return this problem with some fields changed; K keeps its value when only C changes.

        Raises:
            GeometryError, DtypeError, LayoutError: as the constructor.
            TypeError: a name is not a field.
        """
        return dataclasses.replace(self, **changes)


def _filled(problem: ConvProblem) -> dict[str, Any]:
    """The fields that are None, as they are to be read."""
    rank, layouts = (3, VOLUME_LAYOUTS) if problem.is_volume else (2, LAYOUTS)
    values = dict.fromkeys(("stride", "rhs_dilation", "lhs_dilation"), (1,) * rank) | {
        "K": problem.C,
        "padding": ((0, 0),) * rank,
        "layout": layouts[0],
    }
    if problem.is_volume:
        values["T"] = 1
    return {name: value for name, value in values.items() if getattr(problem, name) is None}


def _violations(problem: ConvProblem, filled: Iterable[str]) -> Iterator[NkiconvError]:
    """Yield an error for each violated rule; a rule over several fields is left out where one of them is malformed.

    filled: fields that nobody gave.
    """
    malformed = set()
    if problem.T is not None and not problem.is_volume:
        yield GeometryError(f"T={problem.T!r}: filter planes need input planes; give D, or drop T")
    for name, (kind, rule) in _FIELD_RULES.items():
        if name in filled or (name in ("D", "T") and not problem.is_volume):
            continue
        for error in refused(kind, rule(name, getattr(problem, name), 3 if problem.is_volume else 2)):
            malformed.add(name)
            yield error
    for fields, check in _JOINT_CHECKS:
        if malformed.isdisjoint(fields):
            yield from check(problem)


def _plain_wgrad(problem: ConvProblem) -> Iterator[NkiconvError]:
    if problem.direction == "wgrad" and problem.transposed:
        yield UnsupportedError(
            "direction='wgrad', transposed=True: the filter gradient of a transposed convolution is its dgrad's; use "
            "toward()"
        )


def _no_stride(problem: ConvProblem) -> Iterator[NkiconvError]:
    if problem.transposed and max(problem.stride) > 1:
        yield GeometryError(
            f"stride={problem.stride}: must be 1 with transposed=True, where lhs_dilation is what torch calls stride; "
            f"use ConvProblem.transpose"
        )


def _groups(problem: ConvProblem) -> Iterator[NkiconvError]:
    yield from refused(GeometryError, rules.divides("groups", problem.groups, C=problem.C, K=problem.K))


def _output(direction: str, letters: str) -> Callable[[ConvProblem], Iterator[NkiconvError]]:
    return lambda one: refused(GeometryError, rules.output(getattr(one, direction), letters, one.transposed))


def _kind_of_problem(name: str, value: Any) -> str:
    if value in ("forward", "wgrad"):
        return ""
    return f"{name}={value!r}: must be 'forward' or 'wgrad', as a dgrad is a convolution itself; use toward()"


_Rule = Callable[[str, Any, int], str]

#: The rule of each field, of its name, its value and the number of axes, and the class of its error.
_FIELD_RULES: dict[str, tuple[type[NkiconvError], _Rule]] = {
    **dict.fromkeys(
        _COUNTS, (GeometryError, lambda name, value, _: rules.number(name, value, f" (it counts {_COUNTS[name]})"))
    ),
    **dict.fromkeys(
        ("stride", "rhs_dilation", "lhs_dilation"),
        (GeometryError, lambda name, value, axes: rules.places(name, value, axes, alone=False)),
    ),
    "padding": (GeometryError, lambda _, value, axes: rules.padding(value, axes, alone=False)),
    "dtype": (DtypeError, lambda _, value, __: _dtype_refusal(value)),
    "layout": (
        LayoutError,
        lambda name, value, axes: rules.layout(name, value, LAYOUTS if axes == 2 else VOLUME_LAYOUTS),
    ),
    "transposed": (GeometryError, lambda name, value, _: rules.flag(name, value)),
    "direction": (UnsupportedError, lambda name, value, _: _kind_of_problem(name, value)),
}

_PER_AXIS = {"stride", "padding", "rhs_dilation", "lhs_dilation"}

#: The fields that a rule reads, and the rule.
_JOINT_CHECKS: list[tuple[set[str], Callable[[ConvProblem], Iterator[NkiconvError]]]] = [
    ({"C", "K", "groups"}, _groups),
    ({"stride", "transposed"}, _no_stride),
    ({"transposed", "direction"}, _plain_wgrad),
    ({"D", "T"} | _PER_AXIS, _output("depth", "ZDT")),
    ({"H", "R"} | _PER_AXIS, _output("height", "PHR")),
    ({"W", "S"} | _PER_AXIS, _output("width", "QWS")),
]
