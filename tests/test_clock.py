"""The clock of estimates against the timeline of both cores."""

import pytest
import random_problems
from core_times import core_us

from nkiconv import cases
from nkiconv.planner import child, clock
from nkiconv.planner.estimate import chosen
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.problem import ConvProblem
from nkiconv.schedules.settings import WARM_UP_MAX
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only


def launch_of(problem, algorithm=None, config=None, lnc=2):
    request = Request(problem=problem, lnc=lnc)
    operation = operation_for(request)
    if algorithm is None:
        found = chosen(request)
        algorithm, config = found.algorithm, found.config
    return operation.kernel[lnc], *operation.launch(request, algorithm, config)


def both_cores_us(launch):
    kernel, args, kwargs = launch
    return in_time(execute(kernel, args, kwargs, trace_only=True), Rates()).us


@pytest.mark.cover(2)
@pytest.mark.parametrize("operation", random_problems.OF)
def test_core_0_takes_no_more_than_both_cores(operation):
    """Core 1 may have more to do than core 0; both share the HBM's rate, of which core 0 has at least half."""
    for problem in random_problems.OF[operation](1, 46):
        launch = launch_of(problem)
        if execute(launch[0], *launch[1:], trace_only=True).programs[0].instructions:
            us = core_us(launch, Rates(), 50_000)
            assert us <= 1.06 * both_cores_us(launch), problem


def test_matmuls_on_zeros_are_no_more_than_a_kernel_takes():
    """Twice as many as fill the wait for filters of 256 taps would be 346."""
    problem = ConvProblem(N=1, C=64, H=32, W=16, K=154, R=16, S=16, stride=(16, 16), dtype="fp32")
    found = chosen(Request(problem=problem))
    assert both_cores_us(launch_of(problem, found.algorithm, found.config)) > 0
    assert 128 < dict(found.config)["warmup"] <= WARM_UP_MAX


def test_a_candidate_that_breaks_a_rule_is_passed_over():
    """It was chosen where one other candidate was left."""
    problem = cases.get("rn50_c4").problem
    found = chosen(Request(problem=problem))
    broken, whole = ("implicit_gemm", (("x_bytes", 1),)), (found.algorithm, found.config)

    def launch(*one):
        request = Request(problem=problem)
        operation = operation_for(request)
        return operation.kernel[2], *operation.arguments(request, *one)

    assert clock.fastest([broken, whole], launch, Rates()) == whole
    assert clock.fastest([broken], launch, Rates()) == broken


@pytest.mark.cover(1)
@pytest.mark.parametrize(("name", "layout"), [("flux_vae_down", "NCHW"), ("rn50_1x1", "NHWC"), ("c256_32x16", "NCHW")])
def test_an_estimate_is_the_fastest_of_its_candidates(name, layout):
    problem = cases.get(name).problem.replace(layout=layout)
    request = Request(problem=problem)
    operation = operation_for(request)
    times = [both_cores_us(launch_of(problem, *one)) for one in operation.ranked(operation.shape(request, Rates()))]
    found = chosen(request)
    assert both_cores_us(launch_of(problem, found.algorithm, found.config)) <= 1.001 * min(times)


def test_the_clock_overrules_cost_models():
    """stacked is the first by cost models, and 1.3 times slower with its settings."""
    problem = ConvProblem(N=2, C=40, W=4363, K=26, S=7, stride=(1, 2), padding=((0, 0), (3, 3)))
    request = Request(problem=problem)
    operation = operation_for(request)
    ranked = operation.ranked(operation.shape(request, Rates()))
    times = [both_cores_us(launch_of(problem, *one)) for one in ranked]
    found = chosen(request)
    assert found.algorithm == ranked[times.index(min(times))][0] != ranked[0][0]
    assert both_cores_us(launch_of(problem, found.algorithm, found.config)) < 0.95 * times[0]


def test_the_planners_own_process_chooses_alike():
    """It answers where AWS's NKI runs the kernels."""
    request = Request(problem=cases.get("mobilenet_dw").problem)
    try:
        assert child.estimate(request) == chosen(request)
    finally:
        child.stop()
