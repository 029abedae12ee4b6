"""`weight_stationary` on the host: candidates in the order of a bound of the busiest engine."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from ....kernels.conv.dispatch import plan_of
from ....kernels.conv.relayout import plain_of
from ....schedules.block_axes import num_steps
from ....schedules.block_schedule import banks_of, blocks_in, blocks_met, size_of
from ....schedules.geometry import num_taps
from ....schedules.m_packing import NAMES as PACKED
from ....schedules.m_packing import PackedSettings, packed_reason, packed_sizes
from ....schedules.options import SMALL_IMAGES, adds_bias_alone, either_reads
from ....schedules.tiles import PARTS, QUADRANT
from ....schedules.weight_stationary import (
    BESIDE,
    BLOCKS,
    SHARDS,
    TILE_ROWS,
    TOGETHER_MAX,
    Y_BYTES,
    GroupsSettings,
    PhasesSettings,
    pages,
    settings_class,
    unsupported_phases,
    unsupported_reason,
)
from ....schedules.weight_stationary import WARM_UP as PHASES_WARM_UP
from ....simulator.hardware import BN_STATS_FREE_MAX, PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Guess, Shape, config_of, with_settings
from ..clock import Clock
from .common import Conv2dAlgorithm, dma_ns, matmul_rates, prologue_ns, statistics_ns
from .packed_bound import WARM_UP_START_NS, PackedBound
from .relayout import relayout_ns

#: Bytes a partition of results of an output tile that are tried.
Y_SIZES = (Y_BYTES, Y_BYTES // 2, Y_BYTES // 4)
#: Channels that segments may have.
SEGMENTED = (QUADRANT, 2 * QUADRANT, PARTITIONS)
#: Phases of a Schedule above which one is made, of 3 to 12.
MANY_PHASES = 300
#: Settings that say how large an output tile is.
TILE_BYTES = ("x_bytes", "y_bytes")
#: Sizes of M packing that are bounded.
SIZES = 8
#: Candidates that are timed, at most, and how far above the least bound they may be.
GUESSES, NEAR = 3, 1.15
#: Instructions of Vector that finish statistics of a row tile: of some small images, and of a large one.
SMALL, LARGE = 14, 4
#: Windows of the Tensor Engine's clock at full rate from which on it is warmed up.
WARMED = 0.6
#: How much longer than evenly shared evacuation takes, as engines wait for each other.
SHARED = 1.1


class WeightStationary(Conv2dAlgorithm):
    """Groups on row tiles, and transposed convolutions phase by phase."""

    algorithm, unsupported_reason = "weight_stationary", staticmethod(unsupported_reason)
    order = ("rows", "height", "width", "outputs", "depth", "taps", "lanes")

    def settings_of(self, geometry: Any, config: Config) -> type[Any]:
        return settings_class(geometry, config)

    def guesses(self, shape: Shape) -> list[Guess]:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if self.unsupported_reason(geometry, shape.options, None):
            return []
        found = self._bounds(shape, geometry, {})[:GUESSES]
        copies_ns = relayout_ns(self.algorithm, shape)
        return [Guess(one.pairs, copies_ns + ns) for ns, one in found if ns <= NEAR * found[0][0]]

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        found = self._bounds(shape, geometry, given)
        if not found and settings_class(geometry, config_of(**given)) is PhasesSettings:
            return PhasesSettings.read(config_of(**given), geometry)
        return found[0][1] if found else None

    def _bounds(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> list[tuple[float, Any]]:
        """(bound, settings) of the candidates that have the given settings, the least first."""
        found: list[tuple[float, Any]] = []
        schedules: list[Any] = []
        least_ns, skipped = math.inf, set()
        for one in _candidates(shape, geometry, given):
            # those that differ in the size of output tiles alone have the same sums
            sums = tuple(pair for pair in one.pairs if pair[0] not in TILE_BYTES)
            if sums in skipped:
                continue
            schedule, reason = plan_of(self.algorithm, shape.geometry, shape.options, one.pairs, shape.cores)
            if reason:
                continue
            if schedule in schedules:
                if isinstance(one, PackedSettings):  # the least number of bytes
                    at = schedules.index(schedule)
                    found[at] = found[at][0], dataclasses.replace(found[at][1], x_bytes=one.x_bytes)
                continue
            bound = _bound(shape, geometry, schedule)
            if bound.array_ns > NEAR * least_ns:
                skipped.add(sums)
                continue
            # whether the Tensor Engine has enough to do for its full rate to pay for matmuls on zeros before
            if isinstance(one, PhasesSettings) and bound.array_ns < WARMED * shape.target.window_ns:
                one = dataclasses.replace(one, warmup=given.get("warmup", 0))
            if isinstance(bound, PackedBound):
                one = dataclasses.replace(one, **{**bound.settings(one.taps), **given})
            schedules.append(schedule)
            found.append((bound.total_ns(one.warmup), one))
            least_ns = min(least_ns, found[-1][0])
        return sorted(found, key=lambda one: one[0])

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return _bound(shape, geometry, plan).total_ns(plan.warmup)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if settings_class(geometry) is not PhasesSettings or self.unsupported_reason(geometry, shape.options, None):
            return [None]
        ways = [one for one in _ways(geometry) if wide or one["beside"] in ("none", "columns")]
        return [None, *(config_of(**one, shard=shard) for one in ways for shard in SHARDS)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        schedule = self.plan(shape, config)
        if schedule.shift is not None:
            return _near_packed(self.complete(shape, config), schedule.shift)
        if shape.geometry.groups == 1:
            return list(PhasesSettings.near(self.complete(shape, config)))
        now = schedule.rows, schedule.axes[1].beside, schedule.axes[2].beside
        sizes = [(rows, *block) for rows in TILE_ROWS for block in BLOCKS if (rows, *block) != now]
        found: list[Config] = [*GroupsSettings.near(config)]
        return found + [with_settings(config, rows=T, height=Uh, width=Uw) for T, Uh, Uw in sizes]

    def tiles(self, shape: Shape, plan: Any) -> int:
        return sum(len(one.items) * len(one.tiles) for one in plan.residents)


def _bound(shape: Shape, geometry: Any, schedule: Any) -> Bound | PackedBound:
    bound = Bound if schedule.shift is None else PackedBound
    return bound(shape.target, geometry, shape.options, schedule)


def _near_packed(config: Config, shift: Any) -> list[Config]:
    """Neighbours of M packing: rows of y and columns of taps change one at a time."""
    found: list[Config] = [*PackedSettings.near(config)]
    sizes = [(shift.U + step, shift.T) for step in (-1, 1, 2)] + [(shift.U, shift.T - 1), (shift.U, shift.T + 1)]
    return found + [with_settings(config, outputs=U, taps=T) for U, T in sizes if min(U, T) >= 1]


def _candidates(shape: Shape, geometry: Any, given: dict[str, Any]) -> Iterator[Any]:
    """Settings to compare that have the given ones; of many phases, whose Schedules are long, the kernel's own."""
    if geometry.groups > 1:
        for T, (Uh, Uw) in itertools.product(TILE_ROWS, BLOCKS if "rows" not in given else BLOCKS[:1]):
            yield GroupsSettings.read(config_of(**given), rows=T, height=Uh, width=Uw)
        return
    names = set(given) - {"warmup"}
    if names <= set(PACKED) and not packed_reason(geometry, shape.options, config_of(**given)):
        alone = {"depth": 1} if shape.options.of_channels else {}
        for V, U, T, L in packed_sizes(geometry, alone | given)[:SIZES]:
            for x_bytes in (32_768, 16_384, 4096):
                own = {"depth": V, "outputs": U, "taps": T, "lanes": L, "x_bytes": x_bytes}
                yield PackedSettings.read(config_of(**{**own, **given}), geometry)
    if names & set(PACKED) or unsupported_phases(geometry):
        return
    if math.prod(num_steps(axis) for axis in (geometry.planes, geometry.rows, geometry.columns)) > MANY_PHASES:
        yield PhasesSettings.read(config_of(**given), geometry)
        return
    plain = {"together": TOGETHER_MAX if geometry.C > PARTITIONS else 1, "warmup": PHASES_WARM_UP}
    for way in _ways(geometry):
        for shard in SHARDS if geometry.K > 1 else ("outputs",):
            for y_bytes in Y_SIZES:
                channels = min(PARTITIONS // way["segments"], geometry.K)
                if shard == "channels":
                    channels = min(channels, -(-geometry.K // 2))
                found = {**plain, "shard": shard, "channels": channels, "y_bytes": y_bytes, **way, **given}
                yield PhasesSettings.read(config_of(**found), geometry)


def _ways(geometry: Any) -> Iterator[dict[str, Any]]:
    """Packed phases and segments that may share the array; axes that have only one phase add nothing."""
    yield {"beside": "none", "segments": 1, "along": "columns"}
    axes = {"planes": geometry.planes, "rows": geometry.rows, "columns": geometry.columns}
    if geometry.planes.images > 1 or geometry.planes.taps == 1:  # zeros would be added of other images
        del axes["planes"]
    longest = max(axes, key=lambda name: axes[name].out)
    for beside in BESIDE:
        if beside != "none" and getattr(geometry, beside).lhs_dilation == 1:
            continue
        for segments in (1, 2, 4):
            if (segments == 1 or geometry.C in SEGMENTED) and (beside != "none" or segments > 1):
                yield {"beside": beside, "segments": segments, "along": longest}


@dataclasses.dataclass
class _Core:
    """What a core does: its first x, filters and building of stationaries, M tiles of an output tile; all work of each
    engine; its last evacuation and store."""

    resident: int
    x_ns: float
    w_ns: float
    build_ns: float
    tiles: int
    steps: int = 0
    array_ns: float = 0.0
    read_ns: float = 0.0
    prologue_ns: float = 0.0
    moved_ns: float = 0.0
    last_ns: float = 0.0
    store_ns: float = 0.0


class Bound:
    """What a Schedule takes at least: the busiest of Tensor Engine, evacuation and DMA of a core, from the numbers of
    its output tiles, and what nothing hides at both ends."""

    def __init__(self, target: Target, geometry: Any, options: Any, schedule: Any) -> None:
        self.target, self.geometry, self.options, self.schedule = target, geometry, options, schedule
        self.column_ns, self.matmul_ns = matmul_rates(target, geometry)
        self.memo: dict[Any, tuple[float, ...]] = {}
        self.seen: dict[tuple[int, int, int], tuple[float, ...]] = {}
        self.cores = [found for core in range(PARTS) if (found := self._core(schedule.steps(core, PARTS)))]

    def total_ns(self, warmup: int) -> float:
        """ns from the first DMA to the last, with so many matmuls on zeros."""
        return max(self._total_ns(core, warmup) for core in self.cores)

    @property
    def array_ns(self) -> float:
        """ns of the Tensor Engine at full rate, of the busier core."""
        return max(core.array_ns for core in self.cores)

    def _core(self, steps: Any) -> _Core | None:
        """What a core does in steps; None of none."""
        found = None
        for b, i in steps:
            own = self.schedule.residents[b]
            lanes, first, tiles = own.items[i], own.tiles[0], len(own.tiles)
            array_ns, read_ns, x_ns, y_ns, banks = self._once(first, lanes)
            if found is None or found.resident != b:
                w_ns, build_ns, placed_ns = self._filters_ns(first)
                if found is None:
                    begin_ns = build_ns + max(0.0, placed_ns - array_ns)
                    # of groups rows of the first bank come first
                    found = _Core(b, x_ns / banks if self.schedule.gathers else x_ns, w_ns, begin_ns, tiles)
                found.resident, found.read_ns = b, found.read_ns + (build_ns + placed_ns) / 2
                found.moved_ns += tiles * w_ns
            found.steps += 1
            found.array_ns += tiles * array_ns
            found.read_ns += tiles * read_ns
            found.moved_ns += x_ns + tiles * y_ns
            found.prologue_ns += self._prologue_ns(first, lanes)
            found.last_ns, found.store_ns = read_ns / banks, y_ns / banks
        return found

    def _once(self, tile: Any, lanes: Any) -> tuple[float, ...]:
        """(ns of the Tensor Engine, of evacuation, of DMA for x and for results, banks) of an M and an output tile."""
        key = id(lanes), len(tile), tile[0].kn
        if key not in self.seen:
            kind = *key[1:], len(lanes), *((part.b0 == 0, part.bn, part.xn, part.yn) for part in lanes[0])
            if kind not in self.memo:
                array_ns, read_ns, banks = self._work_ns(tile, lanes)
                self.memo[kind] = array_ns, read_ns, *self._moves_ns(tile, lanes, banks), banks
            self.seen[key] = self.memo[kind]
        return self.seen[key]

    def _total_ns(self, core: _Core, warmup: int) -> float:
        target, k_tiles, clock = self.target, len(self.schedule.k_tiles), Clock(self.target)
        # with several banks together the first K tile is enough to begin
        parts = k_tiles if 1 < self.schedule.together >= k_tiles else 1
        start_ns = target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns
        start_ns += max(core.w_ns / parts + core.build_ns, (core.w_ns + core.x_ns) / parts)
        clock.stream(WARM_UP_START_NS, warmup * target.matmul_columns_min * target.tensor_column_ns)
        summed_ns = clock.sums_end(start_ns, core.array_ns, core.array_ns)
        # the last M tile of the first output tile waits for its filters, or their last K tile; the others follow
        waits = (1.0 if core.tiles > 1 else 1.0 / parts) / (core.steps * core.tiles)
        filled_ns = (core.x_ns + core.tiles * core.w_ns) - (core.x_ns + core.w_ns) / parts
        filled_ns += core.array_ns * (1.0 - 1.0 / core.steps + waits)
        end_ns = core.last_ns + target.matmul_done_ns + target.scalar_done_ns + 2 * target.hop_ns
        if self.schedule.together_rows > 1:
            end_ns += target.hop_ns + target.vector_done_ns
        end_ns += target.first_packet_ns + target.store_skew_ns + target.dma_end_ns + core.store_ns
        rest_ns = core.moved_ns - (core.x_ns + core.w_ns) - core.store_ns
        return float(max(summed_ns, start_ns + max(filled_ns, core.read_ns, core.prologue_ns, rest_ns)) + end_ns)

    def _prologue_ns(self, tile: Any, lanes: Any) -> float:
        """ns of Scalar for x of an output tile: of each of the segments or row tiles that come by themselves."""
        k_tiles, prologue = self.schedule.k_tiles, self.options.prologue
        loads = k_tiles[0][3] if not self.schedule.gathers else len(lanes)
        elements = float(math.prod(part.xn for part in lanes[0])) * loads
        return len(k_tiles) * prologue_ns(
            self.target, prologue, elements, loads, lanes[0][0].xn / self.geometry.image_planes
        )

    def _work_ns(self, tile: Any, lanes: Any) -> tuple[float, float, int]:
        """(ns of the Tensor Engine, of evacuation, banks) of an M tile for an output tile."""
        target, schedule, array_ns, read_ns, banks = self.target, self.schedule, 0.0, 0.0, 0
        counted_ns = gathered_ns = 0.0
        count, rows = sum(one.lane < len(lanes) for one in tile), schedule.together_rows
        shared = either_reads(self.options.epilogue, self.options.strict_nonfinite)
        for bank in banks_of(schedule, lanes):
            turn, banks = schedule.turns[bank.turn], banks + 1
            blocks = blocks_in(turn, lanes[0], bank.blocks)
            size = size_of(blocks)
            if schedule.gathers:
                turn_ns = target.row_tile_columns * self.column_ns + self.matmul_ns
                each_ns = max(size * self.column_ns, PARTITIONS // schedule.rows * turn_ns)
                array_ns += len(turn.products) * each_ns
            else:
                seen = blocks_met(turn, lanes[0], blocks)
                columns = sum(max(target.matmul_columns_min, one) for one in seen if one) or size
                array_ns += len(schedule.k_tiles) * (columns * self.column_ns + len(seen) * self.matmul_ns)
            vector_ns = size * target.vector_ns + target.vector_fixed_psum_ns
            scalar_ns = size * target.scalar_ns + target.scalar_fixed_psum_ns
            each_ns = scalar_ns * vector_ns / (scalar_ns + vector_ns) if shared else scalar_ns
            each_ns *= 1.0 if schedule.gathers or not shared else SHARED
            each_ns = vector_ns if self.options.epilogue.residual else each_ns
            moved_ns = target.vector_fixed_ns + size * len(turn.outputs) // rows * self._copy_ns
            read_ns += count * (len(turn.outputs) // rows * each_ns + (rows - 1) * moved_ns / 2)
            counted_ns += count * self._counted_ns(turn, blocks)
            gathered_ns += count * (rows - 1) * moved_ns
        counted_ns += count * self._finished_ns(lanes[0])
        if counted_ns > 0:  # Vector alone takes statistics, and less of what it shares with Scalar
            read_ns = max(counted_ns + gathered_ns, read_ns + (counted_ns / 2 if shared else counted_ns))
        return array_ns, read_ns, banks

    def _counted_ns(self, turn: Any, blocks: Any) -> float:
        """ns of Vector for the statistics of a row tile's bank: of each image for itself."""
        together = len(turn.outputs) if adds_bias_alone(self.options.epilogue) else self.schedule.together_rows
        times, images = len(turn.outputs) // together, max(1.0, blocks[0][1] / self.geometry.image_planes)
        return times * statistics_ns(self.target, self.options, size_of(blocks), images)

    def _finished_ns(self, lane: Any) -> float:
        """ns of Vector to finish the statistics of a row tile for an output tile, of small images together."""
        if not self.options.statistics:
            return 0.0
        geometry, (planes, rows, columns) = self.geometry, lane
        images, outputs = planes.qn / geometry.image_planes, len(self.schedule.turns[0].outputs)
        times = SMALL * images / min(SMALL_IMAGES, math.ceil(geometry.planes.out / geometry.image_planes / PARTS))
        if geometry.image_planes * rows.axis.out * columns.axis.out > BN_STATS_FREE_MAX * outputs:
            times = LARGE * images * rows.qn / rows.axis.out
        return float(times * self.target.vector_fixed_ns)

    def _moves_ns(self, tile: Any, lanes: Any, banks: int) -> tuple[float, float]:
        """ns of DMA for (x of an output tile, the results of an M tile for it)."""
        geometry, schedule = self.geometry, self.schedule
        z, p, q = lanes[0]
        x_run, y_run = float(max(1, q.xn)), float(max(1, q.qn))
        if q.xn == geometry.columns.size:
            x_run *= max(1, p.xn * (z.xn if p.xn == geometry.rows.size else 1))
        if q.qn == geometry.columns.out:
            y_run *= max(1.0, p.qn / (1 if schedule.gathers else max(1, banks // len(schedule.turns))))
        x_elements, y_elements = float(z.xn * p.xn * q.xn), float(z.qn * p.qn * q.qn)
        tiles = sum(one.lane < len(lanes) for one in tile)
        _, channels, _, held = schedule.k_tiles[0]
        rows = x_rows = min(len(lanes), held) * channels
        if schedule.gathers:
            rows, x_rows = tile[0].cn, sum(one.cn for one in tile if one.lane < len(lanes))
        x_ns = len(schedule.k_tiles) * dma_ns(self.target, rows, x_rows, x_elements, x_run, geometry.hbm_itemsize)
        # results packed along the partitions have DMA engines of their own
        beside, kn = PARTITIONS // schedule.slot, tile[0].kn
        one = schedule.residents[0]
        times = (
            max(1.0, tiles / beside) if schedule.gathers else 1 / min(beside, len(one.items) * len(one.tiles) / PARTS)
        )
        rows = y_rows = kn * len(lanes)
        if schedule.gathers:
            rows, y_rows = kn, sum(one.kn for one in tile if one.lane < len(lanes))
        y_ns = dma_ns(self.target, rows, y_rows, y_elements, y_run, self.options.epilogue.y_itemsize, times)
        return x_ns, y_ns

    def _filters_ns(self, tile: Any) -> tuple[float, float, float]:
        """ns of DMA for the filters of an M tile, and of what comes before the first sums: zeros between groups or
        spreads, and copies to their places but the first bank's."""
        target, geometry, schedule, taps = self.target, self.geometry, self.schedule, num_taps(self.geometry)
        if not schedule.gathers:
            run = float(tile[0].kn * taps)
            _, channels, _, held = schedule.k_tiles[0]
            w_ns = dma_ns(self.target, held * channels, held * channels, run, run, geometry.hbm_itemsize)
            copies = sum(tap >= 0 for turn in schedule.turns for one in turn.products for tap in one.taps)
            copy_ns = target.vector_fixed_ns + tile[0].kn * self._copy_ns
            # two engines share them
            packed_ns = copies * held * copy_ns / 2
            words = sum(turn.size for turn in schedule.turns) * schedule.width(1) * geometry.itemsize / 4
            packed_ns = max(packed_ns, words * target.gpsimd_ns) if schedule.packs else 0.0
            return len(schedule.k_tiles) * w_ns, packed_ns, 0.0
        outputs, Kt, by_input = len(schedule.turns[0].outputs), schedule.slot, geometry.groups == geometry.C
        w_ns = target.rows_an_engine * target.run_ns(geometry.C // geometry.groups * taps * geometry.itemsize)
        product_ns = target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns
        times = 1 if by_input else pages(schedule)
        transposed_ns = 0.0 if by_input else taps * (target.matmul_columns_min * self.column_ns + self.matmul_ns)
        spread_ns = times * max(transposed_ns, taps * (Kt if by_input else PARTITIONS) * product_ns)
        if not by_input and tile[0].cn < schedule.rows:
            spread_ns = max(spread_ns, times * taps * PARTITIONS * target.gpsimd_ns)
        # each waits for the one before it
        spread_ns += 2 * (target.vector_done_ns + target.hop_ns) + (0.0 if by_input else target.matmul_done_ns)
        return w_ns, spread_ns, times * outputs * (target.vector_fixed_ns + taps * Kt * self._copy_ns)

    @property
    def _copy_ns(self) -> float:
        """ns of an element that Vector copies inside SBUF."""
        target = self.target
        return target.vector_16bit_ns / 2 if self.geometry.itemsize == 2 else target.vector_16bit_ns


ALGORITHM = WeightStationary()
