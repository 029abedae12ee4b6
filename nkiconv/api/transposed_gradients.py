"""Gradients of transposed convolutions with respect to their filters: those of convolutions with x and gy exchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .. import rules
from ..axis import padding_pairs
from ..errors import GeometryError, UnsupportedError, raise_all, refuse, refused
from ..integers import takes_ints
from ..reference import AnyArray
from .calls import Places, one_array, per_axis
from .conv_problem import TRANSPOSED, array_violations, number_violations
from .gradients import conv1d_weight, conv2d_weight, conv3d_weight, spanned
from .weight_checks import filter_like, sizes_of


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
        (left, right). The rest: as in `conv_transpose2d_weight`.

    Returns: [C, K / groups, S].

    Raises: as `conv_transpose2d_weight`.
    """
    return _weight(conv1d_weight, 1, **locals())


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

    It equals the filter gradient of a convolution of gy with x as the gradient of its result, and takes as long. The
    gradient of the bias is gy's sum over pixels; the gradient of x is `conv2d` of gy with the same filters.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC".
        weight_size: shape of the filters, (C, K / groups, R, S).
        gy: gradient of y, [N, K, P, Q] or [N, P, Q, K], with the output_padding that y had.
        stride, padding, dilation, groups, layout: those of the transposed convolution.
        more: accumulate_into, out_dtype, precision, lnc, algorithm, config, as in `conv2d_weight`.

    Returns: [C, K / groups, R, S], fp32 or out_dtype.

    Raises: as `conv2d_weight`, with x and gy exchanged; GeometryError if gy's shape is no y's.
    """
    return _weight(conv2d_weight, 2, **locals())


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
        [N, Z, P, Q, K]. The rest: as in `conv_transpose2d_weight`, for three axes.

    Returns: [C, K / groups, T, R, S].

    Raises: as `conv_transpose2d_weight`.
    """
    return _weight(conv3d_weight, 3, **locals())


def _weight(
    function: Callable[..., Any], axes: int, x: Any, weight_size: Any, gy: Any, *, groups: Any, layout: Any, more: Any,
    **numbers: Any,
) -> Any:  # fmt: skip
    """The gradient of the convolution of gy that x is the result of."""
    kind = dataclasses.replace(TRANSPOSED[axes], name=f"conv_transpose{axes}d_weight")
    size = sizes_of("weight_size", weight_size, axes + 2)
    wrong = [
        *array_violations(kind, x, filter_like(size, x), layout),
        *one_array("gy", gy, kind.axes_of_y(layout), kind.dtypes),
        *number_violations(kind, **numbers, groups=groups),
        *refused(UnsupportedError, rules.flag("bias_gradient", more.get("bias_gradient", False))),
    ]
    raise_all(kind.cannot, wrong)
    if more.get("bias_gradient"):
        raise UnsupportedError(
            "bias_gradient=True: a transposed convolution's is gy's sum over pixels; leave it out, sum gy"
        )
    refuse(GeometryError, rules.images_and_channels("gy", gy.shape, layout, x.shape[0], size[1] * groups))
    numbers["padding"] = padding_pairs(numbers["padding"], ((0, 0, 1, 1),) * axes)
    _check(x, size, gy, [per_axis(numbers[name], axes) for name in ("stride", "dilation")], numbers["padding"], layout)
    if axes == 1:
        numbers["padding"] = numbers["padding"][0]
    return function(gy, size, x, groups=groups, layout=layout, **numbers, **more)


def _check(x: Any, size: tuple[int, ...], gy: Any, numbers: Sequence[Any], padding: Any, layout: str) -> None:
    """Reject a gy whose shape is not y's."""
    if x.shape[layout.index("C")] != size[0]:
        raise GeometryError(
            f"weight_size={size}: its first entry is C of a transposed convolution, {x.shape[layout.index('C')]} in x"
        )
    axes = [layout.index(letter) for letter in layout if letter not in "NC"]
    for axis, taps, stride, dilation, pair in zip(axes, size[2:], *numbers, padding, strict=True):
        least = spanned(x.shape[axis], taps, stride, pair, dilation)
        if not least <= gy.shape[axis] < least + stride:
            raise GeometryError(
                f"gy.shape={gy.shape}: {gy.shape[axis]} elements on axis {axis}, a transposed convolution of "
                f"{x.shape[axis]} has {least} to {least + stride - 1}; pass the gradient of its y"
            )
