"""What a search times once, what it does when extrapolation is far off, and what it says of row tiles."""

import pytest

from nkiconv import ConvProblem, Plan, cases, plan
from nkiconv.planner import Request, candidates, timekeeper
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.entry import answer
from nkiconv.planner.estimate import estimate
from nkiconv.planner.timing import phases, trace
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
GROUPED = ConvProblem(N=1, C=256, K=256, H=28, W=28, R=3, S=3, groups=32, padding=((1, 1), (1, 1)))
TURNS = {"pe.row_tiles_overlap": 0.0}
# case, algorithm: each has settings that come to the same as others
COMPLETED = [
    ("mobilenet_dw", "weight_stationary"),
    ("rn50_1x1", "implicit_gemm"),
    ("vit_patch16", "stacked"),
    ("nkl_n1_c256_w129_s128", "dot"),
    ("nkl_n1_c16_w512_s64", "banded"),
    ("short", "mixed"),
]


def instructions(request, candidate):
    """All that tells a candidate's instructions apart, in order."""
    found = trace(request, candidate, Rates()).execution.instructions
    return [(one.engine, one.op, one.params, [one[1:] for one in (*one.writes, *one.reads)]) for one in found]


@pytest.mark.cover(0, keep=["nkl_n1_c16_w512_s64-banded", "short-mixed"])
@pytest.mark.parametrize(("name", "algorithm"), COMPLETED)
def test_settings_that_complete_the_same_are_one_run(name, algorithm):
    """The search times them once."""
    request = Request(problem=cases.get(name).problem)
    field = candidates.field_of(request, Rates())
    start = next(one for one in field.start(wide=False)[0] if one.algorithm == algorithm)
    distinct = []
    for one in [start, *field.near(start)]:
        completed, found = field.completed(one), instructions(request, one)
        same = [known for known in distinct if known[0] == completed]
        assert same in ([], [(completed, found)])
        distinct += [] if same else [(completed, found)]
    assert len(distinct) > 1, "settings that matter tell runs apart"


def test_settings_that_come_to_the_same_are_timed_once(monkeypatch):
    traced = []

    def counted(request, candidate, rates, **limits):
        traced.append(candidate)
        return trace(request, candidate, rates, **limits)

    monkeypatch.setattr(timekeeper, "trace", counted)
    request = Request(problem=cases.get("short").problem)
    found = answer(request, use_cache=False)
    field = candidates.field_of(request, Rates())
    completed = [(one.algorithm, field.completed(one)) for one in traced]
    assert all(one not in completed[:i] for i, one in enumerate(completed))
    assert len(completed) >= len(found.alternatives) > 1


@pytest.mark.slow
def test_what_was_left_out_for_an_extrapolated_time_is_timed_when_that_proves_too_short():
    """A bound came first when the whole kernel was found to take longer than extrapolated, and was told as the plan."""
    problem = ConvProblem(
        N=2, C=464, W=745, S=79, groups=464, padding=((0, 0), (78, 78)), rhs_dilation=(1, 2), dtype="fp16"
    )
    found = plan(problem, use_cache=False)
    assert found.whole
    best = Candidate(found.algorithm, found.config)
    assert found.phase0_us == trace(Request(problem=problem), best, Rates()).us


@pytest.mark.slow
def test_no_plan_is_slower_than_the_estimate_in_the_mean_over_phases():
    """Four candidates were ahead of it in phase 0, all slower than it in most other phases."""
    request = Request(problem=cases.get("nkl_n1_c256_w512_s64").problem)
    found = plan(request.problem, robust="off", use_cache=False)
    guess = estimate(request, use_cache=False)
    guessed = Candidate(guess.algorithm, guess.config)
    spread = phases(trace(request, guessed, Rates()).timed, found.phases)
    assert found.phase0_us <= spread.phase0_us
    assert found.modelled_us <= spread.mean_us


@pytest.mark.slow
def test_a_plan_says_what_it_would_take_if_row_tiles_took_turns():
    found = plan(GROUPED, use_cache=False)
    (risk,) = (one for one in found.risks if one.constant == "pe.row_tiles_overlap")
    assert risk.value == 0
    assert risk.us > found.phase0_us
    assert risk.least_us <= risk.us
    assert "pe.row_tiles_overlap, which is inferred, may be 0: " in found.explain()
    assert Plan.from_json(found.to_json()) == found
    # the same plan, searched for where they do
    other = plan(GROUPED, use_cache=False, constants=TURNS)
    assert not any(one.constant == "pe.row_tiles_overlap" for one in other.risks)
    us = {(one.algorithm, one.config): one.us for one in other.alternatives}
    assert us.get((found.algorithm, found.config), risk.us) == pytest.approx(risk.us)
    assert other.phase0_us <= risk.least_us * 1.001


@pytest.mark.slow
def test_a_plan_without_row_tiles_has_nothing_to_say():
    found = plan(GROUPED.replace(groups=1, C=64, K=64), use_cache=False)
    assert not any(one.constant == "pe.row_tiles_overlap" for one in found.risks)
    assert "row_tiles" not in found.explain()
