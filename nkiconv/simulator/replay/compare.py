"""Compares a trace with its replay: instruction by instruction, the span, and where along the way the two part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import median

from ..dtypes import DTYPES
from ..profiling.path import DMA_FLOW, DMA_ISSUE, DMA_START, HOP, ISSUE, LATENCY, critical_path
from ..timeline import Options, Tasks, Timeline, run
from ..timing import AnyPrice, DmaPrice, Price, Rates, TensorPrice
from .records import Operand, Record, Trace
from .tasks import Replay, build, origin_ns, phase, run_in_order

#: An instruction that started within this time of its semaphore had been waiting for it: semaphores reach an engine in
#: 16 to 43 ns, and through an EVENT_SEMAPHORE in up to 130 ns.
_WAITED_NS = 150.0
#: A matmul that started this soon after the load of its stationary operand, or sooner, found the array dry.
_DRY_LOAD_NS = 40.0
#: States of a DMA: how long to its first packets on all DMA engines, and how long in all, without other DMAs.
FIRST_PACKET, ALONE = "1st packet", "alone"
#: Spacing of the tasks in a run that asks for one instruction's price; longer than any instruction is.
_APART_NS = 1000.0


@dataclass(frozen=True)
class Row:
    """Instructions of one kind: medians over `count` of them, in ns; None where none could be told.

    `n` says the elements of a partition (a DMA: elements x bytes). `state`: "warm" (started as soon as its engine was
    free) or "cold"; of a matmul also the throttle; a DMA is "alone" on the DMA engines. LAT is from start to result (a
    cold matmul: from the load of its stationary operand), ISSUE to the next start that nothing else held up.
    """

    opcode: str
    engine: str
    memory: str
    dtype: str
    n: str
    state: str
    count: int
    seen_latency_ns: float | None
    latency_ns: float | None
    seen_issue_ns: float | None
    issue_ns: float | None

    @property
    def latency_error(self) -> float | None:
        return error(self.latency_ns, self.seen_latency_ns)

    @property
    def issue_error(self) -> float | None:
        return error(self.issue_ns, self.seen_issue_ns)


@dataclass(frozen=True)
class Step:
    """A point of the replay's critical path: when it was predicted, and when it was seen, in ns from the span's begin.

    `gap_ns` is how much more than before the prediction is ahead (negative) or behind.
    """

    what: str
    predicted_ns: float
    seen_ns: float
    gap_ns: float


@dataclass(frozen=True)
class Span:
    """First DMA issue to last DMA done, in ns."""

    predicted_ns: float
    seen_ns: float
    steps: tuple[Step, ...]

    @property
    def error(self) -> float:
        return self.predicted_ns / self.seen_ns - 1.0


@dataclass(frozen=True)
class Comparison:
    """A trace beside its replay. `in_order`: waits as the queues' order has them; `own`: DMA triggers may overtake."""

    name: str
    rows: tuple[Row, ...]
    in_order: Span
    own: Span


def error(predicted: float | None, seen: float | None) -> float | None:
    """Relative error of a prediction; None without one or without anything to compare it with."""
    return None if predicted is None or not seen else predicted / seen - 1.0


def compare(trace: Trace, rates: Rates | None = None) -> Comparison:
    """Replay a trace both ways and compare. Raises TraceError, as `tasks.build` does."""
    rates = rates or Rates()
    spans = []
    for in_order in (True, False):
        replay = build(trace, rates, in_order=in_order)
        begin = origin_ns(replay)
        at = phase(trace, begin, rates)
        if in_order:
            line = run_in_order(replay, rates, at)
        else:
            line = run(replay.tasks, replay.prices, rates, Options(phase=at))
        spans.append(span(replay, line, begin))
    return Comparison(trace.name, tuple(rows(trace, replay.prices, rates)), *spans)


def span(replay: Replay, line: Timeline, origin: float) -> Span:
    """The span of a timeline beside the trace's, and the steps of its critical path."""
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
        if link.kind == DMA_START and record.dma is not None and _first_in_queue(record, replay.records):
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


# Instruction by instruction.


@dataclass
class _Samples:
    prices: list[AnyPrice] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    issues: list[float] = field(default_factory=list)


def rows(trace: Trace, prices: Sequence[AnyPrice], rates: Rates) -> Iterator[Row]:
    """The kinds of instructions of a trace, in the order of their first appearance."""
    found: dict[tuple[str, ...], _Samples] = defaultdict(_Samples)
    records = trace.records
    for task, (before, record, after) in enumerate(zip((None, *records), records, (*records[1:], None), strict=False)):
        before = before if before is not None and before.engine == record.engine else None
        after = after if after is not None and after.engine == record.engine else None
        measured = _dma(record, records) if record.dma is not None else _instruction(record, before, trace)
        issue = _issue(record, after, trace)
        for state, latency in measured:
            samples = found[(record.opcode, record.engine, *_operands(record), state)]
            samples.prices.append(prices[task])
            samples.latencies.append(latency)
            if issue is not None and state != ALONE:
                samples.issues.append(issue)
    for key, samples in found.items():
        latency_ns, issue_ns = _predicted(samples.prices[0], key[1], key[-1], rates)
        seen_issue = median(samples.issues) if samples.issues else None
        seen = len(samples.latencies), median(samples.latencies), latency_ns, seen_issue
        yield Row(*key, *seen, None if key[-1] == ALONE else issue_ns)


def _operands(record: Record) -> tuple[str, str, str]:
    """(memory, dtype, N) of a row."""
    if record.dma is not None:
        dma = record.dma
        sizes = f"{dma.src_bytes}" + (f"->{dma.dst_bytes}" if dma.src_bytes != dma.dst_bytes else "")
        return f"{dma.queue} {'load' if dma.load else 'store'}", "", f"{dma.count} x {sizes} B"
    assert record.src is not None
    assert record.dst is not None
    kinds = DTYPES[record.src.dtype].short, DTYPES[record.dst.dtype].short
    elems = max(prod(record.src.counts), prod(record.dst.counts))
    pointer = " ptr" * bool(record.pointers)
    return _memory(record.src) + pointer, kinds[0] if kinds[0] == kinds[1] else "->".join(kinds), str(elems)


def _memory(operand: Operand) -> str:
    return "psum" if operand.psum else "sbuf"


def _instruction(record: Record, before: Record | None, trace: Trace) -> Iterator[tuple[str, float]]:
    """(state, LAT) of an instruction, unless the throttle changed under it."""
    if record.matmul is None:
        yield "cold" if before is None or _waited(record) else "warm", record.end_ns - record.start_ns
        return
    rate = _rate(record.start_ns, record.end_ns, trace)
    if rate is None:
        return
    if _dry(record) and record.matmul.load_ns is not None:
        yield f"cold {rate}", record.end_ns - record.matmul.load_ns
    else:
        yield f"warm {rate}", record.end_ns - record.start_ns


def _dma(record: Record, records: Sequence[Record]) -> Iterator[tuple[str, float]]:
    """(state, LAT) of a DMA: to its first packets, if its queue was empty; to its end, if it met no other DMA."""
    dma, start = record.dma, record.start_ns
    assert dma is not None
    others = [other for other in records if other.dma is not None and other is not record]
    if _first_in_queue(record, records):
        yield FIRST_PACKET, dma.arrival_ns - start
    if all(other.done_ns <= start or dma.end_ns <= other.start_ns for other in others):
        yield ALONE, dma.end_ns - start


def _first_in_queue(record: Record, records: Sequence[Record]) -> bool:
    """Whether a DMA's queue was empty when it was issued."""
    earlier = [other for other in records if other.engine == record.engine and other.start_ns < record.start_ns]
    return record.dma is not None and all(other.done_ns <= record.start_ns for other in earlier if other.dma is not None)


def _rate(begin: float, end: float, trace: Trace) -> str | None:
    """The throttle's state; None if it changed meanwhile."""
    full = False
    for time, state in trace.throttle:
        if begin < time < end:
            return None
        full = state if time <= begin else full
    return "8/8" if full else "4/8"


def _waited(record: Record) -> bool:
    """Whether a semaphore held an instruction up last."""
    return record.satisfied_ns is not None and record.start_ns - record.satisfied_ns < _WAITED_NS


def _dry(record: Record) -> bool:
    """Whether a matmul found the array without work."""
    matmul = record.matmul
    return matmul is not None and matmul.load_ns is not None and record.start_ns - matmul.load_ns < _DRY_LOAD_NS


def _issue(record: Record, after: Record | None, trace: Trace) -> float | None:
    """To the start of the next instruction, unless something else held it up; the issue of a hardware queue's DMA."""
    if record.dma is not None and record.dma.queue == "hwdge":
        return record.end_ns - record.start_ns
    if after is None or _waited(after) or (record.dma is None) != (after.dma is None):
        return None
    if record.dma is not None and (after.satisfied_ns or 0.0) > record.start_ns:
        return None
    if record.matmul is not None and (_dry(record) or _dry(after) or not _rate(record.start_ns, after.end_ns, trace)):
        return None
    return after.start_ns - record.start_ns


def _predicted(price: AnyPrice, engine: str, state: str, rates: Rates) -> tuple[float, float]:
    """(LAT, ISSUE) that the model gives to an instruction: by a run of it after a wait, and of a second one behind."""
    tasks = Tasks()
    tasks.add(0, "gpsimd", is_dma=False, source=None)
    prices: list[AnyPrice] = [Price(_APART_NS, _APART_NS, "", frozenset())]
    is_dma = isinstance(price, DmaPrice)
    for _ in range(1 if is_dma else 2):
        tasks.add(0, engine, is_dma=is_dma, source=None)
        prices.append(price)
    tasks.wait(1, 0)
    line = run(tasks, prices, rates, Options(throttle=not state.endswith("8/8")))
    if state == FIRST_PACKET:
        return line.arrival[1] - line.start[1], line.free[1] - line.start[1]
    chosen = 2 if state == "warm" else 1
    begin = line.ready[1] if isinstance(price, TensorPrice) and state.startswith("cold") else line.start[chosen]
    return line.visible[chosen] - begin, line.free[chosen] - line.start[chosen]
