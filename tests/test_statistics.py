"""Statistics of channels and the norms of them against float64, in any parts, and where fp32 would cancel."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import combined
from gradients import LAYOUTS, last

import nkiconv
from nkiconv import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, norms
from nkiconv.bounds import moments_bound, scale_shift_bound
from nkiconv.kernels.statistics import channel_statistics, norm_scale_and_shift
from nkiconv.reference import channel_stats_ref, norm_scale_shift_ref
from nkiconv.simulator import simulate

BF16 = ml_dtypes.bfloat16
#: x's shape, channels first.
SHAPES = {
    "one element": (1, 2, 1), "few columns": (2, 6, 7, 5), "rows of several tiles": (3, 180, 4, 3),
    "rest of rows": (2, 259, 2, 3), "columns are shared": (1, 3, 41, 50),
    "several tiles of columns": (1, 130, 2, 5, 930), "most channels": (1, 4100, 2),
    "images share tiles": (19, 70, 7, 7), "images of two parts": (8, 300, 13, 13),
}  # fmt: skip


def data(shape, dtype=np.float32, mean=0.0, seed=0):
    """Normal numbers of this mean and a standard deviation of 1."""
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(dtype)


def triples_of(x):
    """At least as many as a kernel makes of an image and channel: two a bn_stats of at least 100 values, and the ends
    of 2 parts."""
    return 2 * (x[0, 0].size // 100 + 2 * norms.STATS)


def check_stats(stats, x):
    count, mean, variance = combined(stats)
    truth = channel_stats_ref(x)
    bounds = moments_bound(truth[..., 1], truth[..., 2], triples_of(x))
    assert np.array_equal(count, truth[..., 0])
    assert np.all(np.abs(mean - truth[..., 1]) <= bounds[0])
    assert np.all(np.abs(variance - truth[..., 2]) <= bounds[1])


def check_norm(found, x, weight=None, bias=None, norm="group", num_groups=32, eps=1e-5):
    truth = norm_scale_shift_ref(x, weight, bias, norm, num_groups, eps)
    share_a_mean = x.shape[0] if norm == "batch" else x.shape[1] // num_groups if norm == "group" else 1
    errors = moments_bound(truth[2], truth[3], triples_of(x) * share_a_mean)
    times = truth[0].shape[-1] // truth[2].shape[-1]
    spread = [np.repeat(one, times, -1) for one in (*truth[2:], *errors)]
    affine = (1.0 if weight is None else weight, 0.0 if bias is None else bias, eps)
    bounds = (*scale_shift_bound(*spread[:2], tuple(spread[2:]), *affine), *errors)
    for name, one, right, bound in zip(found._fields, found, truth, bounds, strict=True):
        assert one.shape == right.shape
        assert one.dtype == np.float32
        assert np.all(np.abs(one - right) <= bound), name


@pytest.mark.cover(8)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_statistics_of_channels(name, dtype, lnc):
    x = data(SHAPES[name], dtype)
    for one, layout in ((x, None), (last(x), LAYOUTS[x.ndim - 2][1])):
        stats = nkiconv.channel_stats(one, layout=layout, lnc=lnc)
        assert stats.shape == (lnc, *x.shape[:2], 3)
        assert stats.dtype == np.float32
        check_stats(stats, x)


NORMS = [("group", 1), ("group", 3), ("group", 12), ("batch", None), ("instance", None)]


@pytest.mark.cover(3)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("norm", "num_groups"), NORMS)
def test_norms_of_a_thousand_standard_deviations(norm, num_groups, lnc):
    """Where the squares of x are a million times its variance, which fp32's difference of them loses."""
    x = data((3, 12, 50, 60), mean=1000.0)
    weight, bias = data(12, seed=1), data(12, BF16, seed=2)
    stats = nkiconv.channel_stats(x, lnc=lnc)
    check_stats(stats, x)
    found = nkiconv.norm_scale_shift(stats, weight, bias, norm=norm, num_groups=num_groups, lnc=lnc)
    check_norm(found, x, weight, bias, norm, num_groups)
    cancelled = np.float32(np.square(x).mean((2, 3), dtype=np.float32) - np.square(x.mean((2, 3), dtype=np.float32)))
    truth = channel_stats_ref(x)
    _, bound = moments_bound(truth[..., 1], truth[..., 2], triples_of(x))
    assert np.any(np.abs(cancelled - truth[..., 2]) > bound)


@pytest.mark.parametrize(("norm", "num_groups"), NORMS)
def test_parts_of_launches_and_none(norm, num_groups):
    """Pieces of x of several launches are those of all of it, and parts without elements count for nothing."""
    x = data((2, 12, 9, 31), mean=3.0)
    pieces = [nkiconv.channel_stats(one, lnc=lnc) for one, lnc in ((x[..., :5], 2), (x[..., 5:6], 1), (x[..., 6:], 2))]
    found = nkiconv.norm_scale_shift(pieces, norm=norm, num_groups=num_groups)
    check_norm(found, x, norm=norm, num_groups=num_groups)
    empty = np.zeros((3, 2, 12, 3), np.float32)
    with_none = nkiconv.norm_scale_shift([empty, *pieces, empty], norm=norm, num_groups=num_groups)
    check_norm(with_none, x, norm=norm, num_groups=num_groups)
    one, two = (nkiconv.norm_scale_shift(pieces, norm=norm, num_groups=num_groups, lnc=lnc) for lnc in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.cover(3, keep=["70-5-batch-None-affine1", "3-700-group-1-affine0"])
@pytest.mark.parametrize("affine", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize(
    ("N", "C", "norm", "num_groups"),
    [
        (5, 64, "group", None), (1, 300, "batch", None), (7, 70, "instance", None), (9, 42, "group", 21),
        (16, 300, "batch", None), (70, 5, "batch", None), (3, 700, "group", 1), (2, 1020, "group", 2)],
)  # fmt: skip
def test_many_means_of_a_core(N, C, norm, num_groups, affine):
    """Several means on a partition, pieces of a mean on several, images that share tiles and partitions, and any of
    weight and bias."""
    x = data((N, C, 3))
    weight, bias = (data(C, seed=seed) if given else None for given, seed in zip(affine, (1, 2), strict=True))
    found = nkiconv.norm_scale_shift(nkiconv.channel_stats(x), weight, bias, norm=norm, num_groups=num_groups, eps=0.5)
    check_norm(found, x, weight, bias, norm, num_groups or norms.NUM_GROUPS, eps=0.5)


@pytest.mark.cover(3)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("is_last", "images"), [(False, 2), (True, 2), (True, 9)])
def test_non_finite_numbers_stay_in_their_channel(bad, is_last, images):
    x = data((images, 4, 5, 6))
    x[1, 2, 3, 4] = bad
    given, layout = (last(x), "NHWC") if is_last else (x, "NCHW")
    with np.errstate(invalid="ignore"):
        stats = nkiconv.channel_stats(given, layout=layout)
        finite = np.isfinite(combined(stats)[2])
        of_instance = nkiconv.norm_scale_shift(stats, norm="instance")
        of_group = nkiconv.norm_scale_shift(stats, num_groups=2)
    wanted = np.ones((images, 4), bool)
    wanted[1, 2] = False
    assert np.array_equal(finite, wanted)
    assert np.array_equal(np.isfinite(of_instance.shift), wanted)
    assert np.array_equal(np.isfinite(of_group.mean), wanted[:, 1:3])


STATS = np.ones((2, 3, 4, 3), np.float32)
CHANNEL_STATS, NORM, KERNEL = nkiconv.channel_stats, nkiconv.norm_scale_shift, simulate(norm_scale_and_shift)
REFUSED = [
    ("rank of x", CHANNEL_STATS, (np.ones((2, 3), np.float32),), {}, LayoutError, "x.shape"),
    ("no pixels", CHANNEL_STATS, (np.ones((2, 3, 0), np.float32),), {}, GeometryError, "W"),
    ("dtype of x", CHANNEL_STATS, (np.ones((2, 3, 4)),), {}, DtypeError, "x.dtype=float64"),
    ("no parts", NORM, (STATS[:0],), {"num_groups": 2}, GeometryError, "every extent of .* at least 1"),
    ("no stats", NORM, ([],), {}, GeometryError, r"stats=\(\)"),
    ("last axis", NORM, (STATS[..., :2],), {"num_groups": 2}, GeometryError, r"\[P, N, C, 3\]"),
    ("dtype of stats", NORM, (STATS.astype(BF16),), {}, DtypeError, "accepted are float32"),
    ("other images", NORM, ([STATS, STATS[:, :2]],), {"num_groups": 2}, GeometryError, r"stats\[1\].shape"),
    ("groups of channels", NORM, (STATS,), {}, GeometryError, "num_groups=32: must divide C=4"),
    ("groups of a batch", NORM, (STATS,), {"norm": "batch", "num_groups": 2}, GeometryError, "has no groups"),
    ("eps", NORM, (STATS,), {"num_groups": 2, "eps": -1.0}, UnsupportedError, "eps=-1.0"),
    ("weight", NORM, (STATS, np.ones(3, np.float32)), {"num_groups": 2}, GeometryError, "weight.shape"),
    ("bias", NORM, (STATS, None, np.ones(4)), {"num_groups": 2}, DtypeError, "bias.dtype"),
    ("too many", NORM, (np.ones((4097, 1, 1, 3), np.float32),), {"norm": "batch"}, UnsupportedError, "4,097 parts"),
    ("kernel's groups", KERNEL, ((STATS,),), {"norm": "batch", "num_groups": 2}, AssertionError, "has no groups"),
    ("kernel's weight", KERNEL, ((STATS,), np.ones(3, np.float32)), {"num_groups": 2}, AssertionError, "weight.shape"),
    ("kernel's layout", simulate(channel_statistics), (STATS[0], 1), {}, AssertionError, "channels_last=1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "error", "text"), [pytest.param(*one[1:], id=one[0]) for one in REFUSED]
)
def test_refused(function, args, kwargs, error, text):
    with pytest.raises((NkiconvError, AssertionError), match=text) as caught:
        function(*args, **kwargs)
    assert isinstance(caught.value, error) or len(caught.value.violations) > 1
