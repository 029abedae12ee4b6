"""Products by fp16 pairs and of fp8 in pairs: exact on integers, for every geometry, dtype and setting that they take,
within their bound elsewhere, over all of the range; chosen where they pay.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conv_calls import EDGE, NL, bounded, check_epilogue, check_exact, config_of, geometry_of, options_of, planned, run
from depthwise import same_bits
from draws import cores
from tolerances import assert_exact, assert_within_limit

from nkiconv import bounds
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref
from nkiconv.schedules.conv_algorithms import plan_of
from nkiconv.schedules.relayout import dense, pieces_of, x_to_rows

PAIRS = {"precision": "fp16x3"}
LAYER = ConvProblem(N=2, C=140, H=9, W=13, K=150, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32")
ONE = ConvProblem(N=1, C=1, H=4, W=500, K=3, S=1, dtype="fp32")


def normals(problem, seed=2, x_scale=1.0, w_scale=1.0):
    rng = np.random.default_rng(seed)
    x = (x_scale * rng.standard_normal(problem.input_shape)).astype(np.float32)
    return x, (w_scale * rng.standard_normal(problem.filter_shape)).astype(np.float32)


def check_normals(problem, **scales):
    x, w = normals(problem, **scales)
    one, two = (run(x, w, problem, lnc, **PAIRS) for lnc in (1, 2))
    assert_within_limit(one, *bounded(x, w, problem, "fp32", **PAIRS)[1:])
    assert same_bits(one, two)


@pytest.mark.parametrize(("most_x", "most_w"), [(2**11, 2**11), (65504, 15), (7, 65504)])
def test_integers_that_a_pair_or_one_half_holds_are_exact(most_x, most_w):
    """Products of one factor's low part with the other's high part are not dropped; sums stay below 2^24."""
    problem = LAYER.replace(C=2, R=1, S=1, padding=((0, 0), (0, 0)))
    rng = np.random.default_rng(5)
    x = rng.integers(-most_x, most_x + 1, problem.input_shape).astype(np.float32)
    w = rng.integers(-most_w, most_w + 1, problem.filter_shape).astype(np.float32)
    for lnc in (1, 2):
        assert_exact(run(x, w, problem, lnc, **PAIRS), conv_ref(x, w, problem), "fp32")


@pytest.mark.cover(1)
@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 0.02), (30.0, 1e-3)])
def test_as_accurate_as_fp32_and_a_hundred_times_more_than_the_others(scales):
    x, w = normals(LAYER, 3, *scales)
    truth, abs_sum = conv_ref(x, w, LAYER), abs_sum_ref(x, w, LAYER)
    errors = {}
    for precision in (None, "fp16x3", "tf32", "bf16"):
        y = run(x, w, LAYER, 2, precision=precision)
        errors[precision] = np.max(np.abs(y - truth) / abs_sum)
        assert_within_limit(y, *bounded(x, w, LAYER, "fp32", precision=precision)[1:])
    assert errors["fp16x3"] < 3 * errors[None]
    assert 100 * errors["fp16x3"] < errors["tf32"] < errors["bf16"]


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("x_scale", "w_scale"), [(2.0**-14, 1.0), (1.0, 2.0**-20), (2.0**-12, 2.0**-13), (2.0**-30, 1.0), (10_000.0, 5.0)]
)
@pytest.mark.parametrize("problem", [LAYER, ONE], ids=["layer", "one product"])
def test_small_and_large_numbers_are_within_the_bound(problem, x_scale, w_scale):
    check_normals(problem, x_scale=x_scale, w_scale=w_scale)


def one_by_one(values, w=1.0):
    """Products of each of some values with w, alone."""
    problem = ConvProblem(N=1, C=1, W=len(values), K=1, S=1, dtype="fp32")
    x = np.asarray(values, np.float32).reshape(problem.input_shape)
    return run(x, np.full(problem.filter_shape, w, np.float32), problem, 1, **PAIRS).ravel()


def test_beyond_the_largest_number_is_nan_where_it_is_seen_and_nowhere_else():
    largest = np.array([65504, -65504, 65503.99, 65519.996, -65519.996], np.float32)
    np.testing.assert_allclose(one_by_one(largest), largest, rtol=bounds.PAIR_ROUNDING)
    values = np.array([1, 65520, 2, -65520, 3, 1e9, 4, np.inf, 5, -np.inf, 6, np.nan, 7], np.float32)
    y = one_by_one(values)
    assert np.isnan(y[1::2]).all()
    np.testing.assert_array_equal(y[0::2], [1, 2, 3, 4, 5, 6, 7])
    x, w = normals(LAYER)
    w[7, 3, 1, 1] = 70_000
    y = run(x, w, LAYER, 2, **PAIRS)
    assert np.isnan(y[:, 7]).any()
    assert np.isfinite(np.delete(y, 7, axis=1)).all()


def test_small_numbers_keep_an_absolute_error():
    values = np.float32(2.0) ** np.arange(-40, -13, dtype=np.float32) * np.float32(1.2345678)
    error = np.abs(one_by_one(values) - values.astype(np.float64))
    assert np.all(error <= bounds.PAIR_ROUNDING * bounds.pair_magnitude(values) + bounds.EPS32 * values)
    assert one_by_one([2.0**-37 * 0.99])[0] == 0.0
    assert one_by_one([2.0**-35])[0] == 2.0**-35
    assert one_by_one([0.0, -0.0]).tolist() == [0.0, 0.0]


def test_nothing_of_another_group_is_met():
    problem = ConvProblem(N=1, C=8, H=5, W=6, K=6, groups=2, R=2, S=3, dtype="fp32")
    x, w = normals(problem)
    x[0, 1, 2, 3] = np.inf
    y = run(x, w, problem, 2, strict_nonfinite=True, **PAIRS)
    assert np.isnan(y[:, :3]).any()
    assert np.isfinite(y[:, 3:]).all()


SETTINGS = [
    {}, {"shard": "channels"}, {"shard": "images"}, {"x_bytes": 512}, {"x_bytes": 65_536},
    {"shard": "channels", "warmup": 0}, {"warmup": 256, "x_bytes": 1000}, {"fold": "none"},
]  # fmt: skip
PROBLEMS = {
    "batches": ConvProblem(N=1, C=530, H=6, W=7, K=200, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32"),
    "a row": ConvProblem(N=1, C=20, W=1300, K=24, S=9, padding=((0, 0), (8, 0)), dtype="fp32"),
    "one tap, NHWC": ConvProblem(N=2, C=300, H=5, W=7, K=140, S=1, dtype="fp32", layout="NHWC"),
}


@pytest.mark.cover(5)
@pytest.mark.parametrize("index", range(len(SETTINGS)))
@pytest.mark.parametrize("name", PROBLEMS)
def test_settings_change_no_result(name, index):
    check_exact(PROBLEMS[name], config=config_of("implicit_gemm", **SETTINGS[index]), **PAIRS)


FP8 = ("fp8_e4m3", "fp8_e5m2")
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
        N=2, C=190, H=12, W=16, K=6, R=2, S=4, rhs_dilation=(2, 3), padding=((2, 1), (-1, 12))),
    "folded, small images": ConvProblem(N=9, C=192, H=5, W=6, K=12, R=3, S=2, stride=(2, 1), padding=SAME),
    "stride of one axis": ConvProblem(N=2, C=128, H=30, W=40, K=5, R=1, S=5, stride=(2, 1), padding=((0, 0), (2, 1))),
    "small images": ConvProblem(N=9, C=256, H=7, W=7, K=256, R=3, S=3, padding=SAME),
    "wide": ConvProblem(N=2, C=128, H=5, W=600, K=7, R=3, S=3, padding=SAME),
    # edges of the geometry, with channels of a whole K tile
    **{why: replace(one, C=130 if one.N > 9 else 128) for why, one in EDGE.items()
        if one.groups == 1 and max(one.lhs_dilation) == 1 and 1 < one.C < 128 and one.H * one.W < 10_000 and one.R < 31
    },
}  # fmt: skip
#: Channels that are neighbours in HBM: odd numbers of pairs, of K tiles, of images; strides, taps apart, cropped x.
NEIGHBOURS = {
    "one K tile": ConvProblem(N=9, C=98, H=5, W=6, K=12, R=3, S=3, padding=SAME),
    "two K tiles": ConvProblem(N=2, C=258, H=7, W=9, K=130, R=3, S=3, padding=SAME),
    "three K tiles": ConvProblem(N=1, C=516, H=6, W=7, K=20, R=1, S=3, padding=((0, 0), (-1, 2))),
    "one tap, every other pixel": ConvProblem(N=3, C=34, H=9, W=8, K=6, R=1, S=1, stride=(2, 2)),
    "stride, dilation": ConvProblem(
        N=2, C=256, H=12, W=16, K=20, R=3, S=2, stride=(2, 1), rhs_dilation=(1, 2), padding=((2, 1), (1, 0))),
    "wide": ConvProblem(N=1, C=130, H=5, W=600, K=7, R=3, S=3, padding=SAME),
    "images of one pixel": ConvProblem(N=40, C=66, H=1, W=1, K=9, R=1, S=1),
}  # fmt: skip
#: Settings other than the plan's own.
FP8_SETTINGS = [
    {"x_bytes": 2000, "shard": "channels"},
    {"shard": "images", "warmup": 0, "fold": "none"},
    {"fold": "inputs", "x_bytes": 9000},
    {"order": "chunks", "x_bytes": 300},
]


def pairs(**settings):
    return config_of("implicit_gemm", **{"product": "fp8_pairs", **settings})


@pytest.mark.cover(7)
@pytest.mark.parametrize(("x_dtype", "w_dtype"), [*itertools.product(FP8, FP8)])
@pytest.mark.parametrize("name", ROWS)
def test_exact(name, x_dtype, w_dtype):
    """Of integers that use every bit of their dtypes."""
    problem, rng = ROWS[name].replace(dtype=x_dtype), np.random.default_rng(1)
    given = (x_dtype, problem.input_shape), (w_dtype, problem.filter_shape)
    x, w = (rng.integers(-LARGEST[one], LARGEST[one] + 1, shape).astype(DTYPES[one]) for one, shape in given)
    truth = conv_ref(x, w, problem)
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, config=pairs(), out_dtype=NL["fp32"]), truth, "fp32")


@pytest.mark.cover(5, keep=["two chunks with a channel in both-settings1"])
@pytest.mark.parametrize("settings", FP8_SETTINGS, ids=[f"settings{i}" for i in range(1, 5)])
@pytest.mark.parametrize("name", ROWS)
def test_exact_with_other_settings(name, settings):
    problem = ROWS[name].replace(dtype="fp8_e5m2")
    reason = planned(problem, "implicit_gemm", pairs(**settings)[1:])[1]
    assert reason == "" or "fold=inputs" in reason or "order=chunks" in reason
    if reason == "":
        check_exact(problem, w_dtype="fp8_e4m3", config=pairs(**settings))


@pytest.mark.cover(4)
@pytest.mark.parametrize("strict_nonfinite", [False, True])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_channels_that_are_neighbours_in_hbm(name, strict_nonfinite):
    """DMA transposes two as one element."""
    problem, given = NEIGHBOURS[name].replace(dtype="fp8_e4m3", layout="NHWC"), {"strict_nonfinite": strict_nonfinite}
    plan = planned(problem, "implicit_gemm", (), **given)[0]
    assert {one.pairing for k_tiles in plan.k_tiles for one in k_tiles} == {"neighbours"}
    geometry = replace(geometry_of(problem), y_strides=dense(problem.K, 1, 1))
    assert "product=fp8_pairs" in plan_of("implicit_gemm", geometry, options_of(), (("loop", 1),))[1]
    for in_perm, out_perm in itertools.product([None, (0, 1, 2, 3)][: 1 + (problem.W == 1)], (None, (0, 1, 2, 3))):
        check_exact(problem, in_perm=in_perm, out_perm=out_perm, config=pairs()[:1], **given)


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        ("weight_stationary", ConvProblem(N=3, C=512, H=5, W=7, K=512, R=3, S=3, padding=SAME, groups=16)),
        ("weight_stationary", ConvProblem(N=2, C=260, H=9, W=6, K=3, R=3, S=3, padding=SAME)),
        ("implicit_gemm", ConvProblem(N=2, C=768, D=4, H=9, W=6, K=8, T=3, R=3, S=3, padding=(SAME[0], *SAME))),
    ],
)
def test_copies_of_neighbours(algorithm, problem):
    """An engine separates the two that DMA transposes as one element."""
    problem = problem.replace(dtype="fp8_e4m3", layout="NHWC" if problem.D is None else "NDHWC")
    assert all(part.in_twos for part in x_to_rows(geometry_of(problem)))
    check_exact(problem, config=config_of(algorithm))


def test_pieces_of_a_sorted_copy_have_all_channels_of_a_pixel():
    """Runs of some channels are short: with 64 in two pieces a convolution took 1.9 times as long."""
    (part,) = x_to_rows(geometry_of(ConvProblem(N=8, C=64, H=56, W=56, K=64, S=3, dtype="fp8_e4m3", layout="NHWC")))
    assert part.is_sorted
    assert {piece[3] for piece in pieces_of(part)} == {64}


@pytest.mark.cover(4)
@pytest.mark.parametrize("residual_dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ["two chunks", "small images", "wide", "stride of one axis"])
def test_epilogue(name, residual_dtype):
    asked = {"bias": True, "residual": residual_dtype, "beta": 2.0, "activation": "relu"}
    check_epilogue(ROWS[name], asked, pairs(), "fp8_e4m3")
