"""Filter gradients of convolutions with zeros between elements of x, with strides too, against torch in float64."""

import hypothesis
import numpy as np
import pytest
from draws import cores, draws
from gradients import an_axis, check, expected, last, outputs, problem_of
from hypothesis import strategies as st

import nkiconv
from nkiconv.planner.operations import OPERATIONS

#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after, lhs_dilation).
PROBLEMS = {
    "strides too": ((2, 5, 7, 1), (9, 3, 2, 1, 1, 1, 3), (11, 3, 3, 1, 1, 1, 2)),
    "blocks alike": ((2, 3, 4, 1), (12, 3, 2, 1, 1, 1, 2), (16, 3, 4, 2, 2, 0, 2)),
    "cropped": ((1, 20, 13, 1), (17, 5, 2, 1, -2, 1, 2), (30, 3, 3, 2, -1, -3, 4)),
    "groups": ((2, 12, 8, 4), (9, 3, 1, 1, 1, 1, 2), (11, 3, 2, 1, 1, 1, 1)),
    "depthwise": ((2, 6, 12, 6), (9, 3, 2, 1, 1, 1, 3), (11, 3, 1, 1, 1, 1, 2)),
    "volumes": ((2, 6, 7, 1), (5, 3, 2, 1, 1, 1, 3), (7, 2, 2, 1, 0, 1, 2), (9, 3, 3, 1, 1, 1, 2)),
    "sequences": ((3, 10, 9, 1), (50, 4, 3, 1, 3, 0, 2)),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("is_last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_exact(name, is_last):
    channels, *axes = PROBLEMS[name]
    for lnc in cores():
        check(channels, axes, is_last, lnc=lnc, bias_gradient=lnc == 2)


@st.composite
def a_spread_axis(draw, most):
    size, taps, stride, dilation, before, after = draw(an_axis(most))
    axis = (size, taps, stride, dilation, before, after, draw(st.integers(1, 4)))
    hypothesis.assume((size - 1) * axis[6] + min(0, before) + min(0, after) >= 0)
    hypothesis.assume(outputs(axis) >= 1)
    return axis


@draws(40)
@hypothesis.given(
    st.tuples(a_spread_axis(9), a_spread_axis(11)), st.booleans(), st.integers(1, 2), st.integers(1, 4),
    st.integers(1, 4), st.sampled_from((1, 2)),
)  # fmt: skip
def test_any_images_are_exact(axes, is_last, lnc, rows, columns, groups):
    config = (("rows", rows), ("columns", columns), ("beside", 1))
    check((2, 3 * groups, 2 * groups, groups), list(axes), is_last, lnc=lnc, config=config)


@draws(12, 40)
@hypothesis.given(a_spread_axis(30), st.sampled_from(OPERATIONS["depthwise_conv1d_weight"].algorithms), st.data())
def test_rows_are_exact(axis, algorithm, data):
    """By every algorithm that takes them."""
    images, channels = data.draw(st.integers(1, 3)), data.draw(st.sampled_from((1, 5, 130)))
    x, gy, shape = problem_of((images, channels, channels, channels), [axis])
    dw, db, _, _ = expected(x, gy, shape, [axis], channels)
    numbers = {"stride": axis[2], "dilation": axis[3], "padding": axis[4:6], "lhs_dilation": axis[6]}
    call = {**numbers, "bias_gradient": True, "lnc": data.draw(st.integers(1, 2))}
    try:
        found = nkiconv.depthwise_conv1d_weight(x, (channels, axis[1]), gy, algorithm=algorithm, **call)
    except nkiconv.UnsupportedError:
        found = nkiconv.depthwise_conv1d_weight(x, (channels, axis[1]), gy, **call)
    np.testing.assert_array_equal(found[0], dw.reshape(channels, -1))
    np.testing.assert_array_equal(found[1], db)


@pytest.mark.slow
def test_a_plan_is_of_both_together():
    problem = nkiconv.ConvProblem(N=2, C=8, K=8, H=9, W=9, R=3, S=3, stride=(2, 2), lhs_dilation=(3, 3))
    plan = nkiconv.plan(problem, direction="wgrad", use_cache=False)
    assert plan.problem.lhs_dilation == (3, 3)
    assert plan.algorithm == "blocks"


def test_channels_last_lie_as_they_are():
    """Blocks of x and gy whose channels are side by side take pixels=2 as they take 0."""
    channels, *axes = PROBLEMS["strides too"]
    x, gy, shape = problem_of(channels, axes)
    numbers = {"stride": (2, 3), "padding": 1, "lhs_dilation": (3, 2), "layout": "NHWC", "algorithm": "blocks"}
    found = nkiconv.conv2d_weight(last(x), shape, last(gy), config=(("pixels", 2),), **numbers)
    np.testing.assert_array_equal(found, expected(x, gy, shape, axes, 1)[0])
