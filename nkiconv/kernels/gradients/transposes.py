"""x and gy of NCHW transposed to units: loaded in memory order, framed by zeros, transposed, evacuated."""

from dataclasses import dataclass
from itertools import cycle

from ..._nki import nisa, nl
from ...schedules.blocks_transposes import SLABS, bank_shape, sides_of
from ...schedules.tiles import BANK_BYTES, cut, div_ceil, filled, size_of, some_of
from .._dma import copy
from .._engines import copy_balanced, copy_by_vector
from .._masks import constant
from ..conv.filter_feed import Buffer
from ..conv.regions import around, load_region, offset_at


@dataclass
class Ahead(nl.NKIObject):
    """Circular buffers: loaded pieces of x and of gy; slabs, tiles for a row of windows between zeros; banks. there:
    for each buffer (number of its tile, keys of its transposed pieces); zeros_sbuf: zeros; done: the number of Products
    whose pieces are transposed."""

    raws: list
    slabs: object
    banks: object
    there: list
    zeros_sbuf: object
    done: int = 0


@dataclass
class RawPiece(nl.NKIObject):
    """Loaded rows (first, count) of a Side's windows; whole: whether they are all rows, stored once as rows of planes
    and not by block."""

    raw: object
    rows: tuple
    whole: bool


def start_transposes(work, buffers):
    """An Ahead for `buffers` buffers of tiles."""
    plan, dtypes = work.plan.transposes, (work.operands.x_dtype, work.operands.w_dtype)

    def tiles(count, shape, dtype, buffer=nl.sbuf):
        return [nl.ndarray(shape, dtype=dtype, buffer=buffer) for _ in range(count)]

    raws = [cycle(tiles(plan.raws, shape, dtype)) for shape, dtype in zip(plan.raw_shapes, dtypes)]
    slabs = cycle([Buffer(tile) for tile in tiles(SLABS, plan.slab_shape, dtypes[0])])
    bank_shape = nl.tile_size.pmax, BANK_BYTES // work.geometry.itemsize
    banks = cycle(tiles(plan.banks, bank_shape, dtypes[0], nl.psum))
    zeros_sbuf = constant((nl.tile_size.pmax, plan.zeros), dtypes[0], 0.0) if plan.zeros else None
    return Ahead(raws, slabs, banks, filled(buffers, (-1, [])), zeros_sbuf)


def transpose_for(work, ahead, feed, some):
    """Transpose the pieces of a Feed's tile that Products need, unless they are transposed already."""
    one, tile, blocks = feed.tiles[some.index].one, feed.tiles[some.index].tile, feed.of(some.index)
    slot, rows = some.index % len(feed.buffers), work.geometry.rows
    if ahead.there[slot][0] != some.index:
        ahead.there[slot] = (some.index, [])
    done = ahead.there[slot][1]
    for accumulator in some_of(some.accumulators, some.banks):
        for t in (accumulator.t, -1) if accumulator.t >= 0 else (-1,):
            end, own, needed = some.row + 1, one.k, accumulator.k
            if t >= 0:
                end = some.row * rows.stride + (accumulator.r[0] - one.r[0] + accumulator.r[1] - 1) * rows.dilation + 1
                own, needed = one.c[0], accumulator.c
            for side in sides_of(work.plan.source, work.plan.settings, one, tile, t):
                (member, members), (c, channels) = side.members, side.channels
                meets = member <= some.member < member + members
                meets = meets and own[0] + c < needed[0] + needed[1] and needed[0] < own[0] + c + channels
                for rows_of_piece in side.pieces(work.geometry.itemsize) if meets else ():
                    key = t, member, c, rows_of_piece[0]
                    if rows_of_piece[0] < end and key not in done:
                        done.append(key)
                        tile_sbuf = blocks.y if t < 0 else blocks.x[t]
                        transpose_piece(work, ahead, side, own[0] + c, rows_of_piece, tile_sbuf)


def transpose_piece(work, ahead, side, channel, rows, tile_sbuf):
    """Load and transpose rows (first, count) of a Side into a tile. channel: the first in HBM."""
    which, columns = 1 if side.t < 0 else 0, side.columns.inside
    piece, sources = RawPiece(raw=None, rows=rows, whole=rows[1] == side.rows.extent), []
    if len(side.corners) > 0 and columns[0] < columns[1]:
        piece.raw = next(ahead.raws[which])
        load_piece(ahead, side, piece, channel, work.operands.w if side.t < 0 else work.operands.x)
    needed = [row for row in range(rows[0], rows[0] + rows[1]) if row % side.rows.spacing == 0]
    for index, row in enumerate(needed):
        # zeros are put around rows before earlier rows are evacuated from PSUM
        for later in needed[len(sources) : index + SLABS - 1]:
            sources.append(source_of(work, ahead, side, piece, later))
        if sources[index] == None:
            clear_row(side, row, tile_sbuf)
        else:
            transpose_row(work, ahead, side, row, sources[index], tile_sbuf)


def load_piece(ahead, side, piece, channel, hbm):
    """Load the elements of a piece that exist, in memory order. channel: the first in HBM."""
    (left, right), strides, count = side.columns.loaded, side.strides, side.channels[1]
    for member, (plane, h, w) in enumerate(side.corners):
        regions, columns = regions_of(side.rows, piece.rows), (0, right - left)
        if piece.whole:
            rows, columns = side.loaded_of((plane, h, w))
            clear_around(ahead, side, member, (*rows, *columns), piece.raw)
            regions = [(0, 1, h + rows[0], rows[0], rows[1] - rows[0])]
        for block, blocks, first, row, rows in regions:
            if rows > 0 and columns[0] < columns[1]:
                pattern = [[strides[0], count], [strides[1] * side.apart, side.count]]
                pattern = pattern + [[strides[2] * side.rows.step, blocks], [strides[2], rows]]
                pattern = pattern + [[strides[3], columns[1] - columns[0]]]
                offset = offset_at(strides, (channel, plane, first, w + columns[0]))
                load_region(piece.raw, hbm, (member * count, 0, block, row, columns[0]), pattern, offset)


def regions_of(span, rows):
    """(first block, blocks, first row in memory, in the piece, rows) of loads of rows (first, count) of windows."""
    regions, top, bottom = [], span.blocks_inside(rows[0]), span.blocks_inside(rows[0] + rows[1] - 1)
    first, last = max(top[0], bottom[0]), min(top[1], bottom[1])
    if first < last:
        regions.append((first, last - first, span.first + first * span.step + rows[0], 0, rows[1]))
    for block in range(span.count):
        start = span.first + block * span.step + rows[0]
        h, h_end = max(0, start), min(span.size, start + rows[1])
        if h < h_end and (block < first or block >= last):
            regions.append((block, 1, h, h - start, h_end - h))
    return regions


def clear_around(ahead, side, member, inside, raw):
    """Write zeros around a Side's member outside of rows and columns `inside`, (first, end, first, end): by DMA, as
    engines would write them only after all their earlier work."""
    (top, bottom), (left, right), count = side.rows.inside, side.columns.loaded, side.channels[1]
    for first, end, low, high in around(bottom - top, right - left, inside):
        pattern = [[ahead.zeros_sbuf.shape[1], count], [0, side.count], [0, end - first], [1, high - low]]
        into = raw[member * count : (member + 1) * count, 0 : side.count, 0, first:end, low:high]
        copy(into, ahead.zeros_sbuf.ap(pattern=pattern))


def clear_row(side, row, tile_sbuf):
    """Write zeros to a row of windows that is outside of the tensor."""
    (member, members), extent, (c, channels) = side.members, side.rows.extent, side.channels
    rows = slice(member * extent + row, (member + members - 1) * extent + row + 1, extent)
    into = tile_sbuf[:, rows, 0 : side.columns.extent, c : c + channels]
    nisa.memset(dst=into, value=0.0, engine=nisa.engine.gpsimd)


def loaded_row(side, piece, row, blocks):
    """A loaded row of the windows of blocks (first, end): [channels, planes, blocks, columns]."""
    raw, (first, end) = piece.raw, blocks
    parts, columns = len(side.corners) * side.channels[1], side.columns.loaded
    width = columns[1] - columns[0]
    if not piece.whole:
        return raw[0:parts, 0 : side.count, first:end, row - piece.rows[0], 0:width]
    h = side.rows.first + first * side.rows.step + row - side.rows.inside[0]
    h_end = h + (end - first - 1) * side.rows.step + 1
    return raw[0:parts, 0 : side.count, 0, h : h_end : side.rows.step, 0:width]


def source_of(work, ahead, side, piece, row):
    """(A row of all windows with zeros outside of the tensor, its first column in that view); None if all are zeros."""
    span, blocks = side.columns, side.rows.blocks_inside(row)
    if piece.raw == None or blocks[0] == blocks[1]:
        return None
    source, start = loaded_row(side, piece, row, blocks), span.first - span.loaded[0]
    if blocks == (0, side.rows.count) and span.is_inside:
        return source, start
    return row_with_zeros(work, ahead, side, source, start, blocks), 0


def row_with_zeros(work, ahead, side, source, start, blocks):
    """Copy a row of windows of blocks (first, end) into a slab, with zeros around it."""
    span, one, parts = side.columns, next(ahead.slabs), source.shape[0]
    slab, (low, end) = one.tile.view(source.dtype), span.inside
    left, right, (first, last) = low - span.first, end - span.first, blocks
    key = (parts, side.count, side.rows.count, left, right, span.width)
    strips = [(0, first, left, right), (last, side.rows.count, left, right)]
    if one.zeros != key:
        one.zeros = key
        strips = strips + [(0, side.rows.count, 0, left), (0, side.rows.count, right, span.width)]
    for b0, b1, w0, w1 in strips:
        if b0 < b1 and w0 < w1:
            into = slab[0:parts, 0 : side.count, b0:b1, w0:w1]
            nisa.memset(dst=into, value=0.0, engine=nisa.engine.gpsimd)
    src = source[:, 0 : side.count, 0 : last - first, start + left : start + right]
    copy_by_vector(slab[0:parts, 0 : side.count, first:last, left:right], src, work.ledger)
    return slab[0:parts, 0 : side.count, 0 : side.rows.count, 0 : span.width]


def transpose_row(work, ahead, side, row, source, tile_sbuf):
    """Transpose a row of all windows into a tile. source: of `source_of`."""
    (row_sbuf, start), span, (member, members), (c, channels) = source, side.columns, side.members, side.channels
    units, extent, step = side.count * side.rows.count * span.count, side.rows.extent, span.spacing
    rows = slice(member * extent + row, (member + members - 1) * extent + row + 1, extent)
    shape = bank_shape(side, work.geometry.itemsize)
    for first, count in cut(div_ceil(span.extent, step), shape[1]):
        bank = next(ahead.banks).view(tile_sbuf.dtype)
        bank = bank[0 : shape[0], 0 : size_of(shape[1:])].reshape(shape)
        for index in range(count):
            w = start + (first + index) * step
            end = w + (span.count - 1) * span.step + 1
            nisa.nc_transpose(
                dst=bank[0:units, index, 0:members, 0:channels],
                data=row_sbuf[0 : members * channels, 0 : side.count, 0 : side.rows.count, w : end : span.step],
                engine=nisa.engine.tensor,
            )
        columns = slice(first * step, (first + count - 1) * step + 1, step)
        found = bank[0:units, 0:count, 0:members, 0:channels].permute((0, 2, 1, 3))
        copy_balanced(tile_sbuf[0:units, rows, columns, c : c + channels], found, work.ledger)
