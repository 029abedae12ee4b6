"""Tiles of `skewed`: units of x and gy of a batch's channels, with zeros where there is no element."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy


@dataclass
class UnitTiles(nl.NKIObject):
    """x [units, tiles of images, groups, window] and gy [units, tiles of images, groups, channels beside each other,
    positions] in SBUF."""

    x: object
    gy: object


@dataclass
class UnitRun(nl.NKIObject):
    """Units first .. first+count-1 of a row, of which elements low .. high-1 are there."""

    first: int
    count: int
    low: int
    high: int


def skewed_tiles(work, turn):
    """UnitTiles with zeros where nothing is ever loaded. turn: number of the tiles before, which decides who writes
    them."""
    plan, P_MAX = work.plan, nl.tile_size.pmax
    tiles = UnitTiles(
        x=nl.ndarray((P_MAX, plan.tiles, plan.groups, plan.window), dtype=work.x.dtype, buffer=nl.sbuf),
        gy=nl.ndarray((P_MAX, plan.tiles, plan.groups, plan.beside, plan.padded), dtype=work.gy.dtype, buffer=nl.sbuf),
    )
    engines = (nisa.engine.vector, nisa.engine.gpsimd)
    clear_gy(tiles, engines[turn % 2])
    low, high = 0, plan.window
    for run in x_runs(work):
        low, high = max(low, run.low), min(high, run.high)
    clear_x(tiles, (0, min(low, plan.window)), engines[(turn + 1) % 2])
    clear_x(tiles, (max(low, high), plan.window), engines[(turn + 1) % 2])
    return tiles


def clear_gy(tiles, engine):
    """Zeros in all of gy, two at once where they have 16 bits."""
    gy_sbuf = tiles.gy
    if gy_sbuf.dtype != nl.float32:
        gy_sbuf = gy_sbuf.view(nl.float32)
    nisa.memset(dst=gy_sbuf, value=0.0, engine=engine)


def clear_x(tiles, columns, engine):
    """Zeros in columns (first, end) of the windows of x."""
    first, end = columns
    if first < end:
        shape = tiles.x.shape
        nisa.memset(dst=tiles.x[0 : shape[0], 0 : shape[1], 0 : shape[2], first:end], value=0.0, engine=engine)


def x_runs(work):
    """UnitRuns of windows of x."""
    plan, geometry = work.plan, work.geometry
    return unit_runs(plan.units, plan.unit * geometry.stride, -geometry.pad_left, geometry.W, plan.window)


def load_batch(work, block, tiles):
    """Units of the channels of a batch."""
    plan, geometry = work.plan, work.geometry
    if block.count < plan.beside * block.length:
        # what channels before left in places that these do not fill
        clear_gy(tiles, nisa.engine.vector)
        clear_x(tiles, (0, plan.window), nisa.engine.gpsimd)
    gy_runs = unit_runs(plan.units, plan.unit, 0, geometry.Q, plan.unit)
    for row in range(plan.beside):
        channels = min(block.length, block.count - row * block.length)
        for tile in range(plan.tiles if channels > 0 else 0):
            there = (block.c0 + row * block.length, channels, row, tile)
            gy_sbuf, x_sbuf = tiles.gy[0 : tiles.gy.shape[0], tile, 0:channels, row, 0 : plan.padded], tiles.x
            x_sbuf = x_sbuf[0 : x_sbuf.shape[0], tile, 0:channels, 0 : plan.window]
            for run in gy_runs:
                load_units(work, gy_sbuf, work.gy, work.gy_strides, there, run, (plan.unit, 0))
            for run in x_runs(work):
                place = (plan.unit * geometry.stride, geometry.pad_left)
                load_units(work, x_sbuf, work.x, work.x_strides, there, run, place)


def unit_runs(units, apart, first, size, window):
    """UnitRuns of windows that begin `apart` elements apart, the first one at element `first` of `size`."""
    found = []
    for unit in range(units):
        start = first + unit * apart
        low = min(window, max(0, -start))
        high = max(low, min(window, size - start))
        joins = False
        if len(found) > 0:
            last = found[-1]
            joins = last.low == low and last.high == high
        if joins:
            last = found[-1]
            last.count = last.count + 1
        else:
            found.append(UnitRun(first=unit, count=1, low=low, high=high))
    return found


def load_units(work, tile_sbuf, hbm, strides, there, run, place):
    """A UnitRun of a tile [units, channels, elements]. there: (first channel, channels, row of those beside each other,
    tile of images); place: (elements between units, elements in front of the first)."""
    plan, size = work.plan, run.high - run.low
    c0, channels, row, tile = there
    n0 = tile * plan.images
    images = min(plan.images, work.geometry.N - n0)
    # units of a tile that has fewer images are apart
    together = run.count if images == plan.images else 1
    for unit in range(run.first, run.first + run.count if size > 0 else run.first, together):
        part = (row * plan.units + unit) * plan.images
        pattern = [[place[0] * strides[2], together], [strides[0], images]]
        pattern = pattern + [[strides[1], channels], [strides[2], size]]
        offset = n0 * strides[0] + c0 * strides[1] + (unit * place[0] - place[1] + run.low) * strides[2]
        into_sbuf = tile_sbuf[part : part + together * images, 0:channels, run.low : run.high]
        copy(into_sbuf, hbm.ap(pattern=pattern, offset=offset))
