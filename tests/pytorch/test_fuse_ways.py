"""convert(fuse=True) with pixels around what is convolved, and of models on whose ways errors are raised."""

import pytest
import torch
from chained import Block, C, assert_same, drawn, image
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nkiconv.pytorch import convert


class Padded(nn.Module):
    """A convolution with pixels around its input, before or after the activation, as HunyuanVideo's VAE has them."""

    def __init__(self, mode, rank=2, norm=None, first=False, within=False):
        super().__init__()
        self.norm, self.mode, self.first = norm or nn.GroupNorm(2, C), mode, first
        own = {"padding": 1, "padding_mode": mode} if within else {}
        self.sides = () if within else (1, 0, 2, 1, 1, 1)[: 2 * rank]
        self.conv = getattr(nn, f"Conv{rank}d")(C, C, 3, **own)

    def forward(self, x):
        h = self.norm(x)
        h = h if self.first else F.silu(h)
        h = F.pad(h, self.sides, mode=self.mode) if self.sides else h
        return self.conv(F.silu(h) if self.first else h)


@pytest.mark.cover(8)
@pytest.mark.parametrize(("within", "first"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_pixels_around_images(mode, rank, within, first, calls):
    """Copies of pixels are put around what the norm reads, which it does before."""
    model = drawn(Padded(mode, rank, None, first, within))
    report = convert(model, fuse=True)
    [one] = report.chains
    assert str(one) == ("silu -> conv" if within else f"silu -> {mode} padding -> conv")
    x = image(2, C, *[5, 6, 4][:rank])
    assert_same(report.model, model, x, terms=3**rank * C)
    assert [activation for activation, _ in calls] == ["silu"]
    found, right = (torch.autograd.grad(one(x).sin().sum(), [*one.parameters()]) for one in (report.model, model))
    for mine, other in zip(found, right, strict=True):
        assert (mine - other).abs().max() <= 4 * 3**rank * C * x.numel() * 2.0**-24 * max(1, other.abs().max())


@pytest.mark.parametrize(("mode", "sides", "reason"), [
    ("constant", (1, 1, 1, 1), "is not followed by one convolution"),
    ("replicate", (0, 0, 0, 0, 1, 1), "raises RuntimeError on a probe in float64"),  # around channels
])  # fmt: skip
def test_other_paddings_are_not_passed_over(mode, sides, reason):
    model = drawn(Padded(mode))
    model.sides = sides
    [one] = convert(model, fuse=True).chains
    assert one.reason.startswith(reason)


class Attribute(Block):
    """A way that no call goes, as the module that it calls is missing."""

    def forward(self, x, t, u=None):
        return super().forward(x if u is None else x + self.missing(u), t)


class Unbound(Block):
    """A way on which a name has no value."""

    def forward(self, x, t):
        if x.dim() == 4:
            height = x.shape[2]
        return super().forward(x, t) / height * height


class ByMethods(nn.Module):
    """A model whose forward is not called."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        raise NotImplementedError

    def decode(self, x, t):
        return self.block(x, t)


@pytest.mark.parametrize("kind", [Attribute, Unbound, ByMethods])
def test_ways_that_raise_errors_prove_nothing(kind, calls):
    model = drawn(kind()).eval()
    report = convert(model, fuse=True)
    assert [chain.fused for chain in report.chains] == [True, True]
    inputs = image(2, C, 6, 5), image(2, 4)
    with torch.no_grad():
        found, expected = ((one.decode if kind is ByMethods else one)(*inputs) for one in (report.model, model))
    assert (found - expected).abs().max() <= 8 * 2 * 9 * C * 2.0**-24 * expected.abs().max()
    assert len(calls) == 2


class Causal(nn.Module):
    """Copies of the first row in front, and a convolution, as modules of video VAEs."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3)

    def forward(self, x):
        return self.conv(F.pad(x, (1, 1, 2, 0), mode="replicate"))


class Wrapped(nn.Module):
    """A residual block with a time, whose convolutions are in modules of their own."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, C), nn.GroupNorm(2, C)
        self.conv1, self.conv2 = Causal(), Causal()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h + t[:, :])))


@pytest.mark.parametrize(("where", "fused", "known"), [
    ("", [True, True], [False, True]), ("conv1", [False, True], [False, False]), ("conv2", [True, False], [False] * 2),
])  # fmt: skip
def test_hooks_of_modules_around_see_tensors(where, fused, known):
    model, seen = drawn(Wrapped()).eval(), []
    if where:
        model.get_submodule(where).register_forward_hook(lambda _m, args, y: seen.extend([type(args[0]), type(y)]))
    report = convert(model, fuse=True)
    seen.clear()  # of torch.fx
    assert [one.fused for one in report.chains] == fused
    assert [one.offset for one in report.chains] == [bool(one.statistics) for one in report.chains] == known
    assert_same(report.model, model, image(2, C, 6, 5), image(2, C, 1, 1), terms=2 * 9 * C)
    assert set(seen) <= {torch.Tensor}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_again(reentrant):
    model = drawn(Wrapped())
    results = []
    for one in (convert(model, fuse=True).model, model):
        leaves = [image(2, C, 6, 5).requires_grad_(), image(2, C, 1, 1).requires_grad_()]
        y = checkpoint(one, *leaves, use_reentrant=reentrant)
        y.sin().sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for found, right in zip(*results, strict=True):
        assert (found - right).abs().max() <= 32 * 2 * 9 * C * 2.0**-24 * max(1, right.abs().max())
