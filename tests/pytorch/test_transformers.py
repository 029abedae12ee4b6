"""Models of transformers give by nkiconv what they give by torch.

A model's every convolution is held against float64, forward and backward, on what the model puts into it. To leave
nothing else to a tolerance, the model by torch then goes on with the results that nkiconv's model had: from the same
bits, everything between the convolutions must make the same bits, up to the output and to the input's derivative.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import sys

import numpy as np
import pytest
import torch
from tolerances import FLOAT32_SUMS, assert_within_limit, assert_within_share, silu_slope_bound
from torch import nn
from torch.nn import functional as F
from torch_exact import same

from nkiconv import pytorch as nkiconv_torch
from nkiconv.bounds import epilogue_bound, error_bound
from nkiconv.pytorch.models.recording import FAKE, record

if sys.version_info < (3, 11):  # elsewhere the extra `dev` has it, and a missing one is a failure
    pytest.skip("transformers needs Python 3.11", allow_module_level=True)

import compare_models
from transformers_models import MODELS

STEPS = 2
_CODEC = {"num_filters": 4, "codebook_size": 16, "codebook_dim": 8, "upsampling_ratios": [2, 2]}
CODECS = {
    "EncodecModel": {**_CODEC, "hidden_size": 8, "num_lstm_layers": 1},
    "MimiModel": {**_CODEC, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
     "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16, "vector_quantization_hidden_dimension": 8,
     "num_quantizers": 2, "upsample_groups": 16},
}  # fmt: skip
DECODERS = [name for name in MODELS if MODELS[name].cache]


@dataclasses.dataclass
class Call:
    """One convolution of a run: y = activation(linear(x, weight) + bias) and derivatives, as they were."""

    linear: object
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    activation: str | None
    y: torch.Tensor
    dy: torch.Tensor | None = None
    dx: torch.Tensor | None = None

    @property
    def sums(self):
        return self.linear(self.x.double(), self.weight.double())

    @property
    def magnitude(self):
        return self.linear(self.x.double().abs(), self.weight.double().abs())

    def limit(self, activation):
        """How far y may be off, with or without its activation."""
        bias = None if self.bias is None else self.bias.numpy()
        terms = self.weight[0].numel()
        return epilogue_bound(terms, self.magnitude.numpy(), self.sums.numpy(), "fp32", bias, activation)

    @torch.enable_grad()
    def pull(self, weight, g):
        """The derivative of sum(g * linear(x, weight)) by x."""
        x = self.x.double().requires_grad_()
        return torch.autograd.grad(self.linear(x, weight), x, g)[0]

    def assert_output(self, y):
        z = self.sums if self.bias is None else self.sums + self.bias.double().reshape(-1, *[1] * (self.sums.dim() - 2))
        truth = F.silu(z) if self.activation == "silu" else z
        assert_within_limit(y.numpy(), truth.numpy(), self.limit(self.activation))

    def assert_derivative(self, dx):
        dz, off = self.dy.double(), torch.zeros(())
        if self.activation == "silu":
            z = self.sums if self.bias is None else self.sums + self.bias.double()[:, None]
            s = z.sigmoid()
            off = dz.abs() * torch.from_numpy(silu_slope_bound(z.numpy(), self.limit(None)))
            dz = dz * s * (1 + z * (1 - s))
        truth, magnitude = self.pull(self.weight.double(), dz), self.pull(self.weight.double().abs(), dz.abs() + off)
        products = self.weight.numel() // self.weight.shape[1]  # at most: one for each filter and tap
        limit = error_bound(products, magnitude.numpy(), truth.numpy(), "fp32")
        limit += self.pull(self.weight.double().abs(), off.expand_as(dz)).numpy()
        assert_within_limit(dx.numpy(), truth.numpy(), limit)


class Take(torch.autograd.Function):
    """y with the bits of another."""

    @staticmethod
    def forward(ctx, y, other):
        return other.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


class Run:
    """The convolutions of a run by nkiconv, or of one by torch that takes their results."""

    def __init__(self, taken=None):
        self.calls, self.taken = [], taken

    def convolution(self, convolve, linear, x, weight, bias, activation, *more):
        """convolve(x), seen from both sides."""
        index = len(self.calls)
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(lambda g: self.backward(index, g))
        before = [one.clone() for one in more]  # what comes before x, and is overwritten
        y = convolve(x)
        seen = torch.cat([*before, x.detach()], dim=-1)
        mine = Call(linear, seen, weight.detach(), None if bias is None else bias.detach(), activation, y.detach())
        self.calls.append(mine)
        if self.taken is not None:
            theirs = self.taken.calls[index]
            assert torch.equal(mine.x, theirs.x)
            mine.assert_output(mine.y)
            mine.assert_output(theirs.y)
            y = Take.apply(y, theirs.y)
        else:
            y = Take.apply(y, y.detach())
        if y.requires_grad:
            y.register_hook(lambda g: setattr(self.calls[index], "dy", g))
        return y

    def backward(self, index, dx):
        """What goes on of the derivative dx of a convolution's input."""
        mine = self.calls[index]
        mine.dx = dx
        if self.taken is None:
            return dx
        theirs = self.taken.calls[index]
        assert torch.equal(mine.dy, theirs.dy)
        mine.assert_derivative(mine.dx)
        mine.assert_derivative(theirs.dx)
        return theirs.dx

    def watch(self, monkeypatch, model, made):
        if model.cache is None:
            for module in made.modules():
                if isinstance(module, (nn.Conv1d, nn.Conv2d)):
                    module.forward = self.module(module, module.forward)
            return
        names = inspect.unwrap(type(made).forward).__globals__
        for name in ("causal_conv1d_fn", "causal_conv1d_update"):
            monkeypatch.setitem(names, name, getattr(self, name)(names[name]))

    def module(self, module, forward):
        function = F.conv2d if isinstance(module, nn.Conv2d) else F.conv1d

        def linear(x, w):
            return function(x, w, None, module.stride, module.padding, module.dilation, module.groups)

        return lambda x: self.convolution(forward, linear, x, module.weight, module.bias, None)

    def causal_conv1d_fn(self, function):
        def call(x, weight, bias=None, activation=None, **more):
            width = weight.shape[1]
            return self.convolution(
                lambda x: function(x, weight, bias, activation=activation, **more),
                lambda x, w: F.conv1d(F.pad(x, (width - 1, 0)), w, groups=x.shape[1]),
                *(x, weight[:, None], bias, activation),
            )

        return call

    def causal_conv1d_update(self, function):
        def call(x, state, weight, bias=None, activation=None):
            return self.convolution(
                lambda x: function(x, state, weight, bias, activation),
                lambda x, w: F.conv1d(x, w, groups=x.shape[1])[..., -1:],
                *(x, weight[:, None], bias, activation, state),
            )

        return call


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "torch")
    importlib.import_module("transformers").logging.set_verbosity_error()


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(monkeypatch, name):
    model = MODELS[name]
    made, convolutions = model.with_nkiconv()
    first = Run()
    first.watch(monkeypatch, model, made)
    found = results(model, made)
    assert len(first.calls) == convolutions > 0
    assert all(call.dx is not None and call.dx.any() for call in first.calls)
    monkeypatch.undo()
    monkeypatch.setenv("NKICONV_CPU", "torch")
    again, second = model.build(), Run(first)
    second.watch(monkeypatch, model, again)
    expected = results(model, again)
    assert len(second.calls) == convolutions
    assert same(found, expected)


def results(model, made):
    x = model.input().requires_grad_()
    y = model.run(made, x)
    (dx,) = torch.autograd.grad(y, x, torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return y.detach(), dx


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", DECODERS)
def test_steps_of_decoding(monkeypatch, name):
    """The prefill and each step see what those before left in the cache."""
    model, runs, found = MODELS[name], [], []
    made, convolutions = model.with_nkiconv()
    for one in (made, model.build()):
        with monkeypatch.context() as patch, torch.no_grad():
            runs.append(Run(*runs))
            runs[-1].watch(patch, model, one)
            found.append(model.decode(one, model.input(), STEPS))
    assert len(runs[0].calls) == len(runs[1].calls) == convolutions * (1 + STEPS)
    assert torch.equal(*found)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_agree_in_the_simulator(monkeypatch, name):
    """`compare` raises where a kernel is outside its bound, and otherwise gives torch's bits.

    But for derivatives, which are the operators' then, and torch's own otherwise: fp32 sums in another order, each of
    some hundred terms, whose roundings grow as their square root, in a few layers.
    """
    model = MODELS[name]
    made, _ = model.with_nkiconv()
    expected = compare_models.results(model, made)
    monkeypatch.setenv("NKICONV_CPU", "compare")
    found = compare_models.results(model, made)
    for field in dataclasses.fields(found):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert (one is None) == (other is None) == (field.name == "steps" and model.cache is None)
        if one is not None:
            off = FLOAT32_SUMS * float(other.abs().max()) if field.name == "gradient" else 0
            torch.testing.assert_close(one, other, rtol=0, atol=off)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", DECODERS)
def test_convert_reaches_what_decoders_call_as_functions(name):
    """The file is imported long before; its layers never call the convolutions that they have."""
    model = MODELS[name]
    made, x = model.build(), model.input()
    with torch.no_grad():
        expected, steps = model.run(made, x), model.decode(made, x, STEPS)
    assert nkiconv_torch.convert(made, causal_conv1d=False, functional=False).share(**{model.argument: x}).fraction == 0
    report = nkiconv_torch.convert(made)
    with report.installation, torch.no_grad():
        assert len(report.by_function) == len(report.entries) > 0
        assert report.share(**{model.argument: x}).fraction == 1
        assert_within_share([model.run(report.model, x)], [expected], FLOAT32_SUMS)
        assert_within_share([model.decode(report.model, x, STEPS)], [steps], FLOAT32_SUMS)
    assert torch.equal(model.run(made, x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["EncodecModel", "MimiModel"])
def test_codecs_that_read_their_padding_are_planned_on_shapes_alone(name):
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, name.replace("Model", "Config"))(**CODECS[name])).eval()
    found = record(model, (), {"input_values": torch.randn(1, 1, 400)})
    assert (found.ran_on, found.because) == (FAKE, "")
    report = nkiconv_torch.convert(model)
    share = report.share(input_values=torch.randn(1, 1, 400))
    assert (share.nkiconv, share.others) == (found.share.nkiconv, found.share.others)
    assert share.fraction == 1


@pytest.mark.slow
def test_the_table(capsys):
    with pytest.raises(SystemExit) as stop:
        compare_models.main(["vit", "mamba"])
    assert stop.value.code == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in rows] == ["model", "---", "vit", "mamba"]
    assert [line[1] for line in rows[2:]] == ["1", "2"]
    assert [line[2] for line in rows[2:]] == ["100%", "100%"]
    assert [bool(line[5]) for line in rows[2:]] == [False, True]
    assert [line[6] for line in rows[2:]] == [compare_models.AGREE] * 2


def test_the_table_names_kernels_that_disagree(monkeypatch, capsys):
    """The bound is what decides: with none, every kernel but an exact one is off."""
    monkeypatch.setattr(
        "nkiconv.pytorch.computers.simulated.epilogue_bound",
        lambda terms, magnitude, *_: np.full(magnitude.shape, 1e-30),
    )
    with pytest.raises(SystemExit) as stop:
        compare_models.main(["vit"])
    assert stop.value.code == 1
    assert "the kernel and torch differ by" in capsys.readouterr().out
