"""What a core has at hand: buffers that are taken in turn, matrices, planes on their way."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.geometry import Geometry
from ....schedules.options import Extras
from ....schedules.tiles import div_ceil, filled
from ..._engines import Ledger, is_16bit, new_ledger
from ..call import Operands
from ..filter_feed import tiles_in_turn
from .filters import copy_backwards, load_depthwise_taps, load_matrices
from .shape import (
    FRAMED,
    LOADED,
    RAWS,
    ToeplitzBlocks,
    framed_shape,
    groups_of,
    has_own_columns,
    matrices_shape,
    matrix_size,
    rounds_of,
    x_shape,
)


@dataclass
class Buffer(nl.NKIObject):
    """A tile that is taken in turn, its words of four bytes if it holds whole ones, where it has zeros that stay."""

    tile: object
    words: object = None
    zeros: object = None


@dataclass
class BlocksWork(nl.NKIObject):
    """What one core has at hand: matrices by round, buffers, planes by item."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    blocks: ToeplitzBlocks
    items: list
    ledger: Ledger
    #: filters as they lie, their sequences backwards
    taps: list
    lines: list
    #: (first channel, how many) whose matrices come together
    rounds: list
    matrices: list
    matrices_tiles: list
    x: list
    raws: list
    framed: list
    planes: list
    loaded_so_far: int = 0
    framed_so_far: int = 0


def start_blocks_work(operands, geometry, extras, blocks, items):
    """The BlocksWork of some items, with nothing on its way."""
    largest, framed, groups = filled(5, 1), filled(3, 1), 1
    for one in items:
        largest = most_each(largest, x_shape(blocks, one))
        framed = most_each(framed, framed_shape(geometry, blocks, one))
        groups = max(groups, groups_of(blocks, one))
    tiles, frames, raws = [], [], []
    for _ in range(blocks.settings.buffers):
        tile_sbuf = nl.ndarray(tuple(largest), dtype=operands.x_dtype, buffer=nl.sbuf)
        whole = is_16bit(operands.x_dtype) and largest[4] % 2 == 0
        tiles.append(Buffer(tile=tile_sbuf, words=tile_sbuf.view(nl.float32) if whole else None))
    if not blocks.by_pixels:
        count = LOADED * groups
        if not has_own_columns(geometry, blocks):
            raws = tiles_in_turn(RAWS * groups, (framed[0], framed[1], geometry.columns.size), operands.x_dtype)
            count = FRAMED * groups
        for one in tiles_in_turn(count, tuple(framed), operands.x_dtype):
            frames.append(Buffer(tile=one))
    rounds = rounds_of(blocks, items[0].chunk, items[-1].chunk)
    count, channels = matrices_shape(blocks)
    matrices = (largest[0], channels, matrix_size(blocks))
    c0, end = rounds[0][0], rounds[-1]
    return BlocksWork(
        operands=operands,
        geometry=geometry,
        extras=extras,
        blocks=blocks,
        items=items,
        ledger=new_ledger(),
        taps=load_depthwise_taps(operands, geometry, c0, end[0] + end[1] - c0),
        lines=[],
        rounds=rounds,
        matrices=[],
        matrices_tiles=tiles_in_turn(count, matrices, operands.w_dtype),
        x=tiles,
        raws=raws,
        framed=frames,
        planes=[],
    )


def most_each(most, extents):
    """The larger of each two extents."""
    found = []
    for index in range(len(extents)):
        found.append(max(most[index], extents[index]))
    return found


def matrices_for(work, index):
    """Have the matrices of item number `index` be on their way, and those of the next one, if there is a tile for
    them."""
    for one in range(index, min(len(work.items), index + len(work.matrices_tiles))):
        number = (work.items[one].chunk - work.items[0].chunk) // work.blocks.together
        while len(work.matrices) <= number:
            c0, cn = work.rounds[len(work.matrices)]
            at = c0 - work.rounds[0][0]
            lines_until(work, div_ceil(at + cn, nl.tile_size.pmax))
            tile = work.matrices_tiles[len(work.matrices) % len(work.matrices_tiles)]
            work.matrices.append(
                load_matrices(tile, work.lines, work.operands, work.geometry, work.blocks, (at, c0, cn))
            )


def lines_until(work, count):
    """Have the first `count` parts of the filters' sequences be there."""
    while len(work.lines) < min(count, len(work.taps)):
        w_sbuf = work.taps[len(work.lines)]
        work.lines.append(copy_backwards(w_sbuf, work.operands, work.geometry, work.blocks))
