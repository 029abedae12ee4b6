"""Norms, activations and upsampling before convolutions, and statistics after them: functions and modules.

y = conv(upsample(act(norm(x)))), where a norm is x * x_scale + x_shift: values and derivatives, of transposed ones too.
"""

import contextlib
import copy
import functools

import pytest
import torch
from gradchecks import assert_gradients, several
from layers import FORMS, SIZES, normed
from layers import norm_act as ours
from layers import of_norm_act as tensors
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.norms import NORMS
from nkiconv.pytorch import channel_stats, conv2d, nn, norm_act_conv2d, norm_scale_shift


@pytest.mark.parametrize("norm", NORMS)
def test_derivatives_of_all_results(norm):
    """Mean and variance too, with statistics in two parts of different sizes."""
    x, _, _, gamma, beta = (one.double().requires_grad_() for one in tensors(1))
    groups = 3 if norm == "group" else None

    def call(x, gamma, beta):
        with Seen():
            pieces = [channel_stats(x[..., :2]), channel_stats(x[..., 2:])]
            return norm_scale_shift(pieces, gamma, beta, norm=norm, num_groups=groups)

    assert torch.autograd.gradcheck(call, [x, gamma, beta], check_forward_ad=True, fast_mode=True)
    found, wide = call(x, gamma, beta), x.detach()
    by_channel = [one.reshape(-1, 6, 1) for one in found[:2]]
    assert_within_share([wide * by_channel[0] + by_channel[1]], [normed(wide, gamma, beta, norm)], FLOAT64_SUMS)


def test_autocast_casts_input_before_the_norm():
    given = tensors(2)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(*given)
    assert torch.equal(y, ours(*(one.bfloat16() for one in given[:3]), *given[3:]))


#: A norm's class without its axes, its other arguments, and those of our module.
KINDS = {
    "group": ("GroupNorm", lambda channels: (3, channels), {"num_groups": 3}),
    "batch": ("BatchNorm", lambda channels: (channels,), {}),
    "cumulative": ("BatchNorm", lambda channels: (channels, 1e-3, None), {"momentum": None, "eps": 1e-3}),
    "untracked": ("BatchNorm", lambda channels: (channels, 1e-5, 0.1, False, False),
        {"track_running_stats": False, "affine": False}),
    "instance": ("InstanceNorm", lambda channels: (channels, 1e-5, 0.1, True), {}),
}  # fmt: skip


def theirs(rank, name):
    """(norm, conv) of torch."""
    kind, arguments, _ = KINDS[name]
    torch.manual_seed(rank)
    norm = getattr(torch.nn, kind if kind == "GroupNorm" else f"{kind}{rank}d")(*arguments(6))
    with torch.no_grad():
        for one in norm.parameters():
            one.normal_()
    return norm, getattr(torch.nn, f"Conv{rank}d")(6, 4, 3, padding=1)


@pytest.mark.cover(9, keep=["torch-1-group-False-True", "torch-2-instance-False-False"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("of_parts", [True, False])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
def test_equals_torchs_modules(rank, name, of_parts, training, mode):
    norm, conv = theirs(rank, name)
    wide = [copy.deepcopy(one).double().train(training) for one in (norm, conv)]
    kind = getattr(nn, f"NormActConv{rank}d")
    if of_parts:
        fused = kind.of(norm, "silu", conv).train(training)
        assert fused.norm is norm
        assert list(map(id, fused.conv.parameters())) == list(map(id, conv.parameters()))
    else:
        named = {"cumulative": "batch", "untracked": "batch"}.get(name, name)
        fused = kind(6, 4, 3, padding=1, norm=named, x_activation="silu", **KINDS[name][2]).train(training)
        both = {"norm": norm, "conv": conv}
        states = {f"{of}.{key}": value for of, one in both.items() for key, value in one.state_dict().items()}
        assert list(fused.state_dict()) == list(states)
        fused.load_state_dict(states)
    for seed in range(2):  # running statistics of the first call are used by the second, and move
        x = torch.randn(2, 6, *SIZES[rank], generator=torch.Generator().manual_seed(seed)).requires_grad_()
        residual = torch.randn(2, 4, *SIZES[rank])
        x64 = x.detach().double().requires_grad_()
        y, expected = fused(x, residual), wide[1](F.silu(wide[0](x64))) + residual.double()
        assert_within_share([y], [expected], FLOAT32_SUMS)
        g = torch.randn(y.shape)
        found = torch.autograd.grad(y, [x, *fused.parameters()], g)
        right = torch.autograd.grad(expected, [x64, *wide[0].parameters(), *wide[1].parameters()], g.double())
        for one, other in zip(found, right, strict=True):
            assert_within_share([one], [other], 4 * FLOAT32_SUMS)
        for one, other in zip(fused.norm.buffers(), wide[0].buffers(), strict=True):
            assert_within_share([one.double() + 1], [other + 1], FLOAT32_SUMS)
    if not training:
        assert_within_share([fused(x[0])], [fused(x[:1])[0]], FLOAT32_SUMS)


def test_statistics_that_are_known():
    norm, conv = theirs(2, "group")
    fused, x = nn.NormActConv2d.of(norm, None, conv), torch.randn(2, 6, 5, 6)
    assert torch.equal(fused(x, stats=channel_stats(x)), fused(x))
    norm, conv = theirs(2, "batch")
    fused = nn.NormActConv2d.of(norm, None, conv)
    fused(x, stats=channel_stats(x))
    with pytest.raises(UnsupportedError, match="stats: running_mean and running_var are used in eval mode"):
        fused.eval()(x, stats=channel_stats(x))


#: What is given: arguments of `tensors`, what of the tensors is None, and the rest of the call.
CALLS = {
    "all": ({}, (), {"activation": "relu"}),
    "of channels": ({"form": "channel"}, (), {"activation": "sigmoid", "residual_position": "post_activation"}),
    "scale": ({"residual": False}, (5,), {"act": "gelu"}),
    "shift": ({"residual": False, "groups": 1}, (4,), {"act": None, "activation": "gelu_tanh"}),
    "no prologue": ({}, (4, 5), {"act": None, "activation": "silu"}),
    "plain": ({"residual": False}, (2, 4, 5), {"act": None}),
    "a filter a channel": ({"groups": 4, "channels": 4, "form": "channel"}, (), {"act": "tanh"}),
}


@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
@pytest.mark.cover(12)
@pytest.mark.parametrize("look", [contextlib.nullcontext, Seen])
@pytest.mark.parametrize(("numbers", "none", "more"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("name", "rank"), [(name, rank) for name, form in FORMS.items() for rank in form.ranks])
def test_gradients(name, rank, numbers, none, more, look, mode):
    """By torch's functions, and by operators, which whoever looks on sees."""
    form = FORMS[name]
    given = [None if i in none else one for i, one in enumerate(form.tensors(rank, **numbers))]
    pair = (functools.partial(one, **more) for one in (form.ours, form.torchs))
    with look():
        assert_gradients(*pair, given, (1 + 3 * form.stats) * FLOAT32_SUMS)  # of statistics sums of sums


@pytest.mark.cover(4)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_image(form, mode):
    x, w, bias, residual, *scales = form.tensors(2, "channel")
    y, *stats = several(form.ours(x, w, bias, residual, *scales))
    of_one, *found = several(form.ours(x[0], w, bias, residual[0], *scales))
    assert of_one.shape == y.shape[1:]
    assert_within_share([of_one], [y[0]], FLOAT32_SUMS)
    for one, other in zip(found, stats, strict=True):
        assert_within_share([one], [other[:1]], FLOAT32_SUMS)


def test_pixels_that_are_one_of_input_are_summed_in_fp32():
    """In bf16 the sum of 256 and three ones would be 256."""
    x, w = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16, requires_grad=True), torch.ones(1, 1, 1, 1).bfloat16()
    g = torch.tensor([[[[256.0, 1.0], [1.0, 2.0]]]]).bfloat16()
    for call in (conv2d, functools.partial(conv2d, x_scale=torch.ones(1))):
        for look in (Seen, torch.enable_grad):
            with look():
                (found,) = torch.autograd.grad(call(x, w, x_upsample=2), x, g)
            assert found.item() == 260


def test_an_empty_batch_moves_no_statistics():
    running = torch.zeros(4), torch.ones(4)
    x, w = torch.ones(0, 4, 5, 5), torch.ones(2, 4, 3, 3)
    more = {"norm": "batch", "training": True, "running_mean": running[0], "running_var": running[1]}
    assert norm_act_conv2d(x, w, **more).shape == (0, 2, 3, 3)
    assert [one.tolist() for one in running] == [[0.0] * 4, [1.0] * 4]
