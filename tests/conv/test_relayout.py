"""Copies of NHWC tensors as NCHW for the algorithms that take rows: every algorithm is exact in every layout."""

import itertools

import numpy as np
import pytest
from conv_calls import EDGE, check_exact, config_of, geometry_of, in_layout, integers, options_of, planned, run
from draws import cores
from tolerances import assert_exact

from nkiconv.kernels._epilogue import read_epilogue
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.schedules import relayout
from nkiconv.schedules.conv_algorithms import ALGORITHMS, plan_of

SAME = ((1, 1), (1, 1))
PROBLEMS = {
    "few inputs": ConvProblem(N=3, C=3, H=31, W=30, K=20, R=7, S=7, stride=(2, 2), padding=((3, 2), (3, 2))),
    "few outputs": ConvProblem(N=1, C=140, H=23, W=18, K=3, R=3, S=3, padding=SAME),
    "depthwise": ConvProblem(N=2, C=130, H=12, W=14, K=130, R=3, S=3, groups=130, padding=SAME),
    "small groups": ConvProblem(N=2, C=64, H=9, W=8, K=96, R=3, S=3, groups=16, padding=SAME),
    "many pixels": ConvProblem(N=1, C=18, H=40, W=150, K=17, R=3, S=2, padding=((1, 1), (0, 1))),
    "more than 128 tiles of pixels": ConvProblem(N=1, C=3, H=131, W=129, K=70, R=1, S=1),
    "one row": ConvProblem(N=2, C=5, W=300, K=33, S=5, padding=((0, 0), (2, 2))),
    "one column": ConvProblem(N=1, C=20, H=300, K=6, R=5, padding=((2, 2), (0, 0)), W=1, S=1),
}
ROWS = [one for one in ALGORITHMS if one not in relayout.OWN]
RUNS = [
    (name, algorithm, dtype)
    for name, algorithm in itertools.product(PROBLEMS, ROWS)
    for dtype in ("bf16", "fp32")
    if planned(PROBLEMS[name].replace(layout="NHWC", dtype=dtype), algorithm)[0] is not None
]
#: Each of them in one dtype.
ONCE = [one for one in RUNS if one[2] == "bf16"]
#: in_perm and out_perm beside those of NHWC: one side alone, rows and columns swapped
PERMS = [((0, 3, 1, 2), None), (None, (0, 2, 3, 1)), ((0, 3, 2, 1), (0, 3, 2, 1)), ((3, 2, 1, 0), (2, 3, 0, 1))]


def how(algorithm):
    return {"config": config_of(algorithm)}


@pytest.mark.cover(8)
@pytest.mark.parametrize(("name", "algorithm", "dtype"), RUNS)
def test_integers_are_exact(name, algorithm, dtype):
    check_exact(PROBLEMS[name].replace(dtype=dtype, layout="NHWC"), **how(algorithm))


@pytest.mark.cover(7)
@pytest.mark.parametrize("perms", PERMS, ids=str)
@pytest.mark.parametrize(("name", "algorithm", "dtype"), ONCE)
def test_other_layouts_are_exact(name, algorithm, dtype, perms):
    check_exact(PROBLEMS[name].replace(dtype=dtype), in_perm=perms[0], out_perm=perms[1], **how(algorithm))


@pytest.mark.cover(5)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["few inputs", "few outputs", "depthwise"])
def test_residuals_are_copied_too(name, dtype):
    problem = PROBLEMS[name].replace(layout="NHWC", dtype=dtype)
    rng = np.random.default_rng(3)
    x, w = integers(rng, problem)
    bias = rng.integers(-9, 10, problem.K).astype(np.float32)
    residual = rng.integers(-9, 10, problem.output_shape).astype(np.float32 if dtype == "fp32" else x.dtype)
    sums = in_layout(conv_ref(x.transpose(0, 3, 1, 2), w, problem), problem)
    truth = np.maximum(sums + bias - 2.0 * residual.astype(np.float64), 0)
    options = options_of(residual=True, scaled=True, epilogue=read_epilogue("relu", True, True, "pre_activation", 2))
    tried = 0
    for algorithm in ROWS:
        if plan_of(algorithm, geometry_of(problem), options, None, 2)[0] is not None:
            tried += 1
            for lnc in cores(algorithm):
                given = {"bias": bias, "residual": residual, "beta": -2.0, "activation": "relu"}
                y = run(x, w, problem, lnc, config=config_of(algorithm), **given)
                assert_exact(y, truth, problem.dtype)
    assert tried > 0


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("why", EDGE)
def test_every_edge_is_exact(why, dtype):
    """Whatever is chosen."""
    check_exact(EDGE[why].replace(dtype=dtype, layout="NHWC"))


def test_too_many_pixels_are_refused(change):
    change(relayout, "INSTRUCTIONS_MAX", 50_000)  # 5 million take seconds to count
    problem = ConvProblem(N=80_000, C=20, H=60, W=60, K=3, R=3, S=3, layout="NHWC")
    found, reason = planned(problem, "weight_stationary", (("lanes", 1),))
    assert found is None
    assert "N=80000, H=60, W=60: copies of x and y as NCHW need" in reason
    assert "split N over several calls" in reason
