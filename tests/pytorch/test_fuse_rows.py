"""Stages of models of sequences by convert(fuse=True): what they read in place, and what is left alone."""

import copy
import operator

import fused_models as fm
import pytest
import torch
from chained import C, assert_gradients, assert_same, calls, close, drawn, image, made, pair, terms_of
from fused_sequences import ShortConv
from operators_seen import Seen
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nkiconv.pytorch import causal_conv1d_fn, convert, plan_model
from nkiconv.pytorch.models import rows

pytestmark = pytest.mark.usefixtures("published")
ROWS = (2, 11, C)


def masked(self, hidden, mask=None):
    """A mask between GLU and convolution, as Parakeet has it."""
    x = self.glu(self.pointwise_conv1(hidden.transpose(1, 2)))
    if mask is not None:
        x = x.masked_fill(mask, 0.0)
    x = self.activation(self.batch_norm(self.depthwise_conv(x)))
    return self.pointwise_conv2(x).transpose(1, 2)


def test_a_mask_between():
    found, model = pair(lambda: made(masked, fm.Conformer))
    x, mask = image(*ROWS), image(2, 1, 11) > 2
    assert_same(found, model, x)
    assert "gated_conv1d" in calls(found, x)
    assert close(found(x, mask), model(x, mask), terms_of(model))
    assert "gated_conv1d" not in calls(found, x, mask)


@pytest.mark.parametrize("tokens", [1, 9])
def test_tokens_of_projections_are_not_copied(tokens):
    """LFM2's stage reads what its first projection writes, and writes what its second reads."""
    found, model = pair(lambda: ShortConv(C, 3))
    x = image(2, tokens, C)
    with Seen() as seen, torch.no_grad():
        y = found(x)
    assert [name for name in seen.names if "gated" in name] == ["nkiconv::gated_conv1d"]
    assert not {name for name in seen.names if any(word in name for word in ("clone", "copy", "contiguous"))}
    assert close(y, model(x), terms_of(model))


def test_packed_sequences_and_states_are_convolved_by_themselves():
    """By causal_conv1d_fn: they are in no fused call."""

    def forward(self, hidden, **more):
        rows = self.in_proj(hidden)[..., 3:].transpose(1, 2)
        rows = causal_conv1d_fn(rows, self.conv1d.weight.squeeze(1), self.conv1d.bias, **more)
        return torch.split(rows.transpose(1, 2), self.sizes, dim=-1)

    found, model = pair(lambda: made(forward, fm.Mamba))
    x = image(*ROWS)
    assert "causal_conv1d_split" in calls(found, x)
    for more in ({"seq_idx": torch.arange(11).expand(2, 11) // 4}, {"initial_states": image(2, 10, 3)}):
        assert all(map(torch.equal, found(x, **more), model(x, **more)))


#: What Mamba's stage reads of a projection's result, and the place of the first channel where that is read in place.
PARTS = {
    "channels": (lambda x: x[..., 3:], 3),
    "the first channels": (lambda x: torch.cat([x, x], -1)[..., :10], 0),
    "one row's": (lambda x: x[:1, :, 3:], None),
    "some tokens'": (lambda x: x[:, 2:, 3:], None),
    "detached": (lambda x: x[..., 3:].detach(), None),
    "every other channel": (lambda x: torch.cat([x, x], -1)[..., 6::2], None),
}


@pytest.mark.parametrize(("part", "first"), PARTS.values(), ids=PARTS)
def test_channels_of_a_projection_are_read_in_place(part, first):

    def forward(self, hidden):
        mixed = part(self.in_proj(hidden)).transpose(1, 2)
        mixed = causal_conv1d_fn(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu")
        return torch.split(mixed.transpose(1, 2), self.sizes, dim=-1)

    results = []
    for model in pair(lambda: made(forward, fm.Mamba)):
        leaf = image(*ROWS).requires_grad_()
        with Seen() as seen:
            parts = model(leaf)
        total = sum(part.sin().sum() for part in parts)
        found = torch.autograd.grad(total, [leaf, *model.parameters()], allow_unused=True)
        results.append([*parts, *(one for one in found if one is not None)])
        splits = [args for func, args, _ in seen.nkiconvs if "split" in func.name()]
        assert [args[-2] for args in splits] == ([] if len(results) == 2 else [first])
    for one, other in zip(*results, strict=True):
        assert close(one.detach(), other.detach(), terms_of(model))


# Models that slice a convolution with zeros on both sides, as they do where causal-conv1d is missing.


class Sliced(nn.Module):
    """taps: of the depthwise convolution; chunks: of the projection."""

    def __init__(self, forward, chunks=1, taps=4, **own):
        super().__init__()
        self.inner, self.act = forward, nn.SiLU()
        self.in_proj, self.out_proj = nn.Linear(C, chunks * C), nn.Linear(C, C)
        self.conv1d = nn.Conv1d(C, C, taps, **{"groups": C, "padding": taps - 1} | own)

    def forward(self, hidden):
        return self.inner(self, self.in_proj(hidden).transpose(1, 2))


def short(m, rows, end=None):
    """LFM2's."""
    b, c, x = rows.chunk(3, dim=1) if end is None else torch.chunk(input=rows, chunks=3, dim=1)
    x = b * x
    return m.out_proj((c * m.conv1d(x)[..., : x.shape[-1] if end is None else end]).transpose(1, 2))


def mamba(m, rows):
    return m.out_proj(m.act(m.conv1d(rows)[:, :, : rows.shape[2]]).transpose(1, 2))


def by_name(m, rows, sizes="split_size"):
    """With arguments by name, which are torch's."""
    y = m.act(m.conv1d(rows)[..., : rows.shape[-1]])
    tokens, how = y.transpose(dim0=1, dim1=2), {sizes: [3, y.size(dim=1) - 3], "dim": -1}
    return torch.cat(tokens.split(**how) if sizes == "split_size" else torch.split(tokens, **how), -1)


def mamba2(m, rows):
    first, second = m.act(m.conv1d(rows)[..., : rows.shape[-1]].transpose(1, 2)).split([3, C - 3], dim=-1)
    return torch.cat([second, first], -1)


def whole(m, rows):
    return m.conv1d(rows)


def other(m, rows):
    """One column less."""
    return m.act(m.conv1d(rows)[..., : rows.shape[2] - 1])


def changed(m, rows):
    y = m.conv1d(rows)
    return y[..., : rows.shape[2]] * 1 + y[..., 3:]


#: A model, and the calls of its block.
SLICED = {
    "LFM2": (lambda: Sliced(short, 3), ("gated_short_conv",)),
    "LFM2, from its end": (lambda: Sliced(lambda m, x: short(m, x, -3), 3), ("gated_short_conv",)),
    "Mamba": (lambda: Sliced(mamba, bias=False), ("causal_conv1d_fn",)),
    "Mamba2": (lambda: Sliced(mamba2, taps=3), ("causal_conv1d_split",)),
    "by name": (lambda: Sliced(by_name), ("causal_conv1d_split",)),
    "of torch": (lambda: Sliced(lambda m, x: by_name(m, x, "split_size_or_sections")), ("causal_conv1d_split",)),
    "read twice": (lambda: Sliced(changed), ("causal_conv1d_fn",)),
    "whole": (lambda: Sliced(whole), ()),
    "fewer columns": (lambda: Sliced(other), ()),
    "fewer zeros": (lambda: Sliced(mamba, padding=2), ()),
    "dilated": (lambda: Sliced(mamba, padding=3, dilation=2), ()),
    "reflected": (lambda: Sliced(mamba, padding_mode="reflect"), ()),
    "many taps": (lambda: Sliced(mamba, taps=40), ()),
}


@pytest.mark.parametrize("compute", ["torch", "simulate"])
@pytest.mark.parametrize(("make", "expected"), SLICED.values(), ids=SLICED)
def test_slices_of_padded_convolutions(make, expected, compute, monkeypatch):
    report, model = convert(drawn(make()), fuse=True), drawn(make())
    assert [block.calls for block in report.blocks if block.calls] == [expected] * bool(expected)
    monkeypatch.setenv("NKICONV_CPU", compute)
    assert_same(report.model, model, image(*ROWS))
    monkeypatch.setenv("NKICONV_CPU", "torch")
    assert_gradients(report.model, model, image(*ROWS))


def of(method):
    """What a function does that changes its argument, which another name stands for."""

    def read(y):
        own = y
        method(y)
        return own

    return read


#: Code between the steps of a fused call, found in calls that no probe has seen.
BETWEEN = {
    "sums in place": of(lambda y: operator.iadd(y, 1)),
    "powers in place": of(lambda y: operator.ipow(y, 0)),
    "product in place": of(lambda y: y.mul_(2)),
    "asks for a tensor": lambda y: y * 2 if isinstance(y, torch.Tensor) and torch.is_tensor(y) else y,
    "methods of an attribute's name": lambda y: y / y.norm() + y.mode().values.mean(),
    "a copy": lambda y: y + copy.copy(y.detach()) + copy.copy(y).detach(),
    "extents": lambda y: y.transpose_(1, 2).transpose(1, 2) * (y.shape[1] - 10.5),
    "a checkpoint": lambda y: checkpoint(lambda one: one * 2 + 1, y, use_reentrant=False),
    "a second checkpoint": lambda y: checkpoint(lambda one: one * 2 + 1, y, use_reentrant=True),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("kind", ["short", "mamba", "glu"])
def test_code_between_the_steps(kind, name):
    def forward(m, rows):
        read = BETWEEN[name] if m.reads else lambda y: y
        if kind == "glu":
            return m.act(read(m.conv1d(read(F.glu(rows, 1)))))
        b, c, x = rows.chunk(3, dim=1) if kind == "short" else (1, 1, rows)
        x = read(b * x) if kind == "short" else x
        return c * m.act(read(read(m.conv1d(x)[..., : x.shape[-1]])))

    chunks = {"short": 3, "mamba": 1, "glu": 2}[kind]
    own = {"taps": 5, "padding": 2} if kind == "glu" else {}
    found, model = pair(lambda: made_sliced(forward, chunks, **own))
    assert calls(found, image(*ROWS)) != calls(model, image(*ROWS))
    found.reads = model.reads = True
    assert_gradients(found, model, image(*ROWS))


def made_sliced(forward, chunks, **own):
    """A `Sliced` whose forward may be told to read."""
    model = Sliced(forward, chunks, **own)
    model.reads = False
    return model


def test_a_fused_forward_that_raises_is_left(monkeypatch):
    monkeypatch.setattr(rows, "causal_conv1d_split", None)
    [block] = convert(drawn(Sliced(mamba2, taps=3)), fuse=True).blocks
    assert block.reason == "fused, it raises TypeError: 'NoneType' object is not callable"


def test_sliced_convolutions_are_planned_as_they_run():
    found = plan_model(drawn(Sliced(short, 3)).eval(), [image(*ROWS)], quick=True, fuse=True)
    assert [row.convolved.operation for row in found.rows] == ["causal_conv1d_split"]


def test_a_hook_of_a_sliced_convolution_sees_all_columns():
    found, model = pair(lambda: Sliced(mamba))
    seen = []
    found.conv1d.register_forward_hook(lambda _module, _given, y: seen.append(y.shape))
    assert_same(found, model, image(*ROWS))
    assert seen == [(2, C, 11 + 3)]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_autocast_and_compile_run_modules_of_rows(compiled, made):
    found, _ = pair(lambda: ShortConv(C, 3))
    made.clear()
    with torch.autocast("cpu", torch.bfloat16, enabled=not compiled):
        (torch.compile(found, backend="eager") if compiled else found)(image(*ROWS))
    assert made == []
