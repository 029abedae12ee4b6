"""A timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing load.

One process a core. Tracks: the engines, their DMA issues (which overlap instructions), the DMA queues (each transfer
while it is at the head of its queue), the PSUM banks (which tile has one), and the throttle's state; counters for SBUF
and PSUM use; arrows from the event that a start waited for last. Slices of one track never overlap. Times are us from
the first DMA issue, and modelled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import hardware as hw
from ..memory import Region
from ..timeline import ENGINES, Tasks, Timeline
from ..timing import DmaPrice, TensorPrice
from .timed import Timed
from .usage import cause

_ISSUE_TRACK = 50
_QUEUE_TRACK = 100
_BANK_TRACK = 200
_THROTTLE_TRACK = 90


def trace(timed: Timed, title: str = "") -> dict[str, Any]:
    """Chrome-trace JSON of a timed kernel; title: for example a case and its shape."""
    options = timed.line.options
    about = {"kernel": timed.kernel, "title": title or timed.kernel, "time": f"{hw.CONSTANTS.modelled}, not measured"}
    return {
        "displayTimeUnit": "ns",
        "otherData": {**about, "order": options.order, "phase": options.phase},
        "traceEvents": [*_names(timed), *_slices(timed), *_arrows(timed), *_banks(timed), *_states(timed)],
    }


def _us(timed: Timed, ns: float) -> float:
    return round((ns - timed.line.begin_ns) / 1e3, 6)


def queue_tracks(timed: Timed) -> dict[tuple[int, str], int]:
    """Track of each DMA queue, by (engine, kind of queue)."""
    found: dict[tuple[int, str], int] = {}
    for task, price in enumerate(timed.prices):
        if type(price) is DmaPrice:
            found.setdefault((timed.tasks.engine[task], price.queue), _QUEUE_TRACK + len(found))
    return found


def _named(what: str, core: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": core, "tid": track, "args": {"name": name}}


def _names(timed: Timed) -> Iterator[dict[str, Any]]:
    for core in range(timed.tasks.num_cores):
        yield _named("process_name", core, 0, f"core {core} (modelled)")
        for code, engine in enumerate(ENGINES):
            yield _named("thread_name", core, code, engine)
            yield _named("thread_name", core, _ISSUE_TRACK + code, f"{engine} DMA issue")
        yield _named("thread_name", core, _THROTTLE_TRACK, "tensor rate")
        for bank in range(hw.PSUM_BANKS):
            yield _named("thread_name", core, _BANK_TRACK + bank, f"PSUM bank {bank}")
    for (number, queue), track in queue_tracks(timed).items():
        core, code = divmod(number, len(ENGINES))
        yield _named("thread_name", core, track, f"DMA {ENGINES[code]} {queue}")


@functools.lru_cache(maxsize=1024)
def _from(here: Path, file: str) -> str:
    """A source file's path from the folder `here`; elsewhere its folder and name, since traces are passed around."""
    path = Path(file)
    return (path.relative_to(here) if path.is_relative_to(here) else Path(*path.parts[-2:])).as_posix()


def _describe(region: Region) -> str:
    return f"{list(region.shape)} {region.dtype} in {region.info.buffer.name}"


def _arguments(timed: Timed, task: int, here: Path) -> dict[str, Any]:
    source, price, line = timed.tasks.source[task], timed.prices[task], timed.line
    found: dict[str, Any] = {
        "line": f"{_from(here, source.file)}:{source.line}",
        "writes": [_describe(region) for region in source.writes],
        "reads": [_describe(region) for region in source.reads],
        "bytes": source.bytes,
        "waited for": cause(task, timed.tasks, timed.prices, line),
        "visible_us": _us(timed, line.visible[task]),
    }
    if type(price) is TensorPrice:
        found["flops"] = price.flops
    if type(price) is DmaPrice:
        found["elements"] = [f"{count} x {size:g} B" for size, count in price.elements]
    return found


def _slices(timed: Timed) -> Iterator[dict[str, Any]]:
    line, flows = timed.line, flow_begins(timed)
    tracks, here = queue_tracks(timed), Path.cwd()
    for task, price in enumerate(timed.prices):
        core, track = divmod(timed.tasks.engine[task], len(ENGINES))
        source = timed.tasks.source[task]
        arguments = _arguments(timed, task, here)
        if type(price) is DmaPrice:
            queue = tracks[timed.tasks.engine[task], price.queue]
            way = "load" if source.writes[0].info.on_chip else "store"
            yield _slice(timed, core, queue, way, flows[task], line.visible[task], arguments)
            track += _ISSUE_TRACK
        yield _slice(timed, core, track, source.op, line.start[task], line.free[task], arguments)
    for engine, begin, end, table in line.table_loads:
        core, track = divmod(engine, len(ENGINES))
        yield _slice(timed, core, track, f"load table {table}", begin, end, {})


def flow_begins(timed: Timed) -> dict[int, float]:
    """When each DMA came to the head of its queue, in ns: its first packet, or the end of the transfer before it."""
    last: dict[tuple[int, str], float] = {}
    found = {}
    transfers = [task for task, price in enumerate(timed.prices) if type(price) is DmaPrice]
    for task in sorted(transfers, key=lambda t: timed.line.visible[t]):
        price = timed.prices[task]
        assert type(price) is DmaPrice
        queue = (timed.tasks.engine[task], price.queue)
        found[task] = max(timed.line.arrival[task], last.get(queue, 0.0))
        last[queue] = timed.line.visible[task]
    return found


def _slice(timed: Timed, core: int, track: int, name: str, begin: float, end: float, arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": core, "tid": track, "ts": _us(timed, begin),
        "dur": round((end - begin) / 1e3, 6), "args": arguments,
    }  # fmt: skip


def _arrows(timed: Timed) -> Iterator[dict[str, Any]]:
    """From each task to those whose start it was the last to allow."""
    tasks, line = timed.tasks, timed.line
    tracks, flows = queue_tracks(timed), flow_begins(timed)
    for task in range(len(tasks)):
        producer = line.ready_by[task]
        if producer < 0:
            continue
        source = timed.prices[producer]
        core, track = divmod(tasks.engine[producer], len(ENGINES))
        at = line.start[producer]
        if type(source) is DmaPrice:
            track, at = tracks[tasks.engine[producer], source.queue], flows[producer]
        yield {"ph": "s", "id": task, "name": "wait", "cat": "wait", "pid": core, "tid": track, "ts": _us(timed, at)}
        core, track = divmod(tasks.engine[task], len(ENGINES))
        track += _ISSUE_TRACK if tasks.is_dma[task] else 0
        at = line.start[task]
        yield {
            "ph": "f", "bp": "e", "id": task, "name": "wait", "cat": "wait", "pid": core, "tid": track,
            "ts": _us(timed, at),
        }  # fmt: skip


def tile_spans(tasks: Tasks, line: Timeline, psum: bool) -> list[tuple[int, float, float]]:
    """(tile, first use, last use in ns) of the tiles of one memory, by first use."""
    ends = [0.0] * len(tasks.tiles)
    for task, touched in enumerate(tasks.touches):
        for tile in touched:
            ends[tile] = max(ends[tile], line.visible[task])
    spans = [(i, line.start[tile.first_task], ends[i]) for i, tile in enumerate(tasks.tiles) if tile.psum == psum]
    return sorted(spans, key=lambda span: span[1])


def _banks(timed: Timed) -> Iterator[dict[str, Any]]:
    """PSUM tiles in banks, first fit: the allocator counts room and assigns no addresses.

    Tiles that share a bank with others get tracks beyond the banks'.
    """
    tasks = timed.tasks
    free: list[list[float]] = [[] for _ in range(tasks.num_cores)]
    for tile, begin, end in tile_spans(tasks, timed.line, psum=True):
        info = tasks.tiles[tile]
        needed = -(-info.bytes_per_partition // hw.PSUM_BANK_BYTES_PER_PARTITION)
        lanes = free[info.core]
        chosen = [lane for lane, at in enumerate(lanes) if at <= begin][:needed]
        while len(chosen) < needed:
            chosen.append(len(lanes))
            lanes.append(0.0)
        for lane in chosen:
            lanes[lane] = end
            arguments = {"bytes per partition": info.bytes_per_partition}
            yield _slice(timed, info.core, _BANK_TRACK + lane, f"tile {tile}", begin, end, arguments)
    for core, lanes in enumerate(free):
        for lane in range(hw.PSUM_BANKS, len(lanes)):
            yield _named("thread_name", core, _BANK_TRACK + lane, "PSUM, shares a bank")


def _states(timed: Timed) -> Iterator[dict[str, Any]]:
    line = timed.line
    for core, changes in enumerate(line.throttle_changes):
        ends = [time for time, _ in changes[1:]] + [line.end_ns]
        for (time, fast), end in zip(changes, ends, strict=True):
            if end > time:
                name = "8/8" if fast else "4/8"
                yield _slice(timed, core, _THROTTLE_TRACK, name, time, end, {})
    for name, spaces in (("SBUF", line.sbuf), ("PSUM", line.psum)):
        for core, space in enumerate(spaces):
            for time, used in space.history:
                yield {
                    "ph": "C", "pid": core, "name": f"{name} bytes per partition", "ts": _us(timed, time),
                    "args": {"used": used},
                }  # fmt: skip
