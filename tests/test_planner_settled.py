"""Settings that come to the same: the planner knows them for one run, and times that once."""

import pytest

from nkiconv import cases
from nkiconv.planner import Request, candidates, timekeeper
from nkiconv.planner.entry import answer
from nkiconv.planner.timing import trace
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only

# case, algorithm: each has settings that come to the same as others
SETTLED = [
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


@pytest.mark.cover(3)
@pytest.mark.parametrize(("name", "algorithm"), SETTLED)
def test_settings_that_settle_the_same_are_one_run(name, algorithm):
    """The search times them once."""
    request = Request(problem=cases.get(name).problem)
    field = candidates.field_of(request, Rates())
    start = next(one for one in field.start(wide=False)[0] if one.algorithm == algorithm)
    distinct = []
    for one in [start, *field.near(start)]:
        settled, found = field.settled(one), instructions(request, one)
        same = [known for known in distinct if known[0] == settled]
        assert same in ([], [(settled, found)])
        distinct += [] if same else [(settled, found)]
    assert len(distinct) > 1, "settings that matter tell runs apart"


def test_settings_that_come_to_the_same_are_timed_once(monkeypatch):
    traced = []

    def counted(request, candidate, rates, **limits):
        traced.append(candidate)
        return trace(request, candidate, rates, **limits)

    monkeypatch.setattr(timekeeper, "trace", counted)
    request = Request(problem=cases.get("rn50_1x1").problem)
    found = answer(request, use_cache=False)
    field = candidates.field_of(request, Rates())
    settled = [(one.algorithm, field.settled(one)) for one in traced]
    assert all(one not in settled[:i] for i, one in enumerate(settled))
    assert len(found.alternatives) >= 1
