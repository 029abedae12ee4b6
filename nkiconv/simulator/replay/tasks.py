"""Turns a trace's records into tasks with the model's own prices.

A record becomes an instruction of the simulator, with operands of the same dtypes, memories, shapes and strides, and is
priced like any other; no figure of the trace goes into a price, except where `dmas_as_seen` is asked for. Its waits are
those of its semaphores. On-chip memory is allocated already, so tasks have no tiles.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from .. import hardware as hw
from ..memory import PRIVATE_HBM, PSUM, SBUF, MemoryRegion, Region, StorageInfo
from ..program import Instruction
from ..timeline import Options, Tasks, Timeline, run
from ..timing import AnyPrice, DmaPrice, Rates, price
from ..views import reach
from .records import Operand, Record, Trace, TraceError, Transfer

#: Ops of nki.isa by engine and opcode.
_OPS = {
    ("tensor", "MATMUL"): "nc_matmul",
    ("tensor", "TRANSPOSE"): "nc_transpose",
    ("vector", "COPY"): "tensor_copy",
    ("vector", "CAST"): "tensor_copy",
    ("vector", "TENSOR_SCALAR"): "tensor_scalar",
    ("vector", "TENSOR_REDUCE"): "tensor_reduce",
    ("vector", "RECIPROCAL"): "reciprocal",
    ("scalar", "COPY"): "tensor_copy",
    ("scalar", "CAST"): "tensor_copy",
    ("scalar", "ACTIVATE"): "activation",
}
#: Queue and work of a transfer whose time is taken from the trace.
_AS_SEEN, _NO_TIME_NS = "seen", 0.01
#: Types that stand for the bytes of a DMA's elements: only their sizes matter.
_BYTES = {1: "uint8", 2: "uint16", 4: "uint32"}


@dataclass(frozen=True)
class Replay:
    """A trace's records as tasks of the model; the three lists are parallel to each other and to the tasks."""

    records: tuple[Record, ...]
    tasks: Tasks
    prices: list[AnyPrice]


def build(trace: Trace, rates: Rates, *, in_order: bool) -> Replay:
    """The tasks of a trace.

    Args:
        in_order: nothing overtakes, as on the hardware: an instruction also waits for everything that those before it
            in its queue wait for, and for their start. Otherwise DMA triggers overtake what waits, as in the model's
            own kernels, except those without a wait: there the compiler relied on earlier ones, so they take theirs.

    Raises TraceError: an opcode that replay does not know, or a wait that nothing in the trace satisfies.
    """
    tasks, prices = Tasks(), []
    for index, record in enumerate(trace.records):
        made = instruction(record, index)
        tasks.add(0, record.engine, is_dma=record.dma is not None, source=made)
        prices.append(price(made, rates))
    producers = _Producers(trace.records)
    earlier: dict[str, set[int]] = defaultdict(set)
    last: dict[str, int] = {}
    for task, record in enumerate(trace.records):
        own = {producer for wait in record.waits for producer in producers.of(record, wait)}
        inherited = earlier[record.engine]
        if in_order or (record.dma is not None and not own):
            own |= inherited
        inherited |= own
        for producer in sorted(own):
            tasks.wait(task, producer)
        if in_order and record.engine in last:
            tasks.order(task, last[record.engine])
        if record.dma is None:
            last[record.engine] = task
    return Replay(trace.records, tasks, prices)


def run_in_order(replay: Replay, rates: Rates, phase: float) -> Timeline:
    """The timeline of tasks that were built in order.

    The scheduler heeds orders only where it may look ahead; as they chain a queue's tasks, a reach of two is program
    order, and holds for DMA triggers as well.
    """
    rates = Rates({**rates.overrides, "scheduling.lookahead_window": 2})
    return run(replay.tasks, replay.prices, rates, Options("lookahead", phase))


class _Producers:
    """Who brings a semaphore to a value: increments count in the order in which they were seen to happen."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._increments: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for task in sorted(range(len(records)), key=lambda task: records[task].done_ns):
            for number, by in records[task].increments:
                self._increments[number].append((by, task))

    def of(self, record: Record, wait: tuple[int, int]) -> list[int]:
        """The tasks that a wait is for: of each engine the last one whose increment counts."""
        number, needed = wait
        value, last = 0, {}
        for by, task in self._increments[number]:
            value += by
            last[self._records[task].engine] = task
            if value >= needed:
                if self._records[task].done_ns > record.done_ns:
                    raise TraceError(f"{record} waits for S[{number}] >= {needed}, which came true after its end")
                return list(last.values())
        raise TraceError(f"{record} waits for S[{number}] >= {needed}, and the trace brings it to {value}")


def instruction(record: Record, index: int = 0) -> Instruction:
    """A record as an instruction of the simulator. Raises TraceError for an opcode that replay does not know."""
    if record.dma is not None:
        writes, reads = _sides(record.dma)
        settings = {"dge_mode": record.dma.queue, "engine": record.engine}
        return Instruction(index, "dma", "dma_copy", (writes,), (reads,), settings, "", 0)
    op = _OPS.get((record.engine, record.opcode))
    if op is None or record.src is None or record.dst is None:
        raise TraceError(f"{record}: an opcode that replay does not know on this engine")
    params: dict[str, object] = {"op": record.function}
    if record.matmul is not None:
        params = {
            "contraction": record.matmul.contraction,
            "columns": record.matmul.columns,
            "moving_columns": prod(record.src.counts),
            "is_transpose": record.matmul.is_transpose,
        }
    reads_ = tuple(_reads(record.src, record))
    return Instruction(index, record.engine, op, (_view(record.dst, record.partitions),), reads_, params, "", 0)


def _reads(src: Operand, record: Record) -> Iterator[Region]:
    yield _view(src, record.partitions)
    for _ in range(record.pointers):
        yield _region((record.partitions, 1), (1, 1), "float32", SBUF)


def _view(operand: Operand, partitions: int) -> Region:
    """A view of a storage just large enough for it."""
    shape, strides = operand.counts[::-1], operand.strides[::-1]
    low, high = reach(shape, strides)
    step = high - low + 1
    return _region((partitions, *shape), (step, *strides), operand.dtype, PSUM if operand.psum else SBUF)


def _region(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, buffer: MemoryRegion, first: int = 0
) -> Region:
    rows = shape[0] if buffer is PRIVATE_HBM else hw.PARTITIONS
    info = StorageInfo("", (rows, strides[0]), dtype, buffer, "")
    return Region(info, dtype, shape, strides, first * strides[0])


def _sides(dma: Transfer) -> tuple[Region, Region]:
    """(dst, src) of a DMA: dense on chip, and in HBM in pieces of one element each."""
    small = min(dma.src_bytes, dma.dst_bytes)
    ratio, rest = divmod(max(dma.src_bytes, dma.dst_bytes), small)
    each, left = divmod(dma.count, max(1, dma.partitions))
    if ratio not in _BYTES or rest or left or not each:
        raise TraceError(
            f"a DMA of {dma.count} elements of {dma.src_bytes} to {dma.dst_bytes} B: no such pattern known"
        )
    shape = (dma.partitions, each, small)
    apart = small + 1
    sides = []
    for size, on_chip in ((dma.dst_bytes, dma.load), (dma.src_bytes, not dma.load)):
        dtype = _BYTES[size // small]
        if on_chip:
            sides.append(_region(shape, (each * small, small, 1), dtype, SBUF, dma.first_partition))
        else:
            sides.append(_region(shape, (each * apart, apart, 1), dtype, PRIVATE_HBM))
    return sides[0], sides[1]


def dmas_as_seen(replay: Replay, origin: float, rates: Rates, *, first_only: bool) -> Replay:
    """The same tasks with DMAs that take as long as they were seen to: a question about the rest of the model.

    Args:
        origin: the trace's time that is the replay's zero.
        first_only: only the DMAs that wait for nothing, which are issued when they were, too; else all.
    """
    prices = list(replay.prices)
    for task, record in enumerate(replay.records):
        found, dma = prices[task], record.dma
        waits = bool(replay.tasks.num_waits[task])
        if dma is None or not isinstance(found, DmaPrice) or (first_only and waits):
            continue
        prices[task] = dataclasses.replace(
            found,
            queue=_AS_SEEN,
            prepare_ns=found.prepare_ns if waits else record.start_ns - origin,
            issue_ns=found.issue_ns if dma.queue == "swdge" else record.end_ns - record.start_ns,
            first_packet_ns=dma.end_ns - record.start_ns - rates("dma.sem_write_ns") - _NO_TIME_NS,
            work_ns=(_NO_TIME_NS,) * len(found.work_ns),
            hbm_bytes=0,
            hbm_ns=0.0,
            payload_bytes=0,
        )
    return dataclasses.replace(replay, prices=prices)


def is_as_seen(found: AnyPrice) -> bool:
    """Whether a price is a DMA's measured time."""
    return isinstance(found, DmaPrice) and found.queue == _AS_SEEN


def origin_ns(replay: Replay) -> float:
    """The trace's time that is the replay's zero: when the first DMA's way to its issue began."""
    dmas = [task for task, record in enumerate(replay.records) if record.dma is not None]
    if not dmas:
        return min((record.start_ns for record in replay.records), default=0.0)
    first = min(dmas, key=lambda task: replay.records[task].start_ns)
    found = replay.prices[first]
    assert type(found) is DmaPrice
    return replay.records[first].start_ns - found.prepare_ns


def phase(trace: Trace, origin: float, rates: Rates) -> float:
    """Where in a throttle window the replay's zero lies (0 to 1): a grid line falls on the first change seen."""
    if not trace.throttle:
        return 0.0
    window = rates("throttle.window_ns")
    return (origin - trace.throttle[0][0]) / window % 1.0
