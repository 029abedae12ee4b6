"""x_scale, x_shift and x_activation of rows: y = conv(act(x * x_scale + x_shift)), zeros of padding untouched."""

import dataclasses

import numpy as np
import pytest
from depthwise import Row, run, same_bits
from draws import draws
from epilogue import FLOATS, Request, draw, keywords, sums, takes_state, window
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems_for
from tolerances import assert_exact, assert_within_limit

import nkiconv
from nkiconv import NkiconvError
from nkiconv.bounds import epilogue_bound, prologue_bound
from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.request import Asked
from nkiconv.planner.request import Request as Asks
from nkiconv.reference import abs_sum_ref, epilogue_ref, num_terms, prologue_ref
from nkiconv.simulator.timing import Rates

#: Padding on one side, on both, on none; channels that end a tile early; taps whose columns are loaded apart.
ROWS = [
    #   why                       N  C    W     S  stride  pad      dil lhs
    Row("short causal filter", 2, 131, 300, 4, 1, (3, 0)),
    Row("filter of tens", 3, 5, 600, 31, 1, (15, 15)),
    Row("several column tiles", 1, 3, 2100, 6, 1, (5, 0)),
    Row("dilation", 2, 7, 40, 5, 1, (12, 0), 3),
    Row("taps far apart", 2, 7, 300, 3, 1, (9, 200), 90),
    Row("stride", 2, 9, 61, 5, 2, (2, 2)),
    Row("gaps", 2, 9, 41, 5, 1, (4, 0), 1, 2),
    Row("crop", 1, 7, 40, 5, 1, (4, -3)),
]
#: (form of x_scale, of x_shift, x_activation)
ASKED = [("image", "channel", "relu"), (None, "image", None), ("channel", None, "silu"), (None, None, "sigmoid")]
ALGORITHMS = ("banded", "mixed", "vector")


def refusal(algorithm, problem, asked, state=False):
    """Why an algorithm does not run this, "" if it does."""
    names = dict(zip(("x_scale", "x_shift", "x_activation"), asked, strict=True))
    operation, request = (
        OPERATIONS["depthwise_conv1d"],
        Asks(problem=problem, asked=Asked(initial_state=state, **names)),
    )
    return operation.kernel_reason(algorithm, operation.whole_shape(request, Rates({})), None)


def check(problem, asked, request, *, whole, **more):
    """Hold the kernel on 1 and 2 cores against the truth: exact of integers, whose shift is far from 0, within the
    bound elsewhere; states hold what is convolved."""
    rng, (*forms, activation) = np.random.default_rng(5), asked
    inputs, shapes = draw(rng, problem, request, whole), {"channel": (problem.C,), "image": (problem.N, problem.C)}
    on_x = {"x_activation": activation}
    for name, form, low in zip(("x_scale", "x_shift"), forms, (-2, 50), strict=True):
        if form is not None:
            values = rng.integers(low, low + 5, shapes[form]) if whole else rng.standard_normal(shapes[form])
            on_x[name] = values.astype(np.float32)
    convolved, error = prologue_ref(inputs.x, **on_x), prologue_bound(inputs.x, problem.dtype, **on_x)

    conv, abs_sum = sums(dataclasses.replace(inputs, x=convolved), problem)
    inexact = abs_sum_ref(error, inputs.w, problem)
    limit = epilogue_bound(num_terms(problem), abs_sum, conv, request.out(problem), inputs.bias, None, inexact=inexact)
    answers = [run(inputs.x, inputs.w, problem, lnc, **on_x, **keywords(inputs, request), **more) for lnc in (1, 2)]
    (one, final), (two, final_two) = (answer if request.final else (answer, one_state()) for answer in answers)
    y = epilogue_ref(conv, inputs.bias, None)
    if whole:
        assert_exact(one, y, request.out(problem))
    else:
        assert_within_limit(one, y, limit)
    assert same_bits(one, two)
    assert same_bits(final, final_two)
    if request.final:
        before = np.zeros((problem.N, problem.C, window(problem)))
        own = before if inputs.state is None else inputs.state.astype(np.float64)
        pairs = (own, convolved[:, :, 0]), (before, error[:, :, 0])
        ends = [np.concatenate(pair, axis=2)[:, :, -window(problem) :] for pair in pairs]
        assert_within_limit(final, *ends)


def one_state():
    """In place of a state that is not asked for."""
    return np.zeros(1, np.float32)


@pytest.mark.cover(7)
@pytest.mark.parametrize("asked", ASKED[:2], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_exact(row, algorithm, asked):
    problem = row.problem("bf16")
    if not refusal(algorithm, problem, asked):
        check(problem, asked, Request(bias="fp32", out_dtype="fp32"), whole=True, algorithm=algorithm)


@pytest.mark.cover(5)
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_within_the_bound(row, algorithm, asked):
    problem = row.problem(FLOATS[ROWS.index(row) % 3])
    if not refusal(algorithm, problem, asked):
        check(problem, asked, Request(), whole=False, algorithm=algorithm)


@pytest.mark.cover(7)
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("row", [row for row in ROWS if takes_state(row.problem("bf16"))], ids=lambda row: row.id)
def test_states_hold_what_is_convolved(row, algorithm, asked, state):
    if not refusal(algorithm, row.problem("fp32"), asked, state):
        check(row.problem("fp32"), asked, Request(state=state, final=True), whole=False, algorithm=algorithm)


@pytest.mark.cover(1)
@pytest.mark.parametrize("shard", ["channels", "columns"])
def test_buffers_of_banded_keep_their_zeros(shard):
    problem = Row("many tiles", 3, 155, 150, 31, 1, (15, 15)).problem("bf16")
    config = (("block", 16), ("groups", 3), ("images", 2), ("edge", 1), ("shard", shard))
    check(problem, ASKED[0], Request(out_dtype="fp32"), whole=True, algorithm="banded", config=config)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@draws(6)
def test_any_problem(algorithm, data):
    problem = data.draw(problems_for(algorithm, widest=90, most_taps=9, most_channels=70))
    state, asked = takes_state(problem) and data.draw(st.booleans()), data.draw(st.sampled_from(ASKED))
    if not refusal(algorithm, problem, asked, state):
        check(problem, asked, Request(state=state, final=state), whole=False, algorithm=algorithm)


@pytest.mark.parametrize(("more", "text"), [
    ({"x_scale": np.ones(5, np.float32)}, r"x_scale.shape=\(5,\): must be \[C\] = \(4,\) or \[N, C\] = \(2, 4\)"),
    ({"x_shift": np.ones(4)}, r"x_shift.dtype=float64: accepted are float32"),
    ({"x_activation": "swish"}, r"x_activation='swish': accepted are None"),
    ({"x_activation": "silu", "algorithm": "dot"}, r"x_scale, x_shift, x_activation: dot takes none; use mixed,"),
    ({"x_activation": "silu", "algorithm": "update"}, r"x_activation: update takes none; use mixed, vector or banded"),
    ({"x_activation": "silu", "chunks": "xG"}, r"chunks='xG', x_scale, x_shift, x_activation: what arrives is"),
    ({"x_activation": "silu", "algorithm": "banded", "initial_state": np.zeros((2, 4, 2), np.float32)},
     r"banded takes none with an initial state; use mixed or vector"),
])  # fmt: skip
def test_what_is_refused(more, text):
    channels = 8 if "chunks" in more else 4
    x, w = np.zeros((2, channels, 9), np.float32), np.zeros((4, 3), np.float32)
    with pytest.raises(NkiconvError, match=text):
        nkiconv.depthwise_conv1d(x, w, padding="causal", **more)
