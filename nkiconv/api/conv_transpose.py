"""Transposed convolutions on arrays, with torch's arguments: check the call, describe it as a ConvProblem, launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import GeometryError, LayoutError, NkiconvError, raise_all
from ..integers import takes_ints
from ..planner.conv import X_PERMS, precision_violations
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations
from ..planner.request import CONV2D_DTYPES, Config
from ..problem import LAYOUTS, VOLUME_LAYOUTS, ConvProblem, dtype_name
from ..reference import AnyArray
from .calls import (
    Places,
    dtype_pair,
    has_no_images,
    is_pair,
    lnc_violations,
    no_data,
    one_array,
    one_image,
    per_axis,
    places_violations,
    with_extents,
)
from .conv import run_conv
from .conv1d import LAYOUTS_1D, as_rows, row_violations, with_height
from .conv_problem import IMAGES, OF_Y, VOLUMES, result_violations
from .epilogue import Epilogue


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
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Transposed convolution of sequences: `conv_transpose2d` of rows of height 1.

    Args:
        x: [N, C, W], or [N, W, C] with layout="NWC". w: [C, K / groups, S]. bias: [K].
        stride, output_padding, dilation: ints. padding: an int, or (left, right).
        residual: shape of y. The rest: as in `conv_transpose2d`.

    Returns: [N, K, Q] or [N, Q, K], Q = (W - 1) * stride + (S - 1) * dilation + 1 - 2 * padding + output_padding.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    wrong = [*row_violations(x, w, residual, layout, "C, K / groups, S")]
    for name, value in (("stride", stride), ("output_padding", output_padding), ("dilation", dilation)):
        least = int(name != "output_padding")
        if type(value) is not int or value < least:
            wrong.append(GeometryError(f"{name}={value!r}: must be an int of at least {least}; pass one"))
    if type(padding) is not int and not is_pair(padding):
        wrong.append(GeometryError(f"padding={padding!r}: must be an int, or (left, right) of ints; pass one of these"))
    if not wrong and output_padding >= max(stride, dilation):
        rule = f"must be below stride={stride} or dilation={dilation}"
        wrong.append(GeometryError(f"output_padding={output_padding}: {rule}; use less"))
    raise_all("conv_transpose1d cannot run this call", wrong)
    _check_channels(x.shape[layout.index("C")], w.shape)
    pairs = ((0, 0), padding) if is_pair(padding) else ((0, 0), (padding, padding))
    axis = layout.index("W")
    y = conv_transpose2d(
        with_height(x, axis),
        with_height(w, 2),
        bias,
        stride=(1, stride),
        padding=pairs,
        output_padding=(0, output_padding),
        groups=groups,
        dilation=(1, dilation),
        layout=LAYOUTS_1D[layout],
        activation=activation,
        residual=None if residual is None else with_height(residual, axis),
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
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Transposed convolution of images, as ``torch.nn.functional.conv_transpose2d`` has it; the gradient of `conv2d`.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC"; dtypes as of `conv2d`. N may be 0.
        w: [C, K / groups, R, S], as torch stores it; dtypes as of `conv2d`. bias: [K].
        stride, dilation: at least 1, for both axes or (height, width).
        padding: rows and columns taken off the result on all sides: an int, (height, width), or
            ((top, bottom), (left, right)); negative adds.
        output_padding: rows and columns more at the bottom and on the right; below stride or dilation.
        groups: divides C.
        layout, activation, residual, residual_position, beta, out_dtype, precision, lnc, strict_nonfinite, algorithm,
            config: as in `conv2d`; precision "fp16x3" is taken by implicit_gemm, of zeros between the inputs too.

    Returns: [N, K, P, Q], or [N, P, Q, K] with layout="NHWC"; sums in fp32, rounded once;
        P = (H - 1) * stride + (R - 1) * dilation + 1 - top - bottom + output_padding, and Q alike.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    epilogue = Epilogue(
        bias=bias,
        activation=activation,
        residual=residual,
        residual_position=residual_position,
        beta=beta,
        out_dtype=out_dtype,
        precision=precision,
        strict_nonfinite=strict_nonfinite,
    )
    numbers = stride, padding, output_padding, dilation
    return _transposed(2, x, w, epilogue, numbers, groups, layout, lnc, (algorithm, config))


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
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Transposed convolution of volumes, as ``torch.nn.functional.conv_transpose3d`` has it.

    Args:
        x: [N, C, D, H, W], or [N, D, H, W, C] with layout="NDHWC". w: [C, K / groups, T, R, S]. bias: [K].
        stride, padding, output_padding, dilation: as in `conv_transpose2d`, for all axes or (depth, height, width).
        The rest: as there.

    Returns: [N, K, Z, P, Q], or [N, Z, P, Q, K] with layout="NDHWC".

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    epilogue = Epilogue(
        bias=bias,
        activation=activation,
        residual=residual,
        residual_position=residual_position,
        beta=beta,
        out_dtype=out_dtype,
        precision=precision,
        strict_nonfinite=strict_nonfinite,
    )
    numbers = stride, padding, output_padding, dilation
    return _transposed(3, x, w, epilogue, numbers, groups, layout, lnc, (algorithm, config))


def _transposed(
    axes: int,
    x: Any,
    w: Any,
    epilogue: Epilogue,
    numbers: tuple[Any, Any, Any, Any],
    groups: Any,
    layout: Any,
    lnc: Any,
    choice: tuple[str | None, Config],
) -> Any:
    """y of a call; numbers: stride, padding, output_padding, dilation; choice: algorithm and config."""
    empty = has_no_images(x)
    of_one, checked = x, epilogue
    if empty:
        of_one = with_extents(x, {0: 1})
        if isinstance(epilogue.residual, np.ndarray) and epilogue.residual.ndim:
            checked = Epilogue(**{**vars(epilogue), "residual": one_image("residual", epilogue.residual)})
    problem = checked_transpose(axes, of_one, w, checked, numbers, groups, layout, lnc, choice)
    if empty:
        dtype = dtype_name(epilogue.out_dtype or problem.out_dtype)
        return no_data(problem.output_shape, problem.layout, "N", dtype)
    return run_conv(x, w, problem, lnc=lnc, epilogue=epilogue, algorithm=choice[0], config=choice[1]).y


def checked_transpose(
    axes: int,
    x: Any,
    w: Any,
    epilogue: Epilogue,
    numbers: tuple[Any, Any, Any, Any],
    groups: Any,
    layout: Any,
    lnc: Any = 2,
    choice: tuple[str | None, Config] = (None, None),
) -> ConvProblem:
    """The problem of a call of which everything is checked; arguments as of `_transposed`, errors as of the call."""
    name = f"conv_transpose{axes}d"
    cannot, operation = f"{name} cannot run this call", OPERATIONS[name]
    letters = VOLUME_LAYOUTS[0] if axes == 3 else LAYOUTS[0]
    of_y = ", ".join((layout if layout in X_PERMS else letters).translate(OF_Y))
    wrong = [
        *_array_violations(axes, x, w, layout, lnc),
        *epilogue.violations({"bias": "K", "residual": of_y}),
        *choice_violations(operation.algorithms, *choice),
        *_number_violations(axes, numbers, groups),
    ]
    raise_all(cannot, wrong)
    stride, padding, more, dilation = numbers
    N, C, *sizes = (x.shape[axis] for axis in X_PERMS[layout])
    _check_channels(C, w.shape)
    problem = ConvProblem.transpose(
        stride=per_axis(stride, axes),
        padding=_pairs(padding, axes),
        output_padding=per_axis(more, axes),
        dilation=per_axis(dilation, axes),
        taps=tuple(w.shape[2:]),
        N=N,
        C=C,
        K=w.shape[1] * groups,
        groups=groups,
        dtype=dtype_name(x.dtype),
        layout=layout,
        **dict(zip(letters[2:], sizes, strict=True)),
    )
    raise_all(cannot, [*result_violations(epilogue, problem), *problem.launch_violations()])
    raise_all(cannot, [*precision_violations(problem, epilogue.asked())])
    raise_all(cannot, list(choice_refusals(operation, problem, epilogue.asked(), *choice, lnc)))
    return problem


def _check_channels(C: int, shape: tuple[int, ...]) -> None:
    """Raise GeometryError where filters of this shape are not of C input channels."""
    if shape[0] != C:
        raise GeometryError(
            f"w.shape={shape}: has {shape[0]} input channels, x has C={C}; pass [C, K / groups, ...], as torch "
            f"stores filters of transposed convolutions"
        )


def _array_violations(axes: int, x: Any, w: Any, layout: Any, lnc: Any) -> Iterator[NkiconvError]:
    """Errors of the arrays and their layout."""
    kind = VOLUMES if axes == 3 else IMAGES
    if layout not in kind.layouts:
        yield LayoutError(f"layout={layout!r}: accepted are {', '.join(kind.layouts)}; transpose to one of these")
    taps = ", ".join(kind.filter_layouts[0][2:])
    found = [
        *one_array("x", x, ", ".join(layout if layout in kind.layouts else kind.layouts[0]), CONV2D_DTYPES),
        *one_array("w", w, f"C, K / groups, {taps}", CONV2D_DTYPES),
    ]
    yield from found
    if not found:
        yield from dtype_pair(x, w)
    yield from lnc_violations(lnc)


def _number_violations(axes: int, numbers: tuple[Any, Any, Any, Any], groups: Any) -> Iterator[NkiconvError]:
    """Errors of stride, padding, output_padding, dilation and groups, whatever the arrays."""
    stride, padding, more, dilation = numbers
    errors = [*places_violations({"stride": stride, "dilation": dilation}, axes)]
    yield from errors
    if type(groups) is not int or groups < 1:
        yield GeometryError(f"groups={groups!r}: must be an int of at least 1 that divides C; pass one")
    if _pairs(padding, axes) is None:
        yield GeometryError(
            f"padding={padding!r}: must be an int, a tuple of one per axis, or of pairs of ints; pass one of these"
        )
    each = per_axis(more, axes)
    if not (isinstance(each, tuple) and len(each) == axes and all(type(one) is int and one >= 0 for one in each)):
        yield GeometryError(f"output_padding={more!r}: must be an int of at least 0, or one per axis; pass such")
    elif not errors:
        strides, dilations = per_axis(stride, axes), per_axis(dilation, axes)
        if any(one >= max(pair) for one, *pair in zip(each, strides, dilations, strict=True)):
            yield GeometryError(
                f"output_padding={more!r}: must be below stride={stride!r} or dilation={dilation!r} on each axis; use "
                f"less"
            )


def _pairs(padding: Any, axes: int) -> Any:
    """Pairs of a padding argument; None of what is none."""
    if type(padding) is int:
        return ((padding, padding),) * axes
    if not isinstance(padding, tuple) or len(padding) != axes:
        return None
    if all(map(is_pair, padding)):
        return padding
    return tuple((one, one) for one in padding) if all(type(one) is int for one in padding) else None
