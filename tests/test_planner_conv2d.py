"""Plans of conv2d: what is listed, timed, chosen and told; that they run, and are those of the kernel's function."""

import numpy as np
import pytest

import nkiconv
from nkiconv import ConvProblem, Plan, cases, plan
from nkiconv.planner import Asked, Request, candidates
from nkiconv.planner.estimate import chosen
from nkiconv.planner.timing import trace
from nkiconv.schedules.conv_algorithms import ALGORITHMS
from nkiconv.simulator.timing import Rates
from nkiconv.tools.suites.profiles import profile_case

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
SMALL = ConvProblem(N=2, C=12, H=14, W=11, K=20, R=3, S=2, padding=((1, 1), (0, 2)), dtype="fp32")
DEPTHWISE = ConvProblem(N=2, C=130, H=9, W=10, R=3, S=3, groups=130, padding=((1, 1), (1, 1)))


@pytest.mark.slow
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


@pytest.mark.parametrize(("precision", "share"), [("fp16x3", 0.75)])
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
