"""Second derivatives of packed sequences."""

import pytest
import torch
from causal import integers, leaves_of

from nkiconv.pytorch import causal_conv1d_fn


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("by", ["cu_seqlens", "seq_idx"])
def test_second_derivatives_of_packed_sequences(by, activation):
    """In float64, which torch computes; of all that has a gradient, states too where they are taken."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 7), (2, 3), (2,), *([(3, 2, 2)] if by == "cu_seqlens" else [])]
    leaves = [torch.randn(one, generator=generator, dtype=torch.float64, requires_grad=True) for one in shapes]
    numbers = torch.tensor([0, 2, 2, 7]) if by == "cu_seqlens" else torch.tensor([[0, 0, 1, -1, 2, 2, 2]])

    def packed(x, w, bias, states=None):
        found = causal_conv1d_fn(
            x, w, bias, initial_states=states, return_final_states=states is not None, activation=activation,
            **{by: numbers},
        )  # fmt: skip
        return found if states is not None else (found,)

    assert torch.autograd.gradcheck(packed, leaves)
    assert torch.autograd.gradgradcheck(packed, leaves)


def test_second_derivatives_of_packed_sequences_by_the_kernels(monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    numbers = torch.tensor([0, 2, 5])
    ours, _ = leaves_of(integers(1, 2, 5).clamp(-1, 1), integers(2, 3, seed=1).clamp(-1, 1))

    def second(*leaves):
        (first,) = torch.autograd.grad(
            causal_conv1d_fn(*leaves, cu_seqlens=numbers).pow(2).sum(), leaves[0], create_graph=True
        )
        return torch.autograd.grad(first.pow(2).sum(), leaves)

    found = second(*ours)
    monkeypatch.setenv("NKICONV_CPU", "torch")
    for one, other in zip(found, second(*(one.detach().double().requires_grad_() for one in ours)), strict=True):
        assert torch.equal(one.double(), other)
