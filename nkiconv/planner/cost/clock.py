"""The array's throttle: how long work takes from a time on, whether it is at its full rate by then or not."""

from __future__ import annotations

from ...simulator.timing.target import Target

#: How much more work than it takes the array should have to be at its full rate, as what is on the edge may miss it.
MARGIN = 1.04


class Clock:
    """The array's rate and where its window stands, in ns from the kernel's first instruction: at first half rate."""

    def __init__(self, target: Target) -> None:
        self.target = target
        #: the array's rate, full or not; the end of its window, and its work in that so far
        self.full = False
        self.line = target.window_ns
        self.work = 0.0

    @property
    def rate(self) -> float:
        """Of the array: 1 is full."""
        return 1.0 if self.full else self.target.half_rate

    def cross(self) -> None:
        """The array's window ends."""
        target = self.target
        self.full = self.work >= MARGIN * target.window_work * target.window_ns
        self.work = 0.0
        self.line += target.window_ns

    def stream(self, start: float, work_ns: float) -> float:
        """When `work_ns` of the array's work at full rate end that start at `start`."""
        window_ns = self.target.window_ns
        while self.line < start and (self.full or self.work > 0.0):
            self.cross()
        if self.line < start:
            self.line += window_ns * -(-int(start - self.line) // int(window_ns))
        time, left, speed = start, work_ns, self.rate
        while time + left / speed > self.line:
            done = (self.line - time) * speed
            self.work += done
            left -= done
            time = self.line
            self.cross()
            speed = self.rate
        self.work += left
        return time + left / speed

    def sums_end(self, start: float, full_ns: float, work_ns: float) -> float:
        """When sums end that start at `start`, would take `full_ns` at full rate and keep the array at work for
        `work_ns` of those. Windows are looked at one by one until the rate stays what it is."""
        target = self.target
        time, left = self.stream(start, 0.0), full_ns
        share = work_ns / full_ns if full_ns > 0.0 else 0.0
        while True:
            speed = self.rate
            if time + left / speed <= self.line:
                self.work += left * share
                return time + left / speed
            done = (self.line - time) * speed
            self.work += done * share
            left -= done
            time = self.line
            before = self.full
            self.cross()
            if self.full == before and self.full == (share * speed >= target.window_work):
                skipped_ns = int(left / speed / target.window_ns) * target.window_ns
                left -= skipped_ns * speed
                time += skipped_ns
                self.line += skipped_ns
