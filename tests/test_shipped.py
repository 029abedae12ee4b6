"""Plans that come with nkiconv: found before an estimate, and passed over where they no longer hold."""

import math
import random

import pytest

from nkiconv.planner import shipped
from nkiconv.planner.candidates import Candidate, field_of
from nkiconv.planner.entry import answer
from nkiconv.planner.estimate import estimate
from nkiconv.planner.estimate import known as taken
from nkiconv.planner.plan import Estimate
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.robust import Regrets
from nkiconv.planner.shipped import Shipped, key_of, known
from nkiconv.planner.timekeeper import Trial
from nkiconv.planner.timing import phases, trace
from nkiconv.problem import ConvProblem
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
PROBLEM = ConvProblem(N=1, C=20, H=12, W=12, K=24, R=3, S=3, padding=((1, 1), (1, 1)))
REQUEST = Request(problem=PROBLEM, asked=Asked(bias=True, activation="silu"))
#: By name: a plan that the estimate would not take.
PLAN = Shipped(REQUEST, "implicit_gemm", (("x_bytes", 256),), 12.5)
REQUESTS = {
    "image": REQUEST,
    "one core": Request(problem=PROBLEM, lnc=1),
    "volume": Request(problem=ConvProblem(N=1, C=3, D=9, H=8, W=8, T=3, S=3, K=4, stride=(2, 1, 1))),
    "row": Request(problem=ConvProblem(N=2, C=64, W=100, S=4, groups=64, padding=((0, 0), (3, 0)))),
    "wgrad": Request(problem=PROBLEM.toward("wgrad")),
    "dgrad": Request(problem=PROBLEM.toward("dgrad")),
    "NHWC": Request(problem=PROBLEM.replace(layout="NHWC"), asked=Asked(residual="pre_activation", out_dtype="fp32")),
}


@pytest.fixture
def ship(tmp_path):
    """Replaces the shipped file by one of these plans."""
    packaged, file = shipped.FILE, tmp_path / "shipped.tsv"
    shipped.take(file)

    def shipping(*plans, first=None):
        text = shipped.text_of(plans)
        file.write_text(text if first is None else first + text[text.index("\n") :])
        shipped.take(file)

    yield shipping
    shipped.take(packaged)


@pytest.mark.parametrize("which", REQUESTS)
def test_a_line_says_what_its_plan_is(ship, which):
    plan = Shipped(REQUESTS[which], "anything", (("a", (1, 2)), ("b", "c")), 1.25)
    ship(Shipped(REQUESTS["one core"], "another", None, 2.0), plan)
    found = shipped.table().plan(key_of(REQUESTS[which]))
    assert (found.algorithm, found.config, found.us) == (plan.algorithm, plan.config, plan.us)
    for name in ("problem", "asked", "lnc"):
        assert getattr(found.request, name) == getattr(plan.request, name)
    assert key_of(found.request) == key_of(plan.request)


def test_calls_and_searches_take_it_before_an_estimate(ship):
    assert (known(REQUEST), shipped.table().plans()) == (None, []), "no file ships nothing"
    ship(PLAN)
    assert taken(REQUEST) == Estimate("implicit_gemm", PLAN.config)
    assert taken(REQUESTS["one core"]) == estimate(REQUESTS["one core"], use_cache=False)
    for other in ({"constants": (("dma.hbm_shared_gbps", 100.0),)}, {"algorithms": ("implicit_gemm",)}):
        assert known(Request(problem=PROBLEM, asked=REQUEST.asked, **other)) is None
    field = field_of(REQUEST, Rates())
    assert field.default(field.start(wide=False)[0]).key == ("implicit_gemm", PLAN.config)


@pytest.mark.parametrize(("algorithm", "config"), [
    ("implicit_gemm", (("no_such_setting", 1),)), ("implicit_gemm", (("x_bytes", -1),)), ("no_such_algorithm", None),
])  # fmt: skip
def test_a_plan_that_its_kernel_refuses_is_passed_over(ship, algorithm, config):
    ship(Shipped(REQUEST, algorithm, config, 1.0))
    assert known(REQUEST) is None


@pytest.mark.parametrize("first", ['{"format":1,"constants":"000000000000"}', '{"format":0}', ""])
def test_plans_of_other_constants_are_passed_over(ship, first):
    ship(PLAN, first=first)
    assert known(REQUEST) is None
    assert shipped.table().plans() == []


def test_a_plan_of_the_cache_comes_before_it(ship, plans):
    ship(PLAN)
    found = answer(REQUEST, quick=True)
    assert (found.effort, found.algorithm, set(PLAN.config) <= set(found.config)) == ("shipped", "implicit_gemm", True)
    assert "comes with nkiconv (shipped)" in found.explain()
    searched = answer(REQUEST)
    assert taken(REQUEST) == searched
    assert "searched for, kept in the cache" in answer(REQUEST).explain()


def test_what_is_shipped_is_for_todays_constants():
    """Without any plan too; the file is then its first line alone, or missing."""
    lines = shipped.FILE.read_text().splitlines() if shipped.FILE.exists() else []
    assert len(shipped.table().answers) == max(0, len(lines) - 1), "write them with `make plans OPTIONS=--fresh`"


def test_kernels_take_plans_of_each_list_of_settings():
    """A setting that is gone would leave its plans unused: an estimate takes their place."""
    first = {(one.algorithm, tuple(dict(one.config or ()))): one for one in shipped.table().plans()}
    for one in first.values():
        assert known(one.request) == Estimate(one.algorithm, one.config), f"`make plans OPTIONS=--check`: {one}"


def test_a_sample_of_what_is_shipped_takes_what_it_says():
    """Those that are short enough to be timed whole, to 0.5 %, and no longer than their estimates unless they hedge."""
    short = [one for one in shipped.table().plans() if one.request.problem.flops < 5e7]
    for one in random.Random(1).sample(short, min(len(short), 2)):
        stale = f"`make plans OPTIONS=--check`: {one}"
        assert known(one.request) == Estimate(one.algorithm, one.config), stale
        timed = timing_of(one.request, one.algorithm, one.config)
        assert timed.timed.us == pytest.approx(one.us, rel=5e-3), stale
        guess = estimate(one.request, use_cache=False)
        guessed = timing_of(one.request, guess.algorithm, guess.config)
        assert mean_us(timed) <= mean_us(guessed) or hedges(timed, guessed), stale


def timing_of(request, algorithm, config):
    return trace(request, Candidate(algorithm, config), Rates())


def hedges(timing, other):
    """Whether it has less expected regret than another, which is faster."""
    own, fast = (Trial(Candidate("", None), one.us, 0, one, 0.0) for one in (timing, other))
    regrets = Regrets(fast, [own], {})
    return regrets.better([own], math.inf) == [own]


def mean_us(timing):
    """Over the throttle's phases, which a plan is chosen by."""
    return phases(timing.timed, 8).mean_us
