"""Filters as stationaries: [c, tap, k] in SBUF for each K tile of an M tile, transposed on the array.

Filters of all M tiles of a group come in blocks and are transposed in pieces, in the order in which the sums need them
(`implicit_gemm_products.FilterOrder`), so that the loop can transpose a piece between any two matmuls.
"""

from ...._nki import nisa, nl
from ....schedules.geometry import num_taps
from ....schedules.implicit_gemm_channels import (
    by_input,
    is_depthwise_m_tile,
    lies_ready,
    m_tile_axis,
    stationary_columns,
)
from ....schedules.implicit_gemm_products import home_row, needs_order
from ....schedules.implicit_gemm_schedule import AHEAD_BYTES
from ....schedules.planes import channel_runs
from ....schedules.products import in_order as tap_order
from ....schedules.regions import pattern_of
from ....schedules.tiles import WORD_BYTES, div_ceil, whole_words
from ..._engines import START_WORK, VECTOR_WORK, is_16bit, pick
from ..regions import load_region
from .fp16x3 import start_pair_of_filters
from .stationaries import (
    group_mask,
    in_order,
    load_backwards,
    load_channels,
    load_taps,
    make_diagonals,
    new_tile,
    place_backwards,
    slot_of,
    spread_groups,
)
from .winograd import load_planes_of_taps, sums_of_taps

#: Pieces that are transposed between the sums of a block's planes of taps, or copies that put its channels in order,
#: and their first transpose: an engine that waits for a later block keeps the array waiting.
SUMS_AHEAD, ORDER_AHEAD = 6, 2


class Filters:
    """Filters of a group on their way from HBM to stationaries.

    plan: their FilterOrder. pairing: None, or of pairs of fp16 the Preparing of all of them. tiles, lows: by place of a
    KFilters its stationaries [depth * cn, rows of taps, groups of columns, rows of outputs, kn], and low parts. raws:
    blocks as loaded so far, None once they are transposed. first_bytes: bytes per partition that blocks of a core's
    first M tile may take together, 0 of another group. transposed, moved, ended: pieces and blocks transposed so far,
    and pieces whose pairs are done.
    """

    def __init__(self, operands, geometry, ledger, pairing, plan, first_bytes):
        self.operands, self.geometry, self.ledger, self.pairing = operands, geometry, ledger, pairing
        self.plan, self.first_bytes = plan, first_bytes
        self.raws, self.tiles, self.lows, self.masks, self.ordered = [], {}, {}, {}, set()
        self.transposed = self.moved = self.ended = 0

    def pieces_to(self, last):
        """Pieces that are not transposed yet of K tiles up to `last` of all."""
        return max(0, self.plan.end_of(last)[1] - self.transposed)

    def moves_to(self, last):
        """Blocks that DMA transposes and has not yet, of K tiles up to `last` of all."""
        return max(0, self.plan.end_of(last)[2] - self.moved)

    def left_to(self, last):
        """Pieces and blocks to transpose until K tile `last` of all is complete."""
        return self.pieces_to(last) + self.moves_to(last)

    def load_ahead(self):
        """Load blocks while those that are not transposed yet are few enough."""
        self._load_within(len(self.plan.order) - 1, AHEAD_BYTES)

    def load_first(self, last):
        """Load blocks until K tile `last` of all is complete, as far as a first M tile's have room."""
        self._load_within(last, self.first_bytes)

    def _load_within(self, last, most_bytes):
        blocks = self.plan.blocks
        waiting = sum(self._bytes(block) for block, raw in zip(blocks, self.raws) if raw is not None)
        while len(self.raws) < self.plan.end_of(last)[0]:
            waiting += self._bytes(blocks[len(self.raws)])
            if waiting > most_bytes:
                return
            self.load_block()

    def _bytes(self, block):
        """Bytes a partition of a block as loaded; none where the load makes stationaries."""
        geometry, of = self.geometry, self.plan.order[block.of]
        if geometry.direct is not None:
            return block.channels * num_taps(geometry.direct) * geometry.itemsize
        if by_input(geometry):
            ready = lies_ready(geometry, of.m_tile, of.k_tile)
            return 0 if ready else of.m_tile.kn * num_taps(geometry) * geometry.itemsize
        in_place = geometry.packed > 0 and geometry.precision != "fp16x3"
        return 0 if in_place else block.channels * block.rn * block.sn * geometry.itemsize

    def load_block(self):
        """Load the next block."""
        operands, geometry, block = self.operands, self.geometry, self.plan.blocks[len(self.raws)]
        of = self.plan.order[block.of]
        if geometry.packed > 0:
            raw_sbuf = self._load_stationaries(of, block)
        elif is_depthwise_m_tile(geometry, of.m_tile):
            raw_sbuf = load_channels(operands, geometry, of.m_tile)
        elif by_input(geometry):
            raw_sbuf = load_backwards(operands, geometry, of)
            if lies_ready(geometry, of.m_tile, of.k_tile):
                self.tiles[of.place], raw_sbuf = raw_sbuf, None
        elif geometry.direct is not None:
            raw_sbuf = load_planes_of_taps(operands, geometry, of.m_tile, block)
        else:
            raw_sbuf = load_taps(operands, geometry, of, block)
        self.raws.append(raw_sbuf)

    def _load_stationaries(self, of, block):
        """Load the stationaries of a block of rows of taps from the blocks of a packed filter: runs of a channel's
        taps, or of one tap where they are folded. What becomes pairs has a tile of its own, which is returned."""
        geometry, (m_tile, k_tile) = self.geometry, (of.m_tile, of.k_tile)
        taps, each, S, depth = num_taps(geometry), geometry.packed, geometry.columns.taps, k_tile.depth
        if self.pairing is not None:
            tile_sbuf = new_tile(geometry, of, self.operands.w_dtype, True)
        else:
            tile_sbuf = slot_of(self._tile_of(of, self.operands.w_dtype), geometry, block.slot)
        shift, (_, height, groups, _, columns) = (
            m_tile_axis(geometry, m_tile).taps - geometry.rows.taps,
            tile_sbuf.shape,
        )
        runs = [
            (at + run[0], *run[1:])
            for at, channel, count in k_tile.slot_channels(block.slot)
            for run in channel_runs(geometry, k_tile.c0 + channel, count)
        ]
        for partition, channel, step, count in runs:
            for u in range(m_tile.rows):
                for d in range(depth):
                    p = partition + d * k_tile.cn
                    strides = (step * taps * each, S * each, depth * each, 1)
                    pattern = pattern_of(strides, (count, block.rn, div_ceil(S - d, depth), each))
                    for part in range(m_tile.kn // each):
                        tap = ((m_tile.k0 // each + part) * geometry.C + channel) * taps + block.r0 * S + d
                        place = (0, block.r0 + u * shift, 0, part * each)
                        own_sbuf = tile_sbuf[p : p + count, 0:height, 0:groups, u, 0:columns]
                        load_region(own_sbuf, self.operands.w, place, pattern, tap * each)
        again = k_tile.again_of(block.slot)
        for p in range(0, depth * k_tile.cn if again > 0 else 0, k_tile.cn):
            zeros = tile_sbuf[p : p + again, block.r0 : block.r0 + block.rn, 0:groups, 0, 0 : m_tile.kn]
            nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
        return tile_sbuf if self.pairing is not None else None

    def _tile_of(self, of, dtype):
        """The stationaries of a KFilters in SBUF; of pairs, high parts."""
        if of.place not in self.tiles:
            self.tiles[of.place] = new_tile(self.geometry, of, dtype)
            if self.pairing is not None:
                self.lows[of.place] = new_tile(self.geometry, of, dtype)
        return self.tiles[of.place]

    def transpose_until(self, last):
        """Transpose until K tile `last` of all is complete."""
        while len(self.raws) < self.plan.end_of(last)[0]:
            self.load_block()
        while self.pieces_to(last) > 0:
            self.transpose_piece()
        while self.moves_to(last) > 0:
            self.move_block()

    def transpose_piece(self):
        """Transpose the next piece, and load ahead where that was a block's last."""
        geometry, pieces, piece = self.geometry, self.plan.pieces, self.plan.pieces[self.transposed]
        block = self.plan.blocks[piece.block]
        of = self.plan.order[block.of]
        while len(self.raws) <= piece.block:
            self.load_block()
        raw_sbuf = self._raw(piece.block)
        if self.pairing is not None and (geometry.packed > 0 or is_depthwise_m_tile(geometry, of.m_tile)):
            self._pair_k_tile(of, raw_sbuf if geometry.packed > 0 else make_diagonals(raw_sbuf, geometry))
        elif is_depthwise_m_tile(geometry, of.m_tile):
            self.tiles[of.place] = make_diagonals(raw_sbuf, geometry)
        else:
            if of.m_tile.pack > 1 and of.place not in self.masks:
                self.masks[of.place] = group_mask(of.m_tile, geometry, raw_sbuf.dtype)
            dtype = raw_sbuf.dtype if self.pairing is None else nl.float16
            tile_sbuf = slot_of(self._tile_of(of, dtype), geometry, block.slot)
            if by_input(geometry):
                place_backwards(tile_sbuf, raw_sbuf, geometry, of, piece, self.ledger)
            else:
                self._transpose_taps(tile_sbuf, raw_sbuf, of, block, piece)
        self.transposed += 1
        ahead = ORDER_AHEAD if geometry.direct is None else SUMS_AHEAD
        soon = pieces[min(self.transposed + ahead, len(pieces) - 1)]
        if soon.block < len(self.raws):
            self._raw(soon.block)
        if self.transposed == len(pieces) or pieces[self.transposed].block != piece.block:
            self.raws[piece.block] = None
            self.load_first(self.plan.after_m_tile(0) - 1)
            self.load_ahead()

    def _raw(self, index):
        """A block as its pieces are transposed: as it came, in the order of x, or sums of its planes of taps."""
        if self.geometry.direct is not None:
            return sums_of_taps(self.raws[index], self.geometry)
        if needs_order(self.geometry) and index not in self.ordered:
            self.raws[index] = in_order(self.raws[index], self.geometry, self.plan.blocks[index].c0, self.ledger)
            self.ordered.add(index)
        return self.raws[index]

    def _transpose_taps(self, filters_sbuf, raw_sbuf, of, block, piece):
        """Transposes of a piece's taps, all in one PSUM bank, then an evacuation for each row of outputs."""
        geometry, m_tile, depth, mask_sbuf = self.geometry, of.m_tile, of.k_tile.depth, self.masks.get(of.place)
        channels, kn, num = raw_sbuf.shape[1], stationary_columns(geometry, m_tile), piece.count
        count = piece.depth * channels if mask_sbuf is None else filters_sbuf.shape[0]
        shape = (count, num, whole_words(kn, geometry.itemsize))
        transposed_psum = nl.ndarray(shape, dtype=raw_sbuf.dtype, buffer=nl.psum)
        for index in range(num):
            s = (piece.first + index) * depth - block.s0
            if mask_sbuf is not None:
                taps = spread_groups(raw_sbuf[0:kn, 0:channels, piece.row, s], mask_sbuf, m_tile)
            else:
                taps = raw_sbuf[0:kn, 0:channels, piece.row, s : s + piece.depth].permute((0, 2, 1))
            nisa.nc_transpose(dst=transposed_psum[0:count, index, 0:kn], data=taps, engine=nisa.engine.tensor)
        shift, row = m_tile_axis(geometry, m_tile).taps - geometry.rows.taps, block.r0 + piece.row
        data = transposed_psum[0:count, 0:num, 0:kn]
        for u in range(m_tile.rows):
            r = row + (row // geometry.rows.taps + u) * shift
            dst = filters_sbuf[0:count, r, piece.first : piece.first + num, u, 0:kn]
            if self.pairing is not None:
                low = self.lows[of.place][0:count, r, piece.first : piece.first + num, u, 0:kn]
                start_pair_of_filters(self, data, True, dst, low, u + 1 == m_tile.rows)
            elif geometry.itemsize == 1 and kn % WORD_BYTES == 0:
                # four bytes at a time; not by Scalar, which computes
                self.ledger.vector += START_WORK + num * kn // WORD_BYTES * VECTOR_WORK
                words = data.view(nl.float32)
                nisa.tensor_copy(dst=dst.view(nl.float32), src=words, engine=nisa.engine.vector)
            else:
                nisa.tensor_copy(dst=dst, src=data, engine=pick(self.ledger, num * kn, is_16bit(raw_sbuf.dtype)))

    def _pair_k_tile(self, of, whole_sbuf):
        """Pairs of a K tile's stationaries that need no transposes, row by row of taps."""
        high_sbuf = self._tile_of(of, nl.float16)
        low_sbuf, (count, height, groups, rows, kn) = self.lows[of.place], whole_sbuf.shape
        order = list(tap_order(height, home_row(self.geometry, self.geometry.rows)[0]))
        for r in order:
            data, high, low = (tile[0:count, r, 0:groups, 0:rows, 0:kn] for tile in (whole_sbuf, high_sbuf, low_sbuf))
            start_pair_of_filters(self, data, False, high, low, r == order[-1])

    def move_block(self):
        """Let DMA transpose the next of its blocks, and load ahead.

        An engine first puts the channels of a tap side by side: DMA transposes rows of 128 elements of 16 bits, not
        single ones.
        """
        index, S = self.plan.moves[self.moved], self.geometry.columns.taps
        while len(self.raws) <= index:
            self.load_block()
        block, raw_sbuf = self.plan.blocks[index], self.raws[index]
        kn, cn, rn, sn = raw_sbuf.shape
        tile_sbuf = self._tile_of(self.plan.order[block.of], raw_sbuf.dtype)
        tile_sbuf = tile_sbuf.reshape((cn, num_taps(self.geometry), kn))
        rows_sbuf = in_order(raw_sbuf, self.geometry, block.c0, self.ledger, by_tap=True)
        rows_sbuf = rows_sbuf.reshape((kn, rn * sn, cn))
        tap, num = block.r0 * S + block.s0, sn if sn < S else rn * sn
        for r in range(rn if sn < S else 1):
            first = tap + r * S
            src = rows_sbuf[0:kn, r * sn : r * sn + num, 0:cn]
            nisa.dma_transpose(dst=tile_sbuf[0:cn, first : first + num, 0:kn], src=src, axes=(2, 1, 0))
        self.raws[index] = None
        self.moved += 1
        self.load_ahead()
