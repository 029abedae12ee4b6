"""What is not finite in one image of a batch, and whether it reaches others: by every algorithm of a problem."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from nkiconv import ConvProblem
from nkiconv.api.conv import conv2d, conv3d
from nkiconv.api.conv_transpose import conv_transpose2d, conv_transpose3d
from nkiconv.api.depthwise_conv1d import depthwise_conv1d
from nkiconv.planner.candidates import Field, field_of
from nkiconv.planner.request import Asked, Request
from nkiconv.problem import DTYPES
from nkiconv.simulator.timing import Rates

#: Settings of an algorithm beside those that a search starts from: all taps on the array, all sides of a contraction.
_MORE = {
    "weight_stationary": [
        (("beside", beside), ("segments", segments), ("along", along))
        for beside, segments, along in itertools.product(("none", "planes"), (2, 4), ("planes", "rows", "columns"))
    ],
    "stacked": [(("planes", "channels"),)],
    "implicit_gemm": [(("planes", "channels"),), (("fold", "rows"),), (("fold", "columns"),)],
    "activation_stationary": [(("fold", fold),) for fold in (1, 2, 3)],
}


def field(problem: ConvProblem, operation: str | None, strict_nonfinite: bool) -> Field:
    """What a problem's candidates are checked against."""
    asked = Asked(strict_nonfinite=strict_nonfinite)
    return field_of(Request(problem=problem, asked=asked, operation=operation), Rates())


def choices(found: Field, most: int) -> Iterator[tuple[str | None, Any]]:
    """(algorithm, config) of the estimate and of each algorithm that accepts the problem, at most so many settings."""
    yield None, None
    taps = found.shape.geometry.S if found.operation.name == "depthwise_conv1d" else 0
    for name in found.operation.algorithms:
        more = _MORE.get(name, [])
        if name == "mixed":
            more = [(("recipes", ((taps, 0, 0, 0),)), ("start", ()), ("end", ()))]
        configs = [*more, None, *found.operation.algorithm(name).configs(found.shape, wide=True)]
        taken = [one for one in dict.fromkeys(configs) if not found.operation.refusal(name, found.shape, one)]
        for config in taken[: max(most, len(more))]:
            yield name, config


def convolve(found: Field, problem: ConvProblem, x: Any, w: Any, **how: Any) -> np.ndarray:
    """y of arrays, by the function of the problem's operation."""
    if found.operation.name == "depthwise_conv1d":
        how |= {"stride": problem.stride[1], "padding": problem.padding[1], "dilation": problem.rhs_dilation[1]}
        how |= {"lhs_dilation": problem.lhs_dilation[1], "flipped": problem.transposed}
        return np.asarray(depthwise_conv1d(x[:, :, 0], w[:, 0, 0], **how))
    how["groups"] = problem.groups
    if problem.transposed:
        taken = tuple((axis.window - 1 - axis.lo, axis.window - 1 - axis.hi) for axis in problem.axes)
        how |= {"stride": problem.lhs_dilation, "padding": taken, "dilation": problem.rhs_dilation}
        return np.asarray((conv_transpose3d if problem.is_volume else conv_transpose2d)(x, w, **how))
    how |= {"stride": problem.stride, "padding": problem.padding, "dilation": problem.rhs_dilation}
    how |= {"lhs_dilation": problem.lhs_dilation, "layout": problem.layout}
    return np.asarray((conv3d if problem.is_volume else conv2d)(x, w, **how))


def leaks(
    problem: ConvProblem, operation: str | None = None, value: float = np.nan, strict: bool = False, most: int = 4
) -> list[str]:
    """The choices by which other images of y differ, bit by bit, when one is filled with `value`."""
    rng, dtype = np.random.default_rng(0), DTYPES[problem.dtype]
    x, w = (rng.integers(1, 5, shape).astype(dtype) for shape in (problem.input_shape, problem.filter_shape))
    spoilt = x.copy()
    row = problem.N // 2
    spoilt[row] = value
    rest = [n for n in range(problem.N) if n != row]
    found, wrong = field(problem, operation, strict), []
    for algorithm, config in choices(found, most):
        how = {"algorithm": algorithm, "config": config, "strict_nonfinite": strict}
        clean, y = (convolve(found, problem, one, w, **how) for one in (x, spoilt))
        if clean[rest].tobytes() != y[rest].tobytes():
            wrong.append(f"{algorithm} {config}")
    return wrong
