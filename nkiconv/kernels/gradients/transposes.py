"""x and gy of NCHW transposed to units: loaded in memory order, framed by zeros, transposed, evacuated."""

from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from ..._nki import nisa, nl
from ...schedules.blocks import GY_TRANSPOSED
from ...schedules.blocks_transposes import SLABS, TOGETHER, plane_seen, sides_of
from ...schedules.cuts import places_inside
from ...schedules.tiles import BANK_BYTES, cut, div_ceil, size_of, some_of, whole_words
from .._dma import copy
from .._engines import copy_balanced, copy_by_vector
from .._masks import constant
from ..conv.filter_feed import Buffer
from ..conv.regions import around, clear_window, load_region, offset_at
from ..conv.sums import along
from .loads import Piece, load_x


@dataclass(eq=False)
class Held(nl.NKIObject):
    """A tile in SBUF of x at a plane of taps, or of gy; what it holds, by `held_of`; keys of its transposed pieces."""

    tile: object
    what: object = None
    done: list = field(default_factory=list)


@dataclass
class Ahead(nl.NKIObject):
    """Circular buffers: loaded pieces of x and of gy; slabs, tiles for a row of windows between zeros; banks.
    zeros_sbuf: zeros, or None; there: for each buffer (number of its tile, Held by plane of taps, -1 of gy); held: all
    Held of x, and of gy, those first that were used longest ago; done: the number of Products whose pieces are
    transposed; steps: the transposes of the next Products, or None; columns: of matmuls since the last bank that was
    transposed far ahead."""

    raws: list
    slabs: object
    banks: object
    zeros_sbuf: object
    there: list
    held: tuple
    done: int = 0
    steps: object = None
    columns: int = 0


def start_transposes(work, buffers):
    """An Ahead for buffers of tiles."""
    plan, dtypes, P_MAX = work.plan.transposes, (work.operands.x_dtype, work.operands.w_dtype), nl.tile_size.pmax

    def tiles(count, size, dtype, buffer=nl.sbuf):
        return [nl.ndarray((P_MAX, size), dtype=dtype, buffer=buffer) for _ in range(count)]

    raws = [cycle(tiles(plan.raws, *of)) for of in zip(plan.sizes, dtypes)]
    slabs = cycle([Buffer(tile) for tile in tiles(SLABS, plan.sizes[2], dtypes[0])])
    banks = cycle(tiles(plan.banks, BANK_BYTES // work.geometry.itemsize, dtypes[0], nl.psum))
    zeros_sbuf = constant((P_MAX, plan.sizes[3]), dtypes[0], 0.0) if plan.sizes[3] else None
    held = [Held(tile) for one in buffers for tile in one.x if tile is not None], [Held(one.y) for one in buffers]
    return Ahead(raws, slabs, banks, zeros_sbuf, [(-1, {})] * len(buffers), held)


def held_of(work, one, tile, t):
    """What a tile of a pass needs of x at a plane of taps, or of gy: channels, taps, planes and places. The pass's
    window (h, w) follows from its taps."""
    own = (one.k,) if t < 0 else (one.c, one.r, one.s)
    return own, [(plane_seen(work.geometry, t, each.z), each.p, each.q, each.counts) for each in tile]


def hold(work, ahead, feed, index):
    """Held for a tile of a Feed by plane of taps, -1 of gy: those that have what it needs, as neighbours see a plane at
    other taps and passes share channels; others of those used longest ago that no tile in its buffer reads."""
    one, tile, count, blocks = feed.tiles[index].one, feed.tiles[index].tile, len(feed.buffers), feed.of(index)
    needed = {t: held_of(work, one, tile, t) for t in (*one.planes, -1)}
    found: dict[int, Any] = {
        t: next((each for each in ahead.held[t < 0] if each.what == what), None) for t, what in needed.items()
    }
    taken = [each for at in range(max(0, index - count + 1), index) for each in ahead.there[at % count][1].values()]
    for t, what in needed.items():
        pool = ahead.held[t < 0]
        if found[t] is None:
            kept = {*taken, *found.values()}
            found[t] = next(each for each in pool if each not in kept)
            found[t].what, found[t].done = what, []
        pool.sort(key=lambda each: each is found[t])
    blocks.x, blocks.y = [found[t].tile if t in found else None for t in range(max(found) + 1)], found[-1].tile
    return found


def transposes_for(work, ahead, feed, some):
    """Transpose the pieces of a Feed's tile that Products need, unless they are transposed already, bank by bank: each
    step of this generator is one."""
    one, tile = feed.tiles[some.index].one, feed.tiles[some.index].tile
    slot, rows = some.index % len(feed.buffers), work.geometry.rows
    if ahead.there[slot][0] != some.index:
        ahead.there[slot] = (some.index, hold(work, ahead, feed, some.index))
    for accumulator in some_of(some.accumulators, some.banks):
        for t in (accumulator.t, -1) if accumulator.t >= 0 else (-1,):
            held = ahead.there[slot][1][t]
            if t >= 0 and work.plan.settings.pixels == GY_TRANSPOSED:
                if some.member not in held.done:
                    held.done.append(some.member)
                    load_member(work, feed.tiles[some.index], some.member, held.tile, t)
                continue
            last, own, needed = some.row, one.k[0], accumulator.k
            if t >= 0:
                last = some.row * rows.stride + (accumulator.r[0] - one.r[0] + accumulator.r[1] - 1) * rows.dilation
                own, needed = one.c[0][0], accumulator.c
            for side in sides_of(work.plan.source, work.plan.settings, one, tile, t):
                meets = side.meets(some.member, (needed[0] - own, needed[1]))
                for rows_of_piece in side.pieces(work.geometry.itemsize) if meets else ():
                    key = side.members[0], side.channels[0], rows_of_piece[0]
                    if rows_of_piece[0] <= last and key not in held.done:
                        held.done.append(key)
                        yield from transposes_of_piece(work, ahead, side, own, rows_of_piece, held.tile)


def load_member(work, tile, member, x_sbuf, t):
    """Load the windows of x of a tile's member, all of which exist, as they are in memory."""
    one, settings, region = tile.one, work.plan.settings, tile.tile[member]
    piece = Piece(settings.rows, settings.columns, one.k, one.c[0], one.r, one.s, one.h, one.w)
    into, (planes, *places) = x_sbuf[:, member * one.h[1] : (member + 1) * one.h[1]], region.counts
    # units are evenly spaced along two axes of a DMA
    each = planes if 1 in places else 1
    for z, part in zip(range(0, planes, each), range(0, size_of(region.counts), each * size_of(places))):
        load_x(work, [piece], [replace(region, part=part, z=region.z + z, counts=(each, *places))], into, t, one.h)


def transposes_of_piece(work, ahead, side, own, rows, tile_sbuf):
    """Load and transpose rows (first, count) of a Side into a tile. own: the tile's first channel in HBM."""
    loads, sources, filled, (c, channels) = side.loads(rows), [], [], side.channels
    raw = load_piece(work, ahead, side, rows, loads, own + c) if loads else None
    needed = range(div_ceil(rows[0], side.rows.spacing) * side.rows.spacing, sum(rows), side.rows.spacing)
    shape, span = bank_shape(work, side), side.columns
    bank: Any = None
    for index, row in enumerate(needed):
        # zeros are put around rows before earlier rows are evacuated from PSUM
        for later in needed[len(sources) : index + SLABS - 1]:
            sources.append(source_of(work, ahead, side, raw, rows, later))
        if sources[index] == None:
            zeros = tile_sbuf[:, lines_of(side, row), 0 : span.extent, c : c + channels]
            nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
            continue
        row_sbuf, start = sources[index]
        for part in cut(side.places, shape[1]):
            bank = bank if filled else bank_of(ahead, side, shape, tile_sbuf.dtype)
            into = bank[:, len(filled)] if shape[0] == 1 else bank[:, len(filled), :, 0]
            for place in range(part[1]):
                columns = along(start + (part[0] + place) * span.spacing, span.count, span.step)
                nisa.nc_transpose(dst=into[:, place], data=row_sbuf[:, :, :, columns], engine=nisa.engine.tensor)
            filled.append(row)
            if len(filled) == shape[0] or index + 1 == len(needed) or sources[index + 1] == None:
                evacuate(work, side, filled, part, bank, tile_sbuf)
                filled = []
                yield


def load_piece(work, ahead, side, rows, loads, channel):
    """Rows (first, count) of windows of a Side in SBUF, [(member, channel), planes, blocks, rows, columns]; members at
    different places have zeros where no element exists. channel: the first in HBM."""
    hbm, count, strides = work.operands.w if side.t < 0 else work.operands.x, side.channels[1], side.strides
    shape, parts = side.piece_shape(rows[1]), side.members[1] * count
    raw = next(ahead.raws[side.t < 0])[0:parts, 0 : size_of(shape)].reshape((parts, *shape))
    for member, (block, blocks), place, (row, column), (height, width) in loads:
        own, inside = slice(member * count, (member + 1) * count), (row, row + height, column, column + width)
        for first, end, low, high in around(shape[2], shape[3], inside) if side.is_apart else ():
            # by DMA, as engines would write zeros only after all their earlier work
            pattern = [[ahead.zeros_sbuf.shape[1], count], [0, side.count], [0, end - first], [1, high - low]]
            copy(raw[own, :, 0, first:end, low:high], ahead.zeros_sbuf.ap(pattern=pattern))
        if height > 0 and width > 0:
            pattern = [[strides[0], count], [strides[1] * side.apart, side.count]]
            pattern = pattern + [[strides[2] * side.rows.step, blocks], [strides[2], height], [strides[3], width]]
            offset = offset_at(strides, (channel, *place))
            load_region(raw, hbm, (own.start, 0, block, row, column), pattern, offset)
    return raw


def source_of(work, ahead, side, raw, rows, row):
    """(A row of all windows with zeros outside of the tensor, its first column in that view); None if all are zeros."""
    span, columns, frame = side.rows, side.columns, side.rows.frame
    first, end = places_inside(row - frame[0], span.step, span.count, frame[1] - frame[0])
    if raw is None or first == end:
        return None
    if rows[1] == span.extent:
        source = raw[:, :, 0, along(row + first * span.step - span.frame[0], end - first, span.step)]
    else:
        source = raw[:, :, first:end, row - rows[0]]
    if (first, end) == (0, span.count) and columns.frame[0] <= 0 and columns.frame[1] >= columns.width:
        return source, -columns.frame[0]
    return row_with_zeros(work, ahead, side, source, (first, end)), 0


def row_with_zeros(work, ahead, side, source, blocks):
    """Copy a row of windows of blocks (first, end) into a slab, with zeros around it."""
    span, one, shape, (first, last) = side.columns, next(ahead.slabs), side.slab_shape, blocks
    left, right, parts = max(0, span.frame[0]), min(span.width, span.frame[1]), source.shape[0]
    slab = one.tile.view(source.dtype)[0:parts, 0 : size_of(shape)].reshape((parts, *shape))
    strips = [(0, first, left, right), (last, side.rows.count, left, right)]
    if one.zeros != (slab.shape, left, right):
        one.zeros = slab.shape, left, right
        strips = strips + [(0, side.rows.count, 0, left), (0, side.rows.count, right, span.width)]
    for strip in strips:
        clear_window(slab, *strip, nisa.engine.gpsimd)
    columns = slice(left - span.frame[0], right - span.frame[0])
    copy_by_vector(slab[:, :, first:last, left:right], source[:, :, :, columns], work.ledger)
    return slab


def bank_shape(work, side):
    """(rows of windows, places, members, channels) of a bank of transposes: several rows of one member alone."""
    members, itemsize = side.members[1], work.geometry.itemsize
    room = whole_words(side.channels[1], itemsize)
    most = BANK_BYTES // (members * room * itemsize)
    rows = min(most, TOGETHER) // side.places if members == 1 else 1
    return max(1, rows), min(most, side.places), members, room


def bank_of(ahead, side, shape, dtype):
    """The view [units, rows, places, members, channels] of the next bank. shape: of `bank_shape`."""
    bank = next(ahead.banks).view(dtype)[:, 0 : size_of(shape)].reshape((nl.tile_size.pmax, *shape))
    return bank[0 : side.units, :, :, :, 0 : side.channels[1]]


def lines_of(side, row):
    """The lines of a tile of a row of windows, one for each member."""
    return along(side.members[0] * side.rows.extent + row, side.members[1], side.rows.extent)


def evacuate(work, side, rows, places, bank, tile_sbuf):
    """Evacuate a bank of rows of all windows at places (first, count) into a tile."""
    (c, channels), (first, count), step = side.channels, places, side.columns.spacing
    lines, found = lines_of(side, rows[0]), bank[:, 0, 0:count].permute((0, 2, 1, 3))
    if bank.shape[1] > 1:
        lines, found = along(lines.start, len(rows), side.rows.spacing), bank[:, 0 : len(rows), 0:count, 0]
    into = tile_sbuf[0 : side.units, lines, along(first * step, count, step), c : c + channels]
    copy_balanced(into, found, work.ledger)
