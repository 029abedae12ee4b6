"""The Tensor Engine's throttle: full or half rate, decided window by window on a grid of its own.

The array starts at half rate. At each grid line the next window runs at full rate if the work of the window that just
ended was at least the threshold, a share of full rate's work in a window; otherwise at half rate.
"""

from __future__ import annotations

from ..timing import Rates


class Throttle:
    """Turns nanoseconds of work at full rate into time.

    Args:
        phase: where in the first window time 0 lies, 0 to 1. enabled: False keeps full rate for ever.
    """

    def __init__(self, rates: Rates, phase: float = 0.0, *, enabled: bool = True) -> None:
        self.window_ns = rates("throttle.window_ns")
        self._slow = rates("throttle.half_rate")
        self._needed_ns = rates("throttle.threshold") * self.window_ns
        self._enabled = enabled
        #: whether it runs at full rate, as of the last call
        self.full = not enabled or rates("throttle.initial_k_over_n") >= 1.0
        self._line = (1.0 - phase) * self.window_ns
        self._work_ns = 0.0
        #: (time, at full rate from then on), for every change
        self.changes: list[tuple[float, bool]] = [(0.0, self.full)]

    def at_full_rate(self, time: float) -> bool:
        """Whether the array runs at full rate at `time`, which must not lie before the last call's."""
        if self._line < time:
            self._advance(time)
        return self.full

    def stream(self, start: float, full_ns: float, share: float = 1.0) -> float:
        """When `full_ns` of streaming that starts at `start` ends; `share` of the array's rows work."""
        if self._line < start:
            self._advance(start)
        time, left = start, full_ns
        while True:
            speed = 1.0 if self.full else self._slow
            end = time + left / speed
            if not self._enabled or end <= self._line:
                self._work_ns += left * share
                return end
            done = (self._line - time) * speed
            self._work_ns += done * share
            left -= done
            time = self._line
            self._cross()

    def _advance(self, time: float) -> None:
        if not self._enabled:
            return
        while self._line < time:
            if not self.full and self._work_ns == 0.0:  # nothing happens in idle windows
                skipped = int((time - self._line) / self.window_ns)
                self._line += skipped * self.window_ns
                if self._line >= time:
                    return
            self._cross()

    def _cross(self) -> None:
        full = self._work_ns >= self._needed_ns
        if full != self.full:
            self.full = full
            self.changes.append((self._line, full))
        self._work_ns = 0.0
        self._line += self.window_ns
