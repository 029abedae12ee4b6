"""Rows of data/conv2d.csv: traced whole on 1 and 2 cores, and exact on integers with fewer channels and pixels.

Filters, strides, paddings, dilations and inputs and outputs of a group stay as they are in the smaller problem.
"""

import pytest
from conv_calls import FLOATS, check_exact

from nkiconv import cases

CASES = {case.name: case.problem for case in cases.load("conv2d") if case.problem.dtype in FLOATS}
IMAGES, CHANNELS_IN, CHANNELS_OUT, GROUPS = 2, 37, 21, 5


def extent(axis, least):
    """An extent with some whole windows, at least `least`, and no larger than the axis."""
    return min(axis.size, max(least, axis.window - axis.lo - axis.hi + 2 * axis.stride + 1))


def smaller(problem):
    """The same kind of problem, small and not square unless it is a row."""
    groups = min(problem.groups, GROUPS)
    inputs, outputs = problem.C // problem.groups, problem.K // problem.groups
    if groups == 1:
        inputs, outputs = min(inputs, CHANNELS_IN), min(outputs, CHANNELS_OUT)
    return problem.replace(
        N=min(problem.N, IMAGES), C=groups * inputs, K=groups * outputs, groups=groups, H=extent(problem.height, 9),
        W=extent(problem.width, 14),
    )  # fmt: skip


@pytest.mark.cover(10)
@pytest.mark.parametrize("name", CASES)
def test_exact_on_a_smaller_problem(name):
    few = smaller(CASES[name])
    kept = ("R", "S", "stride", "padding", "rhs_dilation", "dtype")
    assert [getattr(few, field) for field in kept] == [getattr(CASES[name], field) for field in kept]
    assert few.is_depthwise == CASES[name].is_depthwise
    check_exact(few)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exact_whole(name):
    check_exact(CASES[name])
