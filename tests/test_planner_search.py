"""What a search times once, what it does when extrapolation is far off, and what it says of row tiles."""

import pytest

from nkiconv import ConvProblem, cases, plan
from nkiconv.planner import Request, candidates
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.timing import trace
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
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


@pytest.mark.cover(0, keep=["nkl_n1_c16_w512_s64-banded", "nkl_n1_c256_w129_s128-dot", "short-mixed"])
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
