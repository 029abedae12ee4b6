"""Every edge of the geometry: exact on integers, the same bits on 1 and 2 cores; one-hot probes; layouts."""

import itertools

import numpy as np
import pytest
from conv_calls import EDGE, FLOATS, check_exact, integers, run
from depthwise import same_bits
from tolerances import assert_exact, assert_within

from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, apply_out_perm, conv_ref, num_terms

PROBE = ConvProblem(
    N=2,
    C=6,
    H=5,
    W=7,
    K=4,
    R=2,
    S=3,
    groups=2,
    stride=(1, 2),
    padding=((1, 0), (0, 2)),
    rhs_dilation=(2, 1),
    dtype="fp32",
)


def test_table_holds_every_kind():
    assert len(EDGE) >= 50
    assert {problem.C for problem in EDGE.values()} >= {1, 3, 16, 17, 64, 100, 130}
    assert {problem.K for problem in EDGE.values()} >= {1, 3, 16, 17, 64, 100, 130}


@pytest.mark.cover(24)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("why", EDGE)
def test_exact_on_integers(why, dtype):
    check_exact(EDGE[why].replace(dtype=dtype))


@pytest.mark.cover(20)
@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.slow), "fp32"])
@pytest.mark.parametrize("why", EDGE)
def test_within_the_bound_on_normals(why, dtype):
    problem = EDGE[why].replace(dtype=dtype)
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype(DTYPES[dtype]) for s in (problem.input_shape, problem.filter_shape))
    one, two = run(x, w, problem, 1), run(x, w, problem, 2)
    assert_within(one, conv_ref(x, w, problem), abs_sum_ref(x, w, problem), num_terms(problem), dtype)
    assert same_bits(one, two)


@pytest.mark.parametrize(("x_dtype", "w_dtype"), [("bf16", "fp16"), ("fp16", "bf16")])
@pytest.mark.parametrize("why", ["groups", "C_130_K_5", "both_dilations"])
def test_filter_may_be_the_other_16_bit_dtype(why, x_dtype, w_dtype):
    check_exact(EDGE[why].replace(dtype=x_dtype), w_dtype=w_dtype)


def seen(problem, axis, pixel):
    """(output, tap) pairs of one axis that meet a pixel."""
    extent = getattr(problem, axis)
    places = itertools.product(range(extent.out), range(extent.taps))
    return [(o, t) for o, t in places if o * extent.stride + t * extent.rhs_dilation - extent.lo == pixel]


@pytest.mark.parametrize("pixel", list(np.ndindex(2, 3, 2, 3)))
def test_one_hot_image_shows_the_filter(pixel):
    """x is 1 at one pixel: y is w[k, c, r, s] wherever tap (r, s) lies on it, and 0 elsewhere."""
    n, c, h, w_ = pixel[0], 2 * pixel[1], 1 + 3 * pixel[2], 3 * pixel[3]
    problem, per_c, per_k = PROBE, PROBE.C // PROBE.groups, PROBE.K // PROBE.groups
    x = np.zeros(problem.input_shape, np.float32)
    x[n, c, h, w_] = 1
    w = np.arange(1, 1 + problem.K * per_c * problem.R * problem.S, dtype=np.float32).reshape(problem.filter_shape)
    expected = np.zeros(problem.output_shape, np.float32)
    for k in range(problem.K):
        for (p, r), (q, s) in itertools.product(seen(problem, "height", h), seen(problem, "width", w_)):
            if k // per_k == c // per_c:
                expected[n, k, p, q] = w[k, c % per_c, r, s]
    assert expected.any()
    np.testing.assert_array_equal(run(x, w, problem, 2), expected)


@pytest.mark.cover(48)
@pytest.mark.parametrize("tap", list(np.ndindex(4, 3, 2, 3)))
def test_one_hot_filter_shows_the_image(tap):
    """w is 1 at one tap: y's channel k is the channel that it reads, moved and strided, and the others are 0."""
    k, c, r, s = tap
    problem = PROBE
    x = np.arange(1, 1 + np.prod(problem.input_shape), dtype=np.float32).reshape(problem.input_shape)
    w = np.zeros(problem.filter_shape, np.float32)
    w[tap] = 1
    expected = np.zeros(problem.output_shape, np.float32)
    for p, q in np.ndindex(problem.P, problem.Q):
        h = p * problem.stride[0] + r * problem.rhs_dilation[0] - problem.padding[0][0]
        w_ = q * problem.stride[1] + s * problem.rhs_dilation[1] - problem.padding[1][0]
        if 0 <= h < problem.H and 0 <= w_ < problem.W:
            channel = k // (problem.K // problem.groups) * (problem.C // problem.groups) + c
            expected[:, k, p, q] = x[:, channel, h, w_]
    assert expected.any()
    np.testing.assert_array_equal(run(x, w, problem, 2), expected)


PERMS = list(itertools.permutations(range(4)))


@pytest.mark.parametrize("index", range(len(PERMS)))
def test_every_layout(index):
    """Each permutation once of x, w and y, no two the same."""
    x_perm, w_perm, y_perm = PERMS[index], PERMS[(index + 7) % 24], PERMS[(index + 13) % 24]
    x, w = integers(np.random.default_rng(index), PROBE)
    layouts = {"in_perm": x_perm, "kern_perm": w_perm, "out_perm": y_perm}
    stored = [np.ascontiguousarray(np.transpose(a, np.argsort(p))) for a, p in ((x, x_perm), (w, w_perm))]
    one, two = (run(*stored, PROBE, lnc, **layouts) for lnc in (1, 2))
    assert_exact(one, apply_out_perm(conv_ref(x, w, PROBE), y_perm), "fp32")
    assert same_bits(one, two)


@pytest.mark.cover(40)
@pytest.mark.parametrize("why", [w for w, p in EDGE.items() if max(p.H, p.W) < 1000])
def test_channels_last(why):
    problem = EDGE[why]
    x, w = integers(np.random.default_rng(3), problem)
    stored = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    layouts = {"in_perm": (0, 3, 1, 2), "kern_perm": (3, 2, 0, 1), "out_perm": (0, 2, 3, 1)}
    assert_exact(run(*stored, problem, 2, **layouts), conv_ref(x, w, problem).transpose(0, 2, 3, 1), problem.dtype)


def test_inputs_are_not_changed():
    x, w = integers(np.random.default_rng(6), PROBE)
    before = x.copy(), w.copy()
    run(x, w, PROBE, 2)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])
