"""What calls of conv2d and conv3d convolve: arrays and numbers, checked, as a ConvProblem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..axis import same_padding
from ..errors import GeometryError, LayoutError, NkiconvError, raise_all
from ..planner.conv import X_PERMS, precision_violations
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations
from ..planner.request import CONV2D_DTYPES, FILTER_LAYOUTS, FILTER_PERMS, VOLUME_FILTER_LAYOUTS, Config
from ..problem import LAYOUTS, VOLUME_LAYOUTS, ConvProblem, dtype_name
from .calls import (
    Pair,
    Places,
    dtype_pair,
    is_pair,
    lnc_violations,
    one_array,
    per_axis,
    places_violations,
)
from .epilogue import Epilogue

_PADDING_NAMES = ("same", "valid")
#: The letters of y's axes for those of x.
OF_Y = str.maketrans("CDHW", "KZPQ")


@dataclass(frozen=True)
class Kind:
    """What differs between images and volumes."""

    name: str
    axes: int
    layouts: tuple[str, ...]
    filter_layouts: tuple[str, ...]
    #: pairs of padding, in words
    sides: str

    @property
    def cannot(self) -> str:
        """How a refusal begins."""
        return f"{self.name} cannot run this call"

    def packed_axes(self) -> str:
        """Axes of a packed filter."""
        return ", ".join(("K / kn", *self.filter_layouts[0][1:], "kn"))


IMAGES = Kind("conv2d", 2, LAYOUTS, tuple(FILTER_LAYOUTS), "((top, bottom), (left, right))")
VOLUMES = Kind(
    "conv3d", 3, VOLUME_LAYOUTS, tuple(VOLUME_FILTER_LAYOUTS), "((front, back), (top, bottom), (left, right))"
)


def checked_conv(
    kind: Kind,
    x: Any,
    w: Any,
    epilogue: Epilogue,
    *,
    layout: str,
    filter_layout: str,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    **geometry: Any,
) -> ConvProblem:
    """The problem of a call of which everything is checked; arguments and errors are its.

    geometry: stride, padding, dilation, lhs_dilation and groups.
    """
    operation = OPERATIONS[kind.name]
    arrays = list(array_violations(kind, x, w, layout, filter_layout, lnc))
    choice = choice_violations(operation.algorithms, algorithm, config)
    of_y = layout if layout in kind.layouts else kind.layouts[0]
    axes = {"bias": "K", "residual": ", ".join(of_y.translate(OF_Y))}
    raise_all(kind.cannot, [*arrays, *epilogue.violations(axes), *choice])
    problem = conv_problem(x, w, layout=layout, filter_layout=filter_layout, lnc=lnc, **geometry)
    raise_all(kind.cannot, [*result_violations(epilogue, problem), *problem.launch_violations()])
    asked = epilogue.asked(is_packed(kind, w), other_layout(kind, filter_layout))
    raise_all(kind.cannot, list(precision_violations(problem, asked)))
    raise_all(kind.cannot, list(choice_refusals(operation, problem, asked, algorithm, config, lnc)))
    return problem


def conv_problem(
    x: Any,
    w: Any,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    lhs_dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCHW",
    filter_layout: str = "KCRS",
    lnc: int = 2,
) -> ConvProblem:
    """The checked ConvProblem of a call of `conv2d`, or `conv3d` if the layout is of volumes; arguments and errors are
    its."""
    kind = VOLUMES if layout in VOLUME_LAYOUTS else IMAGES
    raise_all(kind.cannot, list(array_violations(kind, x, w, layout, filter_layout, lnc)))
    places = {"stride": stride, "dilation": dilation, "lhs_dilation": lhs_dilation}
    raise_all(kind.cannot, [*places_violations(places, kind.axes), *_group_violations(groups)])
    N, C, *sizes = (x.shape[axis] for axis in X_PERMS[layout])
    if is_packed(kind, w):
        blocks, inputs, *taps, each = w.shape
        K = blocks * each
    else:
        K, inputs, *taps = (w.shape[axis] for axis in FILTER_PERMS[filter_layout])
    check_channels(w.shape, inputs, C, groups, kind.filter_layouts[0], filter_layout)
    strides, dilations, spread = (per_axis(places[name], kind.axes) for name in places)
    axes = tuple(zip(sizes, taps, strides, dilations, strict=True))
    return ConvProblem(
        N=N,
        C=C,
        K=K,
        **dict(zip(kind.layouts[0][2:], sizes, strict=True)),
        **dict(zip(kind.filter_layouts[0][2:], taps, strict=True)),
        groups=groups,
        stride=strides,
        padding=_padding_pairs(kind, padding, axes, spread),
        rhs_dilation=dilations,
        lhs_dilation=spread,
        dtype=dtype_name(x.dtype),
        layout=layout,
    )


def check_channels(
    shape: tuple[int, ...], inputs: int, C: int, groups: int, letters: str, filter_layout: str | None
) -> None:
    """Raise GeometryError where filters of this shape, whose axes are `letters`, take other channels than x has."""
    if inputs * groups != C:
        raise GeometryError(
            f"w.shape={shape}: has {inputs} input channels per group, x has C={C} in groups={groups}; pass "
            f"[{filter_axes(letters)}] in the order of filter_layout={filter_layout!r}, or other groups"
        )


def other_layout(kind: Kind, filter_layout: str | None) -> str | None:
    """A filter's layout, None where it is the first."""
    return None if filter_layout == kind.filter_layouts[0] else filter_layout


def array_violations(kind: Kind, x: Any, w: Any, layout: Any, filter_layout: Any, lnc: Any) -> Iterator[NkiconvError]:
    """Errors of the arrays and their layouts: kind, rank, extents, dtypes."""
    for name, value, accepted in (
        ("layout", layout, kind.layouts),
        ("filter_layout", filter_layout, kind.filter_layouts),
    ):
        if value not in accepted:
            yield LayoutError(f"{name}={value!r}: accepted are {', '.join(accepted)}; transpose to one of these")
    of_x = layout if layout in kind.layouts else kind.layouts[0]
    of_w = filter_layout if filter_layout in kind.filter_layouts else kind.filter_layouts[0]
    found = [
        *one_array("x", x, ", ".join(of_x), CONV2D_DTYPES),
        *one_array("w", w, kind.packed_axes() if is_packed(kind, w) else filter_axes(of_w), CONV2D_DTYPES),
    ]
    yield from found
    if is_packed(kind, w) and filter_layout != kind.filter_layouts[0]:
        yield LayoutError(f"filter_layout={filter_layout!r}: w is packed, which has one order; drop it")
    if not found:
        yield from dtype_pair(x, w)
    yield from lnc_violations(lnc)


def is_packed(kind: Kind, w: Any) -> bool:
    """Whether a filter is one that `pack_filter` returned."""
    return len(getattr(w, "shape", ())) == kind.axes + 3


def filter_axes(filter_layout: str) -> str:
    """Letters of w's axes."""
    return ", ".join("C / groups" if letter == "C" else letter for letter in filter_layout)


def result_violations(epilogue: Epilogue, problem: ConvProblem) -> Iterator[NkiconvError]:
    """Errors of the epilogue's arrays against the problem."""
    residual = f"y's, in layout {problem.layout},", problem.output_shape
    yield from epilogue.shape_violations({"bias": ("[K]", (problem.K,)), "residual": residual})


def _group_violations(groups: Any) -> Iterator[NkiconvError]:
    if type(groups) is not int or groups < 1:
        yield GeometryError(f"groups={groups!r}: must be an int of at least 1 that divides C and K; pass one")


def _padding_pairs(
    kind: Kind, padding: Any, axes: tuple[tuple[int, int, int, int], ...], lhs_dilation: Places
) -> tuple[Pair, ...]:
    """Pairs of a padding argument; axes: (size, taps, stride, dilation) of each."""
    if type(padding) is int:
        return ((padding, padding),) * kind.axes
    if isinstance(padding, tuple) and len(padding) == kind.axes and all(map(is_pair, padding)):
        return padding
    if padding not in _PADDING_NAMES:
        listed = isinstance(padding, list) or (isinstance(padding, tuple) and any(isinstance(p, list) for p in padding))
        remedy = "write tuples, NKI kernels cannot take lists" if listed else "use one of these"
        raise GeometryError(
            f"padding={padding!r}: must be an int, {kind.sides} of ints, or one of {', '.join(_PADDING_NAMES)}; "
            f"{remedy}"
        )
    if padding == "valid":
        return ((0, 0),) * kind.axes
    if lhs_dilation != (1,) * kind.axes:
        raise GeometryError(f"padding={padding!r}: is not defined with lhs_dilation={lhs_dilation}; give {kind.sides}")
    return tuple(same_padding(*one) for one in axes)
