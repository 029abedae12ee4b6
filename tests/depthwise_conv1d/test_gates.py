"""Gated convolutions of rows, y = C * act(conv(B * x) + bias) or a GLU in front: every algorithm, order and dtype."""

import numpy as np
import pytest
from depthwise import Row
from draws import draws
from epilogue import FLOATS, PLAIN, Request, takes_state
from gates import CHUNKS, check_gated, refusal, takes
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems_for
from tolerances import assert_within_limit

import nkiconv
from nkiconv import GeometryError, LayoutError, UnsupportedError
from nkiconv.bounds import epilogue_bound, gated_bound
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.simulator import KernelAssertionError

#: For each algorithm something, with padding on one side, on both, on none; states where they fit.
ROWS = [
    #   why                             N  C    W     S  stride  pad      dil lhs
    Row("short causal filter", 1, 131, 300, 4, 1, (3, 0)),
    Row("filter of tens", 2, 5, 600, 31, 1, (15, 15)),
    Row("images on partitions", 9, 34, 5, 3, 1, (2, 0)),
    Row("one step", 5, 130, 1, 4, 1, (3, 0)),
    Row("one step of many", 34, 6, 1, 4, 1, (3, 0)),
    Row("few columns of a long filter", 2, 5, 5, 300, 1, (299, 0)),
    Row("dilation", 2, 7, 40, 5, 1, (12, 0), 3),
    Row("several column tiles", 1, 3, 2100, 6, 1, (5, 0)),
    Row("stride", 2, 9, 61, 5, 2, (2, 2)),
    Row("gaps", 2, 9, 41, 5, 1, (4, 0), 1, 2),
    Row("crop", 1, 7, 40, 5, 1, (4, -3)),
]
EPILOGUES = [PLAIN, Request(bias="fp32", activation="silu", out_dtype="fp32")]


@pytest.mark.cover(8)
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_within_the_bound(row, algorithm, chunks):
    place = ROWS.index(row) + CHUNKS.index(chunks)
    problem, request = row.problem(FLOATS[place % 3]), EPILOGUES[place % 2]
    if not takes(chunks, problem) or refusal(algorithm, problem, chunks, request):
        return
    check_gated(problem, chunks, request, 1, whole=False, algorithm=algorithm)


@pytest.mark.cover(11)
@pytest.mark.parametrize("chunks", ["BCx", "xG"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("row", [row for row in ROWS if takes_state(row.problem("bf16"))], ids=lambda row: row.id)
def test_exact_with_states(row, algorithm, chunks):
    problem = row.problem("bf16" if chunks == "BCx" else "fp32")
    request = Request(bias="fp32", state=True, final=True)
    if takes(chunks, problem) and not refusal(algorithm, problem, chunks, request):
        check_gated(problem, chunks, request, 2, whole=True, algorithm=algorithm)


@pytest.mark.cover(2)
@pytest.mark.parametrize("chunks", ["BCx", "xG"])
@pytest.mark.parametrize("shard", ["channels", "columns"])
@pytest.mark.parametrize("x_stationary", [False, True])
def test_buffers_of_banded_keep_what_stands_for_padding(x_stationary, shard, chunks):
    """Tiles of several shapes, images, columns and a short group in buffers that rotate: a tile clears its padding in
    a buffer that the one before had in another shape."""
    problem = Row("many tiles", 3, 155, 150, 31, 1, (15, 15)).problem("bf16")
    sizes = (("block", 16), ("groups", 3), ("images", 2), ("edge", 1))
    config = (*sizes, ("shard", shard), ("x_stationary", x_stationary))
    check_gated(problem, chunks, Request(bias="fp32"), 4, whole=True, algorithm="banded", config=config)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@draws(6)
def test_any_problem(algorithm, data):
    problem = data.draw(problems_for(algorithm, widest=90, most_taps=9, most_channels=70))
    chunks = data.draw(st.sampled_from([one for one in CHUNKS if takes(one, problem)]))
    state = takes_state(problem) and data.draw(st.booleans())
    request = Request(bias=data.draw(st.sampled_from([None, "bf16"])), state=state, final=state)
    if not refusal(algorithm, problem, chunks, request):
        check_gated(problem, chunks, request, 3, whole=data.draw(st.booleans()), algorithm=algorithm)


@pytest.mark.parametrize(("channels", "chunks", "words"), [
    (12, "BCx", "a factor of y has its extents"), (12, "BC", "must have x"), (12, "BGx", "must have x"),
    (12, "BGCx", "must have x"), (7, "xG", "no multiple of 2"),
])  # fmt: skip
def test_a_kernel_refuses_what_is_no_factor(channels, chunks, words):
    kernel = nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[2])
    x, w = np.ones((1, channels, 1, 9), np.float32), np.ones((4 if channels == 12 else 3, 1, 1, 3), np.float32)
    with pytest.raises(KernelAssertionError, match=words):
        kernel(x, w, feature_group_count=len(w), chunks=chunks)


X, W = np.ones((2, 12, 9), np.float32), np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nkiconv.gated_short_conv(X, W, order="xG"), LayoutError, "order='xG'"),
        (lambda: nkiconv.gated_short_conv(X[:, :11], W), LayoutError, "x has 11 channels, no multiple of 3"),
        (lambda: nkiconv.gated_short_conv(X, W[:3]), GeometryError, "w.shape"),
        (lambda: nkiconv.glu_conv1d(X, W), GeometryError, "w.shape"),
        (lambda: nkiconv.depthwise_conv1d(X, W, chunks="BxB"), LayoutError, "chunks='BxB'"),
        (lambda: nkiconv.depthwise_conv1d(X, W, chunks="BCx"), GeometryError, "W=9, Q=7"),
        (
            lambda: nkiconv.depthwise_conv1d(X, W, chunks="BCx", padding="causal", residual=X[:, :4]),
            UnsupportedError,
            "add the residual to y",
        ),
    ],
)
def test_calls_that_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_other_operations_have_no_chunks():
    problem = nkiconv.ConvProblem(N=1, C=4, W=9, S=3, groups=4, padding=((0, 0), (2, 0)))
    for operation in ("conv2d", "depthwise_conv1d_weight"):
        toward = problem.toward("wgrad") if operation.endswith("weight") else problem
        with pytest.raises(UnsupportedError, match="chunks="):
            nkiconv.plan(toward, operation=operation, chunks="BCx")


def test_gated_short_conv_steps_as_a_whole():
    rng = np.random.default_rng(0)
    bcx, w = rng.integers(-3, 4, (2, 12, 7)).astype(np.float32), rng.integers(-2, 3, (4, 3)).astype(np.float32)
    whole, state = nkiconv.gated_short_conv(bcx, w, return_final_state=True)
    part, held = nkiconv.gated_short_conv(bcx[:, :, :4], w, return_final_state=True)
    pieces = [part]
    for at in range(4, 7):
        step, held = nkiconv.gated_short_conv(bcx[:, :, at : at + 1], w, initial_state=held, return_final_state=True)
        pieces.append(step)
    assert np.array_equal(np.concatenate(pieces, axis=2), whole)
    assert np.array_equal(held, state)
    B, C, x = np.split(bcx, 3, axis=1)
    plain = nkiconv.depthwise_conv1d(B * x, w, padding="causal")
    assert np.array_equal(whole, C * plain)
    assert np.array_equal(nkiconv.gated_short_conv(np.concatenate([x, B, C], axis=1), w, order="xBC"), whole)


def test_glu_conv1d_is_the_convolution_of_a_glu():
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 8, 30)).astype(np.float32), rng.standard_normal((4, 7)).astype(np.float32)
    a, b = np.split(x.astype(np.float64), 2, axis=1)
    error = gated_bound(x[:, :, None], "xG", "fp32")[:, :, 0]

    def convolved(rows, filters):
        padded = np.pad(rows, ((0, 0), (0, 0), (3, 3)))
        return sum(padded[:, :, tap : tap + 30] * filters[:, tap, None].astype(np.float64) for tap in range(7))

    glu = a / (1 + np.exp(-b))
    truth, sizes, inexact = convolved(glu, w), convolved(abs(glu), abs(w)), convolved(error, abs(w))
    found = nkiconv.glu_conv1d(x, w, activation=None)
    assert_within_limit(found, truth, epilogue_bound(7, sizes, truth, "fp32", inexact=inexact))
    assert nkiconv.gated_short_conv(np.ones((0, 12, 9), np.float32), W).shape == (0, 4, 9)


@pytest.mark.cover(8)
@pytest.mark.parametrize("algorithm", ["mixed", "vector", "banded"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("chunks", "chunk", "after"), [
    ("BCx", 0, 3), ("BCx", 1, 1), ("BCx", 2, 3), ("xG", 0, 3), ("xG", 1, 3)
])  # fmt: skip
def test_how_far_non_finite_numbers_reach(chunks, chunk, after, bad, algorithm):
    """What the definition spoils, and at most 128 outputs for each; of a factor of y, and of `vector`, nothing else. A
    sigmoid of Inf is finite."""
    D, channel, token = 200, 7, 20
    x, w = np.ones((1, len(chunks) * D, 40), np.float32), np.ones((D, 3), np.float32)
    x[0, chunk * D + channel, token] = bad
    call = nkiconv.gated_short_conv if chunks == "BCx" else nkiconv.glu_conv1d
    more = {"algorithm": algorithm} | ({} if chunks == "BCx" else {"padding": "causal", "activation": None})
    if algorithm == "mixed":
        more["config"] = (("recipes", ((3, 0, 0, 0),)), ("start", ()), ("end", ()))
    with np.errstate(invalid="ignore"):
        spoiled = ~np.isfinite(call(x, w, **more)[0])
    wanted = np.zeros_like(spoiled)
    wanted[channel, token : token + after] = not ((chunks, chunk) == ("xG", 1) and np.isinf(bad))
    assert spoiled[wanted].all()
    if algorithm == "vector" or after == 1:
        assert np.array_equal(spoiled, wanted)
    elif algorithm == "mixed":
        assert np.array_equal(spoiled, np.where(np.arange(D)[:, None] % 2 == channel % 2, wanted.any(0), False))
    else:
        assert wanted.sum() <= spoiled.sum() <= 128 * wanted.sum()
