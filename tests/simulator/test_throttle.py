"""The throttle of the Tensor Engine, alone and under a kernel, against times worked out by hand.

A window lasts 3413.3 ns and the array starts at half rate: a window that is busy throughout does 1706.7 ns of full-rate
work. 0.3725 of 3413.3 = 1271.5 ns of work releases the next window; at half rate that is 2542.9 ns, 74.5 % of it.
"""

import pytest
from timelines import timed

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.timeline.throttle import Throttle
from nkiconv.simulator.timing import Rates

WINDOW = 4096 / 1.2


def near(expected):
    return pytest.approx(expected, abs=0.05)


def throttle(phase=0.0, **settings):
    return Throttle(Rates(), phase, **settings)


def busy(array, window, full_ns, share=1.0):
    return array.stream(window * WINDOW, full_ns, share)


# why: streams (start, ns of full-rate work, end), and when the rate changed
STREAMS = {
    "starts at half rate": ([(0, 1000, 2000)], [(0, False)]),
    # 1706.7 are done by the line at 3413.3, the other 1706.7 take as long as they say
    "is released after the first busy window": (
        [(0, 2 * 1706.67, 3413.33 + 1706.67)], [(0, False), (3413.33, True)],
    ),
    # ten idle windows; busy from the middle of the eleventh: it does 853 by its end, less than 1271.5, so half rate
    # goes on through the twelfth, whose end is at 12 windows
    "the grid runs on through idle time": (
        [(10.5 * WINDOW, 4000, 12 * WINDOW + 4000 - 0.25 * WINDOW - 0.5 * WINDOW)], [(0, False), (12 * WINDOW, True)],
    ),
    # 413.3 ns at half rate do 206.7 of 1000; 1606.7 in this window release the next: 793.3 more at full rate
    "a stream across a line takes piecewise time": (
        [(0, 1400, 2800), (3000, 1000, 3413.33 + 793.33)], [(0, False), (3413.33, True)],
    ),
    # 206.7 by the line, not enough: the other 793.3 take 1586.7
    "a line that changes nothing": ([(3000, 1000, 3413.33 + 1586.67)], [(0, False)]),
    # at full rate from 3413.3; idle until 6726.7, so that only 100 are done by the line at 6826.7; then half rate
    "a stream may lose its rate on the way": (
        [(0, 1700, 3400), (6726.67, 500, 6826.67 + 800)], [(0, False), (3413.33, True), (6826.67, False)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("streams", "changes"), STREAMS.values(), ids=STREAMS)
def test_streams(streams, changes):
    array = throttle()
    assert not array.at_full_rate(0.0)
    for start, full_ns, end in streams:
        assert array.stream(start, full_ns) == near(end)
    assert array.changes == [(near(at), full) for at, full in changes]


# phase, when a busy array is released: the first line whose whole window it was busy in, or enough of it
PHASES = [(0.0, 3413.3), (0.25, 2560.0), (0.26, 2525.9 + 3413.3), (0.9, 3754.7)]


@pytest.mark.parametrize(("phase", "released"), PHASES)
def test_phase_shifts_the_grid(phase, released):
    """Time 0 lies `phase` of a window behind a line, and the work before it is none."""
    array = throttle(phase)
    end = array.stream(0.0, 10_000.0)
    assert array.changes == [(0.0, False), (pytest.approx(released, abs=0.1), True)]
    assert end == pytest.approx(released + 10_000 - released / 2, abs=0.1)


def test_a_share_of_the_rows_does_a_share_of_the_work():
    # three quarters of 1706.7 are 1280, just enough; 74 % are not
    for share, released in ((0.75, True), (0.74, False)):
        array = throttle()
        assert busy(array, 0, 1706.6, share) == near(3413.2)
        assert array.at_full_rate(WINDOW + 1) == released
        # the same when the stream goes on across the line
        assert busy(throttle(), 0, 2000, share) == near(WINDOW + 293.33 if released else 4000)


# Under a kernel.


def test_a_kernel_of_matmuls_is_released_once():
    def body():
        a, b = nl.ndarray((128, 128), nl.bfloat16), nl.ndarray((128, 500), nl.bfloat16)
        for _ in range(24):
            nisa.nc_matmul(nl.ndarray((128, 500), nl.float32, nl.psum), a, b)

    line = timed(body, throttle=True)
    # the ninth starts at 8 * 416.7 = 3333.3, does 40 of 208.3 by the line and the rest at full rate, at which 2.5 ns
    # lie between two; at half rate there are none
    half = [416.67 * i for i in range(9)]
    full = [3413.33 + 168.33 + 2.5 + 210.83 * i for i in range(15)]
    assert line.start == pytest.approx(half + full, abs=0.2)
    assert line.visible[0] == pytest.approx(416.67 + 206, abs=0.2)
    assert line.visible[-1] == pytest.approx(full[-1] + 208.33 + 164, abs=0.2)
    assert line.throttle_changes == [[(0.0, False), (near(3413.33), True)]]
