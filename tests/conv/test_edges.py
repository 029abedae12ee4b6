"""Every edge of the geometry: exact on integers, the same bits on 1 and 2 cores; layouts."""

import itertools

import numpy as np
import pytest
from conv_calls import EDGE, FLOATS, check_bits, check_exact, integers, run
from tolerances import assert_within

from nkiconv.problem import ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref, num_terms

PROBE = ConvProblem(
    N=2, C=6, H=5, W=7, K=4, R=2, S=3, groups=2, stride=(1, 2), padding=((1, 0), (0, 2)), rhs_dilation=(2, 1),
    dtype="fp32",
)  # fmt: skip


@pytest.mark.cover(10)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("why", EDGE)
def test_exact_on_integers(why, dtype):
    check_exact(EDGE[why].replace(dtype=dtype))


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.slow), "fp32"])
@pytest.mark.parametrize("why", EDGE)
def test_within_the_bound_on_normals(why, dtype):
    problem = EDGE[why].replace(dtype=dtype)
    y, x, w = check_bits(problem)
    assert_within(y, conv_ref(x, w, problem), abs_sum_ref(x, w, problem), num_terms(problem), dtype)


@pytest.mark.cover(3)
@pytest.mark.parametrize(("x_dtype", "w_dtype"), [("bf16", "fp16"), ("fp16", "bf16")])
@pytest.mark.parametrize("why", ["groups", "C_130_K_5", "both_dilations"])
def test_filter_may_be_the_other_16_bit_dtype(why, x_dtype, w_dtype):
    check_exact(EDGE[why].replace(dtype=x_dtype), w_dtype=w_dtype)


PERMS = list(itertools.permutations(range(4)))


@pytest.mark.cover(10)
@pytest.mark.parametrize("index", range(len(PERMS)))
def test_every_layout(index):
    """Each permutation once of x, w and y, no two the same."""
    x_perm, w_perm, y_perm = PERMS[index], PERMS[(index + 7) % 24], PERMS[(index + 13) % 24]
    check_exact(PROBE, index, in_perm=x_perm, kern_perm=w_perm, out_perm=y_perm)


@pytest.mark.cover(8)
@pytest.mark.parametrize("why", [w for w, p in EDGE.items() if max(p.H, p.W) < 1000])
def test_channels_last(why):
    check_exact(EDGE[why], in_perm=(0, 3, 1, 2), kern_perm=(3, 2, 0, 1), out_perm=(0, 2, 3, 1))


def test_inputs_are_not_changed():
    x, w = integers(np.random.default_rng(6), PROBE)
    before = x.copy(), w.copy()
    run(x, w, PROBE, 2)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])
