"""Prologue and statistics of transposed convolutions: conv_transpose(act(x * x_scale + x_shift)) and those of it."""

import pytest
import torch
from gradchecks import assert_derivatives
from operators_seen import Seen, graph_of
from prologues import SIZES
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv import pytorch
from nkiconv.errors import DtypeError, GeometryError, UnsupportedError
from nkiconv.pytorch.computers.statistics import Norm, moments
from nkiconv.pytorch.models.model_plan import plan_model
from nkiconv.pytorch.nn import ConvTranspose2d

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
NUMBERS = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}


def tensors(rank, form="image", dtype=torch.float32):
    """x, w, bias, residual, x_scale, x_shift; residual of a call with NUMBERS."""
    generator = torch.Generator().manual_seed(rank)
    of_x, of_y = {"channel": (6,), "image": (2, 6)}[form], [2 * size for size in SIZES[rank]]
    shapes = (2, 6, *SIZES[rank]), (6, 2, *[3] * rank), (4,), (2, 4, *of_y), of_x, of_x
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    kinds = (dtype,) * 4 + (wide,) * 2
    return [torch.randn(one, generator=generator).to(kind) for one, kind in zip(shapes, kinds, strict=True)]


def ours(x, w, bias, residual, scale, shift, act="silu", activation=None, **more):
    call = getattr(pytorch, f"conv_transpose{w.dim() - 2}d")
    more |= {"x_scale": scale, "x_shift": shift, "x_activation": act, "activation": activation}
    return call(x, w, bias, residual=residual, **NUMBERS, **more)


def operator(x, w, bias, residual, scale, shift, act="silu", activation=None, suffix="prologue"):
    rank = w.dim() - 2
    ones, twos, pads = [1] * rank, [2] * rank, [1, 2] * rank
    numbers = ones, pads, ones, twos, 2, activation, "pre_activation", None, None, False, act
    call = getattr(torch.ops.nkiconv, f"conv_transpose{rank}d_with_{suffix}")
    return call(x, w, bias, residual, scale, shift, *numbers)


def torchs(x, w, bias, residual, scale, shift, act="silu", activation=None):
    """By torch's functions alone, in the dtype of what they take."""
    rank = w.dim() - 2
    scale, shift = (one.reshape(*one.shape, *[1] * rank) for one in (scale, shift))
    convolve = getattr(F, f"conv_transpose{rank}d")
    return activation_of(activation)(convolve(activation_of(act)(x * scale + shift), w, bias, **NUMBERS) + residual)


def with_moments(y, stats):
    """y, mean and variance of each image and channel."""
    return y, *moments(stats, Norm("instance", None, 0.0))


def ours_with_stats(*given, **more):
    return with_moments(*ours(*given, return_stats="channel", **more))


def operator_with_stats(*given, **more):
    return with_moments(*operator(*given, suffix="stats", **more))


def torchs_with_stats(*given, **more):
    y = torchs(*given, **more)
    return y, y.flatten(2).mean(2), y.flatten(2).var(2, correction=0)


#: Functions of one result and of three, and the same by torch.
EACH = (
    (ours, torchs),
    (operator, torchs),
    (ours_with_stats, torchs_with_stats),
    (operator_with_stats, torchs_with_stats),
)


@pytest.mark.cover(8)
@pytest.mark.parametrize("act", [None, "silu", "relu"])
@pytest.mark.parametrize("form", ["channel", "image"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_kernel_is_within_its_bound(rank, dtype, form, act, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")  # raises where the kernel's y and the truth differ by more
    with Seen() as seen:
        y = ours(*tensors(rank, form, dtype), act)
    assert seen.convolutions[0] == f"nkiconv::conv_transpose{rank}d_with_prologue"
    assert (y.shape, y.dtype) == (tensors(rank)[3].shape, dtype)


def several(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_kernels_statistics_are_within_their_bound(rank, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")  # raises where the kernel's statistics and the truth differ by more
    y, stats = ours(*tensors(rank), activation="relu", return_stats="channel")
    assert torch.equal(y, ours(*tensors(rank), activation="relu"))
    assert stats.shape == (1, 2, 4, 3)


@in_both
@pytest.mark.parametrize("functions", EACH, ids=lambda pair: pair[0].__name__)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients(rank, functions, mode):
    leaves = [one.requires_grad_() for one in tensors(rank, "channel" if rank == 2 else "image")]
    wide = [one.detach().double().requires_grad_() for one in leaves]
    found, right = (
        several(call(*given, activation="relu")) for call, given in zip(functions, (leaves, wide), strict=True)
    )
    assert_within_share(found, right, FLOAT32_SUMS)
    gs = [torch.randn(one.shape, generator=torch.Generator().manual_seed(9)) for one in right]
    for one, other in zip(
        torch.autograd.grad(found, leaves, gs),
        torch.autograd.grad(right, wide, [g.double() for g in gs]),
        strict=True,
    ):
        assert_within_share([one], [other], FLOAT32_SUMS)


@pytest.mark.parametrize("function", [operator, operator_with_stats])
def test_derivatives_in_float64(function):
    """Both directions, and twice, of every tensor."""
    x, w, bias, residual, scale, shift = tensors(1, dtype=torch.float64)
    given = x[:1, :, :2], w, bias, residual[:1, :, :4], scale[:1], shift[:1]
    leaves = [one.clone().requires_grad_() for one in given]
    assert_derivatives(function, leaves, check_forward_ad=True)


@in_both
def test_tangents(mode):
    given = tensors(2)
    found = []
    for call, kind in ((ours_with_stats, torch.float32), (torchs_with_stats, torch.float64)):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(one.to(kind), one.cos().to(kind)) for one in given]
            found.append([forward_ad.unpack_dual(one).tangent for one in call(*duals)])
    assert_within_share(*found, FLOAT32_SUMS)


@in_both
@pytest.mark.parametrize("batched", [(0,), (1,), (0, 3, 4, 5), (0, 1, 2, 3, 4, 5)], ids=str)
def test_vmap(batched, mode):
    given = [torch.stack([one, one.cos()], 1) if i in batched else one for i, one in enumerate(tensors(1))]
    dims = tuple(1 if i in batched else None for i in range(6))
    found = func.vmap(operator_with_stats, dims)(*given)
    each = [[one.select(1, k) if i in batched else one for i, one in enumerate(given)] for k in (0, 1)]
    right = zip(*(torchs_with_stats(*(one.double() for one in some)) for some in each), strict=True)
    for one, others in zip(found, right, strict=True):
        assert_within_share(one, others, FLOAT32_SUMS)


@pytest.mark.cover(2)
@pytest.mark.parametrize(("more", "suffix"), [({}, "prologue"), ({"return_stats": "channel"}, "stats")])
def test_one_graph_whoever_computes(more, suffix, mode):
    given = tensors(2)
    found, names = graph_of(lambda *each: ours(*each, **more), *given)
    assert [name for name in names if "conv" in name] == [f"nkiconv.conv_transpose2d_with_{suffix}.default"]
    assert all(map(torch.equal, several(found), several(ours(*given, **more))))


def test_modules_return_statistics(mode):
    module = ConvTranspose2d(6, 4, 3, 2, 1, groups=2)
    x = tensors(2)[0]
    y, stats = module(x, output_size=(10, 12), return_stats="channel")
    assert torch.equal(y, module(x, output_size=(10, 12)))
    wide = torch.nn.ConvTranspose2d(6, 4, 3, 2, 1, groups=2).double()
    wide.load_state_dict(module.state_dict())
    y = wide(x.double(), output_size=(10, 12)).flatten(2)
    assert_within_share(with_moments(y, stats)[1:], (y.mean(2), y.var(2, correction=0)), FLOAT32_SUMS)


def test_scales_stay_fp32_under_autocast():
    x, w, bias, residual, scale, shift = tensors(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(x, w, bias, residual, scale, shift)
    assert torch.equal(found, ours(*(one.bfloat16() for one in (x, w, bias, residual)), scale, shift))


def test_a_plan_has_the_prologue_and_the_statistics():
    class Net(torch.nn.Module):
        def forward(self, x):
            return ours(x, *tensors(1, "channel")[1:], return_stats="channel")[0]

    (row,) = plan_model(Net(), [tensors(1)[0]]).rows
    asked = row.convolved.asked
    assert row.convolved.problem.transposed
    assert (asked.x_scale, asked.x_shift, asked.x_activation) == ("channel", "channel", "silu")
    assert asked.return_stats == "channel"


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_filter_a_channel_one_image_and_no_images(rank, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    call, (x, _, _, _, scale, shift) = getattr(pytorch, f"conv_transpose{rank}d"), tensors(rank, "channel")
    w, more = torch.ones(6, 1, *[3] * rank), {"x_scale": scale, "x_shift": shift, "x_activation": "relu"}
    found = call(x, w, groups=6, **more)
    assert torch.equal(call(x[0], w, groups=6, **more), found[0])
    assert call(x[:0], w, groups=6, **more).shape == (0, *found.shape[1:])
    y, stats = call(x[0], w, groups=6, return_stats="channel", **more)
    assert torch.equal(y, found[0])
    assert stats.shape == (1, 1, 6, 3)


REFUSALS = [
    ({"x_scale": torch.ones(5)}, GeometryError, r"x_scale.shape=\(5,\): must be \[C\] = \(6,\) or \[N, C\] = \(2, 6\)"),
    ({"x_shift": torch.ones(6).bfloat16()}, DtypeError, "x_shift.dtype=torch.bfloat16: must be torch.float32"),
    ({"return_stats": "group"}, UnsupportedError, "return_stats='group': accepted are None, channel"),
    ({"x_activation": "swish"}, UnsupportedError, "x_activation='swish': accepted are .*silu"),
]


@pytest.mark.parametrize(("more", "error", "words"), REFUSALS)
def test_refusals(more, error, words, mode):
    x, w, *_ = tensors(2)
    with pytest.raises(error, match=words):
        pytorch.conv_transpose2d(x, w, groups=2, **more)
