"""Writes of PSUM without an effect, which the compiler drops, or may drop.

A matmul overwrites data that no matmul has written, so a memset before a sum has no effect (traces: trn2.toml, NA).
Matmuls without a reader keep the array busy, as warm-ups do (trn2.toml, scheduling.drops_unread).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..memory import PSUM, Region
from ..program import Instruction
from .overlap import Extent, extent, mask


@dataclass
class _Fill:
    """A memset, and the bytes of each partition that no matmul has overwritten yet."""

    index: int
    left: dict[int, int]

    def meets(self, at: Extent, bits: int) -> bool:
        return any(self.left.get(p, 0) & bits for p in range(at.p0, at.p1))

    def overwrite(self, at: Extent, bits: int) -> None:
        for p in range(at.p0, at.p1):
            rest = self.left.get(p, 0) & ~bits
            if rest:
                self.left[p] = rest
            else:
                self.left.pop(p, None)


def overwritten_fills(instructions: Sequence[Instruction]) -> frozenset[int]:
    """Indices of one core's memsets of PSUM all of whose bytes matmuls write before anyone else touches one of them.

    One that a scheduling dependency names, or that has one, stays.
    """
    if not any(_is_fill(each) for each in instructions):
        return frozenset()
    named = {producer.index for each in instructions for producer in each.after}
    dropped: set[int] = set()
    pending: dict[int, list[_Fill]] = {}
    for each in instructions:
        for region in each.reads:
            _touch(pending, region, False, dropped)
        for region in each.writes:
            _touch(pending, region, each.engine == "tensor", dropped)
        if _is_fill(each) and each.index not in named and not each.after:
            at = extent(each.writes[0])
            fill = _Fill(each.index, dict.fromkeys(range(at.p0, at.p1), mask(at)))
            pending.setdefault(each.writes[0].info.id, []).append(fill)
    return frozenset(dropped)


def _is_fill(instruction: Instruction) -> bool:
    return instruction.op == "memset" and instruction.writes[0].info.buffer is PSUM


def _touch(pending: dict[int, list[_Fill]], region: Region, by_matmul: bool, dropped: set[int]) -> None:
    """Someone reads or writes a region: fills that a matmul has overwritten are dropped, others that it meets stay."""
    fills = pending.get(region.info.id) if region.info.buffer is PSUM else None
    if not fills:
        return
    at = extent(region)
    bits = mask(at)
    for fill in [fill for fill in fills if fill.meets(at, bits)]:
        if by_matmul:
            fill.overwrite(at, bits)
        if not fill.left:
            dropped.add(fill.index)
        if not by_matmul or not fill.left:
            fills.remove(fill)


def unread_matmuls(instructions: Sequence[Instruction]) -> frozenset[int]:
    """Indices of one core's matmuls and transposes into tiles of PSUM that no instruction reads."""
    read = {region.info.id for each in instructions for region in each.reads if region.info.buffer is PSUM}
    return frozenset(
        each.index
        for each in instructions
        if each.engine == "tensor" and all(region.info.id not in read for region in each.writes)
    )
