"""Gradients of transposed convolutions with respect to their filters: those of convolutions in which x and gy have
changed places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import GeometryError, LayoutError
from ..integers import takes_ints
from ..reference import AnyArray
from .calls import Places, pair_of, per_axis
from .conv1d import LAYOUTS_1D
from .conv_problem import IMAGES, VOLUMES
from .gradients import conv1d_weight, conv2d_weight, conv3d_weight, pairs_of_padding, spanned
from .weight_checks import sizes_of


@takes_ints
def conv_transpose1d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    groups: int = 1,
    layout: str = "NCW",
    **more: Any,
) -> Any:
    """Gradient of `conv_transpose1d` with respect to its filters; see `conv_transpose2d_weight`.

    Args: x: [N, C, W] or [N, W, C]. weight_size: (C, K / groups, S). gy: [N, K, Q] or [N, Q, K]. padding: an int, or
        (left, right).

    Returns: [C, K / groups, S].

    Raises: as `conv_transpose2d_weight`.
    """
    numbers = (stride,), (pair_of(padding),), (dilation,)
    _check(x, weight_size, gy, numbers, layout, LAYOUTS_1D)
    return conv1d_weight(
        gy, weight_size, x, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, **more
    )


@takes_ints
def conv_transpose2d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCHW",
    **more: Any,
) -> Any:
    """Gradient of `conv_transpose2d` with respect to its filters.

    It is that of a convolution of gy whose result is x, and takes as long; that of the bias is gy's sum over pixels,
    that of x `conv2d` of gy with the filters as they are.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC".
        weight_size: shape of the filters, (C, K / groups, R, S).
        gy: gradient of y, [N, K, P, Q] or [N, P, Q, K], with the output_padding that y had.
        stride, padding, dilation, groups, layout: those of the transposed convolution.
        more: accumulate_into, out_dtype, precision, lnc, algorithm, config, as in `conv2d_weight`.

    Returns: [C, K / groups, R, S], fp32 or out_dtype.

    Raises: as `conv2d_weight`, whose x is gy here, and gy x; GeometryError where gy is that of no such y.
    """
    return _weight(conv2d_weight, IMAGES, x, weight_size, gy, (stride, padding, dilation), groups, layout, more)


@takes_ints
def conv_transpose3d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    **more: Any,
) -> Any:
    """Gradient of `conv_transpose3d` with respect to its filters; see `conv_transpose2d_weight`.

    Args: x: [N, C, D, H, W] or [N, D, H, W, C]. weight_size: (C, K / groups, T, R, S). gy: [N, K, Z, P, Q] or
        [N, Z, P, Q, K].

    Returns: [C, K / groups, T, R, S].

    Raises: as `conv_transpose2d_weight`.
    """
    return _weight(conv3d_weight, VOLUMES, x, weight_size, gy, (stride, padding, dilation), groups, layout, more)


def _weight(
    function: Callable[..., Any], kind: Any, x: Any, size: Any, gy: Any, numbers: Any, groups: int, layout: str,
    more: dict[str, Any],
) -> Any:  # fmt: skip
    """The gradient of filters of images or volumes."""
    stride, padding, dilation = numbers
    pairs = pairs_of_padding(padding, kind)
    _check(x, size, gy, (per_axis(stride, kind.axes), pairs, per_axis(dilation, kind.axes)), layout, kind.layouts)
    return function(gy, size, x, stride=stride, padding=pairs, dilation=dilation, groups=groups, layout=layout, **more)


def _check(x: Any, weight_size: Any, gy: Any, numbers: Any, layout: Any, layouts: Any) -> None:
    """Reject a gy whose shape is not y's; the gradient of the convolution reports other errors."""
    if layout not in layouts:
        raise LayoutError(f"layout={layout!r}: accepted are {', '.join(layouts)}; use one of them")
    size = sizes_of("weight_size", weight_size, len(layout))
    for name, array in (("x", x), ("gy", gy)):
        if not isinstance(array, np.ndarray) or array.ndim != len(layout):
            raise GeometryError(f"{name}: must be an array of {len(layout)} axes, {layout}; pass one")
    if x.shape[layout.index("C")] != size[0]:
        raise GeometryError(
            f"weight_size={size}: its first entry is C of a transposed convolution, {x.shape[layout.index('C')]} in x"
        )
    axes = [layout.index(letter) for letter in layout if letter not in "NC"]
    for index, axis in enumerate(axes):
        stride, pair, dilation = (one[index] for one in numbers)
        if not all(type(one) is int for one in (stride, dilation, *pair)) or stride < 1:
            return
        least = spanned(x.shape[axis], size[index + 2], stride, pair, dilation)
        if not least <= gy.shape[axis] < least + stride:
            raise GeometryError(
                f"gy.shape={gy.shape}: {gy.shape[axis]} elements on axis {axis}, a transposed convolution of "
                f"{x.shape[axis]} has {least} to {least + stride - 1}; pass the gradient of its y"
            )
