"""A lower bound of the time of a Schedule of `weight_stationary` or `stacked`, in ns: its busiest engine, plus the
start-up and the end that no work hides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.timing.target import Target
from .block_schedule import Lanes, RowTile, Schedule, Shift, Sweep, banks_of, blocks_in, blocks_met, size_of
from .geometry import Geometry, num_taps
from .options import Options, adds_bias_alone
from .planes import with_windows
from .prices import (
    EXPOSED,
    SHIFTED,
    Busy,
    array_end_ns,
    dma_ns,
    first_load_ns,
    last_store_ns,
    matmul_rates,
    overlapped_ns,
    prologue_ns,
    read_ns,
    transpose_ns,
)
from .settings import WARM_UP_MAX
from .stacked_schedule import FILTER_PARTS, Stack, tile_bytes
from .tiles import BANK_COLUMNS, P_MAX, PARTS, div_ceil, transposes_of_bank
from .weight_stationary import pages


@dataclass(eq=False)
class Work:
    """The Busy of an M tile for an output tile, of the output tile once, and the output tile's banks."""

    each: Busy
    once: Busy
    banks: int


@dataclass
class Filters:
    """Filters of an M tile, in ns: DMA; its triggers before the first filters are loaded; transposes by the Tensor
    Engine; Vector and Scalar before the first sums, and later; number of pieces, one after the other; share of
    the transposes before the first sums; triggers of each M tile; time before the first trigger."""

    moved: float
    triggers: float = 0.0
    transposed: float = 0.0
    placed: float = 0.0
    later: float = 0.0
    pieces: int = 1
    first: float = 1.0
    issued: float = 0.0
    waits: float = 0.0

    @property
    def busy(self) -> Busy:
        """The Busy of all of them."""
        read = (self.placed + self.later) / 2
        return Busy(self.transposed, self.transposed, read, dma=self.moved, issued=self.issued)


@dataclass
class Core:
    """The Busy of a core's steps; its first and last Work, and its first Filters."""

    busy: Busy
    first: Work
    last: Work
    filters: Filters


class Bound:
    """Lower bounds of one Schedule, for one of two cores."""

    def __init__(self, target: Target, geometry: Geometry, options: Options, schedule: Schedule) -> None:
        self.target, self.options, self.schedule = target, options, schedule
        self.stack, self.shift = schedule.stack, schedule.shift
        self.geometry = geometry if self.shift is None else with_windows(geometry, self.shift.Z)
        self.column_ns, self.matmul_ns = matmul_rates(target, geometry)
        self.copy_ns = target.vector_4x_ns if geometry.itemsize == 2 else target.vector_16bit_ns
        self.there_ns = first_load_ns(target)
        self.kinds: dict[Any, Work] = {}
        self.seen: dict[Any, Work] = {}
        self.filters: dict[tuple[int, int], Filters] = {}
        #: the core with more blocks, or the first one, which has more of the groups
        self.core = self.core_of(max((schedule.steps(core, PARTS) for core in range(PARTS)), key=self.blocks_of))

    def blocks_of(self, steps: Sequence[tuple[int, int]]) -> int:
        """Blocks of a core's steps, over all M tiles."""
        every = ((self.schedule.residents[b], i) for b, i in steps)
        return sum(len(one.tiles) * math.prod(part.bn for part in one.items[i][0]) for one, i in every)

    @property
    def array_ns(self) -> float:
        """ns of the Tensor Engine at its full rate."""
        return self.core.busy.tensor

    def core_of(self, steps: Sequence[tuple[int, int]]) -> Core:
        """The Core of a core's steps."""
        residents, busy = self.schedule.residents, Busy()
        works = [self.work_of(residents[b].tiles[0], residents[b].items[i]) for b, i in steps]
        once, each, groups = Counter(works), Counter[Work](), dict.fromkeys(b for b, _ in steps)
        for work, (b, _) in zip(works, steps, strict=True):
            each[work] += len(residents[b].tiles)
        for work in once:
            busy.add(work.once, once[work])
            busy.add(work.each, each[work])
        filters = {b: self.filters_of(residents[b].tiles[0]) for b in groups}
        for b, one in filters.items():
            busy.add(one.busy, len(residents[b].tiles))
        return Core(busy, works[0], works[-1], filters[steps[0][0]])

    def ns(self) -> float:
        """ns from the first DMA to the last."""
        core, filters, target = self.core, self.core.filters, self.target
        begin = self.begin_ns(core.first, filters)
        made, busy = filters.first * filters.transposed, core.busy
        # row tiles work in parallel: each has few of the columns
        share = 1.0 if self.schedule.gathers or busy.tensor <= made else (busy.streamed - made) / (busy.tensor - made)
        read = max(busy.vector, busy.read + busy.vector / 2)
        moved = target.first_packet_ns + busy.dma - self.stored_ns(core.last)
        together_ns = overlapped_ns(
            array_end_ns(target, begin, busy.tensor - made, share) - begin,
            max(read, busy.scalar, (read + busy.scalar) / 2),
            max(0.0, moved - begin),
            max(0.0, busy.issued - filters.triggers),
            exposed=EXPOSED if self.shift is None else SHIFTED,
        )
        return begin + together_ns + self.last_ns(core.last)

    def warm_ups(self) -> tuple[int, int]:
        """Warm-up matmuls (until the first filters are loaded, between their transposes and the first sums)."""
        core, target = self.core, self.target
        if core.busy.tensor < target.window_work * target.window_ns:
            return 0, 0
        there_ns, made_ns = self.made_ns(core.filters)
        each_ns = (BANK_COLUMNS if self.schedule.by_channels and self.stack else P_MAX) * target.tensor_column_ns

        def zeros(begin: float, end: float) -> int:
            slow, fast = max(0.0, min(end, target.window_ns) - begin), max(0.0, end - max(begin, target.window_ns))
            return min(WARM_UP_MAX, int((slow * target.half_rate + fast) / each_ns))

        # together enough work in the throttle's first window for the next one to run at full rate
        enough = math.ceil(target.window_work * target.window_ns / each_ns)
        early = max(enough, zeros(target.static_issue_ns, there_ns))
        return early, min(WARM_UP_MAX - early, zeros(made_ns, self.begin_ns(core.first, core.filters)))

    def made_ns(self, filters: Filters) -> tuple[float, float]:
        """ns until (the first filters are loaded, the first sums' filters are transposed)."""
        begin_ns = self.there_ns + filters.waits + filters.triggers
        there_ns = begin_ns + filters.moved / filters.pieces
        if not filters.transposed:
            return there_ns, there_ns
        made_ns = array_end_ns(self.target, there_ns, filters.first * filters.transposed)
        return there_ns, max(made_ns, begin_ns + filters.moved)

    def begin_ns(self, work: Work, filters: Filters) -> float:
        """ns until the first sums: filters are loaded, transposed and placed, x of a bank and K tile is loaded."""
        target, (there_ns, made_ns) = self.target, self.made_ns(filters)
        if filters.transposed:
            made_ns += target.matmul_done_ns + target.hop_ns + target.vector_done_ns
        made_ns += filters.placed
        if self.shift or self.stack or self.schedule.gathers:
            x_ns = filters.moved * (1 - 1 / filters.pieces) + work.once.dma / (work.banks * len(self.schedule.k_tiles))
        else:  # all x of an output tile is loaded before
            x_ns = work.once.dma / filters.pieces
        return max(made_ns, there_ns + x_ns)

    def last_ns(self, work: Work) -> float:
        """ns from the last sums to the end of the last store."""
        added_ns = 0.0 if self.shift is None else (self.shift.T - 1) * self.target.vector_done_ns
        return last_store_ns(self.target) + work.each.read / work.banks + added_ns + self.stored_ns(work)

    def stored_ns(self, work: Work) -> float:
        """ns of DMA for the last results: those of all sweeps of some blocks."""
        return work.each.dma * min(1.0, len(self.schedule.sweeps) / work.banks)

    # ---------------------------------------------------------------------------------------- an output tile

    def work_of(self, tile: tuple[RowTile, ...], lanes: Lanes) -> Work:
        """The Work of an M tile for an output tile, computed once for all of equal extents."""
        if id(lanes) not in self.seen:
            kind = len(tile), tile[0].kn, len(lanes), *((part.b0 == 0, part.bn, part.xn, part.yn) for part in lanes[0])
            if kind not in self.kinds:
                self.kinds[kind] = self.made(tile, lanes)
            self.seen[id(lanes)] = self.kinds[kind]
        return self.seen[id(lanes)]

    def made(self, tile: tuple[RowTile, ...], lanes: Lanes) -> Work:
        """The Work of an M tile for an output tile, from its banks."""
        schedule, lane, count = self.schedule, lanes[0], len(self.schedule.k_tiles)
        row_tiles, together = sum(one.lane < len(lanes) for one in tile), schedule.together_rows
        banks = Counter(bank.sweep for bank in banks_of(schedule, lanes, tile[0].k0))
        whole = tuple((0, max(one[axis].bn for one in lanes)) for axis in range(3))
        each = Busy()
        for at, n in banks.items():
            sweep, blocks = schedule.sweeps[at], blocks_in(schedule.sweeps[at], lane, whole)
            size, met = size_of(blocks), [one for one in blocks_met(sweep, lane, blocks) if one]
            least = n * self.least_ns(len(lanes))
            each.tensor += count * sum(max(one * self.column_ns + n * self.matmul_ns, least) for one in met)
            each.streamed += count * sum(met) * self.column_ns
            times, added = len(sweep.outputs) // together, size_of(blocks[:2]) * lane[2].yn
            read = (
                read_ns(self.target, self.options, n, size) * times if self.shift is None else self.shifted_ns(n, added)
            )
            # rows that are stored together are then copied to their places
            gathered = n * self.target.vector_fixed_ns + times * size * self.copy_ns
            each.read += row_tiles * (read + (together - 1) * gathered / 2)
            each.vector += row_tiles * self.counted_ns(sweep, n, size)
        n = banks.total()
        each.dma = self.y_ns(tile, lanes, row_tiles, n)
        once = Busy(scalar=self.taken_ns(lanes), dma=self.x_ns(tile, lanes), issued=self.issued_ns(lanes))
        return Work(each, once, max(1, n))

    def least_ns(self, lanes: int) -> float:
        """The least ns of the Tensor Engine for a matmul, summed over the row tiles that work in parallel."""
        target, schedule = self.target, self.schedule
        if schedule.rows == P_MAX:
            return target.matmul_columns_min * self.column_ns + self.matmul_ns
        each = target.row_tile_columns * self.column_ns + self.matmul_ns
        return each * (P_MAX // schedule.rows if schedule.gathers else lanes)

    def taken_ns(self, lanes: Lanes) -> float:
        """ns of Scalar for the prologue of an output tile's x, for each separately loaded segment or row tile."""
        schedule, (z, p, q) = self.schedule, lanes[0]
        copies = len(schedule.k_tiles) * (len(lanes) if schedule.rows < P_MAX else schedule.k_tiles[0][3])
        images = z.xn / self.geometry.image_planes
        return prologue_ns(self.target, self.options.prologue, z.xn * p.xn * q.xn * copies, copies, images)

    def shifted_ns(self, banks: int, elements: float) -> float:
        """ns to shift and add so many outputs of so many banks: a copy of the first tap's sums, additions by Vector."""
        target, shift = self.target, self.shift
        assert shift is not None
        apart = min(shift.T, shift.sums.lhs_dilation)  # of a dilated x each tap has some of the outputs
        added = apart * banks * target.vector_fixed_psum_ns + elements * target.vector_ns
        copied = apart * banks * target.scalar_fixed_psum_ns + elements * target.scalar_ns
        adds = (shift.T // apart - 1) * added
        return max(added * copied / (added + copied), adds, (adds + copied) / 2 if adds else 0.0)

    def counted_ns(self, sweep: Sweep, banks: int, elements: int) -> float:
        """ns of Vector for a bank's statistics: bn_stats, plus half of a rounding if outputs are not plain sums."""
        if not self.options.statistics:
            return 0.0
        target, times, passes = self.target, 1.0, 1.0
        if not adds_bias_alone(self.options.epilogue):
            times, passes = len(sweep.outputs) / self.schedule.together_rows, 1.5
        return passes * times * (elements * target.vector_ns + banks * target.vector_fixed_psum_ns)

    def x_ns(self, tile: tuple[RowTile, ...], lanes: Lanes) -> float:
        """ns of DMA for x of an output tile."""
        geometry, schedule, (z, p, q) = self.geometry, self.schedule, lanes[0]
        _, channels, _, held = schedule.k_tiles[-1]
        rows = p.xn if self.shift is None or p.b0 == 0 else min(p.xn, p.bn * p.axis.apart)  # the others are copied
        columns = min(q.xn, geometry.columns.size)
        whole, parts, every = columns == geometry.columns.size, channels * min(held, len(lanes)), 0
        if self.stack is not None:
            parts, whole = self.stack.parts, self.stack.G == 1 and self.stack.whole >= 0
        elif self.shift is not None:
            every = channels * len(lanes)
        elif schedule.gathers:
            parts, every = tile[0].cn, sum(one.cn for one in tile if one.lane < len(lanes))
        whole = whole and geometry.columns.size == geometry.x_strides[2]
        run = 1 if geometry.x_strides[3] > 1 else max(1, columns * (rows if whole else 1))
        elements, item = z.xn * rows * columns, geometry.hbm_itemsize
        return len(schedule.k_tiles) * dma_ns(self.target, parts, every or parts, elements, run, item)

    def issued_ns(self, lanes: Lanes) -> float:
        """ns of triggers for an output tile's x of K packing: of each shift, and of each block partly outside x."""
        if self.stack is None:
            return 0.0
        loads = self.stack.num_loads(lanes[0]) * (1 if self.stack.diagonal else lanes[0][0].xn)
        return loads * self.target.static_issue_ns

    def y_ns(self, tile: tuple[RowTile, ...], lanes: Lanes, row_tiles: int, banks: int) -> float:
        """ns of DMA for an M tile's results of an output tile, and for the residual."""
        schedule, stack, (z, p, q) = self.schedule, self.stack, lanes[0]
        rows, parts = p.bn if self.shift is not None else p.qn, tile[0].kn
        every, slots = parts * len(lanes), P_MAX / schedule.slot
        if schedule.gathers:
            every = sum(one.kn for one in tile if one.lane < len(lanes))
            slots = min(1.0, slots / row_tiles)
        else:  # packed parts of the partitions have separate DMA engines
            resident, each = schedule.residents[0], len(lanes) if self.shift is not None else 1
            slots = min(slots, max(1.0, len(resident.items) * len(resident.tiles) * each / PARTS))
            parts = every if self.shift is None else parts
        if stack is not None and not stack.diagonal:
            slots = min(slots, banks)
        packs, run = self.shift or stack, float(q.qn)
        if packs is not None and packs.U > 1:  # other rows are on other partitions
            run *= stack.V if stack is not None else 1
        elif q.qn == self.geometry.columns.out:
            run *= rows if schedule.gathers else rows / max(1, banks // len(schedule.sweeps))
        times = 1 / slots + (1 if self.options.residual else 0)
        run, item = max(1.0, run), self.options.epilogue.y_itemsize
        return dma_ns(self.target, parts, every, z.qn * rows * q.qn, run, item, times)

    # ---------------------------------------------------------------------------------------- filters

    def filters_of(self, tile: tuple[RowTile, ...]) -> Filters:
        """The Filters of an M tile, computed once for all of as many channels."""
        kind = tile[0].kn, tile[0].cn
        if kind not in self.filters:
            self.filters[kind] = self._filters_of(tile)
        return self.filters[kind]

    def _filters_of(self, tile: tuple[RowTile, ...]) -> Filters:
        if self.stack is not None:
            return self.toeplitz(self.stack) if self.stack.diagonal else self.stacked(self.stack)
        if self.shift is not None:
            return self.packed(self.shift)
        return self.of_groups(tile) if self.schedule.gathers else self.phases(tile)

    def stacked(self, stack: Stack) -> Filters:
        """Filters of K packing: padded with zeros, then transposed."""
        target, geometry = self.target, self.geometry
        size, straight = geometry.C * num_taps(geometry), stack.filters == "straight"
        loads = stack.U * (geometry.rows.taps if geometry.rows.dilation > 1 else 1) if straight else 1
        moved = filters_moved_ns(target, geometry, stack.kn, stack.U, straight, stack.fits_window)
        width = stack.U * stack.kn // stack.filter_slots
        most = transposes_of_bank(stack.U * stack.kn, geometry.itemsize)
        first = min(div_ceil(stack.num_filters, FILTER_PARTS), most)
        placed = first * stack.U * stack.kn * target.vector_16bit_ns
        if not straight:
            placed += target.vector_done_ns + size * target.vector_4x_ns
        transposed = stack.num_filters * stack.filter_slots * transpose_ns(target, geometry, width)
        triggers = (loads - 1) * target.static_issue_ns
        return Filters(moved, triggers, transposed, placed, first=first / stack.num_filters)

    def toeplitz(self, stack: Stack) -> Filters:
        """Filters of depthwise problems: a DMA for each run of taps of each row of x, for several M tiles together."""
        target, geometry = self.target, self.geometry
        triggers = stack.kn * len(stack.runs) * target.static_issue_ns
        # w is loaded, reversed, stored to HBM and loaded again
        again = target.first_packet_ns + target.store_skew_ns + target.dma_end_ns + self.there_ns
        words = stack.together * tile_bytes(geometry, stack.kn) / 4
        waits = again + words * target.vector_memset_ns
        return Filters(0.0, triggers, issued=triggers / stack.together, waits=waits)

    def packed(self, shift: Shift) -> Filters:
        """Filters of M packing: transposed, then copied to the places of each row of y."""
        target, geometry, schedule = self.target, self.geometry, self.schedule
        K, taps, k_tiles, channels = geometry.K, num_taps(geometry), len(schedule.k_tiles), schedule.k_tiles[-1][1]
        as_stored = geometry.packed > 0 or geometry.flipped
        together = 1 if as_stored else min(k_tiles, P_MAX // K)
        times = div_ceil(k_tiles, together)
        run = K * taps if as_stored else channels * taps if shift.Z == 1 else shift.depth.taps * taps
        parts, elements = (channels, K * taps) if as_stored else (together * K, channels * taps)
        if shift.Z > 1:
            elements = channels // geometry.depth_axis.taps * run
        moved = times * dma_ns(target, parts, parts, elements, run, geometry.hbm_itemsize)
        loads = k_tiles * max(shift.lanes, shift.Z)
        transposed = 0.0 if as_stored else times * taps * transpose_ns(target, geometry, together * K)
        copies = shift.U * shift.groups * geometry.planes.taps
        vector = copies * target.vector_fixed_ns + shift.U * taps * K * target.vector_16bit_ns
        scalar = copies * target.scalar_fixed_ns + shift.U * taps * K * target.scalar_ns
        placed = vector * scalar / (vector + scalar)
        return Filters(moved, (loads - 1) * target.static_issue_ns, transposed, placed, (k_tiles - 1) * placed, times)

    def phases(self, tile: tuple[RowTile, ...]) -> Filters:
        """Filters of transposed convolutions: in memory order, or copied to their places."""
        target, geometry, schedule, taps = self.target, self.geometry, self.schedule, num_taps(self.geometry)
        _, channels, _, held = schedule.k_tiles[0]
        run = tile[0].kn * taps
        count, parts = len(schedule.k_tiles), held * channels
        moved = count * dma_ns(target, parts, parts, run, run, geometry.hbm_itemsize)
        pieces = count if 1 < schedule.together >= count else 1
        if not schedule.packs:
            return Filters(moved, pieces=pieces)
        copies = sum(tap >= 0 for sweep in schedule.sweeps for one in sweep.products for tap in one.taps)
        placed = copies * held * (target.vector_fixed_ns + tile[0].kn * self.copy_ns) / 2
        words = sum(sweep.size for sweep in schedule.sweeps) * schedule.width(1) * geometry.itemsize / 4
        return Filters(moved, placed=max(placed, words * target.gpsimd_ns), pieces=pieces)

    def of_groups(self, tile: tuple[RowTile, ...]) -> Filters:
        """Filters of groups: spread with zeros between them if row tiles have several, transposed, copied to the places
        of each output."""
        target, geometry, schedule, taps = self.target, self.geometry, self.schedule, num_taps(self.geometry)
        by_input, Kt = geometry.groups == geometry.C, schedule.slot
        times = 1 if by_input else pages(schedule)
        moved = target.rows_an_engine * target.run_ns(geometry.C // geometry.groups * taps * geometry.itemsize)
        product = target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns
        spread = times * taps * (Kt if by_input else P_MAX) * product
        if not by_input and tile[0].cn < schedule.rows:
            spread = max(spread, times * taps * P_MAX * target.gpsimd_ns)
        later = times * len(schedule.sweeps[0].outputs) * (target.vector_fixed_ns + taps * Kt * self.copy_ns)
        transposed = 0.0 if by_input else times * taps * (target.matmul_columns_min * self.column_ns + self.matmul_ns)
        if tile[0].cn == geometry.C // geometry.groups:
            # several taps together, which are then copied to the partitions of each row tile
            transposed *= schedule.rows / P_MAX
            spread = 0.0 if geometry.flipped or by_input else times * taps * tile[0].kn * PARTS * self.copy_ns
        return Filters(moved, 0.0, transposed, spread, later)


def filters_moved_ns(target: Target, geometry: Geometry, kn: int, U: int, straight: bool, fits_window: bool) -> float:
    """ns of DMA for the filters of an M tile of K packing; straight: to the places of each of U rows of y."""
    size, runs = geometry.C * num_taps(geometry), geometry.C if geometry.flipped else 1
    if straight and not fits_window:
        runs = geometry.C * geometry.planes.taps * (1 if geometry.rows.dilation == 1 else geometry.rows.taps)
    parts = kn * (U if straight else 1)
    run = 1 if geometry.w_strides[3] > 1 and geometry.columns.taps > 1 else size / runs
    return dma_ns(target, parts, parts, size, run, geometry.hbm_itemsize)
