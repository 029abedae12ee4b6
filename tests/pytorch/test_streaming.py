"""Videos and rows in chunks: frames in front of conv3d's input, CausalConv3d of video VAEs, codecs' states."""

import numpy as np
import pytest
import torch
from causal import DTYPES, MODES, computing, integers
from chained import made
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch_exact import filled

from nkiconv import pytorch as ours
from nkiconv.pytorch import conv3d, nn, plan_model


@pytest.mark.cover(2)
def test_one_volume_and_no_frames(mode):
    x, w = integers(4, 3, 5, 6), integers(6, 4, 2, 3, 3)
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
    ("Wan", 3, {"padding": np.int64(1)}, (2, (1, 1), "zeros"), {}),
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
    ours = filled(nn.CausalConv3d(4, 6, taps, **arguments))
    if reference is None:  # replicated in time, zeros around
        reference, more = (2, (0, 0), "replicate"), {"padding": (0, 1, 1)}
    conv = torch.nn.Conv3d(4, 6, taps, stride=arguments.get("stride", 1), **more)
    conv.load_state_dict(ours.state_dict())
    x = integers(2, 4, 5, 5, 6)
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
        made(twice, conv=nn.CausalConv3d(8, 8, 3, padding=(1, 1))), [torch.zeros(1, 8, 2, 6, 6)], quick=True
    )
    assert sorted(row.plan.asked.initial_frames for row in plan.rows) == [0, 2]
    assert plan.flops.fraction == 1


# Rows in chunks equal the whole: functions and modules, with the states that neural codecs keep.


def cut(data, length):
    found = []
    while sum(found) < length:
        found.append(data.draw(st.integers(1, length - sum(found)), "chunk"))
    return found


@draws(48, 200)
@given(st.data())
def test_chunks(data):
    """Of convolutions, and of transposed ones, of which zeros bring what is behind the last input's outputs."""
    back, dtype = data.draw(st.booleans(), "transposed"), data.draw(st.sampled_from(DTYPES))
    S, dilation, groups = (data.draw(one) for one in (st.integers(1, 6), st.integers(1, 3), st.sampled_from([1, 2, 4])))
    window = (S - 1) * dilation + 1
    stride = data.draw(st.integers(1, 5 if back else window))
    length = data.draw(st.integers(1, 9) if back else st.integers(window, window + 9))
    x, w = integers(2, 4, length, dtype=dtype), integers(4, 4 // groups, S, seed=1, dtype=dtype)
    bias, pieces, held = integers(4, seed=2, dtype=dtype), [*x.split(cut(data, length), 2)], (window - 1) // stride
    if back:
        whole = F.conv_transpose1d(x.double(), w.double(), None, stride, 0, 0, groups, dilation)
        whole = F.pad(whole, (0, max(0, stride - window))) + bias.double()[:, None]
        pieces += [torch.zeros(2, 4, held, dtype=dtype)] if held else []
    else:
        whole = F.conv1d(x.double(), w.double(), bias.double(), stride, 0, dilation, groups)
    call, state, found = ours.conv_transpose1d_chunk if back else ours.conv1d_chunk, None, []
    with computing(data.draw(st.sampled_from(MODES), "mode")):
        for piece in pieces:
            y, state = call(piece, state, w, bias, stride=stride, groups=groups, dilation=dilation)
            assert y.dtype == state.dtype == dtype
            assert not back or (y.shape[2], state.shape[2]) == (piece.shape[2] * stride, held)
            found.append(y)
    assert torch.equal(torch.cat(found, 2)[..., : whole.shape[2]], whole.to(dtype))
    assert back or state.shape[2] == length - whole.shape[2] * stride


def test_a_chunk_shorter_than_the_window_gives_nothing():
    y, state = ours.conv1d_chunk(torch.ones(1, 2, 1), None, torch.ones(2, 2, 3))
    assert (y.shape, state.shape) == ((1, 2, 0), (1, 2, 1))


@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
def test_a_codec_in_chunks(padding_mode):
    """Strided down and up again, as EnCodec and Mimi do; torch's state_dict loads; derivatives go through states."""
    torch.manual_seed(0)
    down = ours.StreamingConv1d(1, 4, 4, 2, padding_mode=padding_mode, activation="silu").double()
    up = ours.StreamingConvTranspose1d(4, 1, 4, 2, groups=1).double()
    plain = torch.nn.Conv1d(1, 4, 4, 2).double(), torch.nn.ConvTranspose1d(4, 1, 4, 2).double()
    for module, one in zip((down, up), plain, strict=True):
        one.load_state_dict(module.state_dict())
    x = torch.randn(2, 1, 24, dtype=torch.float64, requires_grad=True)
    mode = "constant" if padding_mode == "zeros" else "replicate"
    expected = plain[1](F.silu(plain[0](F.pad(x, (2, 0), mode=mode))))[..., :24]
    states, found = [None, None], []
    for chunk in x.split([6, 8, 2, 8], 2):
        y, states[0] = down(chunk, states[0])
        y, states[1] = up(y, states[1])
        found.append(y)
        assert [one.shape[2] for one in states] == [2, 1]
    y = torch.cat(found, 2)
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    leaves = [x, down.weight, down.bias, up.weight, up.bias]
    theirs = [x, plain[0].weight, plain[0].bias, plain[1].weight, plain[1].bias]
    torch.testing.assert_close([*torch.autograd.grad(y, leaves, g)], [*torch.autograd.grad(expected, theirs, g)])
