"""What the host chooses for the filter gradient of a depthwise conv1d, which is the convolution of x with gy."""

from __future__ import annotations

import functools
import math

from ..errors import UnsupportedError
from ..kernels.gradients.depthwise_conv1d import SKEWED
from ..kernels.gradients.skewed.plan import skewed_refusal, skewed_settings
from ..problem import ConvProblem
from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .cost.algorithm import Guess, pairs_of
from .cost.gradients.skewed import skewed_guess
from .depthwise_conv1d import geometry_of
from .estimate import known, settled
from .operations import OPERATIONS, choice_refusals, operation_of
from .plan import Plan
from .request import Asked, Config, Request

_OPERATION = OPERATIONS["depthwise_conv1d"]
#: ns that the sum over images takes after a convolution of x with gy: both cores meet, HBM is met twice.
_IMAGES_NS = 7000.0


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


def weight_choice(
    problem: ConvProblem, lnc: int = 2, accumulates: bool = False, out_dtype: str = "fp32"
) -> tuple[str, Config]:
    """The algorithm and settings of `depthwise_conv1d_weight_gradient` that take least, as far as is known: `skewed`,
    or what is chosen for the convolution of x with gy."""
    request = weight_request(problem, lnc=lnc, accumulates=accumulates, out_dtype=out_dtype)
    found, skewed = known(request), _skewed(problem, lnc)
    least_ns = found.modelled_us * 1e3 if isinstance(found, Plan) else _least_ns(request)
    if skewed is not None and skewed.ns < least_ns + (problem.N > 1) * _IMAGES_NS:
        return SKEWED, skewed.config
    return found.algorithm, found.config


@functools.lru_cache(maxsize=256)
def _skewed(problem: ConvProblem, lnc: int) -> Guess | None:
    return skewed_guess(geometry_of(problem), lnc, Target.of(Rates()))


@functools.lru_cache(maxsize=256)
def _least_ns(request: Request) -> float:
    """What the convolution of x with gy takes by cost models."""
    near = _OPERATION.near_least(_OPERATION.shape(request, Rates()), _OPERATION.algorithms)
    return min((guess.ns for _, guess in near), default=math.inf)


def settled_weight(
    problem: ConvProblem,
    algorithm: str | None,
    config: Config,
    *,
    lnc: int = 2,
    accumulates: bool = False,
    out_dtype: str = "fp32",
) -> tuple[str, Config]:
    """The algorithm and all settings that the kernel is launched with: those asked for, or the choice.

    Raises UnsupportedError: the algorithm does not take the gradient.
    """
    if algorithm is None:
        return weight_choice(problem, lnc, accumulates, out_dtype)
    if algorithm == SKEWED:
        geometry = geometry_of(problem)
        reason = skewed_refusal(geometry, config, lnc)
        if reason:
            raise UnsupportedError(reason)
        return algorithm, pairs_of(skewed_settings(geometry, config))
    request = weight_request(problem, lnc=lnc, accumulates=accumulates, out_dtype=out_dtype)
    for error in choice_refusals(_OPERATION, request.problem, request.asked, algorithm, config, lnc):
        raise error
    return settled(request, algorithm, config)
