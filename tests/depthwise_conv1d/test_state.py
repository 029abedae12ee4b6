"""Streaming: a state in front of each row instead of zeros, and the state that the next call starts from."""

import dataclasses

import numpy as np
import pytest
from depthwise import Row, integers, run, same_bits, truth
from draws import cores
from epilogue import Request, call, check_stored, draw, final_state, stored, window
from scope import REFUSES, check_in_scope, runs, scope
from tolerances import assert_exact

from nkiconv.kernels.depthwise_conv1d import ALGORITHMS

ROWS = [
    #   why                              N  C    W     S  stride  pad        dil
    Row("row wider than the state", 2, 131, 11, 4, 1, (3, 0)),
    Row("row as wide as the state", 1, 5, 6, 7, 1, (6, 0)),
    Row("row narrower than the state", 3, 9, 4, 8, 1, (7, 0)),
    Row("one step", 5, 130, 1, 4, 1, (3, 0)),
    Row("one step of one channel", 3, 1, 1, 2, 1, (1, 0)),
    Row("dilation", 2, 7, 9, 5, 1, (12, 0), 3),
    Row("padding on the right too", 2, 7, 9, 5, 1, (4, 6)),
    Row("crop on the right", 1, 7, 19, 5, 1, (4, -3)),
    Row("few columns of a long filter", 2, 5, 5, 300, 1, (299, 0)),
    Row("state across tap tiles", 1, 3, 700, 200, 1, (199, 0)),
    Row("several column tiles", 1, 3, 2100, 6, 1, (5, 0)),
    Row("state wider than a tile", 1, 2, 40, 3, 1, (3000, 0), 1500),
]
STATES = [Request(state=True), Request(final=True), Request(state=True, final=True)]
TRIED = [None, *ALGORITHMS]


def identity(value):
    return value.id


@pytest.mark.cover(17)
@pytest.mark.parametrize("request_", STATES, ids=identity)
@pytest.mark.parametrize("row", ROWS, ids=identity)
@pytest.mark.parametrize("algorithm", TRIED)
def test_exact_on_integers(algorithm, row, request_):
    problem = row.problem("bf16")
    check_in_scope(algorithm, problem, request_, seed=1, whole=True)


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


@pytest.mark.parametrize("algorithm", TRIED)
def test_states_are_canonical_whatever_the_layout_of_the_rest(algorithm):
    request = Request("fp32", "relu", "fp32", state=True, final=True)
    problem = ROWS[2].problem("fp32")
    if not runs(algorithm, problem, request):
        return
    check_stored(problem, request, 4, (0, 3, 1, 2), (3, 0, 1, 2), (0, 2, 3, 1), algorithm=algorithm)


#: Every way of x and the old state into the next one: columns wide or narrow, rows that fill tiles or not.
NEXT = [
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
    Row("long state of a long row", 2, 9, 800, 300, 1, (299, 0)),
]
LAYOUTS = [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 0, 1)]


@pytest.mark.cover(9)
@pytest.mark.parametrize("in_perm", LAYOUTS, ids=str)
@pytest.mark.parametrize("with_state", [False, True], ids=["zeros", "state"])
@pytest.mark.parametrize("row", NEXT, ids=identity)
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
