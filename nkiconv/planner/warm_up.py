"""Matmuls on zeros that a kernel begins with: as many as fill the time in which its Tensor Engine would wait.

The engine starts at half rate, and a window of its throttle in which it works enough brings it to its full rate. A
kernel is traced once, with `PROBE` matmuls on zeros wherever it has some; the timeline is run again with their streams
as long as those of other counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.launch import Execution
from ..simulator.timeline import ENGINES, Tasks, Timeline, build, repeated_ns, run
from ..simulator.timing import AnyPrice, PriceList, Rates, TensorPrice
from .request import Config

#: The setting that counts all matmuls on zeros; settings that count those of a second place, and whether the first
#: counts them too.
FIRST = "warmup"
SECOND = {"late_warmup": True, "rewarm": False}
SETTINGS = frozenset((FIRST, *SECOND))
#: Of a traced kernel, in each place: they fill the bank that sums take over (`kernels/_warm.py`).
PROBE = 4
#: Work at full rate that they are, at most: no setting is refused for it.
MOST_NS = 13_600.0
#: Instructions of a cut trace that are looked at.
LOOKED_AT = 150
#: How much less a kernel must take with more of them.
WORTHWHILE = 0.999

#: Matmuls on zeros in the first place and in the second.
Counts = tuple[int, int]


def probed(config: Config) -> Config:
    """The config with `PROBE` matmuls on zeros in each place."""
    return with_counts(config, (PROBE, PROBE))


def with_counts(config: Config, counts: Counts) -> Config:
    """The config with so many matmuls on zeros; a config without such settings as it is."""
    given = dict(config or ())
    if FIRST not in given:
        return config
    second = next((name for name in SECOND if name in given), None)
    found = {FIRST: counts[0] + (counts[1] if second and SECOND[second] else 0)}
    if second:
        found[second] = counts[1]
    return tuple({**given, **found}.items())


@dataclass(frozen=True)
class Warmed:
    """What a kernel takes with so many matmuls on zeros: modelled us, or of a cut trace until the last matmul's end."""

    us: float
    counts: Counts


class Probe:
    """A kernel that was traced with settings that are `probed`.

    Attributes: least: the matmuls on zeros with which it takes least, of a few counts.
    """

    def __init__(self, execution: Execution, rates: Rates, config: Config) -> None:
        self.execution, self.rates = execution, rates
        if execution.is_cut:
            for program in execution.programs:
                del program.instructions[LOOKED_AT:]
        self.tasks, self.prices = build(execution.programs, PriceList(rates))
        tensor, queues = ENGINES.index("tensor"), []
        for core in range(len(execution.programs)):
            own = [i for i, engine in enumerate(self.tasks.engine) if engine == core * len(ENGINES) + tensor]
            queues.append([i for i in own if not self.tasks.is_dma[i]])
        #: of the first core that has some, in order
        self.queue: list[int] = next((queue for queue in queues if queue), [])
        has_any = FIRST in dict(config or ())
        by_core = [list(_places(self.tasks, queue)) for queue in queues if queue] if has_any else []
        #: tasks of each place, those of that core first
        self.places = [[task for one in place for task in one] for place in zip(*by_core, strict=False)]
        bare = self.timed((0, 0))
        self.least = Warmed(self.us(bare), (0, 0))
        if self.places:
            fill = self.fill(bare, 0)
            line = self.timed((fill, 0)) if fill else bare
            second = self.fill(line, 1) if len(self.places) > 1 else 0
            filled = Warmed(self.us(line), (fill, 0))
            both = self.warmed((fill, second))[0] if second else filled
            enough = self.warmed((self.enough(), 0))[0] if fill < self.enough() else filled
            if execution.is_cut:  # what follows tells more of the rate than its first instructions
                self.least = min((both, filled, self.least), key=lambda one: one.us)
            self.try_counts(filled, both, enough)

    def refined(self) -> Warmed:
        """The least, or a few more, which may take the engine across a window's threshold."""
        if self.places:
            first, second = self.least.counts
            more = [(first + PROBE, second), (first + 2 * PROBE, second)]
            more += [(first, second + PROBE)] if len(self.places) > 1 else []
            self.try_counts(*self.warmed(*more))
        return self.least

    def try_counts(self, *tried: Warmed) -> None:
        """Keep what takes clearly less than the least."""
        for one in tried:
            if one.us < WORTHWHILE * self.least.us:
                self.least = one

    def warmed(self, *counts: Counts) -> list[Warmed]:
        """The times of other counts."""
        known = {self.least.counts: self.least}
        for one in counts:
            if one not in known:
                known[one] = Warmed(self.us(self.timed(one)), one)
        return [known[one] for one in counts]

    def timed(self, counts: Counts) -> Timeline:
        """The timeline of these counts."""
        prices = list(self.prices)
        for place, count in zip(self.places, counts, strict=False):
            for task in place:
                prices[task] = _times(prices[task], count / PROBE)
        return run(self.tasks, prices, self.rates)

    def us(self, line: Timeline) -> float:
        """Modelled us of a timeline."""
        if self.execution.is_cut:
            return max((line.visible[task] for task in self.queue), default=0.0) / 1e3
        return (line.total_ns + repeated_ns(self.execution.programs, self.tasks, line)) / 1e3

    def fill(self, line: Timeline, which: int) -> int:
        """Matmuls that fill the time that the engine waits at a place, at half rate until the end of the throttle's
        first window, at full rate then; 0 where that is too long to fill."""
        place, window_ns = self.places[which], self.rates("throttle.window_ns")
        at = self.queue.index(place[0])
        begin = line.start[place[0]] if at == 0 else line.free[self.queue[at - 1]]
        after = self.queue[at + PROBE :]
        end = line.start[after[0]] if after else begin
        each_ns, slow_ns = self.stream_ns(), max(0.0, min(end, window_ns) - begin)
        fast_ns = max(0.0, end - max(begin, window_ns))
        count = int(slow_ns * self.rates("throttle.half_rate") / each_ns + fast_ns / each_ns)
        return count if count * each_ns <= MOST_NS else 0

    def enough(self) -> int:
        """Matmuls that bring the engine to its full rate without others."""
        needed_ns = self.rates("throttle.threshold") * self.rates("throttle.window_ns")
        return math.ceil(needed_ns / self.stream_ns())

    def stream_ns(self) -> float:
        """ns of a matmul on zeros at full rate."""
        price = self.prices[self.places[0][0]]
        assert type(price) is TensorPrice
        return price.interval_ns


def _places(tasks: Tasks, queue: Sequence[int]) -> Iterator[list[int]]:
    """The tasks of each place of a core: the first matmuls of something by itself."""
    zeros = [task for task in queue if _is_on_zeros(tasks.source[task])]
    for first in range(0, min(len(zeros), 2 * PROBE), PROBE):
        place = zeros[first : first + PROBE]
        at = queue.index(place[0])
        if list(queue[at : at + PROBE]) != place or len(place) < PROBE:
            return
        yield place


def _is_on_zeros(source: Any) -> bool:
    """Whether an instruction multiplies a tile by itself."""
    return source.op == "nc_matmul" and source.reads[0].info is source.reads[1].info


def _times(price: AnyPrice, factor: float) -> AnyPrice:
    """The price of so many of a matmul, one after the other."""
    assert type(price) is TensorPrice
    return dataclasses.replace(
        price,
        stream_ns=factor * price.stream_ns,
        interval_ns=factor * price.interval_ns,
        gap_ns=factor * price.gap_ns,
    )
