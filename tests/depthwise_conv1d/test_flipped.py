"""Taps that run backwards, as the gradient by x reads them: every algorithm, exact, free."""

import itertools

import hypothesis
import numpy as np
import pytest
from depthwise import EDGE, Row, integers, run, trace, truth
from draws import cores, draws
from epilogue import Request, check, refused
from hypothesis import strategies as st
from tolerances import assert_exact

import nkiconv
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

ROWS = [row for row in EDGE if row.S > 1 and row.W <= 3000]
PLAIN = Row("several blocks of taps", 2, 130, 400, 300, 1, (299, 0))
ALGORITHMS = ("mixed", "vector", "banded")


def turned(w):
    return np.ascontiguousarray(w[..., ::-1])


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row", [*ROWS, PLAIN], ids=lambda row: row.id)
def test_equals_filters_forwards(row, dtype):
    problem = row.problem(dtype)
    x, w = integers(np.random.default_rng(3), problem)
    expected, _ = truth(x, w, problem)
    for lnc in cores():
        assert_exact(run(x, turned(w), problem, lnc, flipped=True), expected, dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("row", [Row("few", 2, 131, 60, 4, 1, (3, 0)), Row("many", 2, 70, 60, 33, 1, (20, 12))])
def test_by_every_algorithm(row, algorithm):
    problem = row.problem("bf16")
    x, w = integers(np.random.default_rng(4), problem)
    expected, _ = truth(x, w, problem)
    configs = [None, (("x_stationary", True),)] if algorithm == "banded" else [None]
    for lnc, config in itertools.product(cores(), configs):
        found = run(x, turned(w), problem, lnc, algorithm=algorithm, flipped=True, config=config)
        assert_exact(found, expected, "bf16")


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


@pytest.mark.simulator_only
@pytest.mark.parametrize(("algorithm", "S"), [("mixed", 4), ("banded", 33)])
def test_reversed_taps_cost_nothing(algorithm, S):
    problem = Row("mamba2", 1, 512, 2048, S, 1, (0, S - 1)).problem("bf16")
    times = [in_time(trace(problem, algorithm, flipped=flipped), Rates()).us for flipped in (False, True)]
    assert times[1] <= 1.001 * times[0]


def test_no_images():
    w, gy = np.zeros((4, 3), "f4"), np.zeros((0, 4, 18), "f4")
    assert nkiconv.depthwise_conv1d_input((0, 4, 20), w, gy).shape == (0, 4, 20)


@pytest.mark.parametrize("algorithm", ["dot", "update"])
def test_what_is_refused(algorithm):
    short = Row("short", 1, 3, 40, 30).problem("fp32").replace(transposed=True)
    assert f"flipped=True: {algorithm} reads taps in order; use mixed, vector or banded" in refused(algorithm, short)
