"""Gradients of depthwise_conv1d on arrays, with respect to filters and to x."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import rules
from ..errors import GeometryError, raise_all, refuse
from ..integers import takes_ints
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations
from ..planner.request import Asked, Config, asked_violations
from ..problem import ConvProblem, dtype_name
from ..reference import AnyArray
from .calls import has_no_images, launch_planned, nl_dtype, one_array, one_image
from .depthwise_conv1d import KIND, depthwise_conv1d, depthwise_problem
from .weight_checks import check_gradients, filter_like, of_no_images, result_violations, sizes_of

_KIND = dataclasses.replace(KIND, name="depthwise_conv1d_weight", w="gy")
_OPERATION = OPERATIONS["depthwise_conv1d_weight"]


@takes_ints
def depthwise_conv1d_weight(
    x: AnyArray,
    weight_size: Sequence[int],
    gy: AnyArray,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    accumulate_into: AnyArray | None = None,
    bias_gradient: bool = False,
    out_dtype: Any = "float32",
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Gradient of `depthwise_conv1d` with respect to its filters.

    Args:
        x: [N, C, W]; bf16, fp16 or fp32. N may be 0.
        weight_size: shape of the filters, (C, S).
        gy: gradient of y, [N, C, Q]; fp32 with fp32 x, bf16 or fp16 with either of them.
        stride, padding, dilation, lhs_dilation: those of the convolution; padding may be "valid", "causal" or "same".
        accumulate_into: fp32 of weight_size, to which the gradient is added in the result; or None.
        bias_gradient: also return the gradient of the bias.
        out_dtype: of the result, fp32, bf16 or fp16.
        lnc: cores that share the work, 1 or 2.
        algorithm, config: "skewed" and its settings, or as in a `Plan` of the convolution of x [1, N * C, W] with gy
            [N * C, Q]; None: the estimate.

    Returns: dw, [C, S]; with bias_gradient (dw, dbias [C] fp32). Sums are fp32.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    size = sizes_of("weight_size", weight_size, 2)
    choice = choice_violations(_OPERATION.algorithms, algorithm, config)
    raise_all(_KIND.cannot, [*result_violations(bias_gradient, out_dtype), *choice])
    given = one_image("x", x) if has_no_images(x) else x
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "lhs_dilation": lhs_dilation}
    problem = depthwise_problem(given, filter_like(size, gy), **numbers, lnc=lnc, kind=_KIND).replace(direction="wgrad")
    N, C, Q = x.shape[0], problem.C, problem.Q
    check_gradients(gy, (N, C, Q), accumulate_into, size)
    asked = Asked(bias=bias_gradient, out_dtype=dtype_name(out_dtype))
    raise_all(_KIND.cannot, [*asked_violations(asked), *problem.launch_violations()])
    if N == 0:
        return of_no_images(size, accumulate_into, asked)
    into = None if accumulate_into is None else accumulate_into.reshape(C, 1, 1, -1)
    how: dict[str, Any] = {"bias_gradient": bias_gradient, "out_dtype": out_dtype, "algorithm": algorithm}
    how |= {"accumulate_into": into, "lnc": lnc, "config": config}
    found = run_depthwise_weight(x.reshape(N, C, 1, -1), gy.reshape(N, C, 1, Q), problem, **how)
    dw = (found[0] if bias_gradient else found).reshape(size)
    return (dw, found[1]) if bias_gradient else dw


@takes_ints
def depthwise_conv1d_input(
    input_size: Sequence[int],
    w: AnyArray,
    gy: AnyArray,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    **more: Any,
) -> Any:
    """Gradient of `depthwise_conv1d` with respect to x: each channel of gy with its filter, taps reversed.

    Args:
        input_size: shape of x, (N, C, W); N may be 0.
        w: [C, S]. gy: gradient of y, [N, C, Q]. Dtypes as in `depthwise_conv1d`.
        stride, padding, dilation: those of the convolution; padding may be "valid", "causal" or "same".
        more: residual, which is added, out_dtype, lnc, strict_nonfinite, algorithm, config, as in `depthwise_conv1d`.

    Returns: an array of input_size, of gy's dtype or out_dtype.

    Raises: as `depthwise_conv1d`; GeometryError if gy's shape is not y's.
    """
    raise_all("depthwise_conv1d_input cannot run this call", one_array("gy", gy, "N, C, Q"))
    N, C, W = sizes_of("input_size", input_size, 3, of_images=True)
    numbers = {"stride": stride, "padding": padding, "dilation": dilation}
    axis = depthwise_problem(filter_like((1, C, W), gy), w, **numbers).width
    refuse(GeometryError, rules.shape("gy", gy.shape, (N, C, axis.out), "y's"))
    return depthwise_conv1d(
        gy, w, padding=axis.backwards, dilation=dilation, lhs_dilation=stride, flipped=True, **more
    )  # fmt: skip


def run_depthwise_weight(
    x: Any,
    gy: Any,
    problem: ConvProblem,
    *,
    accumulate_into: Any,
    bias_gradient: bool,
    out_dtype: Any,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Launch the kernel on arrays of a filter gradient's shapes and layout that are checked, of four axes."""
    residual = None if accumulate_into is None else "pre_activation"
    asked = Asked(bias=bias_gradient, out_dtype=dtype_name(out_dtype), residual=residual)
    choice: dict[str, Any] = {"lnc": lnc, "algorithm": algorithm, "config": config}
    raise_all(_KIND.cannot, choice_refusals(_OPERATION, problem, asked, **choice))
    more = {"accumulate_into": accumulate_into, "bias_gradient": bias_gradient, "out_dtype": nl_dtype(out_dtype)}
    return launch_planned(_OPERATION, problem, asked, (x, gy, problem.filter_shape), more, **choice).y
