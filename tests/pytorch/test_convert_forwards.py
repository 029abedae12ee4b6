"""Convolutions with a forward of their own keep it: what it convolves is nkiconv's, whatever else it does."""

import copy
import pickle

import pytest
import torch
from operators_seen import Seen, assert_nkiconvs, graph_of
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from nkiconv.pytorch import convert
from nkiconv.pytorch.models.conversion import CALLED


class Causal(nn.Conv3d):
    """Pads in front, or takes the frames before, as the video VAEs of diffusers do."""

    def forward(self, x, cache=None):
        front = 2
        if cache is not None:
            x = torch.cat([cache, x], 2)
            front -= cache.shape[2]
        return super().forward(F.pad(x, (1, 1, 1, 1, front, 0)))


class Chunked(nn.Conv3d):
    def forward(self, x):
        parts = x.chunk(2, dim=4)
        return torch.cat([super(Chunked, self).forward(part) for part in parts], 4)


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


class Noted(nn.Conv2d):
    """Has an attribute that nkiconv's modules use."""

    activation = "lrelu"

    def forward(self, x):
        return super().forward(x).relu()


class Half(nn.Conv2d):
    """One of its convolutions is in complex numbers, which stay in torch."""

    def forward(self, x):
        return super().forward(x) + F.conv2d(x.to(torch.complex64), self.weight.to(torch.complex64)).real


class Multiplied(nn.Conv2d):
    def forward(self, x):
        return torch.einsum("nchw,kc->nkhw", x, self.weight[..., 0, 0])


class Selecting(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) if x.sum() > -1e9 else x


class ChannelsLast(nn.Conv2d):
    """Takes images with their channels behind, as timm's and ConvNeXt's layers do."""

    def forward(self, x):
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


class Tokens(nn.Conv1d):
    def forward(self, x, size=None):
        rows = x.transpose(1, 2) if size is None else x.reshape(-1, size, self.in_channels).transpose(1, 2)
        return super().forward(rows)


class Listed(nn.Conv2d):
    def forward(self, images):
        return {"maps": [super(Listed, self).forward(one) for one in images]}


#: What makes a module, its input, and whether all that it convolves is nkiconv's.
MODULES = {
    "causal": (lambda: Causal(3, 4, 3), (2, 3, 4, 5, 6), True),
    "chunked": (lambda: Chunked(3, 4, 1), (2, 3, 4, 5, 6), True),
    "reflect": (lambda: Causal(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 4, 5, 6), True),
    "weight_norm": (lambda: parametrizations.weight_norm(Causal(3, 4, 3)), (2, 3, 4, 5, 6), True),
    "standardized": (lambda: Standardized(3, 4, 3), (2, 3, 6, 6), True),
    "standardized, weight_norm": (lambda: parametrizations.weight_norm(Standardized(3, 4, 3)), (2, 3, 6, 6), True),
    "conv_forward": (lambda: SameSize(3, 4, 3), (2, 3, 6), True),
    "both": (lambda: Both(3, 4, 3), (2, 3, 6), True),
    "attribute": (lambda: Noted(3, 4, 3), (2, 3, 6, 6), True),
    "selecting": (lambda: Selecting(3, 4, 3), (2, 3, 6, 6), True),
    "channels last": (lambda: ChannelsLast(3, 4, 3), (2, 6, 6, 3), True),
    "tokens": (lambda: Tokens(3, 4, 3), (2, 6, 3), True),
    "half": (lambda: Half(3, 4, 3), (2, 3, 6, 6), False),
    "multiplied": (lambda: Multiplied(3, 4, 1), (2, 3, 6, 6), False),
}
ALL = [name for name, row in MODULES.items() if row[2]]


def made(name):
    torch.manual_seed(0)
    make, shape, _ = MODULES[name]
    return nn.Sequential(nn.Identity(), make()).eval(), torch.randn(shape)


@pytest.mark.filterwarnings("ignore:nkiconv.pytorch.intercept. conv2d stays with torch. dtype")
@pytest.mark.parametrize("name", MODULES)
def test_their_forward_stays(name):
    model, x = made(name)
    before, state = type(model[1]), {key: one.clone() for key, one in model.state_dict().items()}
    expected = model(x)
    report = convert(model, functional=False)
    [entry] = report.entries
    assert (entry.reason, entry.swapped, entry.function) == ("", False, CALLED)
    with Seen() as seen, torch.no_grad():
        y = report.model(x)
    assert seen.only_nkiconvs == MODULES[name][2]
    assert torch.equal(y, expected)
    assert type(model[1]) is before
    assert isinstance(report.model[1], before.__mro__[1] if "weight_norm" in name else before)
    assert all(torch.equal(one, state[key]) for key, one in report.model.state_dict().items())


@pytest.mark.cover(6)
@pytest.mark.parametrize("name", ALL)
def test_the_kernels_compute_it(name, monkeypatch):
    """Their numbers come back, not torch's; what agrees with torch to every bit may be torch."""
    model, x = made(name)
    expected = model(x)
    converted = convert(model).model
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with Seen() as seen:
        y = converted(x)
    assert seen.only_nkiconvs
    assert_within_share([y], [expected], FLOAT32_SUMS)


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", ALL)
def test_gradients(name):
    """Of nkiconv's operators: torch's own functions run where nobody looks on, and would agree with themselves."""
    model, x = made(name)
    converted, leaf = convert(model.double()).model, x.double().requires_grad_()
    expected = slopes(model, leaf)
    with Seen() as seen:
        found = slopes(converted, leaf)
    assert seen.only_nkiconvs
    assert_within_share(found, expected, FLOAT64_SUMS)


def slopes(model, *leaves):
    y = model(*leaves)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return torch.autograd.grad(y, [*leaves, *model.parameters()], g)


def test_other_arguments_go_through():
    model, x = made("causal")
    converted, cache = convert(model).model, torch.randn(2, 3, 2, 5, 6)
    expected = model[1](x, cache)
    assert_nkiconvs(lambda: converted[1](x, cache), expected, ["nkiconv::conv3d"])
    tokens = Tokens(3, 4, 3)
    rows = torch.randn(12, 3)
    assert_nkiconvs(lambda: convert(tokens).model(rows, size=6), tokens(rows, size=6))
    listed, images = Listed(3, 4, 3), [torch.randn(1, 3, 6, 6), torch.randn(1, 3, 5, 7)]
    with Seen() as seen:
        found = convert(listed).model(images)["maps"]
    assert seen.convolutions == ["nkiconv::conv2d"] * 2
    assert all(map(torch.equal, found, listed(images)["maps"]))


@pytest.mark.parametrize("name", ["causal", "standardized", "conv_forward"])
def test_copies_and_files(name):
    model, x = made(name)
    converted = convert(model).model
    for one in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert type(one[1]).__name__ == type(model[1]).__name__
        assert isinstance(one[1], type(model[1]))
        assert_nkiconvs(lambda one=one: one(x), model(x))


def test_no_norm_is_folded_behind_a_forward_of_its_own():
    """An activation of the convolution's own would come in between."""
    model = nn.Sequential(Causal(3, 4, 3), nn.BatchNorm3d(4)).eval()
    [fold] = convert(model, fold_batchnorm=True).folds
    assert fold.reason == "its convolution stays in torch, or has its own forward"


def test_methods_of_an_instance():
    """They may be bound to another module: what they convolve is nkiconv's where the model's forward runs them."""
    model, x = made("causal")
    plain, torchs = nn.Conv3d(3, 4, 3), model[1].forward
    model[1].forward = lambda x: torchs(x) + plain(x).mean()
    expected = model(x)
    [entry] = convert(model, functional=False).entries
    assert entry.reason == "has its own forward"
    report = convert(model)
    assert_nkiconvs(lambda: report.model(x), expected, ["nkiconv::conv3d"] * 2)
    assert report.entries[0].function == "torch's, intercepted (has its own forward)"


@pytest.mark.slow
def test_it_compiles():
    model, x = made("causal")
    y, names = graph_of(convert(model).model, x)
    assert [name for name in names if "conv" in name] == ["nkiconv.conv3d.default"]
    assert torch.equal(y, model(x))
