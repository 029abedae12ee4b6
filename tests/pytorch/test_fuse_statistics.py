"""convert(fuse=True): a norm takes the statistics that the convolution before it returns, where all graphs show it."""

import copy

import pytest
import torch
from chained import C, assert_gradients, drawn, image
from operators_seen import Seen
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
    """What a time says of each channel changes what a norm reads or gives, as in diffusers' UNets."""

    def __init__(self, norm, how="offset", rank=2):
        super().__init__()
        conv = getattr(nn, f"Conv{rank}d")
        self.conv1, self.norm, self.conv2 = conv(3, C, 3, padding=1), norm, conv(C, C, 3, padding=1)
        self.does = [TIMES[how]]  # no module

    def forward(self, x, t):
        scale, shift = F.silu(t)[(..., *[None] * len(self.conv1.kernel_size))].chunk(2, 1)
        return self.conv2(F.silu(self.does[0](self.norm, self.conv1(x), scale, shift)))


TIMES = {
    "offset": lambda norm, h, scale, shift: norm(h + shift),
    "offset, first": lambda norm, h, scale, shift: norm(scale + h),
    "scale and shift": lambda norm, h, scale, shift: norm(h) * (1 + scale) + shift,
    "shift, scale": lambda norm, h, scale, shift: (z := norm(h), shift + (1 + scale) * z)[1],
    "scale": lambda norm, h, scale, shift: norm(h) * scale,
    # what stays: another order, and numbers of pixels
    "shift before": lambda norm, h, scale, shift: (norm(h) + shift) * scale,
    "of pixels": lambda norm, h, scale, shift: norm(h) * scale.expand(h.shape),
}


@pytest.mark.cover(12)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("how", TIMES)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", [*NORMS, "batch"])
def test_numbers_for_each_channel_go_into_scale_and_shift(name, rank, how, images, calls):
    """Values and all gradients, in one call with what the convolution before returns."""
    norm = getattr(nn, f"BatchNorm{rank}d")(C) if name == "batch" else NORMS[name](rank)
    model = drawn(Timed(norm, how, rank))
    report = convert(model, fuse=True)
    fused = how not in ("shift before", "of pixels")
    [chain] = report.chains
    assert (chain.fused, chain.statistics) == (fused, ("conv1",) if fused else ())
    assert (chain.offset, chain.modulated) == (how.startswith("offset"), fused and not how.startswith("offset"))
    assert_gradients(report.model, model, image(2, 3, *ROWS[rank]), image(images, 2 * C, seed=2), terms=2 * TERMS)
    assert [one[0] for one in calls] == ["silu"] * fused


def test_one_number_for_all_channels_is_computed():
    """No graph tells it from one for each."""
    model = drawn(Timed(nn.GroupNorm(2, C), "scale and shift")).eval()
    converted = convert(model, fuse=True)
    assert converted.chains[0].fused
    assert_same(converted.model, model, image(2, 3, 6, 5), image(1, 2, seed=2), layers=2)


def test_a_scale_that_changes_in_the_meantime_is_refused():
    converted = convert(drawn(Timed(nn.GroupNorm(2, C), "scale and shift")).eval(), fuse=True).model
    scale = torch.ones(2, C, 1, 1)
    with torch.no_grad():
        pending = converted.norm(image(2, C, 6, 5)) * scale
        scale.add_(1)
        with pytest.raises(UnsupportedError, match="changed in place"):
            converted.conv2(pending)


class Summed(Timed):
    def forward(self, x, t):
        return self.conv2(F.silu(self.norm(self.conv1(x) + F.silu(t)[:, :])))


@pytest.mark.parametrize("shape", [(2, C, 6, 5), (2, C, 1, 5), (C, 1, 1), (1, 1, 1, 1)], ids=str)
def test_sums_with_other_shapes_are_computed(shape):
    """Which shape a tensor has is seen in each call."""
    model = drawn(Summed(nn.GroupNorm(2, C))).eval()
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
