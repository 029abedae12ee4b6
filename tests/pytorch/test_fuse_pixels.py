"""Norms over the channels of pixels that convert(fuse=True) puts into the convolution before them."""

import copy
import dataclasses
import pickle

import pytest
import torch
from chained import C, drawn, image
from operators_seen import Seen
from tolerances import FLOAT64_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.planner.request import Asked
from nkiconv.pytorch import convert
from nkiconv.pytorch.models import pixel_chains, videos
from nkiconv.pytorch.models.model_plan import plan_model


class Causal(nn.Conv3d):
    """Zeros and a cache in front, as Wan's."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, 3)
        self._padding = (1, 1, 1, 1, 2, 0)

    def forward(self, x, cache=None):
        front = 2 if cache is None else 2 - cache.shape[2]
        x = x if cache is None else torch.cat([cache, x], 2)
        return super().forward(F.pad(x, (1, 1, 1, 1, front, 0)))


class Norm(nn.Module):
    """RMSNorm, of a kind that divides by at least a length, or LayerNorm."""

    def __init__(self, channels, kind="rms", bias=False):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.bias, self.kind = nn.Parameter(torch.zeros(channels, 1, 1, 1)) if bias else 0.0, kind
        if kind == "layer":
            self.eps = 1e-6

    def forward(self, x):
        if self.kind == "layer":
            x = x - x.mean(1, keepdim=True)
            x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps)
        else:
            x = F.normalize(x, dim=1) * x.shape[1] ** 0.5
        return x * self.gamma + self.bias + (self.kind == "another")


class Block(nn.Module):
    """A residual block of videos with caches, as Wan's."""

    def __init__(self, **norm):
        super().__init__()
        self.norm1, self.norm2, self.act = Norm(C, **norm), Norm(C, **norm), nn.SiLU()
        self.conv1, self.conv2, self.dropout = Causal(C, C), Causal(C, C), nn.Dropout(0.1)

    def forward(self, x, caches=None):
        h, at = x, (None, None) if caches is None else tuple(caches)
        for index, (norm, conv) in enumerate([(self.norm1, self.conv1), (self.norm2, self.conv2)]):
            h = self.dropout(self.act(norm(h)))
            last = h[:, :, -2:].clone()
            h = conv(h, at[index])
            if caches is not None:
                caches[index] = last
        return x + h


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setitem(videos._KNOWN, videos.fingerprint(Causal.forward), videos._around_wan)
    monkeypatch.setitem(pixel_chains._KNOWN, videos.fingerprint(Block.forward), ("conv1", "norm2"))


def block(**norm):
    return drawn(Block(**norm)).eval()


def chains(report):
    return {one.norm: one.reason or one.convolution for one in report.chains}


UNKNOWN = "does not follow a convolution of a block whose code is known"


@pytest.mark.parametrize("norm", [{"kind": "rms"}, {"kind": "layer", "bias": True}], ids=str)
def test_a_block_gives_the_same_in_fewer_calls(norm):
    model = block(**norm).double()
    report = convert(model, fuse=True)
    assert chains(report) == {"norm1": UNKNOWN, "norm2": "conv1"}
    assert "1 of 2 norms fused with a convolution" in str(report)
    x = image(1, C, 3, 4, 5).double()
    results = []
    for one in (model, report.model, copy.deepcopy(report.model), pickle.loads(pickle.dumps(report.model))):
        caches, leaf = [None, None], x.clone().requires_grad_()
        first, second = one(leaf, caches), one(2 * leaf, caches)
        gradients = torch.autograd.grad(first.sin().sum() + second.sum(), [leaf, *one.parameters()])
        results.append([first, second, *caches, *gradients])
    for found in results[1:]:
        for mine, other in zip(found, results[0], strict=True):
            assert_within_share(mine.detach(), other.detach(), FLOAT64_SUMS)
    with Seen() as seen, torch.no_grad():
        report.model(x, [None, None])
    assert seen.convolutions == ["nkiconv::conv3d_with_norm", "nkiconv::conv3d"]


@pytest.mark.parametrize("mode", ["compare"], indirect=True)
def test_its_kernels_agree_with_torch(mode):
    report = convert(block().bfloat16(), fuse=True)
    with torch.no_grad():
        y = report.model(image(1, C, 3, 4, 5).bfloat16(), [image(1, C, 2, 4, 5).bfloat16()] * 2)
    assert y.isfinite().all()


def test_whatever_else_asks_gets_the_convolution():
    model = block()
    fused, x = convert(model, fuse=True).model, image(1, C, 3, 4, 5)
    with torch.no_grad():
        assert torch.equal(fused.conv1(x) * 2, model.conv1(x) * 2)
        assert torch.equal(fused.norm2(x), model.norm2(x))
        pending = fused.norm2(fused.conv1(x)).relu()
        share = 9 * 3 * C * 2.0**-24
        assert_within_share(pending + 0, F.relu(model.norm2(model.conv1(x))), share)
        with torch.autocast("cpu"):
            assert isinstance(fused.conv1(x), torch.Tensor)
        pending = fused.conv1(x)
        x += 1
        with pytest.raises(UnsupportedError, match="was changed in place between a norm, linear layer or upsampling"):
            pending.sum()


def _with(change):
    model = block()
    change(model)
    return model


LEFT = {
    "another norm": (lambda: block(kind="another"), "is a Norm, which is found to compute none of rms, layer"),
    "hooks": (
        lambda: _with(lambda m: m.conv1.register_forward_hook(lambda *_: None)),
        "a module of it has hooks, which would see no tensor",
    ),
    "own forward": (
        lambda: _with(lambda m: setattr(m.norm2, "forward", m.norm2.forward)), "a module of it has a forward of its own"
    ),
    "no weight": (
        lambda: _with(lambda m: setattr(m, "norm2", Norm(1))), f"has no weight of the convolution's {C} channels"
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT)
def test_what_stays_is_named(why):
    make, reason = LEFT[why]
    assert chains(convert(make(), fuse=True))["norm2"] == reason


def test_a_chain_is_fused_once():
    again = convert(convert(nn.Sequential(block()), fuse=True).model, fuse=True)
    assert chains(again) == {"0.norm2": "is in a fused chain already"}


@pytest.mark.parametrize(("apart", "pays"), [(90.0, False), (100.0, True)])
def test_a_plan_counts_the_norm_where_it_pays(apart, pays, priced):
    """The norm apart counts as a copy of its bytes, here 2 us."""
    asked = priced(lambda request: 100.0 if request.asked.y_norm else apart)
    found = plan_model(block(), [image(1, C, 3, 4, 5)], quick=True, fuse=True)
    names = {layer: row.convolved.asked.y_norm for row in found.rows for layer in row.layers}
    assert names == {"conv1": "rms" if pays else None, "conv2": None}
    together, plain = asked
    assert (together.problem.input_shape, together.problem.padding[0]) == ((1, C, 3, 4, 5), (2, 0))
    assert (together.asked.y_norm, together.asked.activation) == ("rms", "silu")
    assert (together.operation, together.lnc) == ("conv3d", 2)
    assert plain == dataclasses.replace(together, asked=Asked(bias=together.asked.bias))
    told = " ".join(str(found.report).split())
    assert [one["fused"] for one in found.report.as_dict()["chains"]] == [False, pays]
    assert (f"apart: costs more (100.0 us for 92.0, x 1x{C}x3x4x5)" in told) == (not pays)
    assert f"{1 if pays else 0} of 2 norms fused" in told


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan", "qwenimage", "hunyuanvideo15"])
def test_blocks_of_diffusers(name):
    module = pytest.importorskip(f"diffusers.models.autoencoders.autoencoder_kl_{name}", exc_type=Exception)
    kinds = {"wan": "WanResidualBlock", "qwenimage": "QwenImageResidualBlock"}
    model = drawn(getattr(module, kinds.get(name, "HunyuanVideo15ResnetBlock"))(C, 2 * C)).eval()
    report = convert(model, fuse=True)
    assert chains(report)["norm2"].startswith("conv1")
    x = image(1, C, 3, 4, 5)
    with torch.no_grad():
        found, expected = report.model(x), model(x)
    assert_within_share(found, expected, 8 * 3 * 27 * C * 2.0**-24)
