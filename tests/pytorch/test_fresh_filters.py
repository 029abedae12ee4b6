"""A call computes with the weight as it is now, however it was changed: nothing of it is kept from call to call."""

import numpy as np
import pytest
import torch
from causal import integers
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import conv2d, convert

pytestmark = pytest.mark.simulator_only

CHANNELS = 128
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


in_each_mode = pytest.mark.parametrize("mode", ["simulate", "torch"], indirect=True)


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


def replaced(change):
    return lambda module: setattr(module, "weight", nn.Parameter(change(module.weight.detach())))


def aliased(module):
    array = module.weight.detach().numpy()
    np.add(array, 1, out=array)


CHANGES = {
    "SGD, fused": stepped(torch.optim.SGD, fused=True),
    "data.copy_": lambda module: module.weight.data.copy_(module.weight.detach() + 1),
    "data.mul_": lambda module: module.weight.data.mul_(2),
    "NumPy": aliased,
    "storage": stored,
    "assign": lambda module: module.load_state_dict(
        {"weight": module.weight.detach() + 1, "bias": module.bias.detach() - 1}, assign=True
    ),
    "taps exchanged": replaced(lambda w: w.transpose(-1, -2) if w.dim() > 3 else w.transpose(0, 1)),
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
    model, x = convert(layer(rank)).model, images(rank)
    with torch.no_grad():
        assert_fresh(model, model[0], x)
        changed(model[0], name)
        assert_fresh(model, model[0], x)


X, W, B = torch.ones(1, 4, 5, 5), torch.ones(6, 4, 3, 3), torch.ones(6)
RESIDUAL = torch.ones(1, 6, 3, 3)


OTHERS = [
    {"input": X[:, :3]}, {"input": X[..., :2]}, {"input": X.int()}, {"weight": W[:, :2]}, {"weight": W.double()},
    {"bias": B[:5]}, {"bias": B.to("meta")}, {"residual": RESIDUAL[..., :2]}, {"residual": RESIDUAL.to_sparse()},
    {"stride": True}, {"stride": 1.0}, {"padding": 1}, {"dilation": 0}, {"groups": 2}, {"activation": "mish"},
]  # fmt: skip


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_checks_are_made_again_for_another_call(changes):
    """On the host they are left out after one that is equal in all that they read."""
    call = {"input": X, "weight": W, "bias": B, "residual": RESIDUAL, "activation": "silu", "stride": 1}
    for _ in range(2):
        conv2d(**call)
        with pytest.raises(ValueError, match=r"cannot run this call|must|accepted|differ|input channels per group"):
            conv2d(**{**call, **changes})
