"""Gradients by x take filters as they lie: torch neither reverses nor copies them."""

import pytest
import torch
from operators_seen import Seen

from nkiconv import pytorch
from nkiconv.pytorch import causal_conv1d_fn

X1, X2, X3 = (torch.randn(2, 8, *[6] * axes) for axes in (1, 2, 3))
CALLS = {
    "conv1d": lambda x, w: pytorch.conv1d(x, w, stride=2),
    "conv2d": lambda x, w: pytorch.conv2d(x, w, padding=1),
    "conv3d": lambda x, w: pytorch.conv3d(x, w, stride=(1, 2, 1)),
    "groups": lambda x, w: pytorch.conv2d(x, w, groups=4),
    "depthwise_conv1d": lambda x, w: pytorch.depthwise_conv1d(x, w, padding=2),
    "depthwise_conv1d, stride": lambda x, w: pytorch.depthwise_conv1d(x, w, stride=2),
    "depthwise_conv2d": lambda x, w: pytorch.depthwise_conv2d(x, w, padding=1),
    "conv_transpose2d": lambda x, w: pytorch.conv_transpose2d(x, w, stride=2),
    "causal_conv1d": lambda x, w: causal_conv1d_fn(x, w[:, 0], activation="silu"),
}
TENSORS = {
    "conv1d": (X1, (4, 8, 3)),
    "conv2d": (X2, (4, 8, 3, 3)),
    "conv3d": (X3, (4, 8, 3, 3, 3)),
    "groups": (X2, (4, 2, 3, 3)),
    "depthwise_conv1d": (X1, (8, 1, 3)),
    "depthwise_conv1d, stride": (X1, (8, 1, 3)),
    "depthwise_conv2d": (X2, (8, 1, 3, 3)),
    "conv_transpose2d": (X2, (8, 4, 3, 3)),
    "causal_conv1d": (X1, (8, 1, 4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_backward_pass_calls(name):
    x, size = TENSORS[name]
    given, w = x.clone().requires_grad_(), torch.randn(size).requires_grad_()
    with Seen() as mode:
        y = CALLS[name](given, w)
        (found,) = torch.autograd.grad(y.sum(), given)
    assert found.shape == x.shape
    assert len([one for one in mode.names if one.startswith("nkiconv::")]) > 1
    assert not {"aten::flip", "aten::index_select", "aten::clone", "aten::_reshape_copy"} & set(mode.names), mode.names
