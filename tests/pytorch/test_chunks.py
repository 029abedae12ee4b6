"""Rows in chunks equal the whole: functions and modules, with the states that neural codecs keep."""

import pytest
import torch
from causal import DTYPES, MODES, computing, integers
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import nkiconv.pytorch as ours


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
