"""Decode steps of causal convolution, activation, split into heads and l2norm: after states, by slots, in place."""

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import strategies as st
from split_calls import SPLITS, TWO, check, data

import nkiconv
from nkiconv.simulator import execute

BF16 = ml_dtypes.bfloat16


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize("N", [5, 131])
@pytest.mark.parametrize("name", SPLITS)
def test_steps(name, N, layout, dtype):
    """Tokens after states, of few sequences, by Vector, and of more than partitions, next states bit for bit, on one
    core and two alike."""
    splits, found = SPLITS[name], []
    x, w, bias, before = data(splits, N, 2, dtype=dtype, layout=layout, state=True)
    for lnc in (1, 2):
        state = before.copy()
        parts = nkiconv.causal_conv1d_split_update(x, state, w, bias, splits=splits, layout=layout, lnc=lnc)
        found.append([one.tobytes() for one in (*parts, state)])
    assert found[0] == found[1]
    check(parts, x, w, splits, bias=bias, layout=layout, initial_state=before)
    rows = x if layout == "NCW" else x.transpose(0, 2, 1)
    assert state.tobytes() == np.concatenate([before, rows], 2)[:, :, 2:].tobytes()


@draws(12, 48)
@hypothesis.given(
    st.integers(1, 9) | st.integers(40, 64), st.integers(1, 6), st.integers(2, 6), st.sampled_from(["NCW", "NWC"]),
    st.integers(-3, 99), st.sampled_from([np.float32, BF16]), st.integers(0, 2**16),
    st.sampled_from([((2, 40, True), (1, 70, False)), ((3, 32, True), (4, 8, False)), ((8, 32, True), (8, 32, False))]),
)  # fmt: skip
def test_slots_by_index(N, T, S, layout, pad_slot, dtype, seed, splits):
    """Each sequence has its slot; padding sees zeros and changes nothing, and no other slot changes. Of ranges of
    channels without numbers, which the Tensor Engine sums, and with, one or several heads long."""
    rng = np.random.default_rng(seed)
    x, w, _, _ = data(splits, N, T, S, dtype, layout, seed=seed)
    before = data(splits, 70, T, S, dtype, state=True, seed=seed)[3]
    indices = rng.permutation([one for one in range(70) if one != pad_slot])[:N]
    indices[rng.random(N) < 0.3] = pad_slot
    padding = indices == pad_slot
    own = np.where(padding[:, None, None], 0, before[np.where(padding, 0, indices)])
    state = before.copy()
    given = {"splits": splits, "layout": layout, "state_indices": indices, "pad_slot": pad_slot}
    parts = nkiconv.causal_conv1d_split_update(x, state, w, **given)
    check(parts, x, w, splits, layout=layout, initial_state=own)
    rows = x if layout == "NCW" else x.transpose(0, 2, 1)
    wanted = before.copy()
    wanted[indices[~padding]] = np.concatenate([own, rows], 2)[~padding][:, :, T:]
    assert state.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("N", "T", "is_indexed", "dtype", "sums"), [
    (1, 1, False, "bf16", "tensor_reduce"), (64, 2, False, "bf16", "tensor_reduce"),
    (65, 1, False, "bf16", "nc_matmul"), (20, 7, False, "bf16", "nc_matmul"),
    (32, 4, True, "bf16", "tensor_reduce"), (64, 1, True, "bf16", "tensor_reduce"), (65, 1, True, "bf16", "nc_matmul"),
])  # fmt: skip
def test_few_sequences_are_summed_by_vector(N, T, is_indexed, dtype, sums):
    """Without diagonals of filters, whose making takes longest."""
    splits, given = ((4, 64, False),), {"layout": "NWC"}
    if is_indexed:
        given["state_indices"] = nkiconv.spec((N,), "int32")
    arrays = [nkiconv.spec(shape, dtype) for shape in ((N, T, 256), (N + is_indexed, 256, 3), (256, 4))]
    found = execute(nkiconv.causal_conv1d_split_step[2], (*arrays, splits), given, trace_only=True)
    assert {one.op for one in found.instructions} & {"tensor_reduce", "nc_matmul"} == {sums}


def test_several_batches_of_slots():
    """More channels than states are gathered of at once."""
    splits = ((70, 128, True), (70, 128, False))
    x, w, _, before = data(splits, 3, 1, dtype=BF16, state=True)
    state, indices = before.copy(), np.array([2, 0, 1])
    parts = nkiconv.causal_conv1d_split_update(x[:, :, 0], state, w, splits=splits, state_indices=indices)
    check(tuple(one[:, None] for one in parts), x, w, splits, initial_state=before[indices])
    assert state[indices].tobytes() == np.concatenate([before[indices], x], 2)[:, :, 1:].tobytes()


@pytest.mark.cover(2)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(("S", "T"), [(8, 9), (4, 13), (2, 15)])
def test_most_tokens_fit(S, T, indexed):
    """In fp32, of groups enough to be loaded ahead."""
    splits = ((16, 128, True), (16, 128, False))
    C, sizes = 4096, {"x_ref": (128, 4096, T), "state_ref": (128, 4096, S - 1), "w_ref": (4096, S)}
    given = {name: nkiconv.spec(shape, "fp32") for name, shape in sizes.items()} | {"bias": nkiconv.spec((C,), "fp32")}
    if indexed:
        given["state_indices"] = nkiconv.spec((128,), "int32")
    parts = nkiconv.simulate(nkiconv.causal_conv1d_split_step[2], trace_only=True)(**given, splits=splits)
    assert [one.shape for one in parts] == [(128, T, 16, 128)] * 2


def test_prefill_and_steps_are_one_run():
    """One token after the other: outputs of the whole run, and its final state, within and bit for bit."""
    x, w, bias, _ = data(TWO, 2, 12, dtype=BF16)
    whole, final = nkiconv.causal_conv1d_split(x, w, bias, splits=TWO, return_final_state=True)
    _, state = nkiconv.causal_conv1d_split(x[:, :, :8], w, bias, splits=TWO, return_final_state=True)
    for t in range(8, 12):
        parts = nkiconv.causal_conv1d_split_update(np.ascontiguousarray(x[:, :, t]), state, w, bias, splits=TWO)
        assert all(one.tobytes() == part[:, t].tobytes() for one, part in zip(parts, whole, strict=True))
    assert state.tobytes() == final.tobytes()
