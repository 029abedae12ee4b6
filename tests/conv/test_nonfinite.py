"""strict_nonfinite: NaN and Inf of x exactly where the definition puts them, those of w nowhere else."""

import numpy as np
import pytest
from conv_calls import integers, run
from draws import cores
from tolerances import assert_exact

from nkiconv import ConvProblem
from nkiconv.reference import conv_ref

PADDING = ((1, 2), (0, 1))
PROBLEMS = {
    "dense": ConvProblem(N=2, C=6, H=9, W=8, K=10, R=3, S=2, padding=PADDING, dtype="fp32"),
    "strided groups": ConvProblem(N=2, C=6, H=9, W=8, K=9, groups=3, R=3, S=2, padding=PADDING, stride=(2, 1),
     dtype="fp32"),
    "dilated depthwise": ConvProblem(N=2, C=6, H=9, W=8, K=6, groups=6, R=3, S=2, padding=PADDING, rhs_dilation=(1, 2),
     dtype="bf16"),
    "gaps, several tiles": ConvProblem(N=1, C=260, H=5, W=8, K=140, R=2, S=2, padding=((1, 0), (0, 1)),
     lhs_dilation=(2, 1), dtype="bf16"),
    "few outputs": ConvProblem(N=1, C=40, H=9, W=12, K=3, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32"),
    "long rows": ConvProblem(N=1, C=3, H=20, W=60, K=8, R=7, S=7, padding=((3, 3), (3, 3)), stride=(2, 2)),
    "small groups": ConvProblem(N=2, C=64, H=9, W=8, K=64, groups=16, R=3, S=3, padding=((1, 1), (1, 1))),
}  # fmt: skip
VALUES = [np.nan, np.inf, -np.inf]


def with_bad(problem, value, where):
    x, w = integers(np.random.default_rng(1), problem)
    w[w == 0] = 1
    (x if where == "x" else w)[(0, 3 % problem.C, 4, 5) if where == "x" else (problem.K // 2, 0, 1, 1)] = value
    return x, w


@pytest.mark.cover(7)
@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_bad_inputs_follow_the_definition(name, value):
    problem = PROBLEMS[name]
    x, w = with_bad(problem, value, "x")
    truth = conv_ref(x, w, problem)
    assert 0 < np.count_nonzero(~np.isfinite(truth)) < truth.size
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, strict_nonfinite=True), truth, problem.dtype)


@pytest.mark.cover(7)
@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_bad_taps_reach_the_outputs_whose_window_has_an_input_there(name, value):
    """Padding is no input: a tap that meets nothing else is not multiplied."""
    problem = PROBLEMS[name]
    x, w = with_bad(problem, value, "w")
    only = np.zeros(problem.filter_shape)
    only[problem.K // 2, 0, 1, 1] = 1
    expected = conv_ref(np.ones(problem.input_shape), only, problem) != 0
    assert 0 < np.count_nonzero(expected) < expected.size
    for lnc in cores():
        y = run(x, w, problem, lnc, strict_nonfinite=True).astype(np.float64)
        np.testing.assert_array_equal(~np.isfinite(y), expected)
        w_finite = np.where(np.isfinite(w.astype(np.float64)), w, 0).astype(w.dtype)
        rest = conv_ref(x, w_finite, problem)
        np.testing.assert_array_equal(y[~expected], rest.astype(y.dtype)[~expected])


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", PROBLEMS)
def test_without_it_nothing_is_lost(name):
    """Bad inputs may spread, but every output that the definition spoils is spoilt."""
    problem = PROBLEMS[name]
    x, w = with_bad(problem, np.nan, "x")
    spoilt = np.isnan(conv_ref(x, w, problem))
    y = run(x, w, problem, 2).astype(np.float64)
    assert np.isnan(y[spoilt]).all()
