"""Filters as stationaries: [c, tap, k] in SBUF for each K tile of an M tile, transposed by the Tensor Engine.

Filters of a group's M tiles are loaded in blocks and transposed in pieces, in the order of the sums
(`implicit_gemm_products.FilterOrder`), so that the loop can transpose a piece between any two matmuls.

A row of w, one output channel, is contiguous in HBM; the Tensor Engine transposes [k, c] of one tap into [c, k],
several taps to a PSUM bank. If an M tile has several groups, each row is first spread over the groups' channels by a
mask: its transpose is block-diagonal, and one matmul serves all groups.
"""

import itertools
from typing import Any

from ...._nki import nisa, nl
from ....schedules.cuts import in_order as tap_order
from ....schedules.geometry import filter_rows, num_taps
from ....schedules.implicit_gemm import ALONE, NEIGHBOURS, group_depth, lies_ready, m_tile_axis, tap_groups
from ....schedules.implicit_gemm_products import (
    BACKWARDS,
    DIAGONALS,
    MOVED,
    PACKED,
    PLANES,
    READY,
    home_row,
    needs_order,
)
from ....schedules.implicit_gemm_schedule import AHEAD_BYTES
from ....schedules.planes import channel_runs
from ....schedules.regions import pattern_of
from ....schedules.tiles import QUADRANT, WORD_BYTES, div_ceil, whole_words
from ..._engines import START_WORK, VECTOR_WORK, copy_balanced, is_16bit, pick
from ..._masks import constant, keep_between, make_diagonals
from ..filter_feed import transpose_into, turn_forwards
from ..regions import load_depthwise, load_filters, load_region
from .winograd import load_planes_of_taps, sums_of_taps


def new_tile(geometry, block, dtype, whole=False):
    """A new tile of stationaries, slot by slot, with zeros in rows of taps that a row of outputs lacks and, for pairs
    or if `whole`, in the last group of columns."""
    m_tile, k_tile = block.m_tile, block.k_tile
    each, groups = m_tile_axis(geometry, m_tile).taps, tap_groups(geometry, k_tile)
    height = geometry.planes.taps * each
    parts, shift = k_tile.cn * k_tile.depth, each - geometry.rows.taps
    shape = (parts, k_tile.slots * height, groups, m_tile.rows, m_tile.kn)
    tile_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    lacking = []
    for u in range(m_tile.rows if m_tile.rows > 1 else 0):
        without = [r for r in range(height) if not 0 <= r % each - u * shift < geometry.rows.taps]
        lacking += [tile_sbuf[0:parts, r, 0:groups, u, 0 : m_tile.kn] for r in without]
    if (whole or k_tile.pairing != ALONE) and group_depth(geometry, k_tile, groups - 1) < k_tile.depth:
        lacking += [tile_sbuf[0:parts, 0:height, groups - 1, u, 0 : m_tile.kn] for u in range(m_tile.rows)]
    for zeros in lacking:
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    return tile_sbuf


def rows_apart(geometry, m_tile):
    """Rows of taps between an M tile's output rows at once."""
    return m_tile_axis(geometry, m_tile).taps - geometry.rows.taps


def first_row(geometry, block):
    """A block's first row of taps in the stationaries of all slots."""
    return block.slot * geometry.rows.taps + block.r0


def load_stationaries(tile_sbuf, operands, geometry, block):
    """Load a packed filter as stationaries: in runs of a channel's taps, or of one tap if they are folded."""
    m_tile, (_, cn, depth, *_) = block.m_tile, block.k_tile
    (taps, each, S), shift = (num_taps(geometry), geometry.packed, geometry.columns.taps), rows_apart(geometry, m_tile)
    places = range(m_tile.rows), range(depth), range(m_tile.kn // each)
    runs, row = channel_runs(geometry, block.c0, cn), first_row(geometry, block)
    for (at, channel, step, count), u, d, part in itertools.product(runs, *places):
        p, counts = at + d * cn, (count, block.rn, div_ceil(S - d, depth), each)
        tap = ((m_tile.k0 // each + part) * geometry.C + channel) * taps + block.r0 * S + d
        own_sbuf = tile_sbuf[p : p + count, :, :, u]
        pattern = pattern_of((step * taps * each, S * each, depth * each, 1), counts)
        load_region(own_sbuf, operands.w, (0, row + u * shift, 0, part * each), pattern, tap * each)
    if block.again > 0:
        zeros = tile_sbuf[0 : block.again, row : row + block.rn, :, 0, 0 : m_tile.kn]
        nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)


def depthwise_stationaries(raw_sbuf, geometry):
    """Stationaries [cn, rows, columns, 1, kn] of depthwise filters [cn, outputs of a channel, rows, columns]; taps in
    reverse order are reversed first."""
    taps_sbuf = turn_forwards(raw_sbuf) if geometry.flipped else raw_sbuf
    count, each, R, S = taps_sbuf.shape
    return make_diagonals(taps_sbuf.reshape((count, each, R * S)), raw_sbuf.dtype).reshape(
        (count, R, S, 1, count * each)
    )


def load_taps(operands, geometry, block):
    """Load the taps of a block: [kn, channels, rows, columns] in SBUF; those of a transposed convolution by input
    channels, [depth * channels, outputs of a group, rows, columns], one copy for each tap of a folded group."""
    m_tile, k_tile, taps = block.m_tile, block.k_tile, (block.r0, block.rn, block.s0, block.sn)
    if block.kind in (BACKWARDS, READY):
        k = m_tile.k0 % (geometry.K // geometry.groups), m_tile.kn // m_tile.pack
        c = k_tile.first_channel(block.slot), k_tile.cn
        raw_sbuf = load_filters(operands, geometry, k, c, taps, True, k_tile.depth)
        again = raw_sbuf[0 : block.again]
    else:
        raw_sbuf = load_filters(operands, geometry, (m_tile.k0, m_tile.kn), (block.c0, block.channels), taps)
        again = raw_sbuf[:, 0 : block.again]
    if block.again > 0:
        nisa.memset(dst=again, value=0.0, engine=nisa.engine.gpsimd)
    return raw_sbuf


def in_order(raw_sbuf, geometry, c0, ledger, by_tap=False):
    """Loaded taps [kn, channels, rows, columns], whose first channel is c0, with channels in the order of x on the
    partitions; by_tap: as [kn, rows, columns, channels]."""
    kn, channels, rn, sn = raw_sbuf.shape
    shape = (kn, rn, sn, channels) if by_tap else raw_sbuf.shape
    found_sbuf = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    into_sbuf = found_sbuf.permute((0, 3, 1, 2)) if by_tap else found_sbuf
    engine = pick(ledger, rn * sn * channels, is_16bit(raw_sbuf.dtype)) if by_tap else None
    for at, channel, step, count in channel_runs(geometry, c0, channels):
        first = channel - c0
        src = raw_sbuf[:, first : first + (count - 1) * step + 1 : step]
        dst = into_sbuf[0:kn, at : at + count, 0:rn, 0:sn]
        if by_tap:
            # one engine: DMA transposes the whole tile
            nisa.tensor_copy(dst=dst.permute((0, 2, 3, 1)), src=src.permute((0, 2, 3, 1)), engine=engine)
        else:
            copy_balanced(dst, src, ledger)
    return found_sbuf


def place_backwards(filters_sbuf, raw_sbuf, geometry, block, rows, groups, ledger, mask_sbuf):
    """Copy rows and groups of columns of taps in order to filters_sbuf: those of folded channels, pairs and several
    groups cannot be used as loaded; mask_sbuf: of groups of channels, or None. Engines address few channels from
    partition 0 on alone: each tap overwrites the places of those before it."""
    m_tile, k_tile, count, kn = block.m_tile, block.k_tile, block.k_tile.cn, block.m_tile.kn
    R, S, shift = filter_rows(geometry), geometry.columns.taps, rows_apart(geometry, m_tile)
    for row, group in itertools.product(rows, groups):
        r = first_row(geometry, block) + row + row // geometry.rows.taps * shift
        for p in range((group_depth(geometry, k_tile, group) - 1) * count, -1, -count):
            s, parts = S - 1 - group * k_tile.depth - p // count, slice(p if count % QUADRANT == 0 else 0, p + count)
            taps = raw_sbuf[parts, :, R - 1 - row, s]
            for u in range(m_tile.rows):
                dst = filters_sbuf[parts, r + u * shift, group, u, 0:kn]
                if mask_sbuf is None:
                    copy_balanced(dst, taps, ledger)
                else:
                    spread_groups(taps, mask_sbuf, dst)


def stationary_of_product(filters_sbuf, geometry, m_tile, k_tile, product):
    """The stationary of a product: [partitions, k], or [partitions, rows of outputs, k]."""
    parts, row, group = product.parts, product.row, product.group
    if lies_ready(geometry, m_tile, k_tile):
        return filters_sbuf[0:parts, 0 : m_tile.kn, filter_rows(geometry) - 1 - row, geometry.columns.taps - 1 - group]
    return filters_sbuf[0:parts, row, group, 0 : m_tile.rows, 0 : m_tile.kn]


def spread_groups(taps, mask_sbuf, wide_sbuf):
    """Taps [channels, others of a group] as [channels, others of all groups]: each row at its group's, zeros elsewhere;
    mask_sbuf: [channels, groups], 1 if a channel belongs to the group."""
    (count, pack), others = mask_sbuf.shape, taps.shape[1]
    spread = taps.expand_dim(1).broadcast(1, pack), mask_sbuf.expand_dim(2).broadcast(2, others)
    dst = wide_sbuf.reshape((count, pack, others))
    nisa.tensor_tensor(dst=dst, data1=spread[0], data2=spread[1], op=nl.multiply)
    return wide_sbuf


#: Pieces to transpose between the sums of a block's planes of taps, or the copies that order its channels, and their
#: first transpose: an engine that waits for a later block keeps the Tensor Engine waiting.
SUMS_AHEAD, ORDER_AHEAD = 6, 2


class Filters:
    """Filters of a group, from HBM to stationaries.

    plan: their FilterOrder. pairing: the Pairs of fp16x3, or None. tiles: the stationaries by place of a K tile, [depth
    * cn, rows of taps, groups of columns, rows of outputs, kn], one tile, or two of high and low parts. raws: blocks
    loaded so far, None once they are transposed. ordered: blocks whose channels are ordered; transposed, moved: pieces
    that the Tensor Engine and DMA have transposed; ended: pieces whose pairs are complete.
    """

    pairing: Any

    def __init__(self, core, plan):
        self.operands, self.geometry, self.ledger = core.operands, core.geometry, core.ledger
        self.pairing = core.rows if core.geometry.precision == "fp16x3" else None
        self.plan, self.raws, self.tiles, self.masks = plan, [], {}, {}
        self.ordered = self.transposed = self.moved = self.ended = 0

    def left(self, count):
        """(pieces that the Tensor Engine has yet to transpose for the first `count` K tiles, those that DMA has)."""
        _, pieces, moves = self.plan.ends[min(count, self.plan.count)]
        return max(0, pieces - self.transposed), max(0, moves - self.moved)

    def load_ahead(self, count=None):
        """Load blocks of the first `count` K tiles, or of all, while those that wait for transposes are few."""
        blocks, end = self.plan.blocks, self.plan.ends[self.plan.count if count is None else count][0]
        waiting = sum(block.num_bytes for block, raw in zip(blocks, self.raws) if raw is not None)
        while len(self.raws) < end and waiting + blocks[len(self.raws)].num_bytes <= AHEAD_BYTES:
            waiting += blocks[len(self.raws)].num_bytes
            self.load_block()

    def load_until(self, count):
        """Load blocks up to the first `count`."""
        while len(self.raws) < count:
            self.load_block()

    def load_block(self):
        """Load the next block."""
        operands, geometry, block = self.operands, self.geometry, self.plan.blocks[len(self.raws)]
        if block.kind == PACKED and self.pairing is None:
            load_stationaries(self.tiles_of(block)[0], operands, geometry, block)
            raw_sbuf = None
        elif block.kind == PACKED:
            raw_sbuf = new_tile(geometry, block, operands.w_dtype, True)
            load_stationaries(raw_sbuf, operands, geometry, block)
        elif block.kind == DIAGONALS:  # by channel of x
            raw_sbuf = load_depthwise(operands, geometry, *block.k_tile[:2])
        else:
            load = load_planes_of_taps if block.kind == PLANES else load_taps
            raw_sbuf = load(operands, geometry, block)
        if block.kind == READY:
            self.tiles[block.place], raw_sbuf = [raw_sbuf], None
        self.raws.append(raw_sbuf)

    def tiles_of(self, block):
        """The stationaries of a block's K tile: one tile, or two for pairs."""
        if block.place not in self.tiles:
            dtypes = [nl.float16] * 2 if self.pairing is not None else [self.operands.w_dtype]
            dtypes = [nl.float16] if block.kind == PLANES else dtypes
            self.tiles[block.place] = [new_tile(self.geometry, block, dtype) for dtype in dtypes]
        return self.tiles[block.place]

    def transpose_until(self, count):
        """Transpose until the first `count` K tiles are complete."""
        count = min(count, self.plan.count)
        self.load_ahead(count)
        pieces, moves = self.left(count)
        for _ in range(pieces):
            self.transpose_piece()
        for _ in range(moves):
            self.move_piece()
        self.load_until(self.plan.ends[count][0])

    def move_piece(self):
        """Let DMA transpose its next piece, a whole block, and load ahead. DMA transposes rows of 128 elements of 16
        bits: an engine first copies the channels of a tap side by side."""
        geometry, index = self.geometry, self.plan.moves[self.moved].block
        block, S, taps = self.plan.blocks[index], geometry.columns.taps, num_taps(geometry)
        self.load_until(index + 1)
        rows_sbuf = in_order(self.raws[index], geometry, block.c0, self.ledger, by_tap=True)
        kn, rn, sn, cn = rows_sbuf.shape
        tile_sbuf, rows_sbuf = self.tiles_of(block)[0].reshape((cn, taps, kn)), rows_sbuf.reshape((kn, rn * sn, cn))
        for r, num in [(0, rn * sn)] if sn == S else [(r, sn) for r in range(rn)]:
            tap = (block.r0 + r) * S + block.s0
            src = rows_sbuf[0:kn, r * sn : r * sn + num, 0:cn]
            nisa.dma_transpose(dst=tile_sbuf[0:cn, tap : tap + num, 0:kn], src=src, axes=(2, 1, 0))
        self.raws[index] = None
        self.moved += 1
        self.load_ahead()

    def transpose_piece(self):
        """Transpose the next piece; after a block's last one, load ahead."""
        plan, piece = self.plan, self.plan.pieces[self.transposed]
        self.load_until(piece.block + 1)
        self._order_until(piece.block)
        self._transpose(plan.blocks[piece.block], piece, self.raws[piece.block])
        self.transposed += 1
        ahead = ORDER_AHEAD if self.geometry.direct is None else SUMS_AHEAD
        soon = plan.pieces[min(self.transposed + ahead, len(plan.pieces) - 1)].block
        self._order_until(min(soon, len(self.raws) - 1))
        if self.transposed == len(plan.pieces) or plan.pieces[self.transposed].block != piece.block:
            self.raws[piece.block] = None
            self.load_ahead()

    def _order_until(self, last):
        """Prepare blocks up to `last` for their transposes: order channels as in x, or add planes of taps."""
        for index in range(self.ordered, last + 1):
            block, raw = self.plan.blocks[index], self.raws[index]
            if block.kind == PLANES:
                self.raws[index] = sums_of_taps(raw, self.geometry, block)
            elif needs_order(self.geometry) and raw is not None and block.kind != MOVED:
                self.raws[index] = in_order(raw, self.geometry, block.c0, self.ledger)
        self.ordered = max(self.ordered, last + 1)

    def _transpose(self, block, piece, raw_sbuf):
        """Make the stationaries of a piece's taps from its block."""
        geometry, whole_sbuf = self.geometry, raw_sbuf
        if block.kind == BACKWARDS:
            rows, groups = [piece.row], range(piece.first, piece.first + piece.count)
            if self.pairing is None:
                (whole_sbuf,) = self.tiles_of(block)
            else:
                whole_sbuf = new_tile(geometry, block, raw_sbuf.dtype, True)
                rows, groups = range(block.rn), range(tap_groups(geometry, block.k_tile))
            mask_sbuf = self._mask(block, raw_sbuf)
            place_backwards(whole_sbuf, raw_sbuf, geometry, block, rows, groups, self.ledger, mask_sbuf)
        elif block.kind == DIAGONALS:
            whole_sbuf = depthwise_stationaries(raw_sbuf, geometry)
        elif block.kind != PACKED:
            self._transpose_taps(block, piece, raw_sbuf)
            return
        if self.pairing is None:
            self.tiles[block.place] = [whole_sbuf]
        else:
            self._pair_k_tile(block, whole_sbuf)

    def _mask(self, block, raw_sbuf):
        """The mask [channels, groups] of a block's loaded channels; None if its M tile has one group."""
        pack, channels = block.m_tile.pack, self.geometry.C if block.kind == BACKWARDS else self.geometry.K
        if pack > 1 and block.place not in self.masks:
            self.masks[block.place] = mask_sbuf = constant((raw_sbuf.shape[0], pack), raw_sbuf.dtype, 1.0)
            keep_between(mask_sbuf, [[-(channels // self.geometry.groups), pack]], channels // self.geometry.groups)
        return self.masks.get(block.place)

    def _transpose_taps(self, block, piece, raw_sbuf):
        """Transpose a piece's taps into one PSUM bank, and evacuate it once for each row of outputs."""
        geometry, m_tile, depth, num = self.geometry, block.m_tile, block.k_tile.depth, piece.count
        tiles, kn = self.tiles_of(block), m_tile.kn
        step = 2 if block.k_tile.pairing == NEIGHBOURS else 1
        count = tiles[0].shape[0] if m_tile.pack > 1 else piece.depth * block.channels // step
        shape = (count, num, whole_words(kn, geometry.itemsize))
        transposed_psum = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.psum)
        firsts = range(piece.first * depth - block.s0, (piece.first + num) * depth - block.s0, depth)
        if m_tile.pack > 1:
            mask_sbuf, wide = self._mask(block, raw_sbuf), (kn, m_tile.pack, block.channels)
            new = (nl.ndarray(wide, dtype=raw_sbuf.dtype, buffer=nl.sbuf) for _ in firsts)
            taps = (spread_groups(raw_sbuf[:, :, piece.row, s], mask_sbuf, into) for s, into in zip(firsts, new))
            transpose_into(transposed_psum, taps)
        else:
            own = raw_sbuf[:, piece.slot :: step, piece.row]
            taps = [own[:, :, s : s + piece.depth].permute((0, 2, 1)) for s in firsts]
            transpose_into(transposed_psum, taps)
        shift = rows_apart(geometry, m_tile)
        row = first_row(geometry, block) + piece.slot * geometry.rows.taps + piece.row
        data = transposed_psum[0:count, 0:num, 0:kn]
        for u in range(m_tile.rows):
            r = row + (row // geometry.rows.taps + u) * shift
            into = [tile[0:count, r, piece.first : piece.first + num, u, 0:kn] for tile in tiles]
            if self.pairing is not None:
                self.pairing.start_filters(self if u + 1 == m_tile.rows else None, data, True, into)
            elif geometry.itemsize == 1 and kn % WORD_BYTES == 0:
                # four bytes at a time; not by Scalar, which computes in fp32
                self.ledger.vector += START_WORK + num * kn // WORD_BYTES * VECTOR_WORK
                words = data.view(nl.float32)
                nisa.tensor_copy(dst=into[0].view(nl.float32), src=words, engine=nisa.engine.vector)
            else:
                copy_balanced(into[0], data, self.ledger)

    def _pair_k_tile(self, block, whole_sbuf):
        """Start the pairs of a K tile's stationaries that need no transposes, by rows of taps."""
        count, height, groups, rows, kn = whole_sbuf.shape
        order = list(tap_order(height, home_row(self.geometry, self.geometry.rows)[0]))
        for r in order:
            every = [tile[0:count, r, 0:groups, 0:rows, 0:kn] for tile in (whole_sbuf, *self.tiles_of(block))]
            self.pairing.start_filters(self if r == order[-1] else None, every[0], False, every[1:])
