"""Batch norms go into the convolutions before them, exactly where the arithmetic is, and only where they may."""

import copy

import pytest
import torch
from folding import KINDS, Block, X, assert_near, exact, folded, random_statistics
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch_models import build

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_folding_is_exact_where_arithmetic_is(rank, bias, affine):
    model = Block(rank, bias=bias)
    model.bn = KINDS[rank][1](4, affine=affine)
    exact(model)
    report, same = folded(model, X if rank == 2 else X[..., 0])
    assert same
    assert type(report.model.bn) is nn.Identity
    assert isinstance(report.model.conv, pytorch.nn.Conv1d if rank == 1 else pytorch.nn.Conv2d)
    assert [(fold.batchnorm, fold.convolution) for fold in report.folds] == [("bn", "conv")]
    assert "folded into conv" in str(report)


def test_the_original_keeps_its_batch_norms():
    model = exact(Block())
    weight, state = model.conv.weight, {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fold_batchnorm=True)
    assert model.conv.weight is weight
    assert isinstance(model.bn, nn.BatchNorm2d)
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert not torch.equal(report.model.conv.weight, weight)
    assert convert(model, fold_batchnorm=True, inplace=True).model is model
    assert type(model.bn) is nn.Identity
    assert torch.equal(model(X), report.model(X))


def test_a_frozen_convolution_stays_frozen_and_bf16_is_rounded_once():
    model = exact(Block()).to(torch.bfloat16)
    model.conv.requires_grad_(False)
    with torch.no_grad():
        model.bn.running_var.fill_(3)
    conv = convert(model, fold_batchnorm=True).model.conv
    assert [one.requires_grad for one in conv.parameters()] == [False, False]
    scale = model.bn.weight.double() / 3**0.5
    expected = (model.conv.weight.double() * scale[:, None, None, None]).to(torch.bfloat16)
    assert torch.equal(conv.weight, expected)


@pytest.mark.parametrize(("name", "pairs"), [
    ("resnet", {"bn1": "conv1", "bn2": "conv2", "downsample.1": "downsample.0"}),
    ("conformer", {"batch_norm": "depthwise"}),
])  # fmt: skip
def test_models(name, pairs):
    """Filters are rounded once more: n terms of w x each off by 2^-24 more, here n <= 72, through two layers."""
    model, x = build(name)
    report = convert(model, fold_batchnorm=True)
    assert {fold.batchnorm: fold.convolution for fold in report.folds if fold.folded} == pairs
    truth = copy.deepcopy(model).double()(x.double())
    error = (report.model(x) - truth).abs().max()
    assert error <= 2 * 72 * 2.0**-24 * truth.abs().max()


class Shifted(Block):
    def forward(self, x, shift=None):
        y = self.bn(self.conv(x))
        return y if shift is None else y + shift


def test_an_argument_with_a_default():
    model = exact(Shifted())
    report, same = folded(model, X)
    assert same
    assert report.folds[0].folded
    assert torch.equal(report.model(X, 3), model(X, 3))


def test_a_convolution_that_reflects():
    report, same = folded(exact(Block(padding=1, padding_mode="reflect")), X)
    assert same
    assert report.folds[0].folded


class Twice(Block):
    def forward(self, x):
        return self.bn(self.conv(x)) + self.bn(self.conv(-x))


class Skipped(Block):
    def forward(self, x):
        y = self.conv(x)
        return self.bn(y) + y


class Before(Block):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.conv(self.bn(x))


class Reader(Block):
    def forward(self, x):
        return self.bn(self.conv(x)) + self.conv.weight.sum()


class Optional(Block):
    def forward(self, x, shift=None):
        y = self.conv(x)
        if shift is None:
            y = y + 1
        return self.bn(y)


class Forwarding(nn.Conv2d):
    def forward(self, x):
        return super().forward(x)


class Staying(Block):
    def __init__(self):
        super().__init__()
        self.conv = Forwarding(3, 4, 3)


class Momentary(Block):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(4, track_running_stats=False)


class Hooked(Block):
    def __init__(self):
        super().__init__()
        self.conv.register_forward_hook(lambda module, inputs, y: None)


class Normed(Block):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.conv)


class Tied(Block):
    def __init__(self):
        super().__init__()
        self.other = nn.Conv2d(3, 4, 3, bias=False)
        self.other.weight = self.conv.weight

    def forward(self, x):
        return self.bn(self.conv(x)) + self.other(x)


class Alias(Block):
    """The second name of the convolution is used where fx cannot see the first."""

    def __init__(self):
        super().__init__()
        self.head = self.conv

    def forward(self, x):
        return self.bn(self.head(x))


class Centred(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x - x.mean((2, 3), keepdim=True))


class Clipped(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu6(super().forward(x))


class Large(nn.BatchNorm2d):
    def forward(self, x):
        y = super().forward(x)
        return torch.where(y > 100, 100, y)


class Failing(nn.BatchNorm2d):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise KeyError("fp64")
        return super().forward(x)


class Bare(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        return x * 1


def with_norm(kind):
    def build(self):
        Block.__init__(self)
        self.bn = kind(4)

    return type(f"With{kind.__name__}", (Block,), {"__init__": build})


UNFOLDED = {
    Twice: "does not follow one convolution that nothing else sees",
    Skipped: "does not follow one convolution that nothing else sees",
    Before: "does not follow one convolution that nothing else sees",
    Reader: "does not follow one convolution that nothing else sees",
    Optional: "does not follow one convolution that nothing else sees",
    Staying: "its convolution stays in torch",
    Momentary: "has no running statistics",
    Hooked: "has hooks, which would see other values",
    Normed: "weight is not a plain parameter",
    Tied: "shares parameters with another module",
    Alias: "in several places of the model",
    with_norm(Centred): "is a Centred, which does not compute act(scale * x + shift)",
    with_norm(Clipped): "is a Clipped, which does not compute act(scale * x + shift)",
    with_norm(Large): "is a Large, which does not compute act(scale * x + shift)",
    with_norm(Failing): "raises KeyError on a probe in float64",
    with_norm(Bare): "has no eps",
}


@pytest.mark.parametrize("kind", UNFOLDED, ids=lambda kind: kind.__name__)
def test_what_may_not_be_folded_stays(kind):
    model = exact(kind())
    report, same = folded(model, X)
    assert same
    [fold] = report.folds
    assert not fold.folded
    assert UNFOLDED[kind] in fold.reason
    assert type(report.model.bn) is type(model.bn)


class NormAct(nn.BatchNorm2d):
    """A batch norm with its activation inside, and a dropout between, as timm has it."""

    def __init__(self, channels, act):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x):
        training = self.training or not self.track_running_stats
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training, 0.1, self.eps)
        return self.act(self.drop(y))


class Frozen(nn.Module):
    """Buffers alone, multiplied and added, as torchvision has it."""

    def __init__(self, channels):
        super().__init__()
        self.eps = 1e-5
        for name, low in (("weight", 0.5), ("bias", -1), ("running_mean", -1), ("running_var", 0.5)):
            self.register_buffer(name, torch.rand(channels) + low)

    def forward(self, x):
        w, b, var, mean = (
            one.reshape(1, -1, 1, 1) for one in (self.weight, self.bias, self.running_var, self.running_mean)
        )
        scale = w * (var + self.eps).rsqrt()
        return x * scale + (b - mean * scale)


ACTS = {
    "relu": (nn.ReLU(), "relu"),
    "silu": (nn.SiLU(inplace=True), "silu"),
    "gelu": (nn.GELU(), "gelu"),
    "gelu_tanh": (nn.GELU("tanh"), "gelu_tanh"),
    "tanh": (nn.Tanh(), "tanh"),
    "sigmoid": (nn.Sigmoid(), "sigmoid"),
    "none": (nn.Identity(), None),
    "relu6": (nn.ReLU6(inplace=True), None),
    "hardswish": (nn.Hardswish(), None),
    "leaky": (nn.LeakyReLU(0.01), None),
}


@pytest.mark.parametrize("name", ACTS)
def test_norms_with_an_activation(name):
    """The kernel's epilogue takes it where it is one of nkiconv's; the module stays where it is another."""
    act, fused = ACTS[name]
    torch.manual_seed(0)
    model = random_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), NormAct(4, act)))
    x = 4 * torch.randn(2, 3, 7, 6)
    truth = copy.deepcopy(model).double()(x.double())
    report = convert(model, fold_batchnorm=True)
    [fold] = report.folds
    assert fold.folded
    assert fold.activation == report.model[0].activation == fused
    assert type(report.model[1]) is (nn.Identity if fused or name == "none" else type(act))
    assert_near(report.model(x), truth, 27)
    assert f"folded{f' with its {fused}' if fused else ''} into 0" in str(report)


def test_frozen_norms():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), Frozen(4), nn.ReLU(), nn.Conv2d(4, 4, 3), Frozen(4)).eval()
    x = torch.randn(2, 3, 7, 6)
    report = convert(model, fold_batchnorm=True)
    assert [(fold.batchnorm, fold.convolution) for fold in report.folds if fold.folded] == [("1", "0"), ("4", "3")]
    assert_near(report.model(x), copy.deepcopy(model).double()(x.double()), 72)


def test_a_fold_that_differs_is_not_made():
    """A scale that fp16 cannot hold."""
    model = exact(Block()).half()
    model.bn.weight.data.fill_(6e4)
    report = convert(model, fold_batchnorm=True)
    assert "folded, it differs by more than rounding filters to torch.float16 explains" in report.folds[0].reason
    assert isinstance(report.model.bn, nn.BatchNorm2d)


def test_parameters_without_data():
    """Only the class can tell then, and only torch's own tell."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), NormAct(4, nn.ReLU())).eval()
    report = convert(model, fold_batchnorm=True)
    assert [fold.reason for fold in report.folds] == ["", "has no data to see what it computes"]


@pytest.mark.parametrize("part", ["bn", "conv", None])
def test_training_mode_is_refused_by_name(part):
    model = exact(Block())
    (model if part is None else model.get_submodule(part)).train()
    names = {"bn": "bn", "conv": "conv", None: "the model, conv, bn"}[part]
    with pytest.raises(UnsupportedError, match=f"fold_batchnorm=True: needs eval mode, and {names} are in training"):
        convert(model, fold_batchnorm=True)
    assert isinstance(model.bn, nn.BatchNorm2d)
