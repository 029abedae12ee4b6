"""Batch norms go into the convolutions before them, exactly where the arithmetic is, and only where they may."""

import copy
import functools

import pytest
import torch
from folding import KINDS, Block, ConvLayer, X, assert_near, exact, folded, random_statistics
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch_models import MODELS, build

from nkiconv import pytorch
from nkiconv.pytorch import convert
from nkiconv.rules import ACTIVATIONS


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


def block(forward, name="Made"):
    """A class like Block with this forward."""
    return type(name, (Block,), {"forward": forward})


def shifted(self, x, shift=None):
    y = self.bn(self.conv(x))
    return y if shift is None else y + shift


def skipped(self, x):
    y = self.conv(x)
    return self.bn(y) + y


def optional(self, x, shift=None):
    y = self.conv(x)
    if shift is None:
        y = y + 1
    return self.bn(y)


class Forwarding(nn.Conv2d):
    def forward(self, x):
        return super().forward(x)


def changed(change, forward=Block.forward):
    """A class like Block, to which something is done when it is made."""

    def init(self):
        Block.__init__(self)
        change(self)

    return type("Made", (Block,), {"__init__": init, "forward": forward})


def part(name, make):
    return lambda model: setattr(model, name, make(model))


def tied(model):
    model.other = nn.Conv2d(3, 4, 3, bias=False)
    model.other.weight = model.conv.weight


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
    return changed(part("bn", lambda model: kind(4)))


ALONE = "does not follow one convolution that nothing else sees"
#: What makes a model, and why its norm stays.
UNFOLDED = {
    "twice": (block(lambda self, x: self.bn(self.conv(x)) + self.bn(self.conv(-x))), ALONE),
    "skipped": (block(skipped), ALONE),
    "before": (changed(part("bn", lambda model: nn.BatchNorm2d(3)), lambda self, x: self.conv(self.bn(x))), ALONE),
    "reader": (block(lambda self, x: self.bn(self.conv(x)) + self.conv.weight.sum()), ALONE),
    "optional": (block(optional), ALONE),
    "staying": (changed(part("conv", lambda model: Forwarding(3, 4, 3))), "its convolution stays in torch"),
    "momentary": (with_norm(functools.partial(nn.BatchNorm2d, track_running_stats=False)), "no running statistics"),
    "hooked": (changed(lambda model: model.conv.register_forward_hook(lambda *_: None)), "has hooks, which would see"),
    "normed": (changed(lambda model: parametrizations.weight_norm(model.conv)), "weight is not a plain parameter"),
    "tied": (changed(tied, lambda self, x: self.bn(self.conv(x)) + self.other(x)), "shares parameters with another"),
    # the second name of the convolution is used where fx cannot see the first
    "alias": (changed(part("head", lambda model: model.conv), lambda self, x: self.bn(self.head(x))),
     "in several places of the model"),
    "Centred": (with_norm(Centred), "is a Centred, which does not compute act(scale * x + shift)"),
    "Clipped": (with_norm(Clipped), "is a Clipped, which does not compute act(scale * x + shift)"),
    "Large": (with_norm(Large), "is a Large, which does not compute act(scale * x + shift)"),
    "Failing": (with_norm(Failing), "raises KeyError on a probe in float64"),
    "Bare": (with_norm(Bare), "has no eps"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), UNFOLDED.values(), ids=UNFOLDED)
def test_what_may_not_be_folded_stays(make, reason):
    model = exact(make())
    report, same = folded(model, X)
    assert same
    [fold] = report.folds
    assert not fold.folded
    assert reason in fold.reason
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
    "relu": nn.ReLU(), "silu": nn.SiLU(inplace=True), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"),
    "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "none": nn.Identity(), "relu6": nn.ReLU6(inplace=True),
    "hardswish": nn.Hardswish(), "leaky": nn.LeakyReLU(0.01),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_norms_with_an_activation(name):
    """The kernel's epilogue takes it where it is one of nkiconv's; the module stays where it is another."""
    act, fused = ACTS[name], name if name in ACTIVATIONS else None
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


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def frozen():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), Frozen(4), nn.ReLU(), nn.Conv2d(4, 4, 3), Frozen(4))


def several_ways():
    parts = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Branching(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)
    return nn.Sequential(*parts)


#: What makes a model, and the convolutions of its norms.
FOLDED = {
    "resnet": (lambda: build("resnet")[0], {"bn1": "conv1", "bn2": "conv2", "downsample.1": "downsample.0"}),
    "conformer": (lambda: build("conformer")[0], {"batch_norm": "depthwise"}),
    "an argument with a default": (block(shifted), {"bn": "conv"}),
    "reflects": (lambda: Block(padding=1, padding_mode="reflect"), {"bn": "conv"}),
    "buffers": (frozen, {"1": "0", "4": "3"}),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, groups=1), nn.BatchNorm2d(4)), {"1": "0"}),
    "several ways": (lambda: nn.Sequential(ConvLayer()), {"0.normalization": "0.convolution"}),
    "parts of it": (several_ways, {"1": "0", "5": None}),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_folded(name):
    """Filters are rounded once more, of at most 72 terms, through two layers; the original stays as it was."""
    make, pairs = FOLDED[name]
    torch.manual_seed(0)
    model = random_statistics(make())
    state = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fold_batchnorm=True)
    assert {fold.batchnorm: fold.convolution for fold in report.folds} == pairs
    shape = MODELS[name][1] if name in MODELS else (2, 3, 7, 6)
    for sign in (1, -1):
        x = sign * torch.randn(shape).abs()
        assert_near(report.model(x), copy.deepcopy(model).double()(x.double()), 72)
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())


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
