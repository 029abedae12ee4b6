"""Reads the JSON export of a hardware trace of one NeuronCore.

Only the kernel's own instructions count: those that carry a compiler's name, of the subgraph that has most of them.
Engines execute in the order of their program counters. EVENT_SEMAPHORE and NOP are waits of the instruction after them,
and ACT_TABLE_LOAD is left to the model: the cost of these three by themselves is not modelled.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import operands
from .records import Matmul, Record, Trace, TraceError, Transfer

#: Required sections of a trace.
SECTIONS = ("instruction", "dma", "dma_queues_info", "semaphore_update", "ham")
#: Engines by the label of their instructions.
_LABELS = {
    "Tensor": "tensor", "TensorMatrix": "tensor", "Vector": "vector", "Scalar": "scalar", "GpSimd": "gpsimd",
    "Sync": "sync",
}  # fmt: skip
_ONLY_WAITS = ("EVENT_SEMAPHORE", "NOP", "ACT_TABLE_LOAD")
_DMA = "DMA_DIRECT2D"
#: dge modes of nki.isa by a trace's kinds of queue.
_QUEUES = {"software_dynamic": "swdge", "hardware_dynamic": "hwdge", "static": "none"}
#: Bytes of the packet with which a DMA engine says that its share of a transfer is done.
_SEMAPHORE_BYTES = 4

_Row = dict[str, Any]


def read_trace(path: Path) -> Trace:
    """The trace in a file. Raises TraceError: it is none, lacks a section or a field, or contradicts itself."""
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise TraceError(f"{path}: not a trace: no JSON ({error})") from None
    try:
        return _trace(path.stem, document)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except KeyError as error:
        raise TraceError(f"{path}: an entry of the trace lacks {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{path}: an entry of the trace is not as expected: {error}") from None


def _trace(name: str, document: Any) -> Trace:
    if not isinstance(document, dict) or "instruction" not in document:
        raise TraceError("not a trace: it has no instructions")
    missing = [section for section in SECTIONS if not isinstance(document.get(section), list)]
    if missing:
        raise TraceError(f"lacks the section{'s' * (len(missing) > 1)} {', '.join(missing)}")
    body = [row for row in document["instruction"] if row["bir_instruction_name"]]
    if not body:
        raise TraceError("not a trace of a kernel: no instruction has a compiler's name")
    subgraph = Counter(row["subgraph"] for row in body).most_common(1)[0][0]
    queues: dict[str, list[_Row]] = defaultdict(list)
    for row in sorted((row for row in body if row["subgraph"] == subgraph), key=lambda row: row["pc"]):
        if row["label"] not in _LABELS:
            raise TraceError(f"unknown engine {row['label']!r}")
        queues[_LABELS[row["label"]]].append(row)
    semaphores = _Semaphores(_of(document["semaphore_update"], subgraph))
    records: list[Record] = []
    for engine in dict.fromkeys(_LABELS.values()):
        rows = queues[engine]
        triggers = [row for row in rows if row["opcode"] == _DMA]
        packets = _transfers(document, subgraph, triggers) if triggers else []
        records += _records(engine, rows, packets, semaphores)
    throttle = [(float(row["timestamp"]), row["k"] == row["n"]) for row in _of(document["ham"], subgraph)]
    return Trace(name, tuple(records), tuple(sorted(throttle)))


def _of(rows: Iterable[_Row], subgraph: str) -> list[_Row]:
    return [row for row in rows if row["subgraph"] == subgraph]


class _Semaphores:
    """When each semaphore first reached a value."""

    def __init__(self, rows: Iterable[_Row]) -> None:
        self._highest: dict[int, list[int]] = defaultdict(list)
        self._times: dict[int, list[float]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["timestamp"]):
            number, value = operands.semaphore(row["id"]), row["value"]
            highest = self._highest[number]
            if not highest or value > highest[-1]:
                highest.append(value)
                self._times[number].append(float(row["timestamp"]))

    def satisfied_ns(self, waits: Sequence[tuple[int, int]]) -> float | None:
        """When the last of the waits came true, as far as it was seen."""
        latest = None
        for number, value in waits:
            at = bisect_left(self._highest[number], value)
            if at < len(self._times[number]):
                latest = max(latest or 0.0, self._times[number][at])
        return latest


def _records(engine: str, rows: list[_Row], transfers: list[Transfer], semaphores: _Semaphores) -> list[Record]:
    """An engine's queue: loads joined with their matmuls, passes with each other, waits with the next instruction."""
    records: list[Record] = []
    waits: tuple[tuple[int, int], ...] = ()
    loads: list[_Row] = []
    passes: list[_Row] = []
    coming = iter(transfers)
    for row in rows:
        opcode, text = row["opcode"], row["operands"]
        waits += operands.waits(text)
        if opcode in _ONLY_WAITS:
            continue
        if opcode == "LDWEIGHTS":
            loads = [*loads, row] if passes else [row]
            continue
        if opcode == "MATMUL":
            passes.append(row)
            if not _follows(loads, passes):
                raise TraceError(f"the MATMUL at pc {row['pc']} does not follow its LDWEIGHTS")
            if _first_of_two(loads[-1]["operands"]):
                continue
            records.append(_matmul(loads, passes, waits, semaphores))
            passes = []  # the load may serve further matmuls
        else:
            dma = next(coming) if opcode == _DMA else None
            records.append(_record(engine, row, waits, semaphores, dma))
        waits = ()
    return records


def _follows(loads: list[_Row], passes: list[_Row]) -> bool:
    """Whether each pass has its load; only matmuls of one pass share one."""
    if not loads:
        return False
    if len(passes) > 1:
        return len(loads) == len(passes) and operands.setting("fp32_mode", loads[-1]["operands"]) == "HIGH"
    return operands.setting("fp32_mode", loads[-1]["operands"]) != "HIGH"


def _first_of_two(load: str) -> bool:
    """Whether a matmul with this load is the first of two passes of an fp32 matmul."""
    return operands.setting("fp32_mode", load) == "LOW" and operands.setting("transpose_mode", load) != "ENABLED"


def _end(row: _Row) -> float:
    return float(row["timestamp"] + row["duration"])


def _matmul(
    loads: list[_Row], passes: list[_Row], waits: tuple[tuple[int, int], ...], semaphores: _Semaphores
) -> Record:
    load, text = loads[0], passes[0]["operands"]
    rows, columns = operands.array_size(text)
    transpose = operands.setting("transpose_mode", load["operands"]) == "ENABLED"
    loaded = load["pc"] == passes[0]["pc"] - 1
    return Record(
        "tensor",
        "TRANSPOSE" if transpose else "MATMUL",
        passes[0]["pc"],
        waits,
        sum((operands.increments(row["operands"]) for row in passes), ()),
        semaphores.satisfied_ns(waits),
        float(passes[0]["timestamp"]),
        _end(passes[-1]),
        operands.view("dst", text),
        operands.view("src", text),
        rows,
        matmul=Matmul(rows, columns, transpose, float(load["timestamp"]) if loaded else None),
    )


def _record(
    engine: str, row: _Row, waits: tuple[tuple[int, int], ...], semaphores: _Semaphores, dma: Transfer | None
) -> Record:
    text = row["operands"]
    record = Record(
        engine,
        row["opcode"],
        row["pc"],
        waits,
        operands.increments(text),
        semaphores.satisfied_ns(waits),
        float(row["timestamp"]),
        _end(row),
        dma=dma,
    )
    if dma is not None:
        return record
    if operands.setting("accumulator_cmd", text) not in ("", "IDLE"):
        raise TraceError(f"{record}: a use of the accumulator, which replay does not know")
    return dataclasses.replace(
        record,
        dst=operands.view("dst", text),
        src=operands.view("src", text),
        partitions=operands.number_of("channels", text),
        pointers=operands.pointers(text),
        function=row["activation_fn"].lower(),
    )


def _transfers(document: _Row, subgraph: str, triggers: list[_Row]) -> list[Transfer]:
    """The transfers of an engine's triggers: their packets are those of the engine's queue, first in, first out."""
    label = triggers[0]["label"]
    names = {row["q_name"]: str(row["q_idx"]) for row in _of(document["dma_queues_info"], subgraph)}
    queues = [index for name, index in names.items() if name.startswith(f"q{label}") and "Dynamic" in name]
    packets = [row for row in _of(document["dma"], subgraph) if str(row["dma_queue"]) in queues]
    kinds = {row["queue_type"] for row in packets}
    if len(queues) != 1 or len(kinds) != 1 or not kinds <= set(_QUEUES):
        raise TraceError(f"{label} triggers DMAs; queues of its own: {queues or 'none'}, of kinds {sorted(kinds)}")
    shares = _shares(label, packets, len(triggers))
    return [_transfer(row, _QUEUES[min(kinds)], share) for row, share in zip(triggers, shares, strict=True)]


def _shares(label: str, packets: list[_Row], count: int) -> list[tuple[float, float]]:
    """(start of the last engine's first packet, end of the last packet) of each transfer of a queue."""
    by_engine: dict[str, list[_Row]] = defaultdict(list)
    for row in sorted(packets, key=lambda row: (row["timestamp"], _end(row))):
        by_engine[row["dma_engine"]].append(row)
    arrivals, ends = [0.0] * count, [0.0] * count
    for engine, rows in by_engine.items():
        done, begun = 0, False
        for row in rows:
            if done == count:
                raise TraceError(f"{label} triggers {count} DMAs, and DMA engine {engine} moved more")
            if not begun:
                arrivals[done] = max(arrivals[done], float(row["timestamp"]))
            ends[done] = max(ends[done], _end(row))
            begun = row["transfer_size"] != _SEMAPHORE_BYTES
            done += not begun
        if done != count or begun:
            raise TraceError(f"{label} triggers {count} DMAs, and DMA engine {engine} ended {done} of them")
    return list(zip(arrivals, ends, strict=True))


def _transfer(row: _Row, queue: str, share: tuple[float, float]) -> Transfer:
    text = row["operands"]
    src, dst = operands.pattern("src", text), operands.pattern("dst", text)
    load = "sbuf_write_bytes" in row
    if load == ("sbuf_read_bytes" in row) or src.elements != dst.elements:
        raise TraceError(f"the DMA at pc {row['pc']} is neither a load nor a store, element by element")
    chip = dst if load else src
    return Transfer(
        queue, load, src.element_bytes, dst.element_bytes, src.elements, chip.first_partition, chip.partitions, *share
    )
