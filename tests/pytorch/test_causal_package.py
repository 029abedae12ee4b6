"""What the package causal-conv1d has beside its two functions, by the modules that libraries import it from."""

import importlib

import pytest
import torch
from causal import integers, rows, steps

from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update, install_causal_conv1d

#: What others import, from where.
IMPORTED = {
    "causal_conv1d": ("causal_conv1d_fn", "causal_conv1d_update", "__version__"),
    "causal_conv1d.causal_conv1d_interface": (
        "causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_ref", "causal_conv1d_update_ref"),
    "causal_conv1d.causal_conv1d_varlen": ("causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"),
    "causal_conv1d.cpp_functions": (
        "causal_conv1d_fwd_function", "causal_conv1d_bwd_function", "causal_conv1d_update_function"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def installed():
    with install_causal_conv1d():
        yield


def of(module, name):
    return getattr(importlib.import_module(f"causal_conv1d.{module}"), name)


@pytest.mark.parametrize("module", IMPORTED)
def test_imports(module):
    found = importlib.import_module(module)
    assert all(hasattr(found, name) for name in IMPORTED[module])


@pytest.mark.parametrize(
    ("length", "with_state", "activation"), [(1, True, None), (2, False, "swish"), (9, True, "silu")]
)
def test_reference_of_rows(length, with_state, activation):
    x, weight, bias, out = integers(2, 3, length), integers(3, 4, seed=1), integers(3, seed=2), torch.empty(2, 3, 3)
    state = integers(2, 3, 3, seed=3) if with_state else None
    expected, final = rows(x, weight, bias, state, activation)
    found = of("causal_conv1d_interface", "causal_conv1d_ref")(x, weight, bias, state, True, out, activation)
    assert found[1] is out
    assert torch.equal(out, final)
    torch.testing.assert_close(found[0], expected.float())


@pytest.mark.parametrize("begins", [None, torch.tensor([5, 1], dtype=torch.int32)])
def test_reference_of_steps(begins):
    x, weight, bias, state = integers(2, 3, 3), integers(3, 4, seed=1), integers(3, seed=2), integers(2, 3, 6, seed=3)
    expected, buffer = steps(x, state, weight, bias, "silu", begins)
    found = of("causal_conv1d_interface", "causal_conv1d_update_ref")(x, state, weight, bias, "silu", begins)
    torch.testing.assert_close(found, expected.float())
    assert torch.equal(state, buffer)


@pytest.mark.parametrize("lengths", [[3, 1, 0, 7], [2], [0], []])
@pytest.mark.parametrize("state_len", [0, 1, 4])
def test_states_of_packed_sequences(lengths, state_len):
    x = integers(sum(lengths), 3)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    found = of("causal_conv1d_varlen", "causal_conv1d_varlen_states")(x, ends.int(), state_len)
    again = of("causal_conv1d_varlen", "causal_conv1d_varlen_states_ref")(x, ends, state_len)
    assert found.shape == (len(lengths), 3, state_len)
    assert torch.equal(found, again)
    for k, length in enumerate(lengths):
        for back in range(1, state_len + 1):
            expected = x[ends[k + 1] - back] if back <= length else torch.zeros(3)
            assert torch.equal(found[k, :, -back], expected)


CALLS = {
    "plain": {}, "state": {"initial": True, "final": True}, "silu": {"silu": True},
    "all": {"initial": True, "final": True, "silu": True}, "packed": {"packed": True},
    "mixed": {"silu": True, "x_dtype": torch.bfloat16},
}  # fmt: skip


@pytest.mark.parametrize("asked", CALLS.values(), ids=CALLS)
def test_functions_below_autograd_agree_with_autograd(asked):
    dtype = asked.get("x_dtype", torch.float32)
    x, weight, bias = integers(2, 3, 7, dtype=dtype), integers(3, 4, seed=1), integers(3, seed=2)
    seq_idx = torch.tensor([[0, 0, 1, 1, 1, 2, -1]] * 2, dtype=torch.int32) if "packed" in asked else None
    initial = integers(2, 3, 3, seed=3, dtype=dtype) if "initial" in asked else None
    silu, final = "silu" in asked, "final" in asked
    leaves = [one.clone().requires_grad_() for one in (x, weight, bias, initial) if one is not None]
    state = leaves[3] if initial is not None else None
    y = causal_conv1d_fn(*leaves[:3], seq_idx, state, final, activation="silu" if silu else None)
    g, g_final = integers(2, 3, 7, seed=4, dtype=dtype), integers(2, 3, 3, seed=5, dtype=dtype) if final else None
    outputs, gradients = (y, (g, g_final)) if final else ((y,), (g,))
    expected = torch.autograd.grad(outputs, leaves, gradients)
    out = torch.empty(2, 3, 3, dtype=dtype) if final else None
    found = of("cpp_functions", "causal_conv1d_fwd_function")(x, weight, bias, seq_idx, initial, out, silu)
    assert not found.requires_grad
    assert torch.equal(found, outputs[0])
    assert not final or torch.equal(out, outputs[1])
    dx = torch.full_like(x, 9)
    below = of("cpp_functions", "causal_conv1d_bwd_function")(
        x, weight, bias, g, seq_idx, initial, g_final, dx, initial is not None, silu
    )
    assert below[0] is dx
    assert [one.dtype for one in below[:3]] == [dtype, torch.float32, torch.float32]
    for one, other in zip(below, expected, strict=False):
        torch.testing.assert_close(one, other)
    assert initial is not None or below[3] is None


def test_a_step_below_autograd():
    x, weight, bias = integers(2, 3, 2), integers(3, 4, seed=1), integers(3, seed=2).requires_grad_()
    states = [integers(2, 3, 5, seed=3) for _ in range(2)]
    found = of("cpp_functions", "causal_conv1d_update_function")(x, states[0], weight, bias, True, None, None)
    expected = causal_conv1d_update(x, states[1], weight, bias, "silu")
    assert not found.requires_grad
    assert torch.equal(found, expected)
    assert torch.equal(*states)
