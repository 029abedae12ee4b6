"""Every algorithm by its name against the same truth: edges, layouts, epilogues, non-finite values, settings, refusals;
then named cases.

An algorithm that refuses a row says so by `unsupported_reason`; the kernel must then say the very same, and the test is
skipped: `scope` says which rows an algorithm may refuse. Epilogues of other shapes and settings: test_by_settings.py.
"""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from conv_calls import FLOATS, integers, normals
from depthwise import EDGE, Row, row_of, run, same_bits, truth
from draws import cores
from epilogue import PLAIN, Request, check, check_stored, draw, fitting, keywords
from scope import check_in_scope, runs
from tolerances import assert_exact, assert_within, integer_inputs

import nkiconv
from nkiconv import cases
from nkiconv.errors import NkiconvError
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.planner.depthwise_conv1d import geometry_of
from nkiconv.reference import num_terms
from nkiconv.rules import ACTIVATIONS, RESIDUAL_POSITIONS

#: What each algorithm is for, small; between them every algorithm has something to do.
PURPOSES = [
    #   why                          N  C    W    S  stride  pad
    Row("short filter", 1, 131, 300, 4, 1, (3, 0)),
    Row("filter of tens", 2, 5, 600, 31, 1, (15, 15)),
    Row("few columns", 1, 5, 300, 297),
    Row("one step", 5, 130, 1, 4, 1, (3, 0)),
]


TRIED = [None, *ALGORITHMS]


@pytest.mark.cover(54, keep=["None-dilation_beyond_a_tile-fp32-False-False"])
@pytest.mark.parametrize(("whole", "strict"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("row", [*EDGE, *PURPOSES], ids=lambda row: row.id)
@pytest.mark.parametrize("algorithm", TRIED)
def test_every_edge(algorithm, row, dtype, whole, strict):
    check_in_scope(algorithm, row.problem(dtype), whole=whole, strict_nonfinite=strict)


def test_row_of_a_million_samples():
    check(Row("million", 1, 1, 1_000_000, 9, 1, (4, 4)).problem("bf16"), PLAIN, 4, whole=True)


def test_one_token_is_planned_alike_in_both_layouts():
    """Its channels are neighbours in either."""
    problem = Row("one step", 32, 2048, 1, 4, 1, (3, 0)).problem("bf16")
    assert geometry_of(problem.replace(layout="NHWC")) == geometry_of(problem)


@pytest.mark.parametrize("sizes", [(1, 4096, 16), (9, 1024, 2)], ids=str)
def test_tokens_take_no_longer_with_channels_side_by_side(sizes):
    """Runs of a token's channels cost at most 1.38 times those of rows, and no copies."""
    problem = Row("tokens", *sizes, 4, 1, (3, 0)).problem("bf16")
    plans = [nkiconv.plan(problem.replace(layout=layout), use_cache=False) for layout in ("NCHW", "NHWC")]
    assert [one.algorithm for one in plans] == ["update"] * 2
    assert plans[1].modelled_us < 1.4 * plans[0].modelled_us


LAID = [
    *PURPOSES, row_of(EDGE, "causal"), row_of(EDGE, "all three together"),
    Row("state wider than the row", 3, 9, 4, 8, 1, (7, 0)), Row("copied side by side", 2, 70, 300, 3, 1, (2, 0)),
]  # fmt: skip
LAID_REQUESTS = [
    PLAIN, *(Request("fp32", "relu", "bf16", position) for position in RESIDUAL_POSITIONS), Request(chunks="BCx"),
    Request("fp32", "relu", "fp32", state=True, final=True), Request(x_shift="channel", x_activation="relu"),
]  # fmt: skip
PERMS = list(itertools.permutations(range(4)))
#: Of x, w and y: channels side by side, and every permutation of each.
ORDERS = {
    "NHWC": ((0, 3, 1, 2), (0, 1, 2, 3), (0, 2, 3, 1)),
    **{str(one): (PERMS[one], PERMS[(one + 7) % 24], PERMS[(one + 13) % 24]) for one in range(24)},
}


@pytest.mark.cover(36)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("request_", LAID_REQUESTS, ids=lambda request: request.id)
@pytest.mark.parametrize("row", LAID, ids=lambda row: row.id)
@pytest.mark.parametrize("algorithm", TRIED)
def test_layouts(algorithm, row, request_, order):
    """A residual lies as y does, a state always canonical."""
    problem = row.problem("bf16")
    request_ = fitting(request_, problem)
    if request_ is not None and runs(algorithm, problem, request_):
        check_stored(problem, request_, 5, *ORDERS[order], algorithm=algorithm)


BAD = EDGE[0].problem("fp32").replace(N=2, C=6, K=6, groups=6, W=40, S=5, padding=((0, 0), (2, 1)))
BAD_PROBLEMS = {
    "padded": BAD,
    "causal": BAD.replace(S=4, padding=((0, 0), (3, 0))),
    "strided": BAD.replace(stride=(1, 3), rhs_dilation=(1, 2)),
    "gaps": BAD.replace(lhs_dilation=(1, 2), padding=((0, 0), (9, 0))),
    "tap_tiles": BAD.replace(S=140, padding=((0, 0), (120, 30))),
    "tiles_of_padding": BAD.replace(W=700, padding=((0, 0), (600, 0))),
    "few_columns": BAD.replace(W=200, S=197, padding=((0, 0), (2, 1))),
    "one_step": BAD.replace(W=1, S=4, padding=((0, 0), (3, 0))),
}


def with_bad(problem, value, where, tap=1):
    """Integer inputs, no tap of them 0, with one bad value in channel 3: of image 0 or of the filter."""
    x, w = integers(np.random.default_rng(1), problem)
    w[w == 0] = 1
    (x if where == "x" else w)[(0, 3, 0, problem.W // 2) if where == "x" else (3, 0, 0, tap)] = value
    return x, w


@pytest.mark.cover(24)
@pytest.mark.parametrize("where", ["x", "w"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("problem", BAD_PROBLEMS.values(), ids=BAD_PROBLEMS)
@pytest.mark.parametrize("algorithm", TRIED)
def test_strict_follows_the_definition(algorithm, problem, value, where):
    if not runs(algorithm, problem, strict_nonfinite=True):
        return
    x, w = with_bad(problem, value, where)
    y, _ = truth(x, w, problem)
    assert not np.isfinite(y).all()
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, algorithm=algorithm, strict_nonfinite=True), y, "fp32")


@pytest.mark.cover(5)
@pytest.mark.parametrize("where", ["x", "w"])
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("row", PURPOSES, ids=lambda row: row.id)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_by_default_bad_values_spread_within_a_matmul_and_never_get_lost(algorithm, row, value, where):
    problem = replace(row, N=2, C=140).problem("fp32")
    if not runs(algorithm, problem):
        return
    x, w = with_bad(problem, value, where, tap=-1)
    y, _ = truth(x, w, problem)
    actual = run(x, w, problem, 2, algorithm=algorithm)
    bad, spread = ~np.isfinite(y), ~np.isfinite(actual)
    # where the bad value meets an element: what it does to the zeros of padding is for strict_nonfinite
    valid_range = (
        truth(np.ones_like(x) if where == "w" else ~np.isfinite(x), ~np.isfinite(w) if where == "w" else w, problem)[1]
        > 0
    )
    assert (bad & valid_range).any()
    assert not (bad & valid_range & ~spread).any(), f"lost at {np.argwhere(bad & valid_range & ~spread)[:3].tolist()}"
    # a column of a matmul has 128 outputs; vector never multiplies one channel by another's zeros
    assert spread.sum() <= (1 if algorithm == "vector" else 128) * bad.sum()
    keeps = ~spread & ~bad
    np.testing.assert_array_equal(actual[keeps], y[keeps])


@pytest.mark.cover(3)
@pytest.mark.parametrize("row", PURPOSES, ids=lambda row: row.id)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sums_beyond_the_output_dtype_become_infinite_where_they_are(algorithm, row):
    """Finite inputs: an overflow in fp16 is an Inf in that channel and column and nothing anywhere else."""
    problem = replace(row, N=2, C=140).problem("fp16")
    if not runs(algorithm, problem):
        return
    x, w = with_bad(problem, 60_000, "x")
    w[3] = 2
    y, _ = truth(x, w, problem)
    actual = run(x, w, problem, 2, algorithm=algorithm).astype(np.float64)
    beyond = y > float(np.finfo(np.float16).max)
    assert beyond.any()
    np.testing.assert_array_equal(np.isposinf(actual), beyond)
    within = np.abs(y) <= 2048  # integers that fp16 holds
    np.testing.assert_array_equal(actual[within], y[within])


#: What each algorithm is for.
HOMES = {"dot": Row("few columns", 2, 5, 200, 197), "update": Row("one step", 5, 20, 1, 4, 1, (3, 0))}
HOME = Row("short filter", 1, 131, 40, 4, 1, (3, 0))

#: Each activation alone and with everything; each way of leaving something out. In fp32, where gelu is not gelu_tanh.
#: Then dtypes: sums stay fp32 until the one cast at the end, so that an fp32 y of 16-bit inputs is as good as fp32.
EVERY = [
    Request(bias, activation, residual, position, "fp32")
    for bias in (None, "fp32")
    for activation in (None, *ACTIVATIONS)
    for residual, position in ((None, RESIDUAL_POSITIONS[0]), *(("fp32", position) for position in RESIDUAL_POSITIONS))
]
EVERY += [
    Request("bf16", "silu", "fp16", "pre_activation", "fp32"),
    Request("fp16", "silu", "fp32", "post_activation", "bf16"),
    Request("fp32", "silu", "bf16", "pre_activation", "fp16"),
    *(one for out in FLOATS for one in (Request(out_dtype=out), Request("bf16", None, "fp16", out_dtype=out))),
]


@pytest.mark.cover(29)
@pytest.mark.parametrize("request_", EVERY, ids=lambda request: request.id)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("algorithm", TRIED)
def test_epilogues(algorithm, dtype, request_):
    check(HOMES.get(algorithm, HOME).problem(dtype), request_, seed=1, whole=False, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", TRIED)
def test_bad_values_in_bias_and_residual_stay_where_they_are(algorithm):
    problem, request_ = HOMES.get(algorithm, HOME).problem("bf16"), Request("fp32", "relu", "fp32")
    inputs = draw(np.random.default_rng(6), problem, request_, whole=True)
    if algorithm != "banded":  # whose sums pass the array once more after the bias, which reaches what shares that
        inputs.bias[3] = np.nan
    inputs.residual[0, 1, 0, -1] = np.nan
    y = run(inputs.x, inputs.w, problem, 2, algorithm=algorithm, **keywords(inputs, request_)).astype(np.float32)
    expected = np.zeros(problem.output_shape, bool)
    expected[:, 3] = np.isnan(inputs.bias[3])
    expected[0, 1, 0, -1] = True
    np.testing.assert_array_equal(np.isnan(y), expected)


RNG = np.random.default_rng(0)
TOKENS, TAPS = np.ones((2, 9, 5), np.float32), np.ones((5, 4), np.float32)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_token_rows_are_exact_with_states(dtype):
    x, w, bias, before = (integer_inputs(RNG, shape, dtype) for shape in ((2, 37, 200), (200, 4), (200,), (2, 200, 3)))
    more = {"padding": "causal", "bias": bias, "initial_state": before, "return_final_state": True}
    wanted, last = nkiconv.depthwise_conv1d(np.ascontiguousarray(x.transpose(0, 2, 1)), w, **more)
    for lnc in cores(dtype):
        y, state = nkiconv.depthwise_conv1d(x, w, layout="NWC", lnc=lnc, **more)
        np.testing.assert_array_equal(y, wanted.transpose(0, 2, 1))
        np.testing.assert_array_equal(state, last)
    y, state = nkiconv.depthwise_conv1d(x[:0], w, layout="NWC", **more | {"initial_state": None})
    assert (y.shape, state.shape) == ((0, 37, 200), (0, 200, 3))


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_a_place_of_no_residual_changes_nothing(layout):
    x = TOKENS if layout == "NWC" else np.ascontiguousarray(TOKENS.transpose(0, 2, 1))
    wanted = nkiconv.depthwise_conv1d(x, TAPS, padding="causal", layout=layout)
    found = nkiconv.depthwise_conv1d(x, TAPS, padding="causal", layout=layout, residual_position="post_activation")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("changed", "text"), [
    ({"padding": 3}, "padding=3: must be 'causal'; use layout='NCW', or conv1d of this layout"),
    ({"stride": 2}, "layout='NWC', stride=2: must be 1"), ({"residual": TOKENS}, "layout='NWC', residual=ndarray"),
    ({"x_scale": np.ones(5, np.float32)}, "x_scale=ndarray"), ({"strict_nonfinite": True}, "strict_nonfinite=True"),
    ({"out_dtype": ml_dtypes.bfloat16}, "out_dtype"), ({"algorithm": "mixed"}, "algorithm='mixed': must be None"),
    ({"w": np.ones((5, 17), np.float32)}, "S=17: must be at most 16 taps; use layout='NCW'"),
    ({"w": TAPS[:4]}, "w.shape=.4, 4.: must be"), ({"x": TOKENS[0]}, "x.shape"),
    ({"layout": "NHWC"}, "accepted are NCW, NWC"),
    ({"residual_position": "before"}, "accepted are pre_activation, post_activation"),
])  # fmt: skip
def test_token_rows_refuse(changed, text):
    with pytest.raises(NkiconvError, match=text):
        nkiconv.depthwise_conv1d(**{"x": TOKENS, "w": TAPS, "padding": "causal", "layout": "NWC", **changed})


SAMPLED_CHANNELS = 37
#: Minutes and seconds; many products, or long filters of many channels.
LARGE = ("nkl_qwen3", "hyena", "mamba2_prefill", "mamba2_prefill_fp32", "qwen3_next_gdn", "conformer",
         "nkl_n1_c2048_w2048_s256", "nkl_st4_p0_c2048_w2048_s256_bf16", "nkl_n1_c1024_w1024_s128",
         "nkl_pad_n1_c1024_w1024_s128", "nkl_st2_p5_c1024_w1024_s128_bf16")  # fmt: skip


def check_case(problem, seed):
    x, w = normals(np.random.default_rng(seed), problem)
    y, abs_sum = truth(x, w, problem)
    one, two = run(x, w, problem, 1), run(x, w, problem, 2)
    assert_within(one, y, abs_sum, num_terms(problem), problem.dtype)
    assert same_bits(one, two)


@pytest.mark.cover(6)
@pytest.mark.parametrize("name", [case.name for case in cases.load("depthwise_conv1d")])
def test_case(name):
    """Large ones on sampled channels."""
    few = {"C": SAMPLED_CHANNELS, "K": SAMPLED_CHANNELS, "groups": SAMPLED_CHANNELS} if name in LARGE else {}
    check_case(cases.get(name).problem.replace(**few), seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_case_whole(name):
    check_case(cases.get(name).problem, seed=9)
