"""x and gy of NCHW transposed to units: loaded in memory order, framed by zeros, transposed, evacuated."""

from dataclasses import dataclass
from itertools import cycle

from ..._nki import nisa, nl
from ...schedules.blocks_transposes import SLABS, TOGETHER
from ...schedules.cuts import places_inside
from ...schedules.tiles import BANK_BYTES, cut, div_ceil, size_of, some_of, whole_words
from .._dma import copy
from .._engines import copy_balanced, copy_by_vector
from .._masks import constant
from ..conv.filter_feed import Buffer
from ..conv.regions import around, clear_window, load_region, offset_at
from ..conv.sums import along


@dataclass
class Ahead(nl.NKIObject):
    """Circular buffers: loaded pieces of x and of gy; slabs, tiles for a row of windows between zeros; banks.
    zeros_sbuf: zeros, or None; done: the number of Products whose pieces are transposed; steps: the transposes of the
    next Products, or None; columns: of matmuls since the last bank that was transposed far ahead."""

    raws: list
    slabs: object
    banks: object
    zeros_sbuf: object
    done: int = 0
    steps: object = None
    columns: int = 0


def start_transposes(work):
    """An Ahead."""
    plan, dtypes, P_MAX = work.plan.transposes, (work.operands.x_dtype, work.operands.w_dtype), nl.tile_size.pmax

    def tiles(count, size, dtype, buffer=nl.sbuf):
        return [nl.ndarray((P_MAX, size), dtype=dtype, buffer=buffer) for _ in range(count)]

    raws = [cycle(tiles(plan.raws, *of)) for of in zip(plan.sizes, dtypes)]
    slabs = cycle([Buffer(tile) for tile in tiles(SLABS, plan.sizes[2], dtypes[0])])
    banks = cycle(tiles(plan.banks, BANK_BYTES // work.geometry.itemsize, dtypes[0], nl.psum))
    zeros_sbuf = constant((P_MAX, plan.sizes[3]), dtypes[0], 0.0) if plan.sizes[3] else None
    return Ahead(raws, slabs, banks, zeros_sbuf)


def transposes_for(work, ahead, feed, some):
    """Transpose the pieces of a Feed's tile that Products need, unless they are transposed already, bank by bank: each
    step of this generator is one."""
    feed.until(some.index + 1)
    rows, held = work.geometry.rows, feed.of(some.index).held
    one = some.one
    for acc in some_of(one.accumulators, some.banks):
        last = some.row * rows.stride + (acc.r[0] - one.r[0] + acc.r[1] - 1) * rows.dilation
        for t, (channels, row) in {acc.t: (acc.c, last), -1: (acc.k, some.row)}.items():
            for side, piece in list(held[t].pieces):
                if piece[0] <= row and side.meets(some.member, channels):
                    held[t].pieces.remove((side, piece))
                    yield from transposes_of_piece(work, ahead, side, piece, held[t].tile)


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
