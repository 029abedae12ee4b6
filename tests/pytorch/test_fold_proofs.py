"""A batch norm is folded only where torch.fx's graphs of all ways through a model prove that nothing else sees what
its convolution gives."""

import pytest
import torch
from folding import Block, ConvLayer, X, assert_near, exact, random_statistics
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import convert


def block(forward):
    """A class like Block with this forward."""
    return type("Made", (Block,), {"forward": forward})


def small(self, x):
    """Of small images the norm sees more; so it would in a run with a large one alone not be seen."""
    y = self.conv(x)
    return self.bn(y) + (y if x.shape[-1] < 6 else 0)


def catching(self, x):
    try:
        return self.bn(self.conv(x)) if x.sum() > 0 else self.conv(x)
    except Exception:
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


NOTHING_ELSE = "does not follow one convolution that nothing else sees"
REACHES = "the model reaches into layer, around its"
#: What makes a model, its norm, and why that stays.
UNPROVED = {
    "small": (block(small), "bn", NOTHING_ELSE),
    "large": (block(lambda self, x: self.conv(x) if x.shape[-1] > 64 else self.bn(self.conv(x))), "bn", NOTHING_ELSE),
    "batch": (block(lambda self, x: self.bn(self.conv(x)) if x.size(0) == 1 else self.conv(x)), "bn", NOTHING_ELSE),
    "kind": (block(lambda self, x: self.bn(self.conv(x)) if isinstance(x, torch.Tensor) else self.conv(x[0])), "bn",
     NOTHING_ELSE),
    "caught": (block(catching), "bn", "torch.fx cannot trace the model, which runs it: its forward catches exceptions"),
    "buffers": (block(lambda self, x: self.bn(self.conv(x)) + self.bn.running_mean.sum()), "bn", NOTHING_ELSE),
    "indexed": (Indexed, "layers.1", "torch.fx cannot trace the model, which runs it: TypeError"),
    "reaching": (lambda: Around(ConvLayer(), lambda m, x: m.convolution(x).mean()), "layer.normalization", REACHES),
    "method": (lambda: Around(Methodical(), lambda m, x: m.features(x).mean()), "layer.normalization", REACHES),
    "weight": (lambda: Around(ConvLayer(), lambda m, x: m.convolution.weight.mean()), "layer.normalization", REACHES),
    "stray": (lambda: ConvLayer(stray=True), "normalization", NOTHING_ELSE),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPROVED)
def test_what_is_not_proved_for_every_input_stays(name):
    make, norm, reason = UNPROVED[name]
    model = random_statistics(make())
    report = convert(model, fold_batchnorm=True)
    [fold] = report.folds
    assert (fold.batchnorm, fold.folded) == (norm, False)
    assert reason in fold.reason
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


class Looping(Block):
    def forward(self, x):
        while x.shape[-1] > 16:
            x = F.avg_pool2d(x, 2)
        return self.bn(self.conv(x))


def test_ways_that_end_in_an_error_do_not_count():
    model = exact(nn.Sequential(Checking(), nn.Conv2d(4, 3, 1), Optional()))
    report = convert(model, fold_batchnorm=True)
    assert [fold.folded for fold in report.folds] == [True, True]
    for x in (X, X.repeat(1, 1, 10, 11)):
        assert torch.equal(report.model(x), model(x))


def test_loops_are_told():
    [fold] = convert(exact(Looping()), fold_batchnorm=True).folds
    assert fold.reason == "torch.fx cannot trace the model, which runs it: its forward loops on what it is given"
