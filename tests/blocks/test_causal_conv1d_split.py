"""Causal convolution, activation, split into heads and l2norm against float64: heads, layouts, states; of chunks that
are factors, and token-major rows of other functions.
"""

import functools
import itertools

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import strategies as st
from split_calls import SPLITS, TWO, check, data, truth
from tolerances import assert_exact

import nkiconv
from nkiconv.kernels.blocks import causal_conv1d_split as package
from nkiconv.kernels.blocks.causal_conv1d_split import causal_conv1d_split_heads, kernel
from nkiconv.problem import dtype_name
from nkiconv.schedules import packed_rows, split
from nkiconv.simulator import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

CHUNKS = ["BCx", "xCB", "CxB", "xC", "xB", "xG", "GCx"]
BF16 = ml_dtypes.bfloat16
#: Chunks lie in token-major rows alone.
PLACES = [(None, "NCW"), (None, "NWC"), ("BCx", "NWC")]
tokens = functools.partial(nkiconv.depthwise_conv1d, padding="causal", layout="NWC")


def products(x, layout, chunks):
    """What is convolved, [N, C, T]."""
    rows = x if layout == "NCW" else x.transpose(0, 2, 1)
    parts = dict(zip(chunks or "x", np.split(rows, len(chunks or "x"), 1), strict=True))
    return np.ascontiguousarray(parts["x"] * parts["B"] if chunks else rows)


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_heads(splits, layout, dtype):
    """Several tiles of tokens, the last one of few, and bits that do not depend on the cores."""
    x, w, _, _ = data(splits, 1, 150, dtype=dtype, layout=layout)
    two = nkiconv.causal_conv1d_split(x, w, splits=splits, layout=layout)
    check(two, x, w, splits, layout=layout)
    one = nkiconv.causal_conv1d_split(x, w, splits=splits, layout=layout, lnc=1)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True))


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("D", [1, 130, 520])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_chunks(chunks, D, dtype):
    """The same, of `depthwise_conv1d`."""
    splits, more = ((1, D, False),), {"chunks": chunks, "activation": "silu"}
    x, w, more["bias"], more["initial_state"] = data(splits, 2, 150, 3, dtype, "NWC", True, chunks=chunks)
    two, final = tokens(x, w, return_final_state=True, **more)
    check((two[:, :, None],), x, w, splits, layout="NWC", **more)
    one = tokens(x, w, return_final_state=True, lnc=1, **more)
    assert [one[0].tobytes(), one[1].tobytes()] == [two.tobytes(), final.tobytes()]


@draws(45, 180)
@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(2, 140), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 3), st.integers(1, 300), st.integers(1, 6),
    st.sampled_from([(None, "NCW"), (None, "NWC"), *((chunks, "NWC") for chunks in CHUNKS)]),
    st.sampled_from([None, "silu", "relu", "tanh"]), st.booleans(), st.booleans(), st.sampled_from([1, 2]),
    st.sampled_from([np.float32, BF16]), st.integers(0, 2**16),
)  # fmt: skip
def test_random_calls(splits, N, T, S, place, activation, biased, state, lnc, dtype, seed):
    (chunks, layout), splits = place, tuple((*one[:2], one[2] and place[0] is None) for one in splits)
    x, w, bias, before = data(splits, N, T, S, dtype, layout, state and S > 1, seed, chunks)
    more = {"bias": bias if biased else None, "activation": activation, "initial_state": before, "eps": 1e-3}
    more |= {"layout": layout, "chunks": chunks}
    check(nkiconv.causal_conv1d_split(x, w, splits=splits, lnc=lnc, **more), x, w, splits, **more)


@pytest.mark.cover(3)
@pytest.mark.parametrize(("chunks", "layout"), PLACES)
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_exact_sums_of_integers(chunks, layout, dtype):
    rng, splits = np.random.default_rng(0), ((2, 70, False), (1, 33, False))
    rows = rng.integers(-4, 5, (2, 173 * len(chunks or "x"), 200)).astype(dtype)
    w, bias = rng.integers(-4, 5, (173, 4)).astype(dtype), rng.integers(-4, 5, 173).astype(np.float32)
    x = rows if layout == "NCW" else np.ascontiguousarray(rows.transpose(0, 2, 1))
    more = {"bias": bias, "activation": None, "layout": layout, "chunks": chunks}
    found = nkiconv.causal_conv1d_split(x, w, splits=splits, **more)
    for one, right in zip(found, truth(x, w, splits, **more)[0], strict=True):
        assert_exact(one, right, dtype_name(dtype))


@pytest.mark.cover(4)
@pytest.mark.parametrize(("chunks", "layout"), [(None, "NCW"), (None, "NWC"), ("BCx", "NWC"), ("xG", "NWC")])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize(("N", "T"), [(131, 1), (50, 3), (3, 2), (3, 64)])
def test_short_images_share_steps(N, T, dtype, layout, chunks):
    """Their bits are those of one image at a time, on one core and two."""
    x, w, bias, before = data(TWO, N, T, dtype=dtype, layout=layout, state=True, chunks=chunks)
    more = {"splits": TWO, "layout": layout, "chunks": chunks, "return_final_state": True}
    (parts, final), one_core = (
        nkiconv.causal_conv1d_split(x, w, bias, initial_state=before, lnc=lnc, **more) for lnc in (2, 1)
    )
    for one, other in zip((*parts, final), (*one_core[0], one_core[1]), strict=True):
        assert one.tobytes() == other.tobytes()
    for n in (0, N // 2, N - 1):
        own = slice(n, n + 1)
        alone, last = nkiconv.causal_conv1d_split(x[own], w, bias, initial_state=before[own], **more)
        assert last.tobytes() == final[own].tobytes()
        assert all(one[own].tobytes() == other.tobytes() for one, other in zip(parts, alone, strict=True))
    zeros, _ = nkiconv.causal_conv1d_split(x, w, bias, **more)
    alone, _ = nkiconv.causal_conv1d_split(x[1:2], w, bias, **more)
    assert all(one[1:2].tobytes() == other.tobytes() for one, other in zip(zeros, alone, strict=True))


@pytest.mark.cover(4)
@pytest.mark.parametrize(("chunks", "layout"), PLACES)
@pytest.mark.parametrize("pieces", [(1, 1, 1, 199), (130, 72), (2, 128, 72)])
def test_resumed_prefill_is_one_run(pieces, chunks, layout):
    """Pieces with states between them, some shorter than a state, have the bits of one run."""
    x, w, bias, state = data(TWO, 2, 202, dtype=BF16, layout=layout, state=True, chunks=chunks)
    more = {"splits": TWO, "layout": layout, "chunks": chunks, "return_final_state": True}
    whole, final = nkiconv.causal_conv1d_split(x, w, bias, initial_state=state, **more)
    assert final.tobytes() == products(x, layout, chunks)[:, :, -3:].tobytes()
    found, axis = [], layout.index("W")
    for first, end in itertools.pairwise(np.cumsum([0, *pieces])):
        piece = np.ascontiguousarray(np.take(x, range(first, end), axis))
        parts, state = nkiconv.causal_conv1d_split(piece, w, bias, initial_state=state, **more)
        found.append(parts)
    assert state.tobytes() == final.tobytes()
    for part, several in zip(whole, zip(*found, strict=True), strict=True):
        assert np.concatenate(several, 1).tobytes() == part.tobytes()


@pytest.mark.cover(4)
@pytest.mark.parametrize(("chunks", "layout"), PLACES)
@pytest.mark.parametrize("cu_seqlens", [(0, 202), (0, 1, 3, 3, 130, 202), (0, 40, 80, 120, 120, 161, 202)])
def test_packed_sequences_are_calls_of_their_own(cu_seqlens, chunks, layout):
    """Sequences of no, few and many tokens, each with its states, one full of NaN, have the bits of separate calls."""
    count = len(cu_seqlens) - 1
    x, w, bias, _ = data(TWO, 1, 202, dtype=BF16, layout=layout, chunks=chunks)
    state = data(TWO, count, 5, dtype=BF16, state=True)[3]
    axis, lengths = layout.index("W"), np.diff(cu_seqlens)
    if count > 1:
        (x if layout == "NWC" else x.transpose(0, 2, 1))[0, cu_seqlens[1] : cu_seqlens[2]] = np.nan
    for before in (state, None):
        more = {"splits": TWO, "layout": layout, "chunks": chunks, "return_final_state": True}
        parts, final = nkiconv.causal_conv1d_split(x, w, bias, cu_seqlens=cu_seqlens, initial_state=before, **more)
        assert final.shape == (count, 218, 3)
        for k, size in enumerate(lengths):
            own = None if before is None else before[k : k + 1]
            if size == 0:
                assert np.array_equal(final[k], np.zeros((218, 3)) if own is None else own[0])
                continue
            piece = np.ascontiguousarray(np.take(x, range(cu_seqlens[k], cu_seqlens[k + 1]), axis))
            alone, end = nkiconv.causal_conv1d_split(piece, w, bias, initial_state=own, **more)
            assert final[k].tobytes() == end[0].tobytes()
            for part, one in zip(parts, alone, strict=True):
                found = part[:, cu_seqlens[k] : cu_seqlens[k + 1]]
                assert np.array_equal(found.astype(np.float32), one.astype(np.float32), equal_nan=True)


@draws(12, 60)
@hypothesis.given(
    st.lists(st.integers(0, 4), min_size=2, max_size=260) | st.lists(st.integers(0, 150), min_size=2, max_size=9),
    st.integers(0, 9), st.integers(2, 6), st.sampled_from([*PLACES, ("xG", "NWC")]),
    st.sampled_from([np.float32, BF16]), st.booleans(), st.sampled_from([1, 2]),
    st.sampled_from([packed_rows.PANEL_BYTES, 20_000]), st.integers(0, 2**16),
)  # fmt: skip
@hypothesis.example([5, 5], 3, 4, (None, "NCW"), BF16, True, 2, packed_rows.PANEL_BYTES, 0)
@hypothesis.example([2, 3], 0, 4, ("BCx", "NWC"), np.float32, True, 1, 20_000, 0)
def test_rows_side_by_side_are_rows_of_one_length(lengths, images, S, place, dtype, is_state, lnc, panel, seed):
    """Both schedules have the same bits: of any lengths, many rows, images, and panels of few channels."""
    (chunks, layout), splits = place, ((2, 64, True), (1, 90, False), (3, 200, False))
    splits = ((4, 128, True), (2, 256, False)) if images and layout == "NCW" else splits  # one run of HBM a partition
    N, T = (images + 1, min(128, max(1, lengths[0]))) if images else (1, max(1, sum(lengths)))
    cu_seqlens = None if images else (0, *itertools.accumulate(lengths[:-1]), T)
    x, w, bias, _ = data(splits, N, T, S, dtype, layout, seed=seed, chunks=chunks)
    before = data(splits, N if images else len(lengths), T, S, dtype, state=True, seed=seed)[3] if is_state else None
    more = {"layout": layout, "chunks": chunks, "cu_seqlens": cu_seqlens, "initial_state": before}
    found = []
    for rule, cores in ((lambda geometry, _: len(geometry.rows) > 1, lnc), (lambda *_: False, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(package, "shares_blocks", rule)
            patch.setattr(packed_rows, "PANEL_BYTES", panel)
            given = {"splits": splits, "return_final_state": True, "lnc": cores, **more}
            parts, final = nkiconv.causal_conv1d_split(x, w, bias, **given)
        found.append([one.tobytes() for one in (*parts, final)])
    assert found[0] == found[1]


@pytest.mark.simulator_only
@pytest.mark.parametrize(("layout", "lengths"), [
    ("NCW", [1 + 7 * row % 30 for row in range(32)]), ("NWC", [1 + 7 * row % 30 for row in range(32)]),
    ("NCW", [1] * 32), ("NCW", [2] * 32),
])  # fmt: skip
def test_short_rows_share_blocks(layout, lengths):
    """A batch of 32 rows of 1 to 30 tokens takes half the time of rows one by one, or of short runs, or less."""
    splits, ends = ((16, 128, False),), (0, *itertools.accumulate(lengths))
    x, w, _, _ = data(splits, 1, ends[-1], dtype=BF16, layout=layout)
    before = data(splits, 32, 1, dtype=BF16, state=True)[3]
    given = {"layout": layout, "cu_seqlens": ends, "initial_state": before, "return_final_state": True}
    found = []
    for is_shared in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not is_shared:
                patch.setattr(package, "shares_blocks", lambda *_: False)
            timed = execute(causal_conv1d_split_heads[2], (x, w, splits), given, trace_only=True)
        found.append(in_time(timed, Rates()).us)
    assert 2 * found[0] <= found[1]


@pytest.mark.cover(5)
@pytest.mark.parametrize(("chunks", "layout"), PLACES)
@pytest.mark.parametrize(("N", "cu_seqlens"), [(2, None), (1, (0, 2, 60, 60, 150))])
@pytest.mark.parametrize("state", [False, True])
def test_states_after_positions(N, cu_seqlens, chunks, layout, state):
    """They are the last inputs of the row of the position's last token, its initial state in front."""
    positions = (1, 2, 3, 59, 61, 128, 150, 2)
    x, w, _, _ = data(TWO, N, 150, dtype=BF16, layout=layout, chunks=chunks)
    rows = len(cu_seqlens) - 1 if cu_seqlens else N
    before = data(TWO, rows, 5, dtype=BF16, state=True)[3]
    _, found = nkiconv.causal_conv1d_split(
        x, w, splits=TWO, layout=layout, chunks=chunks, initial_state=before if state else None, cu_seqlens=cu_seqlens,
        state_positions=positions,
    )  # fmt: skip
    assert found.shape == (N, len(positions), 218, 3)
    starts = [0] if cu_seqlens is None else cu_seqlens[:-1]
    for n, (place, position) in itertools.product(range(N), enumerate(positions)):
        first = max(start for start in starts if start < position)
        row = n if cu_seqlens is None else max(k for k, start in enumerate(starts) if start == first)
        held = before[row] if state else np.zeros((218, 3), BF16)
        wanted = np.concatenate([held, products(x, layout, chunks)[n, :, first:position]], 1)[:, -3:]
        assert found[n, place].tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize(("chunks", "layout"), PLACES)
@pytest.mark.parametrize("first", [0, 37])
def test_some_channels_of_a_projection(first, chunks, layout):
    """Parts and states have the bits of a call with these channels alone."""
    alone, w, bias, before = data(TWO, 2, 150, dtype=BF16, layout=layout, state=True, chunks=chunks)
    sides = [(0, 0), (0, 0), (0, 0)]
    sides[layout.index("C")] = (first, 5)
    more = {"splits": TWO, "layout": layout, "chunks": chunks, "initial_state": before, "return_final_state": True}
    more["state_positions"] = (1, 70)
    wanted, *states = nkiconv.causal_conv1d_split(alone, w, bias, **more)
    wide = np.pad(alone, sides, constant_values=np.nan)
    found, *others = nkiconv.causal_conv1d_split(wide, w, bias, first_channel=first, **more)
    for one, other in zip((*wanted, *states), (*found, *others), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_numbers_stay_in_their_tile_and_tokens(bad):
    splits = ((2, 128, True), (2, 128, False))
    x, w, _, _ = data(splits, 1, 40)
    x[0, 5, 10] = bad
    with np.errstate(invalid="ignore", over="ignore"):
        q, v = nkiconv.causal_conv1d_split(x, w, splits=splits)
        x[0, 5, 10], x[0, 300, 10] = 0, bad
        q_of_v, v_of_v = nkiconv.causal_conv1d_split(x, w, splits=splits)
    finite = np.isfinite(q[0]).all((1, 2))
    assert list(np.flatnonzero(~finite)) == [10, 11, 12, 13]
    assert np.isfinite(v).all()
    assert np.isfinite(q_of_v).all()
    assert list(np.flatnonzero(~np.isfinite(v_of_v[0]).all((1, 2)))) == [10, 11, 12, 13]


def test_heads_of_zeros():
    """eps keeps them zero; without one they are 0 / 0."""
    splits = ((1, 4, True),)
    x, w = np.zeros((1, 4, 5), np.float32), np.ones((4, 4), np.float32)
    assert np.all(nkiconv.causal_conv1d_split(x, w, splits=splits)[0] == 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.all(np.isnan(nkiconv.causal_conv1d_split(x, w, splits=splits, eps=0)[0]))


def test_mean_far_from_zero():
    """The sum of squares is no difference of large ones: heads whose elements are all alike keep their norm."""
    splits, rng = ((3, 128, True),), np.random.default_rng(0)
    x = (1000 + rng.standard_normal((1, 384, 130))).astype(np.float32)
    w = np.ones((384, 4), np.float32)
    found = nkiconv.causal_conv1d_split(x, w, splits=splits, activation=None)
    check(found, x, w, splits, activation=None)
    assert np.all(truth(x, w, splits, activation=None)[1][0] < 1e-5)


def test_no_images():
    splits = ((2, 4, True), (1, 3, False))
    x, w = np.zeros((0, 11, 5), BF16), np.ones((11, 4), BF16)
    (q, v), state, states = nkiconv.causal_conv1d_split(
        x, w, splits=splits, return_final_state=True, state_positions=(2, 5)
    )
    assert (q.shape, v.shape, state.shape, states.shape) == ((0, 5, 2, 4), (0, 5, 1, 3), (0, 11, 3), (0, 2, 11, 3))
    assert {q.dtype, v.dtype, state.dtype} == {np.dtype(BF16)}
    q, v = nkiconv.causal_conv1d_split_update(x[:, :, 0], state, w, splits=splits)
    assert (q.shape, v.shape) == ((0, 2, 4), (0, 1, 3))
    for W in (1, 9):
        y, state = nkiconv.gated_short_conv(
            np.zeros((0, W, 12), BF16), np.ones((4, 3), BF16), layout="NWC", return_final_state=True
        )
        assert (y.shape, state.shape, y.dtype) == ((0, W, 4), (0, 4, 2), BF16)


@pytest.mark.parametrize("order", ["BCx", "xBC"])
def test_one_token_is_channels_first(order):
    """Its bits are those of the other layout, whose algorithms it may name."""
    x, w, bias, state = data(((1, 70, False),), 5, 1, 3, BF16, "NWC", True, chunks=order)
    more = {"order": order, "bias": bias, "initial_state": state, "return_final_state": True, "algorithm": "update"}
    y, final = nkiconv.gated_short_conv(x, w, layout="NWC", **more)
    wanted, last = nkiconv.gated_short_conv(x.swapaxes(1, 2), w, **more)
    assert (y.shape, y.tobytes(), final.tobytes()) == ((5, 1, 70), wanted.tobytes(), last.tobytes())
    assert np.array_equal(
        nkiconv.gated_short_conv(x, w, layout="NWC")[:, 0], nkiconv.gated_short_conv(x[:, 0, :, None], w)[..., 0]
    )


def test_nan_of_the_factor_stays_at_its_element():
    x, w, _, _ = data(((1, 200, False),), 1, 40, 3, layout="NWC", chunks="BCx")
    x[0, 7, 200 + 5] = np.nan
    y = nkiconv.gated_short_conv(x, w, layout="NWC")
    assert list(zip(*np.nonzero(~np.isfinite(y)), strict=True)) == [(0, 7, 5)]
    x[0, 7, 200 + 5], x[0, 7, 150] = 0, np.inf
    with np.errstate(invalid="ignore"):
        spoilt = ~np.isfinite(nkiconv.gated_short_conv(x, w, layout="NWC"))
    assert spoilt[0, 7:10, 150].all()
    assert np.count_nonzero(spoilt) <= 3 * 128
    assert set(np.nonzero(spoilt)[1]) == {7, 8, 9}


@pytest.mark.simulator_only
@pytest.mark.parametrize(
    ("N", "T", "S", "dtype"), [(2, 1, 2, BF16), (8, 4, 4, np.float32), (8, 1, 8, BF16), (16, 1, 4, BF16)]
)
def test_states_arrive_the_faster_way(N, T, S, dtype, monkeypatch):
    """In runs that are transposed, or as elements: as the schedule says."""
    splits = ((8, 128, False),)
    x, w, _, state = data(splits, N, T, S, dtype, "NWC", True)

    def us_of(rule):
        monkeypatch.setattr(kernel, "transposes_states", rule)
        given = {"layout": "NWC", "initial_state": state}
        return in_time(execute(causal_conv1d_split_heads[2], (x, w, splits), given, trace_only=True), Rates()).us

    rule = split.transposes_states
    assert us_of(rule) == min(us_of(lambda *_: True), us_of(lambda *_: False))
