"""Random problems: every parameter together, exact on integers, the same bits on 1 and 2 cores."""

import numpy as np
import pytest
from depthwise import integers, run, same_bits, truth
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems
from tolerances import assert_exact

SMALL, LARGE, MANY = 200, 12, 200


def check(problem, seed):
    x, w = integers(np.random.default_rng(seed), problem)
    y, _ = truth(x, w, problem)
    one, two = run(x, w, problem, 1), run(x, w, problem, 2)
    assert_exact(one, y, problem.dtype)
    assert same_bits(one, two)


@draws(SMALL)
@given(problem=problems(widest=60, most_taps=24, most_channels=9), seed=st.integers(0, 2**32 - 1))
def test_small_problems(problem, seed):
    check(problem, seed)


@draws(LARGE)
@given(problem=problems(widest=1500, most_taps=300, most_channels=150), seed=st.integers(0, 2**32 - 1))
def test_larger_problems(problem, seed):
    check(problem, seed)


@pytest.mark.slow
@draws(MANY)
@given(problem=problems(widest=1500, most_taps=300, most_channels=150), seed=st.integers(0, 2**32 - 1))
def test_many_larger_problems(problem, seed):
    check(problem, seed)
