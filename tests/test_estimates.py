"""Estimates look at so much of a problem, whatever its size, and numbers of any size are refused quickly."""

from __future__ import annotations

import dataclasses
import random
import signal

import big_problems
import numpy as np
import pytest
import random_problems

import nkiconv
import nkiconv.axis
from nkiconv import ConvProblem, GeometryError, NkiconvError, UnsupportedError
from nkiconv.axis import EXTENT_MAX
from nkiconv.kernels._axis import outputs_met
from nkiconv.kernels.conv.geometry import Axis, met, span
from nkiconv.planner import effort
from nkiconv.planner.effort import part_of, pieces_of
from nkiconv.planner.entry import estimated
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only

#: Seconds after which an estimate is one that looks at too much; those here take up to 0.2 on one core, most 0.05.
LONG = 10
#: What no algorithm runs: too many instructions, or one output's window does not fit.
REFUSED = (
    "9.6 M samples, 255 taps",
    "stride 200, 200 x 200 taps, transposed",
    "FCN-32s, 21 groups",
    "20,000 x 20,000 rows, wgrad",
    "padding of 2**27",
)


@pytest.fixture
def quickly():
    """Ends a test that takes long, as estimates of some of these problems once had no end."""

    def late(*_):
        raise TimeoutError(f"took more than {LONG} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONG)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", big_problems.BIG)
def test_estimates_of_big_problems(quickly, name):
    """Chosen or refused by name, from at most so many pieces."""
    request = Request(problem=big_problems.BIG[name]())
    shape = operation_for(request).shape(request, Rates())
    part, times = part_of(request.problem, request.asked, operation_for(request).kept)
    assert pieces_of(part) <= 2 * effort.PIECES or shape.by_rule or operation_for(request).kept
    assert (times > 1) == (part != request.problem)
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=r"instructions on a core|of SBUF"):
            estimated(request)
    else:
        assert estimated(request).config is not None or shape.by_rule


def test_what_an_estimate_chooses_for_many_images_is_what_it_chooses_for_some():
    some, many = (ConvProblem(N=N, C=3, K=16, H=56, W=56, R=3, S=3) for N in (400, 1000))
    assert pieces_of(some) < effort.PIECES < pieces_of(many)
    assert estimated(Request(problem=some)).algorithm == estimated(Request(problem=many)).algorithm


@pytest.mark.parametrize("operation", random_problems.OF)
def test_parts(monkeypatch, operation):
    """A part has no more of anything, the same filter and the same epilogue; settings for it run the whole."""
    monkeypatch.setattr(effort, "PIECES", 40)
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
            algorithm, config = whole_of.choice(shape)
            assert not whole_of.refusal_of(algorithm, shape.whole, config), (problem, algorithm, config)
    assert count > 0


def test_pooling_windows_divide_a_part():
    problem = ConvProblem(N=3, C=3, K=64, H=4007, W=4007, R=7, S=7, stride=(2, 2))
    part, times = part_of(problem, Asked(pool=(3, 3)))
    assert times > 1
    assert part.P % 3 == problem.P % 3
    assert part_of(problem, Asked(initial_frames=1))[0].D is None


def drawn_axis(rng):
    """An Axis of any small numbers that has outputs."""
    while True:
        size, taps, stride, apart = rng.randint(1, 20), rng.randint(1, 6), rng.randint(1, 7), rng.randint(1, 4)
        spread, lo, hi = rng.choice([1, 1, 2, 3, 6]), rng.randint(-6, 8), rng.randint(-6, 8)
        out = ((size - 1) * spread + 1 + lo + hi - (taps - 1) * apart - 1) // stride + 1
        if out >= 1:
            return Axis(size=size, taps=taps, out=out, stride=stride, dilation=apart, lhs_dilation=spread, before=lo)


def test_what_taps_meet_is_counted_by_arithmetic():
    """Against each output and tap one by one."""
    rng = random.Random(5)
    for _ in range(2000):
        axis = drawn_axis(rng)
        first = rng.randrange(axis.out)
        count = rng.randint(1, axis.out - first)
        seen = set()
        for tap in range(axis.taps):
            places = [(q, q * axis.stride + tap * axis.dilation - axis.before) for q in range(first, first + count)]
            meets = [(q, one // axis.lhs_dilation) for q, one in places if one % axis.lhs_dilation == 0]
            meets = [(q, element) for q, element in meets if 0 <= element < axis.size]
            q0, q_step, number, x0, x_step = met(axis, tap, first, count)
            assert [(q0 + i * q_step, x0 + i * x_step) for i in range(number)] == meets
            seen |= {element for _, element in meets}
        assert span(axis, first, count) == ((min(seen), max(seen) - min(seen) + 1) if seen else (0, 0))


def test_huge_strides_meet_what_they_meet(quickly):
    """Output 5 * 2**30 of stride 3 and the last of 2**31 - 1 elements 2 apart."""
    assert outputs_met(2**31 - 1, 3, 2, 0, 1, 2**40) == (2, 2, (2**32 - 4) // 6, 3, 3)
    assert outputs_met(9, 2**31 - 1, 2**31 - 2, 0, 0, 9) == (0, 2**31 - 2, 1, 0, 2**31 - 1)


X, W = np.ones((1, 8, 9, 9), np.float16), np.ones((8, 8, 3, 3), np.float16)
ROW, TAPS = X[:, :, 0], W[:, 0, 0]
VOLUME, VOLUME_W = np.ones((1, 8, 4, 9, 9), np.float16), np.ones((8, 8, 2, 3, 3), np.float16)
CALLS = {
    "conv1d": lambda **more: nkiconv.conv1d(ROW, W[:, :, 0], **more),
    "conv2d": lambda **more: nkiconv.conv2d(X, W, **more),
    "conv3d": lambda **more: nkiconv.conv3d(VOLUME, VOLUME_W, **more),
    "conv_transpose1d": lambda **more: nkiconv.conv_transpose1d(ROW, W[:, :, 0], **more),
    "conv_transpose2d": lambda **more: nkiconv.conv_transpose2d(X, W, **more),
    "conv_transpose3d": lambda **more: nkiconv.conv_transpose3d(VOLUME, VOLUME_W, **more),
    "depthwise_conv1d": lambda **more: nkiconv.depthwise_conv1d(ROW, TAPS, **more),
    "conv2d_input": lambda **more: nkiconv.conv2d_input((1, 8, 9, 9), W, X[:, :, :1, :1], **more),
    "conv2d_weight": lambda **more: nkiconv.conv2d_weight(X, (8, 8, 3, 3), X[:, :, :1, :1], **more),
    "depthwise_conv1d_input": lambda **more: nkiconv.depthwise_conv1d_input((1, 8, 9), TAPS, ROW[:, :, :1], **more),
    "depthwise_conv1d_weight": lambda **more: nkiconv.depthwise_conv1d_weight(ROW, (8, 3), ROW[:, :, :1], **more),
}


@pytest.mark.parametrize("value", [2**31, 2**33, 2**62, 2**63, 2**70])
@pytest.mark.parametrize("name", ["stride", "dilation", "padding", "lhs_dilation"])
@pytest.mark.parametrize("call", CALLS)
def test_numbers_beyond_32_bits_are_refused_by_name(quickly, call, name, value):
    if name == "lhs_dilation" and ("transpose" in call or "_input" in call):
        pytest.skip("has no such argument")
    with pytest.raises(NkiconvError, match=r"must be at most 2,147,483,647|must be at least 1|less padding|shape"):
        CALLS[call](**{name: value})


@pytest.mark.parametrize("call", ["conv1d", "conv2d", "conv3d", "depthwise_conv1d"])
def test_the_largest_stride_has_one_window(quickly, call):
    ones = CALLS[call](stride=EXTENT_MAX)
    assert ones.shape == (1, 8, *(1,) * (ones.ndim - 2))
    assert (ones == CALLS[call]()[tuple(slice(0, 1 if axis > 1 else None) for axis in range(ones.ndim))]).all()


@pytest.mark.parametrize("padding", [2**24, 2**27, 2**29])
def test_results_that_no_memory_holds_are_refused_before_any_work(quickly, padding):
    for call in ("conv2d", "conv3d"):
        with pytest.raises(GeometryError, match="a logical core's HBM holds 24; split the problem"):
            CALLS[call](padding=padding)


def test_a_result_of_too_many_instructions_is_refused_before_any_work(quickly):
    with pytest.raises(UnsupportedError, match="instructions on a core"):
        CALLS["conv1d"](padding=2**27)


ints = [np.int64, np.int32, np.uint8, np.int16]


@pytest.mark.parametrize("kind", ints)
@pytest.mark.parametrize("call", CALLS)
def test_ints_of_numpy_are_ints(call, kind):
    is_gradient = "_input" in call or "_weight" in call
    more = {"stride": 7} if is_gradient else {"stride": 2, "padding": 1, "dilation": 1}
    assert (CALLS[call](**{name: kind(value) for name, value in more.items()}) == CALLS[call](**more)).all()


@pytest.mark.parametrize("kind", ints)
def test_problems_have_ints_of_python(kind):
    given = {"N": 1, "C": 8, "H": 9, "W": 9, "K": 4, "R": 3, "S": 3, "groups": 2}
    pairs = {"stride": (2, 1), "rhs_dilation": (1, 2), "padding": ((1, 0), (0, 1))}
    tuples = {"stride": (kind(2), 1), "rhs_dilation": (1, kind(2)), "padding": ((kind(1), 0), (0, kind(1)))}
    found = ConvProblem(**{name: kind(value) for name, value in given.items()}, **tuples)
    assert found == ConvProblem(**given, **pairs)
    assert all(type(value) is int for value in dataclasses.asdict(found).values() if isinstance(value, np.integer))
    assert type(ConvProblem(N=1, C=kind(8), W=9, S=3).K) is int
    with pytest.raises(GeometryError, match="must be an int"):
        ConvProblem(**{**given, "N": np.bool_(1)})


def test_padding_of_transposed_convolutions_that_takes_all_is_told_so():
    """In the words of the call, not in those of the convolution that computes it, which crops."""
    with pytest.raises(GeometryError, match=r"P=-29: padding 20\+20 takes off all 11 outputs .*; use less padding"):
        nkiconv.conv_transpose2d(X, W, padding=20)


@pytest.mark.parametrize("algorithm", [None, "implicit_gemm"])
def test_a_call_that_no_kernel_runs_is_refused_by_name(algorithm):
    """FCN-32s: one filter of 64 x 64 for each of 21 channels."""
    x, w = np.ones((1, 21, 16, 16), np.float16), np.ones((21, 1, 64, 64), np.float16)
    with pytest.raises(UnsupportedError, match=r"implicit_gemm needs up to \d+ instructions on a core"):
        nkiconv.conv_transpose2d(x, w, stride=32, groups=21, algorithm=algorithm)
    with pytest.raises(UnsupportedError, match=r"implicit_gemm needs up to \d+ instructions on a core"):
        estimated(Request(problem=big_problems.BIG["FCN-32s, 21 groups"]()))


@pytest.mark.parametrize("mode", ["torch", "simulate"])
@pytest.mark.parametrize("padding", [2**27, 2**31, 2**62])
def test_torch_refuses_padding_that_no_memory_holds(quickly, monkeypatch, mode, padding):
    """Before torch allocates it, which ends the process."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("nkiconv.pytorch.functional")
    monkeypatch.setenv("NKICONV_CPU", mode)
    x, w = torch.ones(1, 8, 9, 9, dtype=torch.bfloat16), torch.ones(8, 8, 3, 3, dtype=torch.bfloat16)
    with pytest.raises(GeometryError, match=r"padding=.*(pad less|must be at most)|HBM holds"):
        functional.conv2d(x, w, padding=padding)
    with pytest.raises(GeometryError, match=r"must be at most|smaller than the window"):
        functional.conv2d(x, w, dilation=2 * padding - 1)


def test_products_and_inputs_met_are_counted_by_arithmetic():
    """Against each output and tap one by one; of the largest numbers at once."""
    rng = random.Random(7)
    for _ in range(2000):
        axis = drawn_axis(rng)
        after = (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1
        after -= axis.before + (axis.size - 1) * axis.lhs_dilation + 1
        one = nkiconv.axis.Axis(axis.size, axis.taps, axis.stride, axis.before, after, axis.dilation, axis.lhs_dilation)
        places = [q * one.stride + tap * one.rhs_dilation - one.lo for q in range(one.out) for tap in range(one.taps)]
        meets = [place // one.lhs_dilation for place in places if place % one.lhs_dilation == 0]
        assert one.products == len(meets)
        assert one.met == len({element for element in meets if 0 <= element < one.size})
    huge = nkiconv.axis.Axis(9, 3, 1, 2**30, 2**30 - 99, 1, 2)
    assert (huge.met, huge.products) == (9, (huge.out * 3 + 1) // 2)
