"""Rows of unequal lengths side by side: blocks of up to 128 columns of sums, and the blocks of each core, in order.

A block has pieces of rows. In front of each are S - 1 columns, the tokens before it or its state, so that one window
covers the block; between pieces the sums of these columns belong to no token.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .depthwise import TINY_BYTES
from .split import HeadGroup, SplitGeometry, TokenRow, alternated, head_groups, shared_rows
from .tiles import P_MAX, Part, div_ceil, share, some_of

#: Bytes a partition of the channel tiles of a panel: x of several blocks, states, diagonals of filters.
PANEL_BYTES = 176_128
#: Blocks whose x is in SBUF at once, in memory order and in columns; rows whose states are transposed together.
HELD_BLOCKS, STATE_ROWS = 5, P_MAX
#: Steps of rows of one length that take as long as a block; as the longer wait for the first block; as a row's short
#: runs of HBM more than long ones; and rows whose states take as long as a step (modelled).
BLOCK_STEPS, BEGIN_STEPS, RUN_STEPS, STATE_STEP_ROWS = 1.15, 1.7, 0.28, 32


@dataclass(frozen=True)
class Piece:
    """Tokens first .. first + count - 1 of a row, which are token `token` of all of x and the next ones, in columns
    from `place` on of a block."""

    row: TokenRow
    first: int
    count: int
    place: int
    token: int

    @property
    def is_end(self) -> bool:
        """Whether it has the last token of its row."""
        return self.first + self.count == self.row.count


Block = tuple[Piece, ...]


@dataclass(frozen=True)
class Visit:
    """A block's sums of some groups of channels; ends: (group, first row, rows) whose last tokens are in this block or
    before it, rows whose states are transposed together."""

    block: Block
    groups: tuple[HeadGroup, ...]
    ends: tuple[tuple[HeadGroup, int, int], ...] = ()

    @property
    def columns(self) -> int:
        """Columns of sums."""
        return self.block[-1].place + self.block[-1].count


def by_image(geometry: SplitGeometry) -> bool:
    """Whether tokens of several images are no neighbours in HBM: then channels of an image are."""
    return geometry.N > 1 and geometry.x_t == 1


@functools.lru_cache(maxsize=64)
def blocks_of(geometry: SplitGeometry) -> tuple[Block, ...]:
    """The blocks of all rows."""
    found, halo = [list[Piece]()], geometry.S - 1
    for row in geometry.rows:
        first = 0
        while first < row.count:
            place = found[-1][-1].place + found[-1][-1].count + halo if found[-1] else 0
            # images that are no neighbours in HBM are whole
            if place + (row.count if by_image(geometry) else 1) > P_MAX:
                found.append([])
                continue
            count = min(row.count - first, P_MAX - place)
            token = row.image * geometry.T + row.first + first
            found[-1].append(Piece(row, first, count, place, token))
            first += count
    return tuple(tuple(block) for block in found if block)


def tokens_of(geometry: SplitGeometry, block: Block) -> Part:
    """(first, count) of all tokens of x that the windows of a block read."""
    first = block[0].token - min(geometry.S - 1, block[0].first)
    return first, block[-1].token + block[-1].count - first


def shares_blocks(geometry: SplitGeometry, has_states: bool) -> bool:
    """Whether rows share blocks for less time than steps of rows of one length take, with which states of few rows are
    transposed or small elements of HBM, and so is x of short images, channels first. Of 8,192 channels 64 rows of 1 to
    40 tokens take 115 us so in place of 465, 4 of 500 to 1,000 would take 220 in place of 195 (modelled)."""
    if geometry.S == 1 or len(geometry.rows) == 1 or (by_image(geometry) and not _has_equal_groups(geometry)):
        return False
    shared = shared_rows(geometry)
    steps: float = sum(div_ceil(row.count, P_MAX) for row, _ in shared)
    # short runs of HBM; a few bytes of images are transposed instead
    if geometry.x_t == 1 and (geometry.N == 1 or geometry.T * geometry.itemsize > TINY_BYTES):
        steps += RUN_STEPS * len(geometry.rows)
    if has_states:
        steps += sum(rows > 1 for _, rows in shared) + len(geometry.rows) // STATE_STEP_ROWS
    return BLOCK_STEPS * len(blocks_of(geometry)) + BEGIN_STEPS < steps


def _has_equal_groups(geometry: SplitGeometry) -> bool:
    """Whether blocks have whole images, and all groups have equally many neighbouring channels on each partition."""
    runs = {(group.tiles, len(group.runs), group.runs[0].rows) for group in head_groups(geometry)}
    return geometry.T <= P_MAX and len(runs) == 1 and runs.pop()[1] == 1


def panels(geometry: SplitGeometry, cores: int, core: int) -> Iterator[list[Visit]]:
    """The visits of one core, in order, by panels: groups whose filters are in SBUF together."""
    blocks, groups, kinds = blocks_of(geometry), list(head_groups(geometry)), []
    for normalised in (True, False):
        some = [group for group in groups if (group.heads > 0) == normalised]
        every = [(group, number) for group in some for number in range(len(blocks))]
        kinds.append(some_of(every, share(len(every), cores, core)))
    own = frozenset((group, number) for kind in kinds for group, number in kind)
    left = alternated([list(dict.fromkeys(group for group, _ in kind)) for kind in kinds])
    tiles = sum(group.tiles for group in left)
    most = div_ceil(tiles, max(1, div_ceil(tiles * panel_tile_bytes(geometry), PANEL_BYTES)))
    while left:
        panel = [left.pop(0)]
        while left and sum(group.tiles for group in panel) + left[0].tiles <= most:
            panel.append(left.pop(0))
        places = [(number, tuple(group for group in panel if (group, number) in own)) for number in range(len(blocks))]
        yield with_ends([Visit(blocks[number], some) for number, some in places if some])


def panel_tile_bytes(geometry: SplitGeometry) -> int:
    """Bytes a partition of a channel tile of a panel."""
    states = 2 * min(len(geometry.rows), 2 * STATE_ROWS)  # before and after rows
    columns = HELD_BLOCKS * (P_MAX + geometry.S - 1) + states * (geometry.S - 1)
    return (columns + geometry.S * P_MAX) * geometry.itemsize


def with_ends(visits: Sequence[Visit]) -> list[Visit]:
    """The visits with the ends of rows."""
    found, ended = list[Visit](), dict[HeadGroup, list[int]]()
    for index, visit in enumerate(visits):
        after = visits[index + 1].groups if index + 1 < len(visits) else ()
        ends = list[tuple[HeadGroup, int, int]]()
        for group in visit.groups:
            rows = ended.setdefault(group, [])
            rows += [piece.row.number for piece in visit.block if piece.is_end]
            runs = [[row for _, row in run] for _, run in itertools.groupby(enumerate(rows), key=_run_of)]
            left = runs[-1:] if group in after else []
            ends += [(group, run[0], len(run)) for run in runs[: len(runs) - len(left)]]
            ended[group] = [row for run in left for row in run]
        found.append(dataclasses.replace(visit, ends=tuple(ends)))
    return found


def _run_of(indexed: tuple[int, int]) -> tuple[int, int]:
    """What neighbouring rows whose states are transposed together have in common; indexed: (index, row)."""
    index, row = indexed
    return row // STATE_ROWS, row - index


def chunk_of(geometry: SplitGeometry, row: int) -> Part:
    """(first, count) of the rows whose states are transposed together with a row's."""
    first = row - row % STATE_ROWS
    return first, min(STATE_ROWS, len(geometry.rows) - first)
