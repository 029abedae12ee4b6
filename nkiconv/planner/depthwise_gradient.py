"""How the planner, and callers with arrays, speak to the kernel of filter gradients of depthwise rows.

Of an image such a gradient is the depthwise convolution of x with gy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._nki import nl
from ..errors import NkiconvError, UnsupportedError
from ..kernels.gradients.depthwise_conv1d import (
    DOT,
    DOT_IMAGES,
    ROWS_ALGORITHMS,
    SKEWED,
    depthwise_conv1d_weight_gradient,
    extras_of_rows,
    refusal_of_rows,
    takes_skewed,
)
from ..kernels.gradients.rows import flat_rows, gradient_geometry
from ..problem import ConvProblem
from ..rules import KERNEL_DTYPES
from ..schedules.depthwise_rule import refusal
from ..simulator import ArraySpec
from ..simulator.timing import Rates
from . import cost
from .conv_weight import asked_violations
from .cost.algorithm import Algorithm, Shape
from .cost.gradients.of_rows import OfRows
from .depthwise_conv1d import DepthwiseConv1d, geometry_of, kernel_arguments
from .operation import Operation
from .request import Asked, Config, Request, nl_name

_ROWS = DepthwiseConv1d()


@dataclass(frozen=True)
class RowsExtras:
    """The convolution of x with gy as its kernel sees it; whether the bias's gradient is asked for too."""

    rows: Shape
    bias: bool
    #: the same with sums over images
    images: Shape


class DepthwiseConv1dWeight(Operation):
    """Gradients of filters of depthwise rows."""

    of_rows = True
    name = "depthwise_conv1d_weight"
    kernel = depthwise_conv1d_weight_gradient
    algorithms = ROWS_ALGORITHMS
    fallback = _ROWS.fallback
    kept = frozenset({"Q"})  # gy is the filter
    dtypes = KERNEL_DTYPES

    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        if problem.direction != "wgrad":
            yield UnsupportedError(
                f"operation={self.name!r}: the problem's direction is {problem.direction!r}; take its toward('wgrad')"
            )
        yield from _ROWS.violations(problem, Asked())
        # a residual is what the gradient is added to
        yield from asked_violations(problem, dataclasses.replace(asked, precision=None, residual=None))
        if asked.precision is not None:
            yield UnsupportedError(f"precision={asked.precision!r}: {self.name} has none; use conv2d_weight")

    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        forward = geometry_of(request.problem, times)
        dtype = getattr(nl, nl_name(request.asked.out_dtype or "fp32"))

        def convolution(sums: bool) -> Shape:
            geometry = gradient_geometry(forward, flat_rows(forward, True), flat_rows(forward, False), sums)
            extras = extras_of_rows(forward, request.asked.residual, dtype, sums)
            return Shape(geometry, extras, request.lnc, rates)

        extras = RowsExtras(convolution(False), request.asked.bias, convolution(True))
        return Shape(forward, extras, request.lnc, rates)

    def default_of(self, shape: Shape) -> str:
        if takes_skewed(shape.geometry, shape.cores):
            return str(SKEWED)
        return _ROWS.default_of(shape.extras.rows)

    def refusal_of(self, algorithm: str, shape: Shape, config: Config) -> str:
        own = str(refusal_of_rows(algorithm, shape.geometry, config, shape.cores))
        if own or algorithm == SKEWED:
            return own
        images = algorithm == DOT_IMAGES
        rows = shape.extras.images if images else shape.extras.rows
        return str(refusal(DOT if images else algorithm, rows.geometry, rows.extras, config, shape.cores))

    def whole_refusal(self, algorithm: str, shape: Shape, config: Config) -> str:
        assert shape.whole is not None
        return self.refusal_of(algorithm, shape.whole, config)

    def algorithm(self, name: str) -> Algorithm:
        if name == SKEWED:
            return cost.algorithm(self.name, name)
        images = name == DOT_IMAGES
        return OfRows(cost.algorithm(_ROWS.name, DOT if images else name), images)

    def arguments(
        self, request: Request, algorithm: str | None, config: Config
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        problem, asked = request.problem, request.asked
        dtype, kwargs = nl_name(problem.dtype), rows_arguments(problem, algorithm=algorithm, config=config)
        if asked.bias:
            kwargs["bias_gradient"] = True
        if asked.out_dtype is not None:
            kwargs["out_dtype"] = getattr(nl, nl_name(asked.out_dtype))
        tensors = ArraySpec(problem.input_shape, dtype), ArraySpec(problem.output_shape, dtype)
        return (*tensors, problem.filter_shape), kwargs

    def letters(self, shape: Shape) -> dict[str, int]:
        return _ROWS.letters(shape)


def rows_arguments(problem: ConvProblem, *, algorithm: str | None, config: Config) -> dict[str, Any]:
    """The arguments of `depthwise_conv1d_weight_gradient` for a problem, beside tensors and what is asked for."""
    found = kernel_arguments(problem, algorithm=algorithm, config=config)
    del found["strict_nonfinite"]
    return found
