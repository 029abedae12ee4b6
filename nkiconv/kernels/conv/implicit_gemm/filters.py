"""Filters as stationaries: [c, tap, k] in SBUF for each K tile of an M tile, transposed by the Tensor Engine.

Filters of a group's M tiles are loaded in blocks and transposed in pieces, in the order of the sums
(`implicit_gemm_products.FilterOrder`), so that the loop can transpose a piece between any two matmuls.
"""

from typing import Any

from ...._nki import nisa, nl
from ....schedules.geometry import num_taps
from ....schedules.implicit_gemm_channels import stationary_columns
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
from ....schedules.products import in_order as tap_order
from ....schedules.tiles import WORD_BYTES, whole_words
from ..._engines import START_WORK, VECTOR_WORK, copy_balanced
from ..filter_feed import transpose_into
from .stationaries import (
    group_mask,
    in_order,
    load_backwards,
    load_channels,
    load_stationaries,
    load_taps,
    make_diagonals,
    new_tile,
    place_backwards,
    rows_apart,
    slot_of,
    spread_groups,
)
from .winograd import load_planes_of_taps, sums_of_taps

#: Pieces to transpose between the sums of a block's planes of taps, or the copies that order its channels, and their
#: first transpose: an engine that waits for a later block keeps the Tensor Engine waiting.
SUMS_AHEAD, ORDER_AHEAD = 6, 2
#: Loads of blocks that are not stationaries yet, by kind.
LOADS = {DIAGONALS: load_channels, BACKWARDS: load_backwards, READY: load_backwards, PLANES: load_planes_of_taps}


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

    def pieces_left(self, count):
        """Pieces that the Tensor Engine has yet to transpose for the first `count` K tiles."""
        return max(0, self.plan.ends[min(count, self.plan.count)][1] - self.transposed)

    def moves_left(self, count):
        """Pieces that DMA has yet to transpose for the first `count` K tiles."""
        return max(0, self.plan.ends[min(count, self.plan.count)][2] - self.moved)

    def left(self, count):
        """All pieces that are yet to be transposed for the first `count` K tiles."""
        return self.pieces_left(count) + self.moves_left(count)

    def load_ahead(self, count=None):
        """Load blocks of the first `count` K tiles, or of all, while those that wait for transposes are few."""
        blocks, end = self.plan.blocks, self.plan.ends[self.plan.count if count is None else count][0]
        waiting = sum(block.num_bytes for block, raw in zip(blocks, self.raws) if raw is not None)
        while len(self.raws) < end and waiting + blocks[len(self.raws)].num_bytes <= AHEAD_BYTES:
            waiting += blocks[len(self.raws)].num_bytes
            self.load_block()

    def load_block(self):
        """Load the next block."""
        operands, geometry, block = self.operands, self.geometry, self.plan.blocks[len(self.raws)]
        if block.kind == PACKED and self.pairing is None:
            load_stationaries(slot_of(self.tiles_of(block)[0], geometry, block.slot), operands, geometry, block)
            raw_sbuf = None
        elif block.kind == PACKED:
            raw_sbuf = new_tile(geometry, block, operands.w_dtype, True)
            load_stationaries(raw_sbuf, operands, geometry, block)
        else:
            raw_sbuf = LOADS.get(block.kind, load_taps)(operands, geometry, block)
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
        self._load_until(self.plan.ends[min(count, self.plan.count)][0])
        while self.pieces_left(count) > 0:
            self.transpose_piece()
        while self.moves_left(count) > 0:
            self.move_piece()

    def _load_until(self, count):
        """Load blocks up to the first `count`."""
        while len(self.raws) < count:
            self.load_block()

    def move_piece(self):
        """Let DMA transpose its next piece, a whole block, and load ahead. DMA transposes rows of 128 elements of 16
        bits: an engine first copies the channels of a tap side by side."""
        geometry, index = self.geometry, self.plan.moves[self.moved].block
        block, S, taps = self.plan.blocks[index], geometry.columns.taps, num_taps(geometry)
        self._load_until(index + 1)
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
        self._load_until(piece.block + 1)
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
        if block.kind in (DIAGONALS, PACKED):
            whole_sbuf = raw_sbuf if block.kind == PACKED else make_diagonals(raw_sbuf, self.geometry)
            if self.pairing is None:
                self.tiles[block.place] = [whole_sbuf]
            else:
                self._pair_k_tile(block, whole_sbuf)
            return
        tiles = [slot_of(tile_sbuf, self.geometry, block.slot) for tile_sbuf in self.tiles_of(block)]
        if block.kind == BACKWARDS:
            place_backwards(tiles[0], raw_sbuf, self.geometry, block, piece, self.ledger)
        else:
            self._transpose_taps(tiles, raw_sbuf, block, piece)

    def _transpose_taps(self, tiles, raw_sbuf, block, piece):
        """Transpose a piece's taps into one PSUM bank, and evacuate it once for each row of outputs."""
        geometry, m_tile, depth, num = self.geometry, block.m_tile, block.k_tile.depth, piece.count
        channels, kn = raw_sbuf.shape[1], stationary_columns(geometry, m_tile)
        count = tiles[0].shape[0] if m_tile.pack > 1 else piece.depth * channels
        shape = (count, num, whole_words(kn, geometry.itemsize))
        transposed_psum = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.psum)
        if m_tile.pack > 1 and block.place not in self.masks:
            self.masks[block.place] = group_mask(m_tile, geometry, raw_sbuf.dtype)
        firsts = range(piece.first * depth - block.s0, (piece.first + num) * depth - block.s0, depth)
        if m_tile.pack > 1:
            rows = (raw_sbuf[:, :, piece.row, s] for s in firsts)
            transpose_into(transposed_psum, (spread_groups(row, self.masks[block.place], m_tile) for row in rows))
        else:
            taps = [raw_sbuf[:, :, piece.row, s : s + piece.depth].permute((0, 2, 1)) for s in firsts]
            transpose_into(transposed_psum, taps)
        shift, row = rows_apart(geometry, m_tile), block.r0 + piece.row
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
