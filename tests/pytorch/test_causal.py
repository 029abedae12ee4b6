"""causal_conv1d_fn equals the definition: values, states, derivatives, and nothing passes between sequences."""

import itertools

import causal
import gradchecks
import numpy as np
import pytest
import torch
from causal import DTYPES, LAYOUTS, MODES, computing, integers, laid_out, leaves_of
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT32_SUMS, assert_within_limit, derivative_limits

from nkiconv.bounds import EPS32, epilogue_bound
from nkiconv.errors import ComparisonError, UnsupportedError
from nkiconv.pytorch import causal_conv1d_fn
from nkiconv.pytorch.causal import states
from nkiconv.pytorch.computers import host


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


@draws(40)
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


@draws(40)
@given(st.data())
def test_numbers_keep_sequences_apart(data):
    """Each row has its own; negative numbers anywhere, also inside a sequence, where they keep their place."""
    length, rows = data.draw(st.integers(1, 10), "length"), data.draw(st.integers(1, 2), "rows")
    numbers = np.cumsum(data.draw(st.lists(st.integers(0, 1), min_size=rows * length, max_size=rows * length)))
    none = data.draw(st.lists(st.sampled_from([False] * 3 + [True]), min_size=rows * length, max_size=rows * length))
    seq_idx = torch.tensor(np.where(none, -1, numbers).reshape(rows, length), dtype=torch.int32)
    ours, theirs = leaves_of(*drawn(data, rows, length, 1)[:3])
    with computing(data.draw(st.sampled_from(MODES), "mode")):
        y = causal_conv1d_fn(*ours, seq_idx=seq_idx)
        expected = causal.numbered(theirs[0], seq_idx, *theirs[1:])
        assert_equal(y, expected)
        if expected.requires_grad:
            assert_derivatives(ours, theirs, (y,), (expected,))


def silu_case(packed):
    """x, weight, bias and states; where sequences are packed; and y and states by the definition."""
    generator = torch.Generator().manual_seed(11)
    shapes = ((1, 6, 9), (6, 4), (6,), (3, 6, 3)) if packed else ((2, 6, 9), (6, 4), (6,), (2, 6, 3))
    offsets = [0, 2, 2, 9]

    def reference(*tensors):
        return causal.sequences(tensors[0], offsets, *tensors[1:]) if packed else causal.rows(*tensors)

    more = {"cu_seqlens": torch.tensor(offsets)} if packed else {}
    return [torch.randn(shape, generator=generator) for shape in shapes], more, reference


@pytest.mark.cover
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "swish"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_activation(mode, packed, activation, dtype):
    given, more, reference = silu_case(packed)
    x, w, bias, initial = (one.to(dtype) for one in given)
    with computing(mode):
        y = causal_conv1d_fn(x, w, bias, initial_states=initial, activation=activation, **more)
    sums = reference(x, w, None, initial)[0].numpy()
    abs_sum = reference(x.abs(), w.abs(), None, initial.abs())[0].numpy()
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    bound = epilogue_bound(4, abs_sum[:, :, None], sums[:, :, None], name, bias.float().numpy(), "silu")[:, :, 0]
    wrong = np.abs(y.double().numpy() - reference(x, w, bias, initial, "silu")[0].numpy())
    assert (wrong <= bound).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_the_activation(mode, packed):
    given, more, reference = silu_case(packed)
    ours, theirs = leaves_of(*given)
    with computing(mode):
        found = causal_conv1d_fn(*ours[:3], initial_states=ours[3], return_final_states=True, activation="silu", **more)
        gs = [torch.randn(one.shape, generator=torch.Generator().manual_seed(4)) for one in found]
        one = torch.autograd.grad(found, ours, gs)
    two = torch.autograd.grad(reference(*theirs, "silu"), theirs, [g.double() for g in gs])
    limits = derivative_limits(lambda *four: reference(*four)[0], given, gs[0], "silu")
    states = torch.autograd.grad(reference(*theirs)[1], theirs, gs[1].double().abs(), allow_unused=True)
    for mine, wanted, limit, more in zip(one, two, limits, states, strict=True):  # states add one exact term
        assert_within_limit(mine.numpy(), wanted.numpy(), limit + (0 if more is None else EPS32 * more.numpy()))


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
    by_hand = torch.zeros(3, width)
    if activation is None:
        for start, end in itertools.pairwise(offsets):
            for t in range(start, end):
                for s in range(max(0, start - t + width - 1), width):
                    by_hand[:, s] += g[0, :, t] * x[0, :, t - (width - 1) + s]
        torch.testing.assert_close(found[1], by_hand, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize(("channels", "width"), [(64, 4), (16, 31)])
def test_nothing_passes_between_sequences_on_the_tensor_engine(channels, width):
    """Shapes whose fastest algorithm would spread a NaN over the columns behind it."""
    x, w = integers(1, channels, 200), integers(channels, width, seed=1)
    x[0, 3, 99] = float("nan")
    with computing("simulate"):
        y = causal_conv1d_fn(x, w, cu_seqlens=torch.tensor([0, 100, 200]))
    assert torch.equal(y.isnan().nonzero(), torch.tensor([[0, 3, 99]]))


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_no_sequence_are_not_looked_at(mode):
    seq_idx = torch.tensor([[-1, 0, 0, -1, 0, 1, -2, -1]], dtype=torch.int32)
    x, w, bias = integers(1, 3, 8), integers(3, 4, seed=1), integers(3, seed=2)
    x[..., seq_idx[0] < 0] = float("nan")
    ours, _ = leaves_of(x, w, bias)
    with computing(mode):
        y = causal_conv1d_fn(*ours, seq_idx=seq_idx, activation="silu")
        found = torch.autograd.grad(y.sum(), ours)
    assert all(one.isfinite().all() for one in (y, *found))
    assert not any(one[..., seq_idx[0] < 0].any() for one in (y, found[0]))
    assert y[..., seq_idx[0] >= 0].ne(0).any()


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
    fine = torch.tensor([[1 + 2.0**-10]]).to(w_dtype)
    expected = (x.double() * fine.double()).to(x_dtype)
    assert torch.equal(causal_conv1d_fn(x, fine), expected)


@pytest.mark.parametrize("dims", [(0, None, None, 0), (1, 0, None, None), (None, 0, 1, 2), (2, None, 0, 1)])
def test_vmap(dims):
    tensors = integers(2, 4, 6), integers(4, 3, seed=1), integers(4, seed=2), integers(2, 4, 2, seed=3)
    given = [
        one if dim is None else torch.stack([(step + 1) * one for step in range(3)], dim)
        for one, dim in zip(tensors, dims, strict=True)
    ]

    def both(x, w, bias, state):
        return causal_conv1d_fn(x, w, bias, initial_states=state, return_final_states=True)

    found = torch.vmap(both, in_dims=dims)(*given)
    for step in range(3):
        one = [tensor if dim is None else tensor.select(dim, step) for tensor, dim in zip(given, dims, strict=True)]
        for mine, wanted in zip(found, causal.rows(*one), strict=True):
            assert_equal(mine[step], wanted)


def test_vmap_takes_no_packed_sequences():
    x, w = integers(3, 1, 2, 5), integers(2, 3, seed=1)
    with pytest.raises(UnsupportedError, match=r"torch.vmap takes no packed sequences"):
        torch.vmap(lambda one: causal_conv1d_fn(one, w, cu_seqlens=torch.tensor([0, 2, 5])))(x)


@pytest.mark.cover(1)
@pytest.mark.parametrize(("changed", "sequences"), [
    ({}, 2),
    ({"initial_states": integers(2, 3, 3, seed=3), "return_final_states": True, "activation": "silu"}, 2),
    ({"cu_seqlens": torch.tensor([0, 2, 7]), "return_final_states": True}, 1),
    ({"seq_idx": torch.tensor([[0, 0, 1, 1, 1, -1, -1]] * 2), "activation": "silu"}, 2),
], ids=["plain", "states", "cu_seqlens", "seq_idx"])  # fmt: skip
def test_opcheck(changed, sequences):
    names = ("initial_states", "cu_seqlens", "seq_idx", "return_final_states", "activation", "layer")
    rest = [changed.get(name, False if name == "return_final_states" else None) for name in names]
    rest = [one.requires_grad_() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in rest]
    leaves = [integers(sequences, 3, 7), integers(3, 4, seed=1), integers(3, seed=2)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    found = torch.library.opcheck(torch.ops.nkiconv.causal_conv1d.default, (*leaves, *rest))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("mode", MODES)
def test_no_rows(mode):
    with computing(mode):
        y, final = causal_conv1d_fn(torch.zeros(0, 3, 5), torch.zeros(3, 4), return_final_states=True)
    assert (y.shape, final.shape) == ((0, 3, 5), (0, 3, 3))


def test_compare_finds_what_differs(monkeypatch):
    x, w = integers(2, 3, 7) + 0.3, integers(3, 4, seed=1)
    real, simulate = host.reference, states._simulated
    with computing("compare"):
        with monkeypatch.context() as changed:
            changed.setattr(host, "reference", lambda *args: real(*args) * 1.0001)
            with pytest.raises(ComparisonError, match=r"mixer.conv \(depthwise_conv1d\): the kernel"):
                causal_conv1d_fn(x, w, return_final_states=True, layer="mixer.conv")
        monkeypatch.setattr(states, "_simulated", lambda *args: (simulate(*args)[0], simulate(*args)[1] + 1))
        with pytest.raises(ComparisonError, match="the kernel's final state is not the last 3 columns"):
            causal_conv1d_fn(x, w, return_final_states=True)


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

    gradchecks.assert_derivatives(packed, leaves)


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
    expected = causal.numbered(theirs[0], seq_idx, theirs[1], None, None, theirs[2])
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
