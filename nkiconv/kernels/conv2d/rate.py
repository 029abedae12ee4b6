"""The array's rate over a whole kernel: when matmuls end that begin at a known time."""

from .._clock import cross, stream
from .._prices import HALF_RATE, WINDOW_WORK


def sums_end(clock, start, full_ns, work_ns):
    """When sums end that start at `start`, would take `full_ns` at full rate and keep the array at work for `work_ns`
    of those. As many windows are looked at as it takes until the rate stays what it is."""
    time, left = stream(clock, start, 0.0), full_ns
    share = work_ns / full_ns
    while True:
        speed = 1.0 if clock.full else HALF_RATE
        if time + left / speed <= clock.line:
            return time + left / speed
        done = (clock.line - time) * speed
        clock.work += done * share
        left -= done
        time = clock.line
        before = clock.full
        cross(clock)
        if clock.full == before and clock.full == (share * speed >= WINDOW_WORK):
            return time + left / speed
