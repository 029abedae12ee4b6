"""Loads that the compiler drops, because another tile holds the same bytes (trn2.toml, scheduling.reload_window).

The Neuron compiler's backend removes a load if a tile of SBUF holds the same bytes of HBM from an earlier load. It
works on tiles, before it assigns addresses. So both loads must fill their tiles, which no other instruction writes,
from bytes that are never written. It keeps loads of parts of tiles, loads in loops on the device, whose body has one
copy, and loads whose tiles would not fit any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .. import hardware as hw
from ..memory import SBUF, Region, StorageInfo
from ..program import Instruction, Program


def dropped_loads(program: Program, written: Collection[int], window: float) -> dict[int, StorageInfo]:
    """Storages whose loads one core's compiler drops, by id, each with the one whose bytes are read instead.

    Args:
        written: the storages that anyone writes, which in HBM are no sources of such loads.
        window: DMAs since the same bytes were last loaded, at most.
    """
    if window <= 0:
        return {}
    once = _written_once(program.instructions)
    named = {producer.index for each in program.instructions for producer in each.after}
    held: dict[tuple[Any, ...], tuple[StorageInfo, int]] = {}
    found: dict[int, StorageInfo] = {}
    dmas = 0
    for each in program.instructions:
        dmas += each.engine == "dma"
        if each.scope or each.after or each.index in named:
            continue
        if not _is_whole_load(each) or each.reads[0].info.id in written or each.writes[0].info.id not in once:
            continue
        dst, src = each.writes[0], each.reads[0]
        key = src.info.id, *src[1:], dst.info.shape, dst.info.dtype, dst.dtype
        holder, since = held.get(key, (dst.info, dmas))
        if holder is not dst.info:
            if dmas - since <= window:
                found[dst.info.id] = holder
            else:
                holder = dst.info
        held[key] = holder, dmas
    return found if found and _fits(program.allocations, found) else {}


def _fits(tiles: Sequence[StorageInfo], held: Mapping[int, StorageInfo]) -> bool:
    """Whether all tiles of SBUF still fit when those that are read instead of others live on."""
    last = {tile.id: tile.last for tile in tiles}
    for tile in tiles:
        if tile.id in held:
            last[held[tile.id].id] = max(last[held[tile.id].id], tile.last)
    changes: dict[int, int] = {}
    for tile in tiles:
        if tile.buffer is SBUF and tile.id not in held and tile.first >= 0:
            changes[tile.first] = changes.get(tile.first, 0) + tile.bytes_per_partition
            changes[last[tile.id] + 1] = changes.get(last[tile.id] + 1, 0) - tile.bytes_per_partition
    used = [0]
    for index in sorted(changes):
        used.append(used[-1] + changes[index])
    return max(used) <= hw.SBUF_USABLE_BYTES_PER_PARTITION


def _is_whole_load(instruction: Instruction) -> bool:
    """Whether it is a plain copy of HBM to all of a tile of SBUF that has no address yet."""
    if instruction.op != "dma_copy" or "moved" in instruction.params or len(instruction.reads) != 1:
        return False
    dst, src = instruction.writes[0].info, instruction.reads[0].info
    whole = instruction.writes[0].num_bytes == dst.num_bytes
    return dst.buffer is SBUF and not src.on_chip and whole and dst.address is None


def _written_once(instructions: Sequence[Instruction]) -> set[int]:
    """The storages that one instruction writes, once."""
    once: set[int] = set()
    more: set[int] = set()
    for each in instructions:
        for region in each.writes:
            (more if region.info.id in once else once).add(region.info.id)
    return once - more


def resident(regions: tuple[Region, ...], held: Mapping[int, StorageInfo]) -> tuple[Region, ...]:
    """Regions, with the tiles of dropped loads exchanged for those that hold the same bytes."""
    return tuple(region._replace(info=held[region.info.id]) if region.info.id in held else region for region in regions)
