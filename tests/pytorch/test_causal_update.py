"""causal_conv1d_update equals decoding one step after another by the definition, and changes nothing else."""

import causal
import pytest
import torch
from causal import DTYPES, LAYOUTS, MODES, computing, integers, laid_out, leaves_of
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT32_SUMS
from torch_exact import same

from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update


@draws(40, 100)
@given(st.data())
def test_integers_are_exact(data):
    """Any width, longer buffers, several steps, rings, chosen rows, every layout and dtype, in every mode."""
    width, steps = data.draw(st.integers(1, 9), "width"), data.draw(st.integers(1, 6), "steps")
    rows, channels = data.draw(st.integers(1, 4), "rows"), data.draw(st.integers(1, 4), "channels")
    size = width - 1 + data.draw(st.integers(0, 3), "more")
    dtype, layout = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(LAYOUTS))
    begins = indices = None
    held = rows
    if data.draw(st.booleans(), "ring"):
        begins = torch.tensor(data.draw(st.lists(st.integers(0, 30), min_size=rows, max_size=rows)), dtype=torch.int32)
    if data.draw(st.booleans(), "chosen"):
        held = rows + data.draw(st.integers(0, 2))
        order = data.draw(st.permutations(range(held)))[:rows]
        padding = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        indices = torch.tensor([-1 if none else one for one, none in zip(order, padding, strict=True)])
    x = laid_out(integers(rows, channels, steps, dtype=dtype), layout)
    state = laid_out(integers(held, channels, size, seed=3, dtype=dtype), layout)
    w = integers(channels, width, seed=1, dtype=dtype)
    bias = integers(channels, seed=2, dtype=dtype) if data.draw(st.booleans(), "bias") else None
    if begins is not None and size < width - 1 + steps - 1:
        steps = max(1, size - (width - 1) + 1)  # beyond, a step would overwrite what the next one sees
        x = x[..., :steps]
    ours, theirs = leaves_of(x, w, bias)
    expected, buffer = causal.steps(theirs[0], state, *theirs[1:], None, begins, indices)
    x, w, bias = ours
    given_x = x[..., 0] if x.shape[2] == 1 and data.draw(st.booleans(), "flat") else x
    strides = state.stride()
    with computing(data.draw(st.sampled_from(MODES), "mode")):
        y = causal_conv1d_update(given_x, state, w, bias, None, begins, indices)
        if dtype == torch.float32 and expected.requires_grad:
            g = integers(*expected.shape, seed=4)
            found = torch.autograd.grad(y, [*filter(torch.is_tensor, ours)], g.reshape(y.shape))
            wanted = torch.autograd.grad(expected, [*filter(torch.is_tensor, theirs)], g.double())
            assert same(found, wanted)
            assert not state.requires_grad
    assert y.dtype == dtype
    assert causal.lies_as(y, given_x)
    assert torch.equal(y, expected.reshape(given_x.shape).to(dtype))
    assert torch.equal(state, buffer)
    assert state.stride() == strides


@pytest.mark.parametrize("activation", ["silu", "swish"])
@pytest.mark.parametrize("mode", MODES)
def test_steps_are_the_whole_row(mode, activation):
    x, w, bias = integers(2, 3, 7), integers(3, 4, seed=1), integers(3, seed=2)
    state = torch.zeros(2, 3, 3)
    with computing(mode):
        whole = causal_conv1d_fn(x, w, bias, activation=activation)
        steps = [causal_conv1d_update(x[..., t], state, w, bias, activation) for t in range(7)]
    torch.testing.assert_close(torch.stack(steps, 2), whole, rtol=FLOAT32_SUMS, atol=0)
    assert torch.equal(state, x[..., -3:])


@pytest.mark.cover(8)
@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize("spoiled", ["x", "conv_state"])
@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_padding_has_no_say(mode, ring, steps, spoiled):
    """Not even where it is not finite, which the kernel spreads over rows of 8; nor where all rows are padding."""
    x, w, state = integers(3, 2, steps), integers(2, 4, seed=1), integers(4, 2, 3 + steps, seed=2)
    if spoiled == "x":
        x[1] = float("nan")
    else:
        state[0] = float("nan")
    begins = torch.tensor([5, 6, 7], dtype=torch.int32) if ring else None
    indices = torch.tensor([2, -1, 3], dtype=torch.int32)
    expected, buffer = causal.steps(x, state, w, None, None, begins, indices)
    with computing(mode):
        y = causal_conv1d_update(x, state, w, None, None, begins, indices)
        assert torch.equal(y.double(), expected)
        torch.testing.assert_close(state, buffer, rtol=0, atol=0, equal_nan=True)
        y = causal_conv1d_update(x, state, w, None, None, begins, torch.tensor([-1, -1, -5]))
    assert not y.any()
    torch.testing.assert_close(state, buffer, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cover(1)
@pytest.mark.parametrize("chosen", [{}, {"conv_state_indices": torch.tensor([3, -1])}], ids=["all", "chosen"])
@pytest.mark.parametrize("ring", [{}, {"cache_seqlens": torch.tensor([2, 9])}], ids=["end", "ring"])
def test_compiles_without_graph_breaks(ring, chosen):
    torch.compiler.reset()

    def step(x, state, w):
        return causal_conv1d_update(x, state, w, activation="silu", **ring, **chosen)

    x, w, states = integers(2, 3), integers(3, 4, seed=1), [integers(4 if chosen else 2, 3, 4) for _ in range(2)]
    with torch.no_grad():
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            assert torch.equal(compiled(x, states[0], w), step(x, states[1], w))
            assert torch.equal(*states)


def test_no_rows():
    y = causal_conv1d_update(torch.zeros(0, 3), torch.zeros(0, 3, 4), torch.zeros(3, 4))
    assert y.shape == (0, 3)
