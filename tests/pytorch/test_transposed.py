"""conv_transpose1d to 3d for torch: values, derivatives, modules, conversion, devices' launches, refusals."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nkiconv import pytorch
from nkiconv.errors import GeometryError, LayoutError, UnsupportedError
from nkiconv.pytorch.operators import gradients
from nkiconv.pytorch.operators.convolution import Convolution

EXTENTS = {1: (9,), 2: (5, 6), 3: (3, 4, 3)}
#: rank, C, K, groups, taps, stride, padding, output_padding, dilation
CALLS = [
    (rank, *rest)
    for rank in (1, 2, 3)
    for rest in (
        (6, 4, 1, 3, 2, 1, 1, 1),
        (6, 4, 2, 4, 2, 1, 0, 1),
        (6, 6, 6, 3, 2, 1, 1, 1),
        (6, 4, 1, 2, 3, 0, 1, 2),
        (5, 3, 1, 3, 1, 1, 0, 1),
        (4, 6, 2, 1, 2, 0, 1, 1),
    )
]


@pytest.fixture(params=["torch", "simulate", "compare"])
def mode(request, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", request.param)
    return request.param


def functions(rank):
    return getattr(pytorch, f"conv_transpose{rank}d"), getattr(F, f"conv_transpose{rank}d")


def integers(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes]


@pytest.mark.cover(8)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_values_and_derivatives_are_exact(call, mode):
    rank, C, K, groups, taps, *numbers = call
    stride, padding, end, dilation = numbers
    ours, theirs = functions(rank)
    leaves = integers((2, C, *EXTENTS[rank]), (C, K // groups, *[taps] * rank), (K,))
    leaves = [one.requires_grad_() for one in leaves]
    wide = [one.detach().double().requires_grad_() for one in leaves]
    rest = (stride, padding, end, groups, dilation)
    y, expected = ours(*leaves, *rest), theirs(*wide, *rest)
    assert torch.equal(y.double(), expected)
    (g,) = integers(y.shape, seed=1)
    found = torch.autograd.grad(y, leaves, g)
    wanted = torch.autograd.grad(expected, wide, g.double())
    assert all(torch.equal(one.double(), other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_input_gradients_of_strides_are_transposed(rank, monkeypatch):
    """No copy of the filter, no zeros: the operator that the gradient calls says so."""
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    x, w = integers((2, 6, *[2 * size for size in EXTENTS[rank]]), (4, 3, *[3] * rank))
    y = getattr(pytorch, f"conv{rank}d")(x.requires_grad_(), w, None, 2, 1, 1, 2)
    (g,) = integers(y.shape, seed=1)
    (found,) = torch.autograd.grad(y, x, g)
    wanted = getattr(torch.nn.grad, f"conv{rank}d_input")(x.shape, w.double(), g.double(), 2, 1, 1, 2)
    assert torch.equal(found.double(), wanted)
    asked = Convolution(f"conv{rank}d", (2,) * rank, ((1, 1),) * rank, (1,) * rank, (1,) * rank, 2)
    back, filters = gradients.of_input(asked, x.shape[2:], w)
    assert (back.name, filters is w) == (f"conv_transpose{rank}d", True)


@pytest.mark.cover(12)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_an_epilogue_and_its_derivatives(activation, position, mode):
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 6, 5, 4), (6, 4, 3, 2), (4,), (2, 4, 11, 8)
    leaves = [(torch.randn(shape, generator=generator) / 2).requires_grad_() for shape in shapes]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    x, w, bias, residual = leaves
    y = pytorch.conv_transpose2d(x, w, bias, 2, activation=activation, residual=residual, residual_position=position)
    z = F.conv_transpose2d(*wide[:3], 2) + (wide[3] if position == "pre_activation" else 0)
    expected = getattr(F, activation)(z) + (wide[3] if position == "post_activation" else 0)
    g = torch.randn(y.shape, generator=generator)
    found, wanted = torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, wide, g.double())
    # fp32 sums of at most 200 terms of order 1
    for one, other in zip((y, *found), (expected, *wanted), strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=0, atol=200 * 2.0**-24 * 16)


def test_gradgradcheck_and_forward_mode():
    x, w = (one.double().requires_grad_() for one in integers((1, 4, 3, 3), (4, 1, 2, 3)))

    def of(x, w):
        return pytorch.conv_transpose2d(x, w, None, 2, 1, 1, 2, activation="tanh")

    assert torch.autograd.gradcheck(of, (x, w), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(of, (x, w))


def test_batches_and_transforms(mode):
    x, w = integers((3, 2, 4, 5, 5), (3, 4, 2, 3, 3))
    found = torch.func.vmap(lambda x, w: pytorch.conv_transpose2d(x, w, None, 2))(x, w)
    wanted = torch.stack([F.conv_transpose2d(x[i], w[i], None, 2) for i in range(3)])
    assert torch.equal(found, wanted)
    one = pytorch.conv_transpose2d(x[0, 0], w[0], None, 2)
    assert torch.equal(one, F.conv_transpose2d(x[0, 0], w[0], None, 2))
    assert pytorch.conv_transpose2d(x[0, :0], w[0], None, 2).shape == (0, 2, 11, 11)


@pytest.mark.cover(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_modules_and_convert(rank, mode):
    kind = f"ConvTranspose{rank}d"
    torch.manual_seed(0)
    model = nn.Sequential(
        getattr(nn, kind)(6, 8, 3, stride=2, padding=1, groups=2),
        nn.Identity(),
        getattr(nn, kind)(8, 4, 4, stride=2, padding=1, bias=False),
    ).eval()
    ours = getattr(pytorch.nn, kind)(6, 8, 3, stride=2, padding=1, groups=2)
    ours.load_state_dict(model[0].state_dict())
    x = torch.randn(1, 6, *EXTENTS[rank])
    assert torch.allclose(ours(x), model[0](x), atol=1e-5)
    sizes = [2 * size for size in EXTENTS[rank]]
    assert torch.allclose(ours(x, sizes), model[0](x, sizes), atol=1e-5)
    report = pytorch.convert(model)
    assert [entry.operator for entry in report.entries] == [f"conv_transpose{rank}d"] * 2
    assert all(entry.swapped for entry in report.entries)
    assert torch.allclose(report.model(x), model(x), atol=1e-5)
    with pytorch.intercept():
        assert torch.allclose(model(x), report.model(x), atol=1e-5)
    assert report.share(x).fraction == 1.0


def test_batch_norms_fold():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6), nn.ReLU()).eval()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    report = pytorch.convert(model, fold_batchnorm=True)
    assert [fold.folded for fold in report.folds] == [True]
    x = torch.randn(2, 4, 5, 5)
    assert torch.allclose(report.model(x), model(x), atol=1e-5)


def test_compile(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    module = pytorch.nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1)
    (x,) = integers((2, 4, 7))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), module(x))


X, W = integers((2, 6, 5, 4), (6, 4, 3, 2))
REFUSED = [
    ({"input": X[0, 0]}, LayoutError, r"input.shape=.*: must have 4 axes"),
    ({"groups": 4}, GeometryError, "groups=4: must divide C=6 and K=16"),
    ({"groups": "2"}, UnsupportedError, "groups='2': must be an int"),
    ({"output_padding": 2, "stride": 2}, GeometryError, r"output_padding=\(2, 2\): must be below stride=\(2, 2\)"),
]


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[case[2][:30] for case in REFUSED])
def test_refusals(changed, error, message):
    with pytest.raises((error, TypeError), match=message):
        pytorch.conv_transpose2d(**{"input": X, "weight": W, **changed})


@pytest.mark.simulator_only
def test_what_no_algorithm_runs_is_refused_by_name(plans, monkeypatch):
    """FCN-32s, one filter of 64 x 64 for each of 21 channels: in calls, compiled or converted, and in gradients."""
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    x = torch.ones(1, 21, 16, 16)
    numbers = {"stride": 32, "groups": 21, "bias": False}
    layer = pytorch.nn.ConvTranspose2d(21, 21, 64, **numbers)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    plain = nn.Sequential(nn.ConvTranspose2d(21, 21, 64, **numbers))
    for model in (layer, compiled, pytorch.convert(plain).model):
        with pytest.raises(UnsupportedError, match=r"implicit_gemm needs up to \d+ instructions on a core"):
            model(x)
    forward = pytorch.convert(nn.Conv2d(21, 21, 64, **numbers)).model
    with pytest.raises(UnsupportedError, match=r"implicit_gemm needs up to \d+ instructions on a core"):
        forward(torch.ones(1, 21, 544, 544))
    [row] = pytorch.plan_model(plain, x).rows
    assert row.plan is None
    assert "implicit_gemm needs up to" in row.reason
