"""`stacked` on the host: the sizes that take least, and what a Schedule takes at least: what comes before the first
sums, the busiest engine, the last store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....schedules.cuts import window_of
from ....schedules.geometry import num_taps
from ....schedules.options import either_reads
from ....schedules.settings import WARM_UP_MAX
from ....schedules.stacked import (
    DepthwiseSettings,
    StackedSettings,
    build,
    default_filters,
    default_settings,
    settings_class,
    sized,
    sizes_reason,
    unsupported_reason,
)
from ....schedules.stacked_schedule import FILTER_PARTS, Stack, met_counts, phases_of, taps_of_window, tile_bytes
from ....schedules.tiles import BANK_BYTES, BANK_COLUMNS, PARTS, cut, div_ceil, slot_for
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Guess, Shape, with_settings
from ..clock import Clock, skew
from .common import Conv2dAlgorithm, matmul_ns, matmul_rates, planes_met, planes_seen, prologue_ns, statistics_ns

#: Rows of y on a partition that are tried.
BESIDE = (1, 2, 4)
#: How many of the settings are sizes; sizes that are built, those of least work of the Tensor Engine; candidates that
#: are timed, at most, and how far above the least bound they may be.
SIZES, BUILT, GUESSES, NEAR = 5, 100, 2, 1.1
#: Share of the DMAs' time that others wait for although they take longer.
CONTENTION = 0.05
#: ns of an M tile that transposes filters and takes sums, with their evacuation, at least.
M_TILE_NS = 550.0
#: ns until the first matmul on zeros, and as their numbers are counted from.
WARM_UP_START_NS, ZEROS_NS = 300.0, 400.0
#: ns from x's arrival to the first sums where a prologue and zeros beside x come between, after the numbers of both;
#: calibrated on modelled traces, no other source.
PROLOGUE_NS = 2_500.0
#: Of depthwise problems, ns until w has come, from the last trigger of the first stationaries to the first sums, and
#: share of the zeros that Vector writes; GpSimd has the others.
W_NS, FIRST_NS, ZEROED_BY_VECTOR = 3_000.0, 1_300.0, 2 / 3


class Stacked(Conv2dAlgorithm):
    """Rows, shifts and outputs stacked, or whole columns of depthwise channels."""

    algorithm, unsupported_reason = "stacked", staticmethod(unsupported_reason)
    order = ("rows", "shifts", "outputs", "beside", "apart")

    def settings_of(self, geometry: Any, config: Config) -> type[Any]:
        return settings_class(geometry)

    def guesses(self, shape: Shape) -> list[Guess]:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if geometry.groups > 1 or self.unsupported_reason(geometry, shape.options, None):
            return super().guesses(shape)
        found = self._least(shape, geometry)
        near = [one.pairs[:SIZES] for ns, one in found[:GUESSES] if ns <= NEAR * found[0][0]]
        return [guess for config in near if (guess := self.guess(shape, config)) is not None]

    def plan(self, shape: Shape, config: Config) -> Any:
        plan = super().plan(shape, config)
        return plan and plan.stack

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return Bound(shape.target, geometry, shape.options, plan).total_ns()

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        if geometry.groups > 1:
            completed = default_settings(geometry, shape.options, tuple(given.items()))
            return completed if build(geometry, completed, shape.options) else None
        B = given.get("rows", 0)
        sizes = (
            sized(geometry, tuple(given.items()), B, 1, 1, 1, B)
            if B
            else next((one for _, one in self._least(shape, geometry)), None)
        )
        found = sizes and dataclasses.replace(sizes, **given)
        if found is None or sizes_reason(geometry, found):
            return None
        own = bounded(shape.target, geometry, shape.options, found, "filters" in given)
        if own is None:
            return None
        found, bound = own
        before, after = bound.warm_ups()
        rest = {"blocks": bound.schedule.blocks, "warmup": before + after}
        rest["late_warmup"] = max(0, given.get("warmup", before + after) - before)
        return dataclasses.replace(found, **{**rest, **given})

    def _least(self, shape: Shape, geometry: Any) -> list[tuple[float, StackedSettings]]:
        """(bound, settings) of candidates, the least first, looked for once."""
        return shape.once(("stacked, least", None), lambda: candidates(shape.target, geometry, shape.options))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        if plan.diagonal:
            volumes, now = shape.geometry.planes.images, {"together": plan.together, "channels": plan.kn}
            buffers = dict.fromkeys((max(2, plan.ring // 2), 2 * volumes, 3 * volumes, 2, 4))
            return list(DepthwiseSettings.near(config, now, buffers=buffers))
        found: list[Config] = [*StackedSettings.near(config, {"blocks": plan.blocks})]
        return found + [with_settings(config, **sizes) for sizes in self._sizes(shape, plan)]

    def _sizes(self, shape: Shape, plan: Any) -> list[dict[str, int]]:
        """Sizes that differ from a plan's in one or two of rows, shifts and outputs, or in how rows lie; which fit."""
        geometry = shape.geometry
        now = {"rows": plan.B, "shifts": plan.D, "outputs": plan.U, "beside": plan.V, "apart": plan.G}
        ways = [{"beside": one} for one in BESIDE] + [{"apart": plan.B}]
        for rows in {plan.B - 1, plan.B, plan.B + 1, plan.B // 2, 2 * plan.B}:
            for outputs in {plan.U - 1, plan.U, plan.U + 1, plan.U // 2, 2 * plan.U}:
                for shifts in {plan.D, plan.D - 1, plan.D + 1, geometry.columns.taps}:
                    apart = rows if plan.G == plan.B else min(rows, plan.G)
                    ways.append({"rows": rows, "outputs": outputs, "shifts": shifts, "apart": apart})
        found = []
        for way in ways:
            one = {**now, **way}
            fits = min(one.values()) >= 1
            fits = fits and one["rows"] * one["shifts"] * geometry.C <= PARTITIONS and one["outputs"] <= PARTITIONS
            fits = fits and one["outputs"] * one["beside"] * geometry.rows.stride % max(1, one["apart"]) == 0
            if fits and one["shifts"] <= geometry.columns.taps and one != now and one not in found:
                found.append(one)
        return sorted(found, key=lambda one: sum(one[name] != value for name, value in now.items()))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.m_tiles if plan.diagonal else plan.items)


def candidates(target: Target, geometry: Any, options: Any) -> list[tuple[float, StackedSettings]]:
    """(bound, settings) of those sizes whose Tensor Engine has least to do, the least first."""
    found: list[tuple[float, StackedSettings]] = []
    best_ns, base = float("inf"), sized(geometry, None, 1, 1, 1, 1, 1)
    for least_ns, _, sizes in sorted(tensor_ns(target, geometry))[:BUILT]:
        if least_ns > best_ns:
            break
        filters = default_filters(geometry, sizes[0], sizes[2])
        settings = StackedSettings(*sizes, base.blocks, filters, base.warmup, base.late_warmup)
        own = bounded(target, geometry, options, settings)
        if own:
            found.append((own[1].total_ns(NEAR * best_ns), own[0]))
            best_ns = min(best_ns, found[-1][0])
    return sorted(found, key=lambda one: one[0])


def bounded(
    target: Target, geometry: Any, options: Any, settings: StackedSettings, keep: bool = False
) -> tuple[StackedSettings, Bound] | None:
    """Settings with their bound, filters straight at their places where that is sooner, if they are not to keep their
    way; None where memory does not hold them."""
    schedule = build(geometry, settings, options)
    if schedule is None:
        return None
    bound = Bound(target, geometry, options, schedule)
    if not keep and not geometry.flipped and bound.is_straight():
        schedule = dataclasses.replace(schedule, filters="straight")
        return dataclasses.replace(settings, filters="straight"), Bound(target, geometry, options, schedule)
    return settings, bound


def tensor_ns(target: Target, geometry: Any) -> Iterator[tuple[float, int, tuple[int, int, int, int, int]]]:
    """(ns of the Tensor Engine between the first load and the last store, place, sizes) of all that are tried."""
    rows, columns = geometry.rows, geometry.columns
    column_ns = matmul_rates(target, geometry)[0] * planes_met(geometry)
    # filters come, and results leave
    both_ns = 2 * start_ns(target) - target.dma_done_ns
    for place, (B, D, U, V, G) in enumerate(sizes_tried(geometry)):
        m_tiles = div_ceil(geometry.K, PARTITIONS // U)
        blocks = div_ceil(geometry.planes.out * div_ceil(rows.out, U * V), PARTS)
        taps = taps_of_window(rows, B, U, V, max(phases_of(rows.stride, V, G))) * div_ceil(columns.taps, D)
        yield both_ns + m_tiles * blocks * V * columns.out * taps * column_ns, place, (B, D, U, V, G)


def sizes_tried(geometry: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """Rows, shifts, outputs, rows of y on a partition, rows from block to block."""
    rows, taps, most = geometry.rows, geometry.columns.taps, PARTITIONS // geometry.C
    # fewer columns of taps a group than needed for as many groups only leave partitions idle
    shifts = [D for D in dict.fromkeys(-(-taps // groups) for groups in range(1, taps + 1)) if D <= most]
    for U in outputs_tried(geometry):
        for V in (V for V in BESIDE if V == 1 or U * V <= rows.out):
            span = U * V * rows.stride
            window = window_of(rows, U * V)
            tiling = [B for B in range(min(most, span), 0, -1) if span % B == 0]
            for D in shifts:
                for B in tiling:
                    if B * D <= most:
                        yield B, D, U, V, B
                        if window <= B < span:
                            yield B, D, U, V, span
                        if D == 1 < B:
                            yield B, D, U, V, 1
                if window * D <= most and window not in tiling:
                    yield window, D, U, V, span


def outputs_tried(geometry: Any) -> Iterator[int]:
    """Outputs of a block: for each number of M tiles the most, all that are few, and multiples of 8."""
    most = min(PARTITIONS, geometry.rows.out + geometry.rows.size)
    m_tiles = [-(-geometry.K // (PARTITIONS // U)) for U in range(1, most + 1)]
    for U in range(1, most + 1):
        if U == most or U <= 8 or U % 8 == 0 or m_tiles[U - 1] < m_tiles[U]:
            yield U


def start_ns(target: Target) -> float:
    """Until the first filters are there and transposed, at least."""
    there_ns = target.first_packet_ns + target.dma_end_ns + target.dma_done_ns
    return there_ns + target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns + target.vector_done_ns


class Bound:
    """Times in ns of both cores."""

    def __init__(self, target: Target, geometry: Any, options: Any, schedule: Stack) -> None:
        self.target, self.geometry, self.options, self.schedule = target, geometry, options, schedule
        planes, rows = schedule.out_tile_parts
        #: an output tile of as many images and blocks as any, and output tiles of a core, as many of these as come to
        #: the same
        self.zn, self.jn = div_ceil(geometry.planes.out, planes), div_ceil(schedule.num_blocks, rows)
        evenly = geometry.planes.out * schedule.num_blocks / (planes * rows * self.zn * self.jn)
        self.times: float = div_ceil(planes * rows, PARTS) * evenly
        self.tiles = schedule.parts_of(self.zn, self.jn)
        self.across = cut(geometry.columns.out, BANK_COLUMNS)

    def total_ns(self, most_ns: float = float("inf")) -> float:
        """From the first DMA to the last; where that is more than `most_ns`, some ns between the two."""
        if self.schedule.diagonal:
            return self._depthwise_ns()
        target, schedule, times, m_tiles = self.target, self.schedule, self.times, len(self.schedule.m_tiles)
        matmuls = m_tiles * schedule.V * schedule.num_taps * schedule.groups * planes_met(self.geometry)
        sizes = [self.zn * j[1] * q[1] for j in self.tiles for q in self.across]
        sums_ns = times * matmuls * sum(matmul_ns(target, self.geometry, size) for size in sizes)
        array_ns = sums_ns + (m_tiles - self.first_share) * self.transposes_ns
        vector_ns = len(sizes) * target.vector_fixed_psum_ns + sum(sizes) * target.vector_ns
        scalar_ns = len(sizes) * target.scalar_fixed_psum_ns + sum(sizes) * target.scalar_ns
        read_ns = vector_ns if self.options.residual else scalar_ns
        if either_reads(self.options.epilogue, self.options.strict_nonfinite) and not self.options.residual:
            read_ns = vector_ns * scalar_ns / (vector_ns + scalar_ns)
        counted_ns = statistics_ns(target, self.options, sum(sizes), len(sizes))
        read_ns = max(counted_ns, read_ns + counted_ns / 2) * times * m_tiles * schedule.V
        taken_ns = times * self._prologue_ns()
        read_ns = max(read_ns, taken_ns, (read_ns + taken_ns) / 2)
        x_ns, y_ns, out_tile_bytes = self._moves_ns()
        moved_ns = m_tiles * self.filters_ns + times * (x_ns + y_ns)
        moved_ns = max(moved_ns, (m_tiles * self.filter_bytes + times * out_tile_bytes) * target.hbm_byte_ns)
        last_ns = self._last_ns(vector_ns / len(sizes), y_ns / m_tiles) + CONTENTION * moved_ns
        least_ns = max(array_ns, read_ns, moved_ns - start_ns(target)) + start_ns(target) + last_ns
        if least_ns > most_ns:
            return least_ns
        begin = self.begin_ns
        columns = self.geometry.columns
        valid_range = sum(met_counts(columns)) / (columns.taps * columns.out) if schedule.whole >= 0 else 1.0
        work_ns = times * matmuls * sum(sizes) * matmul_rates(target, self.geometry)[0] * valid_range
        work_ns += m_tiles * self.transposes_ns * min(1.0, schedule.U * schedule.kn / target.matmul_columns_min)
        clock = Clock(target)
        # zeros keep the Tensor Engine at work until the first sums
        clock.stream(WARM_UP_START_NS, (begin - WARM_UP_START_NS) * target.half_rate)
        array_ns = clock.sums_end(begin, array_ns, work_ns) - begin
        if m_tiles > 1:
            array_ns = max(array_ns, m_tiles * M_TILE_NS + (times - 1.0) * sums_ns / times)
        return max(array_ns, read_ns, moved_ns - begin) + begin + last_ns

    def _dma_ns(self, elements: float, run: float, partitions: int, strided: bool = False) -> float:
        """Of a DMA engine for so many elements of each partition, in runs."""
        run = 1.0 if strided else max(1.0, run)
        each_ns = elements / run * self.target.run_ns(run * self.geometry.itemsize)
        return float(min(self.target.rows_an_engine, partitions) * each_ns)

    def _x_ns(self, blocks: int) -> float:
        geometry, schedule = self.geometry, self.schedule
        run = min(schedule.width, geometry.columns.size)
        size = planes_seen(geometry, self.zn) * blocks * run
        # blocks of neighbouring rows are one run
        together = blocks if schedule.G == 1 and schedule.whole >= 0 else 1
        return self._dma_ns(size, run * together, PARTITIONS, geometry.x_strides[3] > 1 and run > 1)

    def _prologue_ns(self) -> float:
        """Of Scalar for x of an output tile."""
        planes = planes_seen(self.geometry, self.zn)
        elements = planes * self.schedule.block_rows(self.jn) * min(self.schedule.width, self.geometry.columns.size)
        return prologue_ns(self.target, self.options.prologue, elements, 1, planes / self.geometry.image_planes)

    def _moves_ns(self) -> tuple[float, float, float]:
        """(ns for x, ns for results and residuals, bytes) of an output tile."""
        geometry, schedule, m_tiles, Q = (
            self.geometry,
            self.schedule,
            len(self.schedule.m_tiles),
            self.geometry.columns.out,
        )
        blocks, parts = schedule.block_rows(self.jn), schedule.U * schedule.kn
        size = self.zn * self.jn * schedule.V * Q
        run = size / self.zn / (len(self.tiles) if schedule.U == 1 else self.jn)
        y_ns = m_tiles * self._dma_ns(size, run, parts, geometry.y_strides[3] > 1 and Q > 1)
        x_size = planes_seen(geometry, self.zn) * blocks * min(schedule.width, geometry.columns.size)
        residual = 1 if self.options.residual else 0
        elements = schedule.parts * x_size + m_tiles * parts * size * (1 + residual)
        # banks leave from alternating parts of the partitions, which have different engines
        slots = min(len(self.tiles), PARTITIONS // slot_for(parts))
        return self._x_ns(blocks), y_ns * (residual + 1 / slots), elements * geometry.itemsize

    def _last_ns(self, read_ns: float, y_ns: float) -> float:
        """From the last sums to the end."""
        target = self.target
        store_ns = target.first_packet_ns + target.hop_dma_ns + target.static_issue_ns + target.dma_end_ns
        read_ns += target.matmul_done_ns + target.hop_ns + target.vector_done_ns
        return read_ns + store_ns + y_ns / len(self.tiles)

    # filters

    def is_straight(self) -> bool:
        """Whether filters that engines cannot shift are sooner straight at their places than transposed separately."""
        target, geometry, schedule = self.target, self.geometry, self.schedule
        if schedule.fits_window or schedule.filters != "apart":
            return schedule.fits_window
        size, rows = geometry.C * num_taps(geometry), geometry.rows
        run, loads = (
            (geometry.columns.taps * rows.taps, 1) if rows.dilation == 1 else (geometry.columns.taps, rows.taps)
        )
        straight_ns = self._dma_ns(size, run, schedule.U * schedule.kn)
        straight_ns += (schedule.U * loads - 1) * target.static_issue_ns
        apart_ns = (1 - 1 / schedule.U) * self.transposes_ns / target.half_rate
        return straight_ns <= apart_ns + self._dma_ns(size, size, schedule.kn)

    @cached_property
    def filter_parts(self) -> int:
        """Partitions that the filters of an M tile come to."""
        return self.schedule.kn * (self.schedule.U if self.schedule.filters == "straight" else 1)

    @property
    def filter_bytes(self) -> int:
        return int(self.filter_parts * self.geometry.C * num_taps(self.geometry) * self.geometry.itemsize)

    @property
    def triggers(self) -> int:
        """DMAs of the filters of an M tile."""
        rows, schedule = self.geometry.rows, self.schedule
        return schedule.U * (rows.taps if rows.dilation > 1 else 1) if schedule.filters == "straight" else 1

    @cached_property
    def filters_ns(self) -> float:
        """Of a DMA engine for the filters of an M tile."""
        geometry, schedule = self.geometry, self.schedule
        size, runs = geometry.C * num_taps(geometry), 1
        if schedule.filters == "straight" and not schedule.fits_window:
            runs = geometry.C * geometry.planes.taps * (1 if geometry.rows.dilation == 1 else geometry.rows.taps)
        elif geometry.flipped:
            runs = geometry.C
        strided = geometry.w_strides[3] > 1 and geometry.columns.taps > 1
        return self._dma_ns(size, size // runs, self.filter_parts, strided)

    @cached_property
    def transposes_ns(self) -> float:
        """Of the Tensor Engine for the filters of an M tile."""
        target, schedule = self.target, self.schedule
        passes = target.transpose_passes_fp32 if self.geometry.itemsize == 4 else 1
        columns = max(schedule.U * schedule.kn // schedule.filter_slots, target.matmul_columns_min)
        each_ns = columns * target.tensor_column_ns + target.matmul_ns
        return float(schedule.filter_slots * schedule.num_filters * passes * each_ns)

    @cached_property
    def first_share(self) -> float:
        """Share of the filters of an M tile that are evacuated first."""
        schedule = self.schedule
        bank = BANK_BYTES // (schedule.U * schedule.kn * self.geometry.itemsize)
        return float(max(1, min(bank, div_ceil(schedule.num_filters, FILTER_PARTS))) / schedule.num_filters)

    @cached_property
    def there_ns(self) -> float:
        """Until the first filters may be transposed."""
        target, geometry, schedule = self.target, self.geometry, self.schedule
        found = target.first_packet_ns + skew(target, self.filter_parts, target.load_skew_ns)
        found += target.dma_end_ns + target.dma_done_ns + (self.triggers - 1) * target.static_issue_ns
        found += max(self.filters_ns, self.filter_bytes * target.hbm_byte_ns)
        if schedule.filters != "straight":
            size = geometry.C * num_taps(geometry) * (schedule.U // schedule.filter_slots)
            found += target.vector_done_ns + target.hop_tensor_ns + size * target.vector_4x_ns
        elif not schedule.fits_window and schedule.common_rows[1] == 0:
            found += target.vector_done_ns + schedule.z_elements * geometry.itemsize // 4 * target.vector_memset_ns
        return found

    @cached_property
    def begin_ns(self) -> float:
        """Until the first sums begin: filters are transposed, and the first rows of x are there."""
        target, geometry, schedule = self.target, self.geometry, self.schedule
        rate = target.half_rate if self.there_ns < target.window_ns else 1.0
        filters_ns = self.there_ns + self.first_share * self.transposes_ns / rate
        filters_ns += target.matmul_done_ns + target.hop_ns + target.hop_tensor_ns + target.vector_done_ns
        filters_ns += self.first_share * schedule.num_filters * schedule.U * schedule.kn * target.vector_16bit_ns
        blocks = schedule.block_rows(self.tiles[0][1])
        first, last = schedule.whole_blocks(0, blocks)
        triggers = self.triggers + schedule.D * planes_seen(geometry, self.zn) * (1 + blocks - (last - first))
        x_ns = target.first_packet_ns + skew(target, schedule.B * geometry.C, target.load_skew_ns)
        x_ns += target.dma_end_ns + target.dma_done_ns
        x_ns += triggers * target.static_issue_ns + self.filters_ns + self._x_ns(blocks)
        x_ns += PROLOGUE_NS if self.options.prologue.asked else 0.0
        return max(filters_ns, x_ns)

    def warm_ups(self) -> tuple[int, int]:
        """Matmuls on zeros until the first filters are there, and from their transposes to the first sums, about."""
        target, rate = self.target, self.target.half_rate if self.there_ns < self.target.window_ns else 1.0

        def zeros(begin: float, end: float) -> int:
            each_ns, line = PARTITIONS * target.tensor_column_ns, target.window_ns
            slow_ns, fast_ns = max(0.0, min(end, line) - begin), max(0.0, end - max(begin, line))
            count = slow_ns * target.half_rate / each_ns + fast_ns / (each_ns + target.matmul_ns)
            return min(WARM_UP_MAX, int(count))

        return zeros(ZEROS_NS, self.there_ns), zeros(self.there_ns + self.transposes_ns / rate, self.begin_ns)

    def _depthwise_ns(self) -> float:
        """The slowest of the Tensor Engine, after the first stationaries are there, of their triggers, of DMA engines,
        and of the stores alone, which begin with the first sums."""
        target, geometry, schedule = self.target, self.geometry, self.schedule
        Q, out, m_tiles = geometry.columns.out, geometry.planes.out, div_ceil(len(schedule.m_tiles), PARTS)
        rounds = div_ceil(m_tiles, schedule.together)
        words = (schedule.together - schedule.early) * tile_bytes(geometry, schedule.kn) / 4
        triggers_ns = schedule.kn * len(schedule.runs) * target.static_issue_ns
        first_ns = W_NS + words * target.vector_memset_ns * ZEROED_BY_VECTOR + triggers_ns + FIRST_NS
        images = max(1, BANK_COLUMNS // Q)
        columns = [min(images, out - n) * Q for n in range(0, out, images)]
        # few columns leave the Tensor Engine idle, and what is idle falls back to half of its rate
        array_ns = sum(
            matmul_ns(target, geometry, one) / (1.0 if one >= target.matmul_columns_min else target.half_rate)
            for one in columns
        )
        array_ns *= planes_met(geometry) * geometry.columns.taps
        x_ns = self._dma_ns(geometry.planes.size * geometry.columns.size, geometry.columns.size, PARTITIONS)
        slots = PARTITIONS // slot_for(schedule.kn * geometry.rows.out)
        y_ns = self._dma_ns(out * Q, Q, PARTITIONS) / slots
        taps_ns = self._dma_ns(num_taps(geometry), num_taps(geometry), PARTITIONS)
        last = m_tiles - (rounds - 1) * schedule.together
        slowest_ns: float = max(
            first_ns + max(m_tiles * array_ns, (rounds - 1) * triggers_ns + last * array_ns, array_ns + m_tiles * y_ns),
            W_NS + m_tiles * (x_ns + y_ns + taps_ns),
        )
        return slowest_ns + self._last_ns(0.0, 0.0)


ALGORITHM = Stacked()
