"""Gated causal convolutions of token-major rows against float64: chunks, states, sequences, one token."""

import functools
import itertools

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import strategies as st
from tolerances import assert_exact, assert_within_limit

import nkiconv
from nkiconv import ConvProblem
from nkiconv.bounds import epilogue_bound, factor_bound, gated_bound
from nkiconv.problem import dtype_name
from nkiconv.reference import abs_sum_ref, chunks_ref, conv_ref, epilogue_ref

BF16 = ml_dtypes.bfloat16
CHUNKS = ["BCx", "xCB", "CxB", "xC", "xB", "xG", "GCx"]
tokens = functools.partial(nkiconv.depthwise_conv1d, padding="causal", layout="NWC")


def data(chunks, N, W, D, S=3, dtype=np.float32, seed=0):
    """(x [N, W, chunks * D], w, bias, state) of normal numbers."""
    rng = np.random.default_rng(seed)
    shapes = (N, W, len(chunks or "x") * D), (D, S), (N, D, S - 1)
    x, w, state = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, w, rng.standard_normal(D).astype(np.float32), state


def check(y, x, w, chunks, bias=None, activation=None, initial_state=None):
    """Fail unless y is within its bound of the definition in float64."""
    by_channel, kind = np.asarray(x.transpose(0, 2, 1), np.float64), dtype_name(x.dtype)
    (product, factor), error = chunks_ref(by_channel, chunks), gated_bound(by_channel, chunks, kind)
    (N, D, W), S = product.shape, w.shape[1]
    before = np.zeros((N, D, S - 1)) if initial_state is None else np.asarray(initial_state, np.float64)
    rows = np.concatenate([before, product], 2)[:, :, None]
    inexact = np.concatenate([np.zeros_like(before), error], 2)[:, :, None]
    problem, filters = ConvProblem(N=N, C=D, W=W + S - 1, S=S, groups=D), np.asarray(w, np.float64)[:, None, None]
    sums, more = conv_ref(rows, filters, problem), (bias, activation)
    inexact = abs_sum_ref(inexact, filters, problem)
    wide = kind if factor is None else "fp32"
    limit = epilogue_bound(S, abs_sum_ref(rows, filters, problem), sums, wide, *more, inexact=inexact)[:, :, 0]
    wanted = epilogue_ref(sums, *more)[:, :, 0]
    if factor is not None:
        wanted = factor * wanted
        limit = factor_bound(limit, factor, wanted, kind)
    assert (y.shape, y.dtype) == ((N, W, D), x.dtype)
    assert_within_limit(y.transpose(0, 2, 1), wanted, limit)


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("D", [1, 130, 520])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_chunks(chunks, D, dtype):
    """Several tiles of tokens and channels, the last of few, and bits that do not depend on the cores."""
    x, w, bias, state = data(chunks, 2, 150, D, dtype=dtype)
    more = {"bias": bias, "activation": "silu", "initial_state": state}
    two, final = tokens(x, w, chunks=chunks, return_final_state=True, **more)
    check(two, x, w, chunks, **more)
    one = tokens(x, w, chunks=chunks, return_final_state=True, lnc=1, **more)
    assert [one[0].tobytes(), one[1].tobytes()] == [two.tobytes(), final.tobytes()]


@draws(25, 100)
@hypothesis.given(
    st.sampled_from(CHUNKS), st.integers(1, 3), st.integers(1, 300), st.integers(1, 600), st.integers(1, 6),
    st.sampled_from([None, "silu", "relu"]), st.booleans(), st.booleans(), st.sampled_from([1, 2]),
    st.sampled_from([np.float32, BF16]), st.integers(0, 2**16),
)  # fmt: skip
def test_random_calls(chunks, N, W, D, S, activation, biased, held, lnc, dtype, seed):
    x, w, bias, state = data(chunks, N, W, D, S, dtype, seed)
    more = {"bias": bias if biased else None, "activation": activation}
    more["initial_state"] = state if held and S > 1 else None
    check(tokens(x, w, chunks=chunks, lnc=lnc, **more), x, w, chunks, **more)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_integers_are_exact_and_as_channels_first(dtype):
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 173, 3 * 200)).astype(dtype), rng.integers(-2, 3, (200, 3)).astype(dtype)
    y, state = nkiconv.gated_short_conv(x, w, layout="NWC", return_final_state=True)
    rows = np.ascontiguousarray(x.transpose(0, 2, 1))
    wanted, final = nkiconv.gated_short_conv(rows, w, return_final_state=True)
    product, factor = chunks_ref(rows, "BCx")
    padded = np.pad(product, ((0, 0), (0, 0), (2, 0)))
    sums = sum(padded[:, :, s : s + 173] * np.asarray(w[:, s, None], np.float64) for s in range(3))
    assert_exact(y.transpose(0, 2, 1), sums * factor, dtype_name(dtype))
    assert np.array_equal(y.transpose(0, 2, 1), wanted)
    assert state.tobytes() == final.tobytes()


@pytest.mark.parametrize(("N", "order"), [(2, "BCx"), (33, "xBC")])
def test_pieces_with_states_are_one_run(N, order):
    """Of one token, of fewer than a state and of many; states are the products' last elements."""
    x, w, bias, state = data(order, N, 140, 40, S=4, dtype=BF16)
    call = functools.partial(nkiconv.gated_short_conv, order=order, bias=bias, return_final_state=True, layout="NWC")
    whole, final = call(x, w, initial_state=state)
    product = np.prod([x[:, :, 40 * order.index(one) :][:, :, :40] for one in "Bx"], 0, dtype=BF16)
    assert final.tobytes() == np.ascontiguousarray(product[:, -3:].transpose(0, 2, 1)).tobytes()
    first = 0
    for size in (2, 129, 9):
        piece = np.ascontiguousarray(x[:, first : first + size])
        y, state = call(piece, w, initial_state=state)
        assert y.tobytes() == np.ascontiguousarray(whole[:, first : first + size]).tobytes()
        first += size
    assert state.tobytes() == final.tobytes()


def test_packed_sequences_and_positions():
    """Sequences, one of no tokens, and states in their middle, have the bits of calls of their own."""
    cuts, splits = (0, 1, 1, 77, 202), ((1, 60, True), (1, 70, False))
    x, w, bias, _ = data("BCx", 1, 202, 130, dtype=BF16)
    state = data("x", 4, 1, 130, dtype=BF16)[3]
    more = {"splits": splits, "layout": "NWC", "chunks": "BCx", "return_final_state": True}
    given = {"cu_seqlens": cuts, "initial_state": state, "state_positions": (50, 202)}
    parts, final, states = nkiconv.causal_conv1d_split(x, w, bias, **given, **more)
    assert states[0, 1].tobytes() == final[3].tobytes()
    for k, (first, end) in enumerate(itertools.pairwise(cuts)):
        own = state[k : k + 1]
        if first == end:
            assert final[k].tobytes() == own.tobytes()
            continue
        found, last = nkiconv.causal_conv1d_split(x[:, first:end].copy(), w, bias, initial_state=own, **more)
        assert last[0].tobytes() == final[k].tobytes()
        for part, alone in zip(parts, found, strict=True):
            assert np.ascontiguousarray(part[:, first:end]).tobytes() == alone.tobytes()
    _, last = nkiconv.causal_conv1d_split(x[:, 1:50].copy(), w, bias, initial_state=state[2:3], **more)
    assert states[0, 0].tobytes() == last[0].tobytes()


def test_one_token_is_channels_first():
    """Its bits are those of the other layout, whose algorithms it may name."""
    x, w, bias, state = data("BCx", 5, 1, 70, dtype=BF16)
    more = {"bias": bias, "initial_state": state, "return_final_state": True}
    y, final = nkiconv.gated_short_conv(x, w, layout="NWC", algorithm="update", **more)
    wanted, last = nkiconv.gated_short_conv(x.swapaxes(1, 2), w, algorithm="update", **more)
    assert (y.shape, y.tobytes(), final.tobytes()) == ((5, 1, 70), wanted.tobytes(), last.tobytes())
    assert np.array_equal(
        nkiconv.gated_short_conv(x, w, layout="NWC")[:, 0], nkiconv.gated_short_conv(x[:, 0, :, None], w)[..., 0]
    )


@pytest.mark.parametrize("W", [1, 9])
def test_no_images(W):
    x, w = np.zeros((0, W, 12), BF16), np.ones((4, 3), BF16)
    y, state = nkiconv.gated_short_conv(x, w, layout="NWC", return_final_state=True)
    assert (y.shape, state.shape, y.dtype) == ((0, W, 4), (0, 4, 2), BF16)


def test_nan_of_the_factor_stays_at_its_element():
    x, w, _, _ = data("BCx", 1, 40, 200)
    x[0, 7, 200 + 5] = np.nan
    y = nkiconv.gated_short_conv(x, w, layout="NWC")
    assert list(zip(*np.nonzero(~np.isfinite(y)), strict=True)) == [(0, 7, 5)]
    x[0, 7, 200 + 5], x[0, 7, 150] = 0, np.inf
    with np.errstate(invalid="ignore"):
        spoilt = ~np.isfinite(nkiconv.gated_short_conv(x, w, layout="NWC"))
    assert spoilt[0, 7:10, 150].all()
    assert np.count_nonzero(spoilt) <= 3 * 128
    assert set(np.nonzero(spoilt)[1]) == {7, 8, 9}
