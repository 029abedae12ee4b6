"""convert(fuse=True): a norm takes the statistics that the convolution before it returns, where all graphs show it."""

import pytest
import torch
from chained import C, assert_same, calls, drawn, image
from fused_models import CONVOLUTIONS, between, net
from torch import nn

from nkiconv.pytorch import convert

ROWS, IMAGE = {1: (2, 3, 7), 2: (2, 3, 6, 5), 3: (2, 3, 3, 4, 5)}, (2, 3, 6, 5)
NORMS = {"group": lambda rank: nn.GroupNorm(2, C), "instance": lambda rank: getattr(nn, f"InstanceNorm{rank}d")(C)}


def branch(self, x, doubles=None):
    """On one of two ways a norm reads something else."""
    h = self.stem(x)
    if doubles is not None:
        h = h * doubles
    return self.blocks[0](h)


def alone(first, norm=lambda: nn.GroupNorm(2, C), depthwise=False):
    """A convolution, and two chains of which the first may be depthwise."""
    conv = CONVOLUTIONS[len(first.kernel_size)]
    middle = conv(C, C, 2, groups=C if depthwise else 1)
    return nn.Sequential(first, norm(), nn.SiLU(), middle, nn.GroupNorm(2, C), nn.SiLU(), conv(C, C, 1))


FIRST = {"blocks.0.norm2": "blocks.0.conv1"}
FROM = {"blocks.0.norm1": "stem", **FIRST, "blocks.1.norm1": "blocks.0.conv2", "blocks.1.norm2": "blocks.1.conv1"}
BOTH = {"1": "0", "4": "3"}
#: What makes a model; the shape of its input; whose statistics its norms take; passes over images for those that no
#: convolution returns.
NETS = {
    **{f"{name} norms of rank {rank}": (
        lambda name=name, rank=rank: net(lambda: NORMS[name](rank), rank), ROWS[rank], FROM, 0,
    ) for name, rank in (("group", 1), ("group", 2), ("instance", 2), ("group", 3), ("instance", 3))},
    "a division": (lambda: net(scale=2.0), IMAGE, {k: v for k, v in FROM.items() if k != "blocks.1.norm1"}, 1),
    "in place": (lambda: between(torch.relu_), IMAGE, FIRST, 1),
    "another order": (lambda: between(lambda x: x.flip(2)), IMAGE, FIRST, 1),
    "a part": (lambda: between(lambda x: x[:, :, 1:]), IMAGE, FIRST, 1),
    "casts that do nothing": (
        lambda: between(lambda x: x.to("cpu").contiguous()), IMAGE, {"blocks.0.norm1": "stem", **FIRST}, 0),
    "another way": (lambda: net(forward=branch), IMAGE, FIRST, 1),
    "another call": (lambda: net(forward=lambda m, x: m.blocks[0](m.stem(x)) + m.stem(x + 1)), IMAGE, FIRST, 1),
    "depthwise": (lambda: alone(nn.Conv2d(C, C, 3, groups=C), depthwise=True), (2, C, 7, 6), BOTH, 0),
    "depthwise volumes": (lambda: alone(nn.Conv3d(C, C, 2, groups=C), depthwise=True), (2, C, 7, 6, 5), BOTH, 0),
    "transposed": (lambda: alone(nn.ConvTranspose2d(C, C, 3, stride=2)), (2, C, 7, 6), BOTH, 0),
    "depthwise rows": (lambda: alone(nn.Conv1d(C, C, 3, groups=C)), (2, C, 8), {"4": "3"}, 1),
    "running statistics": (lambda: alone(nn.Conv2d(C, C, 3), lambda: nn.BatchNorm2d(C)), (2, C, 8, 7), {"4": "3"}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_norms_take_what_convolutions_return(name):
    make, shape, expected, passes = NETS[name]
    model = drawn(make()).eval()
    report = convert(model, fuse=True)
    assert {chain.norm: " ".join(chain.statistics) for chain in report.chains if chain.statistics} == expected
    assert f"{len(expected)} with statistics from the one before" in str(report)
    assert_same(report.model, model, image(*shape))
    ran = calls(report.model, image(*shape)).split("; ")
    assert ran.count("channel_stats") == passes
    assert sum(one.endswith(" stats") for one in ran) == len(set(expected.values()))
