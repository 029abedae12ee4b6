"""What a search does when an extrapolated time proves to be far off."""

import pytest

from nkiconv import ConvProblem, cases, plan
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.estimate import estimate
from nkiconv.planner.request import Request
from nkiconv.planner.timing import phases, time, trace
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only


def test_what_was_left_out_for_an_extrapolated_time_is_timed_when_that_proves_too_short():
    """A bound came first when the whole kernel was found to take longer than extrapolated, and was told as the plan."""
    problem = ConvProblem(
        N=2, C=464, W=745, S=79, groups=464, padding=((0, 0), (78, 78)), rhs_dilation=(1, 2), dtype="fp16"
    )
    found = plan(problem, use_cache=False)
    assert found.whole
    best = Candidate(found.algorithm, found.config)
    assert found.phase0_us == time(trace(Request(problem=problem), best, Rates()), Rates()).us


def test_no_plan_is_slower_than_the_estimate_in_the_mean_over_phases():
    """Four candidates were ahead of it in phase 0, all slower than it in most other phases."""
    request = Request(problem=cases.get("nkl_n1_c256_w512_s64").problem)
    found = plan(request.problem, use_cache=False)
    guess = estimate(request, use_cache=False)
    guessed = Candidate(guess.algorithm, guess.config)
    spread = phases(time(trace(request, guessed, Rates()), Rates()), found.phases)
    assert found.phase0_us <= spread.phase0_us
    assert found.modelled_us <= spread.mean_us
