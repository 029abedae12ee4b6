"""Depthwise convolutions by band matrices: exact for every geometry that they take, chosen where they pay."""

import numpy as np
import pytest
from conv2d_calls import check_exact, integers, run, trace

from nkiconv import cases
from nkiconv.kernels.conv2d.depthwise import plan
from nkiconv.kernels.conv2d.geometry import read_geometry
from nkiconv.problem import ConvProblem
from nkiconv.simulator import ArraySpec
from nkiconv.simulator.dtypes import canonical


def depthwise(C, **fields):
    return ConvProblem(C=C, K=C, groups=C, **fields)


ROWS = {
    "same": depthwise(6, N=2, H=14, W=13, R=7, S=7, padding=((3, 3), (3, 3))),
    "stride": depthwise(150, N=3, H=9, W=8, R=3, S=2, stride=(2, 1)),
    "both strides": depthwise(5, N=2, H=20, W=23, R=4, S=5, stride=(3, 4), padding=((1, 3), (2, 0))),
    "dilation": depthwise(7, N=1, H=19, W=38, R=2, S=4, rhs_dilation=(3, 2), padding=((1, 2), (-1, 3))),
    "cropped": depthwise(5, N=2, H=9, W=9, R=3, S=3, padding=((-1, -2), (-2, 1))),
    "padded beyond the filter": depthwise(3, N=1, H=4, W=5, R=2, S=2, padding=((9, 8), (7, 6))),
    "one tap": depthwise(9, N=2, H=6, W=5, R=1, S=1),
    "two channels": depthwise(2, N=1, H=12, W=12, R=3, S=3, padding=((1, 1), (1, 1))),
    "all rows": depthwise(3, N=1, H=128, W=6, R=9, S=3, padding=((4, 4), (1, 1))),
    "several banks": depthwise(9, N=20, H=40, W=50, R=5, S=5, padding=((2, 2), (2, 2))),
    "several rounds": depthwise(300, N=1, H=62, W=9, R=3, S=9, padding=((1, 1), (4, 4))),
}


def geometry_of(problem):
    dtype = canonical(problem.dtype)
    x = ArraySpec((problem.N, problem.C, problem.H, problem.W), dtype)
    w = ArraySpec((problem.K, problem.C // problem.groups, problem.R, problem.S), dtype)
    places = problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation
    return read_geometry(x, w, *places, problem.groups, 1, (None, None, None), None)[0]


@pytest.fixture
def always(monkeypatch):
    """Bands wherever they can be."""
    monkeypatch.setattr(plan, "WORTHWHILE", 1e9)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ROWS)
def test_exact(always, name, dtype):
    problem = ROWS[name].replace(dtype=dtype)
    assert plan.best_bands(geometry_of(problem), (1, 1)) is not None
    check_exact(problem)


@pytest.mark.parametrize("name", ["both strides", "several banks"])
def test_epilogue(always, name):
    problem = ROWS[name].replace(dtype="fp32")
    rng = np.random.default_rng(2)
    x, w = integers(rng, problem)
    bias = rng.integers(-3, 4, problem.K).astype(np.float32)
    residual = rng.integers(-3, 4, problem.output_shape).astype(np.float32)
    expected = np.maximum(run(x, w, problem, 2) + bias[:, None, None] - residual, 0)
    y = run(x, w, problem, 2, bias=bias, residual=residual, beta=-1.0, activation="relu")
    np.testing.assert_array_equal(y, expected)


@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", ROWS)
def test_it_needs_no_more_than_it_says(always, name, lnc):
    problem = ROWS[name]
    geometry = geometry_of(problem)
    bands = plan.best_bands(geometry, (1, 1))
    execution = trace(problem, lnc)
    most = max(len(program.instructions) for program in execution.programs)
    assert most <= plan.count_instructions(geometry, bands, lnc)
    assert execution.sbuf_peak_bytes <= plan.sbuf_bytes(geometry, bands, False)


@pytest.mark.parametrize(("name", "taken"), [("convnext_dw7", True), ("mobilenet_dw", False), ("mult2_dw", False)])
def test_taken_where_rows_are_long_enough(name, taken):
    assert (plan.best_bands(geometry_of(cases.get(name).problem), (1, 1)) is not None) == taken


@pytest.mark.parametrize(
    ("problem", "pool"),
    [
        (ROWS["same"], (2, 1)),
        (ROWS["same"].replace(H=129), (1, 1)),
        (ROWS["same"].replace(K=12), (1, 1)),
        (ROWS["same"].replace(groups=3), (1, 1)),
        (ROWS["same"].replace(lhs_dilation=(1, 2)), (1, 1)),
        (ROWS["same"].replace(W=520, padding=((0, 0), (3, 3))), (1, 1)),
    ],
    ids=["pooling", "too many rows", "multiplier", "groups of two", "gaps", "more columns than a bank"],
)
def test_what_bands_do_not_do(always, problem, pool):
    assert plan.best_bands(geometry_of(problem), pool) is None
