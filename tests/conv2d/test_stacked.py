"""Stacks of rows, shifts and outputs: every shape of one gives the same sums, and needs no more than it says."""

import re

import numpy as np
import pytest
from conv2d_calls import check_exact, config_of, extras_of, geometry_of, integers, planned, run, trace

from nkiconv import cases
from nkiconv.kernels.conv2d.dispatch import choose
from nkiconv.kernels.conv2d.stacked import plan
from nkiconv.problem import ConvProblem

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


def stacked(B, D, U, _step):
    return config_of("stacked", rows=B, shifts=D, outputs=U)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("problem", "B", "D", "U", "step"), SHAPES, ids=IDS)
def test_every_shape_is_exact(problem, B, D, U, step, dtype):
    check_exact(problem.replace(dtype=dtype), config=stacked(B, D, U, step))


@pytest.mark.parametrize(("problem", "B", "D", "U", "step"), SHAPES[::3], ids=IDS[::3])
def test_epilogue_of_every_row_of_a_block(problem, B, D, U, step):
    problem, config = problem.replace(dtype="fp32"), stacked(B, D, U, step)
    rng = np.random.default_rng(2)
    x, w = integers(rng, problem)
    bias = rng.integers(-3, 4, problem.K).astype(np.float32)
    residual = rng.integers(-3, 4, problem.output_shape).astype(np.float32)
    plain = run(x, w, problem, 2, config=config)
    expected = np.maximum(plain + bias[:, None, None] + 2 * residual, 0)
    y = run(x, w, problem, 2, bias=bias, residual=residual, beta=2.0, activation="relu", config=config)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("problem", "B", "D", "U", "step"), SHAPES, ids=IDS)
def test_it_needs_no_more_than_it_says(problem, B, D, U, step, lnc):
    config = stacked(B, D, U, step)
    stack, _ = planned(problem, "stacked", config[1:], lnc)
    assert (stack.B, stack.D, stack.U, stack.step) == (B, D, U, step)
    execution = trace(problem, lnc, config=config)
    geometry = geometry_of(problem)
    most = max(len(program.instructions) for program in execution.programs)
    assert most <= plan.count_instructions(geometry, stack, lnc)
    assert execution.sbuf_peak_bytes <= plan.sbuf_bytes(geometry, stack, False)


@pytest.mark.parametrize(
    ("name", "taken"),
    [("rn50_stem", True), ("rn50_c2", True), ("vit_patch16", True), ("vae_out_rgb", True), ("big_filter", True),
     ("c256_224", False), ("rn50_1x1", False), ("mobilenet_dw", False), ("resnext_g32", False)],
)  # fmt: skip
def test_few_channels_are_stacked(name, taken):
    assert (choose(geometry_of(cases.get(name).problem), extras_of(), 2) == "stacked") == taken


LAYER = ConvProblem(N=1, C=3, H=40, W=40, K=16, R=5, S=5, padding=((2, 2), (2, 2)))


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (LAYER, {"pool": (2, 2)}, r"pool=\(2, 2\): stacked takes \(1, 1\)"),
        (LAYER, {"strict_nonfinite": True}, "strict_nonfinite=True: stacked multiplies"),
        (LAYER.replace(lhs_dilation=(2, 1)), {}, r"lhs_dilation=\(2, 1\): stacked takes"),
        (LAYER.replace(groups=2, C=6), {}, "feature_group_count=2: stacked takes 1"),
        (LAYER.replace(C=129), {}, "C=129: stacked takes at most 128"),
        (LAYER.replace(W=20_000), {}, "W=20000, R=5, S=5: stacked rows and filters must fit"),
    ],
)
def test_what_is_not_stacked(problem, changes, message):
    assert planned(LAYER, "stacked")[1] == ""
    stack, reason = planned(problem, "stacked", **changes)
    assert stack is None
    assert re.search(message, reason)


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
