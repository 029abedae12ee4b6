"""Prices of DMA: which engines work, for how long, and who issues the transfer.

A transfer is a list of elements, runs that are contiguous on both sides (and within one partition on chip). An engine
moves an element in a fixed time plus its bytes at the engine's rate; small elements have floors of their own.
Partitions 8i .. 8i+7 belong to engine i, so a tile of few partitions uses few engines.
"""

from __future__ import annotations

from math import lcm
from typing import Any

from ..memory import Region
from ..views import merged_runs
from .prices import ALTERNATE, DmaPrice
from .rates import Rates

#: DMA modes of nki.isa by the kind of queue they use; "unknown" leaves the choice to the compiler.
_QUEUES = {"unknown": "hwdge", "hwdge": "hwdge", "swdge": "swdge", "none": "static"}


def element_ns(num_bytes: float, rates: Rates) -> float:
    """Busy time of one DMA engine for one element; longer ones go in packets of up to 4 KiB."""
    if num_bytes <= rates("dma.tiny_element_bytes"):
        return rates("dma.tiny_element_ns")
    fixed, speed = rates("dma.element_overhead_ns"), rates("dma.engine_bytes_per_ns")
    packet = rates("dma.max_element_bytes_packet")
    packets = max(1.0, -(-num_bytes // packet))
    busy = packets * fixed + num_bytes / speed
    if num_bytes <= rates("dma.small_element_bytes") or busy < rates("dma.small_element_ns"):
        return rates("dma.small_element_ns")
    return busy


def _run_elems(region: Region) -> int:
    """Elements that lie side by side, one row-major run of the view; on chip it ends with the partition."""
    first = 1 if region.info.on_chip else 0
    runs = merged_runs(region.shape[first:], region.strides[first:])
    if not runs:
        return 1
    count, stride = runs[-1]
    return count if stride == 1 else 1


def elements(dst: Region, src: Region) -> tuple[float, int]:
    """(bytes, count) of a copy's elements: cut where either side ends a run; a cast counts its larger side.

    Where the sides' runs do not nest, the bytes are the average.
    """
    total = dst.num_elems
    a, b = _run_elems(dst), _run_elems(src)
    count = total // a + total // b - max(1, total // lcm(a, b))
    return total * max(dst.itemsize, src.itemsize) / count, count


def _spread(region: Region | None, work_ns: float, rates: Rates) -> tuple[float, ...]:
    """Busy time of each DMA engine when `work_ns` is shared by the partitions of an on-chip region (None: by all)."""
    engines, rows = int(rates("dma.engines")), int(rates("dma.rows_per_engine"))
    if region is None:
        return (work_ns / engines,) * engines
    first = region.offset // (region.info.bytes_per_partition // region.itemsize)
    partitions = region.shape[0]
    shares = [0] * engines
    for p in range(first, first + partitions):
        shares[min(p // rows, engines - 1)] += 1
    return tuple(work_ns * share / partitions for share in shares)


def _hbm_bytes(*regions: Region) -> int:
    return sum(region.num_bytes for region in regions if not region.info.on_chip)


def _issue(writes: tuple[Region, ...], params: dict[str, Any], rates: Rates) -> tuple[str, str, float, float]:
    """(trigger, queue, ISSUE, first packet after it) by mode and direction."""
    queue = _QUEUES[params["dge_mode"]]
    store = not writes[0].info.on_chip
    way = "store" if store else "load"
    if queue == "static":
        first = rates("dma.static_first_packet_ns")
        return ("gpsimd" if store else "sync"), queue, rates("dma.static_issue_ns"), first
    if queue == "swdge":
        return "gpsimd", queue, rates("dma.swdge_issue_gap_ns"), rates(f"dma.swdge_first_packet_{way}_ns")
    trigger = params.get("engine", "unknown")
    issue, first = rates("dma.hwdge_issue_ns"), rates(f"dma.hwdge_first_packet_{way}_ns")
    return (ALTERNATE if trigger == "unknown" else trigger), queue, issue, first


def dma_price(
    op: str, writes: tuple[Region, ...], reads: tuple[Region, ...], params: dict[str, Any], rates: Rates
) -> DmaPrice:
    """Price of dma_copy, dma_compute or dma_transpose."""
    dst = writes[0]
    trigger, queue, issue, first = _issue(writes, params, rates)
    sides = [elements(dst, src) for src in reads]
    work = sum(count * element_ns(size, rates) for size, count in sides)
    on_chip = dst if dst.info.on_chip else next((r for r in reads if r.info.on_chip), None)
    if op == "dma_transpose":
        where = "sbuf" if reads[0].info.on_chip else "hbm"
        work = dst.num_bytes / rates("dma.engine_bytes_per_ns") / rates(f"dma.dma_transpose_frac_{where}")
        on_chip = None
    elif op == "dma_compute":
        work /= rates("dma.dma_compute_frac")
    packet = max(min(size, rates("dma.max_element_bytes_packet")) for size, _ in sides)
    return DmaPrice(
        trigger=trigger,
        queue=queue,
        issue_ns=issue,
        first_packet_ns=first,
        work_ns=_spread(on_chip, work, rates),
        packet_ns=element_ns(packet, rates),
        hbm_bytes=_hbm_bytes(dst, *reads),
        payload_bytes=max(dst.num_bytes, *(r.num_bytes for r in reads)),
        elements=tuple(sides),
        constants=rates.take_read(),
    )
