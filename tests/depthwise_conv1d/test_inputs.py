"""What a depthwise row is convolved of: a state in front of it, chunks that are multiplied, a prologue; by every
algorithm."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from conv_calls import FLOATS, integers
from depthwise import Row, run, same_bits, truth
from draws import cores
from epilogue import CHUNKS, Request, call, draw, final_state, fitting, stored, window
from scope import REFUSES, check_in_scope, runs, scope
from tolerances import assert_exact

import nkiconv
from nkiconv import GeometryError, LayoutError, NkiconvError, UnsupportedError
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.simulator import KernelAssertionError

#: For each algorithm something: padding on one side, on both, on none; states of every width; channels that end a tile
#: early; taps whose columns are loaded apart.
ROWS = [
    #   why                              N  C    W     S  stride  pad        dil lhs
    Row("short causal filter", 1, 131, 300, 4, 1, (3, 0)),
    Row("filter of tens", 2, 5, 600, 31, 1, (15, 15)),
    Row("images on partitions", 9, 34, 5, 3, 1, (2, 0)),
    Row("row wider than the state", 2, 131, 11, 4, 1, (3, 0)),
    Row("row as wide as the state", 1, 5, 6, 7, 1, (6, 0)),
    Row("row narrower than the state", 3, 9, 4, 8, 1, (7, 0)),
    Row("one step", 5, 130, 1, 4, 1, (3, 0)),
    Row("one step of one channel", 3, 1, 1, 2, 1, (1, 0)),
    Row("one step of many", 34, 6, 1, 4, 1, (3, 0)),
    Row("dilation", 2, 7, 40, 5, 1, (12, 0), 3),
    Row("taps far apart", 2, 7, 300, 3, 1, (9, 200), 90),
    Row("padding on the right too", 2, 7, 9, 5, 1, (4, 6)),
    Row("crop on the right", 1, 7, 40, 5, 1, (4, -3)),
    Row("few columns of a long filter", 2, 5, 5, 300, 1, (299, 0)),
    Row("state across tap tiles", 1, 3, 700, 200, 1, (199, 0)),
    Row("several column tiles", 1, 3, 2100, 6, 1, (5, 0)),
    Row("state wider than a tile", 1, 2, 40, 3, 1, (3000, 0), 1500),
    Row("stride", 2, 9, 61, 5, 2, (2, 2)),
    Row("gaps", 2, 9, 41, 5, 1, (4, 0), 1, 2),
]
STATES = {"no state": {}, "from": {"state": True}, "to": {"final": True}, "from and to": {"state": True, "final": True}}
PROLOGUES = [
    Request(bias="fp32", out_dtype="fp32", x_scale="image", x_shift="channel", x_activation="relu"),
    Request(bias="fp32", out_dtype="fp32", x_shift="image"), Request(x_scale="channel", x_activation="silu"),
    Request(x_activation="sigmoid"),
]  # fmt: skip
ASKED = [
    Request(), *PROLOGUES, *(Request(chunks=one) for one in CHUNKS),
    *(Request("fp32", out_dtype="fp32", chunks=one) for one in ("BCx", "xG")),
    *(Request("fp32", "silu", out_dtype="fp32", chunks=one) for one in CHUNKS),
]  # fmt: skip
TRIED = [None, *ALGORITHMS]


def identity(value):
    return value.id


@pytest.mark.cover(60, keep=["vector-one_step_of_many-BCx-from and to-bf16-True"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("request_", ASKED, ids=identity)
@pytest.mark.parametrize("row", ROWS, ids=identity)
@pytest.mark.parametrize("algorithm", TRIED)
def test_every_algorithm(algorithm, row, request_, states, dtype, whole):
    problem = row.problem(dtype)
    request_ = fitting(dataclasses.replace(request_, **STATES[states]), problem)
    if request_ is not None:
        check_in_scope(algorithm, problem, request_, whole=whole)


@pytest.mark.cover(4, keep=["False-columns-x_image_channel_relu-bias_fp32-to_fp32"])
@pytest.mark.parametrize("request_", [Request("fp32", chunks="BCx"), Request("fp32", chunks="xG"), PROLOGUES[0]],
                         ids=identity)  # fmt: skip
@pytest.mark.parametrize("shard", ["channels", "columns"])
@pytest.mark.parametrize("x_stationary", [False, True])
def test_buffers_of_banded_keep_what_stands_for_padding(x_stationary, shard, request_):
    """Tiles of several shapes, images, columns and a short group in buffers that rotate: a tile clears its padding in
    a buffer that the one before had in another shape."""
    problem = Row("many tiles", 3, 155, 150, 31, 1, (15, 15)).problem("bf16")
    sizes = (("block", 16), ("groups", 3), ("images", 2))
    config = (*sizes, ("shard", shard), ("x_stationary", x_stationary))
    check_in_scope("banded", problem, request_, 4, whole=True, config=config)


@pytest.mark.cover(8)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("algorithm", TRIED)
def test_a_stream_in_pieces_is_the_whole(algorithm, strict):
    """Pieces of one element, of less than the state and of more; what refuses a piece leaves it to another."""
    widths = (1, 40, 2, 5, 1, 1, 64)
    whole = Row("whole", 2, 7, sum(widths), 5, 1, (12, 0), 3).problem("bf16")
    x, w = integers(np.random.default_rng(3), whole)
    y, _ = truth(x, w, whole)
    for lnc in cores():
        state, first, pieces, used = None, 0, [], 0
        for width in widths:
            piece = whole.replace(W=width)
            request = Request(state=state is not None, final=True)
            options = {"return_final_state": True, "strict_nonfinite": strict}
            options |= {} if state is None else {"initial_state": state}
            mine = runs(algorithm, piece, request, strict_nonfinite=strict)
            used += mine
            chosen = algorithm if mine else None
            part, state = run(x[..., first : first + width], w, piece, lnc, algorithm=chosen, **options)
            pieces.append(part)
            first += width
        assert_exact(np.concatenate(pieces, axis=3), y, "bf16")
        assert same_bits(state, np.ascontiguousarray(x[:, :, 0, -window(whole) :]))
        assert used > 0 or scope(algorithm, whole, strict=strict) == REFUSES


@pytest.mark.cover(9, keep=["state_just_long-state-(0, 1, 2, 3)", "long_state_of_one_long_row-state-(0, 1, 2, 3)"])
@pytest.mark.parametrize("in_perm", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 0, 1)], ids=str)
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
# Every way of x and the old state into the next one: columns wide or narrow, rows that fill tiles or not.
@pytest.mark.parametrize("row", [
    Row("one token of many rows", 3, 1111, 1, 4, 1, (3, 0)),
    Row("a token and a state of one", 4, 650, 1, 2, 1, (1, 0)),
    Row("tokens fewer than the state", 5, 333, 5, 9, 1, (8, 0)),
    Row("more rows than a tile", 2, 9_000, 1, 4, 1, (3, 0)),
    Row("more tokens than the state", 3, 777, 9, 4, 1, (3, 0)),
    Row("last column of long rows", 2, 300, 700, 2, 1, (1, 0)),
    Row("last columns of long rows", 2, 131, 700, 5, 1, (4, 0)),
    Row("last columns of rows just long enough", 2, 131, 128, 5, 1, (4, 0)),
    Row("one row", 1, 1, 1, 4, 1, (3, 0)),
    Row("many images of one channel", 400, 1, 2, 6, 1, (5, 0)),
    Row("state just long", 2, 70, 3, 257, 1, (256, 0)),
    Row("long state of one long row", 1, 1, 800, 300, 1, (299, 0)),
], ids=identity)  # fmt: skip
def test_the_next_state_is_the_end_of_state_and_row(row, with_state, in_perm):
    """On 1 and 2 cores, any bits: NaN too. Inputs as read by the kernel are those that this perm stores."""
    dtype = "fp32" if row.S == 3 else "bf16"
    request = Request(state=with_state, final=True)
    inputs = draw(np.random.default_rng(9), row.problem(dtype), request, whole=False)
    inputs.x[0, 0, 0, -1] = np.nan
    expected = np.ascontiguousarray(final_state(inputs, row.problem(dtype)))
    laid = dataclasses.replace(inputs, x=stored(inputs.x, in_perm))
    for lnc in (1, 2):
        _, final = call(laid, row.problem(dtype), request, lnc, in_perm=in_perm)
        assert same_bits(final, expected)


def test_functions_of_chunks_name_them():
    """`order` and "same" padding are all that they add to depthwise_conv1d."""
    rng, ones = np.random.default_rng(0), np.ones((0, 12, 9), np.float32)
    x, w = rng.standard_normal((2, 12, 9)).astype(np.float32), rng.standard_normal((4, 3)).astype(np.float32)
    for order in ("BCx", "xBC"):
        found, state = nkiconv.gated_short_conv(x, w, order=order, return_final_state=True)
        more = {"padding": "causal", "return_final_state": True}
        plain, end = nkiconv.depthwise_conv1d(x, w, chunks=order, **more)
        assert same_bits(found, plain)
        assert same_bits(state, end)
    found = nkiconv.glu_conv1d(x[:, :8].copy(), w, activation=None)
    assert same_bits(found, nkiconv.depthwise_conv1d(x[:, :8].copy(), w, chunks="xG", padding="same"))
    assert nkiconv.gated_short_conv(ones, w).shape == (0, 4, 9)


X, W = np.ones((2, 12, 9), np.float32), np.ones((4, 3), np.float32)
rows = functools.partial(nkiconv.depthwise_conv1d, X[:, :4], W, padding="causal")
kernel = functools.partial(nkiconv.simulate(nkiconv.depthwise_conv1d_implicit_gemm[2]), X[:, :, None])
WK = {"filter_ref": W[:, None, None], "feature_group_count": 4}
short, glu = functools.partial(nkiconv.gated_short_conv, X), functools.partial(nkiconv.glu_conv1d, X)
PROBLEM = nkiconv.ConvProblem(N=1, C=4, W=9, S=3, groups=4, padding=((0, 0), (2, 0)))
SILU = {"x_activation": "silu"}


@pytest.mark.parametrize(("function", "more", "error", "words"), [
    (kernel, WK | {"chunks": "BCx"}, KernelAssertionError, "a factor of y has its extents"),
    (functools.partial(kernel.func, X[:, :7, None]), WK | {"chunks": "xG"}, KernelAssertionError, "no multiple of 2"),
    (short, {"w": W, "order": "xG"}, LayoutError, "order='xG'"),
    (functools.partial(short.func, X[:, :11]), {"w": W}, LayoutError, "x has 11 channels, no multiple of 3"),
    (short, {"w": W[:3]}, GeometryError, "w.shape"),
    (short, {"w": W, "layout": "NTC"}, LayoutError, "layout='NTC'"),
    (functools.partial(short.func, X.swapaxes(1, 2)), {"w": W, "layout": "NWC", "algorithm": "mixed"},
     UnsupportedError, "layout='NWC', algorithm='mixed'"),
    (functools.partial(short.func, X.swapaxes(1, 2)), {"w": W, "layout": "NWC", "out_dtype": "fp32"},
     UnsupportedError, "layout='NWC', out_dtype='fp32'"),
    (functools.partial(short.func, X), {"w": W, "layout": "NWC"}, GeometryError, "w.shape"),
    (glu, {"w": W}, GeometryError, "w.shape"),
    (nkiconv.depthwise_conv1d, {"x": X, "w": W, "chunks": "BCx"}, GeometryError, "W=9, Q=7"),
    (nkiconv.depthwise_conv1d, {"x": X, "w": W, "chunks": "BCx", "padding": "causal", "residual": X[:, :4]},
     UnsupportedError, "add the residual to y"),
    (nkiconv.plan, {"problem": PROBLEM, "operation": "conv2d", "chunks": "BCx"}, UnsupportedError, "chunks="),
    (nkiconv.plan, {"problem": PROBLEM.toward("wgrad"), "operation": "depthwise_conv1d_weight", "chunks": "BCx"},
     UnsupportedError, "chunks="),
    (rows, SILU | {"algorithm": "dot"}, NkiconvError, r"x_scale, x_shift, x_activation: dot takes none; use mixed,"),
    (rows, SILU | {"algorithm": "update"}, NkiconvError, r"update takes none; use mixed, vector or banded"),
    (nkiconv.depthwise_conv1d, {"x": X[:, :8], "w": W, "padding": "causal", "chunks": "xG"} | SILU, NkiconvError,
     r"chunks='xG', x_scale, x_shift, x_activation: what arrives is"),
    (rows, SILU | {"algorithm": "banded", "initial_state": np.zeros((2, 4, 2), np.float32)}, NkiconvError,
     r"banded takes none with an initial state; use mixed or vector"),
])  # fmt: skip
def test_what_is_refused(function, more, error, words):
    with pytest.raises(error, match=words):
        function(**more)


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
        more["config"] = (("recipes", ((3, 0, 0, 0),)), ("start", ()))
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


@pytest.mark.simulator_only
@pytest.mark.parametrize("x_stationary", [True, False])
def test_tiles_of_banded_are_gated_in_the_order_of_their_loads(x_stationary):
    config = ("block", 32), ("groups", 2), ("x_stationary", x_stationary)
    x, w = nkiconv.spec((2, 2 * 64, 1, 300), "bf16"), nkiconv.spec((64, 1, 1, 31), "bf16")
    more = {"chunks": "xG", "padding": ((0, 0), (15, 15)), "algorithm": "banded", "config": config}
    found = nkiconv.simulator.execute(nkiconv.depthwise_conv1d_implicit_gemm[1], (x, w), more, trace_only=True)
    gates = [one.reads[0].info.id for one in found.instructions if one.op == "activation"]
    loads = [one.writes[0].info.id for one in found.instructions if one.op == "dma_copy"]
    assert len(gates) > 3
    assert gates == [one for one, _ in itertools.groupby(one for one in loads if one in gates)]
