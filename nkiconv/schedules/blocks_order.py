"""The order of a core's loads and matmuls in `blocks`: rows of tiles as they are loaded; for the last tile accumulator
by accumulator, so that each is evacuated during the matmuls of the next.

A pass of several rounds has all of its tiles in SBUF: the first round overlaps with loads, the others follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .blocks import Accumulator, Pass, Tile
from .blocks_schedule import BlocksSchedule, chains_of
from .tiles import Part, cut_at

#: (first, end) of rows, and of columns, of windows.
Inside = tuple[Part, Part]


@dataclass(frozen=True)
class TileOf:
    """A tile of a pass, and its number there; inside: the part of its windows inside x for any unit, for each of its
    gang or for all together."""

    one: Pass
    number: int
    inside: tuple[Inside, ...]

    @property
    def tile(self) -> Tile:
        """Its Regions."""
        return self.one.tiles[self.number]


@dataclass(frozen=True)
class Products:
    """Products of a row of all blocks of a tile, of one member of its gang, for some accumulators of a round.

    Attributes:
        index: of the tile; member: of its gang; accumulators: of the round; banks: (first, count) of them.
        adds: whether other products of this order write the accumulators.
        starts, ends: whether they are the first of the round, the last of the accumulators' chain.
        chain, last: number of the chain, whose sums are added in SBUF, and whether it is the last of the pass.
        stays: the first tile that must stay in SBUF; oldest: the first tile that these or later products read.
    """

    index: int
    row: int
    member: int
    accumulators: tuple[Accumulator, ...]
    banks: Part
    adds: bool
    stays: int
    starts: bool = False
    ends: bool = False
    chain: int = 0
    last: bool = True
    oldest: int = 0


@dataclass(frozen=True)
class Order:
    """Tiles in the order of their use, and their products."""

    tiles: tuple[TileOf, ...]
    products: tuple[Products, ...]


def order_of(plan: BlocksSchedule, passes: Sequence[Pass], half: int) -> Order:
    """The Order of passes in sequence over all of their tiles, for half -1, or over the first or second half of the
    units."""
    tiles: list[TileOf] = []
    found: list[tuple[Products, int, bool]] = []
    for one in passes:
        start, numbers = len(tiles), range(len(one.tiles))
        if half >= 0:
            numbers = numbers[: one.half] if half == 0 else numbers[one.half :]
        tiles += [TileOf(one, number, inside_of(one.tiles[number], plan.transposes is not None)) for number in numbers]
        chains = chains_of(plan, one, len(numbers))
        for number, (first, count) in enumerate(chains):
            some, last = _chain(plan, tiles, (start + first, count), half >= 0), number + 1 == len(chains)
            found += [(each, number, last) for each in some]
    products, oldest = list[Products](), len(tiles)
    for each, number, last in reversed(found):
        oldest = min(oldest, each.index)
        products.append(replace(each, chain=number, last=last, oldest=oldest))
    return Order(tuple(tiles), tuple(reversed(products)))


def _chain(plan: BlocksSchedule, tiles: Sequence[TileOf], part: Part, shared: bool) -> Iterator[Products]:
    """Products of tiles (first, count) of a pass. shared: whether they are a half, whose sums the cores exchange."""
    (first, count), rounds, rows = part, tiles[part[0]].one.rounds, range(plan.settings.rows)
    end, some = first + count, len(rounds) > 1
    for number, accumulators in enumerate(rounds):
        every, done, rest = (0, len(accumulators)), first if number > 0 else end - 1, rows
        found: list[Products] = []
        for index in range(first, done):
            found += _rows(plan, tiles, index, rows, accumulators, every, first, some)
        if number == 0 and shared and plan.transposes is None:
            # rows of the last tile as they are loaded, except the last one
            found += _rows(plan, tiles, done, rows[:-1], accumulators, every, first, some)
            rest = rows[-1:]
        # accumulator by accumulator, or one of each row tile at a time
        for banks in cut_at(len(accumulators), plan.settings.side):
            # tiles of several rounds stay until the last accumulator
            stay = some and (number < len(rounds) - 1 or sum(banks) < len(accumulators))
            for index in range(done, end):
                found += _rows(plan, tiles, index, rest, accumulators, banks, first, stay)
            found[-1] = replace(found[-1], ends=True)
        found[0] = replace(found[0], starts=True)
        yield from found


def _rows(
    plan: BlocksSchedule,
    tiles: Sequence[TileOf],
    index: int,
    rows: range,
    accumulators: tuple[Accumulator, ...],
    banks: Part,
    start: int,
    stay: bool,
) -> list[Products]:
    """Products of rows of a tile. start: the first tile of the chain; stay: whether tiles from it on must stay."""
    members = len(tiles[index].tile) if plan.transposes is not None else 1
    # the row whose products write all sums: the first loaded, or for whole planes a row without zeros
    clips = tiles[index].one.clips or (0, 0)
    first = clips[0] if index == start else -1
    order = sorted(rows, key=lambda row: row != first)
    return [
        Products(index, row, member, accumulators, banks, row != first or member > 0, start if stay else index)
        for row in order
        for member in range(members)
    ]


def inside_of(tile: Tile, each: bool) -> tuple[Inside, ...]:
    """The part of a tile's windows inside x, for each of its Regions or for all together."""
    found = [((region.rows.low, region.rows.high), (region.columns.low, region.columns.high)) for region in tile]
    if each:
        return tuple(found)
    (top, bottom), (left, right) = (tuple(zip(*axis, strict=True)) for axis in zip(*found, strict=True))
    return (((min(top), max(bottom)), (min(left), max(right))),)
