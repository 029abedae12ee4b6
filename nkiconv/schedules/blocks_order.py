"""The order of a core's loads and matmuls in `blocks`: rows of tiles as they are loaded; for the last tile accumulator
by accumulator, so that each is evacuated during the matmuls of the next; so for all tiles that are still in SBUF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product

from .blocks import Pass, Tile
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
    """Products of a row of all blocks of a tile, of one member of its gang, for some accumulators of its pass.

    Attributes:
        one: the pass; index: of the tile; member: of its gang; banks: (first, count) of accumulators.
        adds: whether other products of this order write the accumulators.
        last: whether their chain, whose sums are added in SBUF, is the last of the pass.
        starts, ends: whether they are the first, the last of the accumulators' chain.
        oldest: the first tile that these or later products read.
    """

    one: Pass
    index: int
    row: int
    member: int
    banks: Part
    adds: bool
    last: bool = False
    starts: bool = False
    ends: bool = False
    oldest: int = 0


def order_of(plan: BlocksSchedule, passes: Sequence[Pass], half: int) -> tuple[list[TileOf], list[Products]]:
    """Tiles of passes in the order of their use, and their products: over all tiles for half -1, or over the first or
    second half of the units."""
    tiles: list[TileOf] = []
    found: list[Products] = []
    for one in passes:
        some = (one.tiles, one.tiles[: one.half], one.tiles[one.half :])[half + 1]
        held = len(some) <= plan.settings.buffers and bool(tiles) and tiles[-1].one.loads == one.loads
        start = len(tiles) - (len(some) if held else 0)
        tiles += [] if held else [TileOf(one, tile) for tile in some]
        shared = half >= 0 and plan.transposes is None and not held
        for first, count in chains_of(plan, one, len(some)):
            chain = _chain(plan, one, tiles, (start + first, count), held, shared)
            found += [replace(each, last=first + count == len(some)) for each in chain]
    oldest = [*accumulate((each.index for each in reversed(found)), min)][::-1]
    return tiles, [replace(each, oldest=first) for each, first in zip(found, oldest, strict=True)]


def _chain(
    plan: BlocksSchedule, one: Pass, tiles: Sequence[TileOf], part: Part, held: bool, by_rows: bool
) -> list[Products]:
    """Products of tiles (first, count) of a pass. held: whether all of them are in SBUF; by_rows: whether products of
    the last tile follow its loads."""
    first, end, rows = part[0], sum(part), range(plan.settings.rows)
    every, done, rest = (0, len(one.accumulators)), first if held else end - 1, rows
    steps = [(every, index, rows) for index in range(first, done)]
    if by_rows:
        # rows of the last tile as they are loaded, except the last one
        steps.append((every, done, rows[:-1]))
        rest = rows[-1:]
    # accumulator by accumulator, or one of each row tile at a time
    groups = cut_at(len(one.accumulators), plan.settings.side)
    later = [(banks, index, rest) for banks in groups for index in range(done, end)]
    found: list[Products] = []
    for at, (banks, index, some) in enumerate(steps + later):
        members = range(1 if plan.transposes is None else len(tiles[index].tile))
        # the row whose products write all sums: the first loaded, or for whole planes a row without zeros
        whole = one.first[0] if index == first else -1
        for row, member in product(sorted(some, key=lambda row: row != whole), members):
            found.append(Products(one, index, row, member, banks, row != whole or member > 0))
        if at >= len(steps) and index + 1 == end:
            found[-1] = replace(found[-1], ends=True)
    return [replace(found[0], starts=True), *found[1:]]
