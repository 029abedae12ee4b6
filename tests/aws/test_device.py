"""Tensors on a device named "neuron", which has shapes and no data: who computes, and the graph of a training step.

torch's hooks for a device that is written in Python make it, and stay for the rest of the process.
"""

import pytest
import torch
from launched import FILTERS, follows_plan
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch_neuronx import launches_of

from nkiconv import pytorch

_setup_privateuseone_for_python_backend("neuron")


class Loss(torch.nn.Module):
    def __init__(self, function, filters, bias):
        super().__init__()
        self.function, self.filters, self.bias = function, torch.nn.Parameter(filters), torch.nn.Parameter(bias)

    def forward(self, x):
        return (self.function(x, self.filters, self.bias).sum(),)


# function, shapes of images and filters, launches: y, the sums again for silu's derivative, dL/dx, and dL/dw with dL/db
STEPS = {
    "conv1d": (pytorch.conv1d, (2, 6, 9), (4, 6, 3), 3),
    "conv2d": (pytorch.conv2d, (2, 6, 7, 8), (4, 6, 3, 3), 3),
    "depthwise_conv1d": (pytorch.depthwise_conv1d, (2, 6, 9), (6, 1, 3), 3),
    "depthwise_conv2d": (pytorch.depthwise_conv2d, (2, 6, 7, 8), (6, 1, 3, 3), 3),
    "causal_conv1d_fn": (lambda *given: pytorch.causal_conv1d_fn(*given, activation="silu"), (2, 6, 9), (6, 4), 4),
}


@pytest.mark.cover(0, keep=["conv2d", "depthwise_conv1d", "causal_conv1d_fn"])
@pytest.mark.usefixtures("plans", "searched")
@pytest.mark.parametrize(("function", "image", "window", "count"), STEPS.values(), ids=STEPS)
def test_a_training_step(function, image, window, count):
    with FakeTensorMode():
        x, filters, bias = (torch.empty(shape, device="neuron") for shape in (image, window, window[:1]))
        y = function(x, filters, bias)
        assert (y.device.type, y.shape[:2]) == ("neuron", (image[0], window[0]))
        graph, _ = aot_export_module(
            Loss(function, filters, bias), (x.requires_grad_(),), trace_joint=True, output_loss_index=0
        )
    told = launches_of(graph.graph)
    assert len(told) == count
    assert [one.constants["bias_gradient"] for one in told if one.kernel in FILTERS] == [True]
    assert all(map(follows_plan, told))
