"""Taps that run backwards, as the gradient by x reads them: every algorithm, exact, free."""

import itertools

import hypothesis
import numpy as np
import pytest
from depthwise import EDGE, Row, integers, run, truth
from draws import cores, draws
from epilogue import Request, check, refused
from hypothesis import strategies as st
from tolerances import assert_exact

import nkiconv

ROWS = [
    Row("few", 2, 131, 60, 4, 1, (3, 0)), Row("many", 2, 70, 60, 33, 1, (20, 12)),
    Row("several blocks of taps", 2, 130, 400, 300, 1, (299, 0)), Row("crop", 1, 7, 40, 5, 3, (-4, 6)),
    Row("stride", 1, 5, 300, 200, 2, (7, 1)), Row("dilation", 2, 9, 50, 5, 1, (4, 4), 3),
    *[row for row in EDGE if row.lhs > 1 and row.S < 10],
]  # fmt: skip
#: Not of rows that an algorithm refuses, nor of taps that take it long.
TAKEN = [
    pytest.param(row, algorithm, id=f"{row.id}-{algorithm}")
    for row, algorithm in itertools.product(ROWS, (None, "mixed", "vector", "banded"))
    if not (algorithm == "banded" and (row.lhs > 1 or row.dilation > 1 < row.stride))
    if not (algorithm in ("mixed", "vector") and row.S > 64)
]


def turned(w):
    return np.ascontiguousarray(w[..., ::-1])


@pytest.mark.cover(14)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("row", "algorithm"), TAKEN)
def test_by_every_algorithm(row, dtype, algorithm):
    problem = row.problem(dtype)
    x, w = integers(np.random.default_rng(4), problem)
    expected, _ = truth(x, w, problem)
    configs = [None, (("x_stationary", True),)] if algorithm == "banded" and row.dilation == 1 else [None]
    for lnc, config in itertools.product(cores(), configs):
        found = run(x, turned(w), problem, lnc, algorithm=algorithm, flipped=True, config=config)
        assert_exact(found, expected, dtype)


@draws(16, 40)
@hypothesis.given(
    st.integers(1, 2), st.sampled_from((1, 3, 64, 130)), st.integers(1, 90), st.integers(1, 40), st.integers(1, 3),
    st.integers(1, 2), st.tuples(st.integers(0, 5), st.integers(-1, 5)), st.sampled_from(("bf16", "fp16", "fp32")),
)  # fmt: skip
def test_gradients_by_x(N, C, W, S, stride, dilation, pad, dtype):
    forward = Row("any", N, C, W, S, stride, pad, dilation)
    hypothesis.assume(W + sum(pad) >= (S - 1) * dilation + 1)
    problem = forward.problem(dtype)
    back = problem.toward("dgrad")
    assert back.transposed
    gy, w = integers(np.random.default_rng(W), back)
    found = nkiconv.depthwise_conv1d_input(
        (N, C, W), w[:, 0, 0], gy[:, :, 0], stride=stride, padding=pad, dilation=dilation
    )
    assert_exact(found[:, :, None], truth(gy, w, back)[0], dtype)


def test_with_an_epilogue_and_a_state():
    problem = Row("causal", 2, 130, 100, 20, 1, (19, 0)).problem("fp32").replace(transposed=True)
    for algorithm in ("mixed", "banded", "vector"):
        check(problem, Request("fp32", "relu", residual="fp32", state=True), 7, whole=True, algorithm=algorithm)


def test_no_images():
    w, gy = np.zeros((4, 3), "f4"), np.zeros((0, 4, 18), "f4")
    assert nkiconv.depthwise_conv1d_input((0, 4, 20), w, gy).shape == (0, 4, 20)


@pytest.mark.parametrize("algorithm", ["dot", "update"])
def test_what_is_refused(algorithm):
    short = Row("short", 1, 3, 40, 30).problem("fp32").replace(transposed=True)
    assert f"flipped=True: {algorithm} reads taps in order; use mixed, vector or banded" in refused(algorithm, short)
