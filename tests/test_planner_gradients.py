"""Gradients as problems, cases and plans."""

import pytest

import nkiconv
from nkiconv import ConvProblem, UnsupportedError
from nkiconv.planner import Asked, Request
from nkiconv.planner.candidates import Candidate, field_of
from nkiconv.planner.estimate import estimate
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
IMAGES = ConvProblem(N=2, C=8, H=9, W=11, K=16, R=3, S=3, stride=(2, 1), padding=((1, 1), (0, 2)))
VOLUMES = IMAGES.replace(D=5, T=3, stride=(1, 2, 1), padding=((1, 1), (1, 1), (0, 2)), rhs_dilation=(1, 1, 1),
                         lhs_dilation=(1, 1, 1), layout="NDHWC")  # fmt: skip

ROWS = ConvProblem(N=2, C=16, W=40, S=4, groups=16, padding=((0, 0), (3, 0)))


@pytest.mark.parametrize("problem", [IMAGES, VOLUMES, ROWS, IMAGES.replace(groups=4, padding=((-1, 3), (1, 0)))])
def test_a_gradient_has_the_shapes_of_what_it_is_of(problem):
    dgrad = problem.toward("dgrad")
    assert (dgrad.input_shape, dgrad.output_shape) == (problem.output_shape, problem.input_shape)
    assert dgrad.transposed
    back = dgrad.toward("dgrad")
    assert (back.input_shape, back.output_shape) == (problem.input_shape, problem.output_shape)
    assert back.padding == problem.padding or max(problem.stride) > 1


def test_of_transposed_convolutions_x_and_y_change_places():
    dgrad = IMAGES.toward("dgrad")
    found = dgrad.toward("wgrad")
    assert found.filter_shape == dgrad.filter_shape == IMAGES.filter_shape
    assert (found.input_shape, found.output_shape) == (dgrad.output_shape, dgrad.input_shape)


def test_bytes_of_filter_gradients_are_those_of_x_and_gy_and_fp32_filters():
    x, y, w = 2 * 8 * 9 * 11, 2 * 16 * 5 * 11, 16 * 8 * 9
    assert IMAGES.toward("wgrad").moved == (2 * (x + y), 4 * w)
    assert IMAGES.toward("wgrad").flops == IMAGES.flops


@pytest.mark.parametrize(("problem", "direction", "message"), [
    (IMAGES, "backward", "direction='backward': accepted are forward, dgrad, wgrad"),
    (IMAGES.toward("wgrad"), "dgrad", "the problem is a gradient itself"),
])  # fmt: skip
def test_refused_directions(problem, direction, message):
    with pytest.raises(UnsupportedError, match=message):
        problem.toward(direction)
    with pytest.raises(UnsupportedError, match=message):
        nkiconv.plan(problem, direction=direction)


@pytest.mark.cover(0, keep=["images", "rows"])
@pytest.mark.parametrize(
    "problem", [IMAGES, VOLUMES, IMAGES.replace(layout="NHWC"), ROWS], ids=["images", "volumes", "NHWC", "rows"]
)
def test_plans_of_filter_gradients_run(problem):
    found = nkiconv.plan(problem, direction="wgrad", bias=True, use_cache=False)
    name = "depthwise_conv1d" if problem is ROWS else "conv3d" if problem.is_volume else "conv2d"
    assert found.operation == f"{name}_weight"
    assert found.problem == problem.toward("wgrad")
    assert nkiconv.Plan.from_json(found.to_json()) == found
    first = estimate(Request(problem=found.problem, asked=Asked(bias=True)), use_cache=False)
    us = {one.config: one.us for one in found.alternatives}
    assert found.phase0_us <= us.get(first.config, found.phase0_us)
    assert 0 < found.roofline_fraction < 1


def test_what_filter_gradients_lack_is_refused():
    with pytest.raises(UnsupportedError, match="activation='relu': a filter gradient has none"):
        nkiconv.plan(IMAGES, direction="wgrad", activation="relu")
    with pytest.raises(UnsupportedError, match="operation='conv2d_weight': the problem's direction is 'forward'"):
        nkiconv.plan(IMAGES, operation="conv2d_weight")


def test_settings_that_only_the_default_rule_completes_have_no_neighbours():
    big = ConvProblem(N=2, C=384, H=120, W=208, K=192, R=3, S=3, padding=((1, 1), (1, 1)), direction="wgrad")
    field = field_of(Request(problem=big, asked=Asked(bias=True)), Rates())
    partial = field.check("blocks", (("pixels", 0),))
    assert isinstance(partial, Candidate)
    assert field.near(partial) == []
