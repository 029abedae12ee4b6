"""Estimates look at so much of a problem, whatever its size."""

import random

import big_problems
import pytest
import random_problems

import nkiconv
import nkiconv.axis
from nkiconv import ConvProblem, UnsupportedError
from nkiconv.planner import estimate as estimates
from nkiconv.planner import parts
from nkiconv.planner.entry import estimated
from nkiconv.planner.operations import operation_for
from nkiconv.planner.parts import part_of, pieces_of
from nkiconv.planner.plan import Estimate
from nkiconv.planner.request import Asked, Request
from nkiconv.schedules.geometry import Axis
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only

#: What no algorithm runs: too many instructions, or one output's window does not fit.
REFUSED = (
    "9.6 M samples, 255 taps",
    "stride 200, 200 x 200 taps, transposed",
    "FCN-32s, 21 groups",
    "20,000 x 20,000 rows, wgrad",
)


@pytest.mark.cover(
    0,
    keep=[
        "1,048,576 filters",
        "1,024 rows of 128 taps, NHWC, dgrad",
        "25 volumes",
        "5,000 phases",
        "FCN-32s, 21 groups",
        "20,000 x 20,000 rows, wgrad",
    ],
)
@pytest.mark.parametrize("name", big_problems.BIG)
def test_estimates_of_big_problems(quickly, name):
    """Chosen or refused by name, from at most so many pieces."""
    request = Request(problem=big_problems.BIG[name]())
    part, times = part_of(request.problem, request.asked, operation_for(request).kept)
    assert pieces_of(part) <= 2 * parts.PIECES or operation_for(request).kept
    assert (times > 1) == (part != request.problem)
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=r"instructions on a core|of SBUF"):
            estimated(request)
    else:
        assert estimated(request).config


def test_settings_that_the_kernel_refuses_for_the_whole_are_not_taken(monkeypatch):
    request = Request(problem=ConvProblem(N=1, C=3, K=16, H=9, W=9, R=3, S=3))
    refused = Estimate("weight_stationary", (("rows", 10**6),))
    monkeypatch.setattr(estimates, "chosen", lambda _: refused)
    found = estimates.estimate(request, use_cache=False)
    operation = operation_for(request)
    assert operation.kernel_reason(refused.algorithm, operation.shape(request, Rates()), refused.config)
    assert not operation.kernel_reason(found.algorithm, operation.shape(request, Rates()), found.config)


@pytest.mark.slow
def test_what_an_estimate_chooses_for_many_images_is_what_it_chooses_for_some():
    some, many = (ConvProblem(N=N, C=3, K=16, H=56, W=56, R=3, S=3) for N in (400, 1000))
    assert pieces_of(some) < parts.PIECES < pieces_of(many)
    assert estimated(Request(problem=some)).algorithm == estimated(Request(problem=many)).algorithm


@pytest.mark.parametrize("operation", random_problems.OF)
def test_parts(monkeypatch, operation):
    """A part has no more of anything, the same filter and the same epilogue; settings for it run the whole."""
    monkeypatch.setattr(parts, "PIECES", 40)
    count = 0
    for problem in random_problems.OF[operation](12, 3):
        request = Request(problem=problem)
        whole_of = operation_for(request)
        part, times = part_of(problem, Asked(), whole_of.kept)
        for name in ("N", "C", "K", "H", "W", "P", "Q", "Z"):
            assert getattr(part, name) <= getattr(problem, name)
        assert (part.R, part.S, part.T, part.stride) == (problem.R, problem.S, problem.T, problem.stride)
        if times > 1:
            count += 1
            shape = whole_of.shape(request, Rates())
            algorithm, config = whole_of.choice(request, shape)
            assert not whole_of.kernel_reason(algorithm, shape.whole, config), (problem, algorithm, config)
    assert count > 0


def drawn_axis(rng):
    """An Axis of any small numbers that has outputs."""
    while True:
        size, taps, stride, apart = rng.randint(1, 20), rng.randint(1, 6), rng.randint(1, 7), rng.randint(1, 4)
        spread, lo, hi = rng.choice([1, 1, 2, 3, 6]), rng.randint(-6, 8), rng.randint(-6, 8)
        out = ((size - 1) * spread + 1 + lo + hi - (taps - 1) * apart - 1) // stride + 1
        if out >= 1:
            return Axis(size=size, taps=taps, out=out, stride=stride, dilation=apart, lhs_dilation=spread, before=lo)


def test_products_and_inputs_met_are_counted_by_arithmetic():
    """Against each output and tap one by one; of the largest numbers at once."""
    rng = random.Random(7)
    for _ in range(400):
        axis = drawn_axis(rng)
        after = (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1
        after -= axis.before + (axis.size - 1) * axis.lhs_dilation + 1
        one = nkiconv.axis.Axis(axis.size, axis.taps, axis.stride, axis.before, after, axis.dilation, axis.lhs_dilation)
        places = [q * one.stride + tap * one.rhs_dilation - one.lo for q in range(one.out) for tap in range(one.taps)]
        meets = [place // one.lhs_dilation for place in places if place % one.lhs_dilation == 0]
        assert one.products == len(meets)
        assert one.num_read == len({element for element in meets if 0 <= element < one.size})
    huge = nkiconv.axis.Axis(9, 3, 1, 2**30, 2**30 - 99, 1, 2)
    assert nkiconv.axis.Axis(2**30 + 1, 3, 2**29, 0, 0, 2**28, 1).num_read == 5  # two windows share an input
    assert (huge.num_read, huge.products) == (9, (huge.out * 3 + 1) // 2)
