"""Tiles of `skewed`: units of x and gy of a batch's channels, with zeros outside x and gy."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.skewed import unit_runs, x_runs
from ..._dma import copy


@dataclass
class UnitTiles(nl.NKIObject):
    """x [units, tiles of images, groups, window] and gy [units, tiles of images, groups, beside, positions] in SBUF."""

    x: object
    gy: object


def skewed_tiles(work, turn):
    """UnitTiles with zeros in elements that are never loaded. turn: number of earlier tiles, which rotates engines."""
    plan, P_MAX = work.plan, nl.tile_size.pmax
    tiles = UnitTiles(
        x=nl.ndarray((P_MAX, plan.tiles, plan.groups, plan.window), dtype=work.x.dtype, buffer=nl.sbuf),
        gy=nl.ndarray((P_MAX, plan.tiles, plan.groups, plan.beside, plan.padded), dtype=work.gy.dtype, buffer=nl.sbuf),
    )
    engines = (nisa.engine.vector, nisa.engine.gpsimd)
    clear_gy(tiles, engines[turn % 2])
    runs = x_runs(work.plan, work.geometry)
    low, high = max(run.low for run in runs), min(run.high for run in runs)
    # the last tile may have partitions for more images than there are
    whole = plan.tiles if plan.tiles * plan.images == work.geometry.N else plan.tiles - 1
    engine = engines[(turn + 1) % 2]
    clear_x(tiles, (0, whole), (0, low), engine)
    clear_x(tiles, (0, whole), (max(low, high), plan.window), engine)
    clear_x(tiles, (whole, plan.tiles), (0, plan.window), engine)
    return tiles


def clear_gy(tiles, engine):
    """Zeros in all of gy, two of 16 bits at once."""
    is_fp32 = tiles.gy.dtype == nl.float32
    nisa.memset(dst=tiles.gy if is_fp32 else tiles.gy.view(nl.float32), value=0.0, engine=engine)


def clear_x(tiles, numbers, columns, engine):
    """Zeros in columns (first, end) of the windows of x, of tiles of images (first, end)."""
    (tile, last), (first, end) = numbers, columns
    if tile < last and first < end:
        shape = tiles.x.shape
        nisa.memset(dst=tiles.x[0 : shape[0], tile:last, 0 : shape[2], first:end], value=0.0, engine=engine)


def load_batch(work, block, tiles):
    """Load the units of a batch's channels."""
    plan = work.plan
    each, length = plan.channels, block.length
    is_full = block.count == each * plan.stacks * length
    if not is_full:
        # earlier channels' elements in places that these do not fill
        clear_gy(tiles, nisa.engine.vector)
        clear_x(tiles, (0, plan.tiles), (0, plan.window), nisa.engine.gpsimd)
    for row in range(plan.beside):
        # parts of taps have the same channels, on the same partitions, and the same windows of x
        line = row if plan.apart == 0 else 0
        for stack in range(1 if is_full else plan.stacks):
            before = (stack * each + line) * length
            count = max(0, min(length, block.count - before))
            channels = (block.c0 + before, plan.stacks if is_full else 1, each * length, count)
            for tile in range(plan.tiles if count > 0 else 0):
                load_row(work, tiles, (channels, stack * length, line, tile), row)


def load_row(work, tiles, there, row):
    """Load units of gy of some channels of a tile of images for a row of T, and of x if no other row loads it. there:
    as in `load_units`."""
    plan, geometry, P_MAX = work.plan, work.geometry, nl.tile_size.pmax
    channels, group, line, tile = there
    end, first = group + channels[1] * channels[3], plan.first - (row * plan.apart)
    gy_sbuf = tiles.gy[0:P_MAX, tile, group:end, row, 0 : plan.padded]
    for run in unit_runs(plan.units, plan.unit, first * plan.unit, geometry.Q, plan.unit):
        load_units(work, gy_sbuf, work.gy, work.gy_strides, there, run, (plan.unit, first * plan.unit))
    x_sbuf, apart = tiles.x[0:P_MAX, tile, group:end, 0 : plan.window], plan.unit * geometry.stride
    for run in x_runs(plan, geometry) if row == line else []:
        place = (apart, plan.first * apart - geometry.pad_left)
        load_units(work, x_sbuf, work.x, work.x_strides, there, run, place)


def load_units(work, tile_sbuf, hbm, strides, there, run, place):
    """Load a Run of a tile [units, channels, elements]. there: ((first channel, number of runs of neighbours, channels
    between runs, neighbours of a run), group of the first, row of the channels that share a matmul, tile of images);
    place: (elements between units, first element of the first unit)."""
    plan, size, (channels, _, line, tile) = work.plan, run.high - run.low, there
    n0 = tile * plan.images
    images = min(plan.images, work.geometry.N - n0)
    # with fewer images than the tile's, units are not contiguous
    together = run.count if images == plan.images else 1
    for unit in range(run.first, run.first + run.count if size > 0 else run.first, together):
        part = (line * plan.units + unit) * plan.images
        pattern = [[place[0] * strides[2], together], [strides[0], images]]
        pattern = pattern + [[channels[2] * strides[1], channels[1]], [strides[1], channels[3]], [strides[2], size]]
        offset = n0 * strides[0] + channels[0] * strides[1] + (unit * place[0] + place[1] + run.low) * strides[2]
        into_sbuf = tile_sbuf[part : part + together * images, 0 : channels[1] * channels[3], run.low : run.high]
        copy(into_sbuf, hbm.ap(pattern=pattern, offset=offset))
