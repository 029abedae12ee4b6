"""Does it fit? Live SBUF and PSUM over the program, with who holds how much at the worst moment.

A tensor lives from the first to the last instruction that touches it, in program order: the least that any allocator
of the compiler must find room for. A tile counts its bytes on every partition (tiles are not packed side by side on
the partition axis). In PSUM a tile of up to one bank lies inside a bank and larger tiles take whole banks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from . import hardware as hw
from .errors import NkiError
from .memory import PSUM, SBUF, MemoryRegion, StorageInfo
from .program import Program
from .rules import RULES


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a memory: bytes a partition, the instruction, and the tensors alive then."""

    bytes_per_partition: int
    instruction: int
    holders: tuple[StorageInfo, ...]


def _lifetimes(infos: list[StorageInfo], buffer: MemoryRegion) -> Iterator[tuple[int, int, list[StorageInfo]]]:
    """(instruction, live bytes, live tensors) at each first touch, in program order."""
    used = sorted((i for i in infos if i.buffer is buffer and i.first >= 0), key=lambda i: i.first)
    live: dict[int, StorageInfo] = {}
    ends: list[tuple[int, int]] = []
    total = 0
    for info in used:
        while ends and ends[0][0] < info.first:
            total -= live.pop(heapq.heappop(ends)[1]).bytes_per_partition
        live[info.id] = info
        heapq.heappush(ends, (info.last, info.id))
        total += info.bytes_per_partition
        yield info.first, total, list(live.values())


def _peak(infos: list[StorageInfo], buffer: MemoryRegion) -> Peak:
    used = sorted((i for i in infos if i.buffer is buffer and i.first >= 0), key=lambda i: i.first)
    ends: list[tuple[int, int]] = []
    total = best = at = 0
    for info in used:
        while ends and ends[0][0] < info.first:
            total -= heapq.heappop(ends)[1]
        heapq.heappush(ends, (info.last, info.bytes_per_partition))
        total += info.bytes_per_partition
        if total > best:
            best, at = total, info.first
    holders = tuple(i for i in used if i.first <= at <= i.last)
    return Peak(best, at, holders)


def sbuf_peak(program: Program) -> Peak:
    """Fullest moment of SBUF."""
    return _peak(program.allocations, SBUF)


def psum_peak(program: Program) -> Peak:
    """Fullest moment of PSUM, in bytes (banks are checked apart)."""
    return _peak(program.allocations, PSUM)


def _banks(tiles: list[StorageInfo]) -> int:
    """Banks that first-fit-decreasing needs for the tiles."""
    bank = hw.PSUM_BANK_BYTES_PER_PARTITION
    free: list[int] = []
    whole = 0
    for size in sorted((t.bytes_per_partition for t in tiles), reverse=True):
        if size > bank:
            whole += -(-size // bank)
            continue
        fits = next((i for i, room in enumerate(free) if room >= size), None)
        if fits is None:
            free.append(bank - size)
        else:
            free[fits] -= size
    return whole + len(free)


def check_capacity(program: Program) -> None:
    """Refuse a program whose live tensors do not fit (NKI018, NKI019) or whose addresses collide (NKI020)."""
    peak = sbuf_peak(program)
    if peak.bytes_per_partition > hw.SBUF_USABLE_BYTES_PER_PARTITION:
        _refuse(program, "NKI018", "SBUF", peak, hw.SBUF_USABLE_BYTES_PER_PARTITION)
    infos = [i for i in program.allocations if i.buffer is PSUM]
    if psum_peak(program).bytes_per_partition > hw.PSUM_BANK_BYTES_PER_PARTITION:
        for at, total, live in _lifetimes(infos, PSUM):
            if total > hw.PSUM_BANK_BYTES_PER_PARTITION and _banks(live) > hw.PSUM_BANKS:
                held = Peak(total, at, tuple(live))
                _refuse(program, "NKI019", "PSUM", held, hw.PSUM_BYTES_PER_PARTITION)
    _check_addresses(program)


def _refuse(program: Program, rule: str, memory: str, peak: Peak, limit: int) -> None:
    culprit = program.instructions[peak.instruction]
    by_line: dict[str, list[int]] = {}
    for info in peak.holders:
        by_line.setdefault(info.label(), []).append(info.bytes_per_partition)
    holders = sorted(by_line.items(), key=lambda item: -sum(item[1]))
    held = {f"holder {i + 1}": f"{sum(sizes):,} B: {len(sizes)} x {label}" for i, (label, sizes) in enumerate(holders)}
    detail = f"{memory} needs {peak.bytes_per_partition:,} of {limit:,} bytes per partition at instruction {peak.instruction}"
    if rule == "NKI019":
        detail += f" ({_banks(list(peak.holders))} of {hw.PSUM_BANKS} banks)"
    raise NkiError(rule, culprit.op, detail, held, f"{culprit.file}:{culprit.line}", RULES[rule].remedy)


def _check_addresses(program: Program) -> None:
    placed = [i for i in program.allocations if i.address is not None and i.first >= 0]
    for n, a in enumerate(placed):
        for b in placed[n + 1 :]:
            if a.buffer is b.buffer and a.first <= b.last and b.first <= a.last and _overlap(a, b):
                culprit = program.instructions[max(a.first, b.first)]
                raise NkiError(
                    "NKI020",
                    culprit.op,
                    f"address {a.address} of {a.label()} overlaps address {b.address} of {b.label()} while both live",
                    location=f"{culprit.file}:{culprit.line}",
                    remedy=RULES["NKI020"].remedy,
                )


def _overlap(a: StorageInfo, b: StorageInfo) -> bool:
    assert a.address is not None and b.address is not None
    (pa, fa), (pb, fb) = a.address, b.address
    rows = pa < pb + b.shape[0] and pb < pa + a.shape[0]
    return rows and fa < fb + b.bytes_per_partition and fb < fa + a.bytes_per_partition
