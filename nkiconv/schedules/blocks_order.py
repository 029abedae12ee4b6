"""The order of a core's loads and matmuls in `blocks`: rows of tiles as they are loaded; for the last tile accumulator
by accumulator, so that each is evacuated during the matmuls of the next.

A pass of several rounds has all of its tiles in SBUF: the first round overlaps with loads, the others follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product

from .blocks import Accumulator, Pass, Tile
from .blocks_schedule import BlocksSchedule, chains_of
from .tiles import Part, cut_at


@dataclass(frozen=True)
class TileOf:
    """A tile of a pass."""

    one: Pass
    tile: Tile

    @cached_property
    def inside(self) -> tuple[Part, Part]:
        """(first, end) of the rows, and of the columns, of its windows that are inside x for any unit."""
        rows, columns = [one.rows for one in self.tile], [one.columns for one in self.tile]
        top, bottom = min(one.low for one in rows), max(one.high for one in rows)
        return (top, bottom), (min(one.low for one in columns), max(one.high for one in columns))


@dataclass(frozen=True)
class Products:
    """Products of a row of all blocks of a tile, of one member of its gang, for some accumulators of a round.

    Attributes:
        index: of the tile; member: of its gang; accumulators: of the round; banks: (first, count) of them.
        adds: whether other products of this order write the accumulators.
        last: whether their chain, whose sums are added in SBUF, is the last of the pass.
        starts, ends: whether they are the first of the round, the last of the accumulators' chain.
        oldest: the first tile that these or later products read.
    """

    index: int
    row: int
    member: int
    accumulators: tuple[Accumulator, ...]
    banks: Part
    adds: bool
    last: bool
    starts: bool = False
    ends: bool = False
    oldest: int = 0


def order_of(plan: BlocksSchedule, passes: Sequence[Pass], half: int) -> tuple[list[TileOf], list[Products]]:
    """Tiles of passes in the order of their use, and their products: over all tiles for half -1, or over the first or
    second half of the units."""
    tiles: list[TileOf] = []
    found: list[Products] = []
    for one in passes:
        start, some = len(tiles), (one.tiles, one.tiles[: one.half], one.tiles[one.half :])[half + 1]
        tiles += [TileOf(one, tile) for tile in some]
        for first, count in chains_of(plan, one, len(some)):
            found += _chain(plan, tiles, (start + first, count), half >= 0, first + count == len(some))
    oldest = [*accumulate((each.index for each in reversed(found)), min)][::-1]
    return tiles, [replace(each, oldest=first) for each, first in zip(found, oldest, strict=True)]


def _chain(plan: BlocksSchedule, tiles: Sequence[TileOf], part: Part, shared: bool, last: bool) -> Iterator[Products]:
    """Products of tiles (first, count) of a pass. shared: whether they are a half, whose sums the cores exchange; last:
    whether it is the pass's last chain."""
    first, end, rows = part[0], sum(part), range(plan.settings.rows)
    for number, accumulators in enumerate(tiles[first].one.rounds):
        every, done, rest = (0, len(accumulators)), first if number > 0 else end - 1, rows
        steps = [(every, index, rows) for index in range(first, done)]
        if number == 0 and shared and plan.transposes is None:
            # rows of the last tile as they are loaded, except the last one
            steps.append((every, done, rows[:-1]))
            rest = rows[-1:]
        # accumulator by accumulator, or one of each row tile at a time
        later = [
            (banks, index, rest)
            for banks in cut_at(len(accumulators), plan.settings.side)
            for index in range(done, end)
        ]
        found: list[Products] = []
        for at, (banks, index, some) in enumerate(steps + later):
            members = range(1 if plan.transposes is None else len(tiles[index].tile))
            # the row whose products write all sums: the first loaded, or for whole planes a row without zeros
            whole = tiles[index].one.first[0] if index == first else -1
            for row, member in product(sorted(some, key=lambda row: row != whole), members):
                adds = row != whole or member > 0
                found.append(Products(index, row, member, accumulators, banks, adds, last))
            if at >= len(steps) and index + 1 == end:
                found[-1] = replace(found[-1], ends=True)
        found[0] = replace(found[0], starts=True)
        yield from found
