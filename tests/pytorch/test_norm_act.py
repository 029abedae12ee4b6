"""Statistics of channels, norms of them, and conv(act(norm(x))): functions, and modules in training and eval mode."""

import copy

import numpy as np
import pytest
import torch
from layers import norm_act as ours
from layers import norm_act_in_torch as torchs
from layers import normed
from layers import of_norm_act as tensors
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_limit, assert_within_share
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv import bounds, reference
from nkiconv.activations import ACTIVATIONS
from nkiconv.errors import ComparisonError, UnsupportedError
from nkiconv.norms import NORMS
from nkiconv.problem import ConvProblem
from nkiconv.pytorch import channel_stats, nn, norm_scale_shift
from nkiconv.pytorch.computers import statistics
from nkiconv.pytorch.computers.arrays import to_numpy

CONVOLVE = {rank: getattr(F, f"conv{rank}d") for rank in (1, 2, 3)}
SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)


def limit_of(given, norm, act, dtype):
    """(the truth, how far a result may be off): errors of statistics, of scale and shift, and of the convolution."""
    x, w, bias, gamma, beta = map(to_numpy, given)
    scale, shift, mean, variance = reference.norm_scale_shift_ref(x, gamma, beta, norm, 3)
    triples = 2 * (x[0, 0].size // 100 + 6) * (x.shape[0] if norm == "batch" else 2 if norm == "group" else 1)
    times = scale.shape[-1] // mean.shape[-1]
    each = [np.repeat(one, times, -1) for one in (mean, variance, *bounds.moments_bound(mean, variance, triples))]
    off = bounds.scale_shift_bound(each[0], each[1], (each[2], each[3]), gamma, beta)
    rank = x.ndim - 2
    by_channel = [one.reshape(*one.shape, *[1] * rank) for one in off]
    of_x = np.abs(x.astype(np.float64)) * by_channel[0] + by_channel[1]
    of_x = of_x * (1.0 if act is None else ACTIVATIONS[act].steepest)
    of_x = of_x * (1 + 2 * bounds.EPS[dtype]) + bounds.prologue_bound(x, dtype, scale, shift, act)
    sizes = dict(zip("DHW"[-rank:], x.shape[2:], strict=True)) | dict(zip("TRS"[-rank:], w.shape[2:], strict=True))
    padding = (((0, 0),) if rank == 1 else ()) + ((1, 1),) * rank
    problem = ConvProblem(N=2, C=6, K=4, **sizes, padding=padding, dtype=dtype)
    filters = w.reshape(problem.filter_shape)
    h, of_x = (one.reshape(problem.input_shape) for one in (reference.prologue_ref(x, scale, shift, act), of_x))
    sums, most, inexact = (
        reference.conv_ref(h, filters, problem),
        reference.abs_sum_ref(h, filters, problem),
        reference.abs_sum_ref(of_x, filters, problem),
    )
    limit = bounds.epilogue_bound(reference.num_terms(problem), most, sums, dtype, bias, inexact=inexact)
    return reference.epilogue_ref(sums, bias), limit


@pytest.mark.cover(10)
@pytest.mark.parametrize("act", [None, "silu", "relu"])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_are_within_their_bound(rank, norm, dtype, mean, act, mode):
    given = tensors(rank, dtype, mean)
    y = ours(*given, norm, act)
    expected, limit = limit_of(given, norm, act, NAMES[dtype])
    wide = torchs(*(one.double() for one in given), norm, act)
    assert_within_limit(to_numpy(y).reshape(expected.shape), expected, limit)
    assert_within_limit(to_numpy(wide).reshape(expected.shape), expected, limit)


@in_both
@pytest.mark.cover(6)
@pytest.mark.parametrize("shape", [(6,), (2, 6)], ids=str)
@pytest.mark.parametrize("names", [("offset",), ("scale", "shift"), ("offset", "shift"), ("scale",)], ids=str)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_numbers_of_channels(rank, norm, names, shape, mode):
    """What is normed is x + offset; what is activated is the norm times scale, plus shift."""
    given = {name: 3 * torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(names)}
    leaves = [one.requires_grad_() for one in (*tensors(rank), *given.values())]
    wide = [one.detach().double().requires_grad_() for one in leaves]
    stats = channel_stats(leaves[0]) if rank == 2 else None
    y = ours(*leaves[:5], norm, stats=stats, **given)
    of = {name: one.reshape(-1, 6, *[1] * rank) for name, one in zip(names, wide[5:], strict=True)}
    z = normed(wide[0] + of.get("offset", 0), *wide[3:5], norm) * of.get("scale", 1) + of.get("shift", 0)
    expected = CONVOLVE[rank](F.silu(z), *wide[1:3], padding=1)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(9))
    found, right = [y, *torch.autograd.grad(y, leaves, g)], [expected, *torch.autograd.grad(expected, wide, g.double())]
    assert_within_share(found, right, 4 * FLOAT32_SUMS)  # some norms undo an offset: of all, as some gradients are 0


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
    assert_within_share([wide * by_channel[0] + by_channel[1]], [normed(wide, gamma, beta, norm)], 1e-12)


def test_autocast_casts_input_before_the_norm():
    given = tensors(2)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(*given)
    assert torch.equal(y, ours(*(one.bfloat16() for one in given[:3]), *given[3:]))


def test_compare_notices_what_is_wrong(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    x = tensors(2)[0]
    right = channel_stats(x)
    with monkeypatch.context() as wrong:
        wrong.setattr(statistics, "from_numpy", lambda array: torch.from_numpy(array) + 1e-3)
        with pytest.raises(ComparisonError, match="channel_stats: the kernel is up to"):
            channel_stats(x)
        with pytest.raises(ComparisonError, match="norm_scale_shift: the kernel is up to"):
            norm_scale_shift(right, num_groups=3)


#: A norm's class without its axes, its other arguments, and those of our module.
KINDS = {
    "group": ("GroupNorm", lambda channels: (3, channels), {"num_groups": 3}),
    "batch": ("BatchNorm", lambda channels: (channels,), {}),
    "cumulative": ("BatchNorm", lambda channels: (channels, 1e-3, None), {"momentum": None, "eps": 1e-3}),
    "untracked": (
        "BatchNorm", lambda channels: (channels, 1e-5, 0.1, False, False),
        {"track_running_stats": False, "affine": False},
    ),
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


def module(rank):
    return getattr(nn, f"NormActConv{rank}d")


@pytest.mark.cover(6)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", KINDS)
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


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_built_of_numbers(rank, name):
    norm, conv = theirs(rank, name)
    kind = {"cumulative": "batch", "untracked": "batch"}.get(name, name)
    fused = module(rank)(6, 4, 3, padding=1, norm=kind, x_activation="relu", activation="silu", **KINDS[name][2])
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
    fused, x = nn.NormActConv2d.of(norm, None, conv), torch.randn(2, 6, 5, 6)
    assert torch.equal(fused(x, stats=channel_stats(x)), fused(x))
    norm, conv = theirs(2, "batch")
    fused = nn.NormActConv2d.of(norm, None, conv)
    fused(x, stats=channel_stats(x))
    with pytest.raises(UnsupportedError, match="stats: running_mean and running_var are used in eval mode"):
        fused.eval()(x, stats=channel_stats(x))
