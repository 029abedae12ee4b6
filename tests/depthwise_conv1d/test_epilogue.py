"""Bias, activation, residual and output dtype of every algorithm: exact on integers, within the bound on normals.

Of other shapes and settings: test_by_settings.py.
"""

import itertools

import numpy as np
import pytest
from depthwise import Row, run
from epilogue import FLOATS, Request, check, check_stored, draw, keywords

from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.rules import ACTIVATIONS, RESIDUAL_POSITIONS

#: What each algorithm is for.
HOMES = {"dot": Row("few columns", 2, 5, 200, 197), "update": Row("one step", 5, 20, 1, 4, 1, (3, 0))}
HOME = Row("short filter", 1, 131, 40, 4, 1, (3, 0))

#: Each activation alone and with everything; each way of leaving something out. In fp32, where gelu is not gelu_tanh.
EVERY = [
    Request(bias, activation, residual, position, "fp32")
    for bias in (None, "fp32")
    for activation in (None, *ACTIVATIONS)
    for residual, position in ((None, RESIDUAL_POSITIONS[0]), *(("fp32", position) for position in RESIDUAL_POSITIONS))
]


def homes(requests, dtypes=("bf16",)):
    """(algorithm, row, dtype, request) of what each algorithm is for, None (the kernel's own choice) included."""
    found = []
    for algorithm, dtype, one in itertools.product((None, *ALGORITHMS), dtypes, requests):
        row = HOMES.get(algorithm, HOME)
        found.append(pytest.param(algorithm, row, dtype, one, id=f"{algorithm}-{row.id}-{dtype}-{one.id}"))
    return found


@pytest.mark.cover(17)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), homes(EVERY))
def test_every_combination(algorithm, row, dtype, request_):
    check(row.problem(dtype), request_, seed=1, whole=False, algorithm=algorithm)


DTYPE_REQUESTS = [
    Request("bf16", "silu", "fp16", "pre_activation", "fp32"),
    Request("fp16", "silu", "fp32", "post_activation", "bf16"),
    Request("fp32", "silu", "bf16", "pre_activation", "fp16"),
    *(Request(out_dtype=out) for out in FLOATS),
    *(Request("bf16", None, "fp16", out_dtype=out) for out in FLOATS),
]


@pytest.mark.cover(12)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), homes(DTYPE_REQUESTS, FLOATS))
def test_every_dtype(algorithm, row, dtype, request_):
    """Sums stay fp32 until the one cast at the end: an fp32 y of 16-bit inputs is as good as fp32."""
    check(row.problem(dtype), request_, seed=3, whole=False, algorithm=algorithm)


LAID = [Request("fp32", "relu", "bf16", position) for position in RESIDUAL_POSITIONS]


@pytest.mark.cover(8)
@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), homes(LAID))
def test_residuals_lie_as_y_does(algorithm, row, dtype, request_):
    out_perm = (0, 2, 3, 1) if request_.residual_position == "pre_activation" else (3, 1, 2, 0)
    check_stored(row.problem(dtype), request_, 5, (0, 3, 1, 2), (3, 0, 1, 2), out_perm, algorithm=algorithm)


#: Algorithms whose sums pass the array once more after the bias: there a bad bias reaches what shares that matmul.
MULTIPLIED_AFTER_BIAS = ("banded",)


@pytest.mark.parametrize(("algorithm", "row", "dtype", "request_"), homes([Request("fp32", "relu", "fp32")]))
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
