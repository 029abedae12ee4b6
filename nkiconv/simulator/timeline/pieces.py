"""Tiles of SBUF by the parts that DMAs load: each part has its space for as long as someone uses it.

Space is granted by address, and a load must wait only for the readers of the bytes at its address: if a block's buffer
replaces an earlier one, its first rows load while the last rows of the other are still read (CB: blocks of which two do
not fit take no longer than those that do).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .. import hardware as hw
from ..memory import SBUF, Region
from ..program import Program
from .overlap import extent

#: Parts of one tile, at most; one with more is one part.
MOST = 64


class Pieces:
    """The parts of one core's tiles; whole tiles if all of the core's tiles fit at once, so that none waits."""

    def __init__(self, program: Program) -> None:
        #: first bytes of the parts of tiles that have some, and where the last one ends
        self._bounds: dict[int, list[int]] = {}
        tiles = [tile for tile in program.allocations if tile.buffer is SBUF and tile.address is None]
        if sum(tile.bytes_per_partition for tile in tiles) > hw.SBUF_USABLE_BYTES_PER_PARTITION:
            self._cut(program)

    def _cut(self, program: Program) -> None:
        cuts: dict[int, set[int]] = {}
        for each in program.instructions:
            if each.engine == "dma" and each.writes[0].info.buffer is SBUF:
                at = extent(each.writes[0])
                cuts.setdefault(each.writes[0].info.id, set()).update((at.b0, at.b1))
        for tile in program.allocations:
            inner = cuts.get(tile.id, set()) - {0, tile.bytes_per_partition}
            if inner and len(inner) < MOST and tile.address is None:
                self._bounds[tile.id] = [0, *sorted(inner), tile.bytes_per_partition]

    def of(self, region: Region) -> list[tuple[int, int]]:
        """(first byte, bytes per partition) of the parts that a view has a byte in, or may."""
        bounds = self._bounds.get(region.info.id)
        if bounds is None:
            return [(0, region.info.bytes_per_partition)]
        at = extent(region)
        first, end = bisect_right(bounds, at.b0) - 1, bisect_left(bounds, at.b1)
        return [(bounds[i], bounds[i + 1] - bounds[i]) for i in range(first, end)]
