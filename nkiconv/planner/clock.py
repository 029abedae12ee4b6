"""Times of an estimate's candidates: the kernel's loop on the simulator's timeline, core 1 alone.

The two cores of a kernel compute two halves of its outputs alike, and core 1 has the longer one of an odd number: it is
timed with half of the HBM's rate, at half the cost of a plan's timing. `python tests/choice --clock` prints the
difference to both cores' time. There is no second model: prices, dependencies, throttle and queues are the timeline's.

The Tensor Engine starts at half rate, and a window of its throttle with enough work brings it to its full rate: kernels
begin with as many matmuls on zeros as fill its waits. A kernel is traced once, with `PROBE` of them in each place; for
other counts the timeline runs again with their streams scaled.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..schedules.settings import WARM_UP_MAX
from ..simulator.errors import MeetingError, NkiError, TraceLimitError
from ..simulator.launch import Execution, execute
from ..simulator.timeline import ENGINES, Options, Tasks, Timeline, build, repeated_ns, run
from ..simulator.timing import AnyPrice, PriceList, Rates, TensorPrice
from .request import Config

#: Most instructions of a core that an estimate traces: of the first candidate, where its trace is cut, and of all
#: others together, so that nine of ten estimates take 50 ms (`make choice`). More for depthwise rows, whose bounds take
#: less of the host and order candidates less well: with (180, 180) 220 random ones take 0.997 times as long. Fewer for
#: volumes, whose bounds take more: 150 random ones take 1.001 times as long. ALONE: of a candidate without others,
#: whose trace counts matmuls on zeros alone.
BUDGET, BUDGET_OF_ROWS, BUDGET_OF_VOLUMES, ALONE = (140, 100), (140, 160), (110, 90), 70
#: Phases of the throttle's grid, 0 and 1/2, over whose mean candidates are ranked. On 21 named problems the least of a
#: search takes at most 1.018 times the least mean over all 8; the least at phase 0 up to 1.37.
RANKED = 2
#: Instructions that take as long as a trace's fixed cost.
TRACE = 20
#: Largest ratio of a candidate's cost model to the least at which it is timed, and its settings refined.
NEAR = 1.2
#: The setting that counts matmuls on zeros; settings that count those of a second place, and whether FIRST counts these
#: too.
FIRST = "warmup"
SECOND = {"late_warmup": True, "rewarm": False}
SETTINGS = frozenset((FIRST, *SECOND))
#: Matmuls on zeros of a traced kernel, in each place: they fill the bank of the first sums (`kernels/_warm.py`).
PROBE = 4
#: Most ns of their work at full rate; larger settings are not refused.
MOST_NS = 13_600.0
#: Ratio of a kernel's time with more matmuls on zeros at which they pay.
WORTHWHILE = 0.999
#: Largest ratio to the least time at phase 0 at which other phases are timed too. 1.0 takes 1.0004 times as long over
#: 152 golden estimates, 1.05 at worst (`python tests/golden --way estimate`).
NEAR_AT_ZERO = 1.02

#: Matmuls on zeros in the first place and in the second.
Counts = tuple[int, int]
#: An algorithm with settings; a kernel with its launch grid, args, kwargs.
Choice = tuple[str, Config]
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def fastest(
    candidates: Sequence[Choice],
    launch: Callable[[str, Config], Launch],
    rates: Rates,
    budget: tuple[int, int] = BUDGET,
) -> Choice:
    """The fastest of the first candidates that the budget of instructions allows, with the matmuls on zeros that pay;
    the first candidate if the budget allows none.

    Args: candidates: algorithms with settings, in the order of timing. launch: the launch of one. budget: instructions.
    """
    if len(candidates) == 1 and FIRST not in dict(candidates[0][1] or ()):
        return candidates[0]
    return _Race(launch, rates, budget if len(candidates) > 1 else (ALONE, 0)).fastest(candidates)


class _Race:
    """The candidates of one estimate on the clock."""

    def __init__(self, launch: Callable[[str, Config], Launch], rates: Rates, budget: tuple[int, int]) -> None:
        self.launch, self.rates, (self.left, self.others) = launch, rates, budget
        #: prices of kernels by whether core 1 runs alone
        self.prices: dict[bool, PriceList] = {}
        self.found: dict[Choice, Probe] = {}
        #: the least us at phase 0
        self.at_zero = math.inf

    def fastest(self, candidates: Sequence[Choice]) -> Choice:
        known: dict[str, Counts] = {}
        for one in candidates:
            self.time(one, known.get(one[0]))
            if one in self.found and any(self.found[one].least):
                known[one[0]] = self.found[one].least
        if not self.found:
            return candidates[0]
        best = min(self.found, key=lambda one: self.found[one].us)
        return best[0], with_counts(best[1], self.found[best].found())

    def time(self, one: Choice, counts: Counts | None) -> None:
        """Time core 1 of a candidate, if the budget has instructions left, with these counts of matmuls on zeros or,
        for None, the best of a few."""
        if self.left <= 0:
            return
        config = with_counts(one[1], (PROBE, PROBE))
        try:
            execution, own = core_trace(self.launch(one[0], config), self.rates, self.left, cut=not self.found)
            probe = Probe(execution, self.prices.setdefault(own is not self.rates, PriceList(own)), config, counts)
        except TraceLimitError:
            self.left = 0
            return
        except NkiError:  # a search reports it
            return
        if probe.execution.is_cut:
            self.left = 0
        elif self.found:
            self.left -= len(probe.execution.instructions) + TRACE
        else:
            self.left = self.others
        if probe.says_nothing:
            return
        at_zero = probe.at_zero(probe.least)
        if at_zero <= NEAR_AT_ZERO * self.at_zero:
            self.found[one] = probe
            self.at_zero = min(self.at_zero, at_zero)


def core_trace(launch: Launch, rates: Rates, most: int | None, *, cut: bool) -> tuple[Execution, Rates]:
    """(trace of core 1, constants with half of the HBM's rate), or (trace of both, constants) if the cores
    synchronise. most: instructions of a core. cut: as in `execute`.

    Raises NkiError: the kernel breaks a rule of NKI, or needs more memory than there is; TraceLimitError: a core has
    more instructions than `most`.
    """
    kernel, args, kwargs = launch
    most = most and most * kernel.grid
    if kernel.grid > 1:
        of_hbm = {
            "dma.hbm_shared_gbps": rates("dma.hbm_shared_gbps") / 2,
            "dma.hbm_run_ns": 2 * rates("dma.hbm_run_ns"),
        }
        try:
            execution = execute(kernel, args, kwargs, trace_only=True, most=most, alone=1, cut=cut)
            return execution, Rates({**rates.overrides, **of_hbm})
        except MeetingError:
            pass
    return execute(kernel, args, kwargs, trace_only=True, most=most), rates


def with_counts(config: Config, counts: Counts) -> Config:
    """The config with these counts of matmuls on zeros; unchanged if it has no such settings."""
    given = dict(config or ())
    if FIRST not in given:
        return config
    second = next((name for name in SECOND if name in given), None)
    given[FIRST] = counts[0] + (counts[1] if second and SECOND[second] else 0)
    if second:
        given[second] = counts[1]
    return tuple(given.items())


class Probe:
    """A kernel traced with `PROBE` matmuls on zeros in each place.

    Attributes: us: modelled us, the mean over `RANKED` phases, or of a cut trace until the last matmul's end, with the
    counts `least`: given ones, or the best of a few.
    """

    def __init__(self, execution: Execution, prices: PriceList, config: Config, counts: Counts | None = None) -> None:
        self.execution, self.rates = execution, prices.rates
        self.tasks, self.prices = build(execution.programs, prices)
        tensor = ENGINES.index("tensor")
        queues: list[list[int]] = [[] for _ in execution.programs]
        for i, engine in enumerate(self.tasks.engine):
            if engine % len(ENGINES) == tensor and not self.tasks.is_dma[i]:
                queues[engine // len(ENGINES)].append(i)
        #: the Tensor Engine's tasks of the first core that has some, in order
        self.queue: list[int] = next((queue for queue in queues if queue), [])
        by_core = [list(_places(self.tasks, queue)) for queue in queues if queue] if FIRST in dict(config or ()) else []
        #: tasks of each place, that core's first
        self.places = [[task for one in place for task in one] for place in zip(*by_core, strict=False)]
        if len(self.queue) == sum(len(place) for place in self.places):
            self.queue, self.places = [], []  # the kernel has no others
        self.known: dict[Counts, float] = {}
        self.lines: dict[Counts, Timeline] = {}
        self.is_given = counts is not None
        self.least = counts or self.filled() if self.places else (0, 0)

    @property
    def says_nothing(self) -> bool:
        """Whether the trace is cut before the first matmul that is not on zeros."""
        return self.execution.is_cut and len(self.queue) <= PROBE * len(self.places)

    @property
    def us(self) -> float:
        return self.at(self.least)

    def filled(self) -> Counts:
        """The best counts: none, as many as fill the waits, or as many as reach the full rate."""
        bare = self.timed((0, 0))
        fill = self.fill(bare, 0)
        counts = [(fill, 0)]
        if len(self.places) > 1:
            counts.append((fill, self.fill(self.timed((fill, 0)), 1)))
        found = (0, 0)
        counts = [one for one in counts if sum(one) <= WARM_UP_MAX]
        if self.execution.is_cut:  # what follows tells more of the rate than its first instructions
            every = [found, *counts][::-1]
            near_us = NEAR_AT_ZERO * min(map(self.at_zero, every))
            found = min((one for one in every if self.at_zero(one) <= near_us), key=self.at)
        full = min(WARM_UP_MAX, max(fill, self.enough())), 0
        found = self.best(found, *counts, full)
        if found == full and len(self.places) > 1:
            again = full[0], self.fill(self.timed(full), 1)
            found = self.best(found, again) if sum(again) <= WARM_UP_MAX else found
        return found

    def found(self) -> Counts:
        """The better counts: `least`, or if these were given, perhaps those that fill this kernel's waits."""
        return self.best(self.least, self.filled()) if self.places and self.is_given else self.least

    def best(self, found: Counts, *others: Counts) -> Counts:
        """The first counts, or others with a clearly shorter time."""
        for one in others:
            is_near = self.at_zero(one) <= NEAR_AT_ZERO * self.at_zero(found)
            if is_near and self.at(one) < WORTHWHILE * self.at(found):
                found = one
        return found

    def at(self, counts: Counts) -> float:
        """Modelled us with these counts, the mean over `RANKED` phases."""
        if counts not in self.known:
            phases = range(1, RANKED if self.queue else 1)
            others = [self.us_of(self.line(counts, phase / RANKED)) for phase in phases]
            self.known[counts] = statistics.fmean([self.at_zero(counts), *others])
        return self.known[counts]

    def at_zero(self, counts: Counts) -> float:
        """Modelled us with these counts at phase 0."""
        return self.us_of(self.timed(counts))

    def timed(self, counts: Counts) -> Timeline:
        """The timeline of these counts at phase 0."""
        if counts not in self.lines:
            self.lines[counts] = self.line(counts)
        return self.lines[counts]

    def line(self, counts: Counts, phase: float = 0.0) -> Timeline:
        """The timeline of these counts, at a phase of the throttle's grid."""
        prices = list(self.prices)
        for place, count in zip(self.places, counts, strict=False):
            price = _times(prices[place[0]], count / PROBE)  # the same for all tasks of a place
            for task in place:
                prices[task] = price
        return run(self.tasks, prices, self.rates, Options(phase=phase))

    def us_of(self, line: Timeline) -> float:
        """Modelled us of a timeline."""
        if self.execution.is_cut:
            return max((line.visible[task] for task in self.queue), default=0.0) / 1e3
        return (line.total_ns + repeated_ns(self.execution.programs, self.tasks, line)) / 1e3

    def fill(self, line: Timeline, which: int) -> int:
        """Matmuls that fill the engine's wait at a place, at half rate until the end of the throttle's first window,
        then at full rate; 0 if the wait is too long to fill."""
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
        """Matmuls that alone bring the engine to its full rate."""
        needed_ns = self.rates("throttle.threshold") * self.rates("throttle.window_ns")
        return math.ceil(needed_ns / self.stream_ns())

    def stream_ns(self) -> float:
        """ns of a matmul on zeros at full rate."""
        price = self.prices[self.places[0][0]]
        assert type(price) is TensorPrice
        return price.interval_ns


def _places(tasks: Tasks, queue: Sequence[int]) -> Iterator[list[int]]:
    """The tasks of each place of a core: its first matmuls on zeros."""
    zeros = [task for task in queue if _is_on_zeros(tasks.source[task])]
    for first in range(0, min(len(zeros), 2 * PROBE), PROBE):
        place = zeros[first : first + PROBE]
        at = queue.index(place[0])
        if list(queue[at : at + PROBE]) != place or len(place) < PROBE:
            return
        yield place


def _is_on_zeros(source: Any) -> bool:
    """Whether an instruction is a matmul on zeros: it multiplies a tile by itself."""
    return source.op == "nc_matmul" and source.reads[0].info is source.reads[1].info


def _times(price: AnyPrice, factor: float) -> AnyPrice:
    """The price of `factor` of a matmul, one after the other."""
    assert type(price) is TensorPrice
    times = {name: factor * getattr(price, name) for name in ("stream_ns", "interval_ns", "gap_ns")}
    return dataclasses.replace(price, **times)
