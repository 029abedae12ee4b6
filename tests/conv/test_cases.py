"""Named cases exact on integers, and what the host chooses for them."""

import pytest
from conv_calls import FLOATS, check_exact

from nkiconv import cases
from nkiconv.planner.operations import OPERATIONS, operation_of
from nkiconv.planner.request import Request
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

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


#: Times that the choice may take of the fastest.
SLOWER = 1.03
#: Instructions of a kernel that is still timed.
MOST = 20_000


def modelled_us(problem, operation):
    """{algorithm: us} of those that take a problem: settled settings, two cores, throttle phase 0, program order; {}
    where one is too long."""
    operation, request, found = OPERATIONS[operation], Request(problem=problem, operation=operation), {}
    shape = operation.shape(request, Rates())
    for name in operation.algorithms:
        if not operation.unsupported_reason(name, shape, None):
            args, kwargs = operation.launch(request, name, None)
            execution = execute(operation.kernel[2], args, kwargs, trace_only=True)
            if len(execution.instructions) > MOST:
                return {}
            found[name] = in_time(execution, Rates()).us
    return found


def check_choice(name):
    """The choice's time over the fastest's, where several are timed."""
    problem = cases.get(name).problem
    operation = operation_of(problem).name if problem.transposed else "conv2d"
    found = modelled_us(problem, operation)
    if len(found) > 1:
        request = Request(problem=problem, operation=operation)
        chosen = OPERATIONS[operation].choice(request, OPERATIONS[operation].shape(request, Rates()))[0]
        assert found[chosen] <= SLOWER * min(found.values())


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
