"""convert(fuse=True) makes what models of sequences do around depthwise rows one call, and leaves what it is not."""

import copy
import pickle

import pytest
import torch
from chained import assert_gradients, assert_same, drawn, image
from fused_sequences import ConformerModule, Delta, ShortConv
from torch import nn

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update, convert, plan_model

D, TAPS, TOKENS = 8, 5, 11
#: Products in the sums of a module's layers.
TERMS = 8 * D + TAPS
MODULES = {
    "gated_short_conv": lambda: ShortConv(D, 3),
    "causal_conv1d_split": lambda: Delta(D, [4, 4, 6], bias=True, before=3),
    "glu_conv1d with BatchNorm and silu": lambda: ConformerModule(D, TAPS),
}
LEFT = "what its forward does around the convolution is in no fused call"


def told(report):
    return {block.name: str(block) if block.fused else block.reason for block in report.blocks}


@pytest.mark.parametrize("call", MODULES)
def test_a_block(call, made):
    model = drawn(MODULES[call]()).eval()
    report = convert(model, fuse=True)
    assert told(report) == {"": call}
    assert "1 of 1 modules with depthwise convolutions of rows make fused calls" in str(report)
    assert report.as_dict()["blocks"][0]["fused"]
    made.clear()
    x = image(2, TOKENS, D)
    for one in (report.model, copy.deepcopy(report.model), pickle.loads(pickle.dumps(report.model))):
        made.clear()
        assert_gradients(one, model, x, terms=TERMS)
        assert made == [call.split()[0]]
    assert [*report.model.state_dict()] == [*model.state_dict()]


@pytest.mark.parametrize(("change", "reason"), [
    (lambda model: model.train(), "glu_conv1d"),  # alone
    (lambda model: model.glu.register_forward_hook(lambda *_: None), "a module of it has hooks"),
    (lambda model: setattr(model.glu, "forward", model.glu.forward), "a module of it has a forward of its own"),
    (lambda model: setattr(model, "glu", nn.Identity()), "its forward raises RuntimeError on a probe"),
    (lambda model: setattr(model, "glu", nn.Conv1d(2 * D, D, 1)), LEFT),
])  # fmt: skip
def test_blocks_of_other_modules(change, reason):
    model = drawn(ConformerModule(D, TAPS)).eval()
    change(model)
    assert told(convert(model, fuse=True))[""].startswith(reason)


class Masked(ConformerModule):
    """With a mask between GLU and convolution, as Parakeet has it."""

    def forward(self, hidden, mask=None):
        x = self.glu(self.pointwise_conv1(hidden.transpose(1, 2)))
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        x = self.activation(self.batch_norm(self.depthwise_conv(x)))
        return self.pointwise_conv2(x).transpose(1, 2)


def test_a_mask_between(made):
    model = drawn(Masked(D, TAPS)).eval()
    report, mask = convert(model, fuse=True), image(2, 1, TOKENS) > 2
    made.clear()
    assert_same(report.model, model, image(2, TOKENS, D), terms=TERMS)
    assert made == ["glu_conv1d"]
    made.clear()
    found, expected = report.model(image(2, TOKENS, D), mask), model(image(2, TOKENS, D), mask)
    assert (found - expected).abs().max() <= 8 * TERMS * 2.0**-24 * expected.abs().max()
    assert made == []


class Cache:
    """The last inputs of a convolution, as transformers' caches keep them."""

    state = None

    def update(self, x, size):
        found = x if self.state is None else torch.cat([self.state, x], -1)
        self.state, self.kept = found[..., -size:].clone(), found
        return found


class Cached(ShortConv):
    """LFM2's forward with a cache."""

    def forward(self, hidden, cache=None):
        tokens, weight = hidden.shape[1], self.conv.weight.squeeze(1)
        B, C, x = self.in_proj(hidden).transpose(-1, -2).chunk(3, dim=-2)
        rows = B * x
        if cache is not None and cache.state is not None and tokens == 1:
            rows = causal_conv1d_update(rows, cache.state, weight, self.conv.bias)
        else:
            if cache is not None:
                rows = cache.update(rows, 3)
            rows = causal_conv1d_fn(rows, weight, self.conv.bias)
            if cache is not None:
                rows = rows[:, :, -tokens:]
        return self.out_proj((C * rows).transpose(-1, -2).contiguous())


def test_caches(made):
    """Prefill, more of it, and steps: each gives what the model's own forward gives, and leaves the cache as that."""
    model = drawn(Cached(D, 3)).eval()
    report = convert(model, fuse=True)
    own, theirs = Cache(), Cache()
    for tokens, calls in ((7, ["gated_short_conv"]), (4, []), (1, []), (1, [])):
        made.clear()
        x = image(2, tokens, D, seed=tokens)
        with torch.no_grad():
            found, expected = report.model(x, own), model(x, theirs)
        assert (found - expected).abs().max() <= 8 * TERMS * 2.0**-24 * expected.abs().max()
        assert made == calls
        assert torch.equal(own.state, theirs.state)
        assert type(own.kept) is torch.Tensor


def test_a_change_in_place_is_an_error():
    class Changes(ConformerModule):
        def forward(self, hidden):
            h = self.pointwise_conv1(hidden.transpose(1, 2))
            x = self.glu(h)
            if hidden.shape[0] == 3:
                h.zero_()
            return self.pointwise_conv2(self.depthwise_conv(x))

    model = convert(drawn(Changes(D, TAPS)).eval(), fuse=True).model
    model(image(2, TOKENS, D))
    with torch.no_grad(), pytest.raises(UnsupportedError, match="was changed in place"):
        model(image(3, TOKENS, D))


def test_autocast_and_compile_run_the_modules(made):
    model = convert(drawn(ShortConv(D, 3)).eval(), fuse=True).model
    made.clear()
    x = image(2, TOKENS, D)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    torch.compile(model, backend="eager")(x)
    assert made == []


@pytest.mark.parametrize(("call", "row"), [
    ("gated_short_conv", ("depthwise_conv1d", "BCx", ())),
    ("causal_conv1d_split", ("causal_conv1d_split", None, ((1, 4, False), (1, 4, False), (1, 6, False)))),
    ("glu_conv1d with BatchNorm and silu", ("depthwise_conv1d", "xG", ())),
])  # fmt: skip
def test_plan_model(call, row):
    with torch.device("meta"):
        model = MODULES[call]().eval()
    plan = plan_model(model, (torch.empty(2, TOKENS, D, device="meta"),), fuse=True, quick=True)
    [found] = [one for one in plan.rows if one.convolved.problem.groups > 1]
    assert (found.convolved.operation, found.convolved.asked.chunks, found.convolved.splits) == row
    assert found.us > 0
    assert plan.kept == ()
