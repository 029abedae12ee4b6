"""Batch norms go into the convolutions before them, exactly where the arithmetic is, and only where they may."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch_models import build

from nkiconv import pytorch
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert

KINDS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d)}


def exact(model, seed=0):
    """Eval mode, integers for parameters and means, powers of two for scales, eps 0: no arithmetic rounds."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                module.eps = 0.0
                module.running_mean.copy_(torch.randint(-3, 4, module.running_mean.shape, generator=generator))
                module.running_var.copy_(4.0 ** torch.randint(-1, 2, module.running_var.shape, generator=generator))
            for name, one in module.named_parameters(recurse=False):
                low = 1 if name == "weight" and one.dim() == 1 else -3
                one.copy_(torch.randint(low, 4, one.shape, generator=generator))
    return model.eval()


class Block(nn.Module):
    """conv, batch norm; what else happens to either is the subclass's."""

    def __init__(self, rank=2, **more):
        super().__init__()
        conv, norm = KINDS[rank]
        self.conv, self.bn = conv(3, 4, 3, **more), norm(4)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


def folded(model, x):
    """(the report, whether the folded model gives the same)."""
    report = convert(model, fold_batchnorm=True)
    return report, torch.equal(report.model(x), model(x))


X = torch.randint(-3, 4, (2, 3, 7, 6), generator=torch.Generator().manual_seed(5)).float()


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
    assert [(fold.batchnorm, fold.convolution, fold.how) for fold in report.folds] == [("bn", "conv", "traced")]
    assert "folded into conv (traced)" in str(report)


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
    """An argument with a default that has nothing to do with the pair."""

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
    """Without `shift` the batch norm sees more than the convolution."""

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
    """Has statistics like a batch norm, and takes the mean of its input all the same."""

    def forward(self, x):
        return super().forward(x - x.mean((2, 3), keepdim=True))


class Clipped(nn.BatchNorm2d):
    """Ends with an activation that is neither one of nkiconv's nor a module."""

    def forward(self, x):
        return F.relu6(super().forward(x))


class Large(nn.BatchNorm2d):
    """A batch norm but for large numbers."""

    def forward(self, x):
        y = super().forward(x)
        return torch.where(y > 100, 100, y)


class Failing(nn.BatchNorm2d):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise KeyError("fp64")
        return super().forward(x)


class Bare(nn.Module):
    """Statistics without eps."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        return x * 1


def with_norm(kind):
    """A Block with another norm."""

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


class ConvLayer(nn.Module):
    """Pads by what the image's size needs, which fx cannot trace, as transformers' MobileNetV2 does."""

    def __init__(self, padded=True, stray=False):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.normalization, self.activation = nn.BatchNorm2d(4), nn.ReLU6()
        self.stray = stray

    def forward(self, features):
        height = features.shape[-2]
        if height % 2 == 0:
            features = F.pad(features, (0, 1, 0, 1))
        y = self.convolution(features)
        more = y.mean() if self.stray else 0
        return self.activation(self.normalization(y)) + more


def random_statistics(model):
    generator = torch.Generator().manual_seed(4)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for one, low in ((module.running_mean, -0.5), (module.running_var, 0.5), (module.weight.data, 0.5)):
                one.copy_(torch.rand(one.shape, generator=generator) + low)
            module.bias.data.copy_(torch.randn(module.bias.shape, generator=generator))
    return model.eval()


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


def assert_near(found, truth, terms):
    """Filters are rounded once more, each of so many terms."""
    assert (found - truth).abs().max() <= 4 * terms * 2.0**-24 * truth.abs().max()


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
    assert f"folded{f' with its {fused}' if fused else ''} into 0 (traced)" in str(report)


def test_frozen_norms():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), Frozen(4), nn.ReLU(), nn.Conv2d(4, 4, 3), Frozen(4)).eval()
    x = torch.randn(2, 3, 7, 6)
    report = convert(model, fold_batchnorm=True)
    assert [(fold.batchnorm, fold.convolution) for fold in report.folds if fold.folded] == [("1", "0"), ("4", "3")]
    assert_near(report.model(x), copy.deepcopy(model).double()(x.double()), 72)


def test_layers_that_fx_cannot_trace_are_watched():
    torch.manual_seed(0)
    model = random_statistics(nn.Sequential(ConvLayer()))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fold_batchnorm=True)
    assert [(fold.convolution, fold.how) for fold in report.folds] == [("0.convolution", "watched")]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    for size in (6, 7):
        x = torch.randn(2, 3, size, size)
        assert_near(report.model(x), copy.deepcopy(model).double()(x.double()), 27)


class ReadingLayer(ConvLayer):
    def forward(self, features):
        return super().forward(features) + self.convolution.weight.sum()


class ReturningLayer(ConvLayer):
    def forward(self, features):
        height = features.shape[-2]
        y = self.convolution(F.pad(features, (0, 1, 0, 1)) if height % 2 == 0 else features)
        return y, self.normalization(y)


class TwiceLayer(ConvLayer):
    def forward(self, features):
        return super().forward(features) + super().forward(-features)


@pytest.mark.parametrize("layer", [lambda: ConvLayer(stray=True), ReadingLayer, ReturningLayer, TwiceLayer])
def test_watched_results_that_others_see_stay(layer):
    model = random_statistics(nn.Sequential(layer()))
    report = convert(model, fold_batchnorm=True)
    assert [fold.reason for fold in report.folds] == ["does not follow one convolution that nothing else sees"]


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


class Untraceable(nn.Module):
    """What happens depends on the data, outside of its parts."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.block = Block()

    def forward(self, x):
        return self.parts(x) if x.sum() > 0 else self.block(x)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_parts_of_what_cannot_be_traced():
    parts = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Branching(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)
    model = exact(Untraceable(*parts))
    report = convert(model, fold_batchnorm=True)
    assert {fold.batchnorm: (fold.convolution, fold.how) for fold in report.folds} == {
        "parts.1": ("parts.0", "by order"),
        "parts.5": (None, ""),
        "block.bn": ("block.conv", "traced"),
    }
    for x in (X.abs(), -X.abs()):
        assert torch.equal(report.model(x), model(x))


@pytest.mark.parametrize("part", ["bn", "conv", None])
def test_training_mode_is_refused_by_name(part):
    model = exact(Block())
    (model if part is None else model.get_submodule(part)).train()
    names = {"bn": "bn", "conv": "conv", None: "the model, conv, bn"}[part]
    with pytest.raises(UnsupportedError, match=f"fold_batchnorm=True: needs eval mode, and {names} are in training"):
        convert(model, fold_batchnorm=True)
    assert isinstance(model.bn, nn.BatchNorm2d)
