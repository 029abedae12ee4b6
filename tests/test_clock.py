"""The clock of estimates against the timeline of both cores."""

from types import SimpleNamespace

import pytest
import random_problems
from core_times import core_us

from nkiconv import cases
from nkiconv.planner import child, clock
from nkiconv.planner.estimate import chosen
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.problem import ConvProblem
from nkiconv.schedules.settings import WARM_UP_MAX, WARM_UPS
from nkiconv.simulator.errors import MeetingError, TraceLimitError
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
@pytest.mark.parametrize("name", ["kda_bf16", "rn50_c4", "mobilenet_dw", "vit_patch16", "hifigan_up4", "vae_out_rgb"])
def test_core_0_takes_what_both_cores_take(name):
    """Named cases have as much to do on each core."""
    launch = launch_of(cases.get(name).problem)
    us = core_us(launch, Rates(), 10_000)
    assert us == pytest.approx(both_cores_us(launch), rel=0.01)


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", random_problems.OF)
def test_core_0_takes_no_more_than_both_cores(operation, count):
    """Core 1 may have more to do than core 0; both share the HBM's rate, of which core 0 has at least half."""
    for problem in random_problems.OF[operation](count, 46):
        launch = launch_of(problem)
        if execute(launch[0], *launch[1:], trace_only=True).programs[0].instructions:
            us = core_us(launch, Rates(), 50_000)
            assert us <= 1.06 * both_cores_us(launch), problem


def test_one_core_and_cores_that_meet_are_timed_whole():
    launch = launch_of(cases.get("vit_patch16").problem.replace(layout="NHWC"))
    with pytest.raises(MeetingError):
        execute(*launch, trace_only=True, alone=0)
    for one in (launch, launch_of(cases.get("rn50_c4").problem, lnc=1)):
        assert core_us(one, Rates(), 10_000) == both_cores_us(one)


#: us of core 0 and of core 1 by candidate, in the order of cost models, and the place of the fastest.
RACES = [
    ([(3, 3), (2, 2), (1, 1)], 2),
    ([(3, 3), (2, 4), (1, 5)], 0),
    ([(3, 9), (2, 9), (4, 5)], 2),
    ([(1, 1), (0.5, 1.5)], 0),
]


@pytest.mark.parametrize(("times", "place"), RACES)
def test_the_fastest_by_the_slower_core_is_chosen(times, place):
    """Core 0 may have nothing to do, so the first by its time is confirmed by core 1."""
    race = clock._Race(None, Rates())
    race.found = {at: SimpleNamespace(us=core, least=(0, 0)) for at, (core, _) in enumerate(times)}
    race.probe = lambda at, core, *_: SimpleNamespace(us=times[at][core])
    chosen, slower = race.confirmed()
    assert (chosen, slower.us) == (place, max(times[place]))


#: Problems, and counts of matmuls on zeros in both places of their kernels.
COUNTS = [("rn50_c4", 0, 0), ("rn50_c4", 20, 0), ("vit_patch16", 13, 7), ("nkl_n1_c256_w256_s128", 5, 3)]


@pytest.mark.cover(2)
@pytest.mark.parametrize(("name", "first", "second"), COUNTS)
def test_a_probe_takes_what_a_trace_of_as_many_zeros_takes(name, first, second):
    """Streams of the probe's matmuls on zeros stand for any count."""
    request = Request(problem=cases.get(name).problem)
    operation = operation_for(request)
    algorithm, config = operation.ranked(operation.shape(request, Rates()))[0]

    def traced(counts):
        own = clock.with_counts(config, counts)
        args, kwargs = operation.arguments(request, algorithm, own)
        return execute(operation.kernel[2], args, kwargs, trace_only=True, alone=0), own

    execution, own = traced((clock.PROBE, clock.PROBE))
    us = clock.Probe(execution, Rates(), own).at((first, second))
    assert us == pytest.approx(in_time(traced((first, second))[0], Rates()).us, rel=0.01)


def test_matmuls_on_zeros_fill_the_wait_for_the_first_filters():
    """The kernel takes less than without, and no more than with any count that a search tries."""
    problem = cases.get("rn50_c4").problem
    found = chosen(Request(problem=problem))
    count = dict(found.config)["warmup"]

    def us(warmup):
        return both_cores_us(launch_of(problem, found.algorithm, clock.with_counts(found.config, (warmup, 0))))

    assert us(count) < 0.95 * us(0)
    assert us(count) <= 1.01 * min(map(us, WARM_UPS))


def test_matmuls_on_zeros_are_no_more_than_a_kernel_takes():
    """Twice as many as fill the wait for filters of 256 taps would be 346."""
    problem = ConvProblem(N=1, C=64, H=32, W=16, K=154, R=16, S=16, stride=(16, 16), dtype="fp32")
    found = chosen(Request(problem=problem))
    assert both_cores_us(launch_of(problem, found.algorithm, found.config)) > 0
    assert 128 < dict(found.config)["warmup"] <= WARM_UP_MAX


def test_a_cut_trace_ends_at_its_limit():
    launch = launch_of(cases.get("rn50_c4").problem)
    traced = execute(*launch, trace_only=True, most=40, alone=0, cut=True)
    assert traced.is_cut
    assert len(traced.instructions) == 20
    with pytest.raises(TraceLimitError):
        execute(*launch, trace_only=True, most=40, cut=True)
    with pytest.raises(TraceLimitError):
        core_us(launch, Rates(), 20)
    whole = execute(*launch, trace_only=True, most=10_000, alone=0, cut=True)
    assert not whole.is_cut


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
