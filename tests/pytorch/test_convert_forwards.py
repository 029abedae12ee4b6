"""Convolutions with a forward of their own are converted where all that they convolve is nkiconv's then."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils._python_dispatch import TorchDispatchMode

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


class Seen(TorchDispatchMode):
    """Names of the convolutions that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "conv" in func.name():
            self.names.append(func.name().partition("::")[0])
        return func(*args, **(kwargs or {}))


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
    assert (set(seen.names) == {"nkiconv"}) == bool(how)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
    assert type(model[1]) is before
    assert all(torch.equal(one, state[key]) for key, one in report.model.state_dict().items())


@pytest.mark.parametrize("name", [name for name, row in MODULES.items() if row[2]])
def test_the_kernels_compute_it(name, monkeypatch):
    model, x, _ = made(name)
    expected = model(x)
    converted = convert(model).model
    monkeypatch.setenv("NKICONV_CPU", "compare")
    torch.testing.assert_close(converted(x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, row in MODULES.items() if row[2]])
def test_gradients(name):
    model, x, _ = made(name)
    converted, found = convert(model).model, []
    for one in (model, converted):
        leaf = x.clone().requires_grad_()
        y = one(leaf)
        g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        found.append(torch.autograd.grad(y, [leaf, *one.parameters()], g))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_second_argument_goes_through():
    model, x, _ = made("causal")
    converted = convert(model).model
    whole = model(x)
    with Seen() as seen:
        later = converted[1](x[:, :, 2:], x[:, :, :2])
    assert seen.names == ["nkiconv"]
    torch.testing.assert_close(later, whole[:, :, 2:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["causal", "standardized", "conv_forward"])
def test_copies_and_files(name):
    model, x, _ = made(name)
    converted = convert(model).model
    for one in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert type(one[1]).__name__ == type(model[1]).__name__
        assert isinstance(one[1], type(model[1]))
        with Seen() as seen:
            torch.testing.assert_close(one(x), model(x), rtol=1e-6, atol=1e-6)
        assert set(seen.names) == {"nkiconv", "aten"}  # the second is the model's


@pytest.mark.parametrize("name", ["weight_norm", "standardized, weight_norm"])
def test_parametrizations_can_be_removed(name):
    model, x, _ = made(name)
    converted = convert(model).model
    expected = model(x)
    parametrize.remove_parametrizations(converted[1], "weight")
    with Seen() as seen:
        torch.testing.assert_close(converted(x), expected, rtol=1e-6, atol=1e-6)
    assert set(seen.names) == {"nkiconv"}


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
    torch._dynamo.reset()
    model, x, _ = made("causal")
    compiled = torch.compile(convert(model).model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-6)
    torch._dynamo.reset()
