"""NaN and Inf: exactly where the definition puts them with strict_nonfinite, within the shared tile without it."""

import numpy as np
import pytest
from depthwise import EDGE, integers, normals, run, same_bits, truth
from draws import cores
from tolerances import assert_exact, assert_within

from nkiconv.reference import num_terms

#: 6 channels share a matmul by default; padding, stride and gaps make zeros that meet the bad values
PROBLEM = EDGE[0].problem("fp32").replace(N=2, C=6, K=6, groups=6, W=40, S=5, padding=((0, 0), (2, 1)))
GEOMETRIES = [
    PROBLEM,
    PROBLEM.replace(stride=(1, 3), rhs_dilation=(1, 2)),
    PROBLEM.replace(lhs_dilation=(1, 2), padding=((0, 0), (9, 0))),
    PROBLEM.replace(S=140, padding=((0, 0), (120, 30))),
    PROBLEM.replace(W=700, padding=((0, 0), (600, 0))),
]
BAD_VALUES = [np.nan, np.inf, -np.inf]


def with_bad(problem, value, where):
    x, w = integers(np.random.default_rng(1), problem)
    w[w == 0] = 1
    (x if where == "x" else w)[(0, 3, 0, 2) if where == "x" else (3, 0, 0, 1)] = value
    return x, w


@pytest.mark.parametrize("where", ["x", "w"])
@pytest.mark.parametrize("value", BAD_VALUES, ids=str)
@pytest.mark.parametrize("problem", GEOMETRIES, ids=["padded", "strided", "gaps", "tap_tiles", "tiles_of_padding"])
def test_strict_follows_the_definition(problem, value, where):
    x, w = with_bad(problem, value, where)
    y, _ = truth(x, w, problem)
    assert not np.isfinite(y).all()
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, strict_nonfinite=True), y, "fp32")


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [("mixed", (("recipes", ((PROBLEM.S, 0, 0, 0),)), ("start", ()), ("end", ()))), ("banded", None)],
)
def test_default_spreads_within_the_tile(algorithm, config):
    x, w = with_bad(PROBLEM, np.nan, "x")
    y, _ = truth(x, w, PROBLEM)
    shared = run(x, w, PROBLEM, 1, algorithm=algorithm, config=config)
    spoilt, defined = ~np.isfinite(shared), ~np.isfinite(y)
    assert defined.sum() < spoilt.sum() <= 128 * defined.sum(), "what shares a matmul sees 0 * NaN"
    assert spoilt[defined].all()
    assert not spoilt[1].any(), "images do not meet"
    np.testing.assert_array_equal(shared[~spoilt], y[~spoilt])


@pytest.mark.parametrize("problem", GEOMETRIES, ids=["padded", "strided", "gaps", "tap_tiles", "tiles_of_padding"])
def test_strict_agrees_with_default_on_finite_data(problem):
    x, w = normals(np.random.default_rng(2), problem)
    y, abs_sum = truth(x, w, problem)
    one, two = (run(x, w, problem, lnc, strict_nonfinite=True) for lnc in (1, 2))
    assert_within(one, y, abs_sum, num_terms(problem), "fp32")
    assert same_bits(one, two)
