"""Gradients of convolutions on arrays, under the names of torch.nn.grad."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import rules
from ..axis import padding_pairs
from ..errors import DtypeError, GeometryError, LayoutError, raise_all, refuse, refused
from ..integers import takes_ints
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations, operation_of
from ..planner.request import Asked, Config, asked_violations
from ..problem import dtype_name
from ..reference import AnyArray
from .calls import Places, has_no_images, launch_planned, nl_dtype, one_array, one_image, per_axis
from .conv_problem import (
    IMAGES,
    ROWS,
    TRANSPOSED,
    VOLUMES,
    Kind,
    array_violations,
    filter_axes,
    number_violations,
    problem_of,
)
from .conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from .depthwise_gradients import run_depthwise_weight
from .weight_checks import check_gradients, filter_like, of_no_images, result_violations, sizes_of


@takes_ints
def conv2d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    lhs_dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCHW",
    accumulate_into: AnyArray | None = None,
    bias_gradient: bool = False,
    out_dtype: Any = "float32",
    precision: str | None = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Gradient of `conv2d` with respect to its filters, like ``torch.nn.grad.conv2d_weight``.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC"; bf16, fp16 or fp32. N may be 0.
        weight_size: shape of the filters, (K, C / groups, R, S).
        gy: gradient of y, [N, K, P, Q] or [N, P, Q, K]; fp32 with fp32 x, bf16 or fp16 with either of them.
        stride, padding, dilation, lhs_dilation, groups, layout: those of the convolution; padding: an int, (height,
            width), pairs, "same" or "valid". With lhs_dilation zeros are multiplied: for stride 1
            `conv_transpose2d_weight` is faster.
        accumulate_into: fp32 of weight_size, to which the gradient is added in the result; or None.
        bias_gradient: also return the gradient of the bias.
        out_dtype: of the result, fp32, bf16 or fp16.
        precision: of fp32 arrays: None, "bf16" or "tf32", as in `conv2d`.
        lnc: cores that share the work, 1 or 2.
        algorithm, config: as in a `Plan` of `nkiconv.plan(problem, direction="wgrad")`, with lhs_dilation of
            `nkiconv.plan(problem.replace(direction="wgrad"))`; None: the estimate.

    Returns: dw, [K, C / groups, R, S]; with bias_gradient (dw, dbias [K] fp32). Sums are fp32.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return _weight(WEIGHT[2], **locals())


@takes_ints
def conv3d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    lhs_dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    accumulate_into: AnyArray | None = None,
    bias_gradient: bool = False,
    out_dtype: Any = "float32",
    precision: str | None = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Gradient of `conv3d` with respect to its filters, as ``torch.nn.grad.conv3d_weight`` has it.

    Args:
        x: [N, C, D, H, W], or [N, D, H, W, C] with layout="NDHWC". weight_size: (K, C / groups, T, R, S).
        gy: [N, K, Z, P, Q] or [N, Z, P, Q, K]. The rest: as in `conv2d_weight`, for three axes.

    Returns: [K, C / groups, T, R, S]; with bias_gradient the pair of it and [K].

    Raises: as `conv2d_weight`.
    """
    return _weight(WEIGHT[3], **locals())


@takes_ints
def conv1d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    groups: int = 1,
    layout: str = "NCW",
    accumulate_into: AnyArray | None = None,
    bias_gradient: bool = False,
    out_dtype: Any = "float32",
    precision: str | None = None,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Gradient of `conv1d` with respect to its filters: `conv2d_weight` of rows of height 1.

    Args:
        x: [N, C, W], or [N, W, C] with layout="NWC". weight_size: (K, C / groups, S). gy: [N, K, Q] or [N, Q, K].
        stride, dilation, lhs_dilation: ints. padding: an int, or (left, right). The rest: as in `conv2d_weight`.

    Returns: [K, C / groups, S]; with bias_gradient the pair of it and [K].

    Raises: as `conv2d_weight`.
    """
    return _weight(WEIGHT[1], **locals())


@takes_ints
def conv1d_input(
    input_size: Sequence[int],
    w: AnyArray,
    gy: AnyArray,
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    groups: int = 1,
    layout: str = "NCW",
    **more: Any,
) -> Any:
    """Gradient of `conv1d` with respect to x, like ``torch.nn.grad.conv1d_input``: a transposed convolution.

    Args: input_size: of x, in its layout; N may be 0. w: [K, C / groups, S]. The rest: as in `conv2d_input`.

    Returns: an array of input_size.

    Raises: as `conv_transpose1d`; GeometryError if gy's shape is not y's.
    """
    return _input(1, conv_transpose1d, **locals())


@takes_ints
def conv2d_input(
    input_size: Sequence[int],
    w: AnyArray,
    gy: AnyArray,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCHW",
    **more: Any,
) -> Any:
    """Gradient of `conv2d` with respect to x, like ``torch.nn.grad.conv2d_input``: a transposed convolution.

    Args:
        input_size: shape of x, in its layout; N may be 0.
        w: [K, C / groups, R, S]. gy: gradient of y, [N, K, P, Q] or [N, P, Q, K].
        stride, padding, dilation, groups, layout: those of the convolution; padding: an int, (height, width) or pairs.
        more: out_dtype, precision, lnc, strict_nonfinite, algorithm, config, as in `conv_transpose2d`.

    Returns: an array of input_size, of gy's dtype or out_dtype.

    Raises: as `conv_transpose2d`; GeometryError if gy's shape is not y's.
    """
    return _input(2, conv_transpose2d, **locals())


@takes_ints
def conv3d_input(
    input_size: Sequence[int],
    w: AnyArray,
    gy: AnyArray,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    **more: Any,
) -> Any:
    """Gradient of `conv3d` with respect to x, like ``torch.nn.grad.conv3d_input``; see `conv2d_input`.

    Args: w: [K, C / groups, T, R, S]. gy: gradient of y, [N, K, Z, P, Q] or [N, Z, P, Q, K]. The rest: as in
        `conv2d_input`, for three axes.

    Returns: an array of input_size, of gy's dtype or out_dtype.

    Raises: as `conv_transpose3d`; GeometryError if gy's shape is not y's.
    """
    return _input(3, conv_transpose3d, **locals())


#: Gradients of filters, by how many axes there are: as the convolutions, and padding is a number an axis too.
WEIGHT = {
    one.axes: dataclasses.replace(one, name=f"{one.name}_weight", each=True, w="gy") for one in (ROWS, IMAGES, VOLUMES)
}


def _weight(
    kind: Kind,
    *,
    x: Any,
    weight_size: Any,
    gy: Any,
    layout: str,
    accumulate_into: Any,
    bias_gradient: bool,
    out_dtype: Any,
    precision: str | None,
    lnc: int,
    algorithm: str | None,
    config: Config,
    **numbers: Any,
) -> Any:
    """The gradient of the filters, of calls without images too."""
    size, operation = sizes_of("weight_size", weight_size, kind.axes + 2), OPERATIONS[kind.operation]
    like, order, into = filter_like(size, gy), kind.filter_layouts[0], accumulate_into
    wrong = [
        *array_violations(kind, x, like, layout, order, lnc),
        *number_violations(kind, **numbers),
        *choice_violations(operation.algorithms, algorithm, config),
        *result_violations(bias_gradient, out_dtype),
    ]
    raise_all(kind.cannot, wrong)
    given = one_image("x", x) if has_no_images(x) else x
    problem = problem_of(kind, given, like, layout=layout, filter_layout=order, **numbers)
    check_gradients(gy, (x.shape[0], *kind.shape_of_y(problem, layout)[1:]), into, size)
    refuse(DtypeError, rules.array_dtype("x", x.dtype, operation.dtypes))
    asked = Asked(bias=bias_gradient, precision=precision, out_dtype=dtype_name(out_dtype))
    problem = problem.replace(direction="wgrad")
    wrong = [*asked_violations(asked), *operation.violations(problem, asked), *problem.launch_violations()]
    raise_all(kind.cannot, wrong)
    if has_no_images(x):
        return of_no_images(size, into, asked)
    if kind.axes == 1:
        x, gy = (np.expand_dims(one, layout.index("W")) for one in (x, gy))
        into = None if into is None else into[:, :, None]
    after = {"accumulate_into": into, "bias_gradient": bias_gradient}
    if algorithm is None and operation_of(problem, asked) is not operation:
        found = run_depthwise_weight(x, gy, problem, **after, out_dtype=out_dtype, lnc=lnc)
    else:
        choice: dict[str, Any] = {"lnc": lnc, "algorithm": algorithm, "config": config}
        raise_all(kind.cannot, choice_refusals(operation, problem, asked, **choice))
        after |= {"precision": precision, "out_dtype": nl_dtype(out_dtype)}
        found = launch_planned(operation, problem, asked, (x, gy, problem.filter_shape), after, **choice).y
    return (found[0].reshape(size), found[1]) if bias_gradient else found.reshape(size)


def _input(
    axes: int, transposed: Any, input_size: Any, w: Any, gy: Any, *, groups: Any, layout: Any, more: Any, **numbers: Any
) -> Any:
    """The gradient of x, by a transposed convolution."""
    kind = dataclasses.replace(TRANSPOSED[axes], name=f"conv{axes}d_input")
    wrong = [
        *refused(LayoutError, rules.layout("layout", layout, kind.layouts)),
        *number_violations(kind, **numbers, groups=groups),
    ]
    raise_all(kind.cannot, wrong)
    size = sizes_of("input_size", input_size, len(layout), of_images=True)
    wrong = [
        *one_array("w", w, filter_axes({1: ROWS, 2: IMAGES, 3: VOLUMES}[axes].filter_layouts[0]), kind.dtypes, "NC"),
        *one_array("gy", gy, kind.axes_of_y(layout), kind.dtypes, "N"),
    ]
    raise_all(kind.cannot, wrong)
    numbers["padding"] = padding_pairs(numbers["padding"], ((0, 0, 1, 1),) * axes)
    each = [per_axis(numbers[name], axes) for name in ("stride", "dilation")]
    after: Any = _output_padding(size, w, gy, (each[0], numbers["padding"], each[1]), groups, layout)
    if axes == 1:
        after, numbers["padding"] = after[0], numbers["padding"][0]
    return transposed(gy, w, output_padding=after, groups=groups, layout=layout, **numbers, **more)


def _output_padding(shape: tuple[int, ...], w: Any, gy: Any, numbers: Any, groups: Any, layout: str) -> tuple[int, ...]:
    """Elements after x's that windows of y read, for x of this shape."""
    axes = [layout.index(letter) for letter in layout if letter not in "NC"]
    refuse(GeometryError, rules.images_and_channels("gy", gy.shape, layout, shape[0], w.shape[0]))
    channels = shape[layout.index("C")]
    if w.shape[1] * groups != channels:
        raise GeometryError(
            f"input_size={shape}: must have C={w.shape[1] * groups}, by w.shape={w.shape} in groups={groups}; pass x's "
            f"shape"
        )
    found = []
    for axis, taps, stride, pair, dilation in zip(axes, w.shape[2:], *numbers, strict=True):
        least, size = spanned(gy.shape[axis], taps, stride, pair, dilation), shape[axis]
        if not 0 <= size - least < stride:
            raise GeometryError(
                f"gy.shape={gy.shape}: {gy.shape[axis]} outputs on axis {axis} come of {least} to "
                f"{least + stride - 1} elements, input_size has {size}; pass the gradient of its y"
            )
        found.append(size - least)
    return tuple(found)


def spanned(outputs: int, taps: int, stride: int, pair: tuple[int, int], dilation: int) -> int:
    """The least number of elements of an axis for a number of outputs; up to stride - 1 more add none."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1 - sum(pair)
