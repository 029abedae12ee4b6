"""Where each engine's time goes: busy, stalled on what, idle before its first and after its last instruction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..timeline import ENGINES, NOTHING, QUEUE_FULL, SPACE, Tasks, Timeline
from ..timing import AnyPrice, DmaPrice


@dataclass(frozen=True)
class EngineUse:
    """One engine of one core, in us of the profile's span; busy + stalls + idle is the span."""

    core: int
    engine: str
    instructions: int
    busy_us: float
    stalls_us: dict[str, float]
    idle_us: float

    @property
    def stalled_us(self) -> float:
        return sum(self.stalls_us.values())


def engine_use(tasks: Tasks, prices: Sequence[AnyPrice], line: Timeline) -> list[EngineUse]:
    """One entry for each engine of each core, in `ENGINES` order, and one for the core's DMA engines."""
    by_engine: list[list[int]] = [[] for _ in range(tasks.num_cores * len(ENGINES))]
    for task in sorted(range(len(tasks)), key=lambda t: line.start[t]):
        by_engine[tasks.engine[task]].append(task)
    found = []
    for core in range(tasks.num_cores):
        for code, name in enumerate(ENGINES):
            queue = by_engine[core * len(ENGINES) + code]
            found.append(_one(core, name, queue, tasks, prices, line))
        transfers = sum(
            1 for task in range(len(tasks)) if tasks.is_dma[task] and tasks.engine[task] // len(ENGINES) == core
        )
        span, busy = line.total_ns / 1e3, line.dma_busy_ns[core] / 1e3
        found.append(EngineUse(core, "dma", transfers, busy, {}, max(0.0, span - busy)))
    return found


def _one(core: int, name: str, queue: list[int], tasks: Tasks, prices: Sequence[AnyPrice], line: Timeline) -> EngineUse:
    begin, end = line.begin_ns, line.end_ns
    busy = idle = 0.0
    stalls: dict[str, float] = defaultdict(float)
    at = begin
    for position, task in enumerate(queue):
        start, free = min(line.start[task], end), min(line.free[task], end)
        if start > at:
            if position == 0:
                idle += start - at
            else:
                stalls[cause(task, tasks, prices, line)] += start - at
        if free > max(at, start):
            worked = min(free - max(at, start), own_ns(prices[task], line, task))
            busy += worked
            if free - max(at, start) > worked:
                stalls["DMA queue full"] += free - max(at, start) - worked
        at = max(at, free)
    idle += max(0.0, end - at)
    scaled = {what: ns / 1e3 for what, ns in sorted(stalls.items(), key=lambda item: -item[1])}
    return EngineUse(core, name, len(queue), busy / 1e3, scaled, idle / 1e3)


def own_ns(price: AnyPrice, line: Timeline, task: int) -> float:
    """How long a task keeps its engine for its own sake: an issue into a full queue also waits for room."""
    return price.issue_ns if isinstance(price, DmaPrice) else line.free[task] - line.start[task]


def cause(task: int, tasks: Tasks, prices: Sequence[AnyPrice], line: Timeline) -> str:
    """The reason for a task's wait, in a word or two."""
    source = line.ready_by[task]
    if source == SPACE:
        psum = all(tasks.tiles[tile].psum for tile in tasks.touches[task] if tasks.tiles[tile].first_task == task)
        return "PSUM space" if psum else "SBUF space"
    if source == QUEUE_FULL:
        return "DMA queue full"
    if source == NOTHING:
        return "own start-up"
    price = prices[source]
    if isinstance(price, DmaPrice):
        return "a DMA"
    return f"{ENGINES[tasks.engine[source] % len(ENGINES)]}"
