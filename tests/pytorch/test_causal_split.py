"""The convolution stage on tensors: values, states and sequences by each computer, and derivatives."""

import itertools

import pytest
import torch
from causal import computing
from layers import SPLITS, held_after, split_in_torch
from layers import of_split as data
from split_heads import check
from tolerances import BF16_NORMS, FLOAT32_SUMS, assert_within_share

from nkiconv.errors import NkiconvError
from nkiconv.pytorch import causal_conv1d_split, causal_conv1d_split_update, nn
from nkiconv.pytorch.computers.arrays import to_numpy

C = 47


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_states(mode, layout, dtype):
    x, w, bias, state = data(layout=layout, dtype=dtype)
    parts, final = causal_conv1d_split(
        x, w, bias, splits=SPLITS, layout=layout, initial_states=state, return_final_states=True
    )
    arrays = [to_numpy(one) for one in (x, w, bias, state)]
    found = tuple(map(to_numpy, parts))
    check(found, arrays[0], arrays[1], SPLITS, bias=arrays[2], layout=layout, initial_state=arrays[3])
    rows = x if layout == "NCW" else x.transpose(1, 2)
    assert torch.equal(final, rows[:, :, -3:])
    assert all(one.is_contiguous() for one in (*parts, final))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_packed_sequences(mode, as_tensor):
    offsets = (0, 2, 2, 9, 11)
    x, w, bias, state = data(N=1, rows=4, dtype=torch.float32)
    given = torch.tensor(offsets) if as_tensor else offsets
    more = {"splits": SPLITS, "return_final_states": True}
    parts, final = causal_conv1d_split(x, w, bias, initial_states=state, cu_seqlens=given, **more)
    assert torch.equal(final[1], state[1])
    for k, (first, end) in enumerate(itertools.pairwise(offsets)):
        if end > first:
            alone, last = causal_conv1d_split(x[:, :, first:end], w, bias, initial_states=state[k : k + 1], **more)
            assert torch.equal(last[0], final[k])
            for one, part in zip(alone, parts, strict=True):
                assert_within_share([part[:, first:end]], [one], FLOAT32_SUMS)


@pytest.mark.cover(4)
@pytest.mark.parametrize("offsets", [None, (0, 2, 2, 9, 11)])
@pytest.mark.parametrize("positions", [(1, 3, 11, 2), torch.tensor([10, 2])])
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize("final", [False, True])
def test_states_after_positions(mode, offsets, positions, layout, final):
    """What prefix caches keep, x's bits, of a module too; a call as short as a step returns them as well."""
    x, w, bias, state = data(2 if offsets is None else 1, layout=layout, dtype=torch.bfloat16, rows=offsets and 4)
    asked = {"cu_seqlens": offsets, "state_positions": positions}
    stage = nn.GatedDeltaConv(SPLITS, 4, bias=True, layout=layout)
    stage.load_state_dict({"weight": w[:, None], "bias": bias}, assign=True)
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


def test_module():
    """A state_dict of torch's depthwise convolution loads; y is that of the function."""
    stage = nn.GatedDeltaConv(SPLITS, 4, bias=True)
    stage.load_state_dict(torch.nn.Conv1d(C, C, 4, groups=C).state_dict())
    x = data(layout="NWC")[0]
    parts, final = stage(x, return_final_states=True)
    given = {"splits": SPLITS, "layout": "NWC", "return_final_states": True}
    wanted, last = causal_conv1d_split(x, stage.weight.squeeze(1), stage.bias, **given)
    assert all(torch.equal(one, other) for one, other in zip((*parts, final), (*wanted, last), strict=True))
    assert "kernel_size=4, bias=True" in repr(stage)
    assert nn.GatedDeltaConv(SPLITS, 4).bias is None


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


X, WEIGHT = torch.ones(1, C, 5), torch.ones(C, 4)


def test_no_rows(mode):
    parts, kept = causal_conv1d_split(torch.ones(0, C, 5), WEIGHT, splits=SPLITS, state_positions=(2,))
    assert kept.shape == (0, 1, C, 3)
    steps = causal_conv1d_split_update(torch.ones(0, C), torch.ones(0, C, 3), WEIGHT, splits=SPLITS)
    assert [one.shape for one in parts] == [(0, 5, 2, 8), (0, 5, 1, 16), (0, 5, 3, 5)]
    assert [one.shape for one in steps] == [(0, 2, 8), (0, 1, 16), (0, 3, 5)]
