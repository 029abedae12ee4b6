"""x_scale, x_shift and x_activation of convolutions: values and derivatives of conv(act(x * x_scale + x_shift))."""

import functools

import pytest
import torch
from gradchecks import assert_derivatives
from operators_seen import Seen, graph_of
from prologues import assert_gradient_of_one, assert_gradients, operator, ours, tensors, torchs, truth
from tolerances import FLOAT32_SUMS, assert_within_limit, assert_within_share
from torch import func
from torch.autograd import forward_ad

from nkiconv.errors import DtypeError, GeometryError, UnsupportedError
from nkiconv.pytorch import conv2d, conv3d, pack_filter
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.models.model_plan import plan_model
from nkiconv.rules import ACTIVATIONS

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)


@pytest.mark.cover(12)
@pytest.mark.parametrize("act", [None, "silu", "relu"])
@pytest.mark.parametrize("form", ["channel", "image"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_are_within_their_bound(rank, dtype, form, act, mode):
    given = tensors(rank, form, dtype=dtype)
    with Seen() as seen:
        y = ours(*given, act)
    assert seen.convolutions[0] == f"nkiconv::conv{rank}d_with_prologue"
    expected, limit = truth(given, act)
    assert_within_limit(to_numpy(y).reshape(expected.shape), expected, limit)


@in_both
def test_depthwise_rows_have_their_own_operator(mode):
    given = tensors(1, groups=4, channels=4)
    with Seen() as seen:
        y = ours(*given, "silu")
    assert seen.convolutions[0] == "nkiconv::depthwise_conv1d_with_prologue"
    expected, limit = truth(given, "silu")
    assert_within_limit(to_numpy(y).reshape(expected.shape), expected, limit)


#: What is given: arguments of `tensors`, what of x_scale and x_shift is None, and the rest of the call.
CALLS = {
    "all": ({}, (), {"activation": "relu"}),
    "of channels": ({"form": "channel"}, (), {"activation": "silu", "residual_position": "post_activation"}),
    "scale": ({"residual": False}, (5,), {"act": "gelu"}),
    "shift": ({"residual": False, "groups": 1}, (4,), {"act": None, "activation": "gelu_tanh"}),
    "activation": ({"groups": 4, "channels": 4}, (4, 5), {"act": "tanh"}),
}


@in_both
@pytest.mark.cover(8)
@pytest.mark.parametrize("function", [ours, operator])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name, rank, function, mode):
    numbers, none, more = CALLS[name]
    given = [None if i in none else one for i, one in enumerate(tensors(rank, **numbers))]
    assert_gradients(function, given, **more)


@pytest.mark.parametrize("index", range(6))
def test_only_what_is_wanted_is_differentiated(index):
    given = tensors(2)
    assert_gradient_of_one(given, index)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_derivatives_in_float64(act):
    """Both directions, and twice, of every tensor."""
    generator = torch.Generator().manual_seed(1)
    shapes = (1, 2, 3), (2, 2, 3), (2,), (1, 2, 3), (1, 2), (2,)
    leaves = [torch.randn(one, generator=generator, dtype=torch.float64, requires_grad=True) for one in shapes]
    call = functools.partial(operator, act=act, activation="silu")
    assert_derivatives(call, leaves, check_forward_ad=True)


@in_both
def test_tangents(mode):
    given = tensors(1)
    tangents = [one.cos() for one in given]
    for at in (range(6), *([i] for i in range(6))):
        found = []
        for call, kind in ((ours, torch.float32), (torchs, torch.float64)):
            with forward_ad.dual_level():
                pairs = [(one.to(kind), each.to(kind)) for one, each in zip(given, tangents, strict=True)]
                duals = [forward_ad.make_dual(*pair) if i in at else pair[0] for i, pair in enumerate(pairs)]
                found.append(forward_ad.unpack_dual(call(*duals)).tangent)
        assert_within_share(found[:1], found[1:], FLOAT32_SUMS)


#: Which tensors have a batch.
BATCHES = [(0,), (1,), (4,), (0, 3, 4, 5), (0, 1, 2, 3, 4, 5), (2, 5)]


@in_both
@pytest.mark.cover(6)
@pytest.mark.parametrize("form", ["channel", "image"])
@pytest.mark.parametrize("batched", BATCHES, ids=str)
def test_vmap(batched, form, mode):
    given = [torch.stack([one, one.cos()], 1) if i in batched else one for i, one in enumerate(tensors(1, form))]
    dims = tuple(1 if i in batched else None for i in range(6))
    found = func.vmap(operator, dims)(*given)
    each = [[one.select(1, k) if i in batched else one for i, one in enumerate(given)] for k in (0, 1)]
    assert_within_share(found, [torchs(*(one.double() for one in some)) for some in each], FLOAT32_SUMS)


def test_one_image_and_an_empty_batch():
    x, w, bias, residual, scale, shift = tensors(2, "channel")
    expected = torchs(x, w, bias, residual, scale, shift)
    found = ours(x[0], w, bias, residual[0], scale, shift)
    assert_within_share([found], [expected[0]], FLOAT32_SUMS)
    with Seen():
        assert ours(x[:0], w, bias, residual[:0], scale, shift).shape == (0, 4, 5, 6)


def test_packed_filters(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    x, scale, shift = torch.ones(1, 70, 3, 3), torch.arange(70.0) % 5, torch.arange(70.0) % 3 - 1
    w = torch.arange(128 * 70 * 9).remainder(7).float().reshape(128, 70, 3, 3)
    found = conv2d(x, w, padding=1, packed=pack_filter(w), x_scale=scale, x_shift=shift, x_activation="relu")
    assert torch.equal(found, torchs(x, w, None, None, scale, shift, "relu"))


@pytest.mark.cover(1)
def test_one_graph_whoever_computes(mode):
    given = tensors(2)
    y, names = graph_of(lambda *each: ours(*each, activation="relu"), *given)
    assert [name for name in names if "conv" in name] == ["nkiconv.conv2d_with_prologue.default"]
    assert torch.equal(y, ours(*given, activation="relu"))


@pytest.mark.slow
def test_operators_pass_torchs_own_checks():
    for given in (tensors(1), tensors(3, "channel", residual=False)):
        leaves = [None if one is None else one.requires_grad_() for one in given]
        rank = given[1].dim() - 2
        more = (
            [1] * rank,
            [1] * 2 * rank,
            [1] * rank,
            [1] * rank,
            2,
            "relu",
            "pre_activation",
            None,
            None,
            False,
            "silu",
        )
        call = getattr(torch.ops.nkiconv, f"conv{rank}d_with_prologue").default
        found = torch.library.opcheck(call, (*leaves, *more))
        assert set(found.values()) == {"SUCCESS"}, found


def test_scales_stay_fp32_under_autocast():
    x, w, bias, residual, scale, shift = tensors(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(x, w, bias, residual, scale, shift)
    cast = [one.bfloat16() for one in (x, w, bias, residual)]
    assert torch.equal(found, ours(*cast, scale, shift))


def test_a_plan_has_the_prologue():
    class Net(torch.nn.Module):
        def forward(self, x):
            return ours(x, *tensors(2)[1:])

    (row,) = plan_model(Net(), [tensors(2)[0]]).rows
    assert row.calls == 1
    asked = row.convolved.asked
    assert (asked.x_scale, asked.x_shift, asked.x_activation) == ("image", "image", "silu")


REFUSALS = [
    ({"x_scale": torch.ones(5)}, GeometryError, r"x_scale.shape=\(5,\): must be \[C\] = \(6,\) or \[N, C\] = \(2, 6\)"),
    ({"x_shift": torch.ones(1, 6)}, GeometryError, r"x_shift.shape=\(1, 6\)"),
    ({"x_scale": torch.ones(6).double()}, DtypeError, "x_scale.dtype=torch.float64: "),
    ({"x_shift": torch.ones(6).bfloat16()}, DtypeError, "x_shift.dtype=torch.bfloat16: must be torch.float32"),
    ({"x_scale": 2.0}, DtypeError, "x_scale: must be a torch.Tensor, not float"),
    ({"x_activation": "swish"}, UnsupportedError, "x_activation='swish': accepted are .*silu"),
    ({"x_scale": torch.ones(6, device="meta")}, UnsupportedError, "x_scale.device=meta: must be input's"),
]


@pytest.mark.parametrize(("more", "error", "words"), REFUSALS)
def test_refusals(more, error, words, mode):
    x, w, *_ = tensors(2)
    with pytest.raises(error, match=words):
        conv2d(x, w, groups=2, **more)


def test_frames_and_a_prologue_are_refused():
    x, w, *_ = tensors(3)
    with pytest.raises(UnsupportedError, match="x_scale, x_shift, x_activation: are not taken with initial_frames"):
        conv3d(x, w, groups=2, initial_frames=x[:, :, :1], x_activation="silu")
