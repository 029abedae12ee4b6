"""Gradients of convolutions on arrays, under the names of torch.nn.grad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DtypeError, GeometryError, LayoutError, raise_all
from ..integers import takes_ints
from ..planner.conv_weight import weight_arguments
from ..planner.estimate import settled
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations, operation_of
from ..planner.request import Asked, Config, Request, asked_violations
from ..problem import dtype_name
from ..reference import AnyArray
from .calls import Places, has_no_images, launch, nl_dtype, one_image, pair_of, per_axis, places_violations
from .conv1d import LAYOUTS_1D, as_rows, with_height
from .conv_problem import IMAGES, VOLUMES, Kind, array_violations, conv_problem
from .conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from .depthwise_gradients import run_depthwise_weight
from .weight_checks import check_gradients, filter_like, of_no_images, sizes_of


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
    """Gradient of `conv2d` with respect to its filters, as ``torch.nn.grad.conv2d_weight`` has it.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC"; bf16, fp16 or fp32. N may be 0.
        weight_size: shape of the filters, (K, C / groups, R, S).
        gy: gradient of y, [N, K, P, Q] or [N, P, Q, K]; fp32 with fp32 x, bf16 or fp16 with either of them.
        stride, padding, dilation, lhs_dilation, groups, layout: those of the convolution; padding: an int, (height,
            width), pairs, "same" or "valid". Of lhs_dilation zeros are multiplied: without a stride
            `conv_transpose2d_weight` takes less time.
        accumulate_into: fp32 of weight_size, to which the gradient is added in the result; or None.
        bias_gradient: also return the gradient of the bias.
        out_dtype: of the result, fp32, bf16 or fp16.
        precision: of fp32 arrays: None, "bf16" or "tf32", as in `conv2d`.
        lnc: cores that share the work, 1 or 2.
        algorithm, config: as in a `Plan` of `nkiconv.plan(problem, direction="wgrad")`, with lhs_dilation of
            `nkiconv.plan(problem.replace(direction="wgrad"))`; None: the estimate.

    Returns: [K, C / groups, R, S]; with bias_gradient the pair of it and [K], fp32. Sums are fp32.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "lhs_dilation": lhs_dilation}
    after = {"accumulate_into": accumulate_into, "bias_gradient": bias_gradient, "out_dtype": out_dtype}
    return _weight(
        IMAGES, x, weight_size, gy, {**numbers, "groups": groups}, layout, after, precision, lnc, algorithm, config
    )


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
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "lhs_dilation": lhs_dilation}
    after = {"accumulate_into": accumulate_into, "bias_gradient": bias_gradient, "out_dtype": out_dtype}
    return _weight(
        VOLUMES, x, weight_size, gy, {**numbers, "groups": groups}, layout, after, precision, lnc, algorithm, config
    )


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
    if layout not in LAYOUTS_1D:
        raise LayoutError(f"layout={layout!r}: accepted are {', '.join(LAYOUTS_1D)}; use one of them")
    for name, value in (("x", x), ("gy", gy)):
        if not isinstance(value, np.ndarray) or value.ndim != 3:
            raise GeometryError(f"{name}: must be an array of 3 axes, {layout}; pass one")
    size = sizes_of("weight_size", weight_size, 3)
    axis = layout.index("W")
    found = conv2d_weight(
        with_height(x, axis),
        (*size[:2], 1, size[2]),
        with_height(gy, axis),
        stride=(1, stride),
        padding=((0, 0), pair_of(padding)),
        dilation=(1, dilation),
        lhs_dilation=(1, lhs_dilation),
        groups=groups,
        layout=LAYOUTS_1D[layout],
        accumulate_into=None if accumulate_into is None else with_height(accumulate_into, 2),
        bias_gradient=bias_gradient,
        out_dtype=out_dtype,
        precision=precision,
        lnc=lnc,
        algorithm=algorithm,
        config=config,
    )
    return (as_rows(found[0]), found[1]) if bias_gradient else as_rows(found)


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
    """Gradient of `conv1d` with respect to x, as ``torch.nn.grad.conv1d_input`` has it: a transposed convolution.

    Args: input_size: of x, in its layout; N may be 0. w: [K, C / groups, S]. The rest: as in `conv2d_input`.

    Returns: an array of input_size.

    Raises: as `conv_transpose1d`; GeometryError if gy's shape is not that of such a y.
    """
    size = _input_shape(input_size, layout, LAYOUTS_1D)
    numbers = (stride,), (pair_of(padding),), (dilation,)
    after = _output_padding(size, w, gy, numbers, groups, layout)
    return conv_transpose1d(
        gy, w, stride=stride, padding=pair_of(padding), output_padding=after[0], dilation=dilation, groups=groups,
        layout=layout, **more,
    )  # fmt: skip


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
    """Gradient of `conv2d` with respect to x, as ``torch.nn.grad.conv2d_input`` has it: a transposed convolution.

    Args:
        input_size: shape of x, in its layout; N may be 0.
        w: [K, C / groups, R, S]. gy: gradient of y, [N, K, P, Q] or [N, P, Q, K].
        stride, padding, dilation, groups, layout: those of the convolution; padding: an int, (height, width) or pairs.
        more: out_dtype, precision, lnc, strict_nonfinite, algorithm, config, as in `conv_transpose2d`.

    Returns: an array of input_size, of gy's dtype or out_dtype.

    Raises: as `conv_transpose2d`; GeometryError if gy's shape is not that of such a y.
    """
    return _input(IMAGES, conv_transpose2d, input_size, w, gy, (stride, padding, dilation), groups, layout, more)


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
    """Gradient of `conv3d` with respect to x, as ``torch.nn.grad.conv3d_input`` has it; see `conv2d_input`.

    Returns: an array of input_size, of gy's dtype or out_dtype.

    Raises: as `conv_transpose3d`; GeometryError if gy's shape is not that of such a y.
    """
    return _input(VOLUMES, conv_transpose3d, input_size, w, gy, (stride, padding, dilation), groups, layout, more)


def _weight(
    kind: Kind,
    x: Any,
    weight_size: Any,
    gy: Any,
    places: dict[str, Any],
    layout: str,
    after: dict[str, Any],
    precision: str | None,
    lnc: int,
    algorithm: str | None,
    config: Config,
) -> Any:
    """The gradient of the filters, of calls without images too."""
    name = f"{kind.name}_weight"
    size, cannot, operation = (
        sizes_of("weight_size", weight_size, kind.axes + 2),
        f"{name} cannot run this call",
        OPERATIONS[name],
    )
    like, into = filter_like(size, gy), after["accumulate_into"]
    if isinstance(places["padding"], tuple):
        places = {**places, "padding": pairs_of_padding(places["padding"], kind)}
    raise_all(cannot, list(array_violations(kind, x, like, layout, kind.filter_layouts[0], lnc)))
    given = one_image("x", x) if has_no_images(x) else x
    problem = conv_problem(given, like, layout=layout, filter_layout=kind.filter_layouts[0], lnc=lnc, **places)
    check_gradients(gy, (x.shape[0], *problem.output_shape[1:]), into, size)
    if dtype_name(x.dtype) not in operation.dtypes:
        raise DtypeError(f"x.dtype={x.dtype}: accepted are {', '.join(operation.dtypes)}; cast x and gy")
    raise_all(cannot, list(choice_violations(operation.algorithms, algorithm, config)))
    asked = Asked(bias=after["bias_gradient"], precision=precision, out_dtype=dtype_name(after["out_dtype"]))
    problem = problem.replace(direction="wgrad")
    refused = [*asked_violations(asked), *operation.violations(problem, asked), *problem.launch_violations()]
    raise_all(cannot, refused)
    if has_no_images(x):
        return of_no_images(size, into, asked)
    if algorithm is None and operation_of(problem, asked) is not operation:
        return run_depthwise_weight(x, gy, problem, **after, lnc=lnc)
    request = Request(problem=problem, lnc=lnc, asked=asked, operation=name)
    raise_all(cannot, list(choice_refusals(operation, problem, asked, algorithm, config, lnc)))
    algorithm, config = settled(request, algorithm, config)
    arguments = weight_arguments(problem, algorithm=algorithm, config=config)
    arguments |= {"accumulate_into": into, "bias_gradient": asked.bias, "precision": precision}
    arguments["out_dtype"] = nl_dtype(after["out_dtype"])
    return launch(operation.kernel, (x, gy, size), arguments, lnc, trace_only=False).y


def _input(
    kind: Kind, transposed: Any, input_size: Any, w: Any, gy: Any, numbers: Any, groups: int, layout: str, more: Any
) -> Any:
    """The gradient of x, by a transposed convolution."""
    size = _input_shape(input_size, layout, kind.layouts)
    stride, padding, dilation = numbers
    raise_all(f"{kind.name}_input cannot run this call", [
        *places_violations({"stride": stride, "dilation": dilation}, kind.axes)
    ])  # fmt: skip
    pairs = pairs_of_padding(padding, kind)
    strides, dilations = per_axis(stride, kind.axes), per_axis(dilation, kind.axes)
    after = _output_padding(size, w, gy, (strides, pairs, dilations), groups, layout)
    return transposed(
        gy, w, stride=strides, padding=pairs, output_padding=after, dilation=dilations, groups=groups, layout=layout,
        **more,
    )  # fmt: skip


def pairs_of_padding(padding: Any, kind: Kind) -> tuple[tuple[int, int], ...]:
    """Padding in pairs, of an int, one per axis, or pairs."""
    each = padding if isinstance(padding, tuple) and len(padding) == kind.axes else (padding,) * kind.axes
    if not all(type(one) is int or (isinstance(one, tuple) and len(one) == 2) for one in each):
        raise GeometryError(f"padding={padding!r}: must be an int, an int an axis, or {kind.sides}; pass one of these")
    return tuple((one, one) if type(one) is int else one for one in each)


def _output_padding(shape: tuple[int, ...], w: Any, gy: Any, numbers: Any, groups: Any, layout: str) -> tuple[int, ...]:
    """Elements behind those of x that a window of y sees, of x of this shape."""
    axes = [layout.index(letter) for letter in layout if letter not in "NC"]
    for name, array in (("w", w), ("gy", gy)):
        if not isinstance(array, np.ndarray) or array.ndim != len(axes) + 2:
            raise GeometryError(f"{name}: must be an array of {len(axes) + 2} axes; pass one")
    channels = shape[layout.index("C")]
    if gy.shape[0] != shape[0]:
        raise GeometryError(
            f"gy.shape={gy.shape}: must have N={shape[0]} images, as input_size; pass the gradient of its y"
        )
    if type(groups) is int and w.shape[1] * groups != channels:
        raise GeometryError(
            f"input_size={shape}: must have C={w.shape[1] * groups}, by w.shape={w.shape} in groups={groups}; pass x's "
            f"shape"
        )
    size, found = [shape[axis] for axis in axes], []
    for index, axis in enumerate(axes):
        stride, (before, after), dilation = (one[index] for one in numbers)
        least = spanned(gy.shape[axis], w.shape[index + 2], stride, (before, after), dilation)
        if not 0 <= size[index] - least < stride:
            raise GeometryError(
                f"gy.shape={gy.shape}: {gy.shape[axis]} outputs on axis {axis} come of {least} to "
                f"{least + stride - 1} elements, input_size has {size[index]}; pass the gradient of its y"
            )
        found.append(size[index] - least)
    return tuple(found)


def spanned(outputs: int, taps: int, stride: int, pair: tuple[int, int], dilation: int) -> int:
    """Elements of an axis of which so many outputs come, at least; up to stride - 1 more make no other."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1 - sum(pair)


def _input_shape(size: Any, layout: str, layouts: Any) -> tuple[int, ...]:
    """input_size, which may be one of no images."""
    if layout not in layouts:
        raise LayoutError(f"layout={layout!r}: accepted are {', '.join(layouts)}; use one of them")
    return sizes_of("input_size", size, len(layout), of_images=True)
