"""The ConvProblem of a call with arrays: arrays and numbers, checked by `rules`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import pixel_norms, rules
from ..axis import padding_pairs
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all, refuse, refused
from ..planner.conv import LEAST_BLOCK, norm_violations, precision_violations
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations
from ..planner.request import Config
from ..problem import ConvProblem, dtype_name
from ..reference import AnyArray
from ..rules import (
    CONV2D_DTYPES,
    FILTER_LAYOUTS,
    LAYOUTS,
    PADDINGS,
    VOLUME_FILTER_LAYOUTS,
    VOLUME_LAYOUTS,
)
from .calls import Places, one_array, per_axis, shape_of
from .epilogue import Epilogue

#: The letters of y's axes for those of x.
_OF_Y = str.maketrans("CDHW", "KZPQ")
#: Orders of rows in memory, and conv2d's name of each with an axis of height 1 put in.
LAYOUTS_1D = {"NCW": "NCHW", "NWC": "NHWC"}
FILTER_LAYOUTS_1D = {"KCS": "KCRS", "SCK": "RSCK", "KSC": "KRSC"}


@dataclass(frozen=True)
class Kind:
    """Differences between functions of arrays: the values that each takes for their common arguments."""

    name: str
    axes: int
    layouts: tuple[str, ...]
    filter_layouts: tuple[str, ...]
    #: paddings by name, and whether a number an axis is one
    paddings: tuple[str, ...] = PADDINGS[:2]
    each: bool = False
    transposed: bool = False
    #: axes of w where it has one order
    filter_letters: str = ""
    dtypes: tuple[str, ...] = CONV2D_DTYPES
    #: the argument with w's dtype
    w: str = "w"
    #: letters of the axes of x and w that may be 0
    empty: str = "N"

    @property
    def cannot(self) -> str:
        """How a refusal begins."""
        return f"{self.name} cannot run this call"

    @property
    def operation(self) -> str:
        """The planner's: a row is an image of height 1."""
        return self.name.replace("1d", "2d") if self.axes == 1 else self.name

    def places(self, layout: str) -> tuple[int, ...]:
        """Where N, C and the extents are in a layout."""
        return tuple(map(layout.index, self.layouts[0]))

    def filter_places(self, filter_layout: str | None) -> tuple[int, ...]:
        """Where K, C / groups and the taps are in an order of w, None for the first."""
        return tuple(map((filter_layout or self.filter_layouts[0]).index, self.filter_layouts[0]))

    def shape_of_y(self, problem: ConvProblem, layout: str) -> tuple[int, ...]:
        """In a layout; of rows without the height."""
        shape, axis = problem.output_shape, layout.index("W")
        return shape if self.axes > 1 else shape[:axis] + shape[axis + 1 :]

    def filter_axes(self, filter_layout: Any = None) -> str:
        """Axes of w in an order, or in the first."""
        order = filter_layout if filter_layout in self.filter_layouts else "".join(self.filter_layouts[:1])
        return self.filter_letters or filter_axes(order)

    def axes_of_y(self, layout: Any) -> str:
        """Axes of y in a layout, or in the first."""
        return ", ".join((layout if layout in self.layouts else self.layouts[0]).translate(_OF_Y))

    def packed_axes(self) -> str:
        """Axes of a packed filter."""
        return ", ".join(("K / kn", *self.filter_layouts[0][1:], "kn"))


IMAGES = Kind("conv2d", 2, LAYOUTS, tuple(FILTER_LAYOUTS))
VOLUMES = Kind("conv3d", 3, VOLUME_LAYOUTS, tuple(VOLUME_FILTER_LAYOUTS))
ROWS = Kind("conv1d", 1, tuple(LAYOUTS_1D), tuple(FILTER_LAYOUTS_1D), PADDINGS, empty="NC")
#: Transposed convolutions, by how many axes there are.
TRANSPOSED = {
    one.axes: Kind(
        f"conv_transpose{one.axes}d", one.axes, one.layouts, (), (), each=True, transposed=True,
        filter_letters=", ".join(("C, K / groups", *one.filter_layouts[0][2:])),
    )
    for one in (ROWS, IMAGES, VOLUMES)
}  # fmt: skip


def checked_conv(
    kind: Kind,
    x: Any,
    w: Any,
    epilogue: Epilogue,
    *,
    layout: str,
    filter_layout: str | None = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    **geometry: Any,
) -> ConvProblem:
    """The problem of a call, all checked; arguments and errors are the call's.

    geometry: stride, padding, dilation and groups, lhs_dilation or output_padding.
    """
    operation = OPERATIONS[kind.operation]
    wrong = [
        *array_violations(kind, x, w, layout, filter_layout, lnc),
        *epilogue.violations(
            {**dict.fromkeys(("bias", *pixel_norms.OF_CHANNELS), "K"), "residual": kind.axes_of_y(layout)}
        ),
        *choice_violations(operation.algorithms, algorithm, config),
        *number_violations(kind, **geometry),
    ]
    raise_all(kind.cannot, wrong)
    problem = problem_of(kind, x, w, layout=layout, filter_layout=filter_layout, **geometry)
    residual = f"y's in layout {layout}", kind.shape_of_y(problem, layout)
    of_channels = dict.fromkeys(("bias", *pixel_norms.OF_CHANNELS), ("[K]", (problem.K,)))
    wrong = [*epilogue.shape_violations({**of_channels, "residual": residual})]
    wrong += epilogue.number_violations(problem.N, problem.C)
    asked = epilogue.asked(is_packed(kind, w), other_layout(kind, filter_layout))
    if asked.has_prologue:
        wrong += refused(DtypeError, rules.prologue_fits(problem.dtype, "x"))
    raise_all(kind.cannot, [*wrong, *problem.launch_violations()])
    raise_all(kind.cannot, [*precision_violations(problem, asked), *norm_violations(problem, asked)])
    raise_all(kind.cannot, choice_refusals(operation, problem, asked, algorithm, config, lnc))
    return problem


def conv_problem(
    x: Any, w: Any, *, layout: str = "NCHW", filter_layout: str = "KCRS", lnc: int = 2, **geometry: Any
) -> ConvProblem:
    """The checked ConvProblem of a call of `conv2d`, or `conv3d` if the layout is of volumes; arguments and errors are
    its."""
    kind = VOLUMES if layout in VOLUME_LAYOUTS else IMAGES
    wrong = [*array_violations(kind, x, w, layout, filter_layout, lnc), *number_violations(kind, **geometry)]
    raise_all(kind.cannot, wrong)
    return problem_of(kind, x, w, layout=layout, filter_layout=filter_layout, **geometry)


def problem_of(
    kind: Kind,
    x: Any,
    w: Any,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    lhs_dilation: int | Places = 1,
    output_padding: int | Places = 0,
    groups: int = 1,
    layout: str,
    filter_layout: str | None = None,
) -> ConvProblem:
    """The ConvProblem of rows, images or volumes and numbers that are checked, each by itself.

    Raises: GeometryError: they do not go together.
    """
    N, C, *sizes = (x.shape[axis] for axis in kind.places(layout))
    if kind.transposed:
        inputs, each, *taps = w.shape
        K = each * groups
    elif is_packed(kind, w):
        blocks, inputs, *taps, each = w.shape
        K = blocks * each
    else:
        K, inputs, *taps = (w.shape[axis] for axis in kind.filter_places(filter_layout))
    said = "" if kind.transposed else f" in the order of filter_layout={filter_layout or kind.filter_layouts[0]!r}"
    refuse(GeometryError, rules.filter_channels(w.shape, inputs, C, groups, transposed=kind.transposed, order=said))
    letters = kind.layouts[0][2:]
    strides, dilations = per_axis(stride, kind.axes), per_axis(dilation, kind.axes)
    pairs = padding_pairs(padding, tuple(zip(sizes, taps, strides, dilations, strict=True)))
    fields = dict(zip(letters, sizes, strict=True)) | {"N": N, "C": C, "K": K, "groups": groups}
    fields |= {"dtype": dtype_name(x.dtype), "layout": LAYOUTS_1D.get(layout, layout)}

    def with_height(values: tuple[Any, ...], height: Any = 1) -> tuple[Any, ...]:
        return (height, *values) if kind.axes == 1 else values

    fields |= {"padding": with_height(pairs, (0, 0)), "stride": with_height(strides)}
    if kind.transposed:
        more = with_height(per_axis(output_padding, kind.axes), 0)
        return ConvProblem.transpose(
            **fields, output_padding=more, dilation=with_height(dilations), taps=with_height(tuple(taps))
        )
    fields |= zip("TRS"[-kind.axes :], taps, strict=True)
    spread = with_height(per_axis(lhs_dilation, kind.axes))
    return ConvProblem(**fields, rhs_dilation=with_height(dilations), lhs_dilation=spread)


def as_images(
    kind: Kind, x: AnyArray, w: AnyArray, epilogue: Epilogue, layout: str, filter_layout: str | None
) -> tuple[Any, Any, Epilogue]:
    """x, w and an epilogue; those of rows with an axis of height 1."""
    if kind.axes > 1:
        return x, w, epilogue
    height, residual = layout.index("W"), epilogue.residual
    if residual is not None:
        epilogue = dataclasses.replace(epilogue, residual=np.expand_dims(residual, height))
    return np.expand_dims(x, height), np.expand_dims(w, (filter_layout or "KCS").index("S")), epilogue


def as_rows(kind: Kind, y: Any, layout: str) -> Any:
    """A call's results, y alone or first; that of rows without the axis of height 1."""
    if kind.axes > 1:
        return y
    return (as_rows(kind, y[0], layout), *y[1:]) if isinstance(y, tuple) else y.squeeze(layout.index("W"))


def check_numbers(kind: Kind, x: Any, layout: str, epilogue: Epilogue) -> None:
    """Check x_scale and x_shift; x's rank and layout are checked elsewhere."""
    if layout in kind.layouts and x.ndim == kind.axes + 2:
        N, C = (x.shape[axis] for axis in kind.places(layout)[:2])
        raise_all(kind.cannot, [*epilogue.violations({}), *epilogue.number_violations(N, C)])


def other_layout(kind: Kind, filter_layout: str | None) -> str | None:
    """The planner's name of a filter's layout, None for the first."""
    if filter_layout is None or filter_layout in kind.filter_layouts[:1]:
        return None
    return FILTER_LAYOUTS_1D.get(filter_layout, filter_layout)


def array_violations(
    kind: Kind, x: Any, w: Any, layout: Any, filter_layout: Any = None, lnc: Any = 2
) -> Iterator[NkiconvError]:
    """Errors of the arrays and their layouts: kind, rank, extents, dtypes."""
    yield from refused(LayoutError, rules.layout("layout", layout, kind.layouts))
    if kind.filter_layouts:
        yield from refused(LayoutError, rules.layout("filter_layout", filter_layout, kind.filter_layouts))
    of_x = layout if layout in kind.layouts else kind.layouts[0]
    packed = is_packed(kind, w)
    of_w = kind.packed_axes() if packed else kind.filter_axes(filter_layout)
    found = [
        *one_array("x", x, ", ".join(of_x), kind.dtypes, kind.empty),
        *one_array(kind.w, w, of_w, kind.dtypes, kind.empty),
    ]
    yield from found
    if packed and filter_layout != kind.filter_layouts[0]:
        yield LayoutError(f"filter_layout={filter_layout!r}: w is packed, which has one order; drop it")
    elif packed and not found and w.shape[-1] < min(w.shape[0] * w.shape[-1], LEAST_BLOCK):  # perhaps of volumes
        yield LayoutError(
            f"w.shape={w.shape}: {w.ndim} axes are those of a packed filter, and pack_filter makes no blocks of "
            f"{w.shape[-1]}; pass [{kind.filter_axes(filter_layout)}], or what pack_filter returned"
        )
    if not found:
        yield from refused(DtypeError, rules.dtypes_together(x.dtype, w.dtype, ("x", kind.w)))
    yield from refused(UnsupportedError, rules.lnc(lnc))


def number_violations(
    kind: Kind,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    lhs_dilation: Any = 1,
    output_padding: Any = 0,
    groups: Any = 1,
) -> Iterator[NkiconvError]:
    """Errors of numbers that do not depend on the arrays."""
    axes = kind.axes
    each = {"stride": stride, "dilation": dilation, "lhs_dilation": lhs_dilation}
    wrong = [rules.places(name, value, axes) for name, value in each.items()]
    wrong.append(rules.places("output_padding", output_padding, axes, least=0))
    if not any(wrong) and kind.transposed:
        wrong.append(rules.output_padding(output_padding, stride, dilation, axes))
    wrong.append(rules.padding(padding, axes, each=kind.each, names=kind.paddings))
    wrong.append(rules.same_padding(padding, lhs_dilation, axes))
    wrong.append(rules.number("groups", groups, " that divides C" + " and K" * (not kind.transposed)))
    yield from refused(GeometryError, *wrong)


def is_packed(kind: Kind, w: Any) -> bool:
    """Whether a filter is one that `pack_filter` returned."""
    return kind.axes > 1 and len(shape_of(w)) == kind.axes + 3 and len(kind.filter_layouts) > 0


def filter_axes(filter_layout: str) -> str:
    """Letters of w's axes."""
    return ", ".join("C / groups" if letter == "C" else letter for letter in filter_layout)
