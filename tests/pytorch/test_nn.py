"""The modules equal torch's: parameters, values and gradients."""

import copy
import io

import pytest
import torch
from operators_seen import Seen
from torch.nn import functional as F
from torch_exact import integers, leaves_of, same

from nkiconv.pytorch import nn

#: class, arguments, input's shape, operator
MODULES = [
    ("Conv1d", (6, 4, 3), {"bias": False, "stride": 2, "padding": 2, "groups": 2}, (2, 6, 11), "conv1d"),
    ("Conv1d", (6, 6, 5), {"padding": "same", "dilation": 2, "groups": 6}, (6, 11), "depthwise_conv1d"),
    ("Conv1d", (6, 12, 5), {"groups": 6}, (2, 6, 11), "conv1d"),
    ("Conv1d", (1, 1, 5), {}, (2, 1, 11), "depthwise_conv1d"),
    ("Conv2d", (6, 4, (3, 2)), {"padding": (1, 0), "dtype": torch.bfloat16}, (2, 6, 9, 8), "conv2d"),
    ("Conv2d", (6, 4, 3), {"stride": (2, 1), "dilation": (1, 2), "padding": 2, "groups": 2}, (6, 9, 8), "conv2d"),
    ("Conv3d", (6, 6, 3), {"padding": "valid", "groups": 6}, (2, 6, 4, 5, 6), "conv3d"),
]


def fill(module):
    with torch.no_grad():
        for i, one in enumerate(module.parameters()):
            one.copy_(*integers(one.shape, seed=i))
    return module


@pytest.mark.cover(6)
@pytest.mark.parametrize(("name", "sizes", "more", "shape", "operator"), MODULES, ids=lambda value: str(value)[:30])
def test_equals_torchs_module(name, sizes, more, shape, operator, mode):
    ours, theirs = (getattr(of, name)(*sizes, **more) for of in (nn, torch.nn))
    fill(ours)
    assert theirs.load_state_dict(ours.state_dict()).missing_keys == []
    dtype = more.get("dtype", torch.float32)
    (x,), (wide,) = leaves_of(shape, dtype=dtype, seed=7)
    with Seen() as ran:
        y = ours(x)
    assert ran.convolutions == [f"nkiconv::{ours.operator}"] == [f"nkiconv::{operator}"]
    expected = theirs.double()(wide)
    assert y.dtype == dtype
    (g,) = integers(y.shape, seed=8)
    found = torch.autograd.grad(y, [x, *ours.parameters()], g.to(dtype))
    assert same([y, *found], [expected, *torch.autograd.grad(expected, [wide, *theirs.parameters()], g.double())])


#: in, out, taps, groups, dilation, stride
CAUSAL = [(6, 4, 3, 1, 1, 1), (6, 6, 4, 6, 1, 1), (6, 6, 4, 6, 3, 1), (6, 4, 3, 2, 2, 2), (4, 4, 1, 4, 5, 1)]


@pytest.mark.cover(7)
@pytest.mark.parametrize(("inputs", "outputs", "taps", "groups", "dilation", "stride"), CAUSAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_causal_equals_padding_on_the_left(inputs, outputs, taps, groups, dilation, stride, dtype, mode):
    conv = fill(nn.CausalConv1d(inputs, outputs, taps, stride, dilation, groups, dtype=dtype))
    for shape in ((2, inputs, 11), (inputs, 3)):
        (x,) = integers(shape, dtype=dtype, seed=5)
        padded = F.pad(x.double(), ((taps - 1) * dilation, 0))
        numbers = {"stride": stride, "dilation": dilation, "groups": groups}
        expected = F.conv1d(padded, conv.weight.double(), conv.bias.double(), **numbers)
        assert torch.equal(conv(x), expected.to(dtype))
    assert conv.operator == ("depthwise_conv1d" if groups == inputs == outputs else "conv1d")


def test_state_dicts_go_both_ways_and_copies_keep_the_fusion():
    conv = nn.CausalConv1d(4, 4, 3, groups=4, activation="silu", residual_position="post_activation", layer="mixer")
    torch.nn.Conv1d(4, 4, 3, groups=4).load_state_dict(conv.state_dict())
    saved = io.BytesIO()
    torch.save(conv, saved)
    saved.seek(0)
    x = torch.randn(2, 4, 9)
    for other in (copy.deepcopy(conv), torch.load(saved, weights_only=False)):
        assert (other.activation, other.residual_position, other.layer) == ("silu", "post_activation", "mixer")
        assert torch.equal(other(x), conv(x))
