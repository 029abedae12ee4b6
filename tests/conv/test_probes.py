"""One-hot inputs and filters: each lands in the one place that the definition gives it, whatever the algorithm.

Extents differ from each other, so that swapped axes, images, channels, rows or columns show.
"""

import itertools

import numpy as np
import pytest
from conv_calls import config_of, in_layout, planned, run

from nkiconv import ConvProblem
from nkiconv.kernels.conv.dispatch import ALGORITHMS
from nkiconv.problem import DTYPES
from nkiconv.rules import LAYOUTS

DENSE = ConvProblem(N=3, C=4, H=7, W=10, K=5, R=3, S=2, padding=((2, 1), (0, 1)), rhs_dilation=(1, 3), dtype="fp32")
STRIDED = DENSE.replace(H=11, stride=(3, 2), rhs_dilation=(2, 1), dtype="bf16")
DEPTHWISE = ConvProblem(N=3, C=6, H=7, W=10, K=6, groups=6, R=3, S=2, padding=((2, 1), (0, 1)), dtype="fp32")
MULTIPLIED = ConvProblem(N=2, C=3, H=7, W=10, K=6, groups=3, R=2, S=3, padding=((0, 1), (1, 1)), dtype="fp16")
GROUPED = ConvProblem(N=2, C=8, H=7, W=10, K=12, groups=2, R=2, S=3, padding=((0, 1), (1, 1)), dtype="bf16")
PROBLEMS = {
    "dense": DENSE, "strided": STRIDED, "depthwise": DEPTHWISE, "multiplied": MULTIPLIED, "grouped": GROUPED,
    "fp8": STRIDED.replace(dtype="fp8_e5m2"),
}  # fmt: skip
RUNS = [
    (name, layout, algorithm, precision)
    for name, layout, algorithm in itertools.product(PROBLEMS, LAYOUTS, ALGORITHMS)
    for precision in ((None, "fp16x3") if algorithm == "implicit_gemm" and PROBLEMS[name].dtype == "fp32" else (None,))
    if planned(PROBLEMS[name].replace(layout=layout), algorithm, precision=precision)[0] is not None
]


def places(problem, n, c, h, w_, k, r, s):
    """(n, k, p, q) of the output that sees x[n, c, h, w_] through w[k, c', r, s], or None."""
    p = h * problem.lhs_dilation[0] + problem.padding[0][0] - r * problem.rhs_dilation[0]
    q = w_ * problem.lhs_dilation[1] + problem.padding[1][0] - s * problem.rhs_dilation[1]
    if p % problem.stride[0] or q % problem.stride[1]:
        return None
    p, q = p // problem.stride[0], q // problem.stride[1]
    return (n, k, p, q) if 0 <= p < problem.P and 0 <= q < problem.Q else None


def probes(problem, count=12):
    """Indices of one element of x and of one of a filter of its group."""
    rng = np.random.default_rng(5)
    per_c, per_k = problem.C // problem.groups, problem.K // problem.groups
    for _ in range(count):
        g, c, k = rng.integers(problem.groups), rng.integers(per_c), rng.integers(per_k)
        n, h, w_ = rng.integers(problem.N), rng.integers(problem.H), rng.integers(problem.W)
        r, s = rng.integers(problem.R), rng.integers(problem.S)
        yield (n, g * per_c + c, h, w_), (g * per_k + k, c, r, s)


@pytest.mark.cover(4)
@pytest.mark.parametrize(("name", "layout", "algorithm", "precision"), RUNS)
def test_one_element_meets_one_tap(name, layout, algorithm, precision):
    """Every other time on one core and on two, whose sums have the same bits (test_edges.py)."""
    problem = PROBLEMS[name]
    stored = problem.replace(layout=layout)
    valid_range = 0
    for index, (at_x, at_w) in enumerate(probes(problem)):
        x, w = np.zeros(problem.input_shape), np.zeros(problem.filter_shape)
        x[at_x], w[at_w] = 3, -5
        expected = np.zeros(problem.output_shape)
        place = places(problem, *at_x, at_w[0], *at_w[2:])
        if place is not None:
            expected[place] = -15
            valid_range += 1
        dtype = DTYPES[problem.dtype]
        how = {"config": config_of(algorithm), "precision": precision}
        x_stored = x.transpose((0, 2, 3, 1)) if layout == "NHWC" else x
        y = run(x_stored.astype(dtype, order="C"), w.astype(dtype), stored, 1 + index % 2, **how)
        np.testing.assert_array_equal(y.astype(np.float64), in_layout(expected, stored))
    assert valid_range > 0


def test_every_algorithm_is_probed():
    assert {algorithm for _, _, algorithm, _ in RUNS} == set(ALGORITHMS)
