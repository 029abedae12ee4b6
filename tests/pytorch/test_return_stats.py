"""return_stats of conv1d to conv3d: values and derivatives of (y, statistics of y), and of what is made of them."""

import functools

import numpy as np
import pytest
import torch
from gradchecks import assert_derivatives
from operators_seen import Seen, graph_of
from prologues import operator as call_of
from prologues import ours, tensors, torchs, truth
from tolerances import FLOAT32_SUMS, assert_within_limit, assert_within_share
from torch import func
from torch.utils.flop_counter import FlopCounterMode

from nkiconv.bounds import returned_stats_bound
from nkiconv.errors import ComparisonError, UnsupportedError
from nkiconv.pytorch import channel_stats, conv1d, conv2d, conv3d, pack_filter
from nkiconv.pytorch.computers import simulated
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.computers.statistics import Norm, moments
from nkiconv.pytorch.models.model_plan import plan_model
from nkiconv.reference import channel_stats_ref

KINDS = (torch.float32, torch.bfloat16, torch.float16)
EACH = Norm("instance", None, 0.0)
in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)


def with_stats(x, w, bias, residual, scale, shift, act="silu", **more):
    """y, mean and variance of each image and channel."""
    y, stats = ours(x, w, bias, residual, scale, shift, act, return_stats="channel", **more)
    return y, *moments(stats, EACH)


def operator(*given, **more):
    y, stats = call_of(*given, suffix="stats", **more)
    return y, *moments(stats, EACH)


def by_torch(*given, **more):
    """The same by torch's functions alone, in the dtype of what they take."""
    y = torchs(*given, **more)
    return y, y.flatten(2).mean(2), y.flatten(2).var(2, correction=0)


@pytest.mark.cover(12)
@pytest.mark.parametrize("act", [None, "silu"])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_are_within_their_bound(rank, dtype, mean, act, mode):
    x, w, bias, *others = tensors(rank, dtype=dtype)
    given = [x, w, bias + mean, *others]
    y, stats = ours(*given, act, activation="relu", return_stats="channel")
    assert stats.shape[1:] == (2, 4, 3)
    assert torch.equal(y, ours(*given, act, activation="relu"))
    y, error = truth(given, act, "relu", "fp32")
    right, limits = channel_stats_ref(y), returned_stats_bound(y, error, y[0, 0].size)
    assert np.array_equal(to_numpy(stats[..., 0].sum(0)), right[..., 0])
    for found, expected, limit in zip(
        moments(stats.double(), EACH), (right[..., 1], right[..., 2]), limits, strict=True
    ):
        assert_within_limit(to_numpy(found), expected, limit)


CALLS = {
    "all": ({}, (), {"activation": "relu"}),
    "no prologue": ({}, (4, 5), {"act": None, "activation": "silu"}),
    "plain": ({"residual": False}, (2, 4, 5), {"act": None}),
    "depthwise": ({"groups": 4, "channels": 4, "form": "channel"}, (), {"act": "tanh"}),
}


@in_both
@pytest.mark.cover(8)
@pytest.mark.parametrize("function", [with_stats, operator])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name, rank, function, mode):
    numbers, none, more = CALLS[name]
    given = [None if i in none else one for i, one in enumerate(tensors(rank, **numbers))]
    leaves = [None if one is None else one.requires_grad_() for one in given]
    wide = [None if one is None else one.detach().double().requires_grad_() for one in given]
    found, right = function(*leaves, **more), by_torch(*wide, **more)
    assert_within_share(found, right, FLOAT32_SUMS)
    gs = [one.detach().cos() for one in right]
    for at in (slice(None), slice(1), slice(1, 3), slice(2, 3)):
        pairs = []
        for results, several, kind in ((found, leaves, torch.float32), (right, wide, torch.float64)):
            kept = [one for one in several if one is not None]
            some = [one.to(kind) for one in gs[at]]
            pairs.append(torch.autograd.grad(results[at], kept, some, retain_graph=True))
        assert_within_share(*pairs, 4 * FLOAT32_SUMS)  # sums of sums; a variance has none by a bias


@pytest.mark.parametrize("act", [None, "silu"])
def test_derivatives_in_float64(act):
    """Both directions, and twice, of every tensor and result."""
    generator = torch.Generator().manual_seed(1)
    shapes = (1, 2, 3), (2, 2, 3), (2,), (1, 2, 3), (1, 2), (2,)
    leaves = [torch.randn(one, generator=generator, dtype=torch.float64, requires_grad=True) for one in shapes]
    call = functools.partial(operator, act=act, activation="silu")
    assert_derivatives(call, leaves, check_forward_ad=True)


@in_both
@pytest.mark.cover(6)
@pytest.mark.parametrize("form", ["channel", "image"])
@pytest.mark.parametrize("batched", [(0,), (1,), (4,), (0, 1, 2, 3, 4, 5), (2, 5)], ids=str)
def test_vmap(batched, form, mode):
    given = [torch.stack([one, one.cos()], 1) if i in batched else one for i, one in enumerate(tensors(1, form))]
    dims = tuple(1 if i in batched else None for i in range(6))
    found = func.vmap(operator, dims)(*given)
    each = [[one.select(1, k) if i in batched else one for i, one in enumerate(given)] for k in (0, 1)]
    right = zip(*(by_torch(*(one.double() for one in some)) for some in each), strict=True)
    for one, others in zip(found, right, strict=True):
        assert_within_share(one, others, FLOAT32_SUMS)


def test_one_image_an_empty_batch_and_frames(mode):
    x, w, *_ = tensors(3)
    y, stats = conv3d(x[0], w, groups=2, return_stats="channel")
    assert y.shape == (4, 1, 2, 3)
    assert stats.shape[1:] == (1, 4, 3)
    y, planes, more = conv3d(x, w, groups=2, return_stats="channel", return_final_frames=True)
    assert torch.equal(planes, x[:, :, 1:])
    assert_within_share(moments(more[:, :1], EACH), moments(stats, EACH), FLOAT32_SUMS)
    y, stats = conv3d(x[:0], w, groups=2, return_stats="channel")
    assert (y.shape, stats.shape[1:]) == ((0, 4, 1, 2, 3), (0, 4, 3))


def test_packed_filters(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    x = torch.arange(70.0).remainder(7).reshape(1, 70, 1, 1).expand(1, 70, 3, 3).contiguous()
    w = torch.arange(128 * 70 * 9).remainder(7).float().reshape(128, 70, 3, 3)
    y, stats = conv2d(x, w, padding=1, packed=pack_filter(w), return_stats="channel")
    plain, others = conv2d(x, w, padding=1, return_stats="channel")
    assert torch.equal(y, plain)
    assert_within_share(moments(stats, EACH), moments(others.double(), EACH), FLOAT32_SUMS)


@pytest.mark.cover(1)
def test_one_graph_whoever_computes(mode):
    given = tensors(2)
    found, names = graph_of(lambda *each: ours(*each, return_stats="channel"), *given)
    assert [name for name in names if "conv" in name] == ["nkiconv.conv2d_with_stats.default"]
    assert all(map(torch.equal, found, ours(*given, return_stats="channel")))


def test_flops_are_those_of_the_convolution():
    counted = []
    for more in ({}, {"return_stats": "channel"}):
        with FlopCounterMode(display=False) as counter:
            ours(*tensors(2), **more)
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] > 0


@pytest.mark.slow
def test_operators_pass_torchs_own_checks():
    x, w, bias, residual, scale, shift = (one.requires_grad_() for one in tensors(2))
    more = [1, 1], [1] * 4, [1, 1], [1, 1], 2, "relu", "pre_activation", None, None, False, "silu"
    call = torch.ops.nkiconv.conv2d_with_stats.default
    found = torch.library.opcheck(call, (x, w, bias, residual, scale, shift, *more))
    assert set(found.values()) == {"SUCCESS"}, found


def test_a_plan_has_the_statistics():
    class Net(torch.nn.Module):
        def forward(self, x):
            return ours(x, *tensors(2)[1:], return_stats="channel")[0]

    (row,) = plan_model(Net(), [tensors(2)[0]], quick=True).rows
    assert (row.convolved.asked.return_stats, row.convolved.asked.x_activation) == ("channel", "silu")
    assert row.plan is not None


def test_compare_names_the_layer_whose_statistics_differ(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    x, w, *_ = tensors(2)
    real = simulated.convolve

    def off(*args):
        y, stats = real(*args)
        return y, stats * 1.001

    monkeypatch.setattr(simulated, "convolve", off)
    with pytest.raises(ComparisonError, match=r"encoder.stem \(conv2d\): the kernel is up to"):
        conv2d(x, w, groups=2, layer="encoder.stem", return_stats="channel")


@pytest.mark.parametrize("value", ["group", True, 1])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_other_statistics_are_refused(rank, value, mode):
    x, w, *_ = tensors(rank)
    with pytest.raises(UnsupportedError, match=f"return_stats={value!r}: accepted are None, channel"):
        {1: conv1d, 2: conv2d, 3: conv3d}[rank](x, w, groups=2, return_stats=value)


def test_frames_and_statistics_are_refused(mode):
    x, w, *_ = tensors(3)
    with pytest.raises(
        UnsupportedError, match="return_stats: is not taken with initial_frames; use channel_stats of y"
    ):
        conv3d(x, w, groups=2, initial_frames=x[:, :, :1], return_stats="channel")


def test_channel_stats_of_y_are_not_taken():
    with Seen() as seen:
        y, stats = ours(*tensors(2), return_stats="channel")
    assert [name for name in seen.names if name.startswith("nkiconv")] == ["nkiconv::conv2d_with_stats"]
    assert_within_share([stats], [channel_stats(y)], FLOAT32_SUMS)
