"""A clock for each engine of a core: how long a kernel takes, found by walking through its order of work.

What no formula gets right (what comes first, what waits for what, whether the array is at its full rate by then) is
found by letting candidates run against these clocks. A walk issues work in a kernel's program order: each engine starts
when it is free and its operands are there. Left out: room in SBUF and PSUM, who else uses a port, packets of two DMAs
in turn beyond halving the rate.
"""

from __future__ import annotations

from ...simulator.timing.target import Target

#: How much more work than it takes the array should have to be at its full rate, as what is on the edge may miss it; in
#: the first `EARLY` windows, of which a walk knows more, and later.
EARLY = 2
MARGIN_EARLY = 1.04
MARGIN = 1.09


class Clock:
    """When each part of a core is free next, in ns from the kernel's first instruction: all engines at 0, the array at
    half rate."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tensor = self.vector = self.scalar = self.gpsimd = 0.0
        #: triggers of loads, of those that wait for something, which hold nobody up, and of stores
        self.sync = self.late_sync = self.triggers = 0.0
        #: the DMA engines, by what is on its way in either direction; loads that had to wait for something are apart
        self.loads = self.late = self.stores = 0.0
        #: ns of work that DMA engines have been given
        self.moved = 0.0
        #: (start, ns of work) of stores, those that begin after the loads so far; how many of them loads have reached
        self.later: list[tuple[float, float]] = []
        self.reached = 0
        #: the array's rate, full or not; the end of its window, and its work in that so far
        self.full = False
        self.line = target.window_ns
        self.work = 0.0

    @property
    def rate(self) -> float:
        """Of the array: 1 is full."""
        return 1.0 if self.full else self.target.half_rate

    @property
    def end(self) -> float:
        """When the last store is done."""
        return self.stores + self.target.dma_end_ns

    def cross(self) -> None:
        """The array's window ends."""
        target = self.target
        margin = MARGIN_EARLY if self.line <= EARLY * target.window_ns else MARGIN
        self.full = self.work >= margin * target.window_work * target.window_ns
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

    def matmuls(self, ready: float, count: int, columns: float, column_ns: float, fixed_ns: float) -> float:
        """`count` matmuls or transposes of so many moving columns, one after the other; when the last's result is
        there. column_ns: of a column at full rate; fixed_ns: of each beside those."""
        target = self.target
        time = self.tensor
        if ready > time:
            time = ready + target.matmul_start_ns
        end = time
        if columns >= target.matmul_columns_min:
            end = self.stream(time, count * columns * column_ns)
            time = end + (count * fixed_ns if self.full else 0.0)
        else:  # short ones keep the array waiting, which is no work
            rest_ns, work_ns = (target.matmul_columns_min - columns) * column_ns, columns * column_ns
            for _ in range(count):
                end = time + (work_ns if self.full else work_ns / target.half_rate)
                if end <= self.line:  # as most are, in one window
                    self.work += work_ns
                else:
                    end = self.stream(time, work_ns)
                time = end + (rest_ns + fixed_ns if self.full else rest_ns / target.half_rate)
        self.tensor = time
        return end + (target.matmul_done_ns if self.full else target.matmul_done_half_ns)

    def load(self, ready: float, triggers: int, rows: int, row_ns: float, num_bytes: float) -> float:
        """Static DMAs to so many partitions, row_ns of a DMA engine each; when what waits for them may start.

        ready: when what the columns hold before is there, 0 where nothing is. triggers: DMAs that it takes, all alike.
        Loads and stores that are on their way at the same time have half of the engines each.
        """
        target = self.target
        trigger = self.sync
        if ready > 0.0:
            trigger = max(self.late_sync, ready + target.hop_dma_ns)
            self.late_sync = trigger + triggers * target.static_issue_ns
        else:
            self.sync += triggers * target.static_issue_ns
        last_ns = (triggers - 1) * target.static_issue_ns + target.first_packet_ns
        arrival = trigger + last_ns + skew(target, rows, target.load_skew_ns)
        busy = self._dma_ns(rows, row_ns, num_bytes)
        done_ns = target.dma_end_ns + target.dma_done_ns
        if arrival > self.loads and ready > 0.0:  # it comes when others may be through
            start = max(arrival, self.late)
            both = max(0.0, min(busy, self.stores - start))
            self.late = start + busy + both
            self.stores += both
            return self.late + done_ns
        end = max(arrival, self.loads) + busy
        if self.late > end - busy:
            self.late += busy
        while self.reached < len(self.later) and self.later[self.reached][0] < end:
            start, other_ns = self.later[self.reached]
            self.reached += 1
            if start + other_ns > end - busy:
                end += other_ns
                self.stores += min(busy, other_ns)
        self.loads = end
        return end + done_ns

    def store(self, ready: float, rows: int, row_ns: float, num_bytes: float) -> None:
        """A static DMA from so many partitions of something that is ready."""
        target = self.target
        trigger = max(self.triggers, ready + target.hop_dma_ns)
        self.triggers = trigger + target.static_issue_ns
        start = max(trigger + target.first_packet_ns + skew(target, rows, target.store_skew_ns), self.stores)
        busy = self._dma_ns(rows, row_ns, num_bytes)
        both = max(0.0, min(busy, max(self.loads, self.late) - start))
        self.stores = start + busy + both
        if self.loads > start:
            self.loads += both
        if self.late > start:
            self.late += both
        if both < busy:
            self.later.append((start + 2 * both, busy - both))

    def on_vector(self, ready: float, busy_ns: float, done_ns: float) -> float:
        """An instruction of Vector's; when its result is there, done_ns after its start."""
        start = max(self.vector, ready)
        self.vector = start + busy_ns
        return start + done_ns

    def on_scalar(self, ready: float, busy_ns: float, done_ns: float) -> float:
        """An instruction of Scalar's; when its result is there, done_ns after its start."""
        start = max(self.scalar, ready)
        self.scalar = start + busy_ns
        return start + done_ns

    def on_gpsimd(self, ready: float, busy_ns: float, done_ns: float) -> float:
        """An instruction of GpSimd's; when its result is there, done_ns after its start."""
        start = max(self.gpsimd, ready)
        self.gpsimd = start + busy_ns
        return start + done_ns

    def _dma_ns(self, rows: int, row_ns: float, num_bytes: float) -> float:
        """Work that DMA engines are given: of the busiest, or of HBM."""
        target = self.target
        busy = max(min(rows, target.rows_an_engine) * row_ns, target.hbm_ns(num_bytes, num_bytes / rows))
        self.moved += busy
        return busy


def skew(target: Target, rows: int, last_ns: float) -> float:
    """ns that the last of the DMA engines of so many partitions begins later than the first."""
    return last_ns * (-(-rows // target.rows_an_engine) - 1) / (target.dma_engines - 1)
