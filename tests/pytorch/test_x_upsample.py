"""x_upsample of convolutions: values and derivatives of conv(upsample(act(x * x_scale + x_shift)))."""

import functools

import pytest
import torch
from gradchecks import assert_derivatives
from operators_seen import Seen, graph_of
from prologues import assert_gradient_of_one, assert_gradients, operator, ours, tensors, torchs, truth
from tolerances import FLOAT32_SUMS, assert_within_limit, assert_within_share
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nkiconv.errors import ComparisonError, UnsupportedError
from nkiconv.pytorch import conv2d, nn, norm_act_conv1d, norm_act_conv2d, pack_filter
from nkiconv.pytorch.computers import simulated
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.models.model_plan import plan_model

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
twice = functools.partial(ours, x_upsample=2)


@pytest.mark.cover(8)
@pytest.mark.parametrize("act", [None, "silu"])
@pytest.mark.parametrize("form", ["channel", "image"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_within_their_bound(dtype, form, act, mode):
    given = tensors(2, form, dtype=dtype, upsample=2)
    with Seen() as seen:
        y = twice(*given, act)
    assert seen.convolutions[0] == "nkiconv::conv2d_with_prologue"
    assert_within_limit(to_numpy(y), *truth(given, act, x_upsample=2))


def test_alone_it_is_what_interpolate_gives(mode):
    """Channels side by side too, of which y then has its channels side by side."""
    x = torch.arange(2 * 6 * 4 * 5).remainder(5).float().reshape(2, 6, 4, 5) - 2
    w = torch.arange(4 * 6 * 9).remainder(3).float().reshape(4, 6, 3, 3) - 1
    for order in (torch.contiguous_format, torch.channels_last):
        x = x.contiguous(memory_format=order)
        y = conv2d(x, w, stride=(1, 2), padding=(0, 2), x_upsample=2)
        doubled = F.interpolate(x, scale_factor=2, mode="nearest")
        assert torch.equal(y, F.conv2d(doubled, w, stride=(1, 2), padding=(0, 2)))
        assert y.is_contiguous(memory_format=order)


#: What is given: arguments of `tensors`, what of x_scale and x_shift is None, and the rest of the call.
CALLS = {
    "all": ({}, (), {"activation": "relu"}),
    "of channels": ({"form": "channel"}, (), {"activation": "silu", "residual_position": "post_activation"}),
    "alone": ({"residual": False, "groups": 1}, (4, 5), {"act": None}),
}


@in_both
@pytest.mark.parametrize("function", [ours, operator])
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name, function, mode):
    numbers, none, more = CALLS[name]
    given = [None if i in none else one for i, one in enumerate(tensors(2, upsample=2, **numbers))]
    assert_gradients(function, given, x_upsample=2, **more)


@pytest.mark.parametrize("index", range(6))
def test_only_what_is_wanted_is_differentiated(index):
    given = tensors(2, upsample=2)
    assert_gradient_of_one(given, index, x_upsample=2)


def test_pixels_that_are_one_of_input_are_summed_in_fp32():
    """In bf16 the sum of 256 and three ones would be 256."""
    x, w = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16, requires_grad=True), torch.ones(1, 1, 1, 1).bfloat16()
    g = torch.tensor([[[[256.0, 1.0], [1.0, 2.0]]]]).bfloat16()
    for call in (conv2d, functools.partial(conv2d, x_scale=torch.ones(1))):
        for look in (Seen, torch.enable_grad):
            with look():
                (found,) = torch.autograd.grad(call(x, w, x_upsample=2), x, g)
            assert found.item() == 260


@pytest.mark.parametrize("act", [None, "silu"])
def test_derivatives_in_float64(act):
    """Both directions, and twice, of every tensor."""
    generator = torch.Generator().manual_seed(1)
    shapes = (1, 2, 2, 1), (2, 2, 3, 3), (2,), (1, 2, 4, 2), (1, 2), (2,)
    leaves = [torch.randn(one, generator=generator, dtype=torch.float64, requires_grad=True) for one in shapes]
    call = functools.partial(operator, act=act, activation="silu", x_upsample=2)
    assert_derivatives(call, leaves, check_forward_ad=True)


@in_both
def test_tangents(mode):
    given = tensors(2, upsample=2)
    tangents = [one.cos() for one in given]
    for at in (range(6), *([i] for i in range(6))):
        found = []
        for call, kind in ((ours, torch.float32), (torchs, torch.float64)):
            with forward_ad.dual_level():
                pairs = [(one.to(kind), each.to(kind)) for one, each in zip(given, tangents, strict=True)]
                duals = [forward_ad.make_dual(*pair) if i in at else pair[0] for i, pair in enumerate(pairs)]
                found.append(forward_ad.unpack_dual(call(*duals, x_upsample=2)).tangent)
        assert_within_share(found[:1], found[1:], FLOAT32_SUMS)


@in_both
@pytest.mark.parametrize("batched", [(0,), (1,), (0, 3, 4, 5), (0, 1, 2, 3, 4, 5)], ids=str)
def test_vmap(batched, mode):
    given = [torch.stack([one, one.cos()], 1) if i in batched else one for i, one in enumerate(tensors(2, upsample=2))]
    dims = tuple(1 if i in batched else None for i in range(6))
    found = func.vmap(functools.partial(operator, x_upsample=2), dims)(*given)
    each = [
        [one.select(1, k).double() if i in batched else one.double() for i, one in enumerate(given)] for k in (0, 1)
    ]
    assert_within_share(found, [torchs(*some, x_upsample=2) for some in each], FLOAT32_SUMS)


def test_one_image_and_empty_tensors(mode):
    x, w, bias, residual, *scales = tensors(2, "channel", upsample=2)
    found, expected = twice(x[0], w, bias, residual[0], *scales), torchs(x, w, bias, residual, *scales, x_upsample=2)
    assert_within_share([found], [expected[0]], FLOAT32_SUMS)
    assert conv2d(x[:0], w, padding=1, groups=2, x_upsample=2).shape == (0, 4, 10, 12)
    none = x[:, :0].requires_grad_()
    y = conv2d(none, w[:, :0], padding=1, x_upsample=2)
    y.sum().backward()
    assert (y.shape, none.grad.shape) == ((2, 0, 10, 12), (2, 0, 5, 6))


def test_statistics_are_those_of_y(mode):
    x, w, *_ = tensors(2)
    y, stats = conv2d(x, w, groups=2, x_upsample=2, return_stats="channel")
    assert_within_share([stats[..., 0].sum(0)], [torch.full((2, 4), y[0, 0].numel())], FLOAT32_SUMS)
    whole = stats[..., 0:1] / y[0, 0].numel() * stats[..., 1:2]
    assert_within_share([whole.sum((0, -1))], [y.double().mean((2, 3))], FLOAT32_SUMS)


def test_packed_filters(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    x = torch.arange(70.0 * 9).remainder(5).reshape(1, 70, 3, 3)
    w = torch.arange(128 * 70 * 9).remainder(7).float().reshape(128, 70, 3, 3)
    found = conv2d(x, w, padding=1, packed=pack_filter(w), x_upsample=2)
    assert torch.equal(found, torchs(x, w, None, None, None, None, None, x_upsample=2))


def test_comparison_sees_a_wrong_pixel(monkeypatch):
    x, w, *_ = tensors(2)
    monkeypatch.setenv("NKICONV_CPU", "compare")
    conv2d(x, w, groups=2, x_upsample=2)
    monkeypatch.setitem(simulated._ARRAYS, 2, _moved)
    with pytest.raises(ComparisonError, match="the kernel and torch differ"):
        conv2d(x, w, groups=2, x_upsample=2)


def _moved(x, w, *, x_upsample, **_):
    found = F.conv2d(torch.from_numpy(x).repeat(1, 1, x_upsample, x_upsample), torch.from_numpy(w), groups=2)
    return found.numpy()


@pytest.mark.cover(1)
def test_one_graph_whoever_computes(mode):
    given = tensors(2, upsample=2)
    y, names = graph_of(lambda *each: twice(*each, activation="relu"), *given)
    assert [name for name in names if "conv" in name] == ["nkiconv.conv2d_with_prologue.default"]
    assert torch.equal(y, twice(*given, activation="relu"))


@pytest.mark.slow
def test_the_operator_passes_torchs_own_checks():
    leaves = [one.requires_grad_() for one in tensors(2, upsample=2)]
    numbers = [1, 1], [1] * 4, [1, 1], [1, 1], 2, "relu", "pre_activation", None, None, False, "silu", 2
    found = torch.library.opcheck(torch.ops.nkiconv.conv2d_with_prologue.default, (*leaves, *numbers))
    assert set(found.values()) == {"SUCCESS"}, found


def test_flops_are_those_of_what_is_convolved():
    x, w, *_ = tensors(2)
    totals = []
    for call in (
        lambda: conv2d(x, w, groups=2, padding=1, x_upsample=2),
        lambda: F.conv2d(F.interpolate(x, scale_factor=2), w, groups=2, padding=1),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] > 0


def test_autocast_casts_all_but_the_scales():
    x, w, bias, residual, *scales = tensors(2, upsample=2)
    with torch.autocast("cpu", torch.bfloat16):
        found = twice(x, w, bias, residual, *scales)
    assert torch.equal(found, twice(*(one.bfloat16() for one in (x, w, bias, residual)), *scales))


class Net(torch.nn.Module):
    """A norm, an activation, and a convolution of twice the rows and columns."""

    def __init__(self, **more):
        super().__init__()
        self.layer = nn.NormActConv2d(6, 4, 3, padding=1, num_groups=3, x_upsample=2, **more)

    def forward(self, x):
        return self.layer(x)


def test_modules(mode):
    x, net = tensors(2)[0], Net()
    norm, conv = net.layer.norm, net.layer.conv
    wide = F.group_norm(x.double(), 3, norm.weight.double(), norm.bias.double())
    expected = F.conv2d(
        F.interpolate(F.silu(wide), scale_factor=2), *(one.double() for one in conv.parameters()), padding=1
    )
    assert_within_share([net(x)], [expected], FLOAT32_SUMS)
    more = {"num_groups": 3, "norm_weight": norm.weight, "norm_bias": norm.bias, "padding": 1}
    assert torch.equal(net(x), norm_act_conv2d(x, conv.weight, conv.bias, x_upsample=2, **more))
    assert torch.equal(conv(x), conv2d(x, conv.weight, conv.bias, padding=1, x_upsample=2))
    assert "x_upsample=2" in repr(conv)


def test_a_plan_has_it():
    (row,) = plan_model(Net(), [tensors(2)[0]]).rows
    asked, problem = row.convolved.asked, row.convolved.problem
    assert (asked.x_scale, asked.x_activation, asked.x_upsample) == ("image", "silu", 2)
    assert (problem.H, problem.W) == (10, 12)
    pixels, filters, y = 2 * 6 * 30, 4 * 6 * 9, 2 * 4 * 120
    assert row.hbm_bytes == 4 * (pixels + filters + y)


X, W = torch.zeros(1, 4, 3, 3), torch.zeros(4, 4, 3, 3)
REFUSALS = [
    (lambda: conv2d(X, W, x_upsample=3), "x_upsample=3: accepted are 1, 2"),
    (lambda: conv2d(X, W, x_upsample=True), "x_upsample=True: accepted are 1, 2"),
    (lambda: conv2d(X, W, x_upsample=2, y_norm="rms"), "x_activation, x_upsample; apply these before"),
    (lambda: norm_act_conv1d(X[0], W[0], x_upsample=2), "x_upsample=2: accepted are 1; upsample what the norm gives"),
    (lambda: nn.Conv3d(4, 4, 3, x_upsample=2), "x_upsample=2: accepted are 1; use one of them, or upsample the input"),
    (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", x_upsample=2), "must be 'zeros' with x_upsample"),
    (
        lambda: torch.ops.nkiconv.conv_transpose2d_with_prologue(
            X, W, None, None, None, None, [1, 1], [1] * 4, [1, 1], [1, 1], 1, None, "pre_activation", None, x_upsample=2
        ),
        "x_upsample=2: conv2d alone takes it; upsample input before",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSALS)
def test_refusals(call, words):
    with pytest.raises(UnsupportedError, match=words):
        call()
