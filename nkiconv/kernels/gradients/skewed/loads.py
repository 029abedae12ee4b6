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


def skewed_tiles(work):
    """UnitTiles full of zeros; what is never loaded stays so."""
    plan, P_MAX = work.plan, nl.tile_size.pmax
    tiles = UnitTiles(
        x=nl.ndarray((P_MAX, plan.tiles, plan.groups, plan.window), dtype=work.x.dtype, buffer=nl.sbuf),
        gy=nl.ndarray((P_MAX, plan.tiles, plan.groups, plan.beside, plan.padded), dtype=work.gy.dtype, buffer=nl.sbuf),
    )
    clear_tiles(tiles)
    return tiles


def clear_tiles(tiles):
    """Zeros everywhere; two at once where they have 16 bits."""
    nisa.memset(dst=words_of(tiles.gy), value=0.0, engine=nisa.engine.vector)
    nisa.memset(dst=words_of(tiles.x), value=0.0, engine=nisa.engine.gpsimd)


def words_of(tile):
    """A tile as fp32."""
    return tile if tile.dtype == nl.float32 else tile.view(nl.float32)


def load_batch(work, block, tiles):
    """Units of the channels of a batch."""
    plan, geometry = work.plan, work.geometry
    if block.count < plan.beside * block.length:
        # what channels before left in places that these do not fill
        clear_tiles(tiles)
    x_runs = unit_runs(plan.units, plan.unit * geometry.stride, -geometry.pad_left, geometry.W, plan.window)
    gy_runs = unit_runs(plan.units, plan.unit, 0, geometry.Q, plan.unit)
    for row in range(plan.beside):
        channels = min(block.length, block.count - row * block.length)
        for tile in range(plan.tiles if channels > 0 else 0):
            there = (block.c0 + row * block.length, channels, row, tile)
            gy_sbuf, x_sbuf = tiles.gy[0 : tiles.gy.shape[0], tile, 0:channels, row, 0 : plan.padded], tiles.x
            x_sbuf = x_sbuf[0 : x_sbuf.shape[0], tile, 0:channels, 0 : plan.window]
            for run in gy_runs:
                load_units(work, gy_sbuf, work.gy, work.gy_strides, there, run, (plan.unit, 0))
            for run in x_runs:
                load_units(
                    work, x_sbuf, work.x, work.x_strides, there, run, (plan.unit * geometry.stride, geometry.pad_left)
                )


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
