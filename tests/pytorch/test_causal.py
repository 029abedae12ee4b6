"""causal_conv1d_fn and causal_conv1d_update equal the definition, in rows and step by step: values, states, slopes;
nothing passes between sequences, and nothing else changes.
"""

import itertools

import causal
import numpy as np
import pytest
import torch
from causal import DTYPES, LAYOUTS, MODES, computing, integers, laid_out, leaves_of
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from layers import ENDS, SPLITS, held_after, split_in_torch
from layers import of_split as data
from tolerances import BF16_NORMS, FLOAT32_SUMS, assert_within_share
from torch.nn import functional as F
from torch_exact import same

from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_split, causal_conv1d_split_update, causal_conv1d_update, nn


def assert_equal(found, expected):
    assert torch.equal(found, expected.to(found.dtype))


def assert_derivatives(ours, theirs, outputs, expected):
    gs = [integers(*one.shape, seed=5 + i) for i, one in enumerate(outputs)]
    inputs = [one for one in ours if one is not None]
    wide = [one for one in theirs if one is not None]
    found = torch.autograd.grad(outputs, inputs, [g.to(y.dtype) for g, y in zip(gs, outputs, strict=True)])
    wanted = torch.autograd.grad(expected, wide, [g.double() for g in gs], allow_unused=True)
    for one, other, leaf in zip(found, wanted, inputs, strict=True):
        assert_equal(one, torch.zeros_like(leaf) if other is None else other)


def drawn(data, rows, length, states):
    """x, weight, bias and initial states of random channels, width, dtype and layout, and the dtype."""
    width, channels = data.draw(st.integers(1, 9), "width"), data.draw(st.integers(1, 4), "channels")
    dtype, layout = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(LAYOUTS))
    x = laid_out(integers(rows, channels, length, dtype=dtype), layout)
    bias = integers(channels, seed=2, dtype=dtype) if data.draw(st.booleans(), "bias") else None
    initial = laid_out(integers(states, channels, width - 1, seed=3, dtype=dtype), layout)
    return x, integers(channels, width, seed=1, dtype=dtype), bias, initial


@draws(24, 100)
@given(st.data())
def test_integers_are_exact(data):
    """Of rows, or of packed sequences, each on its own: any width, rows shorter than it; derivatives too."""
    if data.draw(st.booleans(), "packed"):
        lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
        offsets = np.cumsum([0, *(lengths if sum(lengths) else [*lengths, 1])]).tolist()
        rows, length, states = 1, offsets[-1], len(offsets) - 1
        more = {"cu_seqlens": torch.tensor(offsets, dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))}
    else:
        rows, length, more = data.draw(st.integers(1, 2), "rows"), data.draw(st.integers(1, 12), "length"), {}
        states = rows
    x, w, bias, initial = drawn(data, rows, length, states)
    final = data.draw(st.booleans(), "final")
    ours, theirs = leaves_of(x, w, bias, initial if data.draw(st.booleans(), "initial") else None)
    with computing(data.draw(st.sampled_from(MODES), "mode")):
        tokens = data.draw(st.booleans(), "token-major")
        given_x, order = (ours[0].transpose(1, 2), "NWC") if tokens else (ours[0], "NCW")
        states = {"initial_states": ours[3], "return_final_states": final}
        found = causal_conv1d_fn(given_x, *ours[1:3], **states, layout=order, **more)
        outputs = found if final else (found,)
        if tokens:
            outputs = (outputs[0].transpose(1, 2), *outputs[1:])
        expected = causal.sequences(theirs[0], offsets, *theirs[1:]) if more else causal.rows(*theirs)
        for one, other in zip(outputs, expected[: len(outputs)], strict=True):
            assert one.dtype == x.dtype
            assert_equal(one, other)
        assert tokens or causal.lies_as(outputs[0], ours[0])
        derived = 2 if final and w.shape[1] > 1 else 1
        assert_derivatives(ours, theirs, outputs[:derived], expected[:derived])


@draws(24, 100)
@given(st.data())
def test_numbers_keep_sequences_apart(data):
    """Each row has its own; negative numbers anywhere, also inside a sequence, where they keep their place. Of two
    pieces, states go from one to the next where a sequence does; y and derivatives are those of the whole."""
    length, rows = data.draw(st.integers(2, 10), "length"), data.draw(st.integers(1, 2), "rows")
    many = {"min_size": rows * length, "max_size": rows * length}
    numbers = np.cumsum(data.draw(st.lists(st.integers(0, 1), **many)))
    none = data.draw(st.lists(st.sampled_from([False] * 3 + [True]), **many))
    seq_idx = torch.tensor(np.where(none, -1, numbers).reshape(rows, length), dtype=torch.int32)
    x, w, bias, initial = drawn(data, rows, length, rows)
    cut = data.draw(st.sampled_from([length, *range(1, length)]), "cut")
    if cut < length:  # a piece begins with a number, whose sequence its state is of
        starts = [0, cut]
        seq_idx[:, starts] = torch.tensor(numbers.reshape(rows, length)[:, starts], dtype=torch.int32)
    x.movedim(1, 2)[seq_idx < 0] = float("nan")  # at which nothing looks
    ours, theirs = leaves_of(x, w, bias, initial if cut < length else None)
    pieces, states = [], ours[3]
    with computing(data.draw(st.sampled_from(MODES), "mode")):
        for begin, end in ((0, cut), (cut, length))[: 1 + (cut < length)]:
            y, final = causal_conv1d_fn(ours[0][..., begin:end], *ours[1:3], seq_idx[:, begin:end], states, True)
            assert final.shape == (rows, x.shape[1], w.shape[1] - 1)
            pieces.append(y)
            goes_on = seq_idx[:, :end].amax(1) == seq_idx[:, min(end, length - 1)]
            states = torch.where(goes_on[:, None, None], final, 0)
        expected = causal.numbered(theirs[0], seq_idx, *theirs[1:3], None, theirs[3])
        y = torch.cat(pieces, 2)
        assert_equal(y, expected)
        if expected.requires_grad and (cut == length or x.dtype == torch.float32):  # sums of two pieces round twice
            assert_derivatives(ours, theirs, (y,), (expected,))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [1, 4])
def test_numbers_of_no_rows(width, mode):
    """Results and derivatives have their shapes; there is no sequence."""
    x, w = torch.zeros(0, 3, 2, requires_grad=True), torch.ones(3, width, requires_grad=True)
    with computing(mode):
        y, final = causal_conv1d_fn(x, w, None, torch.zeros(0, 2, dtype=torch.int32), None, True, activation="silu")
        of_x, of_w = torch.autograd.grad(y.sum() + final.sum(), (x, w))
    assert (y.shape, final.shape, of_x.shape) == ((0, 3, 2), (0, 3, width - 1), (0, 3, 2))
    assert torch.equal(of_w, torch.zeros(3, width))


@pytest.mark.usefixtures("estimates")
@pytest.mark.cover
@pytest.mark.parametrize("by", ["cu_seqlens", "seq_idx"])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("mode", ["torch", "simulate"])
def test_nothing_passes_between_sequences(mode, value, activation, by):
    """What is not finite stays where the definition has it: in y, and in every derivative."""
    offsets, width = [0, 5, 6, 11], 4
    x, w = integers(1, 3, 11), integers(3, width, seed=1).abs() + 1
    x[0, 1, 3:6], x[0, 2, 4] = value, value  # at both ends of a boundary, and one just before it
    seq_idx = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 1, 5]))[None]
    more = {"cu_seqlens": torch.tensor(offsets)} if by == "cu_seqlens" else {"seq_idx": seq_idx}
    ours, _ = leaves_of(x, w)
    with computing(mode):
        y = causal_conv1d_fn(*ours, activation=activation, **more)
        g = integers(*y.shape, seed=2)
        found = torch.autograd.grad(y, ours, g)
    # Each sequence on its own: not finite exactly there, and the same numbers elsewhere.
    parts = []
    for start, end in itertools.pairwise(offsets):
        alone, _ = leaves_of(x[..., start:end], w)
        with computing("torch"):
            z = causal_conv1d_fn(*alone, activation=activation)
            parts.append((z, *torch.autograd.grad(z, alone, g[..., start:end])))
    expected = [torch.cat([part[i] for part in parts], 2) for i in (0, 1)]
    # Sums are exact; an activation and its slope take at most 16 roundings, and derivatives sum 4 products below 16.
    torch.testing.assert_close(y, expected[0], rtol=FLOAT32_SUMS, atol=0, equal_nan=True)
    torch.testing.assert_close(found[0], expected[1], rtol=0, atol=4 * 16 * 32 * 2.0**-24, equal_nan=True)
    assert y[..., 6:].isfinite().all()
    assert found[0][..., 6:].isfinite().all()
    if activation is None:
        of_w = torch.stack([part[2] for part in parts]).sum(0)
        torch.testing.assert_close(found[1], of_w, rtol=0, atol=0, equal_nan=True)


def test_final_states_go_where_they_are_wanted():
    x, w = integers(2, 3, 5).requires_grad_(), integers(3, 4, seed=1)
    out = torch.full((2, 3, 3), 7.0)
    _, found = causal_conv1d_fn(x, w, return_final_states=True, final_states_out=out)
    assert found is out
    assert torch.equal(out, x[..., -3:])
    (of_x,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(of_x, torch.tensor([0.0, 0, 1, 1, 1]).expand(2, 3, 5))


@pytest.mark.cover(4)
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("w_dtype", DTYPES, ids=str)
def test_dtypes_mix(x_dtype, w_dtype):
    """Products are those of the given numbers, and y is rounded once: 256 + 1 + 1 is 258 in bf16, not 256."""
    x = torch.tensor([[[256.0, 1.0, 1.0]]]).to(x_dtype)
    w = torch.ones(1, 3).to(w_dtype)
    with computing("compare"):
        y, final = causal_conv1d_fn(x, w, initial_states=torch.ones(1, 1, 2).to(x_dtype), return_final_states=True)
    assert (y.dtype, final.dtype) == (x_dtype, x_dtype)
    assert y.flatten().tolist() == [258.0, 258.0, 258.0]
    state = x[..., :2].clone()
    assert causal_conv1d_update(torch.ones(1, 1).to(x_dtype), state, w).item() == 258
    assert state.flatten().tolist() == [1, 1]
    fine = torch.tensor([[1 + 2.0**-10]]).to(w_dtype)
    expected = (x.double() * fine.double()).to(x_dtype)
    assert torch.equal(causal_conv1d_fn(x, fine), expected)


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize("mode", ["torch", "simulate"])
@pytest.mark.parametrize(("channels", "width", "half"), [(3, 4, 20), (64, 4, 100), (16, 31, 100)])
def test_what_is_not_finite_reaches_its_sequence_and_channel(channels, width, half, mode):
    """In shapes, too, whose fastest algorithm would spread a NaN over the columns behind it."""
    x, w, at = integers(1, channels, 2 * half), integers(channels, width, seed=1), half - 2
    x[0, 1, at] = float("nan")
    ours, _ = leaves_of(x, w)
    with computing(mode):
        y = causal_conv1d_fn(*ours, cu_seqlens=torch.tensor([0, half, 2 * half]))
        y.sum().backward()
    assert y.isnan().nonzero().tolist() == [[0, 1, t] for t in (at, at + 1)]
    assert ours[1].grad.isnan().any(1).nonzero().tolist() == [[1]]


@draws(40, 100)
@given(st.data())
def test_steps_of_integers_are_exact(data):
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


def test_parts_of_one_token_share_no_memory(mode):
    """Two plain parts of one image's token are neighbours in what torch computes."""
    x, w, state = integers(1, 5, 1), integers(5, 4, seed=1), integers(1, 5, 3, seed=2)
    given = {"splits": ((1, 2, False), (1, 3, False)), "activation": None, "initial_states": state}
    compiled = torch.compile(causal_conv1d_split, fullgraph=True, backend="aot_eager")
    wanted = (torch.cat([state, x], 2) * w).sum(2)[:, None, None]
    for call in (causal_conv1d_split, compiled):
        assert torch.equal(torch.cat(call(x, w, **given), 3), wanted)


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


def test_a_step_of_no_rows(mode):
    x, w, state, rows = torch.zeros(0, 3), torch.ones(3, 4), torch.ones(2, 3, 4), torch.zeros(0, dtype=torch.int32)
    assert causal_conv1d_update(x, state[:0], w).shape == (0, 3)
    (y,) = causal_conv1d_split_update(x, state, w, splits=[(1, 3, False)], conv_state_indices=rows)
    assert y.shape == (0, 1, 3)
    assert torch.equal(state, torch.ones(2, 3, 4))
    steps = causal_conv1d_split_update(torch.ones(0, 47), torch.ones(0, 47, 3), torch.ones(47, 4), splits=SPLITS)
    assert [one.shape for one in steps] == [(0, 2, 8), (0, 1, 16), (0, 3, 5)]


# What others reported of convolutions elsewhere.
def test_many_channels():
    """Dao-AILab/causal-conv1d#32: 65,536 channels were more than a grid of blocks holds."""
    x, w = integers(1, 65_536, 4), integers(65_536, 2, seed=1)
    with computing("simulate"):
        assert torch.equal(causal_conv1d_fn(x, w), F.conv1d(F.pad(x, (1, 0)), w[:, None], groups=65_536))


def test_a_state_that_is_a_view():
    """pytorch/pytorch#131192: compiled code changed a copy where an operator changes a view of its input in place."""
    x, w = integers(2, 6, 1, seed=2), integers(6, 4, seed=1)

    def step(pool, x):
        return causal_conv1d_update(x, pool[1], w)

    eager = integers(3, 2, 6, 3)
    compiled, before = eager.clone(), eager.clone()
    with computing("simulate"):
        assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(compiled, x), step(eager, x))
    assert torch.equal(compiled, eager)
    assert not torch.equal(compiled[1], before[1])
    assert torch.equal(compiled[::2], before[::2])
