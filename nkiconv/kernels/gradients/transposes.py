"""x and gy of NCHW on their way to units: loaded in memory order, framed by zeros, transposed, evacuated."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.blocks_transposes import SLABS, chunks_of, side_of
from ...schedules.tiles import cut, div_ceil, filled
from .._engines import START_WORK, copy_work, is_16bit, pick
from ..conv.regions import load_region, offset_at


@dataclass
class Ahead(nl.NKIObject):
    """Circular buffers of tiles, and their sizes: pieces of x and of gy as loaded, rows with zeros, banks; which
    zeros a row's buffer has; of each tile's buffer which pieces are there; how many products have theirs."""

    raws: list
    slabs: list
    banks: list
    taken: list
    zeros: list
    there: list
    done: int = 0


@dataclass
class RawPiece(nl.NKIObject):
    """Rows of windows of a Side as loaded, and channels, of a pass: (first, how many); whole: what planes have."""

    raw: object
    rows: tuple
    channels: tuple
    whole: bool


def start_transposes(work, buffers):
    """An Ahead of so many buffers of tiles."""
    plan, dtypes = work.plan.transposes, (work.operands.x_dtype, work.operands.w_dtype)

    def tiles(count, shape, dtype, buffer=nl.sbuf):
        return [nl.ndarray(shape, dtype=dtype, buffer=buffer) for _ in range(count)]

    raws = [tiles(plan.raws, shape, dtype) for shape, dtype in zip(plan.raw_shapes, dtypes)]
    slabs = tiles(SLABS, plan.slab_shape, dtypes[0])
    banks, there = tiles(plan.banks, plan.bank_shape, dtypes[0], nl.psum), filled(buffers, (-1, []))
    return Ahead(raws=raws, slabs=slabs, banks=banks, taken=[0, 0, 0, 0], zeros=filled(SLABS, None), there=there)


def next_of(ahead, kind, buffers):
    """The next buffer of its kind."""
    ahead.taken[kind] += 1
    return (ahead.taken[kind] - 1) % len(buffers)


def transpose_for(work, ahead, feed, blocks, place, accumulators):
    """Transpose the Blocks of a Feed's tile that some accumulators need for a row of gy and that are not there yet.
    place: (the tile, the row)."""
    index, row = place
    one, tile = feed.tiles[index].one, feed.tiles[index].tile
    slot, rows = index % len(feed.buffers), work.geometry.rows
    if ahead.there[slot][0] != index:
        ahead.there[slot] = (index, [])
    done = ahead.there[slot][1]
    for accumulator in accumulators:
        if accumulator.t >= 0:
            end = row * rows.stride + (accumulator.r[0] - one.r[0] + accumulator.r[1] - 1) * rows.dilation + 1
            side = side_of(work.plan.source, work.plan.settings, one, tile, accumulator.t)
            transpose_pieces(work, ahead, side, one.c[0], accumulator.c, end, done, blocks.x[accumulator.t])
        side = side_of(work.plan.source, work.plan.settings, one, tile, -1)
        transpose_pieces(work, ahead, side, one.k, accumulator.k, row + 1, done, blocks.y)


def transpose_pieces(work, ahead, side, channels, needed, end, done, tile_sbuf):
    """Have pieces of a Side that has some channels be there, of channels needed and rows below `end`, in a tile."""
    parts = side.pieces(work.geometry.itemsize)
    for chunk in chunks_of(channels[1], work.plan.gang):
        c = channels[0] + chunk[0]
        meets = c < needed[0] + needed[1] and needed[0] < c + chunk[1]
        for rows in parts if meets else []:
            key = (side.t, chunk[0], rows[0])
            if rows[0] < end and key not in done:
                done.append(key)
                transpose_piece(work, ahead, side, (chunk[0], chunk[1], c), rows, tile_sbuf)


def transpose_piece(work, ahead, side, chunk, rows, tile_sbuf):
    """A piece of a Side into a tile. chunk: channels (first of the tile's, how many, first in HBM)."""
    which, columns = 1 if side.t < 0 else 0, side.columns.inside
    piece = RawPiece(raw=None, rows=rows, channels=chunk, whole=rows[1] == side.rows.extent)
    if len(side.firsts) > 0 and columns[0] < columns[1]:
        piece.raw = ahead.raws[which][next_of(ahead, which, ahead.raws[which])]
        load_piece(side, piece, work.operands.w if side.t < 0 else work.operands.x)
    sources = []
    for row in range(rows[0], rows[0] + rows[1]):
        # zeros are put around rows before those that precede them are taken out of PSUM
        while len(sources) < min(rows[1], row - rows[0] + SLABS - 1):
            sources.append(source_of(work, ahead, side, piece, rows[0] + len(sources)))
        if sources[row - rows[0]] == None:
            clear_row(work, side, piece, row, tile_sbuf)
        else:
            transpose_row(work, ahead, side, piece, row, sources[row - rows[0]], tile_sbuf)


def blocks_inside(span, row):
    """(first, how many) blocks whose windows' row of this number is there."""
    first = div_ceil(max(0, -span.first - row), span.step)
    end = div_ceil(max(0, span.size - span.first - row), span.step)
    return first, max(0, min(span.count, end) - first)


def load_piece(side, piece, hbm):
    """Load what there is of a piece, in memory order."""
    strides, span, regions = side.strides, side.rows, []
    w, end = side.columns.loaded
    if piece.whole:
        low, high = span.inside
        if low < high:
            regions.append((0, 1, low, 0, high - low))
    else:
        top, bottom = blocks_inside(span, piece.rows[0]), blocks_inside(span, piece.rows[0] + piece.rows[1] - 1)
        first, last = max(top[0], bottom[0]), min(top[0] + top[1], bottom[0] + bottom[1])
        if first < last:
            regions.append((first, last - first, span.first + first * span.step + piece.rows[0], 0, piece.rows[1]))
        for block in range(span.count):
            start = span.first + block * span.step + piece.rows[0]
            h, h_end = max(0, start), min(span.size, start + piece.rows[1])
            if h < h_end and (block < first or block >= last):
                regions.append((block, 1, h, h - start, h_end - h))
    count = piece.channels[1]
    for member, plane in enumerate(side.firsts):
        for block, blocks, h, row, rows in regions if w < end else []:
            pattern = [[strides[0], count], [strides[1] * side.apart, side.count], [strides[2] * span.step, blocks]]
            pattern = pattern + [[strides[2], rows], [strides[3], end - w]]
            offset = offset_at(strides, (piece.channels[2], plane, h, w))
            load_region(piece.raw, hbm, (member * count, 0, block, row, 0), pattern, offset)


def clear_row(work, side, piece, row, tile_sbuf):
    """Zeros where nothing is there of a row of windows."""
    extent, (c, cn, _) = side.rows.extent, piece.channels
    rows = slice(row, (work.plan.gang - 1) * extent + row + 1, extent)
    into = tile_sbuf[0 : tile_sbuf.shape[0], rows, 0 : side.columns.extent, c : c + cn]
    nisa.memset(dst=into, value=0.0, engine=nisa.engine.gpsimd)


def loaded_row(side, piece, row, blocks):
    """A row of the windows of some blocks (first, how many): [channels, planes, blocks, columns]."""
    raw, first = piece.raw, blocks[0]
    parts, columns = len(side.firsts) * piece.channels[1], side.columns.loaded
    width = columns[1] - columns[0]
    if not piece.whole:
        return raw[0:parts, 0 : side.count, first : first + blocks[1], row - piece.rows[0], 0:width]
    h = side.rows.first + first * side.rows.step + row - side.rows.inside[0]
    end = h + (blocks[1] - 1) * side.rows.step + 1
    return raw[0:parts, 0 : side.count, 0, h : end : side.rows.step, 0:width]


def source_of(work, ahead, side, piece, row):
    """A row of all windows, with zeros where x ends: (it, number of its first column there); None if nothing is."""
    span, blocks = side.columns, blocks_inside(side.rows, row)
    if piece.raw == None or blocks[1] == 0:
        return None
    source, start = loaded_row(side, piece, row, blocks), span.first - span.loaded[0]
    if blocks[1] == side.rows.count and span.is_inside:
        return source, start
    return row_with_zeros(work, ahead, side, source, start, blocks), 0


def row_with_zeros(work, ahead, side, source, start, blocks):
    """A copy of a row of windows, of blocks (first, how many), with zeros around it."""
    span, slot, parts = side.columns, next_of(ahead, 2, ahead.slabs), source.shape[0]
    slab, (low, end) = ahead.slabs[slot].view(source.dtype), span.inside
    left, right, last = low - span.first, end - span.first, blocks[0] + blocks[1]
    key = (parts, side.count, side.rows.count, left, right, span.width)
    strips = [(0, blocks[0], left, right), (last, side.rows.count, left, right)]
    if ahead.zeros[slot] != key:
        ahead.zeros[slot] = key
        strips = strips + [(0, side.rows.count, 0, left), (0, side.rows.count, right, span.width)]
    for b0, b1, w0, w1 in strips:
        if b0 < b1 and w0 < w1:
            into = slab[0:parts, 0 : side.count, b0:b1, w0:w1]
            nisa.memset(dst=into, value=0.0, engine=nisa.engine.gpsimd)
    nisa.tensor_copy(
        dst=slab[0:parts, 0 : side.count, blocks[0] : last, left:right],
        src=source[0:parts, 0 : side.count, 0 : blocks[1], start + left : start + right],
        engine=nisa.engine.vector,
    )
    work.ledger.vector += START_WORK + side.count * blocks[1] * (right - left) * copy_work(slab.dtype)
    return slab[0:parts, 0 : side.count, 0 : side.rows.count, 0 : span.width]


def transpose_row(work, ahead, side, piece, row, source, tile_sbuf):
    """A row of all windows into a tile. source: what `source_of` finds."""
    (row_sbuf, start), span, cn, c, members = (
        source,
        side.columns,
        piece.channels[1],
        piece.channels[0],
        len(side.firsts),
    )
    units = side.count * side.rows.count * span.count
    rows, places = (row, (members - 1) * side.rows.extent + row + 1), ahead.banks[0].shape[1]
    for some in cut(span.extent, places):
        bank = ahead.banks[next_of(ahead, 3, ahead.banks)].view(tile_sbuf.dtype)
        for index in range(some[1]):
            w = start + some[0] + index
            end = w + (span.count - 1) * span.step + 1
            nisa.nc_transpose(
                dst=bank[0:units, index, 0:members, 0:cn],
                data=row_sbuf[0 : members * cn, 0 : side.count, 0 : side.rows.count, w : end : span.step],
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(
            dst=tile_sbuf[0:units, rows[0] : rows[1] : side.rows.extent, some[0] : some[0] + some[1], c : c + cn],
            src=bank[0:units, 0 : some[1], 0:members, 0:cn].permute((0, 2, 1, 3)),
            engine=pick(work.ledger, some[1] * members * cn, is_16bit(tile_sbuf.dtype)),
        )
