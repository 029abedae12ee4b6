"""Batch norms go into the convolutions before them, exactly where the arithmetic is, and only where torch.fx's graphs
of all ways through a model prove that nothing else sees what these give."""

import copy

import pytest
import torch
from chained import C, drawn, hooked, made
from fused_models import NormAct
from tolerances import assert_within_share, sums_share
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch_models import MODELS, build

from nkiconv import pytorch
from nkiconv.pytorch import convert
from nkiconv.rules import ACTIVATIONS

X = torch.randint(-3, 4, (2, 3, 7, 6), generator=torch.Generator().manual_seed(5)).float()


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


def assert_near(found, truth, terms):
    """Filters are rounded once more, each of so many terms: through four sums."""
    assert_within_share([found], [truth], sums_share(terms, 4))


class Block(nn.Module):
    """conv, batch norm; what else happens to either is what a test makes of it."""

    def __init__(self, **more):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, **more), nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


def conv_layer():
    """Pads by what the image's size needs, which fx cannot trace, as transformers' MobileNetV2 does."""

    def forward(self, features):
        features = F.pad(features, (0, 1, 0, 1)) if features.shape[-2] % 2 == 0 else features
        return self.activation(self.normalization(self.convolution(features)))

    parts = {"convolution": nn.Conv2d(3, 4, 3, stride=2, bias=False), "normalization": nn.BatchNorm2d(4)}
    return made(forward, **parts, activation=nn.ReLU6())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_folding_is_exact_where_arithmetic_is(rank, bias, affine):
    conv, norm = getattr(nn, f"Conv{rank}d"), getattr(nn, f"BatchNorm{rank}d")
    model = exact(made(Block.forward, conv=conv(3, 4, 3, bias=bias), bn=norm(4, affine=affine)))
    report, x = convert(model, fold_batchnorm=True), X if rank == 2 else X[..., 0]
    assert torch.equal(report.model(x), model(x))
    assert type(report.model.bn) is nn.Identity
    assert isinstance(report.model.conv, getattr(pytorch.nn, f"Conv{rank}d"))
    assert [(fold.batchnorm, fold.convolution) for fold in report.folds] == [("bn", "conv")]
    assert "folded into conv" in str(report)


def block(forward=Block.forward, **parts):
    """What makes a Block with this forward, and parts that are made of it."""

    def make():
        model = made(forward, Block)
        for name, part in parts.items():
            setattr(model, name, part(model))
        return model

    return make


def shifted(self, x, shift=None):
    y = self.bn(self.conv(x))
    return y if shift is None else y + shift


class Frozen(nn.Module):
    """Buffers alone, multiplied and added, as torchvision has it."""

    def __init__(self, channels):
        super().__init__()
        self.eps = 1e-5
        for name, low in (("weight", 0.5), ("bias", -1), ("running_mean", -1), ("running_var", 0.5)):
            self.register_buffer(name, torch.rand(channels) + low)

    def forward(self, x):
        buffers = self.weight, self.bias, self.running_var, self.running_mean
        w, b, var, mean = (one.reshape(1, -1, 1, 1) for one in buffers)
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
    model = drawn(nn.Sequential(nn.Conv2d(3, C, 3), NormAct(act))).eval()
    x = 4 * torch.randn(2, 3, 7, 6)
    report = convert(model, fold_batchnorm=True)
    [fold] = report.folds
    assert fold.activation == report.model[0].activation == fused
    assert type(report.model[1]) is (nn.Identity if fused or name == "none" else type(act))
    assert_near(report.model(x), copy.deepcopy(model).double()(x.double()), 27)
    assert f"folded{f' with its {fused}' if fused else ''} into 0" in str(report)


def frozen():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), Frozen(4), nn.ReLU(), nn.Conv2d(4, 4, 3), Frozen(4))


def unpooled(self, x):
    """Refuses what does not fit, and goes round."""
    if x.shape[1] != 3:
        raise ValueError("channels")
    assert x.dim() == 4
    size = x.shape[-1]
    if size > 64:
        x = F.avg_pool2d(x, 2)
    return self.bn(self.conv(x))


def optional(self, x=None, scale=None):
    """A first argument with a default, which it needs all the same."""
    y = self.bn(self.conv(x[:, :3] if x.shape[1] > 3 else x))
    return y if scale is None else y * scale


#: What makes a model, and the convolutions of its norms.
FOLDED = {
    "resnet": (lambda: build("resnet")[0], {"bn1": "conv1", "bn2": "conv2", "downsample.1": "downsample.0"}),
    "conformer": (lambda: build("conformer")[0], {"batch_norm": "depthwise"}),
    "an argument with a default": (block(shifted), {"bn": "conv"}),
    "reflects": (lambda: Block(padding=1, padding_mode="reflect"), {"bn": "conv"}),
    "buffers": (frozen, {"1": "0", "4": "3"}),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)), {"1": "0"}),
    "groups": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 6, 3, 2, groups=3), nn.BatchNorm2d(6)), {"1": "0"}),
    "several ways": (lambda: nn.Sequential(conv_layer()), {"0.normalization": "0.convolution"}),
    "ways that end in an error": (lambda: nn.Sequential(block(unpooled)(), nn.Conv2d(4, 3, 1), block(optional)()),
        {"0.bn": "0.conv", "2.bn": "2.conv"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_folded(name):
    """Filters are rounded once more, of at most 72 terms, through two layers; the original stays as it was."""
    make, pairs = FOLDED[name]
    torch.manual_seed(0)
    model = drawn(make()).eval()
    state = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fold_batchnorm=True)
    assert {fold.batchnorm: fold.convolution for fold in report.folds} == pairs
    shape = MODELS[name][1] if name in MODELS else (2, 3, 70, 66) if "error" in name else (2, 3, 7, 6)
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


def bare(_):
    model = made(lambda self, x: x * 1)
    model.register_buffer("running_mean", torch.zeros(4))
    model.register_buffer("running_var", torch.ones(4))
    return model


def catching(self, x):
    try:
        return self.bn(self.conv(x)) if x.sum() > 0 else self.conv(x)
    except ValueError:
        return self.bn(self.conv(x))


def indexed(self, x):
    layers = self.layers[: min(int(x.abs().max()), 1)] if x.shape[-1] < 7 else self.layers
    return layers(x)


def looping(self, x):
    while x.shape[-1] > 16:
        x = F.avg_pool2d(x, (1, 2))
    return self.bn(self.conv(x))


def around(also):
    """What makes a layer, and what else happens to it."""
    return lambda: made(lambda self, x: self.layer(x) + also(self.layer, x), layer=conv_layer())


def tied(model):
    other = nn.Conv2d(3, 4, 3, bias=False)
    other.weight = model.conv.weight
    return other


ALONE = "does not follow one convolution that nothing else sees"
REACHES = "the model reaches into layer, around its"
UNTRACEABLE = "torch.fx cannot trace the model, which runs it: "
#: What makes a model, and why its norm stays.
STAYS = {
    "twice": (block(lambda self, x: self.bn(self.conv(x)) + self.bn(self.conv(-x))), ALONE),
    "before": (block(lambda self, x: self.conv(self.bn(x)), bn=lambda _: nn.BatchNorm2d(3)), ALONE),
    "reader": (block(lambda self, x: self.bn(self.conv(x)) + self.conv.weight.sum()), ALONE),
    "buffers": (block(lambda self, x: self.bn(self.conv(x)) + self.bn.running_mean.sum()), ALONE),
    # on one way alone
    "small": (block(lambda self, x: self.bn(y := self.conv(x)) + (y if x.shape[-1] < 6 else 0)), ALONE),
    "large": (block(lambda self, x: self.conv(x) if x.shape[-1] > 64 else self.bn(self.conv(x))), ALONE),
    "kind": (block(lambda self, x: self.bn(self.conv(x)) if isinstance(x, torch.Tensor) else self.conv(x[0])), ALONE),
    "caught": (block(catching), f"{UNTRACEABLE}its forward catches exceptions"),
    "indexed": (
        lambda: made(indexed, layers=nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), f"{UNTRACEABLE}TypeError"),
    "loops": (block(looping), f"{UNTRACEABLE}its forward loops on what it is given"),
    "reaching": (around(lambda m, x: m.convolution(x).mean()), REACHES),
    "weight": (around(lambda m, x: m.convolution.weight.mean()), REACHES),
    # what they are
    "staying": (block(conv=lambda _: Forwarding(3, 4, 3)), "its convolution stays in torch"),
    "momentary": (block(bn=lambda _: nn.BatchNorm2d(4, track_running_stats=False)), "no running statistics"),
    "hooked": (lambda: hooked(Block(), "conv"), "has hooks, which would see"),
    "normed": (block(conv=lambda model: parametrizations.weight_norm(model.conv)), "weight is not a plain parameter"),
    "tied": (block(lambda self, x: self.bn(self.conv(x)) + self.other(x), other=tied), "shares parameters with"),
    # the second name of the convolution is used where fx cannot see the first
    "alias": (block(lambda self, x: self.bn(self.head(x)), head=lambda model: model.conv), "in several places of the"),
    "clipped": (block(bn=lambda _: Clipped(4)), "is a Clipped, which does not compute act(scale * x + shift)"),
    "failing": (block(bn=lambda _: Failing(4)), "raises KeyError on a probe in float64"),
    "bare": (block(bn=bare), "has no eps"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), STAYS.values(), ids=STAYS)
def test_what_may_not_be_folded_stays(make, reason):
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
    """torch.fx cannot trace it; what it does with its layers is `run`'s."""

    def __init__(self):
        super().__init__()
        self.block, self.layers = Block(), nn.ModuleList([Block(), nn.Sequential(Block())])
        self.pool, self.by_hand = nn.Sequential(Block()), [self.block.conv]
        self.extra = lambda x: self.block.conv(x)

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

    @property
    def first(self):
        return self.block.conv


def by_property(self, x):
    return self.block(x) + self.first(x)


def in_a_list(self, x):
    return self.block(x) + self.by_hand[0](x)


def in_a_function(self, x):
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


#: What such a model does, and the norms that are folded all the same.
UNTRACED = {
    Scaled.run: {"block.bn", "layers.0.bn", "layers.1.0.bn", "pool.0.bn"}, by_property: set(), in_a_list: set(),
    in_a_function: set(), handed_on: set(), renamed: {"pool.0.bn"}, looped_inside: {"block.bn"},
}  # fmt: skip


@pytest.mark.parametrize("run", UNTRACED, ids=lambda run: run.__name__)
def test_parts_that_a_model_only_calls(run):
    torch.manual_seed(0)
    model = drawn(type("Model", (Scaled,), {"run": run})()).eval()
    report = convert(model, fold_batchnorm=True)
    assert {fold.batchnorm for fold in report.folds if fold.folded} == UNTRACED[run]
    assert all(fold.reason.startswith("torch.fx cannot trace") for fold in report.folds if not fold.folded)
    x = torch.randn(2, 3, 7, 6)
    assert_near(report.model(x), model(x), 2 * 27)


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
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, C, 1), NormAct(nn.ReLU())).eval()
    report = convert(model, fold_batchnorm=True)
    assert [fold.reason for fold in report.folds] == ["", "has no data to see what it computes"]
