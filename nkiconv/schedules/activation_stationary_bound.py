"""A lower bound of the time of `activation_stationary`'s schedules: the busiest engine, plus the start-up before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.timing.target import Target
from .channel_pieces import parts_of
from .cuts import window_of
from .depthwise_blocks import BlockSchedule
from .frames import is_transposed
from .geometry import Geometry, filter_rows, num_phases, writes_rows
from .moving_filters import num_transposes
from .options import Options
from .patches import PatchSchedule
from .pixel_tiles import PixelSchedule, blocks_of, window_shape
from .prices import (
    first_load_ns,
    last_store_ns,
    matmul_ns,
    overlapped_ns,
    planes_seen,
    prologue_ns,
    transpose_ns,
    transposed_ns,
)
from .tiles import P_MAX, PARTS, cut, div_ceil, share
from .volume_rows import RowSchedule, moves_of, segment_rows


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
        """ns of the Tensor Engine, of DMA and its triggers, of evacuation by Vector and Scalar; engines wait for the
        first filters and x, the last store for them."""
        plan, geometry, target, item = self.plan, self.geometry, self.target, self.geometry.hbm_itemsize
        S, y_item, rows_out = geometry.columns.taps, self.options.epilogue.y_itemsize, writes_rows(geometry)
        Q, first = geometry.columns.size, plan.items[0]
        run = S * first.r[1] * (geometry.K if first.r[1] == filter_rows(geometry) else 1)
        filters_ns = self.moved_ns(geometry.C * geometry.K * first.r[1] * S * item, run * item)
        _, count = share(len(plan.items), PARTS, 0)
        tiles = max(1, count)
        widths = [kn * rn * S for (_, kn), (_, rn) in plan.banks(geometry, first)]
        array_ns = self.tensor_ns([(float(plan.side * len(plan.k_tiles)), float(width)) for width in widths], 0)
        rows, wide = first.n[1] * first.i[1], plan.side * S
        x_run = geometry.C if is_transposed(geometry) else first.i[1] * Q
        x_ns = self.moved_ns(geometry.C * rows * Q * item, x_run * item)
        parts, run = rows * plan.settings.across, wide * y_item * (1 if rows_out else geometry.K)
        y_ns = self.moved_ns(parts * geometry.K * first.r[1] * wide * y_item, run, parts)
        read_ns = plan.side * (sum(widths) * target.vector_ns + len(widths) * target.vector_fixed_psum_ns) / 2
        first_ns, tile_ns = filters_ns + x_ns, max(array_ns, read_ns)
        array_ns, read_ns = (first_ns + tiles * ns + y_ns for ns in (array_ns, read_ns))
        triggers_ns = tiles * len(plan.k_tiles) * target.hwdge_issue_ns if is_transposed(geometry) else 0.0
        return array_ns, filters_ns + tiles * (x_ns + y_ns) + tile_ns, triggers_ns + tile_ns + y_ns, read_ns

    # ---------------------------------------------------------------------------------------- y as NHWC

    def pixels(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for the first block's x, of DMA, of evacuation by Vector and Scalar."""
        plan, out_tile, most = self.plan, self.plan.items[0].out_tile, (0.0, 0.0, 0.0)
        block, rows = blocks_of(plan.sizes, out_tile)[0], plan.source.rows
        first = block.zn * window_of(rows, min(out_tile.pn, block.pn * block.apart)) / window_of(rows, out_tile.pn)
        start_ns = self.window_ns(out_tile) * first / (out_tile.zn * len(plan.k_tiles))
        known: dict[Any, tuple[float, float, float]] = {}
        for half in range(PARTS):
            at, count = share(len(plan.items), PARTS, half)
            array_ns = start_ns + self.filters_ns(plan.batches[plan.items[at].batch][1])
            moved_ns, read_ns, batch = 0.0, 0.0, -1
            for item in plan.items[at : at + count]:
                tile, kn = item.out_tile, plan.batches[item.batch][1]
                key = item.batch != batch, kn, tile.zn, tile.pn, tile.qn
                own = known.get(key) or known.setdefault(key, self.out_tile_ns(*key[:2], tile))
                array_ns, moved_ns, read_ns = array_ns + own[0], moved_ns + own[1], read_ns + own[2]
                batch = item.batch
            most = max(most, (array_ns, moved_ns, read_ns), key=max)
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
        matmuls, transposes = [(tiles * taps * len(plan.k_tiles), columns) for _, columns in parts], 0
        read_ns = tiles * (kn * source.fold * target.vector_ns + len(parts) * target.vector_fixed_psum_ns) / 2
        run_bytes = kn * item * (plan.sizes.side if kn == geometry.K else 1)
        moved_ns = self.window_ns(out_tile)
        moved_ns += self.moved_ns(out_tile.zn * out_tile.pn * out_tile.qn * source.fold * kn * item, run_bytes)
        if fresh:
            transposes = num_transposes(kn, plan) if plan.way == "array" else 0
            moved_ns += self.filters_ns(kn)
        dn, hn, wn = window_shape(source, out_tile)
        k_tiles, images = len(plan.k_tiles), dn / geometry.image_planes
        elements = k_tiles * source.slots * dn * hn * wn
        taken_ns = prologue_ns(target, self.options.prologue, elements, k_tiles * source.slots, images)
        return self.tensor_ns(matmuls, transposes), moved_ns, max(read_ns, taken_ns, (read_ns + taken_ns) / 2)

    def filters_ns(self, kn: int) -> float:
        """ns of DMA, or of HBM, for the filters of `kn` output channels."""
        num_bytes = kn * self.geometry.C * len(self.plan.places[0]) * self.geometry.hbm_itemsize
        return float(num_bytes * self.target.hbm_byte_ns)

    def window_ns(self, out_tile: Any) -> float:
        """ns of DMA, or of HBM, for the window of an output tile."""
        target, geometry, source = self.target, self.geometry, self.plan.source
        _, hn, wn = window_shape(source, out_tile)
        columns = min(wn, source.columns.size)
        elements = planes_seen(geometry, out_tile.zn) * min(hn * source.slots, source.rows.size) * columns
        num_bytes = elements * geometry.C * geometry.hbm_itemsize
        if is_transposed(geometry):
            return transposed_ns(target, num_bytes, len(self.plan.k_tiles))
        run = columns if geometry.x_strides[3] == 1 else 1
        return self.moved_ns(num_bytes, run * geometry.hbm_itemsize, geometry.C)

    # ---------------------------------------------------------------------------------------- y of volumes as NCDHW

    def rows(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for filters and for an output tile's first rows of x, and of DMA."""
        geometry, plan, rows = self.geometry, self.plan, self.geometry.rows
        array_ns = moved_ns = waits_ns = 0.0
        volume = geometry.planes.out // geometry.planes.images
        parts = sum(parts_of(k_tile, len(k_tile)) for k_tile in plan.k_tiles)
        kinds = [(item.z0 % volume, item.zn, item.pn, item.qn) for item in plan.items]
        items, counts = dict(zip(kinds, plan.items, strict=True)), Counter(kinds)
        for kind, item in items.items():
            steps, count = segment_rows(plan, item), counts[kind]
            array_ns += count * steps * self.step_ns(item)
            run_bytes = window_of(geometry.columns, item.qn) * geometry.hbm_itemsize
            runs = planes_seen(geometry, item.zn) * min(plan.segments, item.pn)
            each_ns = count * self.moved_ns(runs * parts * run_bytes, run_bytes)
            waits_ns += max(1, rows.taps - rows.stride) * each_ns
            y_run = item.qn * self.options.epilogue.y_itemsize
            moved_ns += each_ns * (rows.stride * (steps - 1) + rows.taps)
            moved_ns += count * self.moved_ns(item.zn * item.pn * geometry.K * y_run, y_run)
        cores = min(PARTS, len(plan.items))
        filters = sum(len(one) for one in plan.places) * div_ceil(geometry.K, P_MAX)
        return self.tensor_ns([], filters) + (waits_ns + array_ns) / cores, moved_ns / cores

    def step_ns(self, item: Any) -> float:
        """ns of the Tensor Engine for a step of an output tile."""
        geometry, plan = self.geometry, self.plan
        first, rest = moves_of(geometry, plan, item)
        tiles, products = div_ceil(item.qn, plan.width), sum(len(one) for one in plan.products)
        matmuls = [(tiles, move.count * geometry.K) for move in first]
        matmuls += [(tiles * (products - 1), move.count * geometry.K) for move in rest]
        return self.tensor_ns(matmuls, tiles * plan.blocks)

    # ---------------------------------------------------------------------------------------- depthwise problems

    def blocks(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for x or a round of matrices, of evacuation by Vector and Scalar, and of
        DMA or the triggers of matrices; each core has half of the channels."""
        target, geometry, plan, settings = self.target, self.geometry, self.plan, self.plan.settings
        N, P, Q, C, W = geometry.planes.out, geometry.rows.out, geometry.columns.out, geometry.C, geometry.columns.size
        item, channels, epilogue = geometry.hbm_itemsize, settings.channels, self.options.epilogue
        out_tiles = div_ceil(div_ceil(P, plan.out_rows), settings.below)
        together = min(len(plan.windows), settings.beside) if plan.by_pixels else len(plan.windows)
        # items of a K tile, their steps, K tiles of a core
        items, tiles = out_tiles * div_ceil(N, settings.images), C / PARTS / channels
        steps = items * div_ceil(len(plan.windows), together)
        matmuls, columns, sums = plan.depth, plan.bank[0] * plan.bank[1], plan.out_rows * settings.columns
        if not plan.by_pixels:
            products = [one.columns[1] for span in plan.spans for one in span.products]
            matmuls, columns, sums = len(products), plan.out_rows * sum(products) / len(products), plan.out_rows * Q
        own_ns = tiles * channels * steps * sums * target.vector_ns
        added = int(epilogue.bias) + int(epilogue.residual != "")
        vector_ns, both_ns, transposes = added * own_ns, own_ns if added == 0 else 0.0, 0.0
        # rows that two output tiles see are loaded for both
        seen = geometry.rows.size + (out_tiles - 1) * (plan.rows + (plan.depth - 2) * plan.apart)
        x_bytes, parts = N * seen * W * C * item / PARTS, plan.size
        if plan.by_pixels:
            between = max(0, plan.width - settings.columns * geometry.columns.stride // geometry.columns.lhs_dilation)
            x_bytes *= 1 + between * (len(plan.windows) - 1) / W
            x_run, y_run = channels * item, channels * (settings.columns if channels == C else 1)
        else:
            images = min(settings.images, P_MAX // channels)
            parts, groups = images * channels, div_ceil(settings.images, images)
            transposes = tiles * steps * together * (settings.below + plan.depth - 1) * groups
            x_run, y_run = seen * W / out_tiles * item, min(P, plan.out_rows) * Q
        array_ns = self.tensor_ns([(tiles * channels * steps * matmuls, columns)], transposes, parts)
        moved_ns, y_item = self.moved_ns(x_bytes, x_run, parts), epilogue.y_itemsize
        y_bytes = N * P * Q * C * y_item / PARTS * (2 if self.options.residual else 1)
        moved_ns += self.moved_ns(y_bytes, y_run * y_item, settings.below * settings.images * settings.beside)
        # the matrices of a round: a DMA for each place of a block, after the last matmuls that read their buffer
        rounds = max(1.0, tiles) / settings.together
        triggers_ns = plan.size * (target.static_issue_ns + target.hop_dma_ns)
        run_bytes = plan.matrix_size * geometry.itemsize
        matrices_ns = self.moved_ns(run_bytes * plan.size * channels * settings.together, run_bytes, plan.size)
        array_ns += max(triggers_ns + matrices_ns, moved_ns / max(1.0, tiles * steps))
        read_ns = max(vector_ns, (vector_ns + both_ns) / 2)
        return array_ns, read_ns, max(moved_ns + rounds * matrices_ns, rounds * triggers_ns)
