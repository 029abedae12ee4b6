"""Does it fit? Live SBUF and PSUM over the program, with who holds how much at the worst moment.

A tensor lives from the first to the last instruction that touches it, in program order: the least that an allocator
must find room for unless instructions are reordered, as the compiler's scheduler may (isa no_reorder). A tile counts
its bytes on every partition (tiles are not packed side by side on the partition axis). In PSUM a tile of up to one bank
lies inside a bank and larger tiles take whole banks.
"""

from __future__ import annotations

import heapq
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import hardware as hw
from .errors import CapacityWarning
from .memory import PSUM, SBUF, MemoryRegion, StorageInfo
from .rules import broken

if TYPE_CHECKING:
    from .program import Program

#: Lines of holders in a message; the rest is counted.
_HOLDERS_SHOWN = 12


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a memory: bytes per partition, and the index of the instruction that reached it."""

    bytes_per_partition: int = 0
    instruction: int = -1


@dataclass(frozen=True)
class Usage:
    """Of one core's run: most SBUF and PSUM bytes per partition that were live at once, and most PSUM banks needed."""

    sbuf_peak_bytes: int = 0
    psum_peak_bytes: int = 0
    psum_peak_banks: int = 0


def _births(infos: Iterable[StorageInfo], buffer: MemoryRegion) -> Iterator[tuple[StorageInfo, list[StorageInfo]]]:
    """Tensors of a memory by first touch, each with those that have died since the one before."""
    used = sorted((i for i in infos if i.buffer is buffer and i.first >= 0), key=lambda i: i.first)
    ends: list[tuple[int, int, StorageInfo]] = []
    for info in used:
        dead = []
        while ends and ends[0][0] < info.first:
            dead.append(heapq.heappop(ends)[2])
        heapq.heappush(ends, (info.last, info.id, info))
        yield info, dead


def _peak(infos: Iterable[StorageInfo], buffer: MemoryRegion) -> Peak:
    total, peak = 0, Peak()
    for info, dead in _births(infos, buffer):
        total += info.bytes_per_partition - sum(d.bytes_per_partition for d in dead)
        if total > peak.bytes_per_partition:
            peak = Peak(total, info.first)
    return peak


def _most_banks(infos: Iterable[StorageInfo]) -> tuple[int, Peak]:
    """Most PSUM banks needed at once, and when."""
    most, peak = 0, Peak()
    live: Counter[int] = Counter()
    total = 0
    known: dict[frozenset[tuple[int, int]], int] = {}
    for info, dead in _births(infos, PSUM):
        live[info.bytes_per_partition] += 1
        for size in (d.bytes_per_partition for d in dead):
            live[size] -= 1
            total -= size
            if not live[size]:
                del live[size]
        total += info.bytes_per_partition
        sizes = frozenset(live.items())
        if sizes not in known:
            known[sizes] = banks(live)
        if known[sizes] > most:
            most, peak = known[sizes], Peak(total, info.first)
    return most, peak


def banks(counts: Mapping[int, int]) -> int:
    """PSUM banks that first-fit-decreasing needs for so many tiles (values) of each size in bytes (keys)."""
    bank = hw.PSUM_BANK_BYTES_PER_PARTITION
    whole = 0
    room: list[int] = []
    for size in sorted(counts, reverse=True):
        count = counts[size]
        if size > bank:
            whole += count * -(-size // bank)
            continue
        for i, free in enumerate(room):
            fits = min(count, free // size)
            room[i] -= fits * size
            count -= fits
        while count > 0:
            fits = min(count, bank // size)
            room.append(bank - fits * size)
            count -= fits
    return whole + len(room)


def check_capacity(program: Program, *, overflow: bool = False) -> Usage:
    """Peaks of a program; refused if they do not fit (NKI018, NKI019) or if addresses collide (NKI020).

    Args:
        overflow: raise a CapacityWarning instead if they do not fit.
    """
    infos = program.allocations
    sbuf = _peak(infos, SBUF)
    if sbuf.bytes_per_partition > hw.SBUF_USABLE_BYTES_PER_PARTITION:
        _judge(program, "NKI018", SBUF, sbuf, hw.SBUF_USABLE_BYTES_PER_PARTITION, overflow=overflow)
    most, fullest = _most_banks(infos)
    if most > hw.PSUM_BANKS:
        banked = f" ({most} of {hw.PSUM_BANKS} banks)"
        _judge(program, "NKI019", PSUM, fullest, hw.PSUM_BYTES_PER_PARTITION, banked=banked, overflow=overflow)
    for buffer in (SBUF, PSUM):
        _check_addresses(program, buffer)
    return Usage(sbuf.bytes_per_partition, _peak(infos, PSUM).bytes_per_partition, most)


def _judge(
    program: Program, rule: str, buffer: MemoryRegion, peak: Peak, limit: int, *, banked: str = "", overflow: bool
) -> None:
    """Refuse a peak that does not fit, or warn of it, and list the tensors that hold the memory."""
    at = peak.instruction
    culprit = program.instructions[at]
    groups: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for info in program.allocations:
        if info.buffer is buffer and info.first <= at <= info.last:
            groups.setdefault((info.label(), info.shape, info.dtype), []).append(info.bytes_per_partition)
    holders = sorted(groups.items(), key=lambda item: -sum(item[1]))
    held = {
        f"holder {i}": f"{sum(sizes):,} B = {len(sizes)} x {sizes[0]:,} B, {list(shape)} {dtype} {label}"
        for i, ((label, shape, dtype), sizes) in enumerate(holders[:_HOLDERS_SHOWN], 1)
    }
    if holders[_HOLDERS_SHOWN:]:
        rest = [size for _, sizes in holders[_HOLDERS_SHOWN:] for size in sizes]
        held["others"] = f"{sum(rest):,} B = {len(rest)} tensors"
    needed = f"{peak.bytes_per_partition:,} of {limit:,} bytes per partition{banked}"
    detail = f"{buffer.name.upper()} of core {program.core} needs {needed} at instruction {at} of "
    detail += f"{len(program.instructions)}"
    error = broken(rule, culprit.op, detail, held, f"{culprit.file}:{culprit.line}")
    if not overflow:
        raise error
    warnings.warn_explicit(str(error), CapacityWarning, culprit.file, culprit.line)


def _check_addresses(program: Program, buffer: MemoryRegion) -> None:
    """Tensors with explicit addresses do not overlap while both live."""
    live: dict[int, StorageInfo] = {}
    for info, dead in _births((i for i in program.allocations if i.address is not None), buffer):
        for old in dead:
            del live[old.id]
        for other in live.values():
            if info.overlaps(other):
                culprit = program.instructions[info.first]
                both = f"{info.address} and {other.address} of {buffer.name.upper()}"
                detail = f"two tensors at address {both} overlap while both live"
                labels = {"new": info.label(), "live": other.label()}
                raise broken("NKI020", culprit.op, detail, labels, f"{culprit.file}:{culprit.line}")
        live[info.id] = info
