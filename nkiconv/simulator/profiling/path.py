"""The critical path: the chain of waits that ends with the last DMA, and the constants of each link.

From the end backwards: a task's time, then the last event that its start waited for: another task's result, space in
memory, a place in a DMA queue, or the end of the engine's task before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..timeline import ENGINES, NOTHING, QUEUE_FULL, Tasks, Timeline
from ..timing import AnyPrice, DmaPrice, MeetPrice, TensorPrice

#: Differences below this are rounding of sums of ns.
_SAME_NS = 1e-6

#: Kinds of links.
ISSUE, LATENCY, HOP, SPACE_WAIT = "issue", "latency", "hop", "space"
DMA_FLOW, DMA_START, DMA_ISSUE, DMA_QUEUE = "dma flow", "dma first packet", "dma issue", "dma queue"
MEETING = "barrier"


@dataclass(frozen=True)
class Link:
    """One link of the critical path, in ns: its kind, its task, and the constants of its time.

    A hop belongs to the task that waits; an issue to the task that keeps its engine busy.
    """

    kind: str
    task: int
    begin_ns: float
    end_ns: float
    constants: frozenset[str]

    @property
    def duration_ns(self) -> float:
        return self.end_ns - self.begin_ns


def critical_path(tasks: Tasks, prices: Sequence[AnyPrice], line: Timeline) -> list[Link]:
    """The links of the critical path in time order, without those that end before the profile's span begins."""
    if not len(tasks):
        return []
    candidates = [task for task in range(len(tasks)) if tasks.is_dma[task]] or list(range(len(tasks)))
    task = max(candidates, key=lambda t: line.visible[t])
    before = _Before(tasks, line)
    links: list[Link] = []
    at: int | None = task
    finished = True  # whether the path reaches the task by its result (else: by its engine's time)
    while at is not None:
        if finished:
            at = _own_links(tasks, prices, line, at, links)
        at, finished = _step_back(tasks, prices, line, before, at, links)
    links.reverse()
    return [link for link in links if link.end_ns > line.begin_ns + _SAME_NS]


def _own_links(tasks: Tasks, prices: Sequence[AnyPrice], line: Timeline, task: int, links: list[Link]) -> int:
    """Add a task's own time, from its result back to its start; returns the task (a meeting's later one)."""
    price, start, end = prices[task], line.start[task], line.visible[task]
    if isinstance(price, DmaPrice):
        began = line.ready[task] if line.ready_by[task] == QUEUE_FULL else start
        links.append(Link(DMA_FLOW, task, line.arrival[task], end, price.constants))
        links.append(Link(DMA_START, task, began, line.arrival[task], price.issue_constants))
    elif isinstance(price, MeetPrice):
        later = max(task, tasks.meets[task], key=lambda t: line.start[t])
        links.append(Link(MEETING, task, line.start[later], end, price.constants))
        return later
    else:
        links.append(Link(LATENCY, task, start, end, price.constants))
    return task


class _Before:
    """For each task, the last instruction and the last DMA issue of its engine before it."""

    def __init__(self, tasks: Tasks, line: Timeline) -> None:
        engines = tasks.num_cores * len(ENGINES)
        last = [[-1] * engines, [-1] * engines]
        self._tasks, self._line = tasks, line
        self._found = [(-1, -1)] * len(tasks)
        for task in sorted(range(len(tasks)), key=lambda t: line.start[t]):
            engine = tasks.engine[task]
            self._found[task] = last[0][engine], last[1][engine]
            last[tasks.is_dma[task]][engine] = task

    def holder(self, task: int) -> tuple[int, float]:
        """The task that held the engine up longest, and until when; (-1, -1.0) for none."""
        instruction, trigger = self._found[task]
        line = self._line
        held = -1.0
        if instruction >= 0:
            held = line.start[instruction] if self._tasks.is_dma[task] else line.free[instruction]
        if trigger >= 0 and line.free[trigger] > held:
            return trigger, line.free[trigger]
        return instruction, held


def load_ns(price: AnyPrice) -> float:
    """From the end of all waits to the start, where an instruction needs that."""
    if isinstance(price, DmaPrice):
        return price.prepare_ns
    return price.load_ns if isinstance(price, TensorPrice) else 0.0


def _hop_constants(tasks: Tasks, producer: int, task: int) -> frozenset[str]:
    """The constant of a hop between instructions that has no measurement: to GpSimd from another engine."""
    engine = ENGINES[tasks.engine[task] % len(ENGINES)]
    triggers = tasks.is_dma[task] or tasks.is_dma[producer]
    if engine == "gpsimd" and not triggers and tasks.engine[producer] != tasks.engine[task]:
        return frozenset({"sync.hop_to_gpsimd_ns"})
    return frozenset()


def _step_back(
    tasks: Tasks, prices: Sequence[AnyPrice], line: Timeline, before: _Before, task: int, links: list[Link]
) -> tuple[int | None, bool]:
    """The last event that a task's start waited for: (its task or None, whether for its result)."""
    start, ready, cause = line.start[task], line.ready[task], line.ready_by[task]
    price = prices[task]
    if cause == QUEUE_FULL and ready > start:
        links.append(Link(DMA_QUEUE, task, ready, ready, frozenset({"dma.hwdge_queue_depth"})))
        return line.made_room[task], True
    previous, engine_free = before.holder(task)
    if previous >= 0 and engine_free > ready + load_ns(price) + _SAME_NS:
        busy = prices[previous]
        kind, constants = ISSUE, busy.constants
        if isinstance(busy, DmaPrice):
            kind, constants = DMA_ISSUE, busy.issue_constants
        links.append(Link(kind, previous, line.start[previous], start, constants))
        return previous, False
    if cause == NOTHING:
        return None, False
    if cause >= 0:
        links.append(Link(HOP, task, line.visible[cause], start, _hop_constants(tasks, cause, task)))
        return cause, True
    source = line.made_room[task]
    if source == NOTHING:
        return None, False
    links.append(Link(SPACE_WAIT, task, min(line.visible[source], start), start, frozenset()))
    return source, True
