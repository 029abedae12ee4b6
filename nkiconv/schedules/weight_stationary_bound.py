"""A lower bound of the time of a Schedule of `weight_stationary` or `stacked`, in ns: its busiest engine, plus the
start-up and the end that no work hides; an M tile's filters, by how they reach their places."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from ..simulator.timing.target import Target
from .block_schedule import Lane, Lanes, Resident, RowTile, Schedule, Shift, banks_of, blocks_in, blocks_met, size_of
from .geometry import Geometry, is_transposed, num_taps
from .options import Options
from .planes import with_windows
from .prices import EXPOSED, READERS, SHIFTED, Busy, Prices, array_end_ns, total_ns, warm_up_of
from .stacked_schedule import Stack, loads_by_input, reversed_rows, runs_of, tile_bytes
from .tiles import BANK_COLUMNS, P_MAX, PARTS, div_ceil, transposes_of_bank


class Work(NamedTuple):
    """The Busy of an M tile for an output tile, of the output tile once, and the output tile's banks."""

    each: Busy
    once: Busy
    banks: int


class Bound(Prices):
    """The lower bound of one Schedule, for the core with more blocks; with as many for the second one, whose planes may
    meet more taps."""

    def __init__(self, target: Target, geometry: Geometry, options: Options, schedule: Schedule) -> None:
        self.schedule, self.stack, self.shift, residents = schedule, schedule.stack, schedule.shift, schedule.residents
        super().__init__(target, geometry if self.shift is None else with_windows(geometry, self.shift.Z), options)
        #: whether the Tensor Engine transposes results
        self.by_pixels = schedule.gathers and geometry.y_strides[0] == 1 < geometry.K
        self.busy, kinds, counts = Busy(), dict[Any, Work](), Counter[Any]()
        every = [schedule.steps(core, PARTS) for core in reversed(range(PARTS))]
        steps = max(every, key=lambda steps: sum(blocks_of(residents[b], i) for b, i in steps))
        for b, i in steps:
            tiles, lanes = residents[b].tiles, residents[b].items[i]
            sizes = ((part.b0 == 0, part.bn, part.xn, part.yn) for part in lanes[0])
            kind = len(tiles), len(tiles[0]), tiles[0][0].kn, len(lanes), *sizes
            if kind not in kinds:
                kinds[kind] = self.work_of(tiles[0], lanes)
            counts[kind] += 1
        self.first, self.last = next(iter(kinds.values())), kinds[kind]
        for one, times in counts.items():
            self.busy.add(kinds[one].once, times)
            self.busy.add(kinds[one].each, times * one[0])
        groups, first = {b for b, _ in steps}, residents[steps[0][0]].tiles
        #: ns before the last of the first loads of filters
        self.waits = 0.0
        self.filters = self.filters_of(first[0])
        self.busy.add(self.filters, sum(len(residents[b].tiles) for b in groups))
        #: ns until the first filters are loaded; ns of the Tensor Engine at its full rate
        self.there_ns = target.first_load_ns + self.waits + self.filters.dma / len(schedule.k_tiles)
        self.array_ns = self.busy.tensor
        #: ns of the triggers of all filters, after which x of further output tiles is loaded, and of the work of these
        self.further_ns = self.filters.issued * len(first) + self.array_ns * (1 - len(groups) / len(steps))

    def ns(self) -> float:
        """ns from the first DMA to the last."""
        target, filters, last = self.target, self.filters, self.last
        begin_ns = array_end_ns(target, self.there_ns, filters.tensor) + filters.read * READERS
        if filters.tensor:
            begin_ns += target.matmul_done_ns + target.hop_ns + target.vector_done_ns
        # x of a bank and K tile; else all x of an output tile is loaded before
        parts = self.first.banks if self.schedule.pack or self.schedule.gathers else 1
        begin_ns = max(begin_ns, self.there_ns + self.first.once.dma / (parts * len(self.schedule.k_tiles)))
        busy = Busy(**vars(self.busy))
        busy.add(Busy(-filters.tensor, -filters.tensor))
        together = self.stack.V if self.stack else 1  # banks that are stored together
        end_ns = target.last_store_ns + (last.each.read + last.each.dma) * together / last.banks
        exposed = EXPOSED if self.shift is None else SHIFTED
        least_ns = self.there_ns + self.further_ns + end_ns
        hidden_ns, is_late = begin_ns - target.first_packet_ns, self.waits > 0
        return max(least_ns, total_ns(target, begin_ns, hidden_ns, busy, end_ns, exposed, is_late=is_late))

    @property
    def warm_up(self) -> int:
        """Matmuls on zeros until the first filters are loaded."""
        columns = BANK_COLUMNS if self.schedule.by_channels and self.stack else P_MAX
        return warm_up_of(self.target, self.there_ns, self.array_ns, columns)

    def work_of(self, tile: tuple[RowTile, ...], lanes: Lanes) -> Work:
        """The Work of an M tile for an output tile, from its banks."""
        schedule, target, lane, count = self.schedule, self.target, lanes[0], len(self.schedule.k_tiles)
        row_tiles = sum(one.lane < len(lanes) for one in tile)
        banks = Counter(bank.sweep for bank in banks_of(schedule, lanes, tile[0].k0))
        whole = tuple((0, max(one[axis].bn for one in lanes)) for axis in range(3))
        least_ns, each = self.matmul_ns(0), Busy()
        if schedule.rows < P_MAX:  # of row tiles that work in parallel
            least_ns = target.row_tile_columns * self.column_ns + self.fixed_ns
            least_ns *= P_MAX // schedule.rows if schedule.gathers else len(lanes)
        for at, n in banks.items():
            sweep, blocks = schedule.sweeps[at], blocks_in(schedule.sweeps[at], lane, whole)
            size, operands = size_of(blocks), schedule.operands_of(at, lane)
            met = [one for own, seen in operands for one in blocks_met(own, seen, blocks) if one]
            each.streamed += count * sum(met) * self.column_ns
            each.tensor += count * sum(max(one * self.column_ns + n * self.fixed_ns, n * least_ns) for one in met)
            together = schedule.together_rows
            times = len(sweep.outputs) // together
            read = times * self.read_ns(n, size)
            if self.shift is not None:  # Vector adds shifted sums to a copy of the first tap's, if that has all outputs
                taps, apart = self.shift.T, min(self.shift.T, self.shift.sums.lhs_dilation)
                sums_ns = apart * n * target.vector_fixed_psum_ns + size_of(blocks[:2]) * lane[2].yn * target.vector_ns
                read = sums_ns * (taps / apart - (apart == 1) if taps > apart else 1 / READERS)
                read += self.read_ns(n, size) if self.options.residual and taps > apart else 0.0
            # rows that are stored together are then copied to their places
            copied = n * target.vector_fixed_ns + times * size * target.vector_4x_ns
            each.read += row_tiles * (read + (0 if self.by_pixels else together - 1) * copied / READERS)
            if self.options.statistics:
                self.count_statistics(each, row_tiles, len(sweep.outputs), n, times * size, lane[0].qn)
        if self.by_pixels:  # of rows of blocks, of all row tiles
            tiles = math.prod(part.qn for part in lane) / P_MAX
            each.tensor += tiles * self.transpose_ns()
            each.read += tiles * sum(one.kn for one in tile) * target.vector_ns / READERS
            # a copy for each row tile and row of a block, of all blocks whose pixels fit the partitions
            together = P_MAX // min(P_MAX, lane[2].qn) * transposes_of_bank(P_MAX, 2)
            copies = lane[0].qn * div_ceil(lane[2].qn, P_MAX) * div_ceil(lane[1].bn, together)
            each.read += row_tiles * schedule.together_rows * copies * target.vector_fixed_psum_ns / READERS
        each.streamed = each.tensor if schedule.gathers else each.streamed  # each row tile has few of the columns
        each.dma = self.y_ns(tile, lanes, row_tiles)
        loads = 0
        if self.stack is not None:  # a DMA for each shift, and for each block partly outside x
            every = (one.x_pieces(own, False) for one, own in self.stack.lanes_of(lane))
            loads = sum(len(found) for pieces in every for *_, found in pieces)
        once = Busy(dma=self.x_ns(tile, lanes), issued=loads * target.static_issue_ns)
        if self.options.prologue.asked:  # of each load
            parts = len(schedule.x_runs(tile, lanes)) if schedule.gathers else count * row_tiles
            columns = min(lane[2].xn, self.geometry.columns.size)
            once.scalar = parts * lane[0].xn * lane[1].xn * columns * target.scalar_ns
        return Work(each, once, max(1, banks.total()))

    def count_statistics(self, each: Busy, row_tiles: int, outputs: int, banks: int, size: int, images: int) -> None:
        """Add ns of statistics of an M tile's banks: Vector's; Scalar's, which rounds shifted sums after; with groups
        GpSimd's, which moves those of each output to the same partitions."""
        target = self.target
        each.vector += row_tiles * (banks * target.vector_fixed_psum_ns + size * target.vector_ns)
        if self.shift is not None:
            each.scalar += banks * target.scalar_fixed_ns + size * target.scalar_ns
        elif self.schedule.gathers:
            each.gpsimd += row_tiles * images * (outputs + 2) * target.gpsimd_fixed_ns

    def x_ns(self, tile: tuple[RowTile, ...], lanes: Lanes) -> float:
        """ns of DMA for x of an output tile."""
        if self.stack is not None:
            every = self.stack.lanes_of(lanes[0])
            return sum(
                self.loaded_ns(lane, lane[1].xn, one.parts, one.G == 1 and one.whole >= 0) for one, lane in every
            )
        geometry, schedule, (z, p, q) = self.geometry, self.schedule, lanes[0]
        k_tiles, (_, each, _, loads) = len(schedule.k_tiles), schedule.k_tiles[-1]
        parts = sum(one.cn for one in tile if one.lane < len(lanes)) if schedule.gathers else each * len(lanes)
        # rows of an output tile that the one before has are copied
        rows = p.xn if self.shift is None or p.b0 == 0 else min(p.xn, p.bn * p.axis.apart)
        if is_transposed(geometry):
            counts = [one[-1] for one in schedule.x_runs(tile, lanes)] if schedule.gathers else [each] * loads
            columns = min(q.xn, geometry.columns.size)
            elements, run = z.xn * rows * columns, max(1, columns * (rows if columns == q.xn else 1))  # no zeros beside
            return k_tiles * sum(self.transposed_ns(count, elements, run) for count in counts)
        return k_tiles * self.loaded_ns(lanes[0], rows, parts, True)

    def loaded_ns(self, lane: Lane, rows: int, parts: int, together: bool) -> float:
        """ns of DMA for `rows` rows of x of a lane on `parts` partitions; together: whole rows in one run."""
        geometry, (z, p, q) = self.geometry, lane
        columns = min(q.xn, geometry.columns.size)
        whole = together and columns == geometry.columns.size == geometry.x_strides[2]
        run = 1 if geometry.x_strides[3] > 1 else max(1, columns * (p.xn if whole else 1))
        return self.moved_ns(parts * z.xn * rows * columns, run, parts)

    def y_ns(self, tile: tuple[RowTile, ...], lanes: Lanes, row_tiles: int) -> float:
        """ns of DMA for an M tile's results of an output tile, and for the residual."""
        schedule, pack, (z, p, q) = self.schedule, self.schedule.pack, lanes[0]
        rows = p.bn if self.shift is not None else p.qn
        run, parts = float(q.qn), min(P_MAX, tile[0].kn * P_MAX // schedule.slot)
        if pack is not None and pack.U > 1:  # other rows are on other partitions
            run *= pack.V
        elif q.qn == self.geometry.columns.out:
            run *= rows
        if self.by_pixels:
            run = float(tile[0].kn * sum(one.lane == 0 for one in tile))
        each, item = z.qn * rows * q.qn, self.options.epilogue.y_itemsize
        elements = tile[0].kn * row_tiles * each
        y_ns = self.moved_ns(elements, max(1.0, run), parts, item)
        if not self.options.residual or not schedule.gathers:
            return y_ns * (1 + self.options.residual)
        # the rows of a gathered residual are on partitions of their own; DMA transposes that of pixels
        if self.by_pixels:
            return y_ns + row_tiles * self.transposed_ns(tile[0].kn, each, max(1, q.qn))
        return y_ns + self.moved_ns(elements, max(1.0, float(q.qn)), P_MAX // schedule.slot * tile[0].kn, item)

    def filters_of(self, tile: tuple[RowTile, ...]) -> Busy:
        """The Busy of an M tile's filters, by how they reach their places."""
        geometry, schedule, taps, kn = self.geometry, self.schedule, num_taps(self.geometry), tile[0].kn
        if self.stack is not None:
            return self._toeplitz(self.stack) if self.stack.diagonal else self._stacked(self.stack)
        if self.shift is not None:
            return self._packed(self.shift, taps)
        if schedule.gathers:
            return self._of_groups(tile[0].cn, taps)
        # in memory order, or copied to their places
        _, channels, _, held = schedule.k_tiles[0]
        moved = self.moved_ns(held * channels * kn * taps, kn * taps, held * channels)
        placed = taps * held * kn * self.target.copy_ns(geometry.itemsize) if schedule.packs else 0.0
        return Busy(read=placed / READERS**2, dma=len(schedule.k_tiles) * moved)

    def _stacked(self, stack: Stack) -> Busy:
        """By a DMA to the columns of each row of y, or padded with zeros; then transposed."""
        target, found, straight = self.target, Busy(), stack.filters == "straight"
        for one in stack.every:
            slots, width = one.filter_slots, one.U * one.kn
            transposed = one.num_filters * slots * self.transpose_ns(width / slots)
            padded = 0.0 if straight else one.geometry.C * num_taps(one.geometry) * target.vector_4x_ns
            placed = (width * target.copy_ns(self.geometry.itemsize) + padded) / READERS
            prices, issued = Prices(target, one.geometry), one.U * target.static_issue_ns if straight else 0.0
            moved = filters_moved_ns(prices, one.kn, one.U, straight, one.fits_window)
            found.add(Busy(transposed, transposed, placed, dma=moved, issued=issued))
        return found

    def _toeplitz(self, stack: Stack) -> Busy:
        """w is loaded, reversed, stored to HBM, and loaded among zeros by a DMA for each run of taps of each row of
        x."""
        target, geometry, runs = self.target, self.geometry, runs_of(self.geometry)
        if not runs:  # all outputs meet padding alone
            return Busy()
        planes, triggers = geometry.planes.taps, stack.kn * len(runs) * target.static_issue_ns
        # all zeros of a round, two of three by Vector; rows of z are copied by Vector among zeros
        zeros = stack.together * tile_bytes(geometry, stack.kn) / 6 * target.vector_memset_ns
        made = planes * geometry.rows.taps * target.vector_fixed_ns
        made += planes * reversed_rows(geometry) * geometry.columns.taps * target.vector_memset_ns
        run = sum(count * rows for _, rows, *_, count in runs) / sum(rows for _, rows, *_ in runs)
        moved = self.moved_ns(
            stack.parts * run * geometry.columns.taps * planes, run * geometry.columns.taps, stack.parts
        )
        self.waits = max(target.round_trip_ns + made, zeros) + max(triggers, stack.together * moved)
        return Busy(dma=moved, issued=triggers / stack.together)

    def _packed(self, shift: Shift, taps: int) -> Busy:
        """Transposed unless they come in order, then copied to the places of each row of y."""
        target, geometry, K, k_tiles = self.target, self.geometry, self.geometry.K, self.schedule.k_tiles
        size, in_order = len(k_tiles) * k_tiles[-1][1] * taps, geometry.packed > 0 or geometry.flipped
        run = k_tiles[-1][1] * taps if shift.Z == 1 else shift.depth.taps * taps
        moved = self.moved_ns(K * size, run, K if in_order else min(P_MAX, K * len(k_tiles)))
        transposed = 0.0 if in_order else div_ceil(len(k_tiles) * K, P_MAX) * taps * self.transpose_ns()
        placed = shift.U * (taps * K * target.copy_ns(geometry.itemsize) + shift.groups * target.vector_fixed_ns)
        return Busy(transposed, transposed, placed / READERS**2, dma=moved)

    def _of_groups(self, channels: int, taps: int) -> Busy:
        """Spread between zeros if row tiles have several groups, transposed, copied to the places of each output."""
        target, geometry, schedule, each = (
            self.target,
            self.geometry,
            self.schedule,
            self.geometry.C // self.geometry.groups,
        )
        by_input, size = each == 1, each * taps
        taps *= 1 if by_input else schedule.pages
        moved, transposed = self.moved_ns(P_MAX * size, size), 0.0 if by_input else taps * self.matmul_ns(0)
        each_ns = target.gpsimd_ns if channels < schedule.rows and not by_input else target.copy_ns(geometry.itemsize)
        placed = taps * (schedule.slot if by_input else P_MAX) * each_ns / READERS
        if channels == each:  # several taps together
            transposed, placed = transposed * schedule.rows / P_MAX, 0.0
        return Busy(transposed, transposed, placed, dma=moved)


def blocks_of(resident: Resident, item: int) -> int:
    """Blocks of an output tile, of a lane, over all M tiles."""
    return len(resident.tiles) * math.prod(part.bn for part in resident.items[item][0])


def filters_moved_ns(prices: Prices, kn: int, U: int, straight: bool, fits_window: bool) -> float:
    """ns of DMA for the filters of an M tile of K packing; straight: to the places of each of U rows of y."""
    geometry = prices.geometry
    size, runs, parts = geometry.C * num_taps(geometry), geometry.C if geometry.flipped else 1, kn
    if loads_by_input(geometry, kn):
        size, runs, parts = kn * num_taps(geometry), 1, geometry.C
    if straight:
        parts *= U
        if not fits_window:
            runs = geometry.C * geometry.planes.taps * (1 if geometry.rows.dilation == 1 else geometry.rows.taps)
    run = 1 if geometry.w_strides[3] > 1 and geometry.columns.taps > 1 else size / runs
    return prices.moved_ns(parts * size, run, parts)
