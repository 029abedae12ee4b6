"""A lower bound of the time of `activation_stationary`'s schedules: the busiest engine, plus the start-up before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.timing.target import Target
from .channel_pieces import parts_of
from .cuts import window_of
from .depthwise_blocks import MATRICES, BlockSchedule
from .geometry import Geometry, filter_rows, is_transposed, num_phases, num_taps, writes_rows
from .moving_filters import num_transposes
from .options import Options
from .patches import PatchSchedule
from .pixel_tiles import PixelSchedule, blocks_of, load_parts, window_shape
from .prices import (
    READERS,
    first_load_ns,
    last_store_ns,
    matmul_ns,
    overlapped_ns,
    transpose_ns,
    transposed_ns,
)
from .tiles import P_MAX, PARTS, cut, div_ceil, share, some_of
from .volume_rows import RowSchedule, moves_of, num_written, segment_rows
from .windows import WindowSchedule


@dataclass(frozen=True)
class Bound:
    """A lower bound of a schedule's time in ns, on the busier of two cores: its busiest engine, plus the start-up."""

    target: Target
    geometry: Geometry
    options: Options
    plan: Any

    def ns(self) -> float:
        """From the first DMA to the last; filters are loaded and transposed before x."""
        kinds: dict[type, Callable[[], tuple[float, ...]]] = {
            PixelSchedule: self.pixels,
            RowSchedule: self.rows,
            BlockSchedule: self.blocks,
            PatchSchedule: self.patches,
            WindowSchedule: self.windows,
        }
        target, busy = self.target, kinds[type(self.plan)]()
        transposed_ns = target.matmul_done_ns + target.hop_ns + target.vector_done_ns + target.hop_tensor_ns
        return 2 * first_load_ns(target) + transposed_ns + overlapped_ns(*busy) + last_store_ns(target)

    def moved_ns(self, num_bytes: float, run_bytes: float, partitions: float = P_MAX) -> float:
        """ns of the DMA engines of `partitions`, or of HBM, for num_bytes in runs of run_bytes; 0 for no bytes."""
        if num_bytes == 0:
            return 0.0
        target = self.target
        engines = min(target.dma_engines, div_ceil(int(partitions), target.rows_an_engine))
        return max(num_bytes / run_bytes * target.run_ns(run_bytes) / engines, num_bytes * target.hbm_byte_ns)

    def tensor_ns(self, matmuls: Sequence[tuple[float, float]], transposes: float, columns: float = P_MAX) -> float:
        """ns of the Tensor Engine for matmuls, (count, columns) each, and for transposes of `columns` partitions."""
        return transposes * transpose_ns(self.target, self.geometry, columns) + sum(
            count * matmul_ns(self.target, self.geometry, one) for count, one in matmuls
        )

    # ---------------------------------------------------------------------------------------- patches

    def patches(self) -> tuple[float, ...]:
        """ns of the Tensor Engine and of evacuation, which wait for the first filters and x, of DMA, and of triggers of
        DMA transposes, which one queue issues."""
        plan, geometry, target, item = self.plan, self.geometry, self.target, self.geometry.hbm_itemsize
        S, y_item, first = geometry.columns.taps, self.options.epilogue.y_itemsize, plan.items[0]
        taps, rows, wide = first.r[1] * S, first.n[1] * first.i[1], plan.side * S
        run = taps * (geometry.K if first.r[1] == filter_rows(geometry) else 1)
        filters_ns = self.moved_ns(geometry.C * geometry.K * taps * item, run * item)
        widths = [kn * rn * S for (_, kn), (_, rn) in plan.banks(geometry, first)]
        array_ns = self.tensor_ns([(float(plan.side * len(plan.k_tiles)), float(width)) for width in widths], 0)
        run = geometry.C if is_transposed(geometry) else first.i[1] * geometry.columns.size
        x_ns = self.moved_ns(geometry.C * rows * geometry.columns.size * item, run * item)
        parts, run = rows * plan.settings.across, wide * y_item * (1 if writes_rows(geometry) else geometry.K)
        y_ns = self.moved_ns(parts * geometry.K * first.r[1] * wide * y_item, run, parts)
        read_ns = plan.side * (sum(widths) * target.vector_ns + len(widths) * target.vector_fixed_psum_ns) / READERS
        tiles, first_ns = max(1, share(len(plan.items), PARTS, 0)[1]), filters_ns + x_ns + y_ns
        triggers_ns = tiles * len(plan.k_tiles) * target.hwdge_again_ns if is_transposed(geometry) else 0.0
        sums_ns = first_ns + tiles * array_ns, first_ns + tiles * read_ns
        return *sums_ns, filters_ns + tiles * (x_ns + y_ns) + array_ns, filters_ns + triggers_ns + array_ns

    # ---------------------------------------------------------------------------------------- windows

    def windows(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for the first windows, of DMA, and of evacuation by Vector and Scalar;
        filters are loaded and transposed first."""
        plan, geometry, target, item = self.plan, self.geometry, self.target, self.geometry.hbm_itemsize
        k_tiles, kn, y_item = len(plan.tiles), plan.batches[0][1], self.options.epilogue.y_itemsize
        raw = div_ceil(kn, P_MAX) * k_tiles if plan.way != "copy" else 0
        run, pixels = geometry.columns.taps * geometry.C, geometry.planes.out * geometry.rows.out * geometry.columns.out
        blocks = max(1, share(len(plan.items), PARTS, 0)[1])
        each = pixels * len(plan.batches) / len(plan.items)
        x_ns = self.moved_ns(each * filter_rows(geometry) * run * item, run * item, each)
        y_ns = self.moved_ns(each * kn * y_item, kn * y_item, each)
        filters_ns = kn * geometry.C * num_taps(geometry) * item * target.hbm_byte_ns
        matmuls = [(float(k_tiles), float(columns)) for _, columns in cut(kn, plan.most_k)]
        array_ns = blocks * self.tensor_ns(matmuls, k_tiles, each) + self.tensor_ns([], raw)
        copied = blocks * k_tiles * each + raw * P_MAX
        read_ns = (blocks * kn * target.vector_ns + copied * target.copy_ns(item)) / READERS
        return x_ns + array_ns, read_ns, filters_ns + blocks * (x_ns + y_ns)

    # ---------------------------------------------------------------------------------------- y as NHWC

    def pixels(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for the first block's x, of DMA, of evacuation by Vector and Scalar."""
        plan, out_tile, most = self.plan, self.plan.items[0].out_tile, (0.0, 0.0, 0.0)
        start_ns = self.window_ns(out_tile) / len(blocks_of(plan.sizes, out_tile)) / len(plan.k_tiles)
        start_ns += self.filters_ns(plan.batches[0][1])
        for half in range(PARTS):
            kinds, tiles, batch = Counter[Any](), dict[Any, Any](), -1
            for item in some_of(plan.items, share(len(plan.items), PARTS, half)):
                tile = item.out_tile
                kind = item.batch != batch, plan.batches[item.batch][1], tile.zn, tile.pn, tile.qn
                kinds[kind], tiles[kind], batch = kinds[kind] + 1, tile, item.batch
            every = [(self.out_tile_ns(kind[0], kind[1], tiles[kind]), times) for kind, times in kinds.items()]
            array_ns, moved_ns, read_ns = (sum(times * one[engine] for one, times in every) for engine in range(3))
            most = max(most, (start_ns + array_ns, moved_ns, read_ns), key=max)
        return most

    def out_tile_ns(self, fresh: bool, kn: int, out_tile: Any) -> tuple[float, float, float]:
        """(ns of the Tensor Engine, of DMA, of evacuation by Vector and Scalar) of an output tile; fresh: includes the
        filters of its output channels."""
        target, geometry, plan, source = self.target, self.geometry, self.plan, self.plan.source
        tiles, taps = len(blocks_of(plan.sizes, out_tile)) * plan.sizes.side, float(source.taps)
        item, parts = geometry.hbm_itemsize, cut(kn * source.fold, plan.most_k)
        for axis, apart in ((source.rows, plan.sizes.apart), (source.columns, plan.sizes.side)):
            # taps that see only zeros between elements of x are left out
            taps /= axis.lhs_dilation if apart % num_phases(axis) == 0 else 1
        read_ns = tiles * (kn * source.fold * target.vector_ns + len(parts) * target.vector_fixed_psum_ns) / READERS
        run_bytes = kn * item * (plan.sizes.side if kn == geometry.K else 1)
        num_bytes = out_tile.zn * out_tile.pn * out_tile.qn * source.fold * kn * item
        moved_ns = self.window_ns(out_tile) + self.moved_ns(num_bytes, run_bytes)
        transposes = num_transposes(kn, plan) if fresh and plan.way == "array" else 0
        if fresh and plan.packs:
            transposes = source.taps * source.fold * div_ceil(kn, P_MAX)
        matmuls = [(tiles * taps * len(plan.k_tiles), columns) for _, columns in parts]
        return self.tensor_ns(matmuls, transposes), moved_ns + (self.filters_ns(kn) if fresh else 0.0), read_ns

    def filters_ns(self, kn: int) -> float:
        """ns of DMA, or of HBM, for the filters of `kn` output channels."""
        num_bytes = kn * self.geometry.C * len(self.plan.places[0]) * self.geometry.hbm_itemsize
        return float(num_bytes * self.target.hbm_byte_ns)

    def window_ns(self, out_tile: Any) -> float:
        """ns of DMA, or of HBM, for the window of an output tile; separate DMA engines make its shifted copies."""
        target, geometry, source = self.target, self.geometry, self.plan.source
        dn, hn, wn = window_shape(source, out_tile)
        columns = min(wn, source.columns.size)
        elements = planes_seen(geometry, out_tile.zn) * min(hn * source.step, source.rows.size) * columns
        num_bytes = elements * geometry.C * geometry.hbm_itemsize
        copied = min(target.rows_an_engine, source.copies * geometry.C) * dn * hn * wn * geometry.itemsize
        copied_ns = copied * target.byte_ns if source.copies > source.step else 0.0
        if is_transposed(geometry):
            loads = source.step * len(load_parts(geometry, self.plan, out_tile, False))
            each, k_tiles = div_ceil(geometry.C, len(self.plan.k_tiles)), len(self.plan.k_tiles)
            load_ns = transposed_ns(target, each, elements / loads, columns, geometry.hbm_itemsize)
            return float(loads * k_tiles * load_ns + copied_ns)
        run = columns if geometry.x_strides[3] == 1 else 1
        return max(copied_ns, self.moved_ns(num_bytes, run * geometry.hbm_itemsize, source.step * geometry.C))

    # ---------------------------------------------------------------------------------------- y of volumes as NCDHW

    def rows(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for filters and for an output tile's first rows of x, and of DMA, which
        the last sums follow."""
        geometry, plan, rows = self.geometry, self.plan, self.geometry.rows
        array_ns = moved_ns = waits_ns = 0.0
        volume = geometry.planes.out // geometry.planes.images
        parts = sum(parts_of(k_tile, len(k_tile)) for k_tile in plan.k_tiles)
        kinds = [(item.z0 % volume, item.zn, item.pn, item.qn) for item in plan.items]
        items, counts = dict(zip(kinds, plan.items, strict=True)), Counter(kinds)
        for kind, item in items.items():
            steps, count, step_ns = segment_rows(plan, item), counts[kind], self.step_ns(item)
            array_ns += count * steps * step_ns
            run_bytes = window_of(geometry.columns, item.qn) * geometry.hbm_itemsize
            runs = planes_seen(geometry, item.zn) * min(plan.segments, item.pn)
            each_ns = count * self.moved_ns(runs * parts * run_bytes, run_bytes)
            waits_ns += max(1, rows.taps - rows.stride) * each_ns
            y_run = item.qn * self.options.epilogue.y_itemsize
            tensors = num_written(self.options) + self.options.residual
            moved_ns += each_ns * (rows.stride * (steps - 1) + rows.taps)
            moved_ns += count * tensors * self.moved_ns(item.zn * item.pn * geometry.K * y_run, y_run)
        cores = min(PARTS, len(plan.items))
        filters = sum(len(one) for one in plan.places) * div_ceil(geometry.K, P_MAX)
        return self.tensor_ns([], filters) + (waits_ns + array_ns) / cores, moved_ns / cores + step_ns

    def step_ns(self, item: Any) -> float:
        """ns of the Tensor Engine for a step of an output tile."""
        geometry, plan = self.geometry, self.plan
        first, rest = moves_of(geometry, plan, item)
        tiles, products = div_ceil(item.qn, plan.width), sum(len(one) for one in plan.products)
        matmuls = [(tiles, move.count * geometry.K) for move in first]
        matmuls += [(tiles * (products - 1), move.count * geometry.K) for move in rest]
        if self.options.residual:
            matmuls.append((tiles * plan.blocks, P_MAX))
        return self.tensor_ns(matmuls, tiles * plan.blocks * num_written(self.options))

    # ---------------------------------------------------------------------------------------- depthwise problems

    def blocks(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for x or a round of matrices, of evacuation by Vector and Scalar, and of
        DMA or the triggers of matrices; each core has half of the channels."""
        target, geometry, plan, settings = self.target, self.geometry, self.plan, self.plan.settings
        N, P, Q, C, W = geometry.planes.out, geometry.rows.out, geometry.columns.out, geometry.C, geometry.columns.size
        item, channels, y_item = geometry.hbm_itemsize, settings.channels, self.options.epilogue.y_itemsize
        out_tiles = div_ceil(div_ceil(P, plan.out_rows), settings.below)
        together = min(len(plan.windows), settings.beside) if plan.by_pixels else len(plan.windows)
        # K tiles of a core, steps of each
        tiles = C / PARTS / channels
        steps = out_tiles * div_ceil(N, settings.images) * div_ceil(len(plan.windows), together)
        # rows that two output tiles see are loaded for both
        seen = geometry.rows.size + (out_tiles - 1) * (plan.rows + (plan.depth - 2) * plan.apart)
        x_bytes, parts, transposes = N * seen * W * C * item / PARTS, plan.size, 0.0
        if plan.by_pixels:
            matmuls, columns, sums = plan.depth, plan.bank[0] * plan.bank[1], plan.out_rows * settings.columns
            # columns that two windows see are loaded for both
            between = max(0, plan.width - settings.columns * geometry.columns.stride // geometry.columns.lhs_dilation)
            x_bytes *= 1 + between * (len(plan.windows) - 1) / W
            x_run, y_run = channels * item, channels * (settings.columns if channels == C else 1)
        else:
            products = [one.columns[1] for span in plan.spans for one in span.products]
            matmuls, columns, sums = len(products), plan.out_rows * sum(products) / len(products), plan.out_rows * Q
            images = min(settings.images, P_MAX // channels)
            parts, groups = images * channels, div_ceil(settings.images, images)
            transposes = tiles * steps * together * (settings.below + plan.depth - 1) * groups
            x_run, y_run = seen * W / out_tiles * item, min(P, plan.out_rows) * Q
        array_ns = self.tensor_ns([(tiles * channels * steps * matmuls, columns)], transposes, parts)
        y_parts = settings.below * settings.images * settings.beside
        moved_ns = self.moved_ns(x_bytes, x_run, parts)
        moved_ns += self.moved_ns(N * P * Q * C * y_item / PARTS, y_run * y_item, y_parts)
        # the matrices of a round: a DMA for each place of a block, after the last matmuls that read their buffer
        rounds = max(1.0, tiles) / settings.together
        triggers_ns = plan.size * (target.static_issue_ns + target.hop_dma_ns)
        run_bytes = plan.matrix_size * geometry.itemsize
        matrices_ns = self.moved_ns(run_bytes * plan.size * channels * settings.together, run_bytes, plan.size)
        # of the first round, and of those that wait for a buffer
        waits = 1.0 + max(0.0, rounds - MATRICES)
        array_ns += max(waits * (triggers_ns + matrices_ns), moved_ns / max(1.0, tiles * steps))
        read_ns = tiles * channels * steps * sums * target.vector_ns / READERS
        return array_ns, read_ns, max(moved_ns + rounds * matrices_ns, rounds * triggers_ns)


def planes_seen(geometry: Geometry, count: float) -> float:
    """The most planes of x that so many neighbouring planes of outputs read; equally many for images."""
    planes = geometry.planes
    seen = ((count - 1) * planes.stride + (planes.taps - 1) * planes.dilation) / planes.lhs_dilation + 1
    return float(min(planes.size / planes.images, seen))
