"""What the host chooses for the filter gradient of a depthwise conv1d, which is the convolution of x with gy."""

from __future__ import annotations

from typing import Any

from ..problem import ConvProblem
from .depthwise_conv1d import kernel_arguments
from .operations import operation_of
from .request import Asked, Config, Request


def takes_rows(problem: ConvProblem) -> bool:
    """Whether `depthwise_conv1d_weight_gradient` takes a convolution's gradient."""
    return operation_of(problem).name == "depthwise_conv1d" and problem.lhs_dilation == (1, 1)


def x_by_gy(problem: ConvProblem) -> ConvProblem:
    """The depthwise problem of one image whose y are the filter gradients of each image and channel of a problem."""
    axis, rows = problem.width, problem.N * problem.C
    stride, dilation = axis.rhs_dilation if problem.S > 1 else 1, axis.stride if problem.Q > 1 else 1
    reach = (problem.S - 1) * stride + (problem.Q - 1) * dilation + 1
    return ConvProblem(
        N=1,
        C=rows,
        W=problem.W,
        S=problem.Q,
        groups=rows,
        stride=(1, stride),
        padding=((0, 0), (axis.lo, reach - problem.W - axis.lo)),
        rhs_dilation=(1, dilation),
        dtype=problem.dtype,
    )


def weight_request(
    problem: ConvProblem, *, lnc: int = 2, accumulates: bool = False, out_dtype: str = "fp32"
) -> Request:
    """The request whose algorithm and settings `depthwise_conv1d_weight_gradient` takes for a problem's gradient.

    accumulates, out_dtype: of the gradient; of several images they concern the sum over these alone.
    """
    one = problem.N == 1
    residual = "pre_activation" if one and accumulates else None
    asked = Asked(out_dtype=out_dtype if one else "fp32", residual=residual)
    return Request(problem=x_by_gy(problem), lnc=lnc, asked=asked, operation="depthwise_conv1d")


def rows_arguments(problem: ConvProblem, *, algorithm: str | None, config: Config) -> dict[str, Any]:
    """The arguments of `depthwise_conv1d_weight_gradient` for a problem, beside tensors and what is asked for."""
    found = kernel_arguments(problem, algorithm=algorithm, config=config)
    del found["strict_nonfinite"]
    return found
