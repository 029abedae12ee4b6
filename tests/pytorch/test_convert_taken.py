"""All that models convolve is nkiconv's, whatever else they do: published patterns, forwards of their own, graphs."""

import copy
import functools
import inspect
import linecache
import pickle

import pytest
import torch
from chained import made
from fused_models import Wan, wan_above
from operators_seen import Seen, assert_nkiconvs
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch_models import MODELS, build

from nkiconv.pytorch import convert
from nkiconv.pytorch.models import videos
from nkiconv.pytorch.models.conversion import CALLED
from nkiconv.pytorch.models.graphs import TAKEN


class ConvNorm(nn.Sequential):
    """RepViT's, SHViT's and iFormer's: a Sequential whose `fuse` reads what its forward only calls."""

    def fuse(self):
        return self[0].weight * self[1].weight[:, None, None, None]


def looped(self, x):
    for child in self.children():
        x = child(x).relu()
    return x


def karras(self, x):
    """KarrasUnet's convolution: no module of torch, and filters normalized in each call."""
    w = self.weight / self.weight.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-4)
    return F.conv2d(F.pad(x, (0, 0, 0, 0, 0, 1), value=1.0), w, padding="same")


def span(self, x):
    """SPAN's: filters that are the convolution of others, written to a layer in each call."""
    w = F.conv2d(self.wide.weight.permute(1, 0, 2, 3), self.narrow.weight.flip(2, 3), padding=2)
    self.eval_conv.weight.data = w.flip(2, 3).permute(1, 0, 2, 3).contiguous()
    return self.eval_conv(x)


SPAN = {
    "wide": nn.Conv2d(3, 6, 1, bias=False), "narrow": nn.Conv2d(6, 4, 3, bias=False),
    "eval_conv": nn.Conv2d(3, 4, 3, padding=1, bias=False).requires_grad_(False),
}  # fmt: skip


def big_vgan(self, x):
    """BigVGAN's: filters of no layer for each channel, up and down, around layers with weight norm, old and new."""
    filters = torch.hann_window(6, dtype=x.dtype).expand(x.shape[1], 1, -1)
    up = F.conv_transpose1d(F.pad(x, (2, 2), mode="replicate"), filters, stride=2, groups=x.shape[1])
    down = F.conv1d(F.pad(up.sin(), (2, 3), mode="replicate"), filters, stride=2, groups=x.shape[1])
    return self.new(self.old(down))


def big_vgans():
    old = nn.utils.weight_norm(nn.Conv1d(3, 4, 3, padding=1))
    return made(big_vgan, old=old, new=parametrizations.weight_norm(nn.ConvTranspose1d(4, 3, 4, stride=2)))


class SameSize(nn.Conv1d):
    """Padding in the method that torch's forward calls; the same padding again beside it would be another result."""

    def _conv_forward(self, x, weight, bias):
        return nn.Conv1d._conv_forward(self, F.pad(x, (2, 0)), weight, bias)


def of_kind(base, forward, **methods):
    """What makes a convolution with this forward."""
    return lambda: type("Made", (base,), {"forward": forward, **methods})(3, 4, 3)


#: What others do around torch's own: timm's and ConvNeXt's layers take channels behind.
LAST = of_kind(nn.Conv2d, lambda m, x: nn.Conv2d.forward(m, x.movedim(-1, 1)).movedim(1, -1))
BOTH = of_kind(nn.Conv1d, lambda m, x: nn.Conv1d.forward(m, 2 * x), _conv_forward=SameSize._conv_forward)


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
#: What makes a model, the shape of its input, its convolutions in a run.
TAKEN_WHOLE = {
    **{name: (lambda name=name: build(name)[0], MODELS[name][1], len(MODELS[name][2])) for name in MODELS},
    "RepViT": (lambda: ConvNorm(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), IMAGE, 1),
    "a loop": (lambda: made(looped, first=nn.Conv2d(3, 4, 3), second=nn.Conv2d(4, 4, 1)), IMAGE, 2),
    "KarrasUnet": (lambda: made(karras, weight=nn.Parameter(torch.randn(4, 4, 3, 3))), IMAGE, 1),
    "SPAN": (lambda: made(span, **copy.deepcopy(SPAN)), IMAGE, 2),
    "BigVGAN": (big_vgans, ROW, 4),
    "causal": (lambda: Wan(3, 4, 3, padding=1), VIDEO, 1),
    "reflect": (lambda: Wan(3, 4, 3, padding=1, padding_mode="reflect"), VIDEO, 1),
    "weight_norm": (lambda: parametrizations.weight_norm(Wan(3, 4, 3, padding=1)), VIDEO, 1),
    "pruned": (lambda: nn.Sequential(prune.l1_unstructured(nn.Conv2d(3, 4, 3), "weight", 0.5)), IMAGE, 1),
    "conv_forward": (lambda: SameSize(3, 4, 3), ROW, 1),
    "both": (BOTH, ROW, 1),
    "channels last": (LAST, (2, 6, 6, 3), 1),
    "tokens": (lambda: Tokens(3, 4, 3), (2, 6, 3), 1),
    **{name: (lambda make=make: make(Model().eval()), X.shape, 4) for name, make in GRAPHS.items()},
}
#: Those with a forward of their own.
FORWARDS = ("causal", "reflect", "weight_norm", "conv_forward", "both", "channels last", "tokens")


def built(name):
    torch.manual_seed(0)
    make, shape, calls = TAKEN_WHOLE[name]
    model = make() if name in GRAPHS else make().eval()
    return model, torch.randn(shape), calls


def slopes(model, x):
    leaf = x.clone().requires_grad_()
    y = model(leaf)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    leaves = [leaf, *(one for one in model.parameters() if one.requires_grad)]
    return [one for one in torch.autograd.grad(y, leaves, g, allow_unused=True) if one is not None]


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", TAKEN_WHOLE)
def test_what_is_taken(name, monkeypatch):
    """Of copies too; gradients are of nkiconv's operators, and where kernels compute theirs come back."""
    model, x, calls = built(name)
    kinds, expected = [type(one) for one in model.modules()], model(x)
    report = convert(model, example_inputs=(x,))
    assert report.measured.fraction == 1
    assert not report.kept
    if name in FORWARDS:
        assert [(one.swapped, one.function) for one in report.entries] == [(False, CALLED)]
    if name in ("export", "strict", "decomposed", "inside"):
        assert [one.function for one in report.entries] == [TAKEN] * 4
    copies = [report.model] if name == "BigVGAN" else [report.model, copy.deepcopy(report.model)]
    for one in copies:
        with Seen() as seen, torch.no_grad():
            y = one(x)
        assert seen.only_nkiconvs
        assert len(seen.convolutions) == calls
        assert torch.equal(y, expected)
    assert [type(one) for one in model.modules()] == kinds
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with torch.no_grad():
        assert_within_share([report.model(x)], [expected], FLOAT32_SUMS)
    monkeypatch.setenv("NKICONV_CPU", "torch")
    with Seen() as seen:
        found = slopes(report.model.double(), x.double())
    assert seen.only_nkiconvs
    if name not in GRAPHS:  # whose constants keep their dtype
        assert_within_share(found, slopes(model.double(), x.double()), FLOAT64_SUMS)


def test_a_method_that_calls_supers_compiles():
    """torch.compile cannot trace Tensor.unflatten under a function mode."""
    torch._dynamo.reset()
    model = made(lambda m, x: m.conv(x).unflatten(1, (2, -1)).unflatten(sizes=(2, 2), dim=-2), conv=nn.Conv2d(3, 4, 3))
    compiled = torch.compile(convert(model).model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), model(X))


@pytest.mark.parametrize("name", ["causal", "conv_forward", "fx"])
def test_files(name):
    model, x, *_ = built(name)
    loaded = pickle.loads(pickle.dumps(convert(model).model))
    assert_nkiconvs(lambda: loaded(x), model(x))


def test_graphs_of_modules_in_place():
    graph = torch.export.unflatten(torch.export.export(Model().eval(), (X,)))
    expected, report = graph(X), convert(graph, example_inputs=(X,), inplace=True)
    assert report.measured.fraction == 1
    assert_nkiconvs(lambda: report.model(X), expected)


def test_other_arguments_go_through():
    model, x, *_ = built("causal")
    converted, cache = convert(model).model, torch.randn(2, 3, 2, 5, 6)
    assert_nkiconvs(lambda: converted(x, cache), model(x, cache), ["nkiconv::conv3d"])
    tokens, rows = Tokens(3, 4, 3), torch.randn(12, 3)
    assert_nkiconvs(lambda: convert(tokens).model(rows, size=6), tokens(rows, size=6))


def test_methods_of_an_instance():
    """They may be bound to another module: what they convolve is nkiconv's where the model's forward runs them."""
    x = torch.randn(VIDEO)
    model = nn.Sequential(nn.Identity(), Wan(3, 4, 3, padding=1))
    plain, torchs = nn.Conv3d(3, 4, 3), model[1].forward
    model[1].forward = lambda x: torchs(x) + plain(x).mean()
    expected = model(x)
    [entry] = convert(model, functional=False).entries
    assert entry.reason == "has its own forward"
    report = convert(model)
    assert_nkiconvs(lambda: report.model(x), expected, ["nkiconv::conv3d"] * 2)
    assert report.entries[0].function == "torch's, intercepted (has its own forward)"


# Causal convolutions of videos: those whose code is published go without copies; any other forward runs as it is.


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


@pytest.fixture
def both_published(published, monkeypatch):
    monkeypatch.setitem(videos._KNOWN, videos.fingerprint(Cosmos.forward), videos._around_cosmos)


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


def nearly_wan(*args, **named):
    """The known code but for a number, as another file has it."""
    imports, namespace = "import torch\nfrom torch.nn import functional as F\n", {"__name__": "nearly"}
    source = imports + inspect.getsource(wan_above).replace("sides[4] > 0", "sides[4] > 1")
    linecache.cache["nearly"] = len(source), None, source.splitlines(keepends=True), "nearly"
    exec(compile(source, "nearly", "exec"), namespace)
    kind = namespace["wan_above"](nn.Conv3d)
    assert videos.fingerprint(kind.forward) not in (None, videos.fingerprint(Wan.forward))
    return kind(*args, **named)


class Scaled(nn.Conv3d):
    def forward(self, x):
        return super().forward(F.pad(2 * x, (1, 1, 1, 1, 2, 0)))


def set_to(**state):
    return lambda module: vars(module).update(state)


#: What makes a module, whether its code is known, and what happens to it after it was converted.
VIDEOS = {
    "wan": (Wan, True, None),
    "weight_norm": (lambda *args, **named: parametrizations.weight_norm(Wan(*args, **named)), True, None),
    "dilation": (functools.partial(Wan, dilation=(1, 2, 1)), True, None), "cosmos": (Cosmos, True, None),
    "bf16": (functools.partial(Wan, dtype=torch.bfloat16), True, None),
    "more around": (Wan, True, set_to(_padding=(2, 1, 0, 3, 1, 0))),
    "behind": (Wan, True, set_to(_padding=(1, 1, 1, 1, 0, 2))),
    "two axes": (Wan, True, set_to(_padding=(1, 1, 1, 1))),
    "cropped": (Wan, True, set_to(_padding=(-1, 1, 1, 1, 2, 0))),
    "padding": (Wan, True, set_to(padding=(1, 0, 2))), "same": (Wan, True, set_to(padding="same")),
    "circular": (Wan, True, set_to(padding_mode="circular", _reversed_padding_repeated_twice=[1] * 6)),
    "stride": (Wan, True, set_to(stride=(2, 1, 1))), "planes": (Cosmos, True, set_to(temporal_pad=1)),
    "no planes": (Cosmos, True, set_to(temporal_pad=0)), "mode": (Cosmos, True, set_to(pad_mode="reflect")),
    "flag": (Flagged, False, set_to(causal=False)), "keeping": (Keeping, False, None),
    "nearly": (nearly_wan, False, None), "above another": (wan_above(Scaled), False, None),
}  # fmt: skip


def caches(module, x):
    """Other arguments: none, and planes before x."""
    if "cache_x" not in inspect.signature(type(module).forward).parameters:
        return [()]
    return [(), *((torch.randn(*x.shape[:2], planes, *x.shape[3:]).to(x.dtype),) for planes in (1, 2, 3))]


def assert_agrees(converted, model, *given):
    """The same result, by nkiconv's operators, or the same error; returns the operators."""
    try:
        expected = model(*given)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            converted(*given)
        return []
    with torch.no_grad(), Seen() as seen:
        assert torch.equal(converted(*given), expected)
    assert seen.only_nkiconvs
    return seen.names


@pytest.mark.usefixtures("both_published")
@pytest.mark.parametrize(("make", "known", "change"), VIDEOS.values(), ids=VIDEOS)
def test_videos(make, known, change, monkeypatch):
    """Known code without copies; state is read in each call."""
    torch.manual_seed(0)
    model = make(3, 4, 3, padding=int(make not in (Flagged, Keeping))).eval()
    report = convert(nn.Sequential(model))
    [entry], [converted] = report.entries, report.model
    assert (entry.swapped, entry.function) == (known, "" if known else CALLED)
    for then in (None, change) if change else (None,):
        for one in (model, converted) if then else ():
            then(one)
        for frames in (3, 9):
            x = torch.randn(2, 3, frames, 7, 6, dtype=model.weight.dtype)
            for given in caches(model, x):
                names = assert_agrees(converted, model, x, *given)
                assert getattr(converted, "seen", 0) == getattr(model, "seen", 0)
                if known and then is None:
                    assert not {"aten::constant_pad_nd", "aten::cat"} & set(names)
                    with monkeypatch.context() as compared:
                        compared.setenv("NKICONV_CPU", "compare")
                        assert torch.equal(converted(x, *given), model(x, *given))


@pytest.mark.usefixtures("both_published")
def test_other_arguments_of_videos():
    model, x, cache = Wan(3, 4, 3, padding=1), torch.randn(2, 3, 4, 6, 3), torch.randn(2, 3, 3, 6, 3)
    converted = convert(model).model
    for given in ((x[0],), (x, cache[:, :, :0]), (x, cache.double()), (x[:, :, :0], cache)):
        assert_agrees(converted, model, *given)
    assert torch.equal(converted(x=x, cache_x=cache), model(x, cache))
    for arguments in ({"noise": x}, {"residual": x}, {}):
        with pytest.raises(TypeError, match=r"forward\(\) (got an unexpected|missing 1 required)"):
            converted(**arguments)
    cosmos = Cosmos(3, 4, 3)
    assert torch.equal(convert(cosmos).model(hidden_states=x), cosmos(x))


@pytest.mark.usefixtures("both_published")
def test_a_frozen_filter_of_videos(monkeypatch):
    """convert leaves those plain whose own forward may read the weight; `pack_filter` of the module freezes them."""
    x, cache, model = torch.randn(1, 64, 2, 4, 4), torch.randn(1, 64, 2, 4, 4), Wan(64, 64, 3, padding=1).eval()
    report = convert(model, pack_filters="frozen", example_inputs=(x,))
    assert report.entries[0].packing == "filter stays plain: a forward of its own may read it"
    with torch.no_grad():
        expected = model(x, cache)
        report.model.pack_filter()
        for mode in ("torch", "compare"):
            monkeypatch.setenv("NKICONV_CPU", mode)
            torch.testing.assert_close(report.model(x, cache), expected)
