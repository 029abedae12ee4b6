"""Products of fp8 in pairs: exact for every geometry that they take, every dtype and setting, chosen where they pay."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conv_calls import EDGE, NL, check_epilogue, check_exact, config_of, planned, run
from draws import cores
from tolerances import assert_exact

from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import conv_ref

FP8 = ("fp8_e4m3", "fp8_e5m2")
MIXES = [*itertools.product(FP8, FP8)]
SAME = ((1, 1), (1, 1))
#: Integers up to here, and the sums of 2000 products of them, are exact.
LARGEST = {"fp8_e4m3": 16, "fp8_e5m2": 8}
#: Of whole K tiles, of a channel in two, folded ones beside others and alone, images of several loads.
ROWS = {
    "one chunk": ConvProblem(N=1, C=128, H=9, W=130, K=8, R=3, S=3, padding=SAME),
    "two chunks": ConvProblem(N=2, C=256, H=9, W=17, K=140, R=3, S=3, padding=SAME),
    "two chunks with a channel in both": ConvProblem(N=1, C=129, H=7, W=20, K=6, R=3, S=2, padding=SAME),
    "three chunks": ConvProblem(N=3, C=384, H=6, W=7, K=130, R=3, S=3, padding=SAME),
    "three chunks with a channel in two": ConvProblem(N=1, C=320, H=11, W=20, K=20, R=3, S=3, padding=SAME),
    "folded beside whole chunks": ConvProblem(N=2, C=320, H=11, W=20, K=130, R=3, S=3, padding=SAME),
    "folded beside one chunk": ConvProblem(N=2, C=160, H=11, W=20, K=20, R=2, S=5, padding=((1, 0), (2, 3))),
    "folded beside one chunk, three copies": ConvProblem(N=5, C=150, H=6, W=7, K=9, R=3, S=3, padding=SAME),
    "folded alone": ConvProblem(N=3, C=64, H=13, W=30, K=20, R=3, S=3, padding=SAME),
    "folded four times": ConvProblem(N=2, C=32, H=9, W=18, K=20, R=2, S=6, stride=(1, 2), padding=((0, 1), (3, 1))),
    "folded and dilated": ConvProblem(
        N=2, C=190, H=12, W=16, K=6, R=2, S=4, rhs_dilation=(2, 3), padding=((2, 1), (-1, 12))
    ),
    "folded, small images": ConvProblem(N=9, C=192, H=5, W=6, K=12, R=3, S=2, stride=(2, 1), padding=SAME),
    "stride of one axis": ConvProblem(N=2, C=128, H=30, W=40, K=5, R=1, S=5, stride=(2, 1), padding=((0, 0), (2, 1))),
    "small images": ConvProblem(N=9, C=256, H=7, W=7, K=256, R=3, S=3, padding=SAME),
    "wide": ConvProblem(N=2, C=128, H=5, W=600, K=7, R=3, S=3, padding=SAME),
    # edges of the geometry, with channels of a whole K tile
    **{
        why: replace(one, C=130 if one.N > 9 else 128) for why, one in EDGE.items()
        if one.groups == 1 and max(one.lhs_dilation) == 1 and 1 < one.C < 128 and one.H * one.W < 10_000 and one.R < 31
    },
}  # fmt: skip
#: Settings, one after another; None: the plan's own.
SETTINGS = [
    None,
    {"product": "fp8_halves", "x_bytes": 3000},
    {"product": "fp8_staged", "x_bytes": 2000},
    {"product": "fp8_staged", "shard": "channels"},
    {"product": "fp8_pairs", "shard": "images", "warmup": 0, "fold": "none"},
    {"product": "fp8_staged", "fold": "inputs", "x_bytes": 9000},
    {"product": "fp8_pairs", "order": "chunks", "x_bytes": 300},
]


PAIRS = (("product", "fp8_pairs"),)


def pairs(settings=None):
    return config_of("implicit_gemm", **(dict(PAIRS) | (settings or {})))


def large_integers(rng, problem, w_dtype):
    """x and w of integers that use every bit of their dtypes."""
    x_most, w_most = LARGEST[problem.dtype], LARGEST[w_dtype]
    x = rng.integers(-x_most, x_most + 1, problem.input_shape).astype(DTYPES[problem.dtype])
    return x, rng.integers(-w_most, w_most + 1, problem.filter_shape).astype(DTYPES[w_dtype])


@pytest.mark.cover(7)
@pytest.mark.parametrize(("x_dtype", "w_dtype"), MIXES)
@pytest.mark.parametrize("name", ROWS)
def test_exact(name, x_dtype, w_dtype):
    problem = ROWS[name].replace(dtype=x_dtype)
    x, w = large_integers(np.random.default_rng(1), problem, w_dtype)
    truth = conv_ref(x, w, problem)
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, config=pairs(), out_dtype=NL["fp32"]), truth, "fp32")


@pytest.mark.cover(5, keep=["two chunks with a channel in both-settings2"])
@pytest.mark.parametrize("settings", SETTINGS[1:], ids=[f"settings{i}" for i in range(1, len(SETTINGS))])
@pytest.mark.parametrize("name", ROWS)
def test_exact_with_other_settings(name, settings):
    problem = ROWS[name].replace(dtype="fp8_e5m2")
    reason = planned(problem, "implicit_gemm", tuple(settings.items()))[1]
    assert reason == "" or "fold=inputs" in reason or "order=chunks" in reason
    if reason == "":
        check_exact(problem, w_dtype="fp8_e4m3", config=pairs(settings))


@pytest.mark.cover(4)
@pytest.mark.parametrize("residual_dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ["two chunks", "small images", "wide", "stride of one axis"])
def test_epilogue(name, residual_dtype):
    asked = {"bias": True, "residual": residual_dtype, "beta": 2.0, "activation": "relu"}
    check_epilogue(ROWS[name], asked, pairs(), "fp8_e4m3")
