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
    """A tile in SBUF of x at a plane of taps, or of gy; what it holds: channels, taps, planes and places, from which
    the pass's window follows; the Sides and rows of the pieces to transpose yet."""

    tile: object
    what: object = None
    pieces: list = field(default_factory=list)


@dataclass
class Ahead(nl.NKIObject):
    """Circular buffers: loaded pieces of x and of gy; slabs, tiles for a row of windows between zeros; banks.
    zeros_sbuf: zeros, or None; held: all Held of x, and of gy, those first that were used longest ago; done: the number
    of Products whose pieces are transposed; steps: the transposes of the next Products, or None; columns: of matmuls
    since the last bank that was transposed far ahead."""

    raws: list
    slabs: object
    banks: object
    zeros_sbuf: object
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
    return Ahead(raws, slabs, banks, zeros_sbuf, held)


def hold(work, ahead, feed, index):
    """Give a Feed's tile Held by plane of taps, -1 of gy: those that have what it needs, as neighbours see a plane at
    other taps and passes share channels; others of those used longest ago that no tile in its buffer reads."""
    one, tile, blocks = feed.tiles[index].one, feed.tiles[index].tile, feed.of(index)
    needed = {}
    for t in (*one.planes, -1):
        places = [(plane_seen(work.geometry, t, each.z), each.p, each.q, each.counts) for each in tile]
        needed[t] = (one.c, one.r, one.s) if t >= 0 else one.k, places
    found: dict[int, Any] = {
        t: next((each for each in ahead.held[t < 0] if each.what == what), None) for t, what in needed.items()
    }
    buffers = [feed.of(at) for at in range(max(0, index - len(feed.buffers) + 1), index)]
    taken = [each for one in buffers for each in one.held.values()]
    for t, what in needed.items():
        pool = ahead.held[t < 0]
        if found[t] is None:
            kept = {*taken, *found.values()}
            found[t] = next(each for each in pool if each not in kept)
            found[t].what, found[t].pieces = what, []
            if t >= 0 and work.plan.settings.pixels == GY_TRANSPOSED:
                load_windows(work, feed.tiles[index], found[t].tile, t)
            else:
                sides = sides_of(work.plan.source, work.plan.settings, one, tile, t)
                found[t].pieces = [(side, rows) for side in sides for rows in side.pieces(work.geometry.itemsize)]
        pool.sort(key=lambda each: each is found[t])
    blocks.x, blocks.y = [found[t].tile if t in found else None for t in range(max(found) + 1)], found[-1].tile
    blocks.held = found


def transposes_for(work, ahead, feed, some):
    """Transpose the pieces of a Feed's tile that Products need, unless they are transposed already, bank by bank: each
    step of this generator is one."""
    feed.until(some.index + 1)
    rows, held = work.geometry.rows, feed.of(some.index).held
    for acc in some_of(some.accumulators, some.banks):
        last = some.row * rows.stride + (acc.r[0] - feed.tiles[some.index].one.r[0] + acc.r[1] - 1) * rows.dilation
        for t, (channels, row) in {acc.t: (acc.c, last), -1: (acc.k, some.row)}.items():
            for side, piece in list(held[t].pieces):
                if piece[0] <= row and side.meets(some.member, channels):
                    held[t].pieces.remove((side, piece))
                    yield from transposes_of_piece(work, ahead, side, piece, held[t].tile)


def load_windows(work, tile, x_sbuf, t):
    """Load the windows of x of a tile, all of which exist, as they are in memory."""
    one, settings = tile.one, work.plan.settings
    piece = Piece(settings.rows, settings.columns, one.k, one.c[0], one.r, one.s, one.h, one.w)
    for member, region in enumerate(tile.tile):
        into, (planes, *places) = x_sbuf[:, member * one.h[1] : (member + 1) * one.h[1]], region.counts
        # units are evenly spaced along two axes of a DMA
        each = planes if 1 in places else 1
        for z, part in zip(range(0, planes, each), range(0, size_of(region.counts), each * size_of(places))):
            load_x(work, [piece], [replace(region, part=part, z=region.z + z, counts=(each, *places))], into, t, one.h)


def transposes_of_piece(work, ahead, side, rows, tile_sbuf):
    """Load and transpose rows (first, count) of a Side into a tile; each step evacuates a bank: places of a row of
    windows, or several rows of a single member."""
    loads, sources, span, first = side.loads(rows), [], side.columns, side.channels[0] - side.first
    raw = load_piece(work, ahead, side, rows, loads) if loads else None
    needed = range(div_ceil(rows[0], side.rows.spacing) * side.rows.spacing, sum(rows), side.rows.spacing)
    members, channels, itemsize = side.members[1], side.channels[1], work.geometry.itemsize
    room = whole_words(channels, itemsize)
    most = BANK_BYTES // (members * room * itemsize)
    high = max(1, TOGETHER // room // side.places) if members == 1 else 1
    filled = 0
    for index, row in enumerate(needed):
        # zeros are put around rows before earlier rows are evacuated from PSUM
        for later in needed[len(sources) : index + SLABS - 1]:
            sources.append(source_of(work, ahead, side, raw, rows, later))
        # lines of the tile, one for each member, or one for each row
        line = side.members[0] * side.rows.extent + row - filled * side.rows.spacing
        lines = along(line, members + filled, side.rows.extent if members > 1 else side.rows.spacing)
        into = tile_sbuf[:, lines, 0 : span.extent, first : first + channels]
        if sources[index] == None:
            nisa.memset(dst=into, value=0.0, engine=nisa.engine.gpsimd)
            continue
        row_sbuf, start = sources[index]
        is_full = filled + 1 == high or index + 1 == len(needed) or sources[index + 1] == None
        for place, count in cut(side.places, most):
            if filled == 0:
                bank = next(ahead.banks).view(tile_sbuf.dtype)[:, 0 : high * members * count * room]
                bank = bank.reshape((nl.tile_size.pmax, high * members, count, room))[0 : side.units, :, :, 0:channels]
            for at in range(count):
                columns = along(start + (place + at) * span.spacing, span.count, span.step)
                dst = bank[:, filled : filled + members, at]
                nisa.nc_transpose(dst=dst, data=row_sbuf[:, :, :, columns], engine=nisa.engine.tensor)
            if is_full:
                places = along(place * span.spacing, count, span.spacing)
                copy_balanced(into[0 : side.units, :, places], bank[:, 0 : filled + members], work.ledger)
                yield
        filled = 0 if is_full else filled + 1


def load_piece(work, ahead, side, rows, loads):
    """Rows (first, count) of windows of a Side in SBUF, [(member, channel), planes, blocks, rows, columns]; members at
    different places have zeros where no element exists."""
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
            offset = offset_at(strides, (side.channels[0], *place))
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
