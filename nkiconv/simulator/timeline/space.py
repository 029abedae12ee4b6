"""A perfect allocator: a core's SBUF and PSUM as amounts, handed out in program order as soon as there is room.

A tile holds its space from the grant until its last user has ended. Space is granted in program order of first use,
which cannot deadlock: the tasks that a tile waits for never wait for it. Fragmentation is not modelled.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush

from .. import hardware as hw
from ..capacity import banks
from .tasks import Tile

#: Tiles that may get their space before one that waits, at most so many places ahead.
AHEAD = 64


def _spare(tiles: list[int], table: list[Tile]) -> dict[int, int]:
    """Bytes a partition that are free in program order while each tile is first used."""
    found: dict[int, int] = {}
    live: list[tuple[int, int]] = []
    used = 0
    for tile in tiles:
        one = table[tile]
        while live and live[0][0] < one.first_task:
            used -= heappop(live)[1]
        used += one.bytes_per_partition
        heappush(live, (one.last_task, one.bytes_per_partition))
        found[tile] = hw.SBUF_USABLE_BYTES_PER_PARTITION - used
    return found


class Space:
    """Free and granted space of one core's SBUF or PSUM."""

    def __init__(self, psum: bool, tiles: list[int], table: list[Tile]) -> None:
        self._psum = psum
        self._table = table
        self._waiting = deque(tiles)
        self.used_bytes = 0
        self.peak_bytes = 0
        #: (time, bytes per partition in use), for every change
        self.history: list[tuple[float, int]] = []
        self._sizes: Counter[int] = Counter()
        #: the space free in program order when each tile is first used, less that of later tiles granted by then
        self._spare = {} if psum else _spare(tiles, table)
        self._known: dict[frozenset[tuple[int, int]], bool] = {}

    def grant(self, time: float) -> list[int]:
        """Tiles that get their space now."""
        granted = []
        while self._waiting and self._fits(self._table[self._waiting[0]].bytes_per_partition):
            tile = self._waiting.popleft()
            self._take(self._table[tile].bytes_per_partition)
            granted.append(tile)
        if self._waiting and not self._psum:
            granted += self._grant_ahead()
        if granted:
            self.history.append((time, self.used_bytes))
        return granted

    def _grant_ahead(self) -> list[int]:
        """Of the next tiles those for which there is room next to all that comes before them."""
        granted: list[int] = []
        passed: list[int] = []
        room = 0  # the least that any of those passed leaves free
        for tile in [self._waiting[i] for i in range(min(AHEAD, len(self._waiting)))]:
            size = self._table[tile].bytes_per_partition
            if size <= room and self._fits(size):
                self._waiting.remove(tile)
                self._take(size)
                granted.append(tile)
                for other in passed:
                    self._spare[other] -= size
                room -= size
            else:
                room = min(room, self._spare[tile]) if passed else self._spare[tile]
                passed.append(tile)
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
