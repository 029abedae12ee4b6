"""Every algorithm by its name against the same truth: edges, layouts, non-finite values, settings, refusals.

An algorithm that refuses a row says so by `dispatch.refusal`; the kernel must then say the very same, and the test is
skipped: `scope` says which rows an algorithm may refuse.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from depthwise import EDGE, Row, integers, normals, row_of, run, truth
from draws import cores, draws
from epilogue import PLAIN, Request, check, check_stored, draw, reason_to_refuse
from hypothesis import given
from hypothesis import strategies as st
from scope import check_in_scope, runs
from strategies import problems_for, requests
from tolerances import assert_exact

from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.simulator import KernelAssertionError

#: What each algorithm is for, small; between them every algorithm has something to do.
PURPOSES = [
    #   why                          N  C    W    S  stride  pad
    Row("short filter", 1, 131, 300, 4, 1, (3, 0)),
    Row("filter of tens", 2, 5, 600, 31, 1, (15, 15)),
    Row("few columns", 1, 5, 300, 297),
    Row("one step", 5, 130, 1, 4, 1, (3, 0)),
]


def each(rows_of, *more):
    """pytest parameters (algorithm, row, ...) of every algorithm."""
    return [
        pytest.param(*values, id="-".join(str(getattr(value, "id", value)) for value in values))
        for algorithm in ALGORITHMS
        for values in itertools.product([algorithm], rows_of(algorithm), *more)
    ]


TRIED = [None, *ALGORITHMS]


@pytest.mark.cover(40)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", [*EDGE, *PURPOSES], ids=lambda row: row.id)
@pytest.mark.parametrize("algorithm", TRIED)
def test_exact_on_integers(algorithm, row, dtype, strict):
    check_in_scope(algorithm, row.problem(dtype), whole=True, strict_nonfinite=strict)


@pytest.mark.cover(24)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", [*EDGE, *PURPOSES], ids=lambda row: row.id)
@pytest.mark.parametrize("algorithm", TRIED)
def test_within_the_bound_on_normals(algorithm, row, dtype):
    check_in_scope(algorithm, row.problem(dtype), whole=False)


def test_row_of_a_million_samples():
    check(Row("million", 1, 1, 1_000_000, 9, 1, (4, 4)).problem("bf16"), PLAIN, 4, whole=True)


LAID = [*PURPOSES, row_of(EDGE, "causal"), row_of(EDGE, "all three together")]
PERMS = [
    ((0, 3, 1, 2), (0, 1, 2, 3), (0, 2, 3, 1)),
    ((3, 0, 1, 2), (1, 3, 2, 0), (1, 2, 3, 0)),
    ((2, 1, 0, 3), (3, 2, 1, 0), (3, 1, 0, 2)),
]


@pytest.mark.cover(8)
@pytest.mark.parametrize("perms", PERMS, ids=str)
@pytest.mark.parametrize(
    ("algorithm", "row"),
    each(lambda algorithm: LAID),
)
def test_layouts(algorithm, row, perms):
    problem = row.problem("bf16")
    if not runs(algorithm, problem):
        return
    check_stored(problem, PLAIN, 4, *perms, algorithm=algorithm)


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
@pytest.mark.parametrize("name", BAD_PROBLEMS)
@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_strict_follows_the_definition(algorithm, name, value, where):
    problem = BAD_PROBLEMS[name]
    if not runs(algorithm, problem, strict_nonfinite=True):
        return
    x, w = with_bad(problem, value, where)
    y, _ = truth(x, w, problem)
    assert not np.isfinite(y).all()
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, algorithm=algorithm, strict_nonfinite=True), y, "fp32")


#: Outputs that one matmul gives for each column: what shares it with a bad value becomes NaN.
SPREAD_MAX = 128
#: Algorithms that never multiply one channel by another's zeros.
APART = ("vector",)


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
    assert spread.sum() <= (1 if algorithm in APART else SPREAD_MAX) * bad.sum()
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


def test_filters_of_the_other_16_bit_dtype():
    rng = np.random.default_rng(5)
    for row, algorithm in itertools.product(PURPOSES, ALGORITHMS):
        problem = replace(row, C=9).problem("fp16")
        if runs(algorithm, problem):
            x, w = integers(rng, problem, "bf16")
            assert_exact(run(x, w, problem, 2, algorithm=algorithm), truth(x, w, problem)[0], "fp16")


@draws(40, 100)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), whole=st.booleans(), strict=st.booleans())
def test_any_problem_with_any_epilogue(data, seed, whole, strict):
    """Whatever is refused, is refused by the kernel in the same words; whatever is not, is right."""
    algorithm = data.draw(st.sampled_from([None, *ALGORITHMS]))
    problem = data.draw(problems_for(algorithm, widest=60, most_taps=24, most_channels=9))
    request = data.draw(requests(problem))
    check_in_scope(algorithm, problem, request, seed=seed, whole=whole, strict_nonfinite=strict)


@pytest.mark.cover(8)
@pytest.mark.simulator_only
@pytest.mark.parametrize(("config", "message"), [
    ((("nonsense", 1),), r"config=.*: {algorithm} has no setting nonsense; it has \("),
    ((("warmup", 1), ("warmup", 1)), "warmup stands there twice"),
    (("block", 32), r"config=.*; entry 0 is .*, pass a pair \(name, value\)"),
    (32, r"config=32: must be None or a tuple of \(name, value\) pairs"),
], ids=["unknown", "twice", "flat", "number"])  # fmt: skip
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "fft"])
def test_wrong_settings_are_refused_by_name(algorithm, config, message):
    problem = PURPOSES[0].problem("fp32").replace(C=3, K=3, groups=3)
    x, w = normals(np.random.default_rng(6), problem)
    message = message if algorithm in ALGORITHMS else "algorithm='fft': accepted are None, "
    with pytest.raises(KernelAssertionError, match=message.format(algorithm=algorithm)):
        run(x, w, problem, 2, algorithm=algorithm, config=config)


@pytest.mark.cover(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_inputs_are_not_changed(algorithm):
    request = Request("fp32", "relu", "bf16")
    for row in PURPOSES:
        problem = replace(row, C=5).problem("bf16")
        if reason_to_refuse(algorithm, problem, request, lnc=2) == "":
            inputs = draw(np.random.default_rng(7), problem, request, whole=True)
            arrays = (inputs.x, inputs.w, inputs.bias, inputs.residual)
            before = [array.copy() for array in arrays]
            given = {"bias": inputs.bias, "residual": inputs.residual, "activation": "relu"}
            run(inputs.x, inputs.w, problem, 2, algorithm=algorithm, **given)
            assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
