"""How published models convolve, in a few lines each: all of it is nkiconv's, and the share that is told is true."""

import pytest
import torch
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import convert, plan_model


class ConvNorm(nn.Sequential):
    """RepViT's, SHViT's and iFormer's: a Sequential whose `fuse` reads what its forward only calls."""

    def __init__(self, inputs, outputs, size, padding=0, groups=1):
        super().__init__()
        self.add_module("c", nn.Conv2d(inputs, outputs, size, padding=padding, groups=groups, bias=False))
        self.add_module("bn", nn.BatchNorm2d(outputs))

    @torch.no_grad()
    def fuse(self):
        scale = self.bn.weight / (self.bn.running_var + self.bn.eps) ** 0.5
        made = nn.Conv2d(self.c.weight.size(1) * self.c.groups, self.c.weight.size(0), self.c.weight.shape[2:])
        made.weight.copy_(self.c.weight * scale[:, None, None, None])
        return made


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def fuse(self):
        return self.first.weight.sum() + self.second.weight.sum()

    def forward(self, x):
        for child in self.children():
            x = child(x).relu()
        return x


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def fuse(self):
        return self.conv0.weight, self.conv1.weight

    def forward(self, x):
        for i in range(2):
            x = getattr(self, f"conv{i}")(x)
        return x


class Karras(nn.Module):
    """KarrasUnet's convolution: no module of torch, and filters normalized in each call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3 + 1, 3, 3))

    def forward(self, x):
        w = self.weight / self.weight.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-4)
        return F.conv2d(F.pad(x, (0, 0, 0, 0, 0, 1), value=1.0), w, padding="same")


class Span(nn.Module):
    """SPAN's: filters that are the convolution of others, written to a layer in each call."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 6, 1, bias=False), nn.Conv2d(6, 4, 3, bias=False)
        self.eval_conv = nn.Conv2d(3, 4, 3, padding=1, bias=False).requires_grad_(False)

    def forward(self, x):
        w = F.conv2d(self.wide.weight.permute(1, 0, 2, 3), self.narrow.weight.flip(2, 3), padding=2)
        self.eval_conv.weight.data = w.flip(2, 3).permute(1, 0, 2, 3).contiguous()
        return self.eval_conv(x)


class BigVgan(nn.Module):
    """BigVGAN's: filters of a buffer for each channel, up and down, around layers with weight norm, old and new."""

    def __init__(self):
        super().__init__()
        self.register_buffer("filter", torch.hann_window(6).reshape(1, 1, 6))
        self.old = nn.utils.weight_norm(nn.Conv1d(3, 4, 3, padding=1))
        self.new = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(4, 3, 4, stride=2))

    def forward(self, x):
        filters = self.filter.expand(x.shape[1], -1, -1)
        up = F.conv_transpose1d(F.pad(x, (2, 2), mode="replicate"), filters, stride=2, groups=x.shape[1])
        down = F.conv1d(F.pad(up.sin(), (2, 3), mode="replicate"), filters, stride=2, groups=x.shape[1])
        return self.new(self.old(down))


PICTURE, ROW = torch.randn(2, 3, 9, 8), torch.randn(2, 3, 11)
#: What makes a model, its input, the modules that convolve, and the convolutions of a run.
MODELS = {
    "RepViT": (lambda: nn.Sequential(ConvNorm(3, 4, 3, 1), nn.GELU(), ConvNorm(4, 4, 3, 1, 4)), PICTURE, 2, 2),
    "a loop": (Looped, PICTURE, 2, 2),
    "by name": (ByName, PICTURE, 2, 2),
    "KarrasUnet": (lambda: nn.Sequential(Karras(), nn.SiLU()), PICTURE, 0, 1),
    "SPAN": (Span, PICTURE, 3, 2),
    "BigVGAN": (BigVgan, ROW, 2, 4),
}


def made(name):
    torch.manual_seed(0)
    make, x, modules, calls = MODELS[name]
    return make().eval(), x, modules, calls


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", MODELS)
def test_all_of_it_is_taken(name, monkeypatch):
    model, x, modules, calls = made(name)
    expected = model(x)
    with Seen() as seen:
        model(x)
    assert seen.convolutions == ["aten::convolution"] * calls
    report = convert(model, example_inputs=(x,))
    assert len(report.swapped) == modules
    assert report.measured.fraction == 1
    assert str(report).startswith("On example_inputs, 100.0% of ")
    with Seen() as seen:
        y = report.model(x)
    assert len(seen.convolutions) == calls
    assert seen.only_nkiconvs
    assert torch.equal(y, expected)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with torch.no_grad():
        assert_within_share([report.model(x)], [expected], FLOAT32_SUMS)


#: Flops of modules and of functions, by hand: two for each pair of an output and a tap, of a transposed one an input.
FLOPS = {
    "RepViT": (2 * 2 * 72 * (4 * 27 + 4 * 9), 0), "a loop": (2 * 2 * 42 * (4 * 27 + 4 * 4), 0),
    "by name": (2 * 2 * 4 * (42 * 27 + 20 * 36), 0), "KarrasUnet": (0, 2 * 2 * 72 * 4 * 36),
    "SPAN": (2 * 2 * 72 * 4 * 27, 2 * 3 * 9 * 4 * 54),
    "BigVGAN": (2 * 2 * 17 * 4 * (9 + 12), 2 * 2 * 3 * (15 + 17) * 6),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", FLOPS)
def test_the_share_is_true_without_functional_too(name):
    model, x, modules, _ = made(name)
    ours, theirs = FLOPS[name]
    report = convert(model, functional=False, example_inputs=(x,))
    assert len(report.swapped) == modules
    assert (report.measured.nkiconv, report.measured.torch) == (ours, theirs)
    assert convert(model).share(x).nkiconv == ours + theirs


@pytest.mark.slow
def test_what_is_planned_is_what_runs():
    model, x, _, calls = made("SPAN")
    found = plan_model(model, [x], lnc=1, use_cache=False)
    assert sum(row.calls for row in found.rows) == calls
    assert found.flops.fraction == 1
