"""conv1d on arrays, and depthwise conv2d: other ranks and names of `conv2d`."""

from __future__ import annotations

from typing import Any

from .. import rules
from ..axis import Axis, padding_pairs
from ..errors import GeometryError, raise_all, refuse
from ..integers import takes_ints
from ..planner.request import Config
from ..reference import AnyArray
from ..rules import KERNEL_DTYPES, LAYOUTS
from .calls import Pair, one_array
from .conv import conv2d
from .conv_problem import (
    FILTER_LAYOUTS_1D,
    LAYOUTS_1D,
    ROWS,
    Kind,
    array_violations,
    check_channels,
    number_violations,
)

DEPTHWISE_IMAGES = Kind("depthwise_conv2d", 2, LAYOUTS, (), filter_letters="C * multiplier, 1, R, S")


@takes_ints
def conv1d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    groups: int = 1,
    layout: str = "NCW",
    filter_layout: str = "KCS",
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    beta: float = 1.0,
    out_dtype: Any = None,
    precision: str | None = None,
    lnc: int = 2,
    strict_nonfinite: bool = False,
    return_stats: str | None = None,
    algorithm: str | None = None,
    config: Config = None,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
) -> Any:
    """Convolve sequences with filters: `conv2d` of rows of height 1. For one filter a channel, `depthwise_conv1d`.

    Args:
        x: [N, C, W], or [N, W, C] with layout="NWC". w: [K, C / groups, S], or in the order of filter_layout "SCK" or
            "KSC". bias: [K].
        stride, dilation, lhs_dilation: ints of at least 1.
        padding: zeros on both sides, (left, right), negative crops; "same", "valid", or "causal":
            (S - 1) * dilation on the left.
        residual: shape of y. The rest: as in `conv2d`, and so are dtypes.

    Returns: [N, K, Q], or [N, Q, K] with layout="NWC".

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return as_rows(conv2d(**as_conv2d(**locals())), layout)


def as_conv2d(x: Any, w: Any, residual: Any = None, kind: Kind = ROWS, **call: Any) -> dict[str, Any]:
    """`conv2d`'s arguments, by name, of a `conv1d` call with these: arrays with an axis of height 1, numbers as pairs;
    or `conv_transpose2d`'s, `conv2d_weight`'s, of a call of that kind.

    call: by name: the numbers, groups, layout and filter_layout, and arguments that both have.

    Raises: LayoutError, GeometryError, DtypeError: layouts, numbers, and kinds, ranks, dtypes and channels of the
        arrays.
    """
    layout, groups = call.pop("layout", "NCW"), call.pop("groups", 1)
    order = call.pop("filter_layout", "".join(kind.filter_layouts[:1]))
    names = ("stride", "padding", "dilation", "lhs_dilation", "output_padding")
    numbers = {name: call.pop(name) for name in names if name in call}
    wrong = [
        *array_violations(kind, x, w, layout, order, call.get("lnc", 2)),
        *number_violations(kind, **numbers, groups=groups),
    ]
    raise_all(kind.cannot, wrong)
    height, width = layout.index("W"), 2 if kind.transposed else order.index("S")
    check_channels(kind, w, x.shape[layout.index("C")], groups, order)
    size, taps = x.shape[height], w.shape[width]
    stride, dilation, more = (numbers.get(name, 1) for name in ("stride", "dilation", "lhs_dilation"))
    (sides,) = padding_pairs(numbers.get("padding", 0), ((size, taps, stride, dilation),))
    if kind.transposed:
        K, after = w.shape[1] * groups, numbers.get("output_padding", 0)
        out = (size - 1) * stride + (taps - 1) * dilation + 1 - sum(sides) + after
    else:
        K, out = w.shape[order.index("K")], Axis(size, taps, stride, *sides, dilation, more).out
    of_y = {"gy": call["gy"]} if "gy" in call else {"residual": residual}
    for name, array in of_y.items():
        check_row(name, array, layout, x.shape[0], K, out, kind.dtypes if name == "gy" else KERNEL_DTYPES)
        of_y[name] = None if array is None else with_height(array, height)
    pairs = {name: (int(name != "output_padding"), value) for name, value in numbers.items()}
    found = call | of_y | pairs | {"x": with_height(x, height), "padding": ((0, 0), sides), "groups": groups}
    found["layout"] = LAYOUTS_1D[layout]
    if "gy" in of_y:
        return found
    found["w"] = with_height(w, width)
    return found if kind.transposed else found | {"filter_layout": FILTER_LAYOUTS_1D[order]}


def as_rows(y: Any, layout: str = "NCW") -> Any:
    """`conv1d`'s result from `conv2d`'s for arguments of `as_conv2d`: y without the axis of height 1, and statistics if
    there are any."""
    if isinstance(y, tuple):
        return as_rows(y[0], layout), *y[1:]
    axis = layout.index("W")
    return y.reshape(*y.shape[:axis], *y.shape[axis + 1 :])


def with_height(array: AnyArray, axis: int) -> AnyArray:
    """An array with an axis of height 1 put in."""
    return array.reshape(*array.shape[:axis], 1, *array.shape[axis:])


def check_row(name: str, array: Any, layout: str, N: int, K: int, Q: int, dtypes: Any = KERNEL_DTYPES) -> None:
    """Refuse an array that is not of y's shape; None is none. Q below 1: y is refused for."""
    if array is not None:
        axes = "NQK" if layout == "NWC" else "NKQ"
        raise_all(ROWS.cannot, one_array(name, array, ", ".join(axes), dtypes, "NK"))
        wanted = tuple({"N": N, "K": K, "Q": Q}[letter] for letter in axes)
        refuse(GeometryError, rules.shape(name, array.shape, wanted, f"y's in layout {layout}") if Q > 0 else "")


@takes_ints
def depthwise_conv2d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int | Pair = 1,
    padding: Any = 0,
    dilation: int | Pair = 1,
    layout: str = "NCHW",
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    beta: float = 1.0,
    out_dtype: Any = None,
    precision: str | None = None,
    lnc: int = 2,
    strict_nonfinite: bool = False,
    return_stats: str | None = None,
    algorithm: str | None = None,
    config: Config = None,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
) -> Any:
    """Convolve each channel of images with its own filters: `conv2d` with as many groups as channels.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC". w: [C * multiplier, 1, R, S], the filters of channel c from
            c * multiplier on. bias: [C * multiplier]. The rest: as in `conv2d`, and so are dtypes.

    Returns: [N, C * multiplier, P, Q], or [N, P, Q, C * multiplier] with layout="NHWC".

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return conv2d(**locals(), groups=depthwise_groups(x, w, layout))


def depthwise_groups(x: Any, w: Any, layout: str = "NCHW") -> int:
    """`conv2d`'s groups, x's channels, of a `depthwise_conv2d` call with these.

    Raises: LayoutError, GeometryError, DtypeError: the layout, the arrays' kinds, ranks and dtypes, and w's shape.
    """
    raise_all(DEPTHWISE_IMAGES.cannot, array_violations(DEPTHWISE_IMAGES, x, w, layout))
    channels: int = x.shape[layout.index("C")]
    if w.shape[1] != 1 or w.shape[0] % channels:
        raise GeometryError(
            f"w.shape={w.shape}: must be [C * multiplier, 1, R, S] for C={channels} channels of x; use conv2d for "
            f"filters over several channels"
        )
    return channels
