"""Convolutions with a forward of their own are converted where all that they convolve is nkiconv's then."""

import copy
import pickle

import pytest
import torch
from operators_seen import Seen, graph_of
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from nkiconv import pytorch
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
    """Convolves in parts, whose results it joins."""

    def forward(self, x):
        parts = x.chunk(2, dim=4)
        return torch.cat([super(Chunked, self).forward(part) for part in parts], 4)


class Standardized(nn.Conv2d):
    """Its filters are not those that it has."""

    def forward(self, x):
        w = self.weight
        return F.conv2d(x, (w - w.mean((1, 2, 3), keepdim=True)) / w.std(), self.bias)


class SameSize(nn.Conv1d):
    """Padding in the method that torch's forward calls; the same padding again beside it would be another result."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(F.pad(x, (2, 0)), weight, bias)


class Both(nn.Conv1d):
    """Reaches torch's forward, and in it a method of its own."""

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
    """Convolves by nothing that torch calls so."""

    def forward(self, x):
        return torch.einsum("nchw,kc->nkhw", x, self.weight[..., 0, 0])


class Selecting(nn.Conv2d):
    """Its way depends on numbers."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


OURS = pytorch.nn.Conv1d, pytorch.nn.Conv2d, pytorch.nn.Conv3d
#: What makes a module, the shape of an image, and how it is converted: "beneath" its forward, "called" by it, or not.
MODULES = {
    "causal": (lambda: Causal(3, 4, 3), (2, 3, 4, 5, 6), "beneath"),
    "chunked": (lambda: Chunked(3, 4, 1), (2, 3, 4, 5, 6), "beneath"),
    "reflect": (lambda: Causal(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 4, 5, 6), "beneath"),
    "weight_norm": (lambda: parametrizations.weight_norm(Causal(3, 4, 3)), (2, 3, 4, 5, 6), "beneath"),
    "standardized": (lambda: Standardized(3, 4, 3), (2, 3, 6, 6), "called"),
    "standardized, weight_norm": (lambda: parametrizations.weight_norm(Standardized(3, 4, 3)), (2, 3, 6, 6), "called"),
    "conv_forward": (lambda: SameSize(3, 4, 3), (2, 3, 6), "called"),
    "both": (lambda: Both(3, 4, 3), (2, 3, 6), "called"),
    "attribute": (lambda: Noted(3, 4, 3), (2, 3, 6, 6), "called"),
    "half": (lambda: Half(3, 4, 3), (2, 3, 6, 6), ""),
    "multiplied": (lambda: Multiplied(3, 4, 1), (2, 3, 6, 6), ""),
    "selecting": (lambda: Selecting(3, 4, 3), (2, 3, 6, 6), ""),
}


def made(name):
    torch.manual_seed(0)
    make, shape, how = MODULES[name]
    return nn.Sequential(nn.Identity(), make()).eval(), torch.randn(shape), how


@pytest.mark.parametrize("name", MODULES)
def test_what_they_compute_decides(name):
    model, x, how = made(name)
    before, state = type(model[1]), {key: one.clone() for key, one in model.state_dict().items()}
    expected = model(x)
    report = convert(model)
    [entry] = report.entries
    assert (bool(entry.reason), entry.swapped) == (not how, how == "beneath")
    assert entry.function == (CALLED if how == "called" else "")
    assert isinstance(report.model[1], OURS) == (how == "beneath")
    with Seen() as seen, torch.no_grad():
        y = report.model(x)
    assert seen.only_nkiconvs == bool(how)
    assert torch.equal(y, expected)
    assert type(model[1]) is before
    assert all(torch.equal(one, state[key]) for key, one in report.model.state_dict().items())


@pytest.mark.parametrize("name", [name for name, row in MODULES.items() if row[2]])
def test_the_kernels_compute_it(name, monkeypatch):
    """Their numbers come back, not torch's; what agrees with torch to every bit may be torch."""
    model, x, _ = made(name)
    expected = model(x)
    converted = convert(model).model
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with Seen() as seen:
        y = converted(x)
    assert seen.only_nkiconvs
    assert_within_share([y], [expected], FLOAT32_SUMS)


@pytest.mark.parametrize("name", [name for name, row in MODULES.items() if row[2]])
def test_gradients(name):
    """Of nkiconv's operators: torch's own functions run where nobody looks on, and would agree with themselves."""
    model, x, _ = made(name)
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


def test_a_second_argument_goes_through():
    model, x, _ = made("causal")
    converted, cache = convert(model).model, torch.randn(2, 3, 2, 5, 6)
    expected = model[1](x, cache)
    with Seen() as seen:
        y = converted[1](x, cache)
    assert seen.convolutions == ["nkiconv::conv3d"]
    assert torch.equal(y, expected)


@pytest.mark.parametrize("name", ["causal", "standardized", "conv_forward"])
def test_copies_and_files(name):
    model, x, _ = made(name)
    converted = convert(model).model
    for one in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert type(one[1]).__name__ == type(model[1]).__name__
        assert isinstance(one[1], type(model[1]))
        with Seen() as seen:
            y = one(x)
        assert seen.only_nkiconvs
        assert torch.equal(y, model(x))


@pytest.mark.parametrize("name", ["weight_norm", "standardized, weight_norm"])
def test_parametrizations_can_be_removed(name):
    model, x, _ = made(name)
    converted = convert(model).model
    expected = model(x)
    parametrize.remove_parametrizations(converted[1], "weight")
    with Seen() as seen:
        y = converted(x)
    assert seen.only_nkiconvs
    assert torch.equal(y, expected)


def test_their_filters_are_packed():
    [entry] = convert(nn.Sequential(Causal(128, 256, 3)).eval()).entries
    assert (entry.operator, entry.packed) == ("conv3d", True)


def test_no_norm_is_folded_behind_a_forward_of_its_own():
    """An activation of the convolution's own would come in between."""
    model = nn.Sequential(Causal(3, 4, 3), nn.BatchNorm3d(4)).eval()
    [fold] = convert(model, fold_batchnorm=True).folds
    assert fold.reason == "its convolution stays in torch, or has its own forward"


def test_what_functional_adds():
    report = convert(nn.Sequential(Half(3, 4, 3), Causal(3, 4, 3)), functional=True)
    assert ["intercepted" in entry.function for entry in report.entries] == [True, False]
    assert [entry.swapped for entry in report.entries] == [False, True]


def test_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(Causal(3, 4, 3))
    [entry] = convert(model).entries
    assert entry.swapped


def test_it_compiles():
    model, x, _ = made("causal")
    y, names = graph_of(convert(model).model, x)
    assert [name for name in names if "conv" in name] == ["nkiconv.conv3d.default"]
    assert torch.equal(y, model(x))
