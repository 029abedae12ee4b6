"""Faults that people reported of convolutions elsewhere: torch's values here, or modelled times that do not jump.

A row is named as the public report is, owner/repository#number of GitHub. Integers, so that sums are exact.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from causal import computing
from torch import nn
from torch.nn import functional as F

import nkiconv
from nkiconv import pytorch
from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update

pytestmark = pytest.mark.simulator_only


def ints(*shape, seed=0):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


#: Function of both torches, shapes of x and w, numbers: values and gradients of both.
CALLS = {
    "aws-neuron/aws-neuron-sdk#1295": ("conv2d", (1, 3, 32, 64), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "aws-neuron/aws-neuron-sdk#398": ("conv_transpose2d", (1, 256, 8, 8), (256, 128, 2, 2), {"stride": 2}),
    "hexgrad/kokoro#79": (
        "conv_transpose1d", (1, 70, 11), (70, 1, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 70},
    ),
    "pytorch/pytorch#92238": ("conv2d", (1, 2, 5, 4), (3, 2, 3, 3), {"padding": 100}),
    "pytorch/pytorch#106450": ("conv_transpose1d", (2, 3, 3), (3, 4, 3), {"dilation": 3, "output_padding": 2}),
    "modular/modular#6129": ("conv1d", (1, 96, 60), (96, 6, 128), {"padding": 64, "groups": 16}),
    "tensorflow/tensorflow#9870": ("conv1d", (65_537, 1, 4), (2, 1, 3), {}),
}  # fmt: skip


@pytest.mark.cover(2, keep=["modular/modular#6129"])
@pytest.mark.parametrize("row", CALLS.values(), ids=list(CALLS))
def test_values_and_gradients_are_torchs(row, plainly):
    name, x, w, numbers = row
    leaves = [ints(*x).requires_grad_(), ints(*w, seed=1).requires_grad_()]
    expected = getattr(F, name)(*leaves, **numbers)
    slopes = ints(*expected.shape, seed=9)
    with computing("simulate"):
        y = getattr(pytorch, name)(*leaves, **numbers)
        found = y, *torch.autograd.grad(y, leaves, slopes)
    for one, other in zip(found, (expected, *torch.autograd.grad(expected, leaves, slopes)), strict=True):
        assert torch.equal(one, other)


def test_many_channels():
    """Dao-AILab/causal-conv1d#32: 65,536 channels were more than a grid of blocks holds."""
    x, w = ints(1, 65_536, 4), ints(65_536, 2, seed=1)
    with computing("simulate"):
        assert torch.equal(causal_conv1d_fn(x, w), F.conv1d(F.pad(x, (1, 0)), w[:, None], groups=65_536))


def test_a_state_that_is_a_view(plainly):
    """pytorch/pytorch#131192: compiled code changed a copy where an operator changes a view of its input in place."""
    x, w = ints(2, 6, 1, seed=2), ints(6, 4, seed=1)

    def step(pool, x):
        return causal_conv1d_update(x, pool[1], w)

    eager = ints(3, 2, 6, 3)
    compiled, before = eager.clone(), eager.clone()
    with computing("simulate"):
        assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(compiled, x), step(eager, x))
    assert torch.equal(compiled, eager)
    assert not torch.equal(compiled[1], before[1])
    assert torch.equal(compiled[::2], before[::2])


def test_sums_of_bf16_gradients_are_fp32(plainly):
    """pytorch/pytorch#68048, ROCm/rocm-libraries#8029: a bias's stopped at 256, a 1x1x1 filter's were off by half."""
    layer = pytorch.convert(nn.Conv2d(1, 2, 3, 2, 1).bfloat16()).model
    with computing("simulate"):
        layer(torch.randn(1, 1, 80, 80, dtype=torch.bfloat16)).sum().backward()
    assert layer.bias.grad.tolist() == [1600, 1600]
    x, gy = (ints(8, 16, 16, 16, 16, seed=seed).numpy().astype(ml_dtypes.bfloat16) for seed in (0, 1))
    wanted = np.einsum("ncdhw,nkdhw->kc", x.astype(np.float64), gy.astype(np.float64))[..., None, None, None]
    np.testing.assert_array_equal(nkiconv.conv3d_weight(x, (16, 16, 1, 1, 1), gy), wanted)
