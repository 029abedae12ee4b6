"""Compares a trace with its replay: instruction by instruction, the span, and where along the way the two part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..profiling.path import DMA_FLOW, DMA_ISSUE, DMA_START, HOP, ISSUE, LATENCY, critical_path
from ..timeline import Options, Timeline, run
from ..timing import Rates
from .records import Trace
from .rows import Row, first_in_queue, rows
from .tasks import Replay, build, dmas_as_seen, is_as_seen, origin_ns, phase, run_in_order


@dataclass(frozen=True)
class Step:
    """A point of the replay's critical path: when it was predicted, and when it was seen, in ns from the replay's zero.

    `gap_ns` is by how much predicted minus seen has grown since the step before.
    """

    what: str
    predicted_ns: float
    seen_ns: float
    gap_ns: float


@dataclass(frozen=True)
class Span:
    """First DMA issue to last DMA done, in ns, and the steps of the predicted one's critical path."""

    predicted_ns: float
    seen_ns: float
    steps: tuple[Step, ...]

    @property
    def error(self) -> float:
        return self.predicted_ns / self.seen_ns - 1.0


@dataclass(frozen=True)
class Comparison:
    """A trace and its replay.

    `in_order`: nothing overtakes in a queue, as on the hardware. `overtaking`: DMA triggers overtake what waits, as in
    the model's own kernels. The other two tell causes apart, and are no predictions: `first_loads_seen` and `dmas_seen`
    are `in_order` with the DMAs that wait for nothing, or all DMAs, as long from issue to end as they were seen to be.
    """

    name: str
    rows: tuple[Row, ...]
    in_order: Span
    overtaking: Span
    first_loads_seen: Span
    dmas_seen: Span


def compare(trace: Trace, rates: Rates | None = None) -> Comparison:
    """Replay a trace and compare. Raises TraceError, as `tasks.build` does."""
    rates = rates or Rates()
    replay = build(trace, rates, in_order=True)
    origin = origin_ns(replay)
    at = phase(trace, origin, rates)
    ways = [replay, *(dmas_as_seen(replay, origin, rates, first_only=first_only) for first_only in (True, False))]
    in_order, first_loads, dmas = (span(way, run_in_order(way, rates, at), origin) for way in ways)
    free = build(trace, rates, in_order=False)
    overtaking = span(free, run(free.tasks, free.prices, rates, Options(phase=at)), origin)
    return Comparison(trace.name, tuple(rows(trace, replay.prices, rates)), in_order, overtaking, first_loads, dmas)


def span(replay: Replay, line: Timeline, origin: float) -> Span:
    """The spans of a timeline and of the trace, and the steps of its critical path."""
    dmas = [record for record in replay.records if record.dma is not None] or list(replay.records)
    begin = min(record.start_ns for record in dmas)
    seen = max(record.done_ns for record in dmas) - begin
    return Span(line.total_ns, seen, tuple(_steps(replay, line, origin)))


def _steps(replay: Replay, line: Timeline, origin: float) -> Iterator[Step]:
    before = 0.0
    last = ""
    for link in critical_path(replay.tasks, replay.prices, line):
        record, task = replay.records[link.task], link.task
        points = []
        if link.kind in (HOP, ISSUE, DMA_ISSUE, DMA_START) and record.matmul is None:
            points.append(("starts", line.start[task], record.start_ns))
        alone = record.dma is not None and first_in_queue(record, replay.records)
        if link.kind == DMA_START and record.dma is not None and alone and not is_as_seen(replay.prices[task]):
            points.append(("first packets", line.arrival[task], record.dma.arrival_ns))
        if link.kind in (LATENCY, DMA_FLOW) or (record.matmul is not None and link.kind == ISSUE):
            points.append(("done", line.visible[task], record.done_ns))
        for what, predicted, seen in points:
            name = f"{record} {what}"
            if name == last:
                continue
            apart = predicted - (seen - origin)
            yield Step(name, predicted, seen - origin, apart - before)
            before, last = apart, name
