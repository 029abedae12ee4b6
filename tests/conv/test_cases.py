"""Named cases exact on integers, and what the host chooses for them."""

import choices
import pytest
from conv_calls import FLOATS, check_exact

from nkiconv import cases
from nkiconv.planner.operations import operation_of

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


#: One of each kind, small enough for seconds.
SOME = (
    "rn50_c2", "rn50_c3_s2", "mobilenet_dw", "mult2_dw", "whisper_conv1", "rect_filter", "prime", "fp16", "c1k1",
    "unet_up", "hifigan_up1", "sam_up", "mimi_dw", "kokoro_dw", "odd_up_fp32",
)  # fmt: skip
NAMES = [case.name for suite in ("conv2d", "conv_transpose") for case in cases.load(suite)]


def check_choice(name):
    problem = cases.get(name).problem
    assert choices.times_slower(problem, operation_of(problem).name if problem.transposed else "conv2d") <= choices.SAME


@pytest.mark.simulator_only
@pytest.mark.cover(2, keep=["unet_up"])
@pytest.mark.parametrize("name", SOME)
def test_the_choice_for_named_cases(name):
    check_choice(name)


@pytest.mark.simulator_only
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SOME])
def test_every_other_named_case(name):
    check_choice(name)
