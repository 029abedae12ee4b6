"""Filters as moving operands: a tile [c, place, k] of SBUF for each K tile, all output channels of a group.

A place is a tap, or a tap of one of the products of a K tile whose pieces of channels see different taps. Four ways
from HBM: "copy", where output channels are neighbours (RSCK, or packed): runs of them; "dma", where input channels are
(KRSC, or one tap) and no cast is due: DMA transposes them; "array": blocks of taps in memory order, each [k, c] of a
place transposed by the Tensor Engine, several to a bank of PSUM, in the order of the sums: the loop transposes a block
between any two matmuls; "backwards", of transposed convolutions: [c, k, taps] in memory order, copied tap by tap.
"""

from dataclasses import dataclass, field

from ...._nki import nisa, nl
from ....schedules.channel_pieces import parts_of
from ....schedules.geometry import filter_rows
from ....schedules.moving_filters import AHEAD_BYTES, alike, comes_raw, raw_block_bytes, raw_blocks
from ....schedules.tiles import BANK_BYTES, cut, whole_words
from ..._dma import copy, load_transposed
from ..._engines import is_16bit, pick
from ..filter_feed import transpose_together
from ..regions import load_packed, offset_at, pattern_of


@dataclass
class Filters(nl.NKIObject):
    """Filters of output channels k0 .. k0+kn-1 on their way. loads: (K tiles of the same channels, block of taps,
    (first output channel from k0, how many)) in order; ends: by K tile, loads until it is complete; tiles: by K tile,
    [c, places, kn]; raws: blocks that wait to be transposed; done: loads that are in place."""

    k0: int
    kn: int
    plan: object
    loads: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    tiles: list = field(default_factory=list)
    raws: list = field(default_factory=list)
    folded: bool = False
    done: int = 0


def start_filters(work, k0, kn):
    """Go on to the filters of output channels k0 .. k0+kn-1, of which nothing is loaded yet."""
    geometry, plan, is_raw = work.geometry, work.plan, comes_raw(work.plan.way)
    work.filters = found = Filters(k0, kn, plan)
    for pieces, places in zip(plan.k_tiles, plan.places):
        shape = (parts_of(pieces, len(pieces)), len(places), kn)
        found.tiles.append(nl.ndarray(shape, dtype=work.operands.w_dtype, buffer=nl.sbuf))
    for k_tiles in alike(plan):
        blocks = raw_blocks(geometry, plan, k_tiles[0]) if is_raw else [None]
        parts = cut(kn, nl.tile_size.pmax) if is_raw else [(0, kn)]
        found.loads += [(k_tiles, block, part) for block in blocks for part in parts]
        found.ends += [len(found.loads)] * len(k_tiles)


def load_filters(work, k_tile):
    """Load what there is room for, up to a K tile."""
    filters, waiting_bytes = work.filters, 0
    for index in range(filters.done, len(filters.loads)):
        k_tiles, block, part = filters.loads[index]
        if comes_raw(filters.plan.way):
            waiting_bytes += raw_block_bytes(work.geometry, filters.plan, k_tiles[0], block, part[1])
        if index >= filters.done + len(filters.raws):
            if k_tiles[0] > k_tile or waiting_bytes > AHEAD_BYTES:
                return
            load_next(work)


def load_next(work):
    """The next load: a block of taps [kn, channels, rows, columns] in SBUF, or all of a K tile to its place."""
    operands, geometry, filters, way = work.operands, work.geometry, work.filters, work.plan.way
    (k_tile, *_), block, part = filters.loads[filters.done + len(filters.raws)]
    own, strides, (by_k, by_c, by_r, by_s) = filters.plan.k_tiles[k_tile][0], geometry.w_strides, geometry.w_strides
    if comes_raw(way):
        r0, rn, s0, sn = block
        shape, first = (part[1], own.count, rn, sn), (filters.k0 + part[0], own.c0, r0, s0)
        if way == "backwards":
            shape, strides = (own.count, part[1], rn, sn), (by_c, by_k, by_r, by_s)
            first = (own.c0, filters.k0 + part[0], r0, s0)
        raw_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
        copy(raw_sbuf, operands.w.ap(pattern=pattern_of(strides, shape), offset=offset_at(strides, first)))
        filters.raws.append(raw_sbuf)
        return
    filters.done += 1
    offset, strides = filters.k0 * by_k + own.c0 * by_c, (by_c, by_r, by_s, by_k)
    shape = (own.count, filter_rows(geometry), geometry.columns.taps, filters.kn)
    if geometry.packed > 0:
        load_packed(filters.tiles[k_tile], operands.w, geometry, own.c0, own.count, filters.k0, filters.kn)
    elif way == "copy":
        copy(filters.tiles[k_tile], operands.w.ap(pattern=pattern_of(strides, shape), offset=offset))
    else:
        load_transposed(filters.tiles[k_tile].reshape(shape), operands.w, strides, offset, False, work.ledger)


def waiting_to(filters, k_tile):
    """Loads that are not in place yet of K tiles up to one."""
    return max(0, filters.ends[min(k_tile, len(filters.ends) - 1)] - filters.done)


def filters_until(work, k_tile):
    """Have all of a K tile in its place, and later ones on their way."""
    load_filters(work, k_tile)
    while waiting_to(work.filters, k_tile) > 0:
        place_next(work)
    load_filters(work, len(work.filters.ends) - 1)


def place_next(work):
    """Transpose the taps of the next load, or copy them into place, and load ahead."""
    geometry, filters = work.geometry, work.filters
    if len(filters.raws) == 0:
        load_next(work)
    k_tiles, block, part = filters.loads[filters.done]
    raw_sbuf, filters.raws = filters.raws[0], filters.raws[1:]
    for k_tile in k_tiles:
        if filters.plan.way == "backwards":
            copy_backwards(filters, k_tile, raw_sbuf, work.ledger)
        else:
            transpose_block(geometry, filters, k_tile, block, part, raw_sbuf, work.ledger)
    filters.done += 1
    load_filters(work, len(filters.ends) - 1)


def copy_backwards(filters, k_tile, raw_sbuf, ledger):
    """Taps of a block [c, k, rows, columns] in reverse order to their places."""
    count, kn, rn, sn = raw_sbuf.shape
    k0 = filters.loads[filters.done][2][0]
    for tap in range(rn * sn):
        at = rn * sn - 1 - tap
        src, dst = raw_sbuf[0:count, 0:kn, at // sn, at % sn], filters.tiles[k_tile][0:count, tap, k0 : k0 + kn]
        nisa.tensor_copy(dst=dst, src=src, engine=pick(ledger, kn, is_16bit(raw_sbuf.dtype)))


def transpose_block(geometry, filters, k_tile, block, part, raw_sbuf, ledger):
    """The places of a block, transposed, as many together as a bank holds of one row of taps, or of one product."""
    (r0, rn, s0, sn), (k0, kn) = block, part
    plan, tile_sbuf = filters.plan, filters.tiles[k_tile]
    # taps of fp32 too begin at even columns of a bank
    most = BANK_BYTES // (whole_words(kn, 2) * geometry.itemsize)
    if plan.by_rows:
        rows = [(first, geometry.planes.taps) for first in range(0, len(plan.places[k_tile]), geometry.planes.taps)]
    else:
        rows = [((r0 + r) * geometry.columns.taps + s0, sn) for r in range(rn)]
    for first, count in rows:
        pieces = plan.k_tiles[k_tile][: plan.places[k_tile][first].pieces]
        for at, num in cut(count, most):
            places = plan.places[k_tile][first + at : first + at + num]
            into = tile_sbuf[0 : parts_of(pieces, len(pieces)), first + at : first + at + num, k0 : k0 + kn]
            transpose_together(into, views_of(geometry, raw_sbuf, pieces, places, block, ledger), 2, ledger)


def views_of(geometry, raw_sbuf, pieces, places, block, ledger):
    """[k, parts] of some places of a block in memory order; of several pieces of channels, gathered in SBUF first."""
    kn, r0, s0 = raw_sbuf.shape[0], block[0], block[2]
    R, S = geometry.rows.taps, geometry.columns.taps
    own = pieces[0]

    def tap(place, piece):
        t, r, s = place.t, place.r + piece.r, place.s + piece.s
        if geometry.flipped:
            t, r, s = geometry.planes.taps - 1 - t, R - 1 - r, S - 1 - s
        return t * R + r - r0, s - s0

    found = [tap(place, own) for place in places]
    if len(pieces) == 1:
        return [raw_sbuf[0:kn, 0 : own.count, r, s] for r, s in found]
    parts, count = parts_of(pieces, len(pieces)), len(places)
    gathered_sbuf = nl.ndarray((kn, count, parts), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    falls = found[-1][0] < found[0][0]
    for piece in pieces:
        c, (r, s), (end, _) = (
            piece.c0 - own.c0,
            tap(places[-1 if falls else 0], piece),
            tap(places[0 if falls else -1], piece),
        )
        step = max(1, (end - r) // max(1, count - 1))
        nisa.tensor_copy(
            dst=gathered_sbuf[0:kn, 0:count, piece.part : piece.part + piece.count],
            src=raw_sbuf[0:kn, c : c + piece.count, r : end + 1 : step, s].permute((0, 2, 1)),
            engine=pick(ledger, count * piece.count, is_16bit(raw_sbuf.dtype)),
        )
    views = [gathered_sbuf[0:kn, index, 0:parts] for index in range(count)]
    return views[::-1] if falls else views


def fold_filters(geometry, source, filters):
    """Replace the filters by those of `fold` rows of y at once: [(slot, c), taps, (row, k)], zero where a slot's row of
    x is none of a row's window."""
    rows, S, K = geometry.rows, geometry.columns.taps, filters.kn
    fold, slots, tile_sbuf = source.fold, source.slots, filters.tiles[0]
    cn = tile_sbuf.shape[0]
    folded_sbuf = nl.ndarray((slots * cn, source.rows.taps, S, fold * K), dtype=tile_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=folded_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for row in range(fold):
        for r in range(rows.taps):
            place = row * rows.stride + r * rows.dilation
            slot, tap = place % slots, place // slots
            copy(
                folded_sbuf[slot * cn : (slot + 1) * cn, tap, 0:S, row * K : (row + 1) * K],
                tile_sbuf[0:cn, r * S : (r + 1) * S, 0:K],
            )
    filters.tiles = [folded_sbuf.reshape((slots * cn, source.rows.taps * S, fold * K))]
    filters.folded = True
