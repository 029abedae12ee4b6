"""Which instructions an instruction must wait for: those that touch the same bytes, one of them writing.

A read waits for the last writers of its bytes; a write waits for their last writers and for everyone who read them
since. Storages are told apart by allocation, bytes within one by `overlap`; tensors at explicit addresses that overlap
count as one memory. Names play no part.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import hardware as hw
from ..memory import Region, StorageInfo
from ..program import Instruction
from ..views import Ints
from .grid import Grid
from .overlap import Extent, covers, covers_partitions, extent, mask, meets_partitions, overlaps

#: Slices along either side of the grid by which accesses to an HBM storage are found again, at most.
HBM_SLICES = 64

_View = tuple[int, str, Ints, Ints]
_Writer = tuple[Extent, int, int]
_Reader = tuple[Extent, str]


@functools.cache
def _readers_kept() -> int:
    """Readers of one view on one engine that are remembered: as many as may be overtaken in look-ahead order."""
    return int(hw.CONSTANTS["scheduling.lookahead_window"].high)


class _Memory:
    """Live accesses to one storage: the writers that still show, and the readers since.

    On chip each is kept with its mask, by which most comparisons are decided. None of the bytes of `readers` are
    overwritten; some of those of `remainders` are, which keep the mask of the others: overwritten bytes need no second
    wait.
    """

    __slots__ = ("on_chip", "readers", "remainders", "writers")

    def __init__(self, on_chip: bool) -> None:
        self.on_chip = on_chip
        self.writers: list[_Writer] = []
        self.readers: dict[_Reader, tuple[deque[int], int]] = {}
        self.remainders: dict[_Reader, tuple[deque[int], int]] = {}

    def read(self, e: Extent, index: int, engine: str, found: set[int]) -> None:
        key = (e, engine)
        known = self.readers.get(key)
        if known is None:
            most = None if engine == "dma" else _readers_kept()
            known = self.readers[key] = deque(maxlen=most), mask(e) if self.on_chip else 0
        kept, bits = known
        begin, end = e.b0, e.b1
        for other, writer, others in self.writers:
            if other.b0 < end and begin < other.b1 and self._meet(e, bits, other, others):
                found.add(writer)
        kept.append(index)

    def write(self, e: Extent, index: int, found: set[int]) -> None:
        on_chip, begin, end = self.on_chip, e.b0, e.b1
        bits = mask(e) if on_chip else 0
        writers = []
        for access in self.writers:
            other = access[0]
            if other.b0 < end and begin < other.b1 and self._meet(e, bits, other, access[2]):
                found.add(access[1])
                if covers(e, other, on_chip):
                    continue
            writers.append(access)
        writers.append((e, index, bits))
        self.writers = writers
        if self.remainders:
            self._overwrite_remainders(e, bits, found)
        if self.readers:
            self._overwrite_readers(e, bits, found)

    def _meet(self, a: Extent, bits_a: int, b: Extent, bits_b: int) -> bool:
        """Whether two accesses with their masks share a byte, if their bounds of bytes meet."""
        if not self.on_chip:
            return overlaps(a, b)
        return a.p0 < b.p1 and b.p0 < a.p1 and ((a.dense and b.dense) or bits_a & bits_b != 0)

    def _overwrite_readers(self, e: Extent, written: int, found: set[int]) -> None:
        on_chip, begin, end = self.on_chip, e.b0, e.b1
        for key in [key for key in self.readers if key[0].b0 < end and begin < key[0].b1]:
            readers, bits = self.readers[key]
            if not self._meet(e, written, key[0], bits):
                continue
            found.update(readers)
            if covers(e, key[0], on_chip):
                del self.readers[key]
            elif on_chip and covers_partitions(e, key[0]):
                del self.readers[key]
                self._keep_remainder(key, readers, bits & ~written)

    def _keep_remainder(self, key: _Reader, readers: deque[int], left: int) -> None:
        """Remember readers some of whose bytes have been overwritten, with earlier ones of the same view."""
        earlier = self.remainders.get(key)
        if earlier is not None:
            readers = deque([*earlier[0], *readers], maxlen=readers.maxlen)
            left |= earlier[1]
        self.remainders[key] = readers, left

    def _overwrite_remainders(self, e: Extent, written: int, found: set[int]) -> None:
        begin, end = e.b0, e.b1
        for key in [key for key in self.remainders if key[0].b0 < end and begin < key[0].b1]:
            readers, left = self.remainders[key]
            if not left & written or not meets_partitions(e, key[0]):
                continue
            found.update(readers)
            if not covers_partitions(e, key[0]):
                continue
            if left & ~written:
                self.remainders[key] = readers, left & ~written
            else:
                del self.remainders[key]


class _CutMemory:
    """The same for a storage in HBM, in cells of a grid: its accesses are many and far apart."""

    __slots__ = ("_cells", "_grid")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._cells: dict[int, _Memory] = {}

    def _met(self, e: Extent) -> Iterator[_Memory]:
        for i in self._grid.cells(e):
            memory = self._cells.get(i)
            if memory is None:
                memory = self._cells[i] = _Memory(on_chip=False)
            yield memory

    def read(self, e: Extent, index: int, engine: str, found: set[int]) -> None:
        for memory in self._met(e):
            memory.read(e, index, engine, found)

    def write(self, e: Extent, index: int, found: set[int]) -> None:
        for memory in self._met(e):
            memory.write(e, index, found)


class Dependencies:
    """Finds the instructions that each instruction of one core waits for, in program order.

    Args: written: the storages that any instruction writes (`written_storages`); reads of others need no wait.
    """

    def __init__(self, written: Mapping[int, Region]) -> None:
        self._written = written
        self._memories: dict[Any, _Memory | _CutMemory] = {}
        self._addressed: list[tuple[StorageInfo, _Memory]] = []

    def of(self, instruction: Instruction, index: int) -> tuple[set[int], set[int]]:
        """(whose results it reads, whose reads or writes it must not disturb), as indices; then remembers its own."""
        results: set[int] = set()
        order: set[int] = set()
        engine = instruction.engine
        for region in instruction.reads:
            if region.info.id in self._written:
                self._memory(region.info, order).read(extent(region), index, engine, results)
        for region in instruction.writes:
            self._memory(region.info, order).write(extent(region), index, order)
        order.discard(index)
        return results, order - results

    def _memory(self, info: StorageInfo, found: set[int]) -> _Memory | _CutMemory:
        memory = self._memories.get(info.id)
        if memory is None:
            memory = _Memory(True) if info.on_chip else self._cut(info)
            self._memories[info.id] = memory
            if info.address is not None and isinstance(memory, _Memory):
                self._inherit(info, found)
                self._addressed.append((info, memory))
        return memory

    def _cut(self, info: StorageInfo) -> _CutMemory:
        return _CutMemory(Grid(extent(self._written[info.id]), info.num_bytes, HBM_SLICES))

    def _inherit(self, info: StorageInfo, found: set[int]) -> None:
        """A tensor at an explicit address waits for every user of the memory that it takes over."""
        for other, memory in self._addressed:
            if other.buffer is info.buffer and other.overlaps(info):
                found.update(index for _, index, _ in memory.writers)
                found.update(index for kept, _ in memory.readers.values() for index in kept)


def written_storages(instructions: Sequence[Instruction]) -> dict[int, Region]:
    """The storages that any of the instructions writes, by id, with a view as each is written most often (in HBM)."""
    found: dict[int, Region] = {}
    counts: Counter[_View] = Counter()
    examples: dict[_View, Region] = {}
    for instruction in instructions:
        for region in instruction.writes:
            info, dtype, shape, strides, _ = region
            if info.on_chip:
                found[info.id] = region
            else:
                view = info.id, dtype, shape, strides
                counts[view] += 1
                examples[view] = region
    for view, _ in reversed(counts.most_common()):
        found[view[0]] = examples[view]
    return found
