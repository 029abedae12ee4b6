"""A call computes with the weight as it is now, however it was changed: nothing of it is kept from call to call."""

import numpy as np
import pytest
import torch
from causal import integers
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import DtypeError
from nkiconv.pytorch import causal_conv1d_update, conv2d, convert

pytestmark = pytest.mark.simulator_only


def stepped(module):
    """A step of an optimizer, in which every element of a weight moves."""
    module.weight.grad = torch.sign(module.weight.detach()) + 0.5
    torch.optim.SGD([module.weight], lr=2.0, fused=True).step()


CHANGES = {
    "SGD, fused": stepped,
    "data.mul_": lambda module: module.weight.data.mul_(2),
    "NumPy": lambda module: np.add(module.weight.detach().numpy(), 1, out=module.weight.detach().numpy()),
    "storage": lambda module: module.weight.untyped_storage().copy_((module.weight.detach() + 1).untyped_storage()),
    "assign": lambda module: module.load_state_dict(
        {"weight": module.weight.detach() + 1, "bias": module.bias.detach() - 1}, assign=True
    ),
    "bias": lambda module: module.bias.data.add_(1),
}


@pytest.mark.parametrize("mode", ["simulate", "torch"], indirect=True)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_weight(mode, name):
    model, x = convert(nn.Sequential(nn.Conv2d(128, 128, (2, 3), padding=1)).eval()).model, integers(1, 128, 3, 4)
    with torch.no_grad():
        for change in (lambda module: None, CHANGES[name]):
            change(model[0])
            expected = F.conv2d(x, model[0].weight, model[0].bias, padding=1)
            assert_within_share([model(x)], [expected], FLOAT32_SUMS)


X, W, B = torch.ones(1, 4, 5, 5), torch.ones(6, 4, 3, 3), torch.ones(6)
RESIDUAL, STATE = torch.ones(1, 6, 3, 3), torch.ones(2, 4, 3)
CALL = {"input": X, "weight": W, "bias": B, "residual": RESIDUAL, "activation": "silu", "stride": 1}
STEP = {"x": STATE[..., 0], "conv_state": STATE, "weight": torch.ones(4, 4), "conv_state_indices": torch.arange(2)}
OTHERS = [
    *((conv2d, CALL, one) for one in (
        {"input": X[:, :3]}, {"input": X[..., :2]}, {"input": X.int()}, {"weight": W[:, :2]}, {"weight": W.double()},
        {"bias": B[:5]}, {"bias": B.to("meta")}, {"residual": RESIDUAL[..., :2]}, {"residual": RESIDUAL.to_sparse()},
        {"stride": True}, {"stride": 1.0}, {"padding": 1}, {"dilation": 0}, {"groups": 2}, {"activation": "mish"})),
    *((causal_conv1d_update, STEP, one) for one in (
        {"conv_state_indices": torch.tensor([1, 1])}, {"conv_state": STATE.bfloat16()},
        {"conv_state": STATE.clone().requires_grad_()})),
]  # fmt: skip


@pytest.mark.parametrize(("function", "call", "changes"), OTHERS)
def test_checks_are_made_again_for_another_call(function, call, changes):
    """On the host they are left out after one that is equal in all that they read."""
    for _ in range(2):
        function(**call)
        with pytest.raises(
            ValueError, match=r"cannot run this call|must|accepted|differ|over|input channels per group"
        ):
            function(**{**call, **changes})


@pytest.mark.parametrize(("function", "call"), [(conv2d, CALL), (causal_conv1d_update, STEP)])
def test_checks_are_made_again_in_another_mode(function, call, monkeypatch):
    wide = {
        name: one.double() if torch.is_tensor(one) and one.is_floating_point() else one for name, one in call.items()
    }
    function(**wide)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with pytest.raises(DtypeError, match="float64"):
        function(**wide)
