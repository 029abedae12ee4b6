"""Stacks of rows, shifts and outputs: every shape of one gives the same sums, and needs no more than it says."""

import numpy as np
import pytest
from conv2d_calls import check_exact, integers, run, trace

from nkiconv import cases
from nkiconv.kernels.conv2d.geometry import read_geometry
from nkiconv.kernels.conv2d.stacked import plan
from nkiconv.problem import ConvProblem
from nkiconv.simulator import ArraySpec
from nkiconv.simulator.dtypes import canonical

STRIDED = ConvProblem(
    N=3, C=3, H=17, W=14, K=10, R=5, S=4, stride=(2, 3), padding=((2, 1), (3, 2)), rhs_dilation=(1, 2)
)
DILATED = ConvProblem(N=1, C=5, H=13, W=9, K=7, R=3, S=3, rhs_dilation=(3, 1), padding=((4, 3), (-1, 2)))
WIDE = ConvProblem(N=1, C=2, H=9, W=1100, K=3, R=3, S=2, padding=((1, 1), (0, 1)))
#: problem, rows b, shifts d, outputs u of a block, row blocks from one output block to the next
SHAPES = [
    (STRIDED, 1, 1, 1, 2),
    (STRIDED, 2, 1, 1, 1),
    (STRIDED, 2, 4, 3, 3),
    (STRIDED, 4, 3, 2, 1),
    (STRIDED, 6, 2, 3, 1),
    (STRIDED, 8, 4, 8, 2),
    (DILATED, 1, 1, 1, 1),
    (DILATED, 3, 2, 3, 1),
    (DILATED, 7, 3, 14, 2),
    (WIDE, 2, 2, 2, 1),
    (WIDE, 4, 1, 8, 2),
]
IDS = [f"{name}-{'-'.join(map(str, row[1:]))}" for row in SHAPES for name in [
    {id(STRIDED): "strided", id(DILATED): "dilated", id(WIDE): "wide"}[id(row[0])]
]]  # fmt: skip


def geometry_of(problem):
    dtype = canonical(problem.dtype)
    x = ArraySpec((problem.N, problem.C, problem.H, problem.W), dtype)
    w = ArraySpec((problem.K, problem.C // problem.groups, problem.R, problem.S), dtype)
    places = problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation
    return read_geometry(x, w, *places, problem.groups, 1, (None, None, None), None)[0]


@pytest.fixture
def forced(monkeypatch):
    """Let the kernel take a stack of this shape; returns it."""

    def force(problem, *shape):
        found = plan.make_stack(geometry_of(problem), *shape)
        assert found is not None
        monkeypatch.setattr(plan, "best_stack", lambda geometry, pool: plan.make_stack(geometry, *shape))
        return found

    return force


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("problem", "B", "D", "U", "step"), SHAPES, ids=IDS)
def test_every_shape_is_exact(forced, problem, B, D, U, step, dtype):
    problem = problem.replace(dtype=dtype)
    forced(problem, B, D, U, step)
    check_exact(problem)


@pytest.mark.parametrize(("problem", "B", "D", "U", "step"), SHAPES[::3], ids=IDS[::3])
def test_epilogue_of_every_row_of_a_block(forced, problem, B, D, U, step):
    problem = problem.replace(dtype="fp32")
    forced(problem, B, D, U, step)
    rng = np.random.default_rng(2)
    x, w = integers(rng, problem)
    bias = rng.integers(-3, 4, problem.K).astype(np.float32)
    residual = rng.integers(-3, 4, problem.output_shape).astype(np.float32)
    plain = run(x, w, problem, 2)
    expected = np.maximum(plain + bias[:, None, None] + 2 * residual, 0)
    y = run(x, w, problem, 2, bias=bias, residual=residual, beta=2.0, activation="relu")
    np.testing.assert_array_equal(y, expected)


@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("problem", "B", "D", "U", "step"), SHAPES, ids=IDS)
def test_it_needs_no_more_than_it_says(forced, problem, B, D, U, step, lnc):
    stack = forced(problem, B, D, U, step)
    execution = trace(problem, lnc)
    geometry = geometry_of(problem)
    most = max(len(program.instructions) for program in execution.programs)
    assert most <= plan.count_instructions(geometry, stack, lnc)
    assert execution.sbuf_peak_bytes <= plan.sbuf_bytes(geometry, stack, False)


@pytest.mark.parametrize(
    ("name", "stacked"),
    [("rn50_stem", True), ("rn50_c2", True), ("vit_patch16", True), ("vae_out_rgb", True), ("big_filter", True),
     ("c256_224", False), ("rn50_1x1", False), ("mobilenet_dw", False), ("resnext_g32", False)],
)  # fmt: skip
def test_few_channels_are_stacked(name, stacked):
    assert (plan.best_stack(geometry_of(cases.get(name).problem), (1, 1)) is not None) == stacked


@pytest.mark.parametrize(
    ("changes", "pool"),
    [({}, (2, 2)), ({"lhs_dilation": (2, 1)}, (1, 1)), ({"groups": 2, "C": 6}, (1, 1))],
    ids=["pooling", "gaps", "groups"],
)
def test_what_is_not_stacked(changes, pool):
    problem = ConvProblem(N=1, C=3, H=40, W=40, K=16, R=5, S=5, padding=((2, 2), (2, 2)))
    assert plan.best_stack(geometry_of(problem), (1, 1)) is not None
    assert plan.best_stack(geometry_of(problem.replace(**changes)), pool) is None


def test_bands_cover_every_row_once():
    for problem in (STRIDED, DILATED, WIDE):
        geometry = geometry_of(problem)
        for B, D, U, step in {row[1:] for row in SHAPES if row[0] is problem}:
            stack = plan.make_stack(geometry, B, D, U, step)
            seen = [
                (n, j * U + u)
                for band in plan.stack_bands(geometry, stack)
                for n in range(band.n0, band.n0 + band.nn)
                for j in range(band.j0, band.j0 + band.jn)
                for u in range(U)
            ]
            assert len(seen) == len(set(seen))
            assert {(n, p) for n in range(problem.N) for p in range(problem.P)} <= set(seen)
