"""Prices of DMA: which engines work, for how long, and who issues the transfer.

A transfer is a list of elements, runs that are contiguous on both sides (and within one partition on chip). An engine
moves an element in a fixed time plus its bytes at the engine's rate; small elements have floors of their own.
Partitions 8i .. 8i+7 belong to engine i, so a tile of few partitions uses few engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

from ..hardware import CONSTANTS, PARTITIONS
from ..memory import Region
from ..views import merged_runs
from .prices import DmaPrice
from .rates import Rates

#: DMA modes of nki.isa by the kind of queue they use; "unknown" leaves the choice to the compiler.
_QUEUES = {"unknown": "hwdge", "hwdge": "hwdge", "swdge": "swdge", "none": "static"}


def element_ns(num_bytes: float, rates: Rates) -> float:
    """Busy time of one DMA engine for one element; longer ones go in packets of up to 4 KiB."""
    if _up_to(num_bytes, "dma.tiny_element_bytes", rates):
        return rates("dma.tiny_element_ns")
    fixed, speed = rates("dma.element_overhead_ns"), rates("dma.engine_bytes_per_ns")
    packet = rates("dma.max_element_bytes_packet")
    packets = max(1.0, -(-num_bytes // packet))
    busy = packets * fixed + num_bytes / speed
    if _up_to(num_bytes, "dma.small_element_bytes", rates):
        return rates("dma.small_element_ns")
    return max(busy, rates("dma.small_element_ns")) if num_bytes < rates("dma.sure_element_bytes") else busy


def _up_to(num_bytes: float, limit: str, rates: Rates) -> bool:
    """Whether an element is below a limit; one that no value in the limit's range could catch does not rest on it."""
    most = max(CONSTANTS[limit].high, rates.overrides.get(limit, 0.0))
    return num_bytes <= most and num_bytes <= rates(limit)


def _run_elems(region: Region, *, by_rows: bool) -> int:
    """Elements that lie side by side, one row-major run of the view; it ends with the partition or the indexed row."""
    first = 1 if region.info.on_chip or by_rows else 0
    runs = merged_runs(region.shape[first:], region.strides[first:])
    if not runs:
        return 1
    count, stride = runs[-1]
    return count if stride == 1 else 1


def elements(dst: Region, src: Region, *, by_rows: bool = False) -> tuple[float, int]:
    """(bytes, count) of a copy's elements: cut where either side ends a run; a cast counts its larger side.

    Where the sides' runs do not nest, the bytes are the average. by_rows: each row has an index of its own.
    """
    total = dst.num_elems
    a, b = _run_elems(dst, by_rows=by_rows), _run_elems(src, by_rows=by_rows)
    count = total // a + total // b - max(1, total // lcm(a, b))
    return total * max(dst.itemsize, src.itemsize) / count, count


def _transposed_bytes(dst: Region, engines: int) -> int:
    """Bytes of the blocks of 128 partitions and `engines` contiguous elements that hold the result of a transpose: the
    engines write a block together, and smaller ones take as long (trainium2_arch.rst, DMA Transpose)."""
    run = _run_elems(dst, by_rows=False)
    runs = dst.num_elems // (dst.shape[0] * run)
    return -(-dst.shape[0] // PARTITIONS) * PARTITIONS * runs * -(-run // engines) * engines * dst.itemsize


def _spread(region: Region | None, work_ns: float, rates: Rates) -> tuple[float, ...]:
    """Busy time of each DMA engine when `work_ns` is shared by the partitions of an on-chip region (None: by all)."""
    engines, rows = int(rates("dma.engines")), int(rates("dma.rows_per_engine"))
    if region is None:
        return (work_ns / engines,) * engines
    first, partitions = region.first_partition, region.shape[0]
    shares = [0] * engines
    for p in range(first, first + partitions):
        shares[min(p // rows, engines - 1)] += 1
    return tuple(work_ns * share / partitions for share in shares)


def hbm_ns(num_bytes: float, run_bytes: float, rates: Rates) -> float:
    """Time of the HBM that both cores share for bytes in contiguous runs of `run_bytes`: each costs some on its own."""
    run = max(run_bytes, rates("dma.hbm_run_least_bytes"))
    return num_bytes / rates("dma.hbm_shared_gbps") + num_bytes / run * rates("dma.hbm_run_ns")


def _hbm_ns(dst: Region, reads: tuple[Region, ...], sides: list[tuple[float, int]], rates: Rates) -> float:
    """Time of the shared HBM for a transfer, both directions added; sides: its elements, source by source."""
    count = sum(count for _, count in sides) / len(sides)
    busy = 0.0 if dst.info.on_chip else hbm_ns(dst.num_bytes, dst.num_bytes / count, rates)
    for region, (_, elems) in zip(reads, sides, strict=True):
        if not region.info.on_chip:
            busy += hbm_ns(region.num_bytes, region.num_bytes / elems, rates)
    return busy


@dataclass(frozen=True)
class _Issue:
    """The start of a transfer: its issuer, its queue, and the times of the steps."""

    trigger: str
    queue: str
    prepare_ns: float
    issue_ns: float
    first_packet_ns: float
    again_ns: float = 0.0
    room: float = 0.0


def _issue(store: bool, casts: bool, num_elements: int, rows: int, params: dict[str, Any], rates: Rates) -> _Issue:
    """By mode and direction; the first packet is that of the first engine. rows: partitions of the on-chip side.

    Where the compiler has the choice, hardware makes the descriptors, and Sync triggers: one queue for all (CB).
    Hardware-made descriptors do not cast and follow no indices, so that both go to GpSimd then.
    """
    gpsimd = casts or params.get("indirect") == "rows"
    queue = "swdge" if gpsimd and params["dge_mode"] == "unknown" else _QUEUES[params["dge_mode"]]
    way = "store" if store else "load"
    if queue == "static":
        trigger = "gpsimd" if store else "sync"
        return _Issue(trigger, queue, 0.0, rates("dma.static_issue_ns"), rates("dma.static_first_packet_ns"))
    if queue == "swdge":
        prepare = rates("dma.swdge_prepare_load_ns")
        if store:
            prepare = rates("dma.swdge_prepare_ns") + num_elements * rates("dma.swdge_prepare_ns_per_elem")
        first = rates(f"dma.swdge_first_packet_{way}_ns")
        return _Issue("gpsimd", queue, prepare, rates("dma.swdge_issue_gap_ns"), first)
    trigger = params.get("engine", "unknown")
    trigger = "sync" if trigger == "unknown" else trigger
    issue, first = rates("dma.hwdge_issue_ns"), rates(f"dma.hwdge_first_packet_{way}_ns")
    if num_elements > rows:
        issue = rates("dma.hwdge_issue_2d_ns")
        first += rates("dma.hwdge_first_packet_2d_extra_ns")
    again = max(0.0, rates("dma.hwdge_again_ns") - issue)
    if rows < PARTITIONS:  # descriptors are made row by row
        least, share = rates("dma.hwdge_issue_row_ns"), (rows - 1) / (PARTITIONS - 1)
        issue, again = least + (issue - least) * share, again * share
    return _Issue(trigger, queue, 0.0, issue, first, again, rows / PARTITIONS)


def _skew(store: bool, queue: str, work_ns: tuple[float, ...], rates: Rates) -> float:
    """From the first packet of the first engine to that of the last; engines start in a fixed order."""
    kind = "swdge" if queue == "swdge" else "engine"
    spread = rates(f"dma.{kind}_skew_{'store' if store else 'load'}_ns")
    used = sum(work > 0.0 for work in work_ns)
    return spread * (used - 1) / (len(work_ns) - 1)


def dma_price(
    op: str, writes: tuple[Region, ...], reads: tuple[Region, ...], params: dict[str, Any], rates: Rates
) -> DmaPrice:
    """Price of dma_copy, dma_compute or dma_transpose; of an indirect one, by the patterns that it moves."""
    dst, *sources = params.get("moved") or (writes[0], *reads)
    reads = tuple(sources)
    store = not dst.info.on_chip
    sides = [elements(dst, src, by_rows=params.get("indirect") == "rows") for src in reads]
    on_chip = dst if dst.info.on_chip else next((r for r in reads if r.info.on_chip), None)
    rows = on_chip.shape[0] if on_chip is not None else min(PARTITIONS, sides[0][1])
    casts = any(src.dtype != dst.dtype for src in reads)
    issue = _issue(store, casts, sum(count for _, count in sides), rows, params, rates)
    issue_constants = rates.take_read()
    work = sum(count * element_ns(size, rates) for size, count in sides)
    if op == "dma_transpose":
        where = "sbuf" if reads[0].info.on_chip else "hbm"
        moved = _transposed_bytes(dst, int(rates("dma.engines")))
        work = moved / rates("dma.engine_bytes_per_ns") / rates(f"dma.dma_transpose_frac_{where}")
        on_chip = None
    elif op == "dma_compute":  # reads source by source; writes stream behind
        work *= rates("dma.dma_compute_read_rel")
    packet = max(min(size, rates("dma.max_element_bytes_packet")) for size, _ in sides)
    shares = _spread(on_chip, work, rates)
    return DmaPrice(
        trigger=issue.trigger,
        queue=issue.queue,
        prepare_ns=issue.prepare_ns,
        issue_ns=issue.issue_ns,
        again_ns=issue.again_ns,
        room=issue.room,
        first_packet_ns=issue.first_packet_ns + _skew(store, issue.queue, shares, rates),
        work_ns=shares,
        packet_ns=element_ns(packet, rates),
        hbm_bytes=sum(region.num_bytes for region in (dst, *reads) if not region.info.on_chip),
        hbm_ns=_hbm_ns(dst, reads, sides, rates),
        payload_bytes=max(dst.num_bytes, *(r.num_bytes for r in reads)),
        elements=tuple(sides),
        constants=rates.take_read(),
        issue_constants=issue_constants,
    )
