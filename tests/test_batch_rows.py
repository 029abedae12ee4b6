"""What is not finite in one image of a batch reaches no other image, by any algorithm, strictly or not."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nkiconv import ConvProblem
from nkiconv.api.conv import conv2d, conv3d
from nkiconv.api.conv_transpose import conv_transpose2d, conv_transpose3d
from nkiconv.api.depthwise_conv1d import depthwise_conv1d
from nkiconv.planner.candidates import Field, field_of
from nkiconv.planner.request import Asked, Request
from nkiconv.problem import DTYPES
from nkiconv.simulator.timing import Rates

ONE = ((1, 1), (1, 1))


def rows(**fields):
    """Depthwise rows."""
    return ConvProblem(H=1, R=1, K=fields["C"], groups=fields["C"], **fields), "depthwise_conv1d"


def images(**fields):
    return ConvProblem(**fields), None


PROBLEMS = {
    "rows": rows(N=5, C=8, W=40, S=4, padding=((0, 0), (3, 0))),
    "one channel": rows(N=6, C=1, W=36, S=5, dtype="fp16"),
    "steps of a decoder": rows(N=40, C=3, W=3, S=4, padding=((0, 0), (3, 0))),
    "rows with gaps": rows(N=5, C=5, W=20, S=4, lhs_dilation=(1, 2), padding=((0, 0), (3, 2))),
    "gradient of rows": rows(N=5, C=7, W=20, S=4, padding=((0, 0), (0, 3)), transposed=True),
    "long filters": rows(N=3, C=2, W=160, S=150),
    "dense": images(N=3, C=8, K=8, H=6, W=7, R=3, S=3, padding=ONE),
    "one input channel": images(N=5, C=1, K=8, H=6, W=6, R=3, S=3),
    "NHWC": images(N=3, C=16, K=3, H=6, W=7, R=3, S=3, padding=ONE, layout="NHWC"),
    "patches": images(N=5, C=3, K=16, H=8, W=8, R=4, S=4, stride=(4, 4), dtype="fp32"),
    "fp8": images(N=3, C=4, K=4, H=5, W=6, R=3, S=3, dtype="fp8_e4m3"),
    "groups": images(N=5, C=8, K=8, groups=2, H=6, W=6, R=3, S=3, padding=ONE),
    "depthwise": images(N=5, C=8, K=8, groups=8, H=7, W=6, R=3, S=3, padding=ONE),
    "transposed": images(N=4, C=32, K=8, H=3, W=3, R=3, S=3, padding=ONE, transposed=True),
    "transposed with gaps": images(N=4, C=32, K=4, H=3, W=4, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2), (2, 2)),
     transposed=True),
    "transposed groups": images(N=4, C=8, K=8, groups=4, H=3, W=4, R=4, S=4, lhs_dilation=(2, 2),
     padding=((2, 2), (2, 2)), transposed=True),
    "volumes": images(N=3, C=4, K=4, D=3, H=4, W=4, T=2, R=3, S=3, padding=((1, 0), *ONE)),
    "depthwise volumes": images(N=3, C=8, K=8, groups=8, D=3, H=4, W=4, T=2, R=3, S=3),
    "transposed volumes": images(N=3, C=32, K=4, D=2, H=2, W=2, T=2, R=2, S=2, lhs_dilation=(2, 2, 2),
     padding=((1, 1),) * 3, transposed=True),
}  # fmt: skip


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
        configs = [*more, None, *found.operation.known[name].configs(found.shape, wide=True)]
        taken = [
            one for one in dict.fromkeys(configs) if not found.operation.unsupported_reason(name, found.shape, one)
        ]
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


@pytest.mark.cover(1, keep=["long filters-strict"])
@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_nan_stays_in_its_image(name, strict):
    problem, operation = PROBLEMS[name]
    assert leaks(problem, operation, strict=strict) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "steps of a decoder", "dense", "transposed"])
def test_infinity_stays_in_its_image(name):
    """The opposite sign too: products of both may add up to NaN."""
    problem, operation = PROBLEMS[name]
    assert leaks(problem, operation, np.inf, most=1) == []
    assert leaks(problem, operation, -np.inf, most=1) == []
