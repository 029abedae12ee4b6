"""Bias, activation, residual and output dtype of every algorithm: exact on integers, within the bound on normals.

Which algorithm takes which row is asked of `dispatch.refusal` when the tests are collected; what it says to the others
is tested in test_algorithms.py.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from depthwise import Row, run
from epilogue import FLOATS, PLAIN, Request, check, check_stored, draw, keywords, reason_to_refuse
from scope import runs

from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.rules import ACTIVATIONS, RESIDUAL_POSITIONS

ROWS = [
    #   why                             N  C    W    S  stride  pad        dil  lhs
    Row("short filter", 1, 131, 40, 4, 1, (3, 0)),
    Row("few columns", 2, 5, 200, 197),
    Row("long filter", 1, 5, 700, 40, 1, (20, 19)),
    Row("one step", 5, 130, 1, 4, 1, (3, 0)),
    Row("all parameters", 2, 7, 50, 5, 3, (2, 4), 2, 3),
    Row("wide strides", 1, 3, 3000, 5, 65),
    Row("columns of padding only", 1, 2, 10, 3, 1, (1500, 600)),
    Row("several column tiles", 1, 3, 2100, 6, 1, (5, 0)),
]

#: Each activation alone and with everything; each way of leaving something out. In fp32, where gelu is not gelu_tanh.
EVERY = [
    Request(bias, activation, residual, position, "fp32")
    for bias in (None, "fp32")
    for activation in (None, *ACTIVATIONS)
    for residual, position in ((None, RESIDUAL_POSITIONS[0]), *(("fp32", position) for position in RESIDUAL_POSITIONS))
]
SOME = [
    Request("bf16"),
    Request("fp32", "silu"),
    Request(None, "gelu", "bf16", "post_activation", "fp32"),
    Request("fp16", "relu", "fp32", "pre_activation", "bf16"),
    Request("fp32", None, "fp16", "post_activation", "fp16"),
]


#: Channels at most, where the kernel's instructions are many for each: `update` takes a matmul for a few positions of
#: a few channels.
CHANNELS_MOST = {"update": 20}


def rows_of(algorithm, rows):
    """The rows, of no more channels than the algorithm does in little time."""
    return [replace(row, C=min(row.C, CHANNELS_MOST.get(algorithm, row.C))) for row in rows]


def home(algorithm):
    """The row that shows what the algorithm is for."""
    return {"dot": ROWS[1], "update": ROWS[3]}.get(algorithm, ROWS[0])


def accepted(rows=None, requests=(PLAIN,), dtypes=("bf16",)):
    """(algorithm, row, dtype, request) of what is not refused, None (the kernel's own choice) included.

    Without rows, each algorithm gets its home and nothing is left out.
    """
    return [
        pytest.param(algorithm, row, dtype, request, id=f"{algorithm}-{row.id}-{dtype}-{request.id}")
        for algorithm in (None, *ALGORITHMS)
        for row, dtype, request in itertools.product(rows_of(algorithm, rows or [home(algorithm)]), dtypes, requests)
        if not rows or algorithm is None or reason_to_refuse(algorithm, row.problem(dtype), request, lnc=1) == ""
    ]


@pytest.mark.cover(17)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), accepted(requests=EVERY))
def test_every_combination(algorithm, row, dtype, request_):
    check(row.problem(dtype), request_, seed=1, whole=False, algorithm=algorithm)


@pytest.mark.cover(9)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), accepted(ROWS, SOME))
def test_every_geometry(algorithm, row, dtype, request_):
    check(row.problem(dtype), request_, seed=2, whole=True, algorithm=algorithm)


DTYPE_REQUESTS = [
    Request("bf16", "silu", "fp16", "pre_activation", "fp32"),
    Request("fp16", "silu", "fp32", "post_activation", "bf16"),
    Request("fp32", "silu", "bf16", "pre_activation", "fp16"),
    *(Request(out_dtype=out) for out in FLOATS),
    *(Request("bf16", None, "fp16", out_dtype=out) for out in FLOATS),
]


@pytest.mark.cover(12)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), accepted(None, DTYPE_REQUESTS, FLOATS))
def test_every_dtype(algorithm, row, dtype, request_):
    """Sums stay fp32 until the one cast at the end: an fp32 y of 16-bit inputs is as good as fp32."""
    check(row.problem(dtype), request_, seed=3, whole=False, algorithm=algorithm)


LAID = [Request("fp32", "relu", "bf16", position) for position in RESIDUAL_POSITIONS]


@pytest.mark.cover(8)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), accepted(requests=LAID) + accepted(ROWS[4:5], LAID))
def test_residuals_lie_as_y_does(algorithm, row, dtype, request_):
    out_perm = (0, 2, 3, 1) if request_.residual_position == "pre_activation" else (3, 1, 2, 0)
    check_stored(row.problem(dtype), request_, 5, (0, 3, 1, 2), (3, 0, 1, 2), out_perm, algorithm=algorithm)


#: Algorithms whose sums pass the array once more after the bias: there a bad bias reaches what shares that matmul.
MULTIPLIED_AFTER_BIAS = ("banded",)


@pytest.mark.parametrize(
    ("algorithm", "row", "dtype", "request_"), accepted(requests=[Request("fp32", "relu", "fp32")])
)
def test_bad_values_in_bias_and_residual_stay_where_they_are(algorithm, row, dtype, request_):
    problem = row.problem(dtype)
    inputs = draw(np.random.default_rng(6), problem, request_, whole=True)
    if algorithm not in MULTIPLIED_AFTER_BIAS:
        inputs.bias[3] = np.nan
    inputs.residual[0, 1, 0, -1] = np.nan
    y = run(inputs.x, inputs.w, problem, 2, algorithm=algorithm, **keywords(inputs, request_)).astype(np.float32)
    expected = np.zeros(problem.output_shape, bool)
    expected[:, 3] = np.isnan(inputs.bias[3])
    expected[0, 1, 0, -1] = True
    np.testing.assert_array_equal(np.isnan(y), expected)


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_by_hand(algorithm):
    """x = 1 2 3, w = 1 10: sums 1 12 23 of the padded row, whichever algorithm does it."""
    problem = ROWS[0].problem("fp32").replace(N=1, C=1, K=1, groups=1, W=3, S=2, padding=((0, 0), (1, 0)))
    assert runs(algorithm, problem, Request("fp32", "relu", "fp32"))
    x, w = np.array([[[[1, 2, 3]]]], np.float32), np.array([[[[1, 10]]]], np.float32)
    bias, residual = np.array([-20], np.float32), np.array([[[[100, -5, -8]]]], np.float32)

    def y(**more):
        return run(x, w, problem, 1, algorithm=algorithm, **more)[0, 0, 0].tolist()

    assert y() == [10, 21, 32]
    assert y(bias=bias) == [-10, 1, 12]
    assert y(bias=bias, activation="relu") == [0, 1, 12]
    assert y(residual=residual) == [110, 16, 24]
    assert y(bias=bias, residual=residual) == [90, -4, 4]
    assert y(bias=bias, residual=residual, activation="relu") == [90, 0, 4]
    assert y(bias=bias, residual=residual, activation="relu", residual_position="post_activation") == [100, -4, 4]
