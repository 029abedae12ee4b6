"""Plans of conv2d: what is listed, timed, chosen and told; that they run, and are those of the kernel's function."""

import numpy as np
import pytest

import nkiconv
from nkiconv import ConvProblem, Plan, cases, plan
from nkiconv.planner import Asked, Request, candidates
from nkiconv.planner.estimate import chosen
from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.timekeeper import CLOSE
from nkiconv.planner.timing import trace
from nkiconv.schedules.activation_stationary_candidates import steady_warm_up
from nkiconv.schedules.conv_algorithms import ALGORITHMS
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target
from nkiconv.tools.suites.profiles import profile_case

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
SMALL = ConvProblem(N=2, C=12, H=14, W=11, K=20, R=3, S=2, padding=((1, 1), (0, 2)), dtype="fp32")
DEPTHWISE = ConvProblem(N=2, C=130, H=9, W=10, R=3, S=3, groups=130, padding=((1, 1), (1, 1)))


@pytest.mark.slow
def test_a_plan_tries_every_number_of_neighbours():
    """Prices tie; all but seven let the array fall back to half its rate."""
    problem = cases.get("rn50_1x1").problem
    found = plan(problem.replace(layout="NHWC"), use_cache=False)
    assert (found.algorithm, dict(found.config)["side"]) == ("activation_stationary", 7)
    others = [one.us for one in found.alternatives if dict(one.config).get("side", 7) != 7]
    assert others
    assert found.phase0_us < min(others)


@pytest.mark.parametrize(
    ("columns", "warms"), [(47, False), (48, True), (64, True), (95, True), (96, False), (128, False)]
)
def test_matmuls_that_hold_a_rate_but_do_not_reach_it_are_warmed_up(columns, warms):
    """Of the time of 128 columns 3/8 hold the full rate, and 3/4 reach it; so do zeros of 5/4 of a window of 3.4 us."""
    assert steady_warm_up(Target.of(Rates()), columns) in (range(24, 45) if warms else (0,))


@pytest.mark.slow
def test_a_plan_of_64_columns_is_at_its_full_rate_at_any_phase():
    problem = ConvProblem(N=2, C=128, H=56, W=56, K=64, R=3, S=3, padding=((1, 1), (1, 1)), layout="NHWC")
    found = plan(problem, use_cache=False, algorithms=("activation_stationary",))
    assert found.worst_us <= 1.1 * found.phase0_us
    config = tuple({**dict(found.config), "fold": 1, "warmup": 28}.items())
    case = cases.Case("64 columns", "conv2d", problem, "", False)
    cold, _ = profile_case(case, algorithm="activation_stationary", config=config)
    assert cold.profile.phases.worst_us > 1.5 * found.worst_us


@pytest.mark.slow
def test_a_plan_avoids_row_tiles_that_take_turns():
    problem, turns = cases.get("mobilenet_dw").problem, {"pe.row_tiles_overlap": 0.0}
    usual = plan(problem, use_cache=False)
    best = candidates.Candidate(usual.algorithm, usual.config)
    slow = trace(Request(problem=problem), best, Rates(turns))
    assert slow.us > 1.4 * usual.phase0_us
    assert plan(problem, use_cache=False, constants=turns).phase0_us < 0.9 * slow.us


@pytest.mark.cover(0, keep=["few"])
@pytest.mark.parametrize(
    "problem", [SMALL, DEPTHWISE, cases.get("rn50_stem").problem], ids=["few", "depthwise", "stem"]
)
def test_candidates_and_their_neighbours_run(problem):
    field = candidates.field_of(Request(problem=problem), Rates())
    accepted, rejected = field.start(wide=True)
    assert {one.algorithm for one in (*accepted, *rejected)} == set(ALGORITHMS)
    assert all(one.reason for one in rejected)
    for one in accepted:
        assert min(candidates.symbols_of(Request(problem=problem), one.algorithm, one.config).values()) >= 0
        for other in field.near(one):
            assert other.algorithm == one.algorithm
            assert other.config != one.config


@pytest.mark.slow
@pytest.mark.cover(0, keep=["1-rn50_1x1", "2-rect_filter", "2-whisper_conv1"])
@pytest.mark.parametrize("name", ["rn50_1x1", "mobilenet_dw", "whisper_conv1", "rect_filter"])
@pytest.mark.parametrize("lnc", [1, 2])
def test_no_timeline_beats_its_lower_bound(name, lnc):
    """By more than a search allows for: DMAs overlap by their last packets."""
    wanted = Request(problem=cases.get(name).problem, lnc=lnc)
    rates = Rates()
    for one in candidates.field_of(wanted, rates).start(wide=True)[0]:
        traced = trace(wanted, one, rates)
        assert traced.least_us <= CLOSE * traced.us, one


@pytest.mark.cover(0, keep=["few"])
@pytest.mark.parametrize("problem", [SMALL, DEPTHWISE], ids=["few", "depthwise"])
def test_the_plan_is_the_fastest_and_none_is_slower_than_the_kernels_choice(problem):
    found = plan(problem, use_cache=False)
    assert found.phase0_us == min(one.us for one in found.alternatives if not one.at_least)
    field = candidates.field_of(Request(problem=problem), Rates())
    own = candidates.Candidate(*field.operation.choice(field.request, field.shape))
    assert found.phase0_us <= trace(Request(problem=problem), own, Rates()).us


@pytest.mark.slow
def test_a_precision_that_one_algorithm_takes():
    problem = cases.get("c256_32x16_fp32").problem
    plain, pairs = plan(problem), plan(problem, precision="fp16x3")
    assert (pairs.algorithm, pairs.phase0_us < plain.phase0_us) == ("implicit_gemm", True)
    assert {one.algorithm for one in pairs.rejected} == set(ALGORITHMS) - {"implicit_gemm"}
    assert pairs.roofline_us == pytest.approx(0.75 * plain.roofline_us)  # three passes of four
    assert Plan.from_json(pairs.to_json()) == pairs


SQUARE = {"N": 1, "H": 28, "W": 28, "padding": ((1, 1), (1, 1)), "dtype": "fp32"}
TAKEN_BY_WEIGHT_STATIONARY = [
    ConvProblem(C=64, K=64, R=3, S=3, groups=16, **SQUARE),
    ConvProblem(C=32, K=3, R=4, S=4, lhs_dilation=(2, 2), transposed=True, **SQUARE),
]


@pytest.mark.parametrize("problem", TAKEN_BY_WEIGHT_STATIONARY, ids=["groups", "transposed"])
def test_estimates_rank_no_algorithm_that_refuses_a_precision(problem):
    assert chosen(Request(problem=problem)).algorithm == "weight_stationary"
    assert chosen(Request(problem=problem, asked=Asked(precision="fp16x3"))).algorithm == "implicit_gemm"


@pytest.mark.slow
@pytest.mark.cover(1)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", ["c256_32x16_fp32", "rect_filter", "c1k1"])
def test_settings_of_pairs_run_and_none_beats_its_lower_bound(name, lnc):
    wanted, rates = Request(problem=cases.get(name).problem, lnc=lnc, asked=Asked(precision="fp16x3")), Rates()
    field = candidates.field_of(wanted, rates)
    [*accepted] = field.start(wide=True)[0]
    for one in [*accepted, *field.near(accepted[0])]:
        assert one.algorithm == "implicit_gemm"
        traced = trace(wanted, one, rates)
        assert traced.least_us <= CLOSE * traced.us, one
        assert candidates.symbols_of(wanted, one.algorithm, one.config)["items"] >= 1


@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.25), ("fp16x3", 0.75)])
def test_the_roofline_is_of_the_precision(precision, share):
    case = cases.get("c256_32x16_fp32")
    exact, _ = profile_case(case)
    found, _ = profile_case(case, precision=precision)
    assert found.precision == precision
    assert found.as_dict()["precision"] == precision
    least_us = exact.problem.min_bytes / 716e3
    assert found.profile.roofline_us == pytest.approx(max(least_us, share * exact.profile.roofline_us))


@pytest.mark.slow
def test_plans_run():
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, SMALL.input_shape).astype(np.float32)
    w = rng.integers(-3, 4, SMALL.filter_shape).astype(np.float32)
    how = {"padding": SMALL.padding}
    expected = nkiconv.conv2d(x, w, **how)
    for found in plan(SMALL).alternatives:
        for lnc in (1, 2):
            y = nkiconv.conv2d(x, w, **how, lnc=lnc, algorithm=found.algorithm, config=found.config)
            np.testing.assert_array_equal(y, expected)


def test_everything_asked_for_reaches_the_kernel():
    asked = Asked(
        bias=True, activation="silu", residual="post_activation", out_dtype="bf16", strict_nonfinite=True, scaled=True,
        precision="bf16",
    )  # fmt: skip
    wanted = Request(problem=SMALL.replace(layout="NHWC"), asked=asked)
    args, kwargs = OPERATIONS["conv2d"].launch(wanted, "implicit_gemm", (("warmup", 3),))
    assert [one.shape for one in args] == [(2, 14, 11, 12), (20, 12, 3, 2)]
    assert kwargs["bias"].shape == (20,)
    assert kwargs["residual"].shape == wanted.problem.output_shape
    assert kwargs["beta"] != 1.0
    assert dict(kwargs.pop("config"))["warmup"] == 3
    plain = {name: value for name, value in kwargs.items() if name not in ("bias", "residual", "beta", "out_dtype")}
    assert plain == {
        "padding": SMALL.padding, "stride": (1, 1), "rhs_dilation": (1, 1), "lhs_dilation": (1, 1),
        "feature_group_count": 1, "in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1), "activation": "silu",
        "residual_position": "post_activation", "precision": "bf16", "strict_nonfinite": True,
        "algorithm": "implicit_gemm",
    }  # fmt: skip


@pytest.mark.slow
def test_packed_filters_are_planned_as_pack_filter_makes_them():
    problem = cases.get("rn50_c4").problem
    w = np.zeros(problem.filter_shape, np.float32)
    args, _ = OPERATIONS["conv2d"].launch(Request(problem=problem, asked=Asked(packed=True)), "implicit_gemm", None)
    assert args[1].shape == nkiconv.pack_filter(w.astype(nkiconv.problem.DTYPES["bf16"])).shape
    packed, plain = (plan(problem, packed=one, algorithms=("implicit_gemm",)) for one in (True, False))
    assert packed.phase0_us < plain.phase0_us
