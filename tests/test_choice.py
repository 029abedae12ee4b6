"""Estimates, by cost models, against plans, which time candidates: how far apart they are.

Cost models do not know the clock's phase, so they are held to shares: nearly every problem within 10 % of the
plan, and none far off. `make choice` looks at random problems.
"""

import pytest
from depthwise import modelled_us

from nkiconv import ConvProblem, cases
from nkiconv.planner.operations import OPERATIONS, operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.simulator.timing import Rates

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
#: One of each kind, small enough to plan in about a second.
SOME = ("nkl_n1_c256_w512_s64", "nkl_fs_asr", "kda_bf16", "decode_step", "odd_c", "short", "nkl_n1_c256_w129_s128",
        "nkl_n1_c256_w4096_s256")  # fmt: skip


def chosen(problem, **asked):
    """(algorithm, config) by cost models."""
    request = Request(problem=problem, asked=Asked(**asked))
    operation = operation_for(request)
    return operation.choice(request, operation.shape(request, Rates()))


#: Long filters with gaps, which `banded` does not take: N, C, W, S, stride, dilation, padding.
GAPS = [
    (1, 6, 3085, 148, 1, 2, (6, 23)),
    (8, 3, 74, 58, 1, 2, (57, 57)),
    (1, 70, 1609, 108, 1, 2, (0, 0)),
]


@pytest.mark.cover(0, keep=["(1, 70, 1609, 108, 1, 2, (0, 0))"])
@pytest.mark.parametrize("row", GAPS, ids=str)
def test_long_filters_with_gaps_take_what_is_fast(row):
    """10 to 500 times what the best takes, when only `dot` was looked at; 1.2 to 3.6 times, by estimates that took all
    tiles of taps for staged, or units of few channels for twice as many."""
    N, C, W, S, stride, dilation, pad = row
    problem = ConvProblem(N=N, C=C, W=W, S=S, groups=C, padding=((0, 0), pad), stride=(1, stride),
                          rhs_dilation=(1, dilation))  # fmt: skip
    algorithm, config = chosen(problem)
    operation = OPERATIONS["depthwise_conv1d"]
    shape = operation.shape(Request(problem=problem), Rates())
    others = [one for one in ("mixed", "vector", "dot") if not operation.unsupported_reason(one, shape, None)]
    best = min(modelled_us(problem, name, None) for name in others)
    assert modelled_us(problem, algorithm, config) <= 1.2 * best


def test_strict_nonfinite_leaves_algorithms_that_keep_channels_apart():
    for name in SOME:
        problem = cases.get(name).problem
        algorithm, _ = chosen(problem, strict_nonfinite=True)
        assert algorithm in ("vector", "update")


def test_the_dilation_of_one_tap_is_none():
    problem = ConvProblem(N=25, C=2329, W=29, S=1, groups=2329, dtype="fp16")
    dilated = problem.replace(rhs_dilation=(1, 2))
    assert chosen(dilated) == chosen(problem)
    assert modelled_us(dilated, "mixed", None) == modelled_us(problem, "mixed", None)
