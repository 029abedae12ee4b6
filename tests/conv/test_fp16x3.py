"""Products by fp16 pairs: exact on integers, within their bound and near fp32 elsewhere, over all of fp16's range."""

import itertools
import re

import numpy as np
import pytest
from conv_calls import EDGE, check_exact, config_of, integers, planned, run
from depthwise import same_bits
from tolerances import assert_exact, assert_within_limit

import nkiconv
from nkiconv import bounds
from nkiconv.problem import ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref, num_terms
from nkiconv.schedules.conv_algorithms import ALGORITHMS

PAIRS = {"precision": "fp16x3"}
LAYER = ConvProblem(N=2, C=140, H=9, W=13, K=150, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32")
ONE = ConvProblem(N=1, C=1, H=4, W=500, K=3, S=1, dtype="fp32")


def normals(problem, seed=2, x_scale=1.0, w_scale=1.0):
    rng = np.random.default_rng(seed)
    x = (x_scale * rng.standard_normal(problem.input_shape)).astype(np.float32)
    return x, (w_scale * rng.standard_normal(problem.filter_shape)).astype(np.float32)


def limit_of(precision, x, w, problem):
    """The bound of a result in fp32."""
    sums, abs_sum = conv_ref(x, w, problem), abs_sum_ref(x, w, problem)
    inexact = bounds.products_bound(precision, x, w, problem)
    return bounds.epilogue_bound(num_terms(problem), abs_sum, sums, "fp32", inexact=inexact)


def check_normals(problem, **scales):
    x, w = normals(problem, **scales)
    one, two = (run(x, w, problem, lnc, **PAIRS) for lnc in (1, 2))
    assert_within_limit(one, conv_ref(x, w, problem), limit_of("fp16x3", x, w, problem))
    assert same_bits(one, two)


@pytest.mark.cover(6)
@pytest.mark.parametrize("why", EDGE)
def test_exact_on_integers(why):
    check_exact(EDGE[why].replace(dtype="fp32"), **PAIRS)


@pytest.mark.cover(5)
@pytest.mark.parametrize("why", EDGE)
def test_within_the_bound_on_normals(why):
    check_normals(EDGE[why].replace(dtype="fp32"))


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
        assert_within_limit(y, truth, limit_of(precision, x, w, LAYER))
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


def test_the_largest_numbers():
    values = np.array([65504, -65504, 65503.99, 65519.996, -65519.996], np.float32)
    np.testing.assert_allclose(one_by_one(values), values, rtol=bounds.PAIR_ROUNDING)


def test_beyond_the_largest_number_is_nan_where_it_is_seen_and_nowhere_else():
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


def test_pairs_are_as_near_as_their_bound_says():
    """Every exponent of fp32 that a pair takes, in NumPy: what `bounds` derives of single factors."""
    rng = np.random.default_rng(1)
    values = rng.uniform(1, 2, (4000,)) * 2.0 ** rng.integers(-50, 16, 4000)
    values = (values * rng.choice([-1, 1], 4000)).astype(np.float32)
    values = values[np.abs(values) < 65520]
    high = values.astype(np.float16)
    rest = values - high.astype(np.float32)
    low = (rest * np.float32(2**11)).astype(np.float16)
    assert np.all(rest.astype(np.float64) == values.astype(np.float64) - high.astype(np.float64))
    magnitude = bounds.pair_magnitude(values)
    assert np.all(np.abs(low.astype(np.float64)) <= magnitude)
    error = np.abs(values.astype(np.float64) - (high.astype(np.float64) + low.astype(np.float64) / 2**11))
    assert np.max(error / magnitude) <= bounds.PAIR_ROUNDING
    assert np.max(error / magnitude) > bounds.PAIR_ROUNDING / 2**1.5


@pytest.mark.parametrize("name", ["layer", "groups", "stride", "one tap"])
def test_channels_side_by_side(name):
    check_exact(PROBLEMS[name].replace(layout="NHWC"), **PAIRS)


def test_nothing_of_another_group_is_met():
    problem = ConvProblem(N=1, C=8, H=5, W=6, K=6, groups=2, R=2, S=3, dtype="fp32")
    x, w = normals(problem)
    x[0, 1, 2, 3] = np.inf
    y = run(x, w, problem, 2, strict_nonfinite=True, **PAIRS)
    assert np.isnan(y[:, :3]).any()
    assert np.isfinite(y[:, 3:]).all()


BATCHES = ConvProblem(N=1, C=530, H=6, W=7, K=200, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32")
SETTINGS = [
    {}, {"shard": "channels"}, {"shard": "images"}, {"x_bytes": 512}, {"x_bytes": 65_536},
    {"shard": "channels", "warmup": 0}, {"warmup": 256, "x_bytes": 1000}, {"fold": "none"},
]  # fmt: skip
PROBLEMS = {
    "layer": LAYER,
    "batches": BATCHES,
    "groups": ConvProblem(N=2, C=48, H=9, W=8, K=36, groups=12, R=3, S=2, padding=((1, 0), (0, 1)), dtype="fp32"),
    "stride": ConvProblem(N=3, C=130, H=17, W=19, K=9, R=3, S=3, stride=(2, 3), padding=((1, 0), (1, 1)), dtype="fp32"),
    "a row": ConvProblem(N=1, C=20, W=1300, K=24, S=9, padding=((0, 0), (8, 0)), dtype="fp32"),
    "one tap": ConvProblem(N=9, C=300, H=5, W=7, K=140, S=1, dtype="fp32"),
}


@pytest.mark.cover(5)
@pytest.mark.parametrize("index", range(len(SETTINGS)))
@pytest.mark.parametrize("name", PROBLEMS)
def test_settings_change_no_result(name, index):
    check_exact(PROBLEMS[name], config=config_of("implicit_gemm", **SETTINGS[index]), **PAIRS)


def test_packed_filters():
    x, w = normals(LAYER)
    every = []
    for filters, config in itertools.product(
        (w, nkiconv.pack_filter(w)), ((), (("x_bytes", 4096),), (("shard", "channels"),))
    ):
        how = {"algorithm": "implicit_gemm", "config": (("fold", "none"), *config)}
        every.append(nkiconv.conv2d(x, filters, padding=1, precision="fp16x3", **how))
    for y in every[1:]:
        np.testing.assert_array_equal(y, every[0])


@pytest.mark.parametrize(("R", "S", "fold"), [(1, 3, "inputs"), (3, 5, "inputs"), (3, 5, "both"), (3, 5, "none")])
def test_packed_filters_of_folded_channels(R, S, fold):
    """Taps of a row that copies of the channels do not share evenly."""
    problem = ConvProblem(N=2, C=40, K=16, H=5, W=11, R=R, S=S, dtype="fp32")
    x, w = integers(np.random.default_rng(1), problem)
    how = {"precision": "fp16x3", "algorithm": "implicit_gemm", "config": (("fold", fold),)}
    assert_exact(nkiconv.conv2d(x, nkiconv.pack_filter(w), **how), conv_ref(x, w, problem), "fp32")


@pytest.mark.usefixtures("plainly")
def test_every_function_takes_it():
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 6, 9, 8), (5, 6, 3, 2)))
    np.testing.assert_array_equal(nkiconv.conv2d(x, w, precision="fp16x3"), nkiconv.conv2d(x, w))
    rows, taps = x[:, :, 0], w[:, :, 0]
    np.testing.assert_array_equal(nkiconv.conv1d(rows, taps, precision="fp16x3"), nkiconv.conv1d(rows, taps))
    own = rng.integers(-3, 4, (6, 1, 3, 3)).astype(np.float32)
    expected = nkiconv.depthwise_conv2d(x, own, padding=1)
    np.testing.assert_array_equal(nkiconv.depthwise_conv2d(x, own, padding=1, precision="fp16x3"), expected)


def test_other_algorithms_refuse_it():
    for algorithm in ALGORITHMS:
        own, reason = planned(LAYER, algorithm, precision="fp16x3")
        if algorithm != "implicit_gemm":
            assert own is None
            assert reason == f"precision=fp16x3: {algorithm} takes others; use implicit_gemm, or ask for another"
    assert planned(LAYER, "implicit_gemm", precision="fp16x3")[1] == ""


@pytest.mark.slow
def test_what_does_not_fit_is_refused_by_name():
    wide = LAYER.replace(C=1, W=40_010, S=3, rhs_dilation=(1, 20_000), padding=((1, 1), (0, 0)))
    assert re.match(
        r"C=1, W=40010, R=3, S=3: implicit_gemm needs \d+ bytes", planned(wide, "implicit_gemm", precision="fp16x3")[1]
    )
    huge = ConvProblem(N=1, C=128, K=8192, H=12_000, W=600, R=3, S=3, dtype="fp32")
    assert re.search(
        r"implicit_gemm needs up to \d+ instructions", planned(huge, "implicit_gemm", precision="fp16x3")[1]
    )
