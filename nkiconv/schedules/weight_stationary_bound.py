"""A lower bound of the time of a Schedule of `weight_stationary` or `stacked`, in ns: its busiest engine, plus the
start-up and the end that no work hides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.timing.target import Target
from .block_schedule import Lanes, RowTile, Schedule, banks_of, blocks_in, blocks_met, size_of
from .geometry import Geometry, is_transposed
from .options import Options
from .planes import with_windows
from .prices import (
    EXPOSED,
    READERS,
    SHIFTED,
    Busy,
    array_end_ns,
    dma_ns,
    first_load_ns,
    last_store_ns,
    matmul_ns,
    matmul_rates,
    read_ns,
    total_ns,
    transpose_ns,
    transposed_ns,
)
from .settings import WARM_UP_MAX
from .tiles import BANK_COLUMNS, P_MAX, PARTS
from .weight_stationary_filters_bound import filters_of


@dataclass(eq=False)
class Work:
    """The Busy of an M tile for an output tile, of the output tile once, and the output tile's banks."""

    each: Busy
    once: Busy
    banks: int


class Bound:
    """Lower bounds of one Schedule, for the busier of two cores."""

    def __init__(self, target: Target, geometry: Geometry, options: Options, schedule: Schedule) -> None:
        self.target, self.options, self.schedule = target, options, schedule
        self.stack, self.shift, residents = schedule.stack, schedule.shift, schedule.residents
        self.geometry = geometry if self.shift is None else with_windows(geometry, self.shift.Z)
        #: whether the Tensor Engine transposes results
        self.by_pixels = schedule.gathers and geometry.y_strides[0] == 1 < geometry.K
        self.column_ns, self.matmul_ns = matmul_rates(target, geometry)
        self.kinds: dict[Any, Work] = {}
        # the core with more work, as planes at an end of x meet fewer taps, or the first one, which has more groups
        every = [schedule.steps(core, PARTS) for core in range(PARTS)]
        self.stores = max(sum(len(residents[b].tiles) for b, _ in steps) for steps in every)
        steps = max(every, key=lambda steps: (self.work_in(steps), len(steps)))
        groups = dict.fromkeys(b for b, _ in steps)
        works = [self.work_of(residents[b].tiles[0], residents[b].items[i]) for b, i in steps]
        filters = {b: filters_of(target, self.geometry, schedule, residents[b].tiles[0]) for b in groups}
        self.busy, self.first, self.last, self.filters = Busy(), works[0], works[-1], filters[steps[0][0]]
        each: Counter[Work] = Counter()
        for work, (b, _) in zip(works, steps, strict=True):
            each[work] += len(residents[b].tiles)
        for work, times in Counter(works).items():
            self.busy.add(work.once, times)
            self.busy.add(work.each, each[work])
        for b, one in filters.items():
            self.busy.add(one.busy, len(residents[b].tiles))
        moved_ns = self.filters.moved / len(schedule.k_tiles)
        #: ns until the first filters are loaded; ns of the Tensor Engine at its full rate
        self.there_ns, self.array_ns = first_load_ns(target) + self.filters.waits + moved_ns, self.busy.tensor

    def work_in(self, steps: Sequence[tuple[int, int]]) -> float:
        """What tells which core has more to do: blocks over all M tiles, or ns of the Tensor Engine where several
        planes of taps make blocks unlike."""
        every = [(self.schedule.residents[b].tiles, self.schedule.residents[b].items[i]) for b, i in steps]
        if self.geometry.planes.taps == 1:
            return sum(len(tiles) * math.prod(part.bn for part in lanes[0]) for tiles, lanes in every)
        return sum(len(tiles) * self.work_of(tiles[0], lanes).each.tensor for tiles, lanes in every)

    def ns(self) -> float:
        """ns from the first DMA to the last."""
        target, filters, last = self.target, self.filters, self.last
        made_ns = filters.first * filters.transposed
        begin_ns = array_end_ns(target, self.there_ns, made_ns) + filters.placed
        if filters.transposed:
            begin_ns += target.matmul_done_ns + target.hop_ns + target.vector_done_ns
        # x of a bank and K tile; else all x of an output tile is loaded before
        parts = self.first.banks if self.schedule.pack or self.schedule.gathers else 1
        begin_ns = max(begin_ns, self.there_ns + self.first.once.dma / (parts * len(self.schedule.k_tiles)))
        busy = Busy(**vars(self.busy))
        busy.add(Busy(-made_ns, -made_ns))
        end_ns = last_store_ns(target) + (last.each.read + last.each.dma) / last.banks
        end_ns += (self.shift.T - 1) * target.vector_done_ns if self.shift else 0.0
        exposed = EXPOSED if self.shift is None else SHIFTED
        return total_ns(target, begin_ns, begin_ns - target.first_packet_ns, busy, end_ns, exposed)

    @property
    def warm_up(self) -> int:
        """Matmuls on zeros until the first filters are loaded; none for little work."""
        target, there_ns = self.target, self.there_ns
        if self.array_ns < target.window_work * target.window_ns:
            return 0
        each_ns = (BANK_COLUMNS if self.schedule.by_channels and self.stack else P_MAX) * target.tensor_column_ns
        fill_ns = there_ns - min(there_ns, target.window_ns) * (1 - target.half_rate)
        return min(WARM_UP_MAX, math.ceil(max(target.window_work * target.window_ns, fill_ns) / each_ns))

    def work_of(self, tile: tuple[RowTile, ...], lanes: Lanes) -> Work:
        """The Work of an M tile for an output tile, computed once for all of equal extents."""
        kind = len(tile), tile[0].kn, len(lanes), *((part.b0 == 0, part.bn, part.xn, part.yn) for part in lanes[0])
        if kind not in self.kinds:
            self.kinds[kind] = self.made(tile, lanes)
        return self.kinds[kind]

    def made(self, tile: tuple[RowTile, ...], lanes: Lanes) -> Work:
        """The Work of an M tile for an output tile, from its banks."""
        schedule, target, lane, count = self.schedule, self.target, lanes[0], len(self.schedule.k_tiles)
        row_tiles, together = sum(one.lane < len(lanes) for one in tile), schedule.together_rows
        banks = Counter(bank.sweep for bank in banks_of(schedule, lanes, tile[0].k0))
        whole = tuple((0, max(one[axis].bn for one in lanes)) for axis in range(3))
        least_ns, each = matmul_ns(target, self.geometry, 0), Busy()
        if schedule.rows < P_MAX:  # of row tiles that work in parallel
            least_ns = target.row_tile_columns * self.column_ns + self.matmul_ns
            least_ns *= P_MAX // schedule.rows if schedule.gathers else len(lanes)
        for at, n in banks.items():
            sweep, blocks = schedule.sweeps[at], blocks_in(schedule.sweeps[at], lane, whole)
            size, met = size_of(blocks), [one for one in blocks_met(sweep, lane, blocks) if one]
            each.streamed += count * sum(met) * self.column_ns
            each.tensor += count * sum(max(one * self.column_ns + n * self.matmul_ns, n * least_ns) for one in met)
            times = len(sweep.outputs) // together
            read = times * read_ns(target, self.options, n, size)
            if self.shift is not None:  # Vector adds shifted sums to a copy of the first tap's, if that has all outputs
                taps, apart = self.shift.T, min(self.shift.T, self.shift.sums.lhs_dilation)
                sums_ns = apart * n * target.vector_fixed_psum_ns + size_of(blocks[:2]) * lane[2].yn * target.vector_ns
                read = sums_ns * (taps / apart - (apart == 1) if taps > apart else 1 / READERS)
            # rows that are stored together are then copied to their places
            copied = n * target.vector_fixed_ns + times * size * target.vector_4x_ns
            each.read += row_tiles * (read + (0 if self.by_pixels else together - 1) * copied / READERS)
        if self.by_pixels:  # of rows of blocks, of all row tiles
            tiles = together * math.ceil(math.prod(part.qn for part in lane) / together / P_MAX)
            each.tensor += tiles * transpose_ns(target, self.geometry)
            each.read += tiles * sum(one.kn for one in tile) * target.vector_ns / READERS
        each.streamed = each.tensor if schedule.gathers else each.streamed  # each row tile has few of the columns
        each.dma = self.y_ns(tile, lanes, row_tiles, banks.total())
        loads = 0
        if self.stack is not None:  # a DMA for each shift, and for each block partly outside x
            loads = self.stack.num_loads(lane) * (1 if self.stack.diagonal else lane[0].xn)
        once = Busy(dma=self.x_ns(tile, lanes), issued=loads * target.static_issue_ns)
        return Work(each, once, max(1, banks.total()))

    def x_ns(self, tile: tuple[RowTile, ...], lanes: Lanes) -> float:
        """ns of DMA for x of an output tile."""
        geometry, schedule, (z, p, q) = self.geometry, self.schedule, lanes[0]
        _, channels, _, held = schedule.k_tiles[-1]
        rows = p.xn if self.shift is None or p.b0 == 0 else min(p.xn, p.bn * p.axis.apart)  # the others are copied
        columns, parts, every = min(q.xn, geometry.columns.size), channels * min(held, len(lanes)), 0
        whole = columns == geometry.columns.size == geometry.x_strides[2]
        if self.stack is not None:
            parts, whole = self.stack.parts, whole and self.stack.G == 1 and self.stack.whole >= 0
        elif schedule.gathers:
            parts, every = tile[0].cn, sum(one.cn for one in tile if one.lane < len(lanes))
        elif self.shift is not None:
            every = channels * len(lanes)
        elements, item = z.xn * rows * columns, geometry.hbm_itemsize
        if self.stack is None and is_transposed(geometry):
            loads = len(tile) if schedule.gathers else held
            each = parts if schedule.gathers else channels
            return len(schedule.k_tiles) * loads * transposed_ns(self.target, each, elements, columns, item)
        run = 1 if geometry.x_strides[3] > 1 else max(1, columns * (rows if whole else 1))
        return len(schedule.k_tiles) * dma_ns(self.target, parts, every or parts, elements, run, item)

    def y_ns(self, tile: tuple[RowTile, ...], lanes: Lanes, row_tiles: int, banks: int) -> float:
        """ns of DMA for an M tile's results of an output tile, and for the residual."""
        schedule, pack, (z, p, q) = self.schedule, self.schedule.pack, lanes[0]
        rows, parts = (p.bn, tile[0].kn * len(lanes)) if self.shift is not None else (p.qn, tile[0].kn)
        slots, run = P_MAX / schedule.slot, float(q.qn)  # packed parts of the partitions have separate DMA engines
        if schedule.gathers:
            slots = min(1.0, slots / row_tiles)
        else:
            slots = min(slots, max(1, banks if self.stack else self.stores))
        if pack is not None and pack.U > 1:  # other rows are on other partitions
            run *= pack.V
        elif q.qn == self.geometry.columns.out:
            run *= rows
        if self.by_pixels:
            parts, slots, run = tile[0].kn * row_tiles, 1.0, float(tile[0].kn * row_tiles)
        times, item = 1 / slots + (1 if self.options.residual else 0), self.options.epilogue.y_itemsize
        return dma_ns(self.target, parts, tile[0].kn * row_tiles, z.qn * rows * q.qn, max(1.0, run), item, times)
