"""Random problems: every parameter together, exact on integers, the same bits on 1 and 2 cores."""

import numpy as np
from depthwise import integers, run, same_bits, truth
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import assert_exact

from nkiconv.errors import GeometryError
from nkiconv.problem import ConvProblem

SMALL, LARGE = 500, 60


@st.composite
def problems(draw, widest, most_taps, most_channels):
    """A ConvProblem with an output; crops and gaps that leave none are drawn again."""
    geometry = st.builds(
        dict,
        N=st.integers(1, 3),
        C=st.integers(1, most_channels),
        W=st.integers(1, widest),
        S=st.integers(1, most_taps),
        stride=st.tuples(st.just(1), st.one_of(st.integers(1, 4), st.integers(1, 90))),
        padding=st.tuples(st.just((0, 0)), st.tuples(st.integers(-6, 40), st.integers(-6, 40))),
        rhs_dilation=st.tuples(st.just(1), st.integers(1, 5)),
        lhs_dilation=st.tuples(st.just(1), st.integers(1, 4)),
        dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    )
    return draw(geometry.map(_built).filter(lambda problem: problem is not None))


def _built(fields):
    try:
        return ConvProblem(**fields, groups=fields["C"])
    except GeometryError:
        return None


def check(problem, seed):
    x, w = integers(np.random.default_rng(seed), problem)
    y, _ = truth(x, w, problem)
    one, two = run(x, w, problem, 1), run(x, w, problem, 2)
    assert_exact(one, y, problem.dtype)
    assert same_bits(one, two)


@settings(max_examples=SMALL)
@given(problem=problems(widest=60, most_taps=24, most_channels=9), seed=st.integers(0, 2**32 - 1))
def test_small_problems(problem, seed):
    check(problem, seed)


@settings(max_examples=LARGE)
@given(problem=problems(widest=1500, most_taps=300, most_channels=150), seed=st.integers(0, 2**32 - 1))
def test_larger_problems(problem, seed):
    check(problem, seed)
