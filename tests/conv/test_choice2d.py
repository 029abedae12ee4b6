"""The choice by cost models, against the modelled times of all algorithms.

Every algorithm runs with settled settings, on two cores. Cost models do not know everything, so the choice is held to
shares of random problems; `make test-all` looks at more of them, and at all named cases.
"""

import pytest
from choices import CLOSE, SAME, share_within, times_slower
from random_problems import conv2d as random_problems

from nkiconv import ConvProblem, cases
from nkiconv.planner.cost.clock import Clock
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

pytestmark = pytest.mark.simulator_only
#: One of each kind, small enough for seconds.
SOME = ("rn50_c2", "rn50_c3_s2", "mobilenet_dw", "mult2_dw", "whisper_conv1", "rect_filter", "prime", "fp16", "c1k1")
PAD = ((1, 1), (1, 1))
#: Few outputs, where the filters' way to the array decides.
FEW_OUT = {
    "dilation": ConvProblem(N=1, C=256, H=64, W=64, K=6, R=3, S=3, rhs_dilation=(4, 4), padding=((4, 4), (4, 4))),
    "one tap": ConvProblem(N=1, C=256, H=64, W=64, K=21, S=1),
    "small": ConvProblem(N=8, C=256, H=14, W=14, K=2, R=3, S=3, padding=PAD),
    "7 x 7": ConvProblem(N=1, C=64, H=128, W=256, K=3, R=7, S=7, padding=((3, 3), (3, 3))),
    "stride": ConvProblem(N=2, C=128, H=128, W=128, K=4, R=3, S=3, stride=(2, 2), padding=PAD),
    "16 outputs": ConvProblem(N=1, C=128, H=256, W=256, K=16, R=3, S=3, padding=PAD),
}


TARGET = Target.of(Rates())


@pytest.mark.parametrize("warm_ns", [0.0, 1300.0])
@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
def test_sums_end_as_windows_say(share, warm_ns):
    """Little work never gets the array to its full rate, some keeps it there, much gets it there."""
    clock = Clock(TARGET)
    start = clock.stream(0.0, warm_ns)
    full_ns = 20 * TARGET.window_ns
    end = clock.sums_end(start, full_ns, share * full_ns)
    fast = share == 1.0 or (share == 0.5 and warm_ns > 0.0)
    assert (end < 1.2 * full_ns + start) == fast
    if not fast:
        assert end >= start + 1.9 * full_ns


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("split", [0.1, 0.5, 0.93])
def test_sums_end_goes_on_where_it_ended(share, split):
    """Sums in two parts end when all of them do, with the same rate from there on."""
    whole, parts = Clock(TARGET), Clock(TARGET)
    full_ns = 7.3 * TARGET.window_ns
    end = whole.sums_end(whole.stream(0.0, 1300.0), full_ns, share * full_ns)
    time = parts.stream(0.0, 1300.0)
    for part in (split, 1.0 - split):
        time = parts.sums_end(time, part * full_ns, part * share * full_ns)
    assert time == pytest.approx(end)
    assert (parts.full, parts.line, parts.work) == pytest.approx((whole.full, whole.line, whole.work))


@pytest.mark.cover(5)
@pytest.mark.parametrize("name", SOME)
def test_named_cases(name):
    assert times_slower(cases.get(name).problem, "conv2d") <= SAME


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", FEW_OUT)
def test_few_outputs(name):
    assert times_slower(FEW_OUT[name], "conv2d") <= CLOSE


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [case.name for case in cases.load("conv2d") if case.name not in SOME])
def test_every_other_named_case(name):
    assert times_slower(cases.get(name).problem, "conv2d") <= SAME


@pytest.mark.slow
def test_some_random_problems():
    found = [times_slower(problem, "conv2d") for problem in random_problems(30, seed=1, most_flops=1e9)]
    assert share_within(found, CLOSE) >= 0.85
    assert share_within(found, 1.6) == 1.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_problems():
    """More than 9 in 10 within 10 %, 49 in 50 within 50 %."""
    found = [times_slower(problem, "conv2d") for problem in random_problems(200, seed=3, most_flops=3e11)]
    assert share_within(found, CLOSE) >= 0.90
    assert share_within(found, 1.5) >= 0.98
