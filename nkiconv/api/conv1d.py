"""conv1d on arrays, and conv2d of single channels: other ranks and names of what `conv2d` runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import GeometryError, LayoutError, NkiconvError, raise_all
from ..integers import takes_ints
from ..planner.request import CONV2D_DTYPES, Config
from ..reference import AnyArray
from .calls import Pair, one_array
from .conv import conv2d
from .conv_problem import check_channels

#: Orders of x and y in memory, and conv2d's name of each with a row of height 1 put in.
LAYOUTS_1D = {"NCW": "NCHW", "NWC": "NHWC"}
FILTER_LAYOUTS_1D = {"KCS": "KCRS", "SCK": "RSCK", "KSC": "KRSC"}
#: Where the axis of height 1 goes, in images and in filters.
_X_AXIS = {"NCW": 2, "NWC": 1}
_W_AXIS = {"KCS": 2, "SCK": 0, "KSC": 1}


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
    algorithm: str | None = None,
    config: Config = None,
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
    images = as_conv2d(
        x,
        w,
        residual,
        stride=stride,
        padding=padding,
        dilation=dilation,
        lhs_dilation=lhs_dilation,
        groups=groups,
        layout=layout,
        filter_layout=filter_layout,
    )
    y = conv2d(
        **images,
        bias=bias,
        activation=activation,
        residual_position=residual_position,
        beta=beta,
        out_dtype=out_dtype,
        precision=precision,
        lnc=lnc,
        strict_nonfinite=strict_nonfinite,
        algorithm=algorithm,
        config=config,
    )
    return as_rows(y, layout)


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
) -> dict[str, Any]:
    """`conv2d`'s arguments, by name, of a `conv1d` call with these: arrays with an axis of height 1, numbers as pairs.

    Raises: LayoutError, GeometryError, DtypeError: layouts, numbers, and kinds, ranks, dtypes and channels of the
        arrays.
    """
    raise_all("conv1d cannot run this call", list(_violations(x, w, residual, layout, filter_layout)))
    for name, value in (("stride", stride), ("dilation", dilation), ("lhs_dilation", lhs_dilation)):
        if type(value) is not int or value < 1:
            raise GeometryError(f"{name}={value!r}: must be an int of at least 1; pass one")
    if type(groups) is int and groups > 0:  # conv2d refuses others
        inputs, C = (array.shape[order.index("C")] for array, order in ((w, filter_layout), (x, layout)))
        check_channels(w.shape, inputs, C, groups, "KCS", filter_layout)
    taps = w.shape[filter_layout.index("S")]
    return {
        "x": with_height(x, _X_AXIS[layout]),
        "w": with_height(w, _W_AXIS[filter_layout]),
        "residual": None if residual is None else with_height(residual, _X_AXIS[layout]),
        "stride": (1, stride),
        "padding": _padding(padding, taps, dilation),
        "dilation": (1, dilation),
        "lhs_dilation": (1, lhs_dilation),
        "groups": groups,
        "layout": LAYOUTS_1D[layout],
        "filter_layout": FILTER_LAYOUTS_1D[filter_layout],
    }


def as_rows(y: AnyArray, layout: str = "NCW") -> AnyArray:
    """`conv1d`'s y of what `conv2d` returns for arguments of `as_conv2d`: without the axis of height 1."""
    axis = _X_AXIS[layout]
    return y.reshape(*y.shape[:axis], *y.shape[axis + 1 :])


def with_height(array: AnyArray, axis: int) -> AnyArray:
    """An array with an axis of height 1 put in."""
    return array.reshape(*array.shape[:axis], 1, *array.shape[axis:])


def _violations(x: Any, w: Any, residual: Any, layout: Any, filter_layout: Any) -> Iterator[NkiconvError]:
    """Errors of the layouts and of the arrays' kinds and ranks."""
    yield from layout_violations("filter_layout", filter_layout, FILTER_LAYOUTS_1D)
    order = filter_layout if filter_layout in tuple(FILTER_LAYOUTS_1D) else "KCS"
    axes = ", ".join("C / groups" if letter == "C" else letter for letter in order)
    yield from row_violations(x, w, residual, layout, axes, "C")


def row_violations(
    x: Any, w: Any, residual: Any, layout: Any, filter_axes: str, empty: str = ""
) -> Iterator[NkiconvError]:
    """Errors of a layout of rows and of the arrays' kinds and ranks; empty: which axis beside N may be 0."""
    yield from layout_violations("layout", layout, LAYOUTS_1D)
    letters = "N, W, C" if layout == "NWC" else "N, C, W"
    yield from one_array("x", x, letters, CONV2D_DTYPES, "N" + empty)
    yield from one_array("w", w, filter_axes, CONV2D_DTYPES, empty)
    if residual is not None:
        yield from one_array("residual", residual, letters.replace("W", "Q").replace("C", "K"))


def layout_violations(name: str, value: Any, accepted: dict[str, str]) -> Iterator[NkiconvError]:
    """An error of an order of axes that is not accepted."""
    if value not in tuple(accepted):
        yield LayoutError(f"{name}={value!r}: accepted are {', '.join(accepted)}; transpose to one of these")


def _padding(padding: Any, taps: int, dilation: int) -> Any:
    """conv2d's padding of a row."""
    if padding in ("same", "valid"):
        return padding
    if padding == "causal":
        return (0, 0), ((taps - 1) * dilation, 0)
    if type(padding) is int:
        return (0, 0), (padding, padding)
    if isinstance(padding, tuple) and len(padding) == 2 and all(type(one) is int for one in padding):
        return (0, 0), padding
    raise GeometryError(
        f"padding={padding!r}: must be an int, (left, right) of ints, or one of same, valid, causal; use one of these"
    )


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
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Convolve each channel of images with its own filters: `conv2d` with as many groups as channels.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC". w: [C * multiplier, 1, R, S], the filters of channel c from
            c * multiplier on. bias: [C * multiplier]. The rest: as in `conv2d`, and so are dtypes.

    Returns: [N, C * multiplier, P, Q], or [N, P, Q, C * multiplier] with layout="NHWC".

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return conv2d(
        x,
        w,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=depthwise_groups(x, w, layout),
        layout=layout,
        activation=activation,
        residual=residual,
        residual_position=residual_position,
        beta=beta,
        out_dtype=out_dtype,
        precision=precision,
        lnc=lnc,
        strict_nonfinite=strict_nonfinite,
        algorithm=algorithm,
        config=config,
    )


def depthwise_groups(x: Any, w: Any, layout: str = "NCHW") -> int:
    """`conv2d`'s groups, x's channels, of a `depthwise_conv2d` call with these.

    Raises: LayoutError, GeometryError, DtypeError: the layout, the arrays' kinds, ranks and dtypes, and w's shape.
    """
    raise_all("depthwise_conv2d cannot run this call", list(_depthwise_violations(x, w, layout)))
    channels: int = x.shape[3 if layout == "NHWC" else 1]
    if w.shape[1] != 1 or w.shape[0] % channels:
        raise GeometryError(
            f"w.shape={w.shape}: must be [C * multiplier, 1, R, S] for C={channels} channels of x; use conv2d for "
            f"filters over several channels"
        )
    return channels


def _depthwise_violations(x: Any, w: Any, layout: Any) -> Iterator[NkiconvError]:
    if layout not in ("NCHW", "NHWC"):
        yield LayoutError(f"layout={layout!r}: accepted are NCHW, NHWC; transpose to one of these")
    yield from one_array("x", x, "N, H, W, C" if layout == "NHWC" else "N, C, H, W", CONV2D_DTYPES)
    yield from one_array("w", w, "C * multiplier, 1, R, S", CONV2D_DTYPES)
