"""Causal convolutions of videos: those whose code is published go without copies; any other forward runs as it is."""

import inspect
import linecache

import pytest
import torch
from operators_seen import Seen
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from nkiconv import pytorch
from nkiconv.pytorch import convert
from nkiconv.pytorch.models import videos
from nkiconv.pytorch.models.conversion import CALLED


def wan_above(base):
    """As diffusers' Wan and Qwen-Image VAEs, zeros around and a cache in front, above any class."""

    class Wan(base):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            self._padding = (self.padding[2],) * 2 + (self.padding[1],) * 2 + (2 * self.padding[0], 0)
            self.padding = (0, 0, 0)

        def forward(self, x, cache_x=None):
            sides = self._padding
            if cache_x is not None and sides[4] > 0:
                kept = cache_x.to(x.device)
                sides = (*sides[:4], sides[4] - kept.shape[2], *sides[5:])
                x = torch.cat((kept, x), dim=2)
            return super().forward(F.pad(x, sides))

    Wan.__qualname__ = "Wan"
    return Wan


Wan = wan_above(nn.Conv3d)


class Cosmos(nn.Conv3d):
    """As diffusers' Cosmos VAE: the first plane again in front."""

    def __init__(self, inputs, outputs, size, padding=1, pad_mode="constant", **named):
        super().__init__(inputs, outputs, size, **named)
        self.pad_mode, self.spatial_pad = pad_mode, (padding,) * 4
        self.temporal_pad = self.dilation[0] * (self.kernel_size[0] - 1) + (1 - self.stride[0])

    def forward(self, hidden_states):
        first = hidden_states[:, :, :1].repeat(1, 1, self.temporal_pad, 1, 1)
        sides = (*self.spatial_pad, 0, 0)
        return super().forward(F.pad(torch.cat((first, hidden_states), 2), sides, mode=self.pad_mode, value=0.0))


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setitem(videos._KNOWN, videos.fingerprint(Wan.forward), videos._around_wan)
    monkeypatch.setitem(videos._KNOWN, videos.fingerprint(Cosmos.forward), videos._around_cosmos)


class Derived(Wan):
    """Another class around the same forward."""


#: What makes a module, for which neither zeros nor planes are copied.
KNOWN = {
    "wan": lambda: Wan(3, 4, 3, padding=1),
    "derived": lambda: Derived(3, 4, 3, padding=1),
    "dilation": lambda: Wan(3, 4, 3, dilation=(1, 2, 1), padding=1),
    "cosmos": lambda: Cosmos(3, 4, 3),
    "weight_norm": lambda: parametrizations.weight_norm(Wan(3, 4, 3, padding=1)),
    "bf16": lambda: Wan(3, 4, 3, padding=1, dtype=torch.bfloat16),
}


def made(name):
    torch.manual_seed(0)
    model = nn.Sequential(KNOWN[name]()).eval()
    return model, torch.randn(2, 3, 4, 6, 5, dtype=next(model.parameters()).dtype)


def cache_of(x, planes):
    return torch.randn(*x.shape[:2], planes, *x.shape[3:], generator=torch.Generator().manual_seed(2)).to(x.dtype)


def caches(model, x):
    if isinstance(model[0], Cosmos):
        return [()]
    return [(), *((cache_of(x, planes),) for planes in (1, 2, 3))]


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", KNOWN)
def test_published_code_runs_without_copies(name, monkeypatch):
    model, x = made(name)
    report = convert(model)
    [entry] = report.swapped
    module = report.model[0]
    assert isinstance(module, pytorch.nn.Conv3d)
    assert (entry.operator, entry.function) == ("conv3d", "")
    for given in caches(model, x):
        expected = model[0](x, *given)
        assert torch.equal(module(x, *given), expected)
        with Seen() as seen, torch.no_grad():
            module(x, *given)
        assert seen.only_nkiconvs
        assert not {"aten::constant_pad_nd", "aten::cat"} & set(seen.names)
        monkeypatch.setenv("NKICONV_CPU", "compare")
        assert torch.equal(module(x, *given), expected)
        monkeypatch.setenv("NKICONV_CPU", "torch")


def set_attribute(name, value):
    return lambda module: setattr(module, name, value)


#: What happens to a module after it was converted.
LATER = {
    "more around": (Wan, set_attribute("_padding", (2, 1, 0, 3, 1, 0))),
    "behind": (Wan, set_attribute("_padding", (1, 1, 1, 1, 0, 2))),
    "two axes": (Wan, set_attribute("_padding", (1, 1, 1, 1))),
    "cropped": (Wan, set_attribute("_padding", (-1, 1, 1, 1, 2, 0))),
    "padding": (Wan, set_attribute("padding", (1, 0, 2))),
    "same": (Wan, set_attribute("padding", "same")),
    "reflect": (Wan,
     lambda module: vars(module).update(padding_mode="circular", _reversed_padding_repeated_twice=[1] * 6)),
    "stride": (Wan, set_attribute("stride", (2, 1, 1))),
    "planes": (Cosmos, set_attribute("temporal_pad", 1)),
    "no planes": (Cosmos, set_attribute("temporal_pad", 0)),
    "mode": (Cosmos, set_attribute("pad_mode", "reflect")),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_their_state_is_read_in_each_call(name):
    kind, change = LATER[name]
    torch.manual_seed(0)
    model = kind(3, 4, 3, padding=1)
    converted = convert(model).model
    for one in (model, converted):
        change(one)
    for frames in (3, 9):
        x = torch.randn(2, 3, frames, 7, 6)
        for given in caches([model], x):
            try:
                expected = model(x, *given)
            except IndexError:
                with pytest.raises(IndexError):
                    converted(x, *given)
                continue
            with torch.no_grad(), Seen() as seen:
                y = converted(x, *given)
            assert torch.equal(y, expected)
            assert seen.only_nkiconvs


@pytest.mark.parametrize("given", [
    lambda x: (x[0],), lambda x: (x, cache_of(x, 2)[:, :, :0]), lambda x: (x, cache_of(x, 2).double()),
    lambda x: (x[:, :, :0], cache_of(x, 3)),
], ids=["one video", "empty cache", "fp64 cache", "cache alone"])  # fmt: skip
def test_other_tensors(given):
    model, x = made("wan")
    converted, x = convert(model).model, x[..., :3].clone()
    try:
        expected = model[0](*given(x))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            converted[0](*given(x))
    else:
        assert torch.equal(converted[0](*given(x)), expected)


class Flagged(nn.Conv3d):
    causal = True

    def forward(self, x):
        front = (2, 0) if self.causal else (1, 1)
        return super().forward(F.pad(x, (1, 1, 1, 1, *front)))


class Keeping(nn.Conv3d):
    """Keeps what it saw, as EasyAnimate's VAE does."""

    seen = 0

    def forward(self, x):
        self.seen += x.shape[2]
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


def nearly_wan():
    """The known code but for a number, as another file has it."""
    imports, namespace = "import torch\nfrom torch.nn import functional as F\n", {"__name__": "nearly"}
    source = imports + inspect.getsource(wan_above).replace("sides[4] > 0", "sides[4] > 1")
    linecache.cache["nearly"] = len(source), None, source.splitlines(keepends=True), "nearly"
    exec(compile(source, "nearly", "exec"), namespace)
    kind = namespace["wan_above"](nn.Conv3d)
    assert videos.fingerprint(kind.forward) not in (None, videos.fingerprint(Wan.forward))
    return kind(3, 4, 3, padding=1)


def twice(x, *args, **named):
    return F.pad(2 * x, *args, **named)


class Scaled(nn.Conv3d):
    def forward(self, x):
        return super().forward(twice(x, (1, 1, 1, 1, 2, 0)))


OTHERS = {
    "flag": (lambda: Flagged(3, 4, 3), set_attribute("causal", False)),
    "keeping": (lambda: Keeping(3, 4, 3), None),
    "nearly": (nearly_wan, None),
    "above another": (lambda: wan_above(Scaled)(3, 4, 3, padding=1), None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_forward_runs_as_it_is(name):
    make, change = OTHERS[name]
    torch.manual_seed(0)
    model = nn.Sequential(make()).eval()
    report = convert(model)
    [entry] = report.entries
    assert (entry.function, entry.swapped, entry.reason) == (CALLED, False, "")
    for _ in range(2):
        for frames in (4, 9):
            x = torch.randn(2, 3, frames, 6, 5)
            with torch.no_grad(), Seen() as seen:
                y = report.model(x)
            assert torch.equal(y, model(x))
            assert seen.only_nkiconvs
            assert getattr(report.model[0], "seen", 0) == getattr(model[0], "seen", 0)
        if change is not None:
            change(model[0])
            change(report.model[0])


def test_arguments_keep_their_names_and_errors():
    model, x = made("wan")
    module = convert(model).model[0]
    assert torch.equal(module(x=x, cache_x=cache_of(x, 1)), model[0](x, cache_of(x, 1)))
    for arguments in ({"noise": x}, {"residual": x}, {}):
        with pytest.raises(TypeError, match=r"forward\(\) (got an unexpected|missing 1 required)"):
            module(**arguments)
    cosmos, x = made("cosmos")
    assert torch.equal(convert(cosmos).model[0](hidden_states=x), cosmos(x))


def test_a_frozen_filter(monkeypatch):
    """convert leaves those plain whose own forward may read the weight; `pack_filter` of the module freezes them."""
    model, x, cache = (
        nn.Sequential(Wan(64, 64, 3, padding=1)).eval(), torch.randn(1, 64, 2, 4, 4), torch.randn(1, 64, 2, 4, 4),
    )  # fmt: skip
    report = convert(model, pack_filters="frozen", example_inputs=(x,))
    assert report.entries[0].packing == "filter stays plain: a forward of its own may read it"
    module = report.model[0]
    with torch.no_grad():
        expected = model[0](x, cache)
        module.pack_filter()
        torch.testing.assert_close(module(x, cache), expected)
        monkeypatch.setenv("NKICONV_CPU", "compare")
        torch.testing.assert_close(module(x, cache), expected)
