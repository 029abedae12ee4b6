"""Batch norms go into the convolutions before them, exactly where the arithmetic is, and only where torch.fx's graphs
of all ways through a model prove that nothing else sees what these give."""

import copy

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


def made(forward=Block.forward, **parts):
    """What makes a Block with this forward, and parts that are made of it."""

    def make():
        model = type("Made", (Block,), {"forward": forward})()
        for name, part in parts.items():
            setattr(model, name, part(model))
        return model

    return make


def shifted(self, x, shift=None):
    y = self.bn(self.conv(x))
    return y if shift is None else y + shift


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
    "an argument with a default": (made(shifted), {"bn": "conv"}),
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


class Forwarding(nn.Conv2d):
    def forward(self, x):
        return super().forward(x)


class Clipped(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu6(super().forward(x))


class Failing(nn.BatchNorm2d):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise KeyError("fp64")
        return super().forward(x)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x):
        return x * 1


def catching(self, x):
    try:
        return self.bn(self.conv(x)) if x.sum() > 0 else self.conv(x)
    except ValueError:
        return self.bn(self.conv(x))


class Indexed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, x):
        layers = self.layers[: min(int(x.abs().max()), 1)] if x.shape[-1] < 7 else self.layers
        return layers(x)


class Around(nn.Module):
    """A layer, and what else happens to it."""

    def __init__(self, layer, also):
        super().__init__()
        self.layer, self.also = layer, [also]  # no module

    def forward(self, x):
        return self.layer(x) + self.also[0](self.layer, x)


class Methodical(ConvLayer):
    def features(self, x):
        return self.convolution(x)


class Looping(Block):
    def forward(self, x):
        while x.shape[-1] > 16:
            x = F.avg_pool2d(x, (1, 2))
        return self.bn(self.conv(x))


def hooked():
    model = Block()
    model.conv.register_forward_hook(lambda *_: None)
    return model


def tied(model):
    other = nn.Conv2d(3, 4, 3, bias=False)
    other.weight = model.conv.weight
    return other


ALONE = "does not follow one convolution that nothing else sees"
REACHES = "the model reaches into layer, around its"
UNTRACEABLE = "torch.fx cannot trace the model, which runs it: "
#: What makes a model, and why its norm stays.
STAYS = {
    "twice": (made(lambda self, x: self.bn(self.conv(x)) + self.bn(self.conv(-x))), ALONE),
    "skipped": (made(lambda self, x: self.bn(y := self.conv(x)) + y), ALONE),
    "before": (made(lambda self, x: self.conv(self.bn(x)), bn=lambda _: nn.BatchNorm2d(3)), ALONE),
    "reader": (made(lambda self, x: self.bn(self.conv(x)) + self.conv.weight.sum()), ALONE),
    "buffers": (made(lambda self, x: self.bn(self.conv(x)) + self.bn.running_mean.sum()), ALONE),
    "stray": (lambda: ConvLayer(stray=True), ALONE),
    # on one way alone
    "small": (made(lambda self, x: self.bn(y := self.conv(x)) + (y if x.shape[-1] < 6 else 0)), ALONE),
    "large": (made(lambda self, x: self.conv(x) if x.shape[-1] > 64 else self.bn(self.conv(x))), ALONE),
    "batch": (made(lambda self, x: self.bn(self.conv(x)) if x.size(0) == 1 else self.conv(x)), ALONE),
    "kind": (made(lambda self, x: self.bn(self.conv(x)) if isinstance(x, torch.Tensor) else self.conv(x[0])), ALONE),
    "caught": (made(catching), f"{UNTRACEABLE}its forward catches exceptions"),
    "indexed": (Indexed, f"{UNTRACEABLE}TypeError"),
    "loops": (Looping, f"{UNTRACEABLE}its forward loops on what it is given"),
    "reaching": (lambda: Around(ConvLayer(), lambda m, x: m.convolution(x).mean()), REACHES),
    "method": (lambda: Around(Methodical(), lambda m, x: m.features(x).mean()), REACHES),
    "weight": (lambda: Around(ConvLayer(), lambda m, x: m.convolution.weight.mean()), REACHES),
    # what they are
    "staying": (made(conv=lambda _: Forwarding(3, 4, 3)), "its convolution stays in torch"),
    "momentary": (made(bn=lambda _: nn.BatchNorm2d(4, track_running_stats=False)), "no running statistics"),
    "hooked": (hooked, "has hooks, which would see"),
    "normed": (made(conv=lambda model: parametrizations.weight_norm(model.conv)), "weight is not a plain parameter"),
    "tied": (made(lambda self, x: self.bn(self.conv(x)) + self.other(x), other=tied), "shares parameters with another"),
    # the second name of the convolution is used where fx cannot see the first
    "alias": (made(lambda self, x: self.bn(self.head(x)), head=lambda model: model.conv), "in several places of the"),
    "clipped": (made(bn=lambda _: Clipped(4)), "is a Clipped, which does not compute act(scale * x + shift)"),
    "failing": (made(bn=lambda _: Failing(4)), "raises KeyError on a probe in float64"),
    "bare": (made(bn=lambda _: Bare()), "has no eps"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_may_not_be_folded_stays(name):
    make, reason = STAYS[name]
    model = exact(make())
    [norm] = [where for where, one in model.named_modules() if hasattr(one, "running_mean")]
    report = convert(model, fold_batchnorm=True)
    [fold] = report.folds
    assert (fold.batchnorm, fold.folded) == (norm, False)
    assert reason in fold.reason
    assert type(report.model.get_submodule(norm)) is type(model.get_submodule(norm))
    for shape in ((1, 3, 9, 8), (2, 3, 6, 5), (2, 3, 5, 70)):
        x = torch.randn(shape)
        assert torch.equal(report.model(x), model(x))


class Scaled(nn.Module):
    """torch.fx cannot trace it; what it does with its layers is the subclass's."""

    def __init__(self):
        super().__init__()
        self.block, self.layers = Block(), nn.ModuleList([Block(), nn.Sequential(Block())])
        self.pool, self.by_hand = nn.Sequential(Block()), []

    def forward(self, x):
        x = x / float(x.abs().max())
        return self.run(x)

    def run(self, x):
        if self.block is not None:
            y = self.block(x)
        for layer in self.layers:
            y = y + layer(x)
        for _, layer in enumerate(self.layers):
            y = y + layer(x)
        return y + self.layers[0](x) + self.pool(x)


class Property(Scaled):
    @property
    def first(self):
        return self.block.conv

    def run(self, x):
        return self.block(x) + self.first(x)


class InAList(Scaled):
    def __init__(self):
        super().__init__()
        self.by_hand = [self.block.conv]

    def run(self, x):
        return self.block(x) + self.by_hand[0](x)


class InAFunction(Scaled):
    def __init__(self):
        super().__init__()
        self.extra = lambda x: self.block.conv(x)

    def run(self, x):
        return self.block(x) + self.extra(x)


def handed_on(self, x):
    return self.block(x) + both(self, x)


def both(model, x):
    return model.block.conv(x)


def renamed(self, x):
    block = self.block
    return block(x) + block.conv(x)


def looped_inside(self, x):
    y = self.block(x)
    for layer in self.pool:
        y = y + layer.conv(x)
    return y


def scaled(name, run):
    return type(name, (Scaled,), {"run": run})


ALL_BLOCKS = {"block.bn", "layers.0.bn", "layers.1.0.bn", "pool.0.bn"}
#: Norms that are folded all the same.
UNTRACED = {
    Scaled: ALL_BLOCKS, Property: set(), InAList: set(), InAFunction: set(),
    scaled("HandedOn", handed_on): set(), scaled("Renamed", renamed): {"pool.0.bn"},
    scaled("LoopedInside", looped_inside): {"block.bn"},
}  # fmt: skip


@pytest.mark.parametrize("kind", UNTRACED, ids=lambda kind: kind.__name__)
def test_parts_that_a_model_only_calls(kind):
    torch.manual_seed(0)
    model = random_statistics(kind())
    report = convert(model, fold_batchnorm=True)
    assert {fold.batchnorm for fold in report.folds if fold.folded} == UNTRACED[kind]
    assert all(fold.reason.startswith("torch.fx cannot trace") for fold in report.folds if not fold.folded)
    x = torch.randn(2, 3, 7, 6)
    assert_near(report.model(x), model(x), 2 * 27)


class Checking(Block):
    """Refuses what does not fit, and goes round."""

    def forward(self, x):
        if x.shape[1] != 3:
            raise ValueError("channels")
        assert x.dim() == 4
        size = x.shape[-1]
        if size > 64:
            x = F.avg_pool2d(x, 2)
        return self.bn(self.conv(x))


class Optional(Block):
    """A first argument with a default, which it needs all the same."""

    def forward(self, x=None, scale=None):
        y = self.bn(self.conv(x[:, :3] if x.shape[1] > 3 else x))
        return y if scale is None else y * scale


def test_ways_that_end_in_an_error_do_not_count():
    model = exact(nn.Sequential(Checking(), nn.Conv2d(4, 3, 1), Optional()))
    report = convert(model, fold_batchnorm=True)
    assert [fold.folded for fold in report.folds] == [True, True]
    for x in (X, X.repeat(1, 1, 10, 11)):
        assert torch.equal(report.model(x), model(x))


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
