"""What the loop over rows takes on a core: its order of work, walked with a clock for each engine.

Part 1 of the work is walked, which is never the smaller one, but for states. Of a long one only the first tiles are:
further ones go on at the rate of the later half of these. The order is that of the kernel's `convolve_rows`; a test
holds the result against the timeline.
"""

from __future__ import annotations

from ....schedules.mixed import (
    FILLED_AHEAD,
    IMAGES,
    MixedPiece,
    MixedSchedule,
    block_of,
    cut_pieces,
    filter_block,
    is_staged,
    meets_state,
    mixed_cuts,
    widths_of,
)
from ....schedules.recipes import vector_steps
from ....schedules.rows import (
    RowTile,
    held_by_all,
    places_between,
    places_of_y,
    positions_of,
    run_length,
    spans,
    tile_count,
    tile_list,
)
from ....schedules.tiles import BANK_COLUMNS, div_ceil
from ..algorithm import Shape
from ..clock import Clock

#: Pieces that are walked at most, and tiles that are at least: enough for the array to settle for a rate.
MIXED_WALKED = 96
MIXED_TILES_MIN = 6
#: Bytes of a filter's tap in SBUF.
FILTER_BYTES = 4


def walk_ns(shape: Shape, plan: MixedSchedule) -> float:
    """ns of a core that runs a plan which memory holds."""
    geometry, rows = shape.geometry, plan.rows
    most = max(MIXED_TILES_MIN, div_ceil(MIXED_WALKED, div_ceil(rows.columns, plan.piece)))
    # the second part of columns meets no state
    part = 0 if shape.extras.state and rows.shard == "columns" and geometry.Q > 1 else 1
    tiles = tile_list(geometry, rows, part, most + 1)
    count = len(tiles)
    if count > most:
        count, tiles = int(tile_count(geometry, rows)), tiles[:most]
    walk = Walk(shape, plan, tiles)
    walk.run()
    last_ns = walk.ends[-1]
    if count == len(tiles):
        return last_ns
    # the last tile of a walk has narrow pieces: it is left out of the rate
    late = len(tiles) - 2
    early = late - max(1, late // 2)
    # loads that have run ahead make room for stores, for a while
    rate_ns = max((walk.ends[late] - walk.ends[early]) / (late - early), walk.clock.moved / len(tiles))
    return last_ns + (count - len(tiles)) * rate_ns


class Walk:
    """How far a walk through some tiles is: the clocks, and when what the sums need is there."""

    def __init__(self, shape: Shape, plan: MixedSchedule, tiles: list[RowTile]) -> None:
        self.geometry, self.extras, self.epilogue = shape.geometry, shape.extras, shape.extras.epilogue
        self.plan, self.tiles = plan, tiles
        self.target = target = shape.target
        self.clock = Clock(target)
        self.pieces: list[MixedPiece] = cut_pieces(plan, self.epilogue, tiles)
        self.block: int = filter_block(self.geometry)
        fp32 = self.geometry.itemsize == 4
        #: ns of a column of a tap on the array, and of a matmul beside those
        self.column_ns = target.tensor_column_fp32_ns if fp32 else target.tensor_column_ns
        self.fixed_ns = 2 * target.matmul_fp32_ns if fp32 else target.matmul_ns
        #: for each tile: (end column, ns) of x, for each of its loads; ns of its stationaries, or of its filters
        self.xs: list[list[tuple[int, float]]] = []
        self.stationaries: list[float] = []
        #: ns of the filters of each block of channel tiles, of each block of states; tiles that have theirs
        self.filters: list[float] = []
        self.states: list[float] = []
        self.filled = 0
        #: for each piece: ns of its chains A and B, of its columns of x
        self.a, self.b, self.there = ([0.0] * len(self.pieces) for _ in range(3))
        #: Vector's tap beside its columns: until the next, until its result
        self.tap_ns = target.vector_fixed_sum_ns
        self.tap_done_ns = target.vector_done_ns + target.vector_operand_done_ns
        #: ns from the first load's trigger to the end of the last store of each tile
        self.ends = [0.0] * len(tiles)

    def run(self) -> None:
        """All tiles, in the loop's order."""
        plan, tiles, pieces = self.plan, self.tiles, self.pieces
        for turn in range(len(pieces) + plan.phases - 1):
            if turn < len(pieces):
                i = pieces[turn].tile
                while len(self.xs) < min(len(tiles), i + plan.prefetch + 1):
                    self.take_tile()
                while len(self.stationaries) < min(len(self.xs), i + 2):
                    self.take_stationaries()
                while self.filled < min(len(self.xs), i + FILLED_AHEAD + 1):
                    self.fill_state(self.filled)
                    self.filled += 1
            # phase 0 of piece `turn`, phase 1 of the one before it, and so on, their steps in alternation
            own = [(turn - k, *pieces[turn - k].phases[k]) for k in range(plan.phases)
                   if 0 <= turn - k < len(pieces) and k < len(pieces[turn - k].phases)]  # fmt: skip
            for step in range(max((end - begin for _, begin, end in own), default=0)):
                for index, begin, end in own:
                    if begin + step < end:
                        self.take_step(index, begin + step)

    def take_tile(self) -> None:
        """Loads of the next tile, of filters that are due with it, and zeros beside its rows."""
        geometry, plan, clock, target = self.geometry, self.plan, self.clock, self.target
        i, itemsize = len(self.xs), self.geometry.itemsize
        tile = self.tiles[i]
        while len(self.filters) * self.block + self.tiles[0].t <= tile.t:
            self.take_filters()
        state_ns = 0.0
        if is_staged(plan, i):
            self.load_states(tile)
        elif self.extras.state and meets_state(geometry, tile):
            taken = target.row_ns(geometry.pad_left, 1, itemsize)
            state_ns = clock.load(0.0, 1, tile.rows, taken, tile.rows * geometry.pad_left * itemsize)
        zeros_ns, blocked_ns = self.zero_outside(tile)
        found, begin = [], 0
        for columns in mixed_cuts(tile.qn, widths_of(tile.qn, plan, i == 0, i == len(self.tiles) - 1)[0]):
            there_ns = 0.0
            if plan.rows.runs:
                end = run_length(geometry, columns)
                there_ns = self.load_run(tile, begin, end, blocked_ns)
                begin = end
            else:
                taken = target.row_ns(tile.qn, geometry.x_w * geometry.stride, itemsize)
                for _ in range(geometry.S):
                    there_ns = clock.load(0.0, 1, tile.rows, taken, tile.rows * tile.qn * itemsize)
            found.append((columns, max(there_ns, zeros_ns, state_ns)))
        if geometry.lhs_dilation > 1:
            found = self.open_gaps(tile, found[-1][1])
        if self.epilogue.residual:
            taken = target.row_ns(tile.qn, geometry.y_q, itemsize)
            clock.load(0.0, 1, tile.rows, taken, tile.rows * tile.qn * itemsize)
        self.xs.append(found)
        if i == 0 and plan.settings.warmup > 0:
            warm_ns = clock.on_vector(0.0, target.vector_fixed_memset_ns, target.vector_fixed_memset_ns)
            warm_ns += target.hop_tensor_ns
            clock.matmuls(warm_ns, plan.settings.warmup, BANK_COLUMNS, target.tensor_column_ns, target.matmul_ns)

    def load_states(self, tile: RowTile) -> None:
        """Loads of the blocks of states up to that of a tile."""
        geometry, states = self.geometry, self.plan.states
        taken = IMAGES * self.target.row_ns(states * geometry.pad_left, 1, geometry.itemsize)
        num_bytes = tile.rows * IMAGES * states * geometry.pad_left * geometry.itemsize
        while meets_state(geometry, tile) and len(self.states) <= block_of(self.plan, self.tiles, tile):
            self.states.append(self.clock.load(0.0, 1, tile.rows, taken, num_bytes))

    def fill_state(self, i: int) -> None:
        """The copy of a tile's state to its columns, if it comes from a block."""
        target, tile = self.target, self.tiles[i]
        if not is_staged(self.plan, i) or not meets_state(self.geometry, tile):
            return
        ready_ns = self.states[block_of(self.plan, self.tiles, tile)]
        busy_ns = self.geometry.pad_left * target.gpsimd_ns
        if self.plan.vector_fills:
            fixed_ns, done_ns = target.vector_fixed_ns, target.vector_done_ns
            there_ns = self.clock.on_vector(ready_ns, fixed_ns + busy_ns, done_ns + busy_ns)
        else:
            there_ns = self.on_gpsimd(ready_ns, busy_ns)
        self.xs[i] = [(end, max(ns, there_ns + target.hop_ns)) for end, ns in self.xs[i]]

    def take_filters(self) -> None:
        """Loads of the next block of filters."""
        geometry, tiles = self.geometry, self.tiles
        t0 = len(self.filters) * self.block + tiles[0].t
        count = min(self.block, tiles[-1].t + 1 - t0) * geometry.S
        taken = self.target.row_ns(count, geometry.w_s, FILTER_BYTES)
        there_ns = 0.0
        for _ in range(1 + self.epilogue.bias):
            there_ns = self.clock.load(0.0, 1, tiles[0].rows, taken, tiles[0].rows * count * FILTER_BYTES)
        self.filters.append(there_ns)

    def take_stationaries(self) -> None:
        """The next tile's diagonals: those of the tile before if the channels are the same."""
        i = len(self.stationaries)
        tile, before = self.tiles[i], self.tiles[max(0, i - 1)]
        there_ns = self.filters[(tile.t - self.tiles[0].t) // self.block]
        if i > 0 and before.t == tile.t and before.rows >= tile.rows:
            there_ns = self.stationaries[i - 1]
        elif self.plan.taps > 0:
            there_ns = self.on_gpsimd(there_ns, self.plan.taps * tile.rows * self.target.gpsimd_select_ns)
        self.stationaries.append(there_ns)

    def on_gpsimd(self, ready_ns: float, busy_ns: float) -> float:
        """An instruction of GpSimd's that takes so long beside what all of them do; when its result is there."""
        target = self.target
        return self.clock.on_gpsimd(ready_ns, target.gpsimd_fixed_ns + busy_ns, target.gpsimd_done_ns + busy_ns)

    def fill(self, columns: int) -> float:
        """Zeros in so many columns; when they are there."""
        target = self.target
        if self.plan.vector_fills:
            busy_ns = target.vector_fixed_memset_ns + columns * target.vector_memset_ns
            return self.clock.on_vector(0.0, busy_ns, busy_ns)
        return self.on_gpsimd(0.0, columns * target.gpsimd_ns)

    def zero_outside(self, tile: RowTile) -> tuple[float, float]:
        """Zeros in the columns of a tile that hold no element of x in some group.

        When they are there, and the same again if x of another group has to wait for them, else 0.
        """
        geometry = self.geometry
        if not self.plan.rows.runs:
            return 0.0, 0.0
        size, firsts = run_length(geometry, tile.qn), positions_of(geometry, tile, 0)
        left, right = held_by_all(geometry, self.extras, firsts, size) if geometry.lhs_dilation == 1 else (size, size)
        there_ns = 0.0
        for columns in (left, size - right):
            if columns > 0:
                there_ns = self.fill(columns)
        least = size if self.extras.state else min(size, *(max(0, -first) for first in firsts))
        most = max(max(0, geometry.W - first) for first in firsts)
        overlaps = least < left or min(size, most) > right
        return there_ns + self.target.hop_ns if there_ns > 0.0 else 0.0, there_ns if overlaps else 0.0

    def load_run(self, tile: RowTile, begin: int, end: int, ready_ns: float) -> float:
        """Loads of positions begin .. end-1 of a tile's rows, one for each span of groups; when the last is there."""
        geometry = self.geometry
        steps, end_x = (geometry.x_n, geometry.x_c, geometry.x_w), geometry.W * geometry.lhs_dilation
        where = places_between(tile, steps, positions_of(geometry, tile, 0), begin, end, 0, end_x)
        loads = len(spans(where))
        elements = div_ceil(max(where[2]), geometry.lhs_dilation)
        taken = self.target.row_ns(elements, geometry.x_w, geometry.itemsize)
        num_bytes = tile.rows * elements * geometry.itemsize
        there_ns = 0.0
        for _ in range(loads):
            there_ns = self.clock.load(ready_ns, 1, tile.rows, taken / loads, num_bytes / loads)
        return there_ns

    def open_gaps(self, tile: RowTile, loaded_ns: float) -> list[tuple[int, float]]:
        """GpSimd's copy of what was loaded to its dilated places; when x is there."""
        geometry = self.geometry
        busy_ns = div_ceil(run_length(geometry, tile.qn), geometry.lhs_dilation) * self.target.gpsimd_ns
        return [(tile.qn, self.on_gpsimd(loaded_ns, busy_ns) + self.target.hop_ns)]

    def take_step(self, index: int, step: int) -> None:
        """One step of a piece, as the kernel's `run_step` issues it."""
        target, piece, steps = self.target, self.pieces[index], vector_steps(self.pieces[index].recipe)
        on_tensor, chain, head, second = piece.recipe
        if step == 0:
            self.take_heads(index)
        elif step <= steps:
            # the chain that is there first: Scalar's first product, or its only one before the sums of Tensor
            taken, there_ns = piece.qn * target.vector_sum_ns, self.there[index]
            if on_tensor == 0 and step <= chain:
                self.a[index] = self.extend(self.a[index], there_ns, taken)
            if step <= second:
                self.b[index] = self.extend(self.b[index], there_ns, taken)
            if on_tensor > 0 and step <= chain:
                self.a[index] = self.extend(self.a[index], there_ns, taken)
        elif head == 1 and step == steps + 1:
            ready_ns = max(self.a[index], self.b[index]) + target.hop_ns
            if piece.vector_joins or (on_tensor > 0 and chain == 0):
                self.a[index] = self.vector_pass(ready_ns, piece.qn)
            else:
                self.a[index] = self.on_gpsimd(ready_ns, piece.qn * target.gpsimd_ns)
        else:
            self.a[index] = self.complete(self.a[index] + target.hop_ns, piece)
        if step == piece.last:
            self.store(piece, self.a[index])

    def take_heads(self, index: int) -> None:
        """The start of a piece's chains: Tensor's taps or a product, and the product that heads the second."""
        piece, loads = self.pieces[index], self.xs[self.pieces[index].tile]
        on_tensor, _, head, _ = piece.recipe
        there_ns = next((ns for column, ns in loads if column >= piece.q0 + piece.qn), loads[-1][1])
        self.there[index] = there_ns
        if on_tensor > 0:
            ready_ns = max(there_ns, self.stationaries[piece.tile] + self.target.hop_tensor_ns)
            for begin in range(0, piece.qn, BANK_COLUMNS):
                columns = min(BANK_COLUMNS, piece.qn - begin)
                self.a[index] = self.clock.matmuls(ready_ns, on_tensor, columns, self.column_ns, self.fixed_ns)
        else:
            self.a[index] = self.product(there_ns, piece.qn)
        if head == 1:
            self.b[index] = self.product(there_ns, piece.qn)

    def store(self, piece: MixedPiece, ready_ns: float) -> None:
        """A piece of y, one DMA for each span of groups."""
        geometry, tile, y_itemsize = self.geometry, self.tiles[piece.tile], self.epilogue.y_itemsize
        count = 1
        if len(tile.groups) > 1:
            count = max(1, len(spans(places_of_y(geometry, tile, piece.q0, piece.qn))))
        taken = self.target.row_ns(piece.qn, geometry.y_q, y_itemsize) / count
        for _ in range(count):
            self.clock.store(ready_ns, tile.rows, taken, tile.rows * piece.qn * y_itemsize / count)
        self.ends[piece.tile] = self.clock.end

    def product(self, ready_ns: float, qn: int) -> float:
        """Scalar's product of a tap."""
        target, taken = self.target, qn * self.target.scalar_ns
        done_ns = target.scalar_act_done_ns + target.scalar_operand_done_ns + taken
        return self.clock.on_scalar(ready_ns, target.scalar_fixed_operand_ns + taken, done_ns)

    def extend(self, chain_ns: float, there_ns: float, taken: float) -> float:
        """Vector's tap, whose columns take so long."""
        ready_ns = max(chain_ns + self.target.hop_ns, there_ns)
        return self.clock.on_vector(ready_ns, self.tap_ns + taken, self.tap_done_ns + taken)

    def vector_pass(self, ready_ns: float, qn: int) -> float:
        """Vector's sum of two chains, or copy out of PSUM."""
        target, taken = self.target, qn * self.target.vector_ns
        return self.clock.on_vector(ready_ns, target.vector_fixed_psum_ns + taken, target.vector_done_ns + taken)

    def complete(self, ready_ns: float, piece: MixedPiece) -> float:
        """The epilogue, or a plain copy."""
        clock, target, epilogue = self.clock, self.target, self.epilogue
        taken = piece.qn * target.scalar_ns
        act_ns = target.scalar_act_done_ns + taken
        if epilogue.residual:
            summed_ns = self.extend(ready_ns - target.hop_ns, 0.0, piece.qn * target.vector_sum_ns)
            if not epilogue.activation:
                return summed_ns
            return clock.on_scalar(summed_ns + target.hop_ns, target.scalar_fixed_psum_ns + taken, act_ns)
        if epilogue.activation or epilogue.bias:
            return clock.on_scalar(ready_ns, target.scalar_fixed_operand_ns + taken, act_ns)
        if piece.vector_reads:
            return self.vector_pass(ready_ns, piece.qn)
        return clock.on_scalar(ready_ns, target.scalar_fixed_ns + taken, target.scalar_done_ns + taken)
