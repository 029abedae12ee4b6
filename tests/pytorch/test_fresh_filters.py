"""A call computes with the weight as it is now, however it was changed: nothing of it is kept from call to call."""

import copy

import numpy as np
import pytest
import torch
import torch_exact
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import DtypeError
from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update, conv2d, convert
from nkiconv.pytorch import nn as ours

pytestmark = pytest.mark.simulator_only

CHANNELS = 128
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


in_each_mode = pytest.mark.parametrize("mode", ["simulate", "torch"], indirect=True)


def integers(*shape):
    return torch_exact.integers(shape, seed=sum(shape))[0]


def images(rank):
    return integers(1, CHANNELS, *[2, 3, 4][-rank:])


def layer(rank, kind=None):
    kind = kind or {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
    made = kind(CHANNELS, CHANNELS, (1, 2, 3)[-rank:], padding=1)
    with torch.no_grad():
        made.weight.copy_(integers(*made.weight.shape))
        made.bias.copy_(integers(CHANNELS))
    return nn.Sequential(made).eval()


def stepped(kind, **more):
    """A step of an optimizer, in which every element of a weight moves."""

    def change(module):
        module.weight.grad = torch.sign(module.weight.detach()) + 0.5
        kind([module.weight], lr=2.0, **more).step()

    return change


def stored(module):
    module.weight.untyped_storage().copy_((module.weight.detach() + 1).untyped_storage())


def averaged(module):
    """As EMA.copy_to of diffusers and torch_ema."""
    for shadow, own in zip([one.detach() * 0.5 for one in module.parameters()], module.parameters(), strict=True):
        own.data.copy_(shadow.data)


def replaced(change):
    return lambda module: setattr(module, "weight", nn.Parameter(change(module.weight.detach())))


def aliased(module):
    array = module.weight.detach().numpy()
    np.add(array, 1, out=array)


CHANGES = {
    "Adam, fused": stepped(torch.optim.Adam, fused=True),
    "AdamW, fused": stepped(torch.optim.AdamW, fused=True),
    "SGD, fused": stepped(torch.optim.SGD, fused=True),
    "Adagrad, fused": stepped(torch.optim.Adagrad, fused=True),
    "SGD": stepped(torch.optim.SGD),
    "data.copy_": lambda module: module.weight.data.copy_(module.weight.detach() + 1),
    "data.mul_": lambda module: module.weight.data.mul_(2),
    "data.add_": lambda module: module.weight.data.add_(1),
    "data.normal_": lambda module: module.weight.data.normal_(),
    "NumPy": aliased,
    "storage": stored,
    "EMA": averaged,
    "assign": lambda module: module.load_state_dict(
        {"weight": module.weight.detach() + 1, "bias": module.bias.detach() - 1}, assign=True
    ),
    "taps exchanged": replaced(lambda w: w.transpose(-2, -1)),
    "channels exchanged": replaced(lambda w: w.transpose(0, 1)),
    "fewer": replaced(lambda w: w[: CHANNELS // 2]),
    "bias": lambda module: module.bias.data.add_(1),
}


def changed(module, name):
    CHANGES[name](module)
    if name == "fewer":
        module.bias = nn.Parameter(module.bias.detach()[: CHANNELS // 2])


def assert_fresh(run, module, x):
    expected = CONVOLVE[x.dim() - 2](x, module.weight, module.bias, padding=1)
    assert_within_share([run(x)], [expected], FLOAT32_SUMS)


@pytest.mark.cover(10)
@in_each_mode
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_changed_weight(mode, rank, name):
    if rank == 1 and name == "taps exchanged":
        name = "channels exchanged"
    model, x = convert(layer(rank)).model, images(rank)
    with torch.no_grad():
        assert_fresh(model, model[0], x)
        changed(model[0], name)
        assert_fresh(model, model[0], x)


@pytest.mark.slow
@in_each_mode
def test_changed_under_compile(mode):
    model, x = convert(layer(2)).model, images(2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for name in CHANGES:
            changed(model[0], name)
            assert_fresh(compiled, model[0], x)


@pytest.mark.cover(3)
@in_each_mode
@pytest.mark.parametrize("kind", [ours.ConvTranspose2d, ours.CausalConv3d, ours.CausalConv1d])
def test_others(mode, kind):
    module = kind(16, 16, 3).eval()
    x = integers(1, 16, *([5] * (module.weight.dim() - 2)))
    with torch.no_grad():
        for change in (CHANGES["SGD, fused"], CHANGES["data.mul_"], CHANGES["NumPy"]):
            before = module(x)
            change(module)
            again = copy.deepcopy(module)
            assert not torch.equal(before, module(x))
            assert torch.equal(module(x), again(x))


@in_each_mode
def test_causal_functions(mode):
    x, w, state = integers(2, 8, 6), integers(8, 4), integers(2, 8, 3)
    for _ in range(3):
        expected = F.conv1d(F.pad(x, (3, 0)), w[:, None], groups=8)
        torch.testing.assert_close(causal_conv1d_fn(x, w), expected, rtol=0, atol=0)
        joined = torch.cat([state, x[..., :1]], -1)
        y = causal_conv1d_update(x[..., 0], state, w)
        torch.testing.assert_close(y, (joined * w).sum(-1), rtol=0, atol=0)
        assert torch.equal(state, joined[..., 1:])
        w.data.mul_(2)
        state.numpy()[...] = state.numpy()[::-1].copy()  # a decoder's own bookkeeping


@in_each_mode
def test_folded_norms_do_not_share_their_convolutions_weight(mode):
    model = nn.Sequential(layer(2)[0], nn.BatchNorm2d(CHANNELS)).eval()
    folded, x = convert(model, fold_batchnorm=True).model, images(2)
    with torch.no_grad():
        before = folded(x)
        CHANGES["data.mul_"](model[0])
        assert torch.equal(folded(x), before)
        CHANGES["SGD, fused"](folded[0])
        assert_fresh(folded, folded[0], x)


@in_each_mode
@pytest.mark.parametrize("inference", ["made", "called", "both"])
def test_inference_mode(mode, inference):
    with torch.inference_mode(inference != "called"):
        model = convert(layer(2)).model
    with torch.inference_mode(inference != "made"), torch.no_grad():
        assert_fresh(model, model[0], images(2))
    with torch.inference_mode():
        model[0].weight.data.mul_(2)
    with torch.no_grad():
        assert_fresh(model, model[0], images(2))


@in_each_mode
def test_no_module_keeps_a_tensor(mode):
    """Of a call in eval mode a module keeps nothing: what it has is what torch's has, and its parameters."""
    model = convert(layer(2)).model
    before = dict(vars(model[0]))
    model(images(2))
    assert vars(model[0]) == before
    assert not list(model.buffers())
    assert not any(isinstance(one, torch.Tensor) for one in vars(model[0]).values())


X, W, B = torch.ones(1, 4, 5, 5), torch.ones(6, 4, 3, 3), torch.ones(6)
RESIDUAL = torch.ones(1, 6, 3, 3)


class TestChecks:
    """Checks of a call on the host are left out after one that is equal in all that they read."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"input": X[:, :3]}, {"input": X[..., :2]}, {"input": X.int()}, {"weight": W[:, :2]}, {"weight": W[0]},
            {"weight": W.bfloat16()}, {"weight": W.double()}, {"bias": B[:5]}, {"bias": B.double()},
            {"bias": B.to("meta")}, {"residual": RESIDUAL[..., :2]},
            {"residual": RESIDUAL.double()}, {"residual": RESIDUAL.to_sparse()},
            {"stride": True}, {"stride": 1.0}, {"stride": "1"}, {"stride": 2}, {"padding": 1}, {"padding": -1},
            {"padding": "same"}, {"dilation": 0}, {"dilation": 3}, {"groups": 2}, {"groups": 1.0}, {"groups": True},
            {"activation": "mish"}, {"residual_position": "first"},
        ],
        ids=str,
    )  # fmt: skip
    def test_each_is_made_again_for_another_call(self, changes):
        call = {"input": X, "weight": W, "bias": B, "residual": RESIDUAL, "activation": "silu", "stride": 1}
        for _ in range(2):
            conv2d(**call)
            with pytest.raises(ValueError, match=r"cannot run this call|must|accepted|differ|input channels per group"):
                conv2d(**{**call, **changes})

    def test_under_autocast(self):
        """It casts what could not be mixed."""
        with torch.autocast("cpu", torch.bfloat16):
            y = conv2d(X, W.bfloat16(), activation="silu")
        with pytest.raises(DtypeError, match=r"weight.dtype=torch.bfloat16"):
            conv2d(X, W.bfloat16(), activation="silu")
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(conv2d(X, W.bfloat16(), activation="silu"), y)


class TestClasses:
    """Classes are kept by class: what they are made of is asked anew."""

    def test_a_forward_that_came_later(self):
        kind = type("Late", (nn.Conv2d,), {})
        x = images(2)
        assert torch.equal(convert(layer(2, kind)).model(x), layer(2, kind)(x))
        kind.forward = lambda self, x: 2 * nn.Conv2d.forward(self, x)
        with torch.no_grad():
            torch.testing.assert_close(convert(layer(2, kind)).model(x), layer(2, kind)(x), rtol=0, atol=0)

    def test_a_models_forward_that_was_replaced(self):
        kind = type("Whole", (nn.Module,), {"forward": lambda self, x: F.conv2d(x, self.weight)})
        made = kind()
        made.weight = nn.Parameter(integers(4, CHANNELS, 2, 3))
        x = images(2)
        model = convert(made, functional=True).model
        before = model(x)
        kind.forward = lambda self, x: 2 * F.conv2d(x, self.weight)
        assert torch.equal(model(x), 2 * before)
