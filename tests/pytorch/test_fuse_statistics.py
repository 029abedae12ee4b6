"""convert(fuse=True): a norm takes the statistics that the convolution before it returns, where all graphs show it."""

import copy

import pytest
import torch
from chained import C, assert_gradients, drawn, image
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert

TERMS = 9 * C
ROWS, IMAGE = {1: (7,), 2: (6, 5), 3: (3, 4, 5)}, (2, 3, 6, 5)


class Residual(nn.Module):
    """A block as diffusers' VAEs have it, with a division of the sum."""

    def __init__(self, norm, rank=2, scale=1.0):
        super().__init__()
        conv = getattr(nn, f"Conv{rank}d")
        self.norm1, self.norm2, self.scale = norm(), norm(), scale
        self.conv1, self.conv2 = conv(C, C, 3, padding=1), conv(C, C, 3, padding=1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return (x + self.conv2(F.silu(self.norm2(h)))) / self.scale


class Net(nn.Module):
    """A convolution, two blocks, and a norm at the end that no convolution follows."""

    def __init__(self, norm=lambda: nn.GroupNorm(2, C), rank=2, scale=1.0):
        super().__init__()
        self.stem = getattr(nn, f"Conv{rank}d")(3, C, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(norm, rank, scale) for _ in range(2)))
        self.last = norm()

    def forward(self, x):
        return self.last(self.blocks(self.stem(x)))


NORMS = {"group": lambda rank: nn.GroupNorm(2, C), "instance": lambda rank: getattr(nn, f"InstanceNorm{rank}d")(C)}
FROM = {
    "blocks.0.norm1": ("stem",),
    "blocks.0.norm2": ("blocks.0.conv1",),
    "blocks.1.norm1": ("blocks.0.conv2",),
    "blocks.1.norm2": ("blocks.1.conv1",),
}


def sources(report):
    return {chain.norm: chain.statistics for chain in report.chains if chain.statistics}


class Down(nn.Module):
    """A convolution whose forward asks for channels, as diffusers' Downsample2D does."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, stride=2, padding=1)

    def forward(self, x):
        assert x.shape[1] == C
        return self.conv(x)


def assert_same(converted, model, *inputs, layers=5):
    """Within fp32 rounding of the model in float64; returned are the operators that run."""
    with torch.no_grad(), Seen() as seen:
        found = converted(*inputs)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(*(one.double() for one in inputs))
    assert (found - truth).abs().max() <= 8 * layers * TERMS * 2.0**-24 * max(1, truth.abs().max())
    return [name.removeprefix("nkiconv::") for name in seen.names if name.startswith("nkiconv")]


class Between(Net):
    """Something happens between a convolution and the norm that reads its result."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.blocks[0](self.what(self.stem(x)))


class Branch(Net):
    """On one of two ways a norm reads something else."""

    def forward(self, x, doubles=None):
        h = self.stem(x)
        if doubles is not None:
            h = h * doubles
        return self.blocks[0](h)


class Timed(nn.Module):
    """What a time says of each channel is added to what a convolution gives, as in diffusers' UNets."""

    def __init__(self, norm, rank=2, first=False):
        super().__init__()
        conv = getattr(nn, f"Conv{rank}d")
        self.conv1, self.norm, self.conv2 = conv(3, C, 3, padding=1), norm, conv(C, C, 3, padding=1)
        self.first = first

    def forward(self, x, t):
        h, t = self.conv1(x), F.silu(t)[:, :]
        return self.conv2(F.silu(self.norm(t + h if self.first else h + t)))


@pytest.mark.cover(8)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", NORMS)
def test_numbers_for_each_channel_go_into_the_shift(name, rank, first, images):
    model = drawn(Timed(NORMS[name](rank), rank, first)).eval()
    report = convert(model, fuse=True)
    assert sources(report) == {"norm": ("conv1",)}
    assert "statistics from conv1, whose sum with numbers for each channel it takes in" in " ".join(str(report).split())
    t = image(images, C, *[1] * rank)
    names = assert_same(report.model, model, image(2, 3, *ROWS[rank]), t, layers=2)
    assert [one for one in names if "conv" in one] == [f"conv{rank}d_with_stats", f"conv{rank}d_with_prologue"]
    assert names.count("channel_stats") == 0


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, C), nn.BatchNorm2d(C), nn.InstanceNorm2d(C)], ids=repr)
def test_gradients_with_numbers_for_each_channel(norm):
    model = drawn(Timed(norm))
    assert_gradients(convert(model, fuse=True).model, model, image(2, 3, 6, 5), image(2, C, 1, 1), terms=2 * TERMS)


class Modulated(Timed):
    """Numbers of a time multiply what the norm gives, and are added to it, as in diffusers' scale_shift."""

    def forward(self, x, t):
        scale, shift = t[(..., *[None] * len(self.conv1.kernel_size))].chunk(2, 1)
        h = self.norm(self.conv1(x))
        return self.conv2(F.silu(self.of(h, scale, shift)))

    def of(self, h, scale, shift):
        return shift + (1 + scale) * h if self.first else h * (1 + scale) + shift


class ScaledAlone(Modulated):
    def of(self, h, scale, shift):
        return h * scale


class ShiftedBefore(Modulated):
    def of(self, h, scale, shift):
        return (h + shift) * scale


class ByPixels(Modulated):
    def of(self, h, scale, shift):
        return h * scale.expand(h.shape)


@pytest.mark.cover(8)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(("kind", "first"), [(Modulated, False), (Modulated, True), (ScaledAlone, False)])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", NORMS)
def test_numbers_for_each_channel_go_into_scale_and_shift(name, rank, kind, first, images, calls):
    """Values and all gradients, in one call with what the convolution before returns."""
    model = drawn(kind(NORMS[name](rank), rank, first)).eval()
    converted = convert(model, fuse=True)
    assert [(one.fused, one.modulated, one.statistics) for one in converted.chains] == [(True, True, ("conv1",))]
    assert "numbers for each channel -> silu -> conv2" in str(converted)
    x, t = image(2, 3, *[6, 5, 4][:rank]).requires_grad_(), image(images, 2 * C, seed=2).requires_grad_()
    wide = copy.deepcopy(model).double()
    inputs = [one.detach().double().requires_grad_() for one in (x, t)]
    y, right = converted.model(x, t), wide(*inputs)
    assert [one[0] for one in calls] == ["silu"]
    leaves, others = [x, t, *model.parameters()], [*inputs, *wide.parameters()]
    g = image(*y.shape, seed=3)
    found = [y, *torch.autograd.grad(y, leaves, g, allow_unused=True)]
    expected = [right, *torch.autograd.grad(right, others, g.double(), allow_unused=True)]
    assert_within_share(found, expected, 8 * FLOAT32_SUMS)


@pytest.mark.parametrize(("kind", "fused"), [(ShiftedBefore, False), (ByPixels, False), (Modulated, True)])
def test_other_numbers_after_a_norm_are_computed(kind, fused):
    """In another order, of each pixel, and one number for all channels, which no graph tells from one for each."""
    model = drawn(kind(nn.GroupNorm(2, C))).eval()
    converted = convert(model, fuse=True)
    assert [one.fused for one in converted.chains] == [fused]
    assert_same(converted.model, model, image(2, 3, 6, 5), image(1, 2 if fused else 2 * C, seed=2))


def test_a_scale_that_changes_in_the_meantime_is_refused():
    converted = convert(drawn(Modulated(nn.GroupNorm(2, C))).eval(), fuse=True).model
    scale = torch.ones(2, C, 1, 1)
    with torch.no_grad():
        pending = converted.norm(image(2, C, 6, 5)) * scale
        scale.add_(1)
        with pytest.raises(UnsupportedError, match="changed in place"):
            converted.conv2(pending)


@pytest.mark.parametrize("shape", [(2, C, 6, 5), (2, C, 1, 5), (C, 1, 1), (1, 1, 1, 1)], ids=str)
def test_sums_with_other_shapes_are_computed(shape):
    """Which shape a tensor has is seen in each call."""
    model = drawn(Timed(nn.GroupNorm(2, C))).eval()
    names = assert_same(convert(model, fuse=True).model, model, image(2, 3, 6, 5), image(*shape), layers=2)
    assert names.count("channel_stats") == 1


def test_a_time_that_changes_in_the_meantime_is_refused():
    model = drawn(Timed(nn.GroupNorm(2, C))).eval()
    converted, t = convert(model, fuse=True).model, image(2, C, 1, 1)
    pending = converted.norm(converted.conv1(image(2, 3, 6, 5)) + t)
    t.add_(1)
    with pytest.raises(UnsupportedError, match="was changed in place between a norm"):
        converted.conv2(pending)


class Sampler(nn.Module):
    """A module that torch.fx cannot trace when its second argument is given."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1)

    def forward(self, x, size=None):
        sizes = None if size is None else [int(one) for one in size]
        h = F.interpolate(x, scale_factor=2.0) if size is None else F.interpolate(x, size=sizes)
        return self.conv(h)


class Decoder(Net):
    """A block after an upsampler."""

    def __init__(self):
        super().__init__()
        self.up = Sampler()

    def forward(self, x):
        return self.blocks[1](self.up(self.blocks[0](self.stem(x))))


class Twice(Net):
    """A convolution whose result is read by a norm in one of two calls."""

    def forward(self, x):
        return self.blocks[0](self.stem(x)) + self.stem(x + 1)


def alone(first, norm, depthwise=False):
    """A convolution, and two chains of which the first may be depthwise."""
    rank = len(first.kernel_size)
    conv = getattr(nn, f"Conv{rank}d")
    middle = conv(C, C, 2, groups=C if depthwise else 1)
    return nn.Sequential(first, norm(), nn.SiLU(), middle, nn.GroupNorm(2, C), nn.SiLU(), conv(C, C, 1))


def group():
    return nn.GroupNorm(2, C)


FIRST, BOTH = {"blocks.0.norm2": ("blocks.0.conv1",)}, {"1": ("0",), "4": ("3",)}
#: What makes a model; the shape of its input; which convolutions' statistics its norms take; passes over images for
#: those that none returns.
NETS = {
    **{
        f"{name} norms of rank {rank}": (
            lambda name=name, rank=rank: Net(lambda: NORMS[name](rank), rank), (2, 3, *ROWS[rank]), FROM, 0,
        ) for name, rank in (("group", 1), ("group", 2), ("instance", 2), ("group", 3), ("instance", 3))
    },
    "a division": (lambda: Net(scale=2.0), IMAGE, {k: v for k, v in FROM.items() if k != "blocks.1.norm1"}, 1),
    "in place": (lambda: Between(torch.relu_), IMAGE, FIRST, 1),
    "a product": (lambda: Between(lambda x: 2 * x), IMAGE, FIRST, 1),
    "another order": (lambda: Between(lambda x: x.flip(2)), IMAGE, FIRST, 1),
    "a part": (lambda: Between(lambda x: x[:, :, 1:]), IMAGE, FIRST, 1),
    "casts that do nothing": (
        lambda: Between(lambda x: x.to("cpu").contiguous()), IMAGE, {"blocks.0.norm1": ("stem",), **FIRST}, 0
    ),
    "another way": (Branch, IMAGE, FIRST, 1),
    "another call": (Twice, IMAGE, FIRST, 1),
    "upsampled": (Decoder, IMAGE, FROM | {"blocks.1.norm1": ("up.conv",)}, 0),
    "depthwise": (lambda: alone(nn.Conv2d(C, C, 3, groups=C), group, True), (2, C, 7, 6), BOTH, 0),
    "depthwise volumes": (lambda: alone(nn.Conv3d(C, C, 2, groups=C), group, True), (2, C, 7, 6, 5), BOTH, 0),
    "transposed": (lambda: alone(nn.ConvTranspose2d(C, C, 3, stride=2), group), (2, C, 7, 6), BOTH, 0),
    "transposed rows": (lambda: alone(nn.ConvTranspose1d(C, C, 3), group), (2, C, 7), BOTH, 0),
    "depthwise rows": (lambda: alone(nn.Conv1d(C, C, 3, groups=C), group), (2, C, 8), {"4": ("3",)}, 1),
    "running statistics": (
        lambda: alone(nn.Conv2d(C, C, 3), lambda: nn.BatchNorm2d(C)), (2, C, 8, 7), {"4": ("3",)}, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_norms_take_what_convolutions_return(name):
    make, shape, expected, passes = NETS[name]
    model = drawn(make()).eval()
    report = convert(model, fuse=True)
    assert sources(report) == expected
    assert f"{len(expected)} with statistics from the one before" in str(report)
    names = assert_same(report.model, model, image(*shape), layers=6)
    assert names.count("channel_stats") == passes
    assert len([one for one in names if one.endswith("_with_stats")]) == len(set(expected.values()))


def test_a_divisor_that_changes_after_the_conversion():
    once = drawn(Net()).eval()
    converted = convert(once, fuse=True).model
    for net in (once, converted):
        net.blocks[0].scale = 4.0  # after it was proved to be 1
    assert assert_same(converted, once, image(2, 3, 6, 5)).count("channel_stats") == 1


def test_copies_and_another_conversion():
    model = drawn(Net()).eval()
    converted = convert(model, fuse=True).model
    assert assert_same(copy.deepcopy(converted), model, image(2, 3, 6, 5)).count("channel_stats") == 0
    assert sources(convert(converted, fuse=True)) == {}
    assert assert_same(convert(converted, fuse=True).model, model, image(2, 3, 6, 5)).count("channel_stats") == 0
