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
from ..timeline import ENGINES
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
        "traceEvents": list(_Events(timed).all()),
    }


def _named(what: str, core: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": core, "tid": track, "args": {"name": name}}


@functools.lru_cache(maxsize=1024)
def _from(here: Path, file: str) -> str:
    """A source file's path from the folder `here`; elsewhere its folder and name, since traces are passed around."""
    path = Path(file)
    return (path.relative_to(here) if path.is_relative_to(here) else Path(*path.parts[-2:])).as_posix()


def _describe(region: Region) -> str:
    return f"{list(region.shape)} {region.dtype} in {region.info.buffer.name}"


class _Events:
    """The events of one timed kernel."""

    def __init__(self, timed: Timed) -> None:
        self.tasks, self.prices, self.line = timed.tasks, timed.prices, timed.line
        #: the queue of each DMA: (engine, kind of queue), the tracks of queues, and when each DMA came to the head of
        #: its queue, in ns: its first packet, or the end of the transfer before it
        self.queues = {
            task: (self.tasks.engine[task], price.queue)
            for task, price in enumerate(self.prices)
            if type(price) is DmaPrice
        }
        self.tracks = {queue: _QUEUE_TRACK + i for i, queue in enumerate(dict.fromkeys(self.queues.values()))}
        self.heads: dict[int, float] = {}
        last: dict[tuple[int, str], float] = {}
        for task in sorted(self.queues, key=lambda t: self.line.visible[t]):
            queue = self.queues[task]
            self.heads[task] = max(self.line.arrival[task], last.get(queue, 0.0))
            last[queue] = self.line.visible[task]

    def all(self) -> Iterator[dict[str, Any]]:
        """Names of tracks, slices, arrows, banks, states."""
        for part in (self._names, self._slices, self._arrows, self._banks, self._states):
            yield from part()

    def _us(self, ns: float) -> float:
        return round((ns - self.line.begin_ns) / 1e3, 6)

    def _place(self, task: int) -> tuple[int, int]:
        """Core and track of an instruction, or of a DMA's issue."""
        core, code = divmod(self.tasks.engine[task], len(ENGINES))
        return core, code + (_ISSUE_TRACK if self.tasks.is_dma[task] else 0)

    def _slice(self, core: int, track: int, name: str, begin: float, end: float, arguments: Any) -> dict[str, Any]:
        return {
            "ph": "X", "name": name, "pid": core, "tid": track, "ts": self._us(begin),
            "dur": round((end - begin) / 1e3, 6), "args": arguments,
        }  # fmt: skip

    def _names(self) -> Iterator[dict[str, Any]]:
        for core in range(self.tasks.num_cores):
            yield _named("process_name", core, 0, f"core {core} (modelled)")
            for code, engine in enumerate(ENGINES):
                yield _named("thread_name", core, code, engine)
                yield _named("thread_name", core, _ISSUE_TRACK + code, f"{engine} DMA issue")
            yield _named("thread_name", core, _THROTTLE_TRACK, "tensor rate")
            for bank in range(hw.PSUM_BANKS):
                yield _named("thread_name", core, _BANK_TRACK + bank, f"PSUM bank {bank}")
        for (number, queue), track in self.tracks.items():
            core, code = divmod(number, len(ENGINES))
            yield _named("thread_name", core, track, f"DMA {ENGINES[code]} {queue}")

    def _arguments(self, task: int, here: Path) -> dict[str, Any]:
        source, price = self.tasks.source[task], self.prices[task]
        found: dict[str, Any] = {
            "line": f"{_from(here, source.file)}:{source.line}",
            "writes": [_describe(region) for region in source.writes],
            "reads": [_describe(region) for region in source.reads],
            "bytes": source.bytes,
            "waited for": cause(task, self.tasks, self.prices, self.line),
            "visible_us": self._us(self.line.visible[task]),
        }
        if type(price) is TensorPrice:
            found["flops"] = price.flops
        if type(price) is DmaPrice:
            found["elements"] = [f"{count} x {size:g} B" for size, count in price.elements]
        return found

    def _slices(self) -> Iterator[dict[str, Any]]:
        line, here = self.line, Path.cwd()
        for task, source in enumerate(self.tasks.source):
            core, track = self._place(task)
            arguments = self._arguments(task, here)
            if task in self.queues:
                queue = self.tracks[self.queues[task]]
                way = "load" if source.writes[0].info.on_chip else "store"
                yield self._slice(core, queue, way, self.heads[task], line.visible[task], arguments)
            yield self._slice(core, track, source.op, line.start[task], line.free[task], arguments)
        for engine, begin, end, table in line.table_loads:
            core, track = divmod(engine, len(ENGINES))
            yield self._slice(core, track, f"load table {table}", begin, end, {})

    def _arrows(self) -> Iterator[dict[str, Any]]:
        """From each task to those whose start it was the last to allow."""
        for task, producer in enumerate(self.line.ready_by):
            if producer < 0:
                continue
            core, track = self._place(producer)
            at = self.line.start[producer]
            if producer in self.queues:
                track, at = self.tracks[self.queues[producer]], self.heads[producer]
            wait = {"id": task, "name": "wait", "cat": "wait"}
            yield {"ph": "s", **wait, "pid": core, "tid": track, "ts": self._us(at)}
            core, track = self._place(task)
            yield {"ph": "f", "bp": "e", **wait, "pid": core, "tid": track, "ts": self._us(self.line.start[task])}

    def _psum_spans(self) -> list[tuple[int, float, float]]:
        """(tile, first use, last use in ns) of the tiles of PSUM, by first use."""
        tiles = self.tasks.tiles
        ends = [0.0] * len(tiles)
        for task, touched in enumerate(self.tasks.touches):
            for tile in touched:
                ends[tile] = max(ends[tile], self.line.visible[task])
        spans = [(i, self.line.start[tile.first_task], ends[i]) for i, tile in enumerate(tiles) if tile.psum]
        return sorted(spans, key=lambda span: span[1])

    def _banks(self) -> Iterator[dict[str, Any]]:
        """PSUM tiles in banks, first fit: the allocator counts room and assigns no addresses.

        Tiles that share a bank with others get tracks beyond the banks'.
        """
        free: list[list[float]] = [[] for _ in range(self.tasks.num_cores)]
        for tile, begin, end in self._psum_spans():
            info = self.tasks.tiles[tile]
            needed = -(-info.bytes_per_partition // hw.PSUM_BANK_BYTES_PER_PARTITION)
            lanes = free[info.core]
            chosen = [lane for lane, at in enumerate(lanes) if at <= begin][:needed]
            while len(chosen) < needed:
                chosen.append(len(lanes))
                lanes.append(0.0)
            for lane in chosen:
                lanes[lane] = end
                arguments = {"bytes per partition": info.bytes_per_partition}
                yield self._slice(info.core, _BANK_TRACK + lane, f"tile {tile}", begin, end, arguments)
        for core, lanes in enumerate(free):
            for lane in range(hw.PSUM_BANKS, len(lanes)):
                yield _named("thread_name", core, _BANK_TRACK + lane, "PSUM, shares a bank")

    def _states(self) -> Iterator[dict[str, Any]]:
        line = self.line
        for core in range(self.tasks.num_cores):
            for begin, end, fast in line.rates(core):
                if end > begin:
                    yield self._slice(core, _THROTTLE_TRACK, "8/8" if fast else "4/8", begin, end, {})
        for name, spaces in (("SBUF", line.sbuf), ("PSUM", line.psum)):
            for core, space in enumerate(spaces):
                counter = {"ph": "C", "pid": core, "name": f"{name} bytes per partition"}
                for time, used in space.history:
                    yield {**counter, "ts": self._us(time), "args": {"used": used}}
