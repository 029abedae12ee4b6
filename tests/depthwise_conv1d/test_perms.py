"""Layouts: in_perm and kern_perm are storage -> canonical, out_perm is canonical -> storage."""

import itertools

import numpy as np
import pytest
from depthwise import EDGE, arguments, integers
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


#: What goes with rows of neighbouring channels, [N, 1, W, C]: chunks, arguments that lie as y does, others.
BESIDE = {
    "plain": (1, [], {}),
    "residual and bias": (1, ["residual"], {"bias": np.arange(70, dtype=np.float32) % 5}),
    "both factors": (3, [], {"chunks": "BCx"}),
    "states": (1, [], {"return_final_state": True}),
    "prologue": (1, [], {"x_shift": np.arange(70, dtype=np.float32) % 3, "x_activation": "relu"}),
}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", BESIDE)
def test_copies_of_neighbouring_channels_give_the_bits_of_rows(name, lnc):
    times, alike, others = BESIDE[name]
    rng = np.random.default_rng(9)
    x, y = (rng.integers(-2, 3, (2, one * 70, 1, 300)).astype(np.float32) for one in (times, 1))
    w = rng.integers(-2, 3, (70, 1, 1, 3)).astype(np.float32)
    kernel = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[lnc])
    given = {"padding": ((0, 0), (2, 0))} | others
    rows = kernel(x, w, **given, **dict.fromkeys(alike, y))
    perms = {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1)}
    found = kernel(stored(x, perms["in_perm"]), w, **given, **perms, **{one: stored(y, (0, 3, 1, 2)) for one in alike})
    both = [one if isinstance(one, tuple) else (one,) for one in (found, rows)]
    assert np.array_equal(both[0][0].transpose(0, 3, 1, 2), both[1][0])
    assert all(map(np.array_equal, both[0][1:], both[1][1:]))
