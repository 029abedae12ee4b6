"""Tiles of x and gy of blocks in SBUF: held until buffers are needed, and loaded, or transposed, if none holds what a
tile needs."""

from dataclasses import dataclass, field, replace
from typing import Any

from ..._nki import nisa, nl
from ...schedules.blocks import GY_TRANSPOSED, LINES, TRANSPOSED
from ...schedules.blocks_transposes import plane_seen, sides_of
from ...schedules.tiles import size_of
from .loads import Piece, as_stored, clear_tile, is_channels_last, load_lines, load_tile, load_x, tile_of


@dataclass
class Blocks(nl.NKIObject):
    """A buffer in SBUF of a tile of units: x by plane of taps [units, rows, columns, c], None for planes that no
    accumulator reads, and gy [units, rows, columns, k]. strip: in diagonals, the number of the strip whose zeros beside
    blocks the buffer holds; held: in `blocks`, the Held by plane of taps, -1 of gy."""

    x: list
    y: object
    strip: int = -1
    held: dict = field(default_factory=dict)


@dataclass(eq=False)
class Held(nl.NKIObject):
    """A tile in SBUF of x at a plane of taps, or of gy; what it holds: channels, taps, planes and places, from which
    the pass's window follows; the Sides and rows of the pieces to transpose yet."""

    tile: object
    what: object = None
    pieces: list = field(default_factory=list)


def pools_of(buffers):
    """All Held of x, and of gy, of buffers; those first that were used longest ago."""
    return [Held(tile) for one in buffers for tile in one.x if tile is not None], [Held(one.y) for one in buffers]


def start_buffers(work):
    """Buffers of a Feed, large enough for all passes; nothing is loaded."""
    plan, settings, (first, end) = work.plan, work.plan.settings, work.plan.cleared
    x_sizes = plan.gang * plan.x[0], *plan.x[1:]
    y_sizes = plan.gang * settings.rows, settings.columns, plan.k
    tiles = sum(len(one.tiles) for one in plan.passes)
    found = [new_blocks(work, x_sizes, y_sizes, plan.planes) for _ in range(min(settings.buffers, tiles))]
    for one in found if first < end else ():
        # matmuls of several columns read these channels beyond the loaded ones
        read = as_stored(one.y[:, :, :, first:end], is_channels_last(work.geometry.y_strides))
        nisa.memset(dst=read, value=0.0, engine=nisa.engine.vector)
    return found


def new_blocks(work, x_sizes, y_sizes, planes):
    """New Blocks of x_sizes and y_sizes (rows, columns, channels), with x at `planes` of taps."""
    geometry, operands, units = work.geometry, work.operands, nl.tile_size.pmax
    x_last, y_last = is_channels_last(geometry.x_strides), is_channels_last(geometry.y_strides)
    taps = range(geometry.planes.taps)
    x = [tile_of(x_last, (units, *x_sizes), operands.x_dtype) if t in planes else None for t in taps]
    return Blocks(x=x, y=tile_of(y_last, (units, *y_sizes), operands.w_dtype))


def hold(work, pools, feed, index):
    """Give a Feed's tile Held by plane of taps, -1 of gy, of pools of x and of gy: those that have what it needs, as
    passes share channels and neighbours see a plane at other taps; others of those used longest ago that no tile in its
    buffer reads, which are loaded, or whose pieces are noted."""
    one, tile, blocks = feed.tiles[index].one, feed.tiles[index].tile, feed.of(index)
    needed = {}
    for t in (*one.planes, -1):
        places = [(plane_seen(work.geometry, t, each.z), each.p, each.q, each.counts) for each in tile]
        # gy is on the row tiles that have channels of x
        needed[t] = (one.c, one.r, one.s) if t >= 0 else (one.k, [count > 0 for _, count in one.c[1:]]), places
    found: dict[int, Any] = {
        t: next((each for each in pools[t < 0] if each.what == what), None) for t, what in needed.items()
    }
    buffers = [feed.of(at) for at in range(max(0, index - len(feed.buffers) + 1), index)]
    taken, lacks = [each for one in buffers for each in one.held.values()], []
    for t, what in needed.items():
        pool = pools[t < 0]
        if found[t] is None:
            kept = {*taken, *found.values()}
            found[t] = next(each for each in pool if each not in kept)
            found[t].what, found[t].pieces = what, []
            lacks.append(t)
        pool.sort(key=lambda each: each is found[t])
    blocks.x, blocks.y = [found[t].tile if t in found else None for t in range(max(found) + 1)], found[-1].tile
    blocks.held = found
    load_held(work, feed.tiles[index], blocks, lacks)


def load_held(work, tile, blocks, planes):
    """Load planes of taps of a TileOf into Blocks, -1 of gy, or note their pieces to transpose."""
    pixels, loaded = work.plan.settings.pixels, []
    for t in planes:
        if pixels == TRANSPOSED or (pixels == GY_TRANSPOSED and t < 0):
            sides = sides_of(work.plan.source, work.plan.settings, tile.one, tile.tile, t)
            blocks.held[t].pieces = [(side, rows) for side in sides for rows in side.pieces(work.geometry.itemsize)]
        elif pixels == GY_TRANSPOSED:
            load_windows(work, tile, blocks.x[t], t)
        else:
            loaded.append(t)
    if loaded:
        load_blocks(work, tile, blocks, loaded)


def load_blocks(work, tile, blocks, planes):
    """Load planes of taps of a TileOf into Blocks, -1 of gy, as they are in memory or by lines."""
    plan, geometry, settings, one = work.plan, work.geometry, work.plan.settings, tile.one
    each, size = nl.tile_size.pmax // settings.side, (one.r, one.s, one.h, one.w)
    pieces = [
        Piece(settings.rows, settings.columns, one.k, c, *size, part * each)
        for part, c in enumerate(one.c)
        if part == 0 or c[1] > 0
    ]
    clear_tile(geometry, pieces[0], tile.tile, blocks, planes)
    if settings.pixels != LINES:
        # whole planes are runs
        by_rows = is_channels_last(geometry.x_strides) or settings.rows < geometry.rows.out
        load_tile(work, pieces, tile.tile, blocks, planes, 1 if by_rows else settings.rows)
        return
    if 0 in planes:
        load_lines(work.operands.x, plan.source.x_strides, one.c[0], tile.tile, blocks.x[0])
    if -1 in planes:
        load_lines(work.operands.w, plan.source.y_strides, one.k, tile.tile, blocks.y)


def load_windows(work, tile, x_sbuf, t):
    """Load the windows of x of a tile, all of which exist, as they are in memory."""
    one, settings = tile.one, work.plan.settings
    piece = Piece(settings.rows, settings.columns, one.k, one.c[0], one.r, one.s, one.h, one.w)
    for member, region in enumerate(tile.tile):
        into, (planes, *places) = x_sbuf[:, member * one.h[1] : (member + 1) * one.h[1]], region.counts
        # units are evenly spaced along two axes of a DMA
        each = planes if 1 in places else 1
        for z, part in zip(range(0, planes, each), range(0, size_of(region.counts), each * size_of(places))):
            load_x(work, piece, [replace(region, part=part, z=region.z + z, counts=(each, *places))], into, t, one.h)
