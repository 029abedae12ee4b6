"""`nkiconv.pytorch.serving` equals what vLLM's functions say and `fla` what flash-linear-attention's do, sequence by
sequence, and decoding equals the whole.
"""

import causal
import pytest
import torch
from causal import DTYPES, MODES, computing, integers, leaves_of, row
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch_exact import same

from nkiconv.pytorch import fla
from nkiconv.pytorch.serving import causal_conv1d_fn, causal_conv1d_update


def expected_of(
    x, w, bias, states, slots=None, has=None, accepted=None, activation=None, pad=-1, blocks=None, block_size=0
):
    """([y [C, tokens] of each sequence], the cache behind the call); x: such a list; blocks: (first, last, initial,
    computed); accepted: of drafts, whose states are all kept."""
    after, found, size = states.clone(), [], w.shape[1] - 1
    for k, tokens in enumerate(x):
        line = [k] if slots is None else [*torch.as_tensor(slots)[k].reshape(-1).tolist()]
        first, last, initial, computed = (0, 0, 0, 0) if blocks is None else (one[k] for one in blocks)
        count, begin = tokens.shape[1], 0 if accepted is None else int(accepted[k]) - 1
        if line[initial] == pad or count == 0:
            found.append(torch.zeros_like(tokens, dtype=torch.float64))
            continue
        before = states[line[initial], :, begin : begin + size]
        before = before if has is None or has[k] else torch.zeros_like(before)
        found.append(row(tokens, w, bias, before, activation))
        whole = torch.cat([before, tokens], 1)
        edge = (computed + count - 1) // block_size * block_size if block_size else 0
        for j in range(last - first) if block_size else ():
            position = edge - (last - first - 1 - j) * block_size - computed
            after[line[first + j], :, :size] = whole[:, position : position + size]
        kept = whole[:, count:] if accepted is None else whole[:, 1:]
        if size:  # one tap has no state
            after[line[last], :, : kept.shape[1]] = kept
    return found, after


def tensor(numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype)


def cumulated(lengths):
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


def drawn_slots(data, count, more):
    """(slots of sequences, some of them padding, how many there are)."""
    slots = count + data.draw(st.integers(0, more), "more slots")
    order = data.draw(st.permutations(range(slots)), "order")[:count]
    padding = data.draw(st.lists(st.booleans(), min_size=count, max_size=count), "padding")
    return [-1 if none else one for one, none in zip(order, padding, strict=True)], slots


@draws(24, 100)
@given(st.data())
def test_prefill(data):
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any), "lengths")
    count, width, channels = len(lengths), data.draw(st.integers(1, 5), "width"), data.draw(st.integers(1, 4), "C")
    dtype, starts = data.draw(st.sampled_from(DTYPES)), cumulated(lengths)
    slots, held = drawn_slots(data, count, 2)
    if data.draw(st.booleans(), "in order"):
        slots = None
    has = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=count, max_size=count)), "has")
    x, w = integers(channels, starts[-1], dtype=dtype), integers(channels, width, seed=1, dtype=dtype)
    bias = data.draw(st.sampled_from([None, integers(channels, seed=2, dtype=dtype)]))
    states = integers(held, channels, width - 1 + data.draw(st.integers(0, 2)), seed=3, dtype=dtype)
    none = [False] * count if has is None else has
    y, after = expected_of(x.split(lengths, 1), w, bias, states, slots, none)
    given_slots = None if slots is None else tensor(slots)
    flags = None if has is None else torch.tensor(has)
    with computing(data.draw(st.sampled_from(MODES))):
        found = causal_conv1d_fn(x, w, bias, states, tensor(starts), given_slots, flags, None)
    assert found.dtype == dtype
    assert torch.equal(found, torch.cat(y, 1).to(dtype))
    assert torch.equal(states, after)


@draws(24, 100)
@given(st.data())
def test_steps(data):
    """Rows or packed tokens, with drafts or without, in slots or in order."""
    count, width, channels = (data.draw(st.integers(1, most), name) for name, most in (("N", 4), ("W", 5), ("C", 4)))
    dtype, packed = data.draw(st.sampled_from(DTYPES)), data.draw(st.booleans(), "packed")
    longest = data.draw(st.integers(1, 4), "tokens")
    lengths = [longest] * count
    if packed:
        lengths = data.draw(st.lists(st.integers(0, longest), min_size=count, max_size=count), "lengths")
    slots, held = drawn_slots(data, count, 2)
    drafts = data.draw(st.booleans(), "drafts")
    accepted = data.draw(st.lists(st.integers(1, longest), min_size=count, max_size=count), "accepted")
    accepted = accepted if drafts else None
    columns = max(width - 1, width - 2 + longest) if drafts and width > 1 else width - 1
    states = integers(held, channels, columns + data.draw(st.integers(0, 1)), seed=3, dtype=dtype)
    tokens = [integers(channels, length, seed=5 + k, dtype=dtype) for k, length in enumerate(lengths)]
    w = integers(channels, width, seed=1, dtype=dtype)
    expected, after = expected_of(tokens, w, None, states, slots, None, accepted)
    more = {"conv_state_indices": tensor(slots)}
    more |= {} if accepted is None else {"num_accepted_tokens": tensor(accepted)}
    x = torch.stack(tokens) if not packed else torch.cat([*tokens, integers(channels, 2, dtype=dtype)], 1).T
    if packed:
        starts = tensor(cumulated(lengths))
        more |= {"query_start_loc": starts, "max_query_len": data.draw(st.sampled_from([-1, longest]))}
        expected = torch.cat([*expected, torch.zeros(channels, 2)], 1).T
    elif longest == 1 and data.draw(st.booleans(), "flat"):
        x, expected = x[..., 0], torch.stack(expected)[..., 0]
    else:
        expected = torch.stack(expected)
    with computing(data.draw(st.sampled_from(MODES))):
        y = causal_conv1d_update(x, states, w, None, None, **more)
    assert y.dtype == dtype
    assert torch.equal(y, expected.to(dtype))
    assert torch.equal(states, after)


@pytest.mark.parametrize("mode", MODES)
def test_states_at_the_ends_of_blocks(mode):
    """Prefix caching: each sequence has had some tokens, reads one block and fills those up to its last."""
    size, lengths, computed = 4, [9, 3, 6, 1], [0, 6, 5, 7]
    starts = cumulated(lengths)
    first = [had // size for had in computed]
    last = [(had + length - 1) // size for had, length in zip(computed, lengths, strict=True)]
    initial = [max(0, one - (had % size == 0)) for one, had in zip(first, computed, strict=True)]
    slots = torch.randperm(20, generator=torch.Generator().manual_seed(1))[:16].reshape(4, 4).int()
    has = [had > 0 for had in computed]
    x, w, states = integers(3, starts[-1]), integers(3, 4, seed=1), integers(20, 3, 3, seed=2)
    blocks = first, last, initial, computed
    y, after = expected_of(x.split(lengths, 1), w, None, states, slots, has, blocks=blocks, block_size=size)
    with computing(mode):
        named = dict(zip(("block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "initial_state_idx",
                          "num_computed_tokens"), map(tensor, blocks), strict=True))  # fmt: skip
        found = causal_conv1d_fn(
            x, w, None, states, tensor(starts), slots, torch.tensor(has), None, block_size_to_align=size, **named
        )
    assert torch.equal(found, torch.cat(y, 1).float())
    assert torch.equal(states, after)


def test_a_step_reads_one_block_and_writes_another():
    """Sequences may share the block that they read."""
    x, w, states = integers(3, 2, 1), integers(2, 4, seed=1), integers(9, 2, 3, seed=2)
    slots, last, initial = tensor([[5, 1, 0], [5, 2, 3], [-1, 4, 6]]), [1, 2, 0], [0, 0, 0]
    expected, after = expected_of(list(x), w, None, states, slots, blocks=(last, last, initial, [0] * 3))
    more = {"block_idx_last_scheduled_token": tensor(last), "initial_state_idx": tensor(initial)}
    y = causal_conv1d_update(x, states, w, None, None, slots, **more)
    assert torch.equal(y, torch.stack(expected).float())
    assert torch.equal(states, after)


@pytest.mark.parametrize(("x", "more"), [
    (torch.zeros(0, 2), {}), (torch.zeros(0, 2), {"query_start_loc": tensor([0, 0]), "max_query_len": 0}),
])  # fmt: skip
def test_steps_of_no_tokens(x, more):
    assert causal_conv1d_update(x, integers(1, 2, 3), integers(2, 4), None, None, **more).shape == (0, 2)


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize("mode", ["torch", "simulate"])
def test_what_is_not_finite_stays_in_its_sequence(mode):
    """Padding too: neither its tokens nor its slot reach others."""
    x, w, states = integers(4, 8, 2), integers(8, 4, seed=1), integers(6, 8, 4, seed=2)
    slots, accepted = tensor([4, -1, 0, 2]), tensor([1, 2, 2, 1])
    results = []
    for bad in (1.0, float("nan")):
        tokens, held = x.clone(), states.clone()
        tokens[1:3] *= bad
        held[0] *= bad
        with computing(mode):
            y = causal_conv1d_update(tokens, held, w, None, None, slots, accepted)
            packed = causal_conv1d_fn(
                tokens.transpose(0, 1).flatten(1), w, None, held, tensor([0, 2, 4, 6, 8]), slots, torch.ones(4) > 0
            )
        rest = [0, 1, 2, 3, 6, 7]
        results.append((y[[0, 1, 3]], packed[:, rest], held[[1, 2, 3, 4, 5]]))
    assert same(*results)
    assert not results[1][0][1].any()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["torch", "simulate"])
def test_compiled_without_a_break(mode):
    """Numbers change between calls, and nothing is compiled again."""
    torch._dynamo.reset()
    compiles = []

    def backend(graph, _):
        compiles.append(graph)
        return graph

    def both(x, w, states, starts, slots, has, steps, accepted):
        y = causal_conv1d_fn(x, w, None, states, starts, slots, has)
        return y, causal_conv1d_update(steps, states, w, None, "silu", slots, accepted, starts, 4)

    compiled = torch.compile(both, backend=backend, fullgraph=True)
    with computing(mode):
        for seed, (lengths, order) in enumerate([([3, 4], [1, -1]), ([4, 3], [2, 0])]):
            given = (
                integers(2, 7, seed=seed), integers(2, 4), integers(3, 2, 6, seed=seed), tensor(cumulated(lengths)),
                tensor(order), torch.tensor([True, False]), integers(7, 2, seed=seed), tensor([1, 2]),
            )  # fmt: skip
            again = [one.clone() for one in given]
            assert same(compiled(*given), both(*again))
            assert torch.equal(given[2], again[2])
    assert len(compiles) == 1


def of_tokens(x, w, bias, residual, state, offsets):
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
    expected = of_tokens(*theirs, offsets)
    shape = (1 if packed else len(lengths), -1, channels)
    with computing(data.draw(st.sampled_from(MODES))):
        added = None if residual is None else ours[3].reshape(shape)
        more = {"cu_seqlens": torch.tensor(offsets)} if packed else {}
        y, final = fla.causal_conv1d(ours[0].reshape(shape), ours[1], ours[2], added, ours[4], True, **more)
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
def test_steps_by_tokens(shape, dtype, mode):
    """As many steps as a row has tokens give the row, and its final state."""
    text, w = integers(3, 6, 2, dtype=dtype), integers(2, 4, seed=1, dtype=dtype)
    whole, final = fla.causal_conv1d(text, w, None, text, output_final_state=True)
    cache = torch.zeros(3, 2, 4, dtype=dtype)
    for t in range(6):
        x = text[:, t].reshape(shape)
        with computing(mode):
            y, held = fla.causal_conv1d_update(x, cache, x, w)
        assert y.shape == shape
        assert held is cache
        assert torch.equal(y.reshape(3, 2), whole[:, t])
    assert torch.equal(cache, final)
