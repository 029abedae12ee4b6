"""A perfect allocator: a core's SBUF and PSUM as amounts, handed out in program order as soon as there is room.

A tile holds its space from when it is granted until its last user has ended. Space is granted in program order of first
use, which cannot deadlock: what a tile waits for never waits for it. Fragmentation is not modelled.
"""

from __future__ import annotations

from collections import Counter, deque

from .. import hardware as hw
from ..capacity import banks
from .tasks import Tile


class Space:
    """Free and granted space of one core's SBUF or PSUM."""

    def __init__(self, psum: bool, tiles: list[int], table: list[Tile]) -> None:
        self._psum = psum
        self._table = table
        self._waiting = deque(tiles)
        self.used_bytes = 0
        self.peak_bytes = 0
        #: (time, bytes a partition in use), for every change
        self.history: list[tuple[float, int]] = []
        self._sizes: Counter[int] = Counter()
        self._known: dict[frozenset[tuple[int, int]], bool] = {}

    def grant(self, time: float) -> list[int]:
        """Tiles that get their space now, in program order."""
        granted = []
        while self._waiting and self._fits(self._table[self._waiting[0]].bytes_per_partition):
            tile = self._waiting.popleft()
            self._take(self._table[tile].bytes_per_partition)
            granted.append(tile)
        if granted:
            self.history.append((time, self.used_bytes))
        return granted

    def free(self, tile: int, time: float) -> None:
        """Take a tile's space back."""
        size = self._table[tile].bytes_per_partition
        self.used_bytes -= size
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]
        self.history.append((time, self.used_bytes))

    def _take(self, size: int) -> None:
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._sizes[size] += 1

    def _fits(self, size: int) -> bool:
        if not self._psum:
            return self.used_bytes + size <= hw.SBUF_USABLE_BYTES_PER_PARTITION
        self._sizes[size] += 1
        key = frozenset(self._sizes.items())
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]
        if key not in self._known:
            self._known[key] = banks(dict(key)) <= hw.PSUM_BANKS
        return self._known[key]
