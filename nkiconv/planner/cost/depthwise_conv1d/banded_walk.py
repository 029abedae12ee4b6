"""What `banded` takes on a core: its order of work, walked with a clock for each engine.

The part of the work that is never the smaller one is walked. Of a long one only the first tiles, some of full size
behind them and the last one are; the groups of those between go on at the rate of the later ones of full size. The
order is that of the kernel's `banded`; a test holds the result against the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....schedules.banded import BandedSchedule
from ....schedules.banded_tiles import (
    BandedCuts,
    BandedTile,
    banded_cuts,
    in_pieces,
    is_ragged,
    out_pieces,
    outs_a_bank,
    plan_tile,
    sum_spans,
    transposes_a_bank,
)
from ....schedules.tiles import BANK_COLUMNS, PARTS, share
from ....simulator.hardware import PARTITIONS, PSUM_BANKS
from ..algorithm import Shape
from ..clock import Clock

#: Groups that are walked at most, and tiles that are at least.
BANDED_WALKED = 128
BANDED_TILES_MIN = 9
#: Tiles that are walked in any case before those by which a long walk goes on.
LEAD = 2
#: Partitions below which the first rows are there before the filters of 128 channels: the last of the 16 DMA engines
#: begins 300 ns after the first, a trigger takes 58.
ROWS_FIRST = 104
#: Band buffers that are filled before the first rows are transposed, as the kernel has it.
AT_START = 2
#: Bytes of a word that memsets write.
WORD_BYTES = 4


def walk_ns(shape: Shape, blocks: BandedSchedule) -> float:
    """ns of a core for all its tiles; of columns, whose halves meet different paddings, the slower half's."""
    parts = range(PARTS) if blocks.settings.shard == "columns" else (PARTS - 1,)
    return max(_walk_part(shape, blocks, part) for part in parts)


def walked_groups(blocks: BandedSchedule) -> int:
    """Groups that a walk goes through, about."""
    return int(min(blocks.num_groups, max(BANDED_TILES_MIN * blocks.groups, BANDED_WALKED)))


def _walk_part(shape: Shape, blocks: BandedSchedule, part: int) -> float:
    """ns of one of the PARTS."""
    cuts = banded_cuts(blocks, shape.geometry, part)
    a_cut = len(cuts.images) * len(cuts.columns)
    total = len(cuts.groups) * a_cut
    count = min(total, max(BANDED_TILES_MIN, -(-BANDED_WALKED // blocks.groups)))
    if count == 0:
        return 0.0
    lead, skipped = min(LEAD, count - 1), _skipped_at_edge(cuts, a_cut, total, count)
    places = [*range(lead), *range(lead + skipped, count - 1 + skipped), total - 1]
    tiles = [
        plan_tile(blocks, cuts, index // a_cut, index % a_cut // len(cuts.columns), index % len(cuts.columns))
        for index in places
    ]
    tiles[-1] = replace(tiles[-1], ends=True)
    walk = Walk(shape, blocks, tiles)
    ends = walk.run()
    if count == total:
        return ends[-1]
    groups = [tile.gn for tile in tiles]
    # what belongs to a tile moves beside the two before and the one behind it: the last ones are alone
    late = count - 4
    early = max(1, late // 2)
    # loads that have run ahead make room for stores, for a while
    rate_ns = max((ends[late] - ends[early]) / sum(groups[early + 1 : late + 1]), walk.clock.moved / sum(groups))
    all_groups = sum(gn for _, gn in cuts.groups) * a_cut
    return float(ends[-1] + (all_groups - sum(groups)) * rate_ns)


def _skipped_at_edge(cuts: BandedCuts, a_cut: int, total: int, count: int) -> int:
    """Tiles behind the first LEAD that are not walked, where those of the first groups are smaller than the others."""
    if len(cuts.groups) < 3 or a_cut <= LEAD or cuts.groups[0][1] >= cuts.groups[1][1]:
        return 0
    return min(a_cut - LEAD, total - count)


class Walk:
    """How far a walk is: the clock, and when things are there, or free again; all in ns."""

    def __init__(self, shape: Shape, blocks: BandedSchedule, tiles: Sequence[BandedTile]) -> None:
        self.geometry, self.epilogue, self.target = shape.geometry, shape.extras.epilogue, shape.target
        self.blocks, self.tiles, self.clock = blocks, tiles, Clock(shape.target)
        target, fp32 = self.target, shape.geometry.itemsize == 4
        wide = self.epilogue.y_itemsize == 4 or self.epilogue.residual != ""
        pass_ns = target.tensor_column_fp32_ns / target.matmul_passes_fp32
        #: of a column and of a matmul of bands, of a column of transposes in, and on the way out
        self.column_ns = target.tensor_column_fp32_ns if fp32 else target.tensor_column_ns
        self.fixed_ns = target.matmul_passes_fp32 * target.matmul_fp32_ns if fp32 else target.matmul_ns
        self.in_ns = target.tensor_column_ns * (target.transpose_passes_fp32 if fp32 else 1)
        self.out_ns = target.onezero_passes_fp32 * pass_ns if wide else target.tensor_column_ns
        #: whether sums leave PSUM by Scalar alone, and by an activation where by Scalar
        self.only_scalar = self.epilogue.activation != "" and self.epilogue.residual != "pre_activation"
        self.is_act = self.epilogue.bias or self.only_scalar
        #: what each engine has been given of read-outs
        self.vector = self.scalar = 0.0
        #: when each bank of PSUM is free, and banks taken so far
        self.banks, self.taken = [0.0] * PSUM_BANKS, 0
        #: the filters of each 128 channels and their copy in HBM; the matrix that undoes the mirroring
        self.filters: list[tuple[float, float]] = []
        self.mirror = 0.0
        #: of each tile: its rows, X, the last sums in Y, when a buffer of rows may be written again, its last store
        self.rows, self.x_blocks, self.sums, self.free = ([0.0] * len(tiles) for _ in range(4))
        self.ends: list[float] = []
        #: (first channel, groups) of each place of the queue of bands
        self.queue = [
            ((tile.g0 + g0 - tiles[0].g0) * blocks.per_group, min(blocks.buffer_groups, tile.gn - g0))
            for tile in tiles
            for g0 in range(0, tile.gn, blocks.buffer_groups)
        ]
        #: of each place: its last bands, from one group to the next, and which is the last; when its matmuls are done
        self.bands: list[tuple[float, float, int]] = []
        self.used: list[float] = []

    def run(self) -> list[float]:
        """When the last store of each tile is done."""
        config, target, clock, tile = self.blocks.settings, self.target, self.clock, self.tiles[0]
        # DMA engines serve who comes first: of two loads at the start the one that fewer of them share
        if tile.chunks_in * tile.rows < ROWS_FIRST:
            self.take_rows(0)
            self.take_filters(0)
        else:
            self.take_filters(0)
            self.take_rows(0)
        memset_ns = target.vector_fixed_memset_ns
        zeros = clock.on_vector(0.0, memset_ns, memset_ns) + target.hop_tensor_ns
        clock.matmuls(zeros, config.warmup, BANK_COLUMNS, target.tensor_column_ns, target.matmul_ns)
        for position in range(min(AT_START, config.buffers)):
            self.take_bands(position)
        if len(self.tiles) > 1:
            self.take_rows(1)
        self.transpose_in(0, 0, in_pieces(self.geometry, tile))
        for position in range(AT_START, config.buffers):
            self.take_bands(position)
        fixed_ns, ones_ns = target.gpsimd_fixed_ns, PARTITIONS * (target.gpsimd_ns + target.gpsimd_select_ns)
        self.mirror = clock.on_gpsimd(0.0, 2 * fixed_ns + ones_ns, fixed_ns + target.gpsimd_done_ns + ones_ns)
        clock.matmuls(0.0, config.rewarm, BANK_COLUMNS, target.tensor_column_ns, target.matmul_ns)
        self.groups()
        return self.ends

    def groups(self) -> None:
        """All groups of all tiles, as the kernel has them."""
        tiles, config = self.tiles, self.blocks.settings
        position = 0
        for index, tile in enumerate(tiles):
            if index + 2 < len(tiles):
                self.take_rows(index + 2, self.free[index])
            gn = tile.gn
            spread = max(1, gn - 2)
            pieces_in = in_pieces(self.geometry, tiles[index + 1]) if index + 1 < len(tiles) else 0
            pieces_out = out_pieces(self.blocks, tiles[index - 1]) if index > 0 else 0
            late, sums = index == 0 and config.bands_first, self.sums_of(tile)
            for group in range(gn):
                if not late and group < spread and pieces_in:
                    self.transpose_in(index + 1, *share(pieces_in, spread, group))
                if group >= gn - spread and pieces_out:
                    self.transpose_out(index - 1, *share(pieces_out, spread, group - (gn - spread)))
                slot = group % self.blocks.buffer_groups
                self.multiply(index, group, position, slot, sums)
                if slot == self.blocks.buffer_groups - 1 or group == gn - 1:
                    self.take_bands(position + config.buffers)
                    position += 1
                if late and group < spread and pieces_in:
                    self.transpose_in(index + 1, *share(pieces_in, spread, group))
        self.transpose_out(len(tiles) - 1, 0, out_pieces(self.blocks, tiles[-1]))

    def take_filters(self, last: int) -> None:
        """Filters of 128 channels at a time and their copies in HBM, up to those of the `last` channel."""
        geometry, target, clock = self.geometry, self.target, self.clock
        item, rows = geometry.itemsize, min(PARTITIONS, geometry.C)
        width = (self.blocks.num_taps + 1) * self.blocks.block
        while len(self.filters) * PARTITIONS <= last:
            row_ns = target.row_ns(geometry.S, geometry.w_s, item)
            there = clock.load(0.0, 1, rows, row_ns, rows * geometry.S * item)
            zeros_ns = target.gpsimd_fixed_ns + (width - geometry.S) * target.gpsimd_ns
            zeroed = clock.on_gpsimd(0.0, target.gpsimd_fixed_ns + zeros_ns, zeros_ns + target.gpsimd_done_ns)
            there = max(there, zeroed + target.hop_ns)
            copy_ns = min(rows, target.rows_an_engine) * target.run_ns(width * item)
            start_ns = target.first_packet_ns + target.store_skew_ns
            self.filters.append((there, there + start_ns + copy_ns + target.dma_end_ns + target.dma_done_ns))

    def take_bands(self, position: int) -> None:
        """Zeros of a buffer's first bands, and the loads of a place of the queue."""
        if position >= len(self.queue):
            return
        blocks, config, geometry, target = self.blocks, self.blocks.settings, self.geometry, self.target
        (first, groups), per_group = self.queue[position], blocks.per_group
        size = blocks.num_taps * blocks.block
        channels = min(geometry.C, groups * per_group)
        last = min(geometry.C, first + channels) - 1
        self.take_filters(last)
        soon = position < 1 or not config.scratch
        ready = self.filters[last // PARTITIONS][0 if soon else 1]
        if position >= config.buffers:
            ready = max(ready, self.used[position - config.buffers])
        elif per_group > 1:
            ready = max(ready, self.zero_bands(per_group * (size + size % 2) * geometry.itemsize / WORD_BYTES))
        num_bytes = 0 if soon else channels * blocks.block * size * geometry.itemsize
        row_ns = channels / per_group * target.run_ns(size * geometry.itemsize)
        triggers = channels if soon else min(per_group, channels)
        there = self.clock.load(ready, triggers, PARTITIONS, row_ns, num_bytes)
        # one trigger after the other: the first groups' are there earlier
        self.bands.append((there, per_group * target.static_issue_ns if soon else 0.0, groups - 1))

    def zero_bands(self, words: float) -> float:
        """Zeros of so many words of each group of a buffer, Vector and GpSimd in turn."""
        target, there = self.target, 0.0
        for group in range(self.blocks.buffer_groups):
            if group % 3 == 2:
                busy_ns = words * target.gpsimd_ns
                zeroed = self.clock.on_gpsimd(0.0, target.gpsimd_fixed_ns + busy_ns, target.gpsimd_done_ns + busy_ns)
            else:
                busy_ns = target.vector_fixed_memset_ns + words * target.vector_memset_ns
                zeroed = self.clock.on_vector(0.0, busy_ns, busy_ns)
                self.vector += words * target.vector_memset_ns
            there = max(there, zeroed)
        return there

    def take_rows(self, index: int, ready: float = 0.0) -> None:
        """The load of a tile's rows, and zeros beside them."""
        tile, geometry, target, block = self.tiles[index], self.geometry, self.target, self.blocks.block
        if tile.datan == 0:
            return
        channels = min(self.blocks.per_group, geometry.C)
        partitions, size = tile.chunks_in * tile.rows, tile.blocks_in * block
        begin = (tile.j0 + tile.data0) * block - geometry.pad_left
        left, right = max(0, -begin), max(0, begin + tile.chunks_in * size - geometry.W)
        for missing in (min(size, left), min(size, right)):
            if missing > 0:
                words = channels * missing * geometry.itemsize / WORD_BYTES
                busy_ns = target.vector_fixed_memset_ns + words * target.vector_memset_ns
                ready = max(ready, self.clock.on_vector(ready, busy_ns, busy_ns))
        transfers = 1 + ((left > 0) + (right > 0) if tile.chunks_in > 1 else 0)
        if is_ragged(self.blocks, tile):
            transfers = 2 * tile.chunks_in
        run = min(size, max(1, tile.chunks_in * size - left - right))
        row_ns = channels * target.row_ns(run, geometry.x_w, geometry.itemsize)
        num_bytes = partitions * channels * run * geometry.itemsize
        self.rows[index] = self.clock.load(ready, transfers, partitions, row_ns, num_bytes)

    def bank(self) -> tuple[int, float]:
        """Take the next bank of PSUM: (its place, when it is free)."""
        place = self.taken % PSUM_BANKS
        self.taken += 1
        return place, self.banks[place]

    def read_out(self, ready: float, elements: float, fast: bool, only_scalar: bool, is_act: bool) -> float:
        """When a read-out of so many elements a partition is there, by the engine that has had less.

        fast: all operands have 16 bits. is_act: Scalar's is an activation, for a bias or a function.
        """
        target, ready = self.target, ready + self.target.hop_ns
        vector_ns = elements * (target.vector_16bit_ns if fast else target.vector_ns)
        scalar_ns = elements * target.scalar_ns
        if not only_scalar and self.vector + vector_ns <= self.scalar + scalar_ns:
            self.vector += target.vector_fixed_ns + vector_ns
            busy_ns, done_ns = target.vector_fixed_psum_ns, target.vector_done_ns
            return self.clock.on_vector(ready, busy_ns + vector_ns, done_ns + vector_ns)
        self.scalar += target.vector_fixed_ns + scalar_ns
        busy_ns, done_ns = target.scalar_fixed_ns, target.scalar_done_ns
        if is_act:
            busy_ns, done_ns = target.scalar_fixed_psum_ns, target.scalar_act_done_ns
        return self.clock.on_scalar(ready, busy_ns + scalar_ns, done_ns + scalar_ns)

    def transpose_in(self, index: int, first: int, count: int) -> None:
        """Pieces first .. first+count-1 of the stage that makes blocks of rows."""
        tile, geometry, target = self.tiles[index], self.geometry, self.target
        if tile.datan == 0:
            return
        columns, at_once = tile.chunks_in * tile.rows, transposes_a_bank(geometry, tile)
        for piece in range(first, first + count):
            jn = min(at_once, tile.blocks_in - piece * at_once)
            place, free = self.bank()
            there = self.clock.matmuls(max(self.rows[index], free), jn, columns, self.in_ns, target.matmul_ns)
            self.free[index] = max(self.free[index], there)
            there = self.read_out(there, jn * columns, geometry.itemsize == 2, only_scalar=False, is_act=False)
            self.banks[place] = there + target.hop_tensor_ns
            self.x_blocks[index] = max(self.x_blocks[index], self.banks[place])

    def multiply(self, index: int, group: int, position: int, slot: int, sums: Sequence[tuple[int, ...]]) -> None:
        """The matmuls of a group, and the read-out of a bank of groups. sums: as of `sums_of`."""
        last_group, last_slot = self.tiles[index].gn - 1, self.bands[position][2]
        ready = max(self.x_blocks[index], self.bands[position][0] - self.bands[position][1] * (last_slot - slot))
        there = 0.0
        for columns, moved, slots, met in sums:
            at = group % slots
            place, free = self.bank() if at == 0 else ((self.taken - 1) % PSUM_BANKS, 0.0)
            there = self.clock.matmuls(max(ready, free), met, moved, self.column_ns, self.fixed_ns)
            if at == slots - 1 or group == last_group:
                reads = at + 1 if self.epilogue.bias else 1  # each group has another bias
                for _ in range(reads):
                    read = self.read_out(there, (at + 1) * columns / reads, False, self.only_scalar, self.is_act)
                self.banks[place] = read + self.target.hop_tensor_ns
                self.sums[index] = max(self.sums[index], read)
        if len(self.used) <= position:
            self.used.append(there)
        self.used[position] = there

    def sums_of(self, tile: BandedTile) -> list[tuple[int, int, int, int]]:
        """Of each of a group's sums in PSUM: columns, those that a matmul takes, groups of a bank, matmuls."""
        met = min(self.blocks.num_taps, tile.data0 + tile.datan) - max(0, tile.data0 - tile.jn + 1)
        spans = sum_spans(tile)
        if len(spans) == 1:
            moved = tile.repeats * tile.nn * tile.jn
            return [(tile.nn * tile.jn, moved, BANK_COLUMNS // moved, max(1, met))]
        return [(jn, jn, 1, max(1, met)) for _, _, _, jn in spans]

    def transpose_out(self, index: int, first: int, count: int) -> None:
        """Pieces first .. first+count-1 of the stage that makes rows of sums; the last one stores."""
        tile, blocks, target, epilogue = self.tiles[index], self.blocks, self.target, self.epilogue
        width, at_once = blocks.per_group * blocks.out_block, outs_a_bank(blocks, tile)
        only_scalar = epilogue.residual == "pre_activation" and epilogue.activation != ""
        there = 0.0
        for piece in range(first, first + count):
            jn = min(at_once, tile.blocks_out - piece * at_once)
            place, free = self.bank()
            ready = max(max(self.sums[index], self.mirror) + target.hop_tensor_ns, free)
            there = self.clock.matmuls(ready, jn, width, self.out_ns, target.matmul_ns)
            there = self.read_out(there, jn * width, False, only_scalar, is_act=False)
            self.banks[place] = there + target.hop_tensor_ns
        if count > 0 and first + count == out_pieces(blocks, tile):
            self.store(tile, there)

    def store(self, tile: BandedTile, ready: float) -> None:
        """The stores of a tile's results."""
        blocks, geometry, item = self.blocks, self.geometry, self.epilogue.y_itemsize
        partitions, channels = tile.chunks_out * tile.rows, min(blocks.per_group, geometry.C)
        run = min(tile.blocks_out * blocks.out_block, geometry.Q - tile.j0 * blocks.out_block)
        short = geometry.Q % (tile.step_out * blocks.out_block) != 0 and tile.chunks_out > 1
        transfers = 2 * tile.chunks_out if is_ragged(self.blocks, tile) else 1 + short
        row_ns = channels * self.target.row_ns(run, geometry.y_q, item) / transfers
        for _ in range(transfers):
            self.clock.store(ready, partitions, row_ns, partitions * channels * run * item / transfers)
        self.ends.append(self.clock.end)
