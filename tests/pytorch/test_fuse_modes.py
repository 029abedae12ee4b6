"""Pending results of fused models that other code reads: without gradients, by custom functions, with operators."""

import operator

import fused_models as fm
import numpy as np
import pytest
import torch
from chained import C, assert_gradients, close, image, made, pair
from fused_sequences import ConformerModule, Delta

from nkiconv.pytorch import causal_conv1d_fn
from nkiconv.pytorch.models.pending import Normed

pytestmark = pytest.mark.usefixtures("published")
ROWS, X = (2, 11, C), (2, C, 6, 5)


class Silu(torch.autograd.Function):
    """SiLU that keeps its input detached, as a memory-saving one of a model's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        slope = ctx.x.sigmoid()
        return gradient * slope * (1 + ctx.x * (1 - slope))


def noted(self, h):
    """A number that training writes down."""
    with torch.no_grad():
        self.most = h.abs().amax()
    return h


def scanned(self, h):
    return Silu.apply(h)


def split_apart(self, h):
    """Two calls of the convolution, the second without gradients."""
    with torch.no_grad():
        fixed, _ = h.transpose(1, 2).split([4, 6], -1)
    return h + fixed.mean()


@pytest.mark.parametrize("read", [noted, scanned, split_apart])
def test_rows_that_are_read_keep_their_gradients(read):
    def forward(self, hidden):
        mixed = self.in_proj(hidden)[..., 3:].transpose(1, 2)
        h, again = (
            causal_conv1d_fn(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu") for _ in "12"
        )
        return *again.transpose(1, 2).split([4, 6], -1), read(self, h)

    assert_gradients(*pair(lambda: made(forward, Mamba)), image(*ROWS))


class Mamba(Delta):
    def __init__(self):
        super().__init__(C, [4, 6], bias=True, before=3)


def test_a_custom_activation_after_rows():
    def conformer():
        model = ConformerModule(C, 3)
        model.activation = made(lambda _, x: Silu.apply(x))
        return model

    assert_gradients(*pair(conformer), image(*ROWS))


def parts_one_by_one(self, x):
    """Modules called by other code than the forward that the graphs show, which looks at each result."""
    for part in self.parts:
        x = noted(self, part(x))
    return x


def frozen_norm(self, x):
    norm, act, conv = self.parts
    with torch.no_grad():
        x = norm(x)
    return conv(act(x))


@pytest.mark.parametrize("forward", [parts_one_by_one, frozen_norm])
def test_a_chain_in_other_modes_keeps_its_gradients(forward):
    """The chain is proved by its own forward, and then called by another."""
    assert_gradients(*(made(forward, parts=one) for one in pair(fm.chain)), image(*X))


def test_autocast_around_a_convolution_alone():
    """The norm's result is rounded, not its input."""
    found = []
    for norm, act, conv in pair(fm.chain):
        h = act(norm(image(*X)))
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            found.append(conv(h))
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(*found)


OPERATORS = [getattr(operator, name) for name in ("lt", "ge", "eq", "ne", "floordiv", "mod", "pow", "truediv", "sub")]


@pytest.mark.parametrize("two", OPERATORS)
@pytest.mark.parametrize("is_first", [True, False])
def test_operators_of_a_pending_result(two, is_first):
    (norm, *_), (plain, *_) = pair(fm.chain)
    x = image(*X)
    h = norm(x)
    assert isinstance(h, Normed)
    found, expected = (two(one, 2.0) if is_first else two(2.0, one) for one in (h, plain(x)))
    assert close(found.float(), expected.float(), C * X[2] * X[3])


def test_a_pending_result_as_other_objects():
    (norm, *_), (plain, *_) = pair(fm.chain)
    x = image(*X)
    with torch.no_grad():
        y = plain(x)
        assert np.array_equal(np.asarray(norm(x)), y)
        assert float(norm(x)[0, 0, 0, 0]) == float(y[0, 0, 0, 0])
        assert torch.equal(abs(norm(x)), abs(y))
        assert torch.equal(~(norm(x) > 0), ~(y > 0))
        h = norm(x)
        h[0] = 0
        assert torch.equal(h + 0, torch.cat([0 * y[:1], y[1:]]))
