"""The operations of the filter gradient kernels, for the planner and for calls with arrays.

The filter gradient of an image of depthwise rows is the depthwise convolution of x with gy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .. import rules
from .._nki import nl
from ..errors import DtypeError, NkiconvError, UnsupportedError, refused
from ..kernels.gradients import conv_weight_gradient
from ..kernels.gradients.depthwise_conv1d import (
    depthwise_conv1d_weight_gradient,
    gradient_geometry,
    options_of_rows,
    unsupported_of_rows,
)
from ..problem import ConvProblem
from ..rules import KERNEL_DTYPES
from ..schedules.gradient_algorithms import plan_of
from ..simulator import ArraySpec
from ..simulator.timing import Rates
from .conv import geometry_of, letters_of
from .cost.algorithm import Shape
from .cost.gradients import ALGORITHMS, ALGORITHMS_OF_ROWS
from .depthwise_conv1d import DepthwiseConv1d
from .depthwise_conv1d import geometry_of as rows_of
from .operation import Operation
from .request import Asked, Config, Request, changed, kernel_arguments, nl_name

_ROWS = DepthwiseConv1d()


class _FilterGradient(Operation):
    """The base class of filter gradients."""

    dtypes = KERNEL_DTYPES
    of_rows = False

    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        if problem.direction != "wgrad":
            yield UnsupportedError(
                f"operation={self.name!r}: the problem's direction is {problem.direction!r}; take its toward('wgrad')"
            )
        yield from self.problem_violations(problem)
        plain = Asked(bias=asked.bias, out_dtype=asked.out_dtype, precision=asked.precision)
        if self.of_rows:  # the gradient is added to a residual
            plain = dataclasses.replace(plain, residual=asked.residual, precision=None)
        lacks = {"precision": f"{self.name} has none; use conv2d_weight"}
        for name, value in changed(asked, plain).items():
            yield UnsupportedError(f"{name}={value!r}: {lacks.get(name, 'a filter gradient has none; drop it')}")
        yield from refused(UnsupportedError, rules.precision_fits(plain.precision, problem.dtype, "x and gy"))

    def problem_violations(self, problem: ConvProblem) -> Iterator[NkiconvError]:
        """Why no algorithm of the kernel runs a problem."""
        raise NotImplementedError

    def arguments(
        self, request: Request, algorithm: str | None, config: Config
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        problem, asked = request.problem, request.asked
        dtype, kwargs = nl_name(problem.dtype), kernel_arguments(problem, algorithm=algorithm, config=config)
        if asked.bias:
            kwargs["bias_gradient"] = True
        kwargs |= asked.given("precision")
        if asked.out_dtype is not None:
            kwargs["out_dtype"] = getattr(nl, nl_name(asked.out_dtype))
        tensors = ArraySpec(problem.input_shape, dtype), ArraySpec(problem.output_shape, dtype)
        return (*tensors, problem.filter_shape), kwargs


class ConvWeight(_FilterGradient):
    """Filter gradients of images or volumes, any groups; a Shape's options: whether the bias's is asked for too."""

    kernel = conv_weight_gradient
    algorithms, known = tuple(ALGORITHMS), ALGORITHMS
    fallback = "blocks"

    def __init__(self, name: str, volumes: bool) -> None:
        self.name, self.volumes = name, volumes

    def problem_violations(self, problem: ConvProblem) -> Iterator[NkiconvError]:
        if problem.is_volume != self.volumes:
            has = "has" if problem.is_volume else "lacks"
            yield UnsupportedError(f"operation={self.name!r}: the problem {has} an axis of planes; leave it out")
        yield from refused(DtypeError, rules.accepted("dtype", problem.dtype, self.dtypes))

    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        geometry = geometry_of(request.problem, Asked(precision=request.asked.precision))
        return Shape(dataclasses.replace(geometry, times=times), request.asked.bias, rates)

    def kernel_reason(self, algorithm: str, shape: Shape, config: Config) -> str:
        return str(plan_of(algorithm, shape.geometry, config, shape.options)[1])

    def letters(self, shape: Shape) -> dict[str, int]:
        return letters_of((shape.whole or shape).geometry, self.volumes)


class DepthwiseConv1dWeight(_FilterGradient):
    """Filter gradients of depthwise rows; a Shape's options: the Shape of the convolution of x with gy."""

    of_rows = True
    name = "depthwise_conv1d_weight"
    kernel = depthwise_conv1d_weight_gradient
    algorithms, known = tuple(ALGORITHMS_OF_ROWS), ALGORITHMS_OF_ROWS
    fallback = _ROWS.fallback
    kept = frozenset({"Q"})  # gy is the filter

    def problem_violations(self, problem: ConvProblem) -> Iterator[NkiconvError]:
        yield from _ROWS.violations(problem, Asked())

    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        forward = rows_of(request.problem, times)
        dtype = getattr(nl, nl_name(request.asked.out_dtype or "fp32"))
        geometry = gradient_geometry(forward)
        rows = Shape(geometry, options_of_rows(forward, request.asked.residual, dtype), rates)
        return Shape(forward, rows, rates)

    def kernel_reason(self, algorithm: str, shape: Shape, config: Config) -> str:
        rows = shape.options
        return str(unsupported_of_rows(algorithm, shape.geometry, rows.geometry, rows.options, config))

    def letters(self, shape: Shape) -> dict[str, int]:
        return _ROWS.letters(shape)
