"""A timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing load.

One process a core. Tracks: the engines, the DMA queues (a transfer's wait for its first packet and its flow), the PSUM
banks (which tile has one), and the throttle's state; counters for SBUF and PSUM use; arrows for what a start waited for
last. Times are us from the first DMA issue, and modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import hardware as hw
from ..memory import Region
from ..timeline import ENGINES, Tasks, Timeline
from ..timing import DmaPrice, TensorPrice
from .profile import Timed
from .usage import cause

_QUEUE_TRACK = 100
_BANK_TRACK = 200
_THROTTLE_TRACK = 300


def trace(timed: Timed) -> dict[str, Any]:
    """Chrome-trace JSON of a timed kernel."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"kernel": timed.kernel, "time": "modelled, not measured", "order": timed.line.options.order},
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


def _names(timed: Timed) -> Iterator[dict[str, Any]]:
    def named(what: str, core: int, track: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": core, "tid": track, "args": {"name": name}}

    for core in range(timed.tasks.num_cores):
        yield named("process_name", core, 0, f"core {core} (modelled)")
        for code, engine in enumerate(ENGINES):
            yield named("thread_name", core, code, engine)
        yield named("thread_name", core, _THROTTLE_TRACK, "tensor rate")
        for bank in range(hw.PSUM_BANKS):
            yield named("thread_name", core, _BANK_TRACK + bank, f"PSUM bank {bank}")
    for (number, queue), track in queue_tracks(timed).items():
        core, code = divmod(number, len(ENGINES))
        yield named("thread_name", core, track, f"DMA {ENGINES[code]} {queue}")


def _describe(region: Region) -> str:
    return f"{list(region.shape)} {region.dtype} in {region.info.buffer.name}"


def _arguments(timed: Timed, task: int) -> dict[str, Any]:
    source, price, line = timed.tasks.source[task], timed.prices[task], timed.line
    found: dict[str, Any] = {
        "line": f"{source.file}:{source.line}",
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
    line, tracks = timed.line, queue_tracks(timed)
    for task, price in enumerate(timed.prices):
        core, track = divmod(timed.tasks.engine[task], len(ENGINES))
        source = timed.tasks.source[task]
        start, arguments = line.start[task], _arguments(timed, task)
        yield _slice(timed, core, track, source.op, start, line.free[task], arguments)
        if type(price) is DmaPrice:
            queue = tracks[timed.tasks.engine[task], price.queue]
            way = "load" if source.writes[0].info.on_chip else "store"
            yield _slice(timed, core, queue, way, line.arrival[task], line.visible[task], arguments)
    for engine, begin, end, table in line.table_loads:
        core, track = divmod(engine, len(ENGINES))
        yield _slice(timed, core, track, f"load table {table}", begin, end, {})


def _slice(timed: Timed, core: int, track: int, name: str, begin: float, end: float, arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": core, "tid": track, "ts": _us(timed, begin),
        "dur": round((end - begin) / 1e3, 6), "args": arguments,
    }  # fmt: skip


def _arrows(timed: Timed) -> Iterator[dict[str, Any]]:
    """From each task to those whose start it was the last to allow."""
    tasks, line = timed.tasks, timed.line
    tracks = queue_tracks(timed)
    for task in range(len(tasks)):
        producer = line.ready_by[task]
        if producer < 0:
            continue
        source = timed.prices[producer]
        core, track = divmod(tasks.engine[producer], len(ENGINES))
        at = line.start[producer]
        if type(source) is DmaPrice:
            track, at = tracks[tasks.engine[producer], source.queue], line.arrival[producer]
        yield {"ph": "s", "id": task, "name": "wait", "cat": "wait", "pid": core, "tid": track, "ts": _us(timed, at)}
        core, track = divmod(tasks.engine[task], len(ENGINES))
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
    """PSUM tiles in banks, first fit: the allocator counts room and assigns no addresses."""
    tasks = timed.tasks
    free = [[0.0] * hw.PSUM_BANKS for _ in range(tasks.num_cores)]
    for tile, begin, end in tile_spans(tasks, timed.line, psum=True):
        info = tasks.tiles[tile]
        needed = -(-info.bytes_per_partition // hw.PSUM_BANK_BYTES_PER_PARTITION)
        banks = free[info.core]
        chosen = [bank for bank in range(hw.PSUM_BANKS) if banks[bank] <= begin][:needed]
        for bank in chosen:
            banks[bank] = end
            arguments = {"bytes per partition": info.bytes_per_partition}
            yield _slice(timed, info.core, _BANK_TRACK + bank, f"tile {tile}", begin, end, arguments)


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
