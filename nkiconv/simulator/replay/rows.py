"""A trace's instructions by kind: measured times, and the model's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import median

from ..dtypes import DTYPES
from ..timeline import Options, Tasks, run
from ..timing import AnyPrice, DmaPrice, Price, Rates, TensorPrice
from .records import Operand, Record, Trace

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
    seen_latency_ns: float
    latency_ns: float
    seen_issue_ns: float | None
    issue_ns: float | None

    @property
    def latency_error(self) -> float | None:
        return error(self.latency_ns, self.seen_latency_ns)

    @property
    def issue_error(self) -> float | None:
        return error(self.issue_ns, self.seen_issue_ns)


def error(predicted: float | None, seen: float | None) -> float | None:
    """Relative error of a prediction; None without one or without anything to compare it with."""
    return None if predicted is None or not seen else predicted / seen - 1.0


#: What one row's instructions share: its texts up to `state`, and their price.
_Kind = tuple[tuple[str, str, str, str, str, str], AnyPrice]


@dataclass
class _Samples:
    latencies: list[float] = field(default_factory=list)
    issues: list[float] = field(default_factory=list)


def rows(trace: Trace, prices: Sequence[AnyPrice], rates: Rates) -> Iterator[Row]:
    """The kinds of instructions of a trace, in the order of their first appearance."""
    found: dict[_Kind, _Samples] = defaultdict(_Samples)
    records = trace.records
    neighbours = zip((None, *records[:-1]), records, (*records[1:], None), prices, strict=True)
    for before, record, after, price in neighbours:
        before = before if before is not None and before.engine == record.engine else None
        after = after if after is not None and after.engine == record.engine else None
        measured = _dma(record, records) if record.dma is not None else _instruction(record, before, trace)
        issue = _issue(record, after, trace)
        for state, latency in measured:
            samples = found[(record.opcode, record.engine, *_operands(record), state), price]
            samples.latencies.append(latency)
            if issue is not None and state != ALONE:
                samples.issues.append(issue)
    for (texts, price), samples in found.items():
        latency_ns, issue_ns = _predicted(price, texts[1], texts[-1], rates)
        yield Row(
            *texts,
            count=len(samples.latencies),
            seen_latency_ns=median(samples.latencies),
            latency_ns=latency_ns,
            seen_issue_ns=median(samples.issues) if samples.issues else None,
            issue_ns=issue_ns if samples.issues else None,
        )


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
    if first_in_queue(record, records):
        yield FIRST_PACKET, dma.arrival_ns - start
    if all(other.done_ns <= start or dma.end_ns <= other.start_ns for other in others):
        yield ALONE, dma.end_ns - start


def first_in_queue(record: Record, records: Sequence[Record]) -> bool:
    """Whether a DMA's queue was empty when it was issued."""
    earlier = [other for other in records if other.engine == record.engine and other.start_ns < record.start_ns]
    return record.dma is not None and all(
        other.done_ns <= record.start_ns for other in earlier if other.dma is not None
    )


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
    """(LAT, ISSUE) that the model gives to an instruction: by a run of it after a wait, and of one after it."""
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
