"""torch.utils.flop_counter counts of our operators what it counts of torch's."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nkiconv import pytorch

#: Modules by torch and by us, and an input's shape.
MODULES = {
    "rows": (lambda of: of.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "depthwise rows": (lambda of: of.Conv1d(4, 4, 3, groups=4, padding="same"), (2, 4, 9)),
    "images": (lambda of: of.Conv2d(4, 6, (3, 2), padding=1, dilation=2), (2, 4, 9, 8)),
    "groups and strides": (lambda of: of.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9, 8)),
    "one image": (lambda of: of.Conv2d(4, 6, 3), (4, 9, 8)),
    "volumes": (lambda of: of.Conv3d(4, 6, (2, 3, 1), stride=(1, 2, 1)), (2, 4, 4, 5, 3)),
    "transposed rows": (lambda of: of.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 9)),
    "transposed images": (lambda of: of.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5, 6)),
    "transposed volumes": (lambda of: of.ConvTranspose3d(4, 6, 2), (2, 4, 2, 3, 4)),
}


def flops(function, *args):
    with FlopCounterMode(display=False) as counter:
        y = function(*args)
        forward = counter.get_total_flops()
        y.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize(("make", "shape"), MODULES.values(), ids=MODULES)
def test_modules(make, shape):
    x = torch.randn(shape, requires_grad=True)
    expected = flops(make(nn), x)
    assert flops(make(pytorch.nn), x) == expected
    assert expected[1] == 3 * expected[0] or any(name in str(make(nn)) for name in ("groups", "stride"))


def test_frames_count_as_planes():
    x, frames, w = torch.randn(1, 2, 3, 4, 5), torch.randn(1, 2, 2, 4, 5), torch.randn(3, 2, 2, 3, 3)
    leaves = [one.requires_grad_() for one in (x, frames, w)]
    expected = flops(lambda x, frames, w: F.conv3d(torch.cat([frames, x], 2), w), *leaves)
    assert flops(lambda x, frames, w: pytorch.conv3d(x, w, initial_frames=frames), *leaves) == expected


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("packed", [False, True])
def test_causal_rows(packed, activation):
    """With an activation the forward runs once more in backward."""
    x, w = torch.randn(1, 4, 12, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    forward, both = flops(lambda x, w: F.conv1d(F.pad(x, (2, 0)), w[:, None], groups=4), x, w)
    more = {"cu_seqlens": torch.tensor([0, 5, 12])} if packed else {}
    found = flops(lambda x, w: pytorch.causal_conv1d_fn(x, w, activation=activation, **more), x, w)
    assert found == (forward, both + (forward if activation else 0))
