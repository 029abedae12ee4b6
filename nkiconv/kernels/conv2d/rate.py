"""The array's rate over a whole kernel: when matmuls end that begin at a known time."""

from .._clock import cross, stream
from .._prices import HALF_RATE, WINDOW_NS, WINDOW_WORK


def sums_end(clock, start, full_ns, work_ns):
    """When sums end that start at `start`, would take `full_ns` at full rate and keep the array at work for `work_ns`
    of those; the clock is there then. Windows are looked at one by one until the rate stays what it is."""
    time, left = stream(clock, start, 0.0), full_ns
    share = work_ns / full_ns if full_ns > 0.0 else 0.0
    while True:
        speed = 1.0 if clock.full else HALF_RATE
        if time + left / speed <= clock.line:
            clock.work += left * share
            return time + left / speed
        done = (clock.line - time) * speed
        clock.work += done * share
        left -= done
        time = clock.line
        before = clock.full
        cross(clock)
        if clock.full == before and clock.full == (share * speed >= WINDOW_WORK):
            skipped_ns = int(left / speed / WINDOW_NS) * WINDOW_NS
            left -= skipped_ns * speed
            time += skipped_ns
            clock.line += skipped_ns
