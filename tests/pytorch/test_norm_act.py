"""Statistics of channels, norms of them, and norm_act_conv*: values and derivatives of conv(act(norm(x)))."""

import functools

import numpy as np
import pytest
import torch
from gradchecks import assert_batches, assert_derivatives
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_limit, assert_within_share
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv import bounds, pytorch, reference
from nkiconv.activations import ACTIVATIONS
from nkiconv.errors import ComparisonError
from nkiconv.norms import NORMS
from nkiconv.problem import ConvProblem
from nkiconv.pytorch import channel_stats, norm_scale_shift
from nkiconv.pytorch.computers import statistics
from nkiconv.pytorch.computers.arrays import to_numpy

CONVOLVE = {rank: getattr(F, f"conv{rank}d") for rank in (1, 2, 3)}
SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)


def ours(x, w, bias, gamma, beta, norm="group", act="silu", **more):
    call = getattr(pytorch, f"norm_act_conv{w.dim() - 2}d")
    groups = {"num_groups": 3} if norm == "group" else {}
    return call(x, w, bias, norm=norm, norm_weight=gamma, norm_bias=beta, x_activation=act, padding=1, **groups, **more)


def normed(x, gamma, beta, norm, eps=1e-5):
    """torch's norm."""
    if norm == "group":
        return F.group_norm(x, 3, gamma, beta, eps)
    if norm == "batch":
        return F.batch_norm(x, None, None, gamma, beta, True, 0.0, eps)
    return F.instance_norm(x, None, None, gamma, beta, eps=eps)


def torchs(x, w, bias, gamma, beta, norm="group", act="silu"):
    return CONVOLVE[w.dim() - 2](activation_of(act)(normed(x, gamma, beta, norm)), w, bias, padding=1)


def tensors(rank, dtype=torch.float32, mean=0.0, seed=0):
    """x, w, bias, and the norm's weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, 6, *SIZES[rank]), (4, 6, *[3] * rank), (4,), (6,), (6,)
    x, *others = (torch.randn(one, generator=generator) for one in shapes)
    return [one.to(dtype) for one in (x + mean, *others)]


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


@pytest.mark.cover(1)
@pytest.mark.parametrize("norm", NORMS)
def test_derivatives_in_float64(norm):
    """Both directions, and twice, through mean and variance, of operators."""
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 6, 3), (2, 6, 2), (2,), (6,), (6,)
    leaves = [torch.randn(one, generator=generator, dtype=torch.float64, requires_grad=True) for one in shapes]

    def call(*given):
        with Seen():
            return ours(*given, norm=norm)

    assert_derivatives(call, leaves, check_forward_ad=True)


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


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("batched", [(0,), (3,), (4,), (0, 3, 4), (0, 1, 2, 3, 4)], ids=str)
def test_vmap(batched, norm):
    call, right = (functools.partial(one, norm=norm) for one in (ours, torchs))
    assert_batches(call, right, tensors(1), batched, 4 * FLOAT32_SUMS)


def test_no_images():
    x, w, bias, gamma, beta = tensors(2)
    for norm in ("group", "instance"):
        for look in (torch.no_grad(), Seen()):
            with look:
                assert ours(x[:0], w, bias, gamma, beta, norm).shape == (0, 4, 5, 6)


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
