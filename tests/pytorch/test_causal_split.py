"""The convolution stage on tensors: values, states and sequences by each computer, and derivatives."""

import pytest
import torch
from causal import computing
from layers import ENDS, SPLITS, held_after, split_in_torch
from layers import of_split as data
from tolerances import BF16_NORMS, FLOAT32_SUMS, assert_within_share

from nkiconv.errors import NkiconvError
from nkiconv.pytorch import causal_conv1d_split, causal_conv1d_split_update, nn


@pytest.mark.cover(4)
@pytest.mark.parametrize("offsets", [None, ENDS])
@pytest.mark.parametrize("positions", [(1, 3, 11, 2), torch.tensor([10, 2])])
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize("final", [False, True])
def test_states_after_positions(mode, offsets, positions, layout, final):
    """What prefix caches keep, x's bits, of a module too; a call as short as a step returns them as well."""
    x, w, bias, state = data(2 if offsets is None else 1, layout=layout, dtype=torch.bfloat16, rows=offsets and 4)
    asked = {"cu_seqlens": offsets, "state_positions": positions}
    stage = nn.GatedDeltaConv(SPLITS, 4, bias=True, layout=layout)
    stage.load_state_dict({"weight": w[:, None], "bias": bias}, assign=True)
    assert "kernel_size=4, bias=True" in repr(stage)
    parts, *ends, kept = stage(x, state, final, **asked)
    rows = x if layout == "NCW" else x.transpose(1, 2)
    wanted = held_after(rows, state, list(positions), offsets[:-1] if offsets else (0,))
    assert len(ends) == final
    assert torch.equal(kept, wanted)
    given = {"splits": SPLITS, "layout": layout, "initial_states": state, "cu_seqlens": offsets}
    for one, right in zip(parts, causal_conv1d_split(x, w, bias, **given), strict=True):
        assert torch.equal(one, right)


def test_derivatives_in_bf16_are_near(mode):
    """z is rounded before the norm is computed again: relative to the largest, a few roundings."""
    x, w = given = [one.requires_grad_() for one in data(1, 40, dtype=torch.bfloat16)[:2]]
    parts = causal_conv1d_split(x, w, splits=SPLITS)
    exact = [one.detach().double().requires_grad_() for one in given]
    *wanted, _ = split_in_torch(*exact)
    sums = [sum(one.double().sin().sum() for one in each) for each in (parts, wanted)]
    for one, right in zip(torch.autograd.grad(sums[0], (x, w)), torch.autograd.grad(sums[1], exact), strict=True):
        assert_within_share([one], [right], BF16_NORMS)


@pytest.mark.cover(6)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("L", [1, 3, 20])
def test_steps_are_one_run(mode, indexed, L):
    """Steps of one, three and more tokens than the kernel of steps takes: parts, states, padding, derivatives."""
    x, w, bias, _ = (one.requires_grad_() for one in data(3, L))
    buffer = data(6, 1, rows=6)[3]
    indices = torch.tensor([4, -1, 0]) if indexed else None
    state = torch.cat([buffer[:, :, :1] * 0, buffer], 2)[: 6 if indexed else 3].clone()  # longer than the window
    before, given = state.clone(), x[:, :, 0] if L == 1 else x
    parts = causal_conv1d_split_update(given, state, w, bias, splits=SPLITS, conv_state_indices=indices)
    own = before[:, :, 1:] if indices is None else before[:, :, 1:][indices]
    whole = causal_conv1d_split(x, w, bias, splits=SPLITS, initial_states=own)
    kept = [True] * 3 if indices is None else [True, False, True]
    for one, right in zip(parts, whole, strict=True):
        one = one[:, None] if L == 1 else one
        assert_within_share([one[kept]], [right[kept]], FLOAT32_SUMS)
        assert (~one[[not each for each in kept]].bool()).all()
    wanted = before.clone()
    rows = torch.arange(3)[kept]
    places = rows if indices is None else indices[kept]
    wanted[places] = torch.cat([before[places], x.detach()[rows]], 2)[:, :, -4:]
    assert torch.equal(state, wanted)
    sums = [sum(one.sin()[kept].sum() for one in each) for each in (parts, whole)]
    for one, right in zip(*(torch.autograd.grad(each, (x, w, bias)) for each in sums), strict=True):
        assert_within_share([one], [right], FLOAT32_SUMS)


def test_kernel_that_is_wrong_is_found(monkeypatch):
    from nkiconv.pytorch.computers import simulated

    right = simulated.causal_conv1d_split

    def wrong(*args):
        first, *rest = right(*args)
        return [first * (1 + 2**-12), *rest]

    monkeypatch.setattr(simulated, "causal_conv1d_split", wrong)
    x, w, *_ = data()
    with computing("compare"), pytest.raises(NkiconvError, match="further from float64"):
        causal_conv1d_split(x, w, splits=SPLITS)


def test_a_step_of_no_rows(mode):
    x, state, rows = torch.zeros(0, 3), torch.ones(2, 3, 4), torch.zeros(0, dtype=torch.int32)
    (y,) = causal_conv1d_split_update(x, state, torch.ones(3, 4), splits=[(1, 3, False)], conv_state_indices=rows)
    assert y.shape == (0, 1, 3)
    assert torch.equal(state, torch.ones(2, 3, 4))


def test_no_rows(mode):
    steps = causal_conv1d_split_update(torch.ones(0, 47), torch.ones(0, 47, 3), torch.ones(47, 4), splits=SPLITS)
    assert [one.shape for one in steps] == [(0, 2, 8), (0, 1, 16), (0, 3, 5)]
