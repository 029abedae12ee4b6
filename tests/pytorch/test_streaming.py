"""Videos in chunks in torch: frames in front of conv3d's input, and CausalConv3d as four video VAEs have it."""

import pytest
import torch
from chained import made
from torch.nn import functional as F

from nkiconv.pytorch import conv3d, nn, plan_model

GENERATOR = torch.Generator().manual_seed(0)


def ints(*shape, grad=False):
    return torch.randint(-2, 3, shape, generator=GENERATOR).float().requires_grad_(grad)


@pytest.mark.cover(2)
def test_one_volume_and_no_frames(mode):
    x, w = ints(4, 3, 5, 6), ints(6, 4, 2, 3, 3)
    y, final = conv3d(x, w, initial_frames=x[:, :1], return_final_frames=True)
    assert torch.equal(y, F.conv3d(torch.cat([x[:, :1], x], 1), w))
    assert torch.equal(final, x[:, 2:])
    y, final = conv3d(x, w[:, :, :1], initial_frames=x[:, :0], return_final_frames=True)
    assert torch.equal(y, F.conv3d(x, w[:, :, :1]))
    assert final.shape == (4, 0, 5, 6)


def by_definition(conv, x, cache, front, spatial, mode):
    """A causal layer by torch: planes are put in front, all is padded."""
    x = x if cache is None else torch.cat([cache, x], 2)
    lacks = front - (0 if cache is None else cache.shape[2])
    if mode == "zeros":
        x = F.pad(x, (0, 0, 0, 0, lacks, 0))
    elif lacks > 0:
        x = torch.cat([x[:, :, :1]] * lacks + [x], 2)
    around = (spatial[1],) * 2 + (spatial[0],) * 2 + (0, 0)
    return conv(F.pad(x, around) if mode == "zeros" else F.pad(x, around, mode=mode))


# why, taps, other arguments of CausalConv3d, (planes in front, spatial, how) and other arguments of the reference
LAYERS = [
    ("Wan", 3, {"padding": 1}, (2, (1, 1), "zeros"), {}),
    ("Wan's upsampling", (3, 1, 1), {"padding": (1, 0, 0)}, (2, (0, 0), "zeros"), {}),
    ("Wan's downsampling", (3, 1, 1), {"padding": 0, "stride": (2, 1, 1)}, (0, (0, 0), "zeros"), {}),
    ("LTX, zeros around", 3, {"padding": (1, 1), "time_padding": "replicate"}, None, {}),
    ("HunyuanVideo", 3, {"padding": (1, 1), "time_padding": "replicate", "padding_mode": "replicate"},
     (2, (1, 1), "replicate"), {}),
    ("dilation", 3, {"padding": (1, 1), "dilation": (2, 1, 1)}, (4, (1, 1), "zeros"), {"dilation": (2, 1, 1)}),
]  # fmt: skip


@pytest.mark.cover(4)
@pytest.mark.parametrize("row", LAYERS, ids=[row[0] for row in LAYERS])
def test_a_causal_layer_in_chunks_equals_its_definition(mode, row):
    _, taps, arguments, reference, more = row
    ours = nn.CausalConv3d(4, 6, taps, **arguments)
    if reference is None:  # replicated in time, zeros around
        reference, more = (2, (0, 0), "replicate"), {"padding": (0, 1, 1)}
    conv = torch.nn.Conv3d(4, 6, taps, stride=arguments.get("stride", 1), **more)
    with torch.no_grad():
        for one in ours.parameters():
            one.copy_(ints(*one.shape))
    conv.load_state_dict(ours.state_dict())
    x = ints(2, 4, 5, 5, 6)
    whole = by_definition(conv, x, None, *reference)
    assert torch.equal(ours(x), whole)
    if ours.stride[0] > 1:  # a caller that puts the last plane in front itself
        return
    for own in (False, True):  # the layer's cache, or callers keep the last two planes themselves: feat_cache
        cache, found = None, []
        for at, count in ((0, 1), (1, 1), (2, 3)):
            y, final = ours(x[:, :, at : at + count], cache, return_final_frames=True)
            assert torch.equal(y, by_definition(conv, x[:, :, at : at + count], cache, *reference))
            found.append(y)
            cache = x[:, :, max(0, at + count - 2) : at + count] if own else final
        if not own or (ours.time_padding == "zeros" and ours.dilation[0] == 1):
            assert torch.equal(torch.cat(found, 2), whole)


def test_a_plan_of_a_model_knows_of_frames():
    def twice(self, x):
        y, cache = self.conv(x, return_final_frames=True)
        return torch.cat([y, self.conv(x, cache)], 2)

    plan = plan_model(
        made(twice, conv=nn.CausalConv3d(8, 8, 3, padding=(1, 1))), torch.zeros(1, 8, 2, 6, 6), quick=True
    )
    assert sorted(row.plan.asked.initial_frames for row in plan.rows) == [0, 2]
    assert plan.flops.fraction == 1
