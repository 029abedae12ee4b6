"""Transposed convolutions on arrays, with torch's arguments: check the call, describe it as a ConvProblem, launch."""

from __future__ import annotations

from typing import Any

from ..integers import takes_ints
from ..planner.request import Config
from ..reference import AnyArray
from .calls import Places
from .conv import convolved
from .conv_problem import TRANSPOSED


@takes_ints
def conv_transpose1d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int = 1,
    padding: Any = 0,
    output_padding: int = 0,
    groups: int = 1,
    dilation: int = 1,
    layout: str = "NCW",
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
    """Transposed convolution of sequences: `conv_transpose2d` of rows of height 1.

    Args:
        x: [N, C, W], or [N, W, C] with layout="NWC". w: [C, K / groups, S]. bias: [K].
        stride, output_padding, dilation: ints. padding: an int, or (left, right).
        residual: shape of y. The rest: as in `conv_transpose2d`.

    Returns: [N, K, Q] or [N, Q, K], Q = (W - 1) * stride + (S - 1) * dilation + 1 - 2 * padding + output_padding.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return convolved(TRANSPOSED[1], **locals())


@takes_ints
def conv_transpose2d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    output_padding: int | Places = 0,
    groups: int = 1,
    dilation: int | Places = 1,
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
    """Transposed convolution of images, as ``torch.nn.functional.conv_transpose2d`` has it; the gradient of `conv2d`.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC"; dtypes as in `conv2d`. N may be 0.
        w: [C, K / groups, R, S], as torch stores it; dtypes as in `conv2d`. bias: [K].
        stride, dilation: at least 1, for both axes or (height, width).
        padding: rows and columns taken off the result on all sides: an int, (height, width), or
            ((top, bottom), (left, right)); negative adds.
        output_padding: rows and columns more at the bottom and on the right; below stride or dilation.
        groups: divides C.
        precision: as in `conv2d`; "fp16x3" is taken by implicit_gemm, of zeros between the inputs too.
        layout, activation, residual, residual_position, beta, out_dtype, lnc, strict_nonfinite, return_stats,
            algorithm, config, x_scale, x_shift, x_activation: as in `conv2d`.

    Returns: [N, K, P, Q], or [N, P, Q, K] with layout="NHWC"; sums in fp32, rounded once;
        P = (H - 1) * stride + (R - 1) * dilation + 1 - top - bottom + output_padding, and Q alike.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return convolved(TRANSPOSED[2], **locals())


@takes_ints
def conv_transpose3d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    output_padding: int | Places = 0,
    groups: int = 1,
    dilation: int | Places = 1,
    layout: str = "NCDHW",
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
    """Transposed convolution of volumes, as ``torch.nn.functional.conv_transpose3d`` has it.

    Args:
        x: [N, C, D, H, W], or [N, D, H, W, C] with layout="NDHWC". w: [C, K / groups, T, R, S]. bias: [K].
        stride, padding, output_padding, dilation: as in `conv_transpose2d`, for all axes or (depth, height, width).
        The rest: as in `conv_transpose2d`.

    Returns: [N, K, Z, P, Q], or [N, Z, P, Q, K] with layout="NDHWC".

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return convolved(TRANSPOSED[3], **locals())
