"""What blocks of depthwise problems take."""

from __future__ import annotations

from typing import Any

from ....kernels.conv.activation_stationary.windows import (
    bank_columns,
    disjoint_spans,
    have_own_columns,
    pitch_of,
    pixels_among,
    window_width,
    windows_of,
)
from ....kernels.conv.transposes import is_transposed
from ....schedules.cuts import window_of
from ....schedules.tiles import BANK_BYTES, BANK_COLUMNS, PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from .common import matmul_ns

#: As timelines show them: ns until filters are there and taps in their places, before matrices are triggered, and from
#: the last sums to the last DMA; of an item from its loads to its stores, and of a step, at least.
START_NS, END_NS, ITEM_NS, STEP_NS = 2_000.0, 4_000.0, 9_000.0, 950.0
#: Share of what the slowest of the array, read-outs and DMA does not hide of the others of pixels, however many items
#: there are. Of planes, whose parts of items are there earlier, more shows of what is nearly as slow: the norm of the
#: three of this order, fitted to some seventy timed settings of nine layers. How many times as long the array takes
#: where blocks of planes are transposed no more than a step ahead, a window of several or all; share of the slowest in
#: which triggers of matrices hold nothing up.
NOT_HIDDEN, EVEN, UNBUFFERED, FREELY = 0.12, 8, (1.3, 1.03), 0.6


class BlocksPrice:
    """Times of settings for a problem, in ns of two cores, each with half of the channels."""

    def __init__(self, target: Target, geometry: Any, extras: Any, config: Any) -> None:
        self.target, self.geometry, self.extras, self.config = target, geometry, extras, config
        self.by_pixels = is_transposed(geometry)
        rows, columns = geometry.rows, geometry.columns
        self.out_rows = config.rows // rows.stride
        self.width = window_width(columns, config.columns, config.disjoint == 1)
        #: rows of x of a block, those from one to the next, and its pixels; elements of matrices of all that are below
        #: each other; windows
        seen = pixels_among(rows, window_of(rows, self.out_rows))
        self.apart = config.rows // rows.lhs_dilation
        self.rows = seen if config.disjoint == 1 else self.apart
        self.size, self.depth = self.rows * self.width, div_ceil(seen, self.rows)
        self.elements = self.depth * config.rows * window_of(columns, config.columns)
        bank = config.rows * bank_columns(columns, config.columns, config.rows)
        self.windows = div_ceil(columns.out, config.columns)
        #: windows of a step, and whether planes are copied to where there are zeros around them; of a channel, columns
        #: of each matmul and bank of a step, and sums that leave
        self.together = min(self.windows, config.beside) if self.by_pixels else 1
        self.matmuls, self.banks, self.sums = [bank] * self.depth, [bank], self.out_rows * config.columns
        self.copied = True
        if config.disjoint == 1:
            self._disjoint()
        #: what the blocks below each other are cut into
        self.bands = div_ceil(div_ceil(rows.out, self.out_rows), config.below)
        #: a core's channels, chunks of them, and sets of blocks of one that the array takes at once
        self.channels = geometry.C / PARTS
        self.chunks = max(1.0, self.channels / config.channels)
        self.steps = div_ceil(self.windows, self.together)
        self.tiles = self.steps * self.bands * div_ceil(geometry.planes.out, config.images)
        self._transposes()

    def _disjoint(self) -> None:
        """The same where windows are disjoint."""
        config, columns = self.config, self.geometry.columns
        windows = windows_of(columns, config.columns, True)
        spans = disjoint_spans(windows, columns.out, self.out_rows)
        self.elements = config.rows * pitch_of(spans, columns, config.columns)
        self.windows = self.together = len(windows)
        self.copied = not have_own_columns(columns, windows, self.width)
        self.matmuls = [self.out_rows * one.columns[1] for span in spans for one in span.products]
        self.banks = [self.out_rows * max(span.columns[1] for span in spans)] * len(spans)
        self.sums = self.out_rows * columns.out

    def _transposes(self) -> None:
        """Of planes: transposes of a core, columns of one, and of how many planes that come together."""
        self.transposes, self.parts, self.framed = 0.0, 0, 0.0
        if not self.by_pixels:
            channels, images = self.config.channels, self.config.images
            together = PARTITIONS // channels
            groups = self.channels / channels * div_ceil(images, together)
            self.transposes = groups * self.tiles * self.together * (self.config.below + self.depth - 1)
            self.parts = min(images, together) * channels
            self.framed = groups * self.tiles / self.steps if self.copied else 0.0

    def ns(self) -> float:
        """Of all."""
        target, config = self.target, self.config
        array_ns, read_ns, moved_ns = self.array_ns(), self.read_ns(), self.moved_ns()
        triggers_ns = self.size * target.static_issue_ns
        steps = self.chunks * self.tiles
        items = steps / (1 if self.by_pixels else self.steps)
        start_ns, stalls_ns = START_NS + triggers_ns + self._first_matrices_ns(), 0.0
        # the first item's planes share the DMAs with the second's
        start_ns = max(start_ns, self._first_tile_ns() if self.by_pixels else START_NS + moved_ns / items)
        if self.by_pixels:
            stalls_ns = array_ns / items * (1.0 if config.buffers == 2 else 0.3)
        elif config.buffers == 2:
            array_ns *= UNBUFFERED[config.disjoint]
        slowest = max(array_ns, read_ns, moved_ns)
        if self.by_pixels:
            hidden = min(1 - 1 / max(1.0, items), 1 - NOT_HIDDEN)
            busy_ns = slowest + (1 - hidden) * (array_ns + read_ns + moved_ns - slowest)
        else:
            busy_ns = sum(one**EVEN for one in (array_ns, read_ns, moved_ns)) ** (1 / EVEN)
        rounds_ns = self.chunks / config.together * triggers_ns
        busy_ns += max(0.0, rounds_ns - FREELY * slowest)
        busy_ns = max(busy_ns, rounds_ns, items * ITEM_NS / config.buffers, steps * STEP_NS)
        # an array at half of its rate stays there unless its matmuls have columns enough
        density = self.density()
        if density * array_ns < target.window_work * busy_ns or density * target.half_rate < target.window_work:
            busy_ns = max(busy_ns, array_ns / target.half_rate)
        return float(start_ns + busy_ns + stalls_ns + END_NS)

    def array_ns(self) -> float:
        """Of matmuls and transposes."""
        return self.matmuls_ns() + self.transposes_ns()

    def matmuls_ns(self) -> float:
        """Of matmuls."""
        each_ns = sum(matmul_ns(self.target, self.geometry, columns) for columns in self.matmuls)
        return float(self.channels * self.tiles * each_ns)

    def transposes_ns(self) -> float:
        """Of transposes."""
        target = self.target
        passes = 1.0 if self.geometry.itemsize == 2 else target.transpose_passes_fp32
        columns = max(self.parts, target.matmul_columns_min)
        return float(self.transposes * (columns * target.tensor_column_ns * passes + target.matmul_ns))

    def density(self) -> float:
        """Columns of matmuls and transposes, of those that the array could take in their time."""
        matmuls_ns, transposes_ns = self.matmuls_ns(), self.transposes_ns()
        columns = sum(self.matmuls) / sum(max(one, PARTITIONS) for one in self.matmuls)
        work_ns = matmuls_ns * columns + transposes_ns * self.parts / PARTITIONS
        return float(work_ns / (matmuls_ns + transposes_ns))

    def read_ns(self) -> float:
        """Of Vector and Scalar, which share what both can do."""
        target, epilogue, half = self.target, self.extras.epilogue, self.geometry.itemsize == 2
        sums = self.channels * self.tiles * self.sums
        banks = self.channels * self.tiles * sum(1 / (BANK_COLUMNS // one) for one in self.banks)
        vector_ns = sums * target.vector_ns + banks * target.vector_fixed_psum_ns
        scalar_ns = sums * target.scalar_ns + banks * target.scalar_fixed_ns
        framed = self.framed * self.geometry.rows.size * self.geometry.columns.size
        framed_ns = framed * (target.vector_4x_ns if half else target.vector_16bit_ns)
        turned, turned_ns = self.transposes * self.parts, (0.0, 0.0)
        if turned > 0:
            banks = self.transposes / (BANK_BYTES // (self.parts * self.geometry.itemsize))
            each_ns = target.vector_16bit_ns if half else target.vector_ns
            turned_ns = (
                turned * each_ns + banks * target.vector_fixed_psum_ns,
                turned * target.scalar_ns + banks * target.scalar_fixed_ns,
            )
        added = int(epilogue.bias) + int(epilogue.residual != "")
        if added > 0:
            return _shared(framed_ns + added * vector_ns, 0.0, turned_ns)
        if epilogue.activation not in ("", "relu"):
            return _shared(framed_ns, scalar_ns, turned_ns)
        return _shared(framed_ns, 0.0, (vector_ns + turned_ns[0], scalar_ns + turned_ns[1]))

    def moved_ns(self) -> float:
        """Of a core's DMA engines, or of HBM."""
        target, geometry, config = self.target, self.geometry, self.config
        N, P, Q, C = geometry.planes.out, geometry.rows.out, geometry.columns.out, geometry.C
        item, y_item, W = geometry.hbm_itemsize, self.extras.epilogue.y_itemsize, geometry.columns.size
        # rows that two bands see are loaded for both
        seen = geometry.rows.size + (self.bands - 1) * (self.rows + (self.depth - 2) * self.apart)
        y_run, x_run = min(P, self.out_rows) * Q * y_item, seen * W / self.bands * item
        x_runs = N * C * float(self.bands)
        if self.by_pixels:
            columns = geometry.columns
            between = self.width - config.columns * columns.stride // columns.lhs_dilation
            x_run = config.channels * item
            x_runs = N * seen * (W + max(0, between) * (self.windows - 1)) * C / config.channels
            y_run = config.channels * (config.columns if config.channels == C else 1) * y_item
        y_runs = N * P * Q * C * y_item / y_run * (2 if self.extras.residual else 1)
        x_parts = self.size if self.by_pixels else self.parts
        y_parts = config.below * config.images * (config.beside if self.by_pixels else 1)
        runs_ns = x_runs * target.run_ns(x_run) / self._engines(x_parts)
        runs_ns += y_runs * target.run_ns(y_run) / self._engines(y_parts)
        matrices_ns = target.run_ns(self.elements * geometry.itemsize)
        runs_ns += C * self.size * matrices_ns / self._engines(self.size)
        bytes_ns = x_runs * target.hbm_ns(x_run, x_run) + y_runs * target.hbm_ns(y_run, y_run)
        return float(max(runs_ns, bytes_ns) / PARTS)

    def _engines(self, parts: int) -> int:
        """DMA engines that so many partitions keep busy."""
        return min(self.target.dma_engines, int(div_ceil(parts, self.target.rows_an_engine)))

    def _first_matrices_ns(self) -> float:
        """Of the first round of matrices on their way."""
        target, config = self.target, self.config
        run_ns = target.run_ns(self.elements * self.geometry.itemsize)
        return float(config.together * config.channels * target.rows_an_engine * run_ns)

    def _first_tile_ns(self) -> float:
        """Of the first blocks of pixels on their way."""
        config = self.config
        pixels = PARTITIONS * config.images * (config.below + self.depth - 1) * config.beside
        return float(pixels * config.channels * self.geometry.itemsize * self.target.hbm_byte_ns)


def _shared(vector_ns: float, scalar_ns: float, both: tuple[float, float]) -> float:
    """Of two engines, each with some work of its own, and with some that takes either of them so long."""
    if min(both) <= 0:
        return max(vector_ns, scalar_ns)
    share = min(1.0, max(0.0, (scalar_ns + both[1] - vector_ns) / sum(both)))
    return max(vector_ns + share * both[0], scalar_ns + (1 - share) * both[1])
