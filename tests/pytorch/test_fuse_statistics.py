"""convert(fuse=True): a norm takes the statistics that the convolution before it returns, where all graphs show it."""

import copy

import pytest
import torch
from chained import C, drawn, image
from operators_seen import Seen, graph_of
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert

TERMS = 9 * C
ROWS = {1: (7,), 2: (6, 5), 3: (3, 4, 5)}


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


def test_a_module_without_norms_that_asks_for_channels_returns_statistics():
    net = nn.Sequential(Down(), Residual(lambda: nn.GroupNorm(2, C)))
    assert sources(convert(drawn(net).eval(), fuse=True))["1.norm1"] == ("0.conv",)


def assert_same(converted, model, *inputs, layers=5):
    """Within fp32 rounding of the model in float64; returned are the operators that run."""
    with torch.no_grad(), Seen() as seen:
        found = converted(*inputs)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(*(one.double() for one in inputs))
    assert (found - truth).abs().max() <= 8 * layers * TERMS * 2.0**-24 * max(1, truth.abs().max())
    return [name.removeprefix("nkiconv::") for name in seen.names if name.startswith("nkiconv")]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", NORMS)
def test_norms_take_what_convolutions_return(name, rank):
    model = drawn(Net(lambda: NORMS[name](rank), rank)).eval()
    report = convert(model, fuse=True)
    assert sources(report) == FROM
    names = assert_same(report.model, model, image(2, 3, *ROWS[rank]))
    assert names.count("channel_stats") == 0
    # the last convolution's result is read by a norm that is fused with none
    assert [one for one in names if "conv" in one] == [*[f"conv{rank}d_with_stats"] * 4, f"conv{rank}d_with_prologue"]
    assert "4 with statistics from the one before" in str(report)
    assert "statistics from blocks.0.conv2" in str(report).replace("\n", " ")


@pytest.mark.cover(1)
def test_kernels_compute_them(mode):
    model = drawn(Net()).eval()
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(image(1, 3, 4, 4).double())
        found = convert(model, fuse=True).model(image(1, 3, 4, 4))
    assert (found - truth).abs().max() <= 8 * 5 * TERMS * 2.0**-24 * max(1, truth.abs().max())


@pytest.mark.slow
def test_one_graph_of_torch_compile():
    model, x = drawn(Net()).eval(), image(2, 3, 6, 5)
    with torch.no_grad():
        found, names = graph_of(convert(model, fuse=True).model, x)
    assert not any("channel_stats" in name for name in names)
    assert sum("with_stats" in name for name in names) == 4
    assert_same(lambda _: found, model, x)


def test_a_division_by_another_number():
    """One more pass over the sum, of which nobody has statistics."""
    model = drawn(Net(scale=2.0)).eval()
    report = convert(model, fuse=True)
    assert "blocks.1.norm1" not in sources(report)
    assert assert_same(report.model, model, image(2, 3, 6, 5)).count("channel_stats") == 1
    once = drawn(Net()).eval()
    converted = convert(once, fuse=True).model
    for net in (once, converted):
        net.blocks[0].scale = 4.0  # after it was proved to be 1
    assert assert_same(converted, once, image(2, 3, 6, 5)).count("channel_stats") == 1


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


PASSES = {"relu_": torch.relu_, "times": lambda x: 2 * x, "view": lambda x: x.flip(2), "pool": lambda x: x[:, :, 1:]}


@pytest.mark.parametrize("name", PASSES)
def test_what_passes_through_other_operators(name):
    model = drawn(Between(PASSES[name])).eval()
    report = convert(model, fuse=True)
    assert sources(report) == {"blocks.0.norm2": ("blocks.0.conv1",)}
    assert assert_same(report.model, model, image(2, 3, 6, 5)).count("channel_stats") == 1


def test_casts_that_do_nothing():
    model = drawn(Between(lambda x: x.to("cpu").contiguous())).eval()
    report = convert(model, fuse=True)
    assert sources(report)["blocks.0.norm1"] == ("stem",)
    assert assert_same(report.model, model, image(2, 3, 6, 5)).count("channel_stats") == 0


def test_every_way_is_asked():
    model = drawn(Branch()).eval()
    report = convert(model, fuse=True)
    assert "blocks.0.norm1" not in sources(report)
    assert assert_same(report.model, model, image(2, 3, 6, 5)).count("channel_stats") == 1


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
    model, inputs, results = drawn(Timed(norm)), (image(2, 3, 6, 5), image(2, C, 1, 1)), []
    wide = copy.deepcopy(model).double()
    for one, kind in ((convert(model, fuse=True).model, torch.float32), (wide, torch.float64)):
        leaves = [each.to(kind, copy=True).requires_grad_() for each in inputs]
        y = one(*leaves)
        (y * y.detach().cos()).sum().backward()
        results.append([y.detach(), *(each.grad for each in (*leaves, *one.parameters()))])
        results[-1] += [each for each in one.buffers() if each.is_floating_point()]  # running statistics have moved
    for one, other in zip(*results, strict=True):
        # sums over layers and pixels, forward and back
        assert (one - other).abs().max() <= 32 * 2 * TERMS * 2.0**-24 * max(1, other.abs().max())


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


class Twice(Net):
    """A convolution whose result is read by a norm in one of two calls."""

    def forward(self, x):
        return self.blocks[0](self.stem(x)) + self.stem(x + 1)


def test_every_call_is_read():
    model = drawn(Twice()).eval()
    assert "blocks.0.norm1" not in sources(convert(model, fuse=True))


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


def test_convolutions_at_the_end_of_modules():
    model = drawn(Decoder()).eval()
    report = convert(model, fuse=True)
    assert sources(report)["blocks.1.norm1"] == ("up.conv",)
    assert assert_same(report.model, model, image(2, 3, 6, 5), layers=6).count("channel_stats") == 0


GIVING = {
    "depthwise": (nn.Conv2d(C, C, 3, groups=C), "conv2d"),
    "depthwise volumes": (nn.Conv3d(C, C, 2, groups=C), "conv3d"),
    "transposed": (nn.ConvTranspose2d(C, C, 3, stride=2), "conv_transpose2d"),
    "transposed rows": (nn.ConvTranspose1d(C, C, 3), "conv_transpose1d"),
}


@pytest.mark.parametrize("name", GIVING)
def test_depthwise_and_transposed_convolutions_give_them(name):
    """And depthwise ones take what a norm makes of them."""
    first, operator = GIVING[name]
    rank = len(first.kernel_size)
    conv = getattr(nn, f"Conv{rank}d")
    depthwise = conv(C, C, 2, groups=C if rank > 1 else 1)
    layers = first, nn.GroupNorm(2, C), nn.SiLU(), depthwise, nn.GroupNorm(2, C), nn.SiLU(), conv(C, C, 1)
    model = drawn(nn.Sequential(*layers)).eval()
    report = convert(model, fuse=True)
    assert sources(report) == {"1": ("0",), "4": ("3",)}
    names = assert_same(report.model, model, image(2, C, *[7, 6, 5][:rank]))
    assert [one for one in names if "conv" in one] == [
        f"{operator}_with_stats", f"conv{rank}d_with_stats", f"conv{rank}d_with_prologue"
    ]  # fmt: skip
    assert "channel_stats" not in names


NONE = {"depthwise rows": (1, C, "GroupNorm"), "a norm that takes none": (2, 1, "BatchNorm2d")}


@pytest.mark.parametrize("name", NONE)
def test_what_has_or_wants_none(name):
    rank, groups, kind = NONE[name]
    conv = getattr(nn, f"Conv{rank}d")
    norm = nn.BatchNorm2d(C) if kind == "BatchNorm2d" else nn.GroupNorm(2, C)
    model = drawn(nn.Sequential(conv(C, C, 3, groups=groups), norm, nn.SiLU(), conv(C, C, 3))).eval()
    report = convert(model, fuse=True)
    assert [chain.fused for chain in report.chains] == [True]
    assert sources(report) == {}
    assert_same(report.model, model, image(2, C, *[8, 7][:rank]))


def test_copies_and_another_conversion():
    model = drawn(Net()).eval()
    converted = convert(model, fuse=True).model
    assert assert_same(copy.deepcopy(converted), model, image(2, 3, 6, 5)).count("channel_stats") == 0
    assert sources(convert(converted, fuse=True)) == {}
    assert assert_same(convert(converted, fuse=True).model, model, image(2, 3, 6, 5)).count("channel_stats") == 0
