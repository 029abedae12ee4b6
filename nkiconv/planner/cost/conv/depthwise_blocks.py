"""`activation_stationary` of depthwise problems on the host: sizes of blocks, and what is worked on together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from ....schedules.activation_stationary import DepthwiseSettings
from ....schedules.activation_stationary_build import unsupported_reason
from ....schedules.block_windows import window_width
from ....schedules.cuts import window_of
from ....schedules.depthwise_blocks import BlockSchedule, block_bytes, blocks_misfit
from ....schedules.frames import is_transposed
from ....schedules.pixel_tiles import outputs_apart
from ....schedules.tiles import BANK_BYTES, PARTS, div_ceil, fits_sbuf
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Shape, pairs_of
from .common import Completed, matmul_ns

#: Windows of a row of y that are tried, at most; heights of blocks, those of the fewest below each other first.
WINDOWS, HEIGHTS = 10, 4
#: Channels of a chunk that are tried, beside all of a core's, and half of these.
CHUNKS = (8, 16, 32, 64, 128)
#: Buffers, and matmuls that warm the array up; sizes of blocks of which all other settings are tried together.
BUFFERS = (4, 2)
TOGETHER = 12
#: Settings that a wide search starts from.
WIDE_BEST = 8
#: Bytes a partition of matrices that come together, about.
MATRICES_BYTES = 32_768
#: ns until filters are in SBUF, before matrices are triggered, and from the last sums to the end; of a step at least,
#: and of an item from its loads to its stores.
START_NS, END_NS, STEP_NS, ITEM_NS = 2_000.0, 4_000.0, 950.0, 9_000.0
#: Share of an engine's time that the busiest does not hide, of planes and of pixels; how many times as long the Tensor
#: Engine takes where blocks of planes are transposed no more than a step ahead, of overlapping windows and of disjoint
#: ones; share of the busiest engine's time in which triggers of matrices hold nothing up.
EXPOSED, UNBUFFERED, FREELY = (0.02, 0.12), (1.3, 1.03), 0.6


class DepthwiseBlocks(Completed):
    """Toeplitz matrices of all taps, blocks of rows and columns."""

    algorithm, settings, unsupported_reason = (
        "activation_stationary",
        DepthwiseSettings,
        staticmethod(unsupported_reason),
    )

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return BlockBound(shape.target, plan, shape.options).ns()

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        return next(iter(ranked(shape, geometry, given)), None)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if self.unsupported_reason(shape.geometry, shape.options, None):
            return [None]
        kinds = _kinds(shape.geometry)
        each = (ranked(shape, shape.geometry, {"disjoint": one}) for one in kinds)
        return [pairs_of(one) for found in each for one in itertools.islice(found, WIDE_BEST if wide else 1)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        completed = dict(self.complete(shape, config) or ())
        stride = shape.geometry.rows.stride * outputs_apart(shape.geometry.rows)
        now = {name: completed[name] for name in ("rows", "channels")}
        return list(DepthwiseSettings.near(config, now, rows=(now["rows"] - stride, now["rows"] + stride)))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items)


def ranked(shape: Shape, geometry: Any, given: dict[str, Any]) -> Iterator[DepthwiseSettings]:
    """Settings that have the given ones and fit, of the cheapest sizes of blocks first, of these those of least time
    first."""

    def by_price(some: Iterable[DepthwiseSettings]) -> list[DepthwiseSettings]:
        found: list[tuple[float, int, DepthwiseSettings]] = []
        for one in some:
            if blocks_misfit(geometry, one) == "":
                bound = BlockBound(shape.target, BlockSchedule(geometry, one), shape.options)
                found.append((bound.ns(), len(found), one))
        return [one for _, _, one in sorted(found)]

    sizes = by_price(sizes_of(geometry, given))
    for first in range(0, len(sizes), TOGETHER):
        every = (one for size in sizes[first : first + TOGETHER] for one in shares_of(geometry, given, size))
        for one in by_price(every):
            if fits_sbuf(block_bytes(geometry, BlockSchedule(geometry, one), shape.options)):
                yield one


def sizes_of(geometry: Any, given: dict[str, Any]) -> Iterator[DepthwiseSettings]:
    """Sizes of blocks, and how many the array takes at once, with the other settings that are given, or some."""
    N, stride, repeats = geometry.planes.out, geometry.rows.stride, outputs_apart(geometry.rows)
    channels = min(CHUNKS[1], div_ceil(geometry.C, PARTS))
    share = {"channels": channels, "together": 1, "buffers": BUFFERS[0]}
    for columns, disjoint in _widths(geometry, given):
        tallest = _tallest(geometry, columns, disjoint)
        for rows in _given(given, "rows", _heights(geometry.rows.out, tallest, stride, repeats)):
            sizes = {"rows": rows, "columns": columns, "disjoint": disjoint}
            blocks = div_ceil(geometry.rows.out * stride, rows)
            for below in _given(given, "below", {div_ceil(blocks, count) for count in (1, 2, 4, 8)}):
                most = max(1, PARTITIONS // below)
                for images in _given(given, "images", {div_ceil(N, div_ceil(N, most)), min(N, most)}):
                    together = {"beside": 1, "below": below, "images": images}
                    if is_transposed(geometry):
                        windows = div_ceil(geometry.columns.out, columns)
                        side = max(1, min(windows, PARTITIONS // (below * images)))
                        together["beside"] = div_ceil(windows, div_ceil(windows, side))
                    yield DepthwiseSettings(**{**share, **sizes, **together, **given})


def _kinds(geometry: Any) -> tuple[int, ...]:
    """Values of `disjoint`."""
    return (0,) if is_transposed(geometry) else (0, 1)


def _widths(geometry: Any, given: dict[str, Any]) -> list[tuple[int, int]]:
    """Columns of y of windows, and whether these are disjoint, of planes either."""
    Q, each = geometry.columns.out, outputs_apart(geometry.columns)
    columns = _given(given, "columns", {div_ceil(Q, count * each) * each for count in range(1, WINDOWS + 1)})
    return list(itertools.product(columns, _given(given, "disjoint", _kinds(geometry))))


def _tallest(geometry: Any, columns: int, disjoint: int) -> int:
    """Most rows from a block to the next that the partitions hold of windows of so many columns of y."""
    rows, width = geometry.rows, window_width(geometry.columns, columns, disjoint == 1)
    unit = outputs_apart(rows) * rows.stride
    most = PARTITIONS // max(1, width) * rows.lhs_dilation
    if disjoint == 1:
        most += rows.stride - window_of(rows, 1)
    return int(max(0, most) // unit * unit)


def shares_of(geometry: Any, given: dict[str, Any], size: DepthwiseSettings) -> Iterator[DepthwiseSettings]:
    """Settings with some sizes of blocks."""
    for channels in _given(given, "channels", _chunks(geometry)):
        most = _together(geometry, size.rows, window_of(geometry.columns, size.columns), channels)
        for together in _given(given, "together", {1, div_ceil(most, 2), most}):
            for buffers in _given(given, "buffers", BUFFERS):
                yield dataclasses.replace(size, channels=channels, together=together, buffers=buffers)


def _together(geometry: Any, rows: int, width: int, channels: int) -> int:
    """Chunks whose matrices come together: as many as MATRICES_BYTES hold of windows that overlap, in rounds as even as
    can be; disjoint ones take about as much."""
    depth = div_ceil(window_of(geometry.rows, rows // geometry.rows.stride), rows)
    chunks = div_ceil(div_ceil(geometry.C, PARTS), channels)
    most = max(1, MATRICES_BYTES // (depth * rows * width * geometry.itemsize * channels))
    return int(div_ceil(chunks, div_ceil(chunks, most)))


def _given(given: dict[str, Any], name: str, values: set[int] | tuple[int, ...]) -> list[int]:
    return [given[name]] if name in given else sorted(values)


def _heights(out: int, most: int, stride: int, repeats: int) -> set[int]:
    """Rows of blocks: the least of each number of blocks below each other, fewest first."""
    found: dict[int, int] = {}
    for rows in range(most, 0, -stride * repeats):
        found[div_ceil(out * stride, rows)] = rows
    return {found[count] for count in sorted(found)[:HEIGHTS]}


def _chunks(geometry: Any) -> set[int]:
    """Channels of chunks, in as many for one core as for the other."""
    mine = div_ceil(geometry.C, PARTS)
    whole = {mine, div_ceil(mine, 2)} | {one for one in CHUNKS if one < mine}
    if is_transposed(geometry):
        return whole | {geometry.C}
    return {one for one in whole if one <= PARTITIONS}


class BlockBound:
    """Times of a BlockSchedule, in ns of two cores, each with half of the channels."""

    def __init__(self, target: Target, plan: Any, options: Any) -> None:
        settings, geometry = plan.settings, plan.geometry
        self.target, self.plan, self.geometry, self.options = target, plan, geometry, options
        self.channels = geometry.C / PARTS
        self.bands = div_ceil(div_ceil(geometry.rows.out, plan.out_rows), settings.below)
        #: steps of a channel, windows of each; columns of matmuls of a step, and sums that leave
        self.together = min(len(plan.windows), plan.windows_together)
        windows = div_ceil(len(plan.windows), self.together)
        self.steps = windows * self.bands * div_ceil(geometry.planes.out, settings.images)
        self.matmuls, self.sums = [plan.bank[0] * plan.bank[1]] * plan.depth, plan.out_rows * settings.columns
        if plan.disjoint:
            self.matmuls = [plan.out_rows * one.columns[1] for span in plan.spans for one in span.products]
            self.sums = plan.out_rows * geometry.columns.out
        #: transposes of a core, columns of each
        self.transposes, self.parts, self.groups = 0.0, 0, 0
        if not plan.by_pixels:
            images = min(settings.images, PARTITIONS // settings.channels)
            self.parts, self.groups = images * settings.channels, div_ceil(settings.images, images)
            blocks = self.together * (settings.below + plan.depth - 1) * self.groups
            self.transposes = self.channels / settings.channels * self.steps * blocks
        self.items = max(1.0, self.channels / settings.channels) * self.steps / (1 if plan.by_pixels else windows)

    def ns(self) -> float:
        """Of all."""
        target, plan, settings = self.target, self.plan, self.plan.settings
        (array_ns, density), read_ns, moved_ns = self.array(), self.read_ns(), self.moved_ns()
        triggers_ns = plan.size * target.static_issue_ns
        matrices_ns = target.rows_an_engine * target.run_ns(plan.matrix_size * self.geometry.itemsize)
        start_ns = START_NS + max(triggers_ns + plan.together * settings.channels * matrices_ns, moved_ns / self.items)
        rounds_ns = max(1.0, self.channels / settings.channels) / settings.together * triggers_ns
        steps_ns = max(
            self.items * ITEM_NS / settings.buffers, self.channels / settings.channels * self.steps * STEP_NS
        )
        # blocks of planes are transposed no more than a step ahead
        array_ns *= UNBUFFERED[plan.disjoint] if settings.buffers == 2 and not plan.by_pixels else 1.0
        busy_ns = max(array_ns, read_ns, moved_ns)
        late_ns = max(0.0, rounds_ns - FREELY * busy_ns)
        busy_ns += EXPOSED[plan.by_pixels] * (array_ns + read_ns + moved_ns - busy_ns)
        # a Tensor Engine at half of its rate stays there unless its matmuls have columns enough
        if density * min(target.half_rate, array_ns / busy_ns) < target.window_work:
            busy_ns = max(busy_ns, array_ns / target.half_rate)
        busy_ns += late_ns
        if plan.by_pixels:
            busy_ns += array_ns / self.items * (1.0 if settings.buffers == 2 else 0.3)
        return float(start_ns + max(busy_ns, steps_ns, rounds_ns) + END_NS)

    def array(self) -> tuple[float, float]:
        """(ns of matmuls and transposes, columns of them, of those that the array could take in that time)."""
        target = self.target
        each_ns = sum(matmul_ns(target, self.geometry, columns) for columns in self.matmuls)
        passes = 1.0 if self.geometry.itemsize == 2 else target.transpose_passes_fp32
        columns_ns = max(self.parts, target.matmul_columns_min) * target.tensor_column_ns * passes
        matmuls_ns, transposes_ns = (
            self.channels * self.steps * each_ns,
            self.transposes * (columns_ns + target.matmul_ns),
        )
        columns = sum(self.matmuls) / sum(max(one, PARTITIONS) for one in self.matmuls)
        work_ns = matmuls_ns * columns + transposes_ns * self.parts / PARTITIONS
        return matmuls_ns + transposes_ns, work_ns / (matmuls_ns + transposes_ns)

    def read_ns(self) -> float:
        """Of Vector and Scalar, which share what both can do."""
        target, epilogue, geometry = self.target, self.options.epilogue, self.geometry
        banks = self.channels * self.steps * max(1, len(self.plan.spans)) / self.plan.bank_channels
        sums = self.channels * self.steps * self.sums
        own = sums * target.vector_ns + banks * target.vector_fixed_psum_ns
        blocks = self.transposes * self.parts
        half = geometry.itemsize == 2
        both = blocks * (target.vector_16bit_ns if half else target.vector_ns)
        both += self.transposes * self.parts * geometry.itemsize / BANK_BYTES * target.vector_fixed_psum_ns
        framed = 0.0
        if not self.plan.by_pixels and not self.plan.has_own_columns:
            framed = self.items * self.groups * geometry.rows.size * geometry.columns.size
            framed *= target.vector_4x_ns if half else target.vector_16bit_ns
        added = int(epilogue.bias) + int(epilogue.residual != "")
        vector_ns = framed + added * own
        if added == 0:
            both += own
        return float(max(vector_ns, (vector_ns + both) / 2))

    def moved_ns(self) -> float:
        """Of a core's DMA engines, or of HBM."""
        target, geometry, plan, settings = self.target, self.geometry, self.plan, self.plan.settings
        N, P, Q, C = geometry.planes.out, geometry.rows.out, geometry.columns.out, geometry.C
        item, y_item, W = geometry.hbm_itemsize, self.options.epilogue.y_itemsize, geometry.columns.size
        # rows that two bands see are loaded for both
        seen = geometry.rows.size + (self.bands - 1) * (plan.rows + (plan.depth - 2) * plan.apart)
        y_run, x_run = min(P, plan.out_rows) * Q * y_item, seen * W / self.bands * item
        x_runs = N * C * float(self.bands)
        if plan.by_pixels:
            between = plan.width - settings.columns * geometry.columns.stride // geometry.columns.lhs_dilation
            x_run = settings.channels * item
            x_runs = N * seen * (W + max(0, between) * (len(plan.windows) - 1)) * C / settings.channels
            y_run = settings.channels * (settings.columns if settings.channels == C else 1) * y_item
        y_runs = N * P * Q * C * y_item / y_run * (2 if self.options.residual else 1)
        y_parts = settings.below * settings.images * (settings.beside if plan.by_pixels else 1)
        runs_ns = x_runs * target.run_ns(x_run) / self._engines(plan.size if plan.by_pixels else self.parts)
        runs_ns += y_runs * target.run_ns(y_run) / self._engines(y_parts)
        runs_ns += C * plan.size * target.run_ns(plan.matrix_size * geometry.itemsize) / self._engines(plan.size)
        bytes_ns = x_runs * target.hbm_ns(x_run, x_run) + y_runs * target.hbm_ns(y_run, y_run)
        return float(max(runs_ns, bytes_ns) / PARTS)

    def _engines(self, parts: int) -> int:
        """DMA engines that so many partitions keep busy."""
        return min(self.target.dma_engines, int(div_ceil(parts, self.target.rows_an_engine)))
