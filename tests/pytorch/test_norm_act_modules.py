"""NormActConv*: torch's norm, activation and convolution, with the same parameters, in training and eval mode."""

import copy

import pytest
import torch
from tolerances import FLOAT32_SUMS, assert_within_share
from torch_activation import torchs as activation_of

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import channel_stats
from nkiconv.pytorch import nn as ours

SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}
#: A norm's class without its axes, its other arguments, and those of our module.
NORMS = {
    "group": ("GroupNorm", lambda channels: (3, channels), {"num_groups": 3}),
    "batch": ("BatchNorm", lambda channels: (channels,), {}),
    "cumulative": ("BatchNorm", lambda channels: (channels, 1e-3, None), {"momentum": None, "eps": 1e-3}),
    "untracked": (
        "BatchNorm",
        lambda channels: (channels, 1e-5, 0.1, False, False),
        {"track_running_stats": False, "affine": False},
    ),
    "instance": ("InstanceNorm", lambda channels: (channels, 1e-5, 0.1, True), {}),
}


def theirs(rank, name):
    """(norm, conv) of torch."""
    kind, arguments, _ = NORMS[name]
    torch.manual_seed(rank)
    norm = getattr(torch.nn, kind if kind == "GroupNorm" else f"{kind}{rank}d")(*arguments(6))
    with torch.no_grad():
        for one in norm.parameters():
            one.normal_()
    return norm, getattr(torch.nn, f"Conv{rank}d")(6, 4, 3, padding=1)


def module(rank):
    return getattr(ours, f"NormActConv{rank}d")


@pytest.mark.cover(6)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
def test_equals_torchs_modules(rank, name, training, mode):
    norm, conv = theirs(rank, name)
    wide = [copy.deepcopy(one).double().train(training) for one in (norm, conv)]
    fused = module(rank).of(norm, "silu", conv).train(training)
    assert fused.norm is norm
    assert list(map(id, fused.conv.parameters())) == list(map(id, conv.parameters()))
    for seed in range(2):  # running statistics of the first call are used by the second, and move
        x = torch.randn(2, 6, *SIZES[rank], generator=torch.Generator().manual_seed(seed)).requires_grad_()
        residual = torch.randn(2, 4, *SIZES[rank])
        x64 = x.detach().double().requires_grad_()
        y, expected = fused(x, residual), wide[1](activation_of("silu")(wide[0](x64))) + residual.double()
        assert_within_share([y], [expected], FLOAT32_SUMS)
        g = torch.randn(y.shape)
        found = torch.autograd.grad(y, [x, *fused.parameters()], g)
        right = torch.autograd.grad(expected, [x64, *wide[0].parameters(), *wide[1].parameters()], g.double())
        for one, other in zip(found, right, strict=True):
            assert_within_share([one], [other], 4 * FLOAT32_SUMS)
        for one, other in zip(norm.buffers(), wide[0].buffers(), strict=True):
            assert_within_share([one.double() + 1], [other + 1], FLOAT32_SUMS)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_built_of_numbers(rank, name):
    norm, conv = theirs(rank, name)
    kind = {"cumulative": "batch", "untracked": "batch"}.get(name, name)
    fused = module(rank)(6, 4, 3, padding=1, norm=kind, x_activation="relu", activation="silu", **NORMS[name][2])
    states = {f"norm.{key}": value for key, value in norm.state_dict().items()}
    states |= {f"conv.{key}": value for key, value in conv.state_dict().items()}
    assert list(fused.state_dict()) == list(states)
    fused.load_state_dict(states)
    x = torch.randn(2, 6, *SIZES[rank])
    expected = activation_of("silu")(conv(norm(x).relu()))
    assert_within_share([fused(x)], [expected], FLOAT32_SUMS)
    assert_within_share([fused(x[0])], [fused(x[:1])[0]], FLOAT32_SUMS)


def test_statistics_that_are_known():
    norm, conv = theirs(2, "group")
    fused, x = ours.NormActConv2d.of(norm, None, conv), torch.randn(2, 6, 5, 6)
    assert torch.equal(fused(x, stats=channel_stats(x)), fused(x))
    norm, conv = theirs(2, "batch")
    fused = ours.NormActConv2d.of(norm, None, conv)
    fused(x, stats=channel_stats(x))
    with pytest.raises(UnsupportedError, match="stats: running_mean and running_var are used in eval mode"):
        fused.eval()(x, stats=channel_stats(x))
