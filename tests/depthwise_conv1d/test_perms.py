"""Layouts: in_perm and kern_perm are storage -> canonical, out_perm is canonical -> storage."""

import itertools

import numpy as np
import pytest
from depthwise import EDGE, arguments, integers, same_bits
from epilogue import stored
from tolerances import assert_exact

import nkiconv
from nkiconv.reference import depthwise_conv1d_ref

ALL = list(itertools.permutations(range(4)))
PROBLEM = EDGE[10].problem("fp32").replace(N=2, C=7, K=7, groups=7, W=13)


def call(x, w, lnc=2, **perms):
    kwargs = arguments(PROBLEM) | perms
    return nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[lnc])(x, w, **kwargs)


@pytest.mark.cover(8)
@pytest.mark.parametrize("perm", ALL, ids=str)
@pytest.mark.parametrize("which", ["in_perm", "kern_perm", "out_perm"])
def test_every_permutation(which, perm):
    x, w = integers(np.random.default_rng(1), PROBLEM)
    args = {"in_perm": (stored(x, perm), w), "kern_perm": (x, stored(w, perm)), "out_perm": (x, w)}[which]
    geometry = {k: v for k, v in arguments(PROBLEM).items() if k != "feature_group_count"}
    expected = depthwise_conv1d_ref(*args, **geometry, **{which: perm})
    assert_exact(call(*args, **{which: perm}), expected, "fp32")


def test_all_three_perms_with_stride_dilation_and_padding():
    problem = PROBLEM.replace(
        stride=(1, 2), rhs_dilation=(1, 2), lhs_dilation=(1, 3), padding=((0, 0), (3, -1)), S=5, dtype="bf16"
    )
    x, w = integers(np.random.default_rng(3), problem)
    perms = {"in_perm": (3, 0, 1, 2), "kern_perm": (1, 3, 2, 0), "out_perm": (1, 2, 3, 0)}
    x, w = stored(x, perms["in_perm"]), stored(w, perms["kern_perm"])
    geometry = {k: v for k, v in arguments(problem).items() if k != "feature_group_count"}
    expected = depthwise_conv1d_ref(x, w, **geometry, **perms)
    outputs = [
        nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[lnc])(x, w, **geometry, **perms) for lnc in (1, 2)
    ]
    assert_exact(outputs[0], expected, "bf16")
    assert same_bits(*outputs)
