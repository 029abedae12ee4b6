"""Stages of models of sequences by convert(fuse=True): what they read in place, and what is left alone."""

import fused_models as fm
import pytest
import torch
from chained import C, assert_same, calls, close, image, made, pair, terms_of
from fused_sequences import Delta, ShortConv
from operators_seen import Seen

from nkiconv.pytorch import causal_conv1d_fn

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


#: What Mamba's stage reads of a projection's result, and the place of the first channel where that is read in place.
PARTS = {
    "channels": (lambda x: x[..., 3:], 3),
    "the first channels": (lambda x: torch.cat([x, x], -1)[..., :10], 0),
    "one row's": (lambda x: x[:1, :, 3:], None),
    "some tokens'": (lambda x: x[:, 2:, 3:], None),
    "detached": (lambda x: x[..., 3:].detach(), None),
    "every other channel": (lambda x: torch.cat([x, x], -1)[..., 6::2], None),
}


class Mamba(Delta):
    def __init__(self):
        super().__init__(C, [4, 6], bias=True, before=3)


@pytest.mark.parametrize("name", PARTS)
def test_channels_of_a_projection_are_read_in_place(name):
    part, first = PARTS[name]

    def forward(self, hidden):
        mixed = part(self.in_proj(hidden)).transpose(1, 2)
        mixed = causal_conv1d_fn(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu")
        return torch.split(mixed.transpose(1, 2), self.sizes, dim=-1)

    results = []
    for model in pair(lambda: made(forward, Mamba)):
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


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_autocast_and_compile_run_modules_of_rows(compiled, made):
    found, _ = pair(lambda: ShortConv(C, 3))
    made.clear()
    with torch.autocast("cpu", torch.bfloat16, enabled=not compiled):
        (torch.compile(found, backend="eager") if compiled else found)(image(*ROWS))
    assert made == []
