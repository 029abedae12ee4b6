"""conv1d on arrays, and conv2d of single channels: other ranks and names of what `conv2d` runs."""

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


def as_conv2d(
    x: Any,
    w: Any,
    residual: Any = None,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    groups: int = 1,
    layout: str = "NCW",
    filter_layout: str = "KCS",
    **more: Any,
) -> dict[str, Any]:
    """`conv2d`'s arguments, by name, of a `conv1d` call with these: arrays with an axis of height 1, numbers as pairs.

    more: arguments that both have.

    Raises: LayoutError, GeometryError, DtypeError: layouts, numbers, and kinds, ranks, dtypes and channels of the
        arrays.
    """
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "lhs_dilation": lhs_dilation}
    wrong = [
        *array_violations(ROWS, x, w, layout, filter_layout, more.get("lnc", 2)),
        *number_violations(ROWS, **numbers, groups=groups),
    ]
    raise_all(ROWS.cannot, wrong)
    check_channels(ROWS, w, x.shape[layout.index("C")], groups, filter_layout)
    height, taps = layout.index("W"), w.shape[filter_layout.index("S")]
    (sides,) = padding_pairs(padding, ((x.shape[height], taps, stride, dilation),))
    out = Axis(x.shape[height], taps, stride, *sides, dilation, lhs_dilation).out
    check_row("residual", residual, layout, x.shape[0], w.shape[filter_layout.index("K")], out)
    return more | {
        "x": with_height(x, height),
        "w": with_height(w, filter_layout.index("S")),
        "residual": None if residual is None else with_height(residual, height),
        "stride": (1, stride),
        "padding": ((0, 0), sides),
        "dilation": (1, dilation),
        "lhs_dilation": (1, lhs_dilation),
        "groups": groups,
        "layout": LAYOUTS_1D[layout],
        "filter_layout": FILTER_LAYOUTS_1D[filter_layout],
    }


def as_rows(y: Any, layout: str = "NCW") -> Any:
    """`conv1d`'s y, and statistics if there are any, of what `conv2d` returns for arguments of `as_conv2d`: y without
    the axis of height 1."""
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
        raise_all(ROWS.cannot, list(one_array(name, array, ", ".join(axes), dtypes, "NK")))
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
    raise_all(DEPTHWISE_IMAGES.cannot, list(array_violations(DEPTHWISE_IMAGES, x, w, layout)))
    channels: int = x.shape[layout.index("C")]
    if w.shape[1] != 1 or w.shape[0] % channels:
        raise GeometryError(
            f"w.shape={w.shape}: must be [C * multiplier, 1, R, S] for C={channels} channels of x; use conv2d for "
            f"filters over several channels"
        )
    return channels
