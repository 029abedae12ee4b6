"""The planner: what it lists, times, ranks, refuses and tells of rows, of images and of gradients; and the robust
choice, which pays for less regret where a constant is wrong.
"""

import csv
import dataclasses
import functools
import math

import numpy as np
import pytest
from commands import run
from conv_calls import arguments

import nkiconv
from nkiconv import ConvProblem, UnsupportedError, cases, plan
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.planner import Asked, Request, candidates, search, timekeeper
from nkiconv.planner.candidates import Candidate, field_of
from nkiconv.planner.estimate import chosen, estimate
from nkiconv.planner.explain import RUINOUS
from nkiconv.planner.robust import Regrets, expected, percent_of
from nkiconv.planner.timekeeper import Trial
from nkiconv.planner.timing import trace
from nkiconv.simulator.timing import Rates
from nkiconv.tools.suites.profiles import profile_case

pytestmark = pytest.mark.simulator_only
SMALL = ConvProblem(N=1, C=130, W=300, S=5, groups=130, padding=((0, 0), (4, 0)))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path / "cache"))


def fresh(problem, lnc=2, **more):
    """A plan that is searched for now."""
    return plan(problem, lnc, use_cache=False, **more)


#: The same, searched for once: of tests that change nothing of the search.
planned = functools.cache(fresh)


def test_an_extrapolated_time_is_scaled_down_to_the_work_of_the_busiest_engine_at_most(monkeypatch):
    times = search.Search(Request(problem=SMALL), False, lambda *_: None).times
    one, other = (
        Trial(Candidate("mixed", (("columns", n),)), 100.0, 9, None, 9.0, extrapolated_from=1, least_us=80.0)
        for n in (32, 64)
    )
    times.found = {trial.candidate.key: trial for trial in (one, other)}
    monkeypatch.setattr(times, "whole", lambda _: dataclasses.replace(one, us=20.0, extrapolated_from=None))
    times.time_whole(one)
    assert (times.found[one.candidate.key].us, times.found[other.candidate.key].us) == (20.0, 80.0)


@pytest.mark.slow
def test_a_plan_says_what_a_profile_says():
    found = planned(cases.get("kda_bf16").problem)
    one, _ = profile_case(cases.get("kda_bf16"), algorithm=found.algorithm, config=found.config)
    assert found.extrapolated_from is None
    assert found.phases == 8
    assert found.modelled_us == pytest.approx(one.profile.modelled_us)
    assert found.phase0_us == pytest.approx(one.profile.phases.phase0_us)
    assert found.worst_us == pytest.approx(one.profile.phases.worst_us)
    assert found.roofline_us == pytest.approx(one.profile.roofline_us)
    assert found.copy_floor_us == pytest.approx(one.floors.copy_us)
    assert (found.bound_by, found.instructions) == (one.profile.bound_by, one.profile.instructions)
    assert (found.sbuf_bytes, found.psum_banks) == (one.profile.sbuf_peak_bytes, one.profile.psum_peak_banks)
    assert found.roofline_fraction == pytest.approx(found.roofline_us / found.modelled_us)


@pytest.mark.cover(0, keep=["short"])
@pytest.mark.parametrize("name", ["kda_bf16", "kda_fp32", "short", "c1", "nkl_st2_p10_c256_w512_s64_bf16"])
def test_the_plan_is_the_fastest_of_its_alternatives(name):
    found = planned(cases.get(name).problem)
    first = found.alternatives[0]
    assert (first.algorithm, first.config) == (found.algorithm, found.config)
    assert first.us <= min(one.us for one in found.alternatives if not one.at_least) * 1.04
    assert {one.algorithm for one in (*found.alternatives, *found.rejected)} == set(ALGORITHMS)


def test_the_plan_has_the_least_mean_of_those_close_by_two_phases():
    """Of schedules: several numbers of buffers give that of the least time by two phases, before one of less mean."""
    problem = ConvProblem(N=2, C=32, K=32, W=256, S=20, groups=2, padding=((0, 0), (10, 10)))
    found = fresh(problem, robust="off")
    near = [one for one in found.alternatives if one.us <= found.modelled_us and not one.at_least]
    differ = {one.us: one for one in sorted(near, key=lambda one: one.us)}
    assert next(iter(differ.values())).config != found.config
    kernel = nkiconv.profile(nkiconv.conv2d_implicit_gemm[2])
    x, w = nkiconv.spec(problem.input_shape, "bf16"), nkiconv.spec(problem.filter_shape, "bf16")
    means = {}
    for one in list(differ.values())[: search.MEANS]:
        told = kernel(x, w, **arguments(problem), algorithm=one.algorithm, config=one.config)
        assert one.us == pytest.approx((told.phases.phase0_us + told.phases.at_us.get(0.5, one.us)) / 2)
        means[one.config] = told.modelled_us
    assert found.modelled_us == pytest.approx(means[found.config])
    assert found.modelled_us <= min(means.values()) / 0.998


# why, changes of the problem, arguments, pattern
REFUSED = [
    ("images", {"H": 3}, {"operation": "depthwise_conv1d"}, "takes rows .*use conv2d"),
    ("dense", {"groups": 1}, {"operation": "depthwise_conv1d"}, "takes depthwise problems .*use conv2d"),
    ("operation", {}, {"operation": "conv4d"}, "operation='conv4d': accepted are None, depthwise_conv1d, conv2d"),
    ("a type for a name", {}, {"out_dtype": np.int32}, "out_dtype='int32': accepted are None, bf16"),
    ("state of images", {"H": 3}, {"initial_state": True}, "conv2d has no state"),
    ("precision", {}, {"precision": "tf32"}, "x and w are bf16, whose products are exact"),
    ("packed groups", {}, {"packed": True}, "packed=True: groups=130"),
    ("scaled nothing", {}, {"scaled": True}, "scaled=True: beta is the factor of a residual"),
    ("another's algorithm", {"H": 3}, {"algorithms": ("dot",)},
     "algorithms='dot': accepted for conv2d are implicit_gemm"),
    ("fp8", {"dtype": "fp8_e4m3"}, {"operation": "depthwise_conv1d"}, "accepted are bf16, fp16, fp32; use conv2d"),
    ("a residual", {}, {"residual": np.ones(130)}, "residual=ndarray .*: must be no array"),
    ("one name", {}, {"algorithms": "mixed"}, r"algorithms='mixed': must be several names; write \('mixed',\)"),
    ("no names", {}, {"algorithms": 3}, "algorithms=3: must be names; pass a tuple, or None"),
    ("words", {}, {"constants": {"scalar.ns_per_elem": "fast"}}, "must be numbers by name"),
    ("numbers as names", {}, {"constants": {1: 2.0}}, "must be numbers by name; see trn2.toml"),
    ("no flag", {}, {"wide": None}, "wide=None: must be True or False"),
    ("an array as a flag", {}, {"use_cache": np.ones(2)}, "use_cache=ndarray .*: must be True or False"),
    ("state", {"stride": (1, 2)}, {"initial_state": True}, "a state needs 1 and 1"),
    ("state's padding", {"padding": ((0, 0), (1, 0))}, {"return_final_state": True}, "must be .* = 4"),
    ("no algorithm", {}, {"algorithms": ()}, "must name at least one"),
    ("constant", {}, {"constants": {"vector.speed": 1.0}}, "unknown name"),
    ("no per cent", {}, {"robust": 101}, "robust=101: must be off, on or per cent from 0 to 100; use robust=on"),
    ("a per cent that is none", {}, {"robust": float("nan")}, "robust=nan: must be off, on or per cent"),
    ("direction", {}, {"direction": "backward"}, "direction='backward': accepted are forward, dgrad, wgrad"),
    ("a gradient's", {"direction": "wgrad"}, {"direction": "dgrad"}, "the problem is a gradient itself"),
    ("activation", {}, {"direction": "wgrad", "activation": "relu"}, "activation='relu': a filter gradient has none"),
    ("no gradient", {"groups": 1}, {"operation": "conv2d_weight"}, "the problem's direction is 'forward'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "arguments", "pattern"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused_before_any_work(monkeypatch, changes, arguments, pattern):
    monkeypatch.setattr("nkiconv.planner.entry.search", None)
    with pytest.raises(nkiconv.NkiconvError, match=pattern):
        plan(SMALL.replace(**changes), **arguments)


@pytest.mark.parametrize("problem", ["kda_bf16", np.ones((1, 8, 40))], ids=["name", "array"])
def test_only_problems_are_planned(problem):
    with pytest.raises(UnsupportedError, match=r"problem: must be a ConvProblem, not (str|ndarray)"):
        plan(problem)


def test_when_nothing_runs_every_reason_is_told():
    with pytest.raises(UnsupportedError, match=r"dot: Q=300: .*at most 64 columns"):
        fresh(SMALL, algorithms=("dot",))


def test_errors_of_a_trace_are_rejections(monkeypatch):
    def broken(request, candidate, rates, **limits):
        if candidate.algorithm == "mixed":
            raise nkiconv.simulator.NkiError("NKI999", "nc_matmul", "too much of it")
        return trace(request, candidate, rates, **limits)

    monkeypatch.setattr(timekeeper, "trace", broken)
    found = fresh(cases.get("short").problem, algorithms=("mixed", "vector"))
    reasons = [one.reason for one in found.rejected if one.algorithm == "mixed"]
    assert reasons
    assert all(reason.endswith("NKI999: nc_matmul: too much of it") for reason in reasons)


# case, algorithm: each has settings that come to the same as others
COMPLETED = [
    ("mobilenet_dw", "weight_stationary"), ("rn50_1x1", "implicit_gemm"), ("vit_patch16", "stacked"),
    ("nkl_n1_c256_w129_s128", "dot"), ("nkl_n1_c16_w512_s64", "banded"), ("short", "mixed"),
]  # fmt: skip


def instructions(request, candidate):
    """All that tells a candidate's instructions apart, in order."""
    found = trace(request, candidate, Rates()).execution.instructions
    return [(one.engine, one.op, one.params, [one[1:] for one in (*one.writes, *one.reads)]) for one in found]


@pytest.mark.cover(0, keep=["nkl_n1_c16_w512_s64-banded", "nkl_n1_c256_w129_s128-dot", "short-mixed"])
@pytest.mark.parametrize(("name", "algorithm"), COMPLETED)
def test_settings_that_complete_the_same_are_one_run(name, algorithm):
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


def test_explain_tells_everything():
    found = planned(ConvProblem(N=1, C=4, W=66, S=2, groups=4))
    text = found.explain()
    words = "modelled", "copy floor", "roofline", "bound by", "x best", "rejected", "C=4", "cores=2", *ALGORITHMS
    assert [word for word in words if word not in text] == []
    brief = str(found)
    assert all(word in brief for word in (found.algorithm, f"{found.modelled_us:,.1f}", "x copy floor", "settings: "))
    second = next(one for one in found.alternatives if one.algorithm != found.algorithm)
    assert brief.endswith(f"next best: {second.algorithm}, {second.us / found.alternatives[0].us:.2f} times as long")
    assert all(one.reason.split(":")[0] in text for one in found.rejected)


SQUARE = {"N": 1, "H": 28, "W": 28, "padding": ((1, 1), (1, 1)), "dtype": "fp32"}


@pytest.mark.parametrize("problem", [
    ConvProblem(C=64, K=64, R=3, S=3, groups=16, **{**SQUARE, "N": 4}),
    ConvProblem(C=32, K=3, R=4, S=4, lhs_dilation=(2, 2), transposed=True, **SQUARE),
], ids=["groups", "transposed"])  # fmt: skip
def test_estimates_rank_no_algorithm_that_refuses_a_precision(problem):
    assert chosen(Request(problem=problem)).algorithm == "weight_stationary"
    assert chosen(Request(problem=problem, asked=Asked(precision="fp16x3"))).algorithm == "implicit_gemm"


IMAGES = ConvProblem(N=2, C=8, H=9, W=11, K=16, R=3, S=3, stride=(2, 1), padding=((1, 1), (0, 2)))
VOLUMES = IMAGES.replace(D=5, T=3, stride=(1, 2, 1), padding=((1, 1), (1, 1), (0, 2)), rhs_dilation=(1, 1, 1),
                         lhs_dilation=(1, 1, 1), layout="NDHWC")  # fmt: skip

ROWS = ConvProblem(N=2, C=16, W=40, S=4, groups=16, padding=((0, 0), (3, 0)))


@pytest.mark.parametrize("problem", [IMAGES, VOLUMES, ROWS, IMAGES.replace(groups=4, padding=((-1, 3), (1, 0)))])
def test_a_gradient_has_the_shapes_of_what_it_is_of(problem):
    dgrad = problem.toward("dgrad")
    assert (dgrad.input_shape, dgrad.output_shape) == (problem.output_shape, problem.input_shape)
    assert dgrad.transposed
    back = dgrad.toward("dgrad")
    assert (back.input_shape, back.output_shape) == (problem.input_shape, problem.output_shape)
    assert back.padding == problem.padding or max(problem.stride) > 1
    of_dgrad, wgrad = dgrad.toward("wgrad"), problem.toward("wgrad")
    assert of_dgrad.filter_shape == dgrad.filter_shape == problem.filter_shape
    assert (of_dgrad.input_shape, of_dgrad.output_shape) == (dgrad.output_shape, dgrad.input_shape)
    x, y, w = (math.prod(one) for one in (problem.input_shape, problem.output_shape, problem.filter_shape))
    assert (wgrad.moved[1], wgrad.flops) == (4 * w, problem.flops)
    assert wgrad.moved[0] <= 2 * (x + y)


@pytest.mark.cover(0, keep=["images", "rows"])
@pytest.mark.parametrize(
    "problem", [IMAGES, VOLUMES, IMAGES.replace(layout="NHWC"), ROWS], ids=["images", "volumes", "NHWC", "rows"]
)
def test_plans_of_filter_gradients_run(problem):
    found = nkiconv.plan(problem, direction="wgrad", bias=True, use_cache=False, robust="off")
    name = "depthwise_conv1d" if problem is ROWS else "conv3d" if problem.is_volume else "conv2d"
    assert found.operation == f"{name}_weight"
    assert found.problem == problem.toward("wgrad")
    assert nkiconv.Plan.from_json(found.to_json()) == found
    first = estimate(Request(problem=found.problem, asked=Asked(bias=True)), use_cache=False)
    us = {one.config: one.us for one in found.alternatives}
    assert found.alternatives[0].us <= us.get(first.config, math.inf)
    assert 0 < found.roofline_fraction < 1


def test_settings_that_only_the_default_rule_completes_have_no_neighbours():
    big = ConvProblem(N=2, C=384, H=120, W=208, K=192, R=3, S=3, padding=((1, 1), (1, 1)), direction="wgrad")
    field = field_of(Request(problem=big, asked=Asked(bias=True)), Rates())
    partial = field.check("blocks", (("pixels", 0),))
    assert isinstance(partial, Candidate)
    assert field.near(partial) == []


@pytest.mark.slow
def test_the_last_plan_is_kept_with_how_robust_it_is(plans):
    problem = nkiconv.ConvProblem(N=1, C=16, W=64, S=3)
    found = nkiconv.plan(problem, robust="on")
    assert (found.robust, found.cached) == (20, False)
    assert nkiconv.plan(problem).cached
    assert nkiconv.plan(problem, robust=20).cached
    other = nkiconv.plan(problem, robust=3.5)
    assert (other.robust, other.cached) == (3.5, False)
    assert nkiconv.plan(problem, robust=3.5).cached
    plain = nkiconv.plan(problem)
    assert (plain.robust, plain.cached) == (20, False)
    tuned = nkiconv.plan(problem, robust="off", wide=True)
    assert nkiconv.plan(problem) == tuned
    assert (nkiconv.plan(problem, robust="on").robust, tuned.robust) == (20, 0)
    assert other.fastest_us <= other.modelled_us <= 1.035 * other.fastest_us
    assert nkiconv.Plan.from_json(other.to_json()) == other


class Known(Regrets):
    """Regrets of made-up times: of each candidate, as assumed and at ends of constants' ranges."""

    def __init__(self, times):
        self.times = times
        trials = [Trial(Candidate(name, None), us[0], 1, name, 1.0) for name, us in times.items()]
        super().__init__(trials[0], trials, {})

    def ends(self, one):
        return range(1, len(self.times[one.timing]))

    def us(self, one, end):
        return self.times[one.timing][end]


@pytest.mark.parametrize(("times", "better"), [
    ({"fast": (100, 300), "slower": (115, 115)}, ["slower"]),  # 0.9 * 1 + 0.1 * 2.61 > 0.9 * 1.15 + 0.1 * 1
    ({"fast": (100, 120), "slower": (105, 105)}, []),
    ({"fast": (100, 120), "slower": (101, 101)}, ["slower"]),
    ({"fast": (100, 150, 100), "as bad elsewhere": (101, 101, 160)}, []),
    ({"fast": (100, 300), "half": (103, 150), "all": (106, 106)}, ["all", "half"]),
    ({"fast": (100, 300), "alike": (100, 300)}, []),
])  # fmt: skip
def test_a_slower_plan_is_worth_what_it_spares(times, better):
    regrets = Known(times)
    assert [one.timing for one in regrets.better(regrets.rivals, math.inf)] == better


def test_a_ruinous_plan_is_hedged():
    problem = cases.get("prime").problem
    fast, now = planned(problem, robust="off"), planned(problem)
    assert (fast.algorithm, now.algorithm) == ("stacked", "implicit_gemm")
    assert fast.modelled_us == now.fastest_us < now.modelled_us < (1 + now.robust / 100) * now.fastest_us
    assert now.worst_regret < RUINOUS < 2 < now.fastest_regret
    assert expected(now.modelled_us / now.fastest_us, now.worst_regret) < expected(1, now.fastest_regret)
    assert f"with {now.fastest_risk}, this one at most {now.worst_regret:.2f} times" in " ".join(now.explain().split())
    assert "not hedged" not in now.explain()


def test_a_hedge_is_looked_for_when_screening_has_used_up_the_budget(monkeypatch):
    monkeypatch.setattr(timekeeper, "BUDGET", 1)
    found = planned(cases.get("prime").problem)
    assert (found.algorithm, found.fastest_us < found.modelled_us) == ("implicit_gemm", True)
    assert found.worst_regret < RUINOUS < 2 < found.fastest_regret


def test_a_hedge_timed_by_parts_is_compared_with_a_plan_timed_as_a_whole():
    regrets = Known({"fast": (100, 300), "slower": (103, 103)})
    by_parts = dataclasses.replace(regrets.rivals[1], extrapolated_from=8)
    assert regrets.cost(by_parts) == regrets.cost(regrets.rivals[1]) < regrets.most


def test_bands_share_a_dma_with_other_groups_before_other_channels():
    problem = ConvProblem(N=1, C=4096, W=8192, S=128, groups=4096, padding=((0, 0), (127, 0)))

    def first(**constants):
        found = field_of(Request(problem=problem), Rates(constants)).start(wide=False)[0]
        return next(dict(one.config) for one in found if one.algorithm == "banded" and one.config)

    known, dear = (first(), first(**{"dma.static_issue_ns": 670.0}))
    assert known["joined"] == dear["joined"] == 1
    assert dear["buffer_groups"] > known["buffer_groups"]


def test_a_plan_says_that_nothing_hedges_it():
    problem = cases.get("short").problem
    fast, found = planned(problem, robust="off"), planned(problem)
    assert (found.algorithm, found.config) == (fast.algorithm, fast.config)
    assert found.fastest_risk == "dma.static_issue_ns=670"
    assert "not hedged: nothing that was timed within 20 % of the fastest loses enough less" in found.explain()


@pytest.mark.parametrize(("value", "percent"), [("off", 0), ("on", 20), (5, 5), ("2.5", 2.5), (0, 0)])
def test_per_cent(value, percent):
    assert percent_of(value) == percent


def test_the_table_has_regrets_where_they_were_asked_for(plans):
    plain, found = (
        next(csv.DictReader(run("plan", "short", "--format", "csv", *more).stdout.splitlines()))
        for more in ([], ["--robust", "on"])
    )
    assert not {"worst regret", "worst constant", "fastest us", "its regret"} & set(plain)
    assert found["fastest us"] == found["modelled us"] == plain["modelled us"]
    assert found["worst regret"] == found["its regret"] > "1.02"
    assert found["worst constant"] == "dma.static_issue_ns=670"
