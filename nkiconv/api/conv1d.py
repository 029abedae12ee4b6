"""conv1d on arrays, and depthwise conv2d: other ranks and names of `conv2d`."""

from __future__ import annotations

from typing import Any

from ..errors import GeometryError, raise_all
from ..integers import takes_ints
from ..planner.request import Config
from ..reference import AnyArray
from ..rules import LAYOUTS
from .calls import Pair
from .conv import conv2d, convolved
from .conv_problem import ROWS, Kind, array_violations

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
    return convolved(ROWS, **locals())


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
