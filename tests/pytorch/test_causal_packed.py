"""Derivatives of packed sequences: the second ones, and whose those of filters are."""

import pytest
import torch
from causal import MODES, computing, integers, leaves_of, numbered
from draws import draws
from gradchecks import assert_derivatives
from hypothesis import given
from hypothesis import strategies as st

from nkiconv.pytorch import causal_conv1d_fn


@pytest.mark.cover(3)
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("by", ["cu_seqlens", "seq_idx"])
def test_second_derivatives_of_packed_sequences(by, activation):
    """In float64, which torch computes; of all that has a gradient, states too where they are taken."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 7), (2, 3), (2,), (3 if by == "cu_seqlens" else 1, 2, 2)]
    leaves = [torch.randn(one, generator=generator, dtype=torch.float64, requires_grad=True) for one in shapes]
    numbers = torch.tensor([0, 2, 2, 7]) if by == "cu_seqlens" else torch.tensor([[0, 0, 1, -1, 2, 2, 2]])

    def packed(x, w, bias, states=None):
        found = causal_conv1d_fn(
            x, w, bias, initial_states=states, return_final_states=states is not None, activation=activation,
            **{by: numbers},
        )  # fmt: skip
        return found if states is not None else (found,)

    assert_derivatives(packed, leaves)


@draws(25)
@given(st.data())
def test_rows_of_numbered_sequences_in_pieces(data):
    """States go from one piece to the next where a sequence does; y, states and derivatives are those of the whole."""
    width, length, channels = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 9)), 2
    numbers = []
    for _ in range(2):
        row = sorted(data.draw(st.lists(st.integers(0, 3), min_size=length, max_size=length), "numbers"))
        none = data.draw(st.lists(st.sampled_from([False, False, True]), min_size=length, max_size=length), "none")
        numbers.append([-1 if skip and at else number for at, (number, skip) in enumerate(zip(row, none, strict=True))])
    seq_idx, cut = torch.tensor(numbers), data.draw(st.integers(1, length - 1), "cut")
    seq_idx[:, cut] = torch.where(seq_idx[:, cut] < 0, seq_idx[:, :cut].amax(1), seq_idx[:, cut])
    given_x, given_w = integers(2, channels, length), integers(channels, width, seed=1)
    ours, theirs = leaves_of(given_x, given_w, integers(2, channels, width - 1, seed=2))
    x, w, before = ours
    pieces, states = [], before
    with computing(data.draw(st.sampled_from(MODES), "mode")):
        for begin, end in ((0, cut), (cut, length)):
            y, final = causal_conv1d_fn(x[..., begin:end], w, None, seq_idx[:, begin:end], states, True)
            assert final.shape == (2, channels, width - 1)
            pieces.append(y)
            goes_on = seq_idx[:, :end].amax(1) == seq_idx[:, min(end, length - 1)]
            states = torch.where(goes_on[:, None, None], final, 0)
        y, g = torch.cat(pieces, 2), integers(2, channels, length, seed=3)
        found = torch.autograd.grad(y, ours, g)
    expected = numbered(theirs[0], seq_idx, theirs[1], None, None, theirs[2])
    assert torch.equal(y.double(), expected)
    for one, other in zip(found, torch.autograd.grad(expected, theirs, g.double(), allow_unused=True), strict=True):
        assert torch.equal(one.double(), torch.zeros_like(one).double() if other is None else other)


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize("mode", ["torch", "simulate"])
def test_what_is_not_finite_inside_a_sequence_reaches_its_channel(mode):
    x, w = integers(1, 3, 40), integers(3, 4, seed=1)
    x[0, 1, 7] = float("nan")
    ours, _ = leaves_of(x, w)
    with computing(mode):
        causal_conv1d_fn(*ours, cu_seqlens=torch.tensor([0, 15, 40])).sum().backward()
    assert torch.equal(ours[1].grad.isnan(), torch.tensor([[False], [True], [False]]).expand(3, 4))
