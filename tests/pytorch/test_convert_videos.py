"""Convolutions of videos that pad in their own forward are CausalConv3d where that is the same, found on numbers."""

import copy
import pickle

import pytest
import torch
from operators_seen import Seen, graph_of
from tolerances import FLOAT64_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from nkiconv import pytorch
from nkiconv.pytorch import convert


class Zeros(nn.Conv3d):
    """As diffusers' Wan VAE has it."""

    def forward(self, x, cache_x=None):
        front = 2
        if cache_x is not None:
            x = torch.cat([cache_x, x], 2)
            front -= cache_x.shape[2]
        return super().forward(F.pad(x, (1, 1, 1, 1, front, 0)))


class First(nn.Conv3d):
    """As its Cosmos VAE: copies of the first frame in front."""

    def forward(self, hidden_states):
        x = torch.cat([hidden_states[:, :, :1].repeat(1, 1, 2, 1, 1), hidden_states], 2)
        return super().forward(F.pad(x, (1, 1, 1, 1, 0, 0)))


class Behind(nn.Conv3d):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1, 0, 2)))


class OneSide(nn.Conv3d):
    def forward(self, x):
        return super().forward(F.pad(x, (2, 0, 1, 1, 2, 0)))


class BySize(nn.Conv3d):
    """As much as makes the frames even."""

    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1, 2 + x.shape[2] % 2, 0)))


class Scaled(nn.Conv3d):
    def forward(self, x):
        return super().forward(F.pad(2 * x, (1, 1, 1, 1, 2, 0)))


class Active(nn.Conv3d):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0))).relu()


class Otherwise(nn.Conv3d):
    """Its cache is added, not in front."""

    def forward(self, x, cache_x=None):
        x = x if cache_x is None else x + cache_x.mean(2, keepdim=True)
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


class Named(nn.Conv3d):
    """Nobody knows its second argument."""

    def forward(self, x, noise=None):
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


AROUND = (2, 0), (1, 1), (1, 1)
#: What makes a module, and its form: what is around, and what in front.
CAUSAL = {
    "zeros": (lambda: Zeros(3, 4, 3), (AROUND, "zeros")),
    "first": (lambda: First(3, 4, 3), (AROUND, "replicate")),
    "stride": (lambda: Zeros(3, 4, 3, stride=(1, 2, 2)), (AROUND, "zeros")),
    "padding": (lambda: Zeros(3, 4, 3, padding=(0, 1, 0)), (((2, 0), (2, 2), (1, 1)), "zeros")),
    "weight_norm": (lambda: parametrizations.weight_norm(Zeros(3, 4, 3)), (AROUND, "zeros")),
    "bf16": (lambda: Zeros(3, 4, 3, dtype=torch.bfloat16), (AROUND, "zeros")),
}
OTHERS = (Behind, OneSide, BySize, Scaled, Active, Otherwise, Named)


def made(name):
    torch.manual_seed(0)
    model = nn.Sequential(CAUSAL[name][0]()).eval()
    return model, torch.randn(2, 3, 4, 6, 5, dtype=next(model.parameters()).dtype)


def cache_of(x, planes):
    """Planes that are not x's own."""
    return torch.randn(*x.shape[:2], planes, *x.shape[3:], generator=torch.Generator().manual_seed(2)).to(x.dtype)


def caches(model, x):
    """What may come second: nothing, or some planes."""
    return [()] if isinstance(model[0], First) else [(), *((cache_of(x, planes),) for planes in (1, 2, 3))]


@pytest.mark.parametrize("name", CAUSAL)
def test_they_are_causal_modules(name, monkeypatch):
    model, x = made(name)
    report = convert(model)
    [entry] = report.swapped
    module = report.model[0]
    assert isinstance(module, pytorch.nn.CausalConv3d)
    assert isinstance(module, type(model[0]) if name != "weight_norm" else Zeros)
    assert (module.sides, module.time_padding) == CAUSAL[name][1]
    assert entry.operator == "conv3d"
    for given in caches(model, x):
        expected = model[0](x, *given)
        assert torch.equal(module(x, *given), expected)
        with Seen() as seen, torch.no_grad():
            module(x, *given)
        assert seen.only_nkiconvs
        assert "aten::constant_pad_nd" not in seen.names
        monkeypatch.setenv("NKICONV_CPU", "compare")
        assert torch.equal(module(x, *given), expected)
        monkeypatch.setenv("NKICONV_CPU", "torch")


@pytest.mark.parametrize("kind", OTHERS)
def test_others_keep_their_forward(kind):
    torch.manual_seed(0)
    model, x = nn.Sequential(kind(3, 4, 3)).eval(), torch.randn(2, 3, 4, 6, 5)
    report = convert(model)
    assert len(report.swapped) == 1
    assert not isinstance(report.model[0], pytorch.nn.CausalConv3d)
    assert torch.equal(report.model(x), model(x))


def test_gradients():
    """Of nkiconv's operators: torch's own functions run where nobody looks on, and would agree with themselves."""
    model, x = made("zeros")
    model, x = model[0].double(), x.double()
    leaves = [x.requires_grad_(), cache_of(x, 2).requires_grad_()]
    found = []
    for one in (convert(model).model, model):
        with Seen() as seen:
            y = one(*leaves)
            g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
            found.append(torch.autograd.grad(y, [*leaves, *one.parameters()], g))
        assert seen.only_nkiconvs == (one is not model)
    assert_within_share(*found, FLOAT64_SUMS)


def test_arguments_keep_their_names():
    model, x = made("zeros")
    module = convert(model).model[0]
    assert torch.equal(module(x=x, cache_x=cache_of(x, 1)), model[0](x, cache_of(x, 1)))
    for arguments in ({"noise": x}, {"residual": x}):
        with pytest.raises(TypeError, match=r"Zeros.forward: takes x, cache_x, not"):
            module(x, **arguments)
    with pytest.raises(TypeError, match=r"Zeros.forward: takes x, cache_x"):
        module(x, None, x)
    first, x = made("first")
    assert torch.equal(convert(first).model[0](hidden_states=x), first(x))


def test_copies_files_and_the_original():
    model, x = made("zeros")
    converted = convert(model).model
    for one in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert isinstance(one[0], pytorch.nn.CausalConv3d)
        assert isinstance(one[0], Zeros)
        assert torch.equal(one(x), model(x))
    assert type(model[0]) is Zeros
    assert not hasattr(model[0], "sides")


def test_parametrizations_can_be_removed():
    model, x = made("weight_norm")
    converted = convert(model).model
    parametrize.remove_parametrizations(converted[0], "weight")
    assert isinstance(converted[0], pytorch.nn.CausalConv3d)
    assert torch.equal(converted(x), model(x))


def test_attributes_that_it_would_use():
    module = Zeros(3, 4, 3)
    module.sides = "mine"
    converted = convert(module).model
    assert not isinstance(converted, pytorch.nn.CausalConv3d)
    assert converted.sides == "mine"


def test_on_meta_and_compiled():
    with torch.device("meta"):
        assert isinstance(convert(Zeros(3, 4, 3)).model, pytorch.nn.CausalConv3d)
    model, x = made("zeros")
    cache = cache_of(x, 1)
    y, names = graph_of(convert(model).model[0], x, cache)
    assert [name for name in names if "conv" in name] == ["nkiconv.conv3d_with_frames.default"]
    assert torch.equal(y, model[0](x, cache))
