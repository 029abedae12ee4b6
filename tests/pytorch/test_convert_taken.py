"""All that models convolve is nkiconv's, whatever else they do: published patterns, forwards of their own, graphs."""

import copy
import pickle

import pytest
import torch
from operators_seen import Seen, assert_nkiconvs
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch_models import MODELS, build

from nkiconv.pytorch import convert
from nkiconv.pytorch.models.conversion import CALLED
from nkiconv.pytorch.models.graphs import TAKEN


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


class Causal(nn.Conv3d):
    """Pads in front, or takes the frames before, as the video VAEs of diffusers do."""

    def forward(self, x, cache=None):
        front = 2
        if cache is not None:
            x = torch.cat([cache, x], 2)
            front -= cache.shape[2]
        return super().forward(F.pad(x, (1, 1, 1, 1, front, 0)))


class Standardized(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        return F.conv2d(x, (w - w.mean((1, 2, 3), keepdim=True)) / w.std(), self.bias)


class SameSize(nn.Conv1d):
    """Padding in the method that torch's forward calls; the same padding again beside it would be another result."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(F.pad(x, (2, 0)), weight, bias)


class Both(nn.Conv1d):
    def forward(self, x):
        return super().forward(2 * x)

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - 1, bias)


class Half(nn.Conv2d):
    """One of its convolutions is in complex numbers, which stay in torch."""

    def forward(self, x):
        return super().forward(x) + F.conv2d(x.to(torch.complex64), self.weight.to(torch.complex64)).real


class ChannelsLast(nn.Conv2d):
    """Takes images with their channels behind, as timm's and ConvNeXt's layers do."""

    def forward(self, x):
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


class Tokens(nn.Conv1d):
    def forward(self, x, size=None):
        rows = x.transpose(1, 2) if size is None else x.reshape(-1, size, self.in_channels).transpose(1, 2)
        return super().forward(rows)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.up = nn.Conv2d(3, 4, 3, padding="same"), nn.ConvTranspose2d(4, 5, 2, stride=2)
        self.rows, self.filters = nn.Conv1d(5, 4, 3, dilation=2), nn.Parameter(torch.randn(2, 3, 2, 2))

    def forward(self, x):
        rows = self.rows(self.up(self.same(x)).flatten(2))
        return rows.sum((1, 2)) + F.conv2d(x, self.filters / self.filters.norm(), stride=(2, 1)).mean((1, 2, 3))


IMAGE, ROW, VIDEO = (2, 3, 9, 8), (2, 3, 11), (2, 3, 4, 5, 6)
X = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(3))


def exported(model, strict=False, decomposed=False):
    program = torch.export.export(model, (X,), strict=strict)
    return (program.run_decompositions() if decomposed else program).module()


GRAPHS = {
    "export": exported,
    "strict": lambda model: exported(model, strict=True),
    "decomposed": lambda model: exported(model, decomposed=True),
    "fx": fx.symbolic_trace,
    "inside": lambda model: nn.Sequential(nn.Identity(), exported(model)),
}
#: What makes a model, the shape of its input, its convolutions in a run, whether all are nkiconv's.
TAKEN_WHOLE = {
    **{name: (lambda name=name: build(name)[0], MODELS[name][1], len(MODELS[name][2]), True) for name in MODELS},
    "RepViT": (lambda: nn.Sequential(ConvNorm(3, 4, 3, 1), nn.GELU(), ConvNorm(4, 4, 3, 1, 4)), IMAGE, 2, True),
    "a loop": (Looped, IMAGE, 2, True),
    "KarrasUnet": (lambda: nn.Sequential(Karras(), nn.SiLU()), IMAGE, 1, True),
    "SPAN": (Span, IMAGE, 2, True),
    "BigVGAN": (BigVgan, ROW, 4, True),
    "causal": (lambda: Causal(3, 4, 3), VIDEO, 1, True),
    "reflect": (lambda: Causal(3, 4, 3, padding=1, padding_mode="reflect"), VIDEO, 1, True),
    "weight_norm": (lambda: parametrizations.weight_norm(Causal(3, 4, 3)), VIDEO, 1, True),
    "weight_norm of torch's": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3))), IMAGE, 1, True),
    "pruned": (lambda: nn.Sequential(prune.l1_unstructured(nn.Conv2d(3, 4, 3), "weight", 0.5)), IMAGE, 1, True),
    "standardized": (lambda: Standardized(3, 4, 3), IMAGE, 1, True),
    "conv_forward": (lambda: SameSize(3, 4, 3), ROW, 1, True),
    "both": (lambda: Both(3, 4, 3), ROW, 1, True),
    "channels last": (lambda: ChannelsLast(3, 4, 3), (2, 6, 6, 3), 1, True),
    "tokens": (lambda: Tokens(3, 4, 3), (2, 6, 3), 1, True),
    "half": (lambda: Half(3, 4, 3), IMAGE, None, False),
    **{name: (lambda make=make: make(Model().eval()), X.shape, 4, True) for name, make in GRAPHS.items()},
}
#: Those with a forward of their own.
FORWARDS = ("causal", "reflect", "weight_norm", "standardized", "conv_forward", "both", "channels last", "tokens")


def made(name):
    torch.manual_seed(0)
    make, shape, calls, whole = TAKEN_WHOLE[name]
    model = make() if name in GRAPHS else make().eval()
    return model, torch.randn(shape), calls, whole


def slopes(model, x):
    leaf = x.clone().requires_grad_()
    y = model(leaf)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    leaves = [leaf, *(one for one in model.parameters() if one.requires_grad)]
    return [one for one in torch.autograd.grad(y, leaves, g, allow_unused=True) if one is not None]


@pytest.mark.filterwarnings(
    "ignore:nkiconv.pytorch.intercept. conv2d stays with torch. dtype", "ignore:.*weight_norm. is deprecated"
)
@pytest.mark.parametrize("name", TAKEN_WHOLE)
def test_what_is_taken(name, monkeypatch):
    """Of copies too; gradients are of nkiconv's operators, and where kernels compute theirs come back."""
    model, x, calls, whole = made(name)
    kinds, expected = [type(one) for one in model.modules()], model(x)
    report = convert(model, example_inputs=(x,))
    assert (report.measured.fraction == 1) == whole
    assert not report.kept
    if name in FORWARDS:
        assert [(one.swapped, one.function) for one in report.entries] == [(False, CALLED)]
    if name in ("export", "strict", "decomposed", "inside"):
        assert [one.function for one in report.entries] == [TAKEN] * 4
    copies = [report.model] if name == "BigVGAN" else [report.model, copy.deepcopy(report.model)]
    for one in copies:
        with Seen() as seen, torch.no_grad():
            y = one(x)
        assert seen.only_nkiconvs == whole
        assert not whole or len(seen.convolutions) == calls
        assert torch.equal(y, expected)
    assert [type(one) for one in model.modules()] == kinds
    if whole:
        monkeypatch.setenv("NKICONV_CPU", "simulate")
        with torch.no_grad():
            assert_within_share([report.model(x)], [expected], FLOAT32_SUMS)
        monkeypatch.setenv("NKICONV_CPU", "torch")
        with Seen() as seen:
            found = slopes(report.model.double(), x.double())
        assert seen.only_nkiconvs
        if name not in GRAPHS:  # whose constants keep their dtype
            assert_within_share(found, slopes(model.double(), x.double()), FLOAT64_SUMS)


@pytest.mark.parametrize("name", ["causal", "standardized", "conv_forward", "fx"])
def test_files(name):
    model, x, *_ = made(name)
    loaded = pickle.loads(pickle.dumps(convert(model).model))
    assert_nkiconvs(lambda: loaded(x), model(x))


def test_graphs_of_modules_in_place():
    graph = torch.export.unflatten(torch.export.export(Model().eval(), (X,)))
    expected, report = graph(X), convert(graph, example_inputs=(X,), inplace=True)
    assert report.measured.fraction == 1
    assert_nkiconvs(lambda: report.model(X), expected)


def test_other_arguments_go_through():
    model, x, *_ = made("causal")
    converted, cache = convert(model).model, torch.randn(2, 3, 2, 5, 6)
    assert_nkiconvs(lambda: converted(x, cache), model(x, cache), ["nkiconv::conv3d"])
    tokens, rows = Tokens(3, 4, 3), torch.randn(12, 3)
    assert_nkiconvs(lambda: convert(tokens).model(rows, size=6), tokens(rows, size=6))


def test_methods_of_an_instance():
    """They may be bound to another module: what they convolve is nkiconv's where the model's forward runs them."""
    x = torch.randn(VIDEO)
    model = nn.Sequential(nn.Identity(), Causal(3, 4, 3))
    plain, torchs = nn.Conv3d(3, 4, 3), model[1].forward
    model[1].forward = lambda x: torchs(x) + plain(x).mean()
    expected = model(x)
    [entry] = convert(model, functional=False).entries
    assert entry.reason == "has its own forward"
    report = convert(model)
    assert_nkiconvs(lambda: report.model(x), expected, ["nkiconv::conv3d"] * 2)
    assert report.entries[0].function == "torch's, intercepted (has its own forward)"


@pytest.mark.parametrize("name", ["export", "decomposed", "fx"])
def test_strict_nonfinite_reaches_graphs(name):
    """Of a model converted before it is traced, and of a graph."""
    model = Model().eval()
    converted = fx.symbolic_trace(convert(model, strict_nonfinite=True).model)
    if name != "fx":
        converted = convert(GRAPHS[name](model), strict_nonfinite=True).model
    calls = [node for node in converted.graph.nodes if "conv" in str(node.target) and node.op == "call_function"]
    assert len(calls) == 4
    assert all(node.kwargs["strict_nonfinite"] for node in calls)
    assert torch.equal(converted(X), model(X))
