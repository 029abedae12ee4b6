"""What a search traces of problems whose kernels are long: instructions are counted, not seconds."""

import pytest

from nkiconv import ConvProblem, plan
from nkiconv.planner import search, timekeeper

pytestmark = pytest.mark.simulator_only

SAME = ((1, 1), (1, 1))
LONG_PROBLEMS = {
    "depthwise": ConvProblem(N=20000, C=20000, W=16, S=4, groups=20000, padding=((0, 0), (3, 0))),
    "channels beside each other": ConvProblem(
        N=64, C=2048, W=2048, S=4, groups=2048, padding=((0, 0), (3, 0)), layout="NHWC"
    ),
    "video": ConvProblem(N=64, C=512, H=128, W=128, K=512, R=3, S=3, padding=SAME),
    "rows": ConvProblem(N=8, C=256, W=100000, K=256, S=7, padding=((0, 0), (3, 3))),
    "image": ConvProblem(N=4, C=128, H=1024, W=1024, K=128, R=3, S=3, padding=SAME, layout="NHWC"),
    "one channel": ConvProblem(N=64, C=1, H=256, W=256, K=1, R=5, S=5, padding=((2, 2), (2, 2))),
}


@pytest.mark.parametrize("share", [0.25, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LONG_PROBLEMS)
def test_a_search_traces_no_more_than_its_budget(monkeypatch, name, share):
    """Of a budget that is a quarter of its own, and its own."""
    traced, trace = [], timekeeper.trace

    def counted(*asked):
        found = trace(*asked)
        traced.append(found.instructions)
        return found

    monkeypatch.setattr(timekeeper, "trace", counted)
    limits = [(timekeeper, one) for one in ("BUDGET", "WHOLE_INSTRUCTIONS", "VERIFIED_INSTRUCTIONS")]
    for module, limit in (*limits, (search, "WHOLE_INSTRUCTIONS")):
        monkeypatch.setattr(module, limit, int(share * getattr(module, limit)))
    found = plan(LONG_PROBLEMS[name], use_cache=False)
    assert sum(traced) <= timekeeper.BUDGET * (1 + timekeeper.PART)
    assert found.whole or found.extrapolated_from > 0
    assert found.explain()


def test_parts_of_a_long_kernel_foretell_its_time(monkeypatch):
    """Of one that is short enough for no loop on the device, which is timed as a whole."""
    problem = ConvProblem(N=3, C=128, H=256, W=256, K=128, R=3, S=3, padding=SAME)
    whole = plan(problem, use_cache=False)
    for module in (search, timekeeper):
        monkeypatch.setattr(module, "WHOLE_INSTRUCTIONS", 1_000)
    monkeypatch.setattr(timekeeper, "VERIFIED_INSTRUCTIONS", 1_000)
    part = plan(problem, use_cache=False)
    assert whole.whole
    assert part.extrapolated_from is not None
    assert part.phase0_us == pytest.approx(whole.phase0_us, rel=0.04)
    assert part.instructions == pytest.approx(whole.instructions, rel=0.1)
    assert "rows of outputs" in part.explain()


def test_a_refused_problem_is_refused_by_formula():
    """Banded counts tiles of a kind together: one by one there are hundreds of thousands."""
    problem = ConvProblem(N=20000, C=20000, W=15, S=4, groups=20000, padding=((0, 0), (3, 0)))
    with pytest.raises(Exception, match=r"banded needs up to \d+ instructions"):
        plan(problem, algorithms=("banded",), use_cache=False)
