"""Filters as moving operands: a tile [c, place, k] of SBUF for each K tile, with all output channels of a group.

A place is a tap, or a tap of one of the products of a K tile whose pieces of channels see different taps. Four ways
load filters from HBM. "copy": output channels are neighbours (RSCK, or packed) and are loaded as runs. "dma": input
channels are neighbours (KRSC, or one tap) without a cast, and DMA transposes them. "array": blocks of taps in memory
order, each place's [k, c] transposed by the Tensor Engine in the order of the sums; the loop transposes a block between
any two matmuls. "backwards", of transposed convolutions: [c, k, taps] in memory order, copied tap by tap.
"""

import itertools
from typing import Any

from ...._nki import nl
from ....schedules.channel_pieces import parts_of
from ....schedules.geometry import filter_rows
from ....schedules.moving_filters import AHEAD_BYTES, alike, comes_raw, raw_block_bytes, raw_blocks
from ....schedules.pixel_tiles import padded_taps
from ....schedules.tiles import cut, cut_at
from ..._dma import copy, load_transposed
from ..._engines import copy_balanced
from ..._masks import constant
from ..filter_feed import copy_backwards, transpose_together
from ..regions import load_as_stored, load_filters, load_packed, pattern_of


class Filters:
    """Filters of output channels k0 .. k0+kn-1; nothing is loaded at first.

    loads: (K tiles of the same channels, block of taps, (first output channel from k0, count)) in order; ends: by K
    tile, the number of loads until it is complete; tiles: by K tile, [c, places, kn]; raws: loaded blocks that are not
    in place yet; done: the number of loads in place; to_fold: K tiles that `fold` has yet to
    replace.
    """

    def __init__(self, core, k0, kn):
        self.operands, self.geometry, self.plan, self.ledger = core.operands, core.geometry, core.plan, core.ledger
        self.k0, self.kn, self.ends, self.tiles, self.raws, self.done = k0, kn, [], [], [], 0
        self.loads: list[Any] = []
        plan = self.plan
        self.sources, self.is_raw = [] if plan.by_rows else plan.sources, plan.packs or comes_raw(plan.way)
        folds = [] if plan.packs else self.sources
        self.to_fold = [k_tile for k_tile, source in enumerate(folds) if source.copies * source.fold > 1]
        for k_tile, (pieces, places) in enumerate(zip(plan.k_tiles, plan.places)):
            shape = (parts_of(pieces, len(pieces)), len(places), kn)
            if plan.packs:
                source = self.sources[k_tile]
                shape = (source.copies * shape[0], source.taps, source.fold * kn)
            self.tiles.append(nl.ndarray(shape, dtype=self.operands.w_dtype, buffer=nl.sbuf))
        for k_tiles in alike(plan):
            blocks = raw_blocks(self.geometry, plan, k_tiles[0]) if self.is_raw else [None]
            parts = cut(kn, nl.tile_size.pmax) if self.is_raw else [(0, kn)]
            self.loads += [(k_tiles, block, part) for block in blocks for part in parts]
            self.ends += [len(self.loads)] * len(k_tiles)

    def load(self, k_tile):
        """Load blocks up to a K tile, as far as there is room."""
        while (loaded := self.done + len(self.raws)) < len(self.loads) and self.loads[loaded][0][0] <= k_tile:
            some = self.loads[self.done : loaded + 1] if self.is_raw else []
            each = (raw_block_bytes(self.geometry, self.plan, own[0], block, kn) for own, block, (_, kn) in some)
            if sum(each) > AHEAD_BYTES:
                return
            self.load_next()

    def load_next(self):
        """Start the next load: a block of taps [kn, channels, rows, columns], or a whole K tile to its place."""
        geometry, w_hbm, strides = self.geometry, self.operands.w, self.geometry.w_strides
        by_k, by_c, by_r, by_s = strides
        (k_tile, *_), block, part = self.loads[self.done + len(self.raws)]
        own, tile_sbuf = self.plan.k_tiles[k_tile][0], self.tiles[k_tile]
        if self.plan.packs:
            self.raws.append(load_as_stored(self.operands, geometry, (self.k0 + part[0], part[1])))
            return
        if self.is_raw:
            k, by_input = (self.k0 + part[0], part[1]), self.plan.way == "backwards"
            self.raws.append(load_filters(self.operands, geometry, k, (own.c0, own.count), block, by_input))
            return
        self.done += 1
        offset, strides = self.k0 * by_k + own.c0 * by_c, (by_c, by_r, by_s, by_k)
        shape = (own.count, filter_rows(geometry), geometry.columns.taps, self.kn)
        if self.plan.of_windows:
            offset, strides = offset + own.r * by_r, (by_r, by_s, 1, by_k)
            shape = (own.count // geometry.columns.taps, geometry.columns.taps, 1, self.kn)
        if self.plan.of_patches:
            (K, S), strides = self.plan.patch, (by_c, by_k, by_r, by_s)
            offset, shape = own.c0 * by_c + self.k0 // (K * S) * by_r, (own.count, K, self.kn // (K * S), S)
        if geometry.packed > 0:
            load_packed(tile_sbuf, w_hbm, geometry, own.c0, own.count, self.k0, self.kn)
        elif self.plan.way == "copy":
            copy(tile_sbuf, w_hbm.ap(pattern=pattern_of(strides, shape), offset=offset))
        else:
            load_transposed(tile_sbuf.reshape(shape), w_hbm, strides, offset, self.ledger)

    def waiting(self, k_tile):
        """The number of loads of K tiles up to `k_tile` that are not in place yet."""
        return max(0, self.ends[min(k_tile, len(self.ends) - 1)] - self.done)

    def complete(self, k_tile, end):
        """Put a K tile in place, of whole filters output channels before `end`, and start the loads of later ones."""
        self.load(k_tile)
        while self.waiting(k_tile) > 0 and not (self.plan.packs and self.loads[self.done][2][0] >= end):
            self.place_next()
        self.load(len(self.ends) - 1)
        if k_tile in self.to_fold:
            self.to_fold.remove(k_tile)
            self.fold(self.sources[k_tile], k_tile)

    def place_next(self):
        """Transpose the next load's taps, or copy them into place, and load ahead."""
        if len(self.raws) == 0:
            self.load_next()
        k_tiles, block, part = self.loads[self.done]
        raw_sbuf = self.raws.pop(0)
        for k_tile in k_tiles:
            if self.plan.way == "backwards":
                own_sbuf = self.tiles[k_tile][0 : raw_sbuf.shape[0], :, part[0] : sum(part)]
                copy_backwards(own_sbuf, raw_sbuf, self.ledger)
            elif self.plan.of_windows:
                own, into = self.plan.k_tiles[k_tile][0], self.tiles[k_tile][:, :, part[0] : sum(part)]
                view = raw_sbuf[:, own.c0, own.r : own.r + own.count // raw_sbuf.shape[3]]
                transpose_together(into, [view], self.geometry.itemsize, self.ledger)
            elif self.plan.packs:
                self.transpose_packed(k_tile, part, raw_sbuf)
            else:
                self.transpose_block(k_tile, block, part, raw_sbuf)
        self.done += 1
        self.load(len(self.ends) - 1)

    def transpose_block(self, k_tile, block, part, raw_sbuf):
        """Transpose the places of a block, with those of one row of taps, or of one product, gathered together."""
        (r0, rn, s0, sn), (k0, kn), every = block, part, self.plan.places[k_tile]
        rows = [((r0 + r) * self.geometry.columns.taps + s0, sn) for r in range(rn)]
        if self.plan.by_rows:
            rows = cut_at(len(every), self.geometry.planes.taps)
        for first, count in rows:
            pieces = self.plan.k_tiles[k_tile][: every[first].pieces]
            for index, view in enumerate(self.views_of(raw_sbuf, pieces, every[first : first + count], r0, s0), first):
                into = self.tiles[k_tile][0 : parts_of(pieces, len(pieces)), index : index + 1, k0 : k0 + kn]
                transpose_together(into, [view], 2, self.ledger)

    def transpose_packed(self, k_tile, part, raw_sbuf):
        """Transpose a K tile's filters [k, c, r, s] to [(shift, slot, c), products, (row, k)]: for each output row and
        product a block of their taps, which has zeros where a slot's row of x is outside of the row's window."""
        source, step, (k0, kn) = self.sources[k_tile], self.geometry.rows.stride, part
        (parts, every, _), own = self.tiles[k_tile].shape, self.plan.k_tiles[k_tile][0]
        raw_sbuf = raw_sbuf[:, own.c0 : own.c0 + own.count]
        top, *extents = padded_taps(self.geometry, source)
        if list(raw_sbuf.shape[2:]) != extents:
            taps_sbuf, raw_sbuf = raw_sbuf, constant((*raw_sbuf.shape[:2], *extents), raw_sbuf.dtype, 0.0)
            apart, (R, S) = self.geometry.rows.dilation if source.packed_taps else 1, taps_sbuf.shape[2:]
            end = top + (R - 1) * apart + 1
            copy_balanced(raw_sbuf[:, :, top:end:apart, 0:S], taps_sbuf, self.ledger)
        tile_sbuf = self.tiles[k_tile].reshape((parts, every, source.fold, self.kn))
        for row in range(source.fold):
            for product in range(source.down):
                first = top - row * step + product * source.step
                block_sbuf = raw_sbuf[:, :, first : first + source.slots]
                if product > 0 and source.again > 0:  # products before it have the first slots' taps
                    block_sbuf, own = constant(block_sbuf.shape, raw_sbuf.dtype, 0.0), source.slots - source.step
                    copy_balanced(
                        block_sbuf[:, :, own:], raw_sbuf[:, :, first + own : first + source.slots], self.ledger
                    )
                for at in range(source.across):
                    taps = slice(at * source.shifts, (at + 1) * source.shifts)
                    place = product * source.across + at
                    into = tile_sbuf[:, place : place + 1, row, k0 : k0 + kn]
                    transpose_together(into, [block_sbuf[:, :, :, taps].permute((0, 3, 2, 1))], 2, self.ledger)

    def views_of(self, raw_sbuf, pieces, places, r0, s0):
        """Views [k, parts] of some places of a block in memory order with first tap (r0, s0); several pieces of
        channels are gathered in SBUF first."""
        kn, own, geometry = raw_sbuf.shape[0], pieces[0], self.geometry
        T, R, S = geometry.planes.taps, geometry.rows.taps, geometry.columns.taps

        def tap(place, piece):
            t, r, s = place.t, place.r + piece.r, place.s + piece.s
            if geometry.flipped:
                t, r, s = T - 1 - t, R - 1 - r, S - 1 - s
            return t * R + r - r0, s - s0

        found = [tap(place, own) for place in places]
        if len(pieces) == 1:
            return [raw_sbuf[0:kn, 0 : own.count, r, s] for r, s in found]
        # planes of taps are evenly spaced in memory, in ascending or descending order
        places, falls = (places[::-1], True) if found[-1][0] < found[0][0] else (places, False)
        parts, count = parts_of(pieces, len(pieces)), len(places)
        gathered_sbuf = nl.ndarray((kn, count, parts), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
        for piece in pieces:
            c, (r, s), (end, _) = piece.c0 - own.c0, tap(places[0], piece), tap(places[-1], piece)
            step = max(1, (end - r) // max(1, count - 1))
            taps = raw_sbuf[0:kn, c : c + piece.count, r : end + 1 : step, s].permute((0, 2, 1))
            copy_balanced(gathered_sbuf[:, :, piece.part : piece.part + piece.count], taps, self.ledger)
        views = [gathered_sbuf[:, index] for index in range(count)]
        return views[::-1] if falls else views

    def fold(self, source, k_tile):
        """Replace a K tile's filters by filters of `fold` rows of y at once: [(shift, slot, c), products, (row, k)],
        zero if a slot's row of x is outside of a row's window."""
        rows, S, K, tile_sbuf = self.geometry.rows, self.geometry.columns.taps, self.kn, self.tiles[k_tile]
        T, cn, across, shifts = self.geometry.planes.taps, tile_sbuf.shape[0], source.across, source.shifts
        folded_sbuf = constant((source.copies * cn, T * source.down, across, source.fold * K), tile_sbuf.dtype, 0.0)
        for t, row, r, shift in itertools.product(*map(range, (T, source.fold, rows.taps, shifts))):
            tap, slot = r, 0
            if source.packed_taps:
                tap, slot = source.product_of(row * rows.stride + r * rows.dilation)
            first, place = (shift * source.slots + slot) * cn, (t * rows.taps + r) * S
            places = range(place + shift, place + S, shifts)
            dst = folded_sbuf[first : first + cn, t * source.down + tap, 0 : len(places), row * K : (row + 1) * K]
            src = tile_sbuf[0:cn, places.start : places.stop : shifts, 0:K]
            if source.copies == 1:  # from partition 0 to partition 0
                copy_balanced(dst, src, self.ledger)
            else:
                copy(dst, src)
        self.tiles[k_tile] = folded_sbuf.reshape((source.copies * cn, source.taps, source.fold * K))
