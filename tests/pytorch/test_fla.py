"""`nkiconv.pytorch.fla` equals what flash-linear-attention's functions say, row by row in float64."""

import causal
import pytest
import torch
from causal import DTYPES, MODES, computing, integers, leaves_of
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch_exact import same

from nkiconv.pytorch.fla import causal_conv1d, causal_conv1d_update


def expected_of(x, w, bias, residual, state, offsets):
    """(y [tokens, C], final states) of tokens [tokens, C] of sequences: a state's first column is seen by none."""
    size, found, finals = w.shape[1], [], []
    for k in range(len(offsets) - 1):
        tokens = x[offsets[k] : offsets[k + 1]].T
        before = x.new_zeros(w.shape[0], size) if state is None else state[k]
        if tokens.shape[1]:
            found.append(causal.row(tokens, w, bias, before[:, 1:]).T)
        finals.append(torch.cat([before, tokens], 1)[:, tokens.shape[1] :])
    y = torch.cat(found)
    return y if residual is None else y + residual, torch.stack(finals)


@draws(24, 100)
@given(st.data())
def test_rows_and_sequences(data):
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any), "lengths")
    packed = data.draw(st.booleans(), "packed")
    lengths = lengths if packed else [max(lengths)] * len(lengths)
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    channels, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4), "width")
    x, w = integers(offsets[-1], channels), integers(channels, width, seed=1)
    bias = integers(channels, seed=2) if data.draw(st.booleans(), "bias") else None
    residual = integers(offsets[-1], channels, seed=4) if data.draw(st.booleans(), "residual") else None
    state = integers(len(lengths), channels, width, seed=3) if data.draw(st.booleans(), "state") else None
    ours, theirs = leaves_of(x, w, bias, residual, state)
    expected = expected_of(*theirs, offsets)
    shape = (1 if packed else len(lengths), -1, channels)
    with computing(data.draw(st.sampled_from(MODES))):
        added = None if residual is None else ours[3].reshape(shape)
        more = {"cu_seqlens": torch.tensor(offsets)} if packed else {}
        y, final = causal_conv1d(ours[0].reshape(shape), ours[1], ours[2], added, ours[4], True, **more)
        y = y.reshape(x.shape)
        gs = integers(*x.shape, seed=5), integers(*final.shape, seed=6)
        given_to = [one for one in ours if one is not None]
        found = torch.autograd.grad((y, final), given_to, gs, allow_unused=True)
    assert same((y, final), expected)
    wanted = torch.autograd.grad(
        expected, [one for one in theirs if one is not None], [g.double() for g in gs], allow_unused=True
    )
    for one, other in zip(found, wanted, strict=True):
        assert (one is None and not other.any()) if one is None or other is None else torch.equal(one.double(), other)


@pytest.mark.cover(24)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 2), (3, 1, 2), (1, 3, 2)])
def test_steps(shape, dtype, mode):
    """As many steps as a row has tokens give the row, and its final state."""
    text, w = integers(3, 6, 2, dtype=dtype), integers(2, 4, seed=1, dtype=dtype)
    whole, final = causal_conv1d(text, w, None, text, output_final_state=True)
    cache = torch.zeros(3, 2, 4, dtype=dtype)
    for t in range(6):
        x = text[:, t].reshape(shape)
        with computing(mode):
            y, held = causal_conv1d_update(x, cache, x, w)
        assert y.shape == shape
        assert held is cache
        assert torch.equal(y.reshape(3, 2), whole[:, t])
    assert torch.equal(cache, final)
