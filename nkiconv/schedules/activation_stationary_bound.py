"""A lower bound of the time of `activation_stationary`'s schedules: the busiest engine, plus the start-up before it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..simulator.timing.target import Target
from .channel_pieces import parts_of
from .cuts import Outputs, axis_elements, window_of
from .depthwise_blocks import BlockSchedule
from .geometry import Geometry, filter_rows, is_transposed, num_phases, num_taps
from .moving_filters import num_transposes
from .options import Options
from .patches import PatchSchedule
from .pixel_tiles import PixelSchedule, adds_bias_by_ones, blocks_of, window_shape
from .prices import READERS, Prices, overlapped_ns
from .tiles import P_MAX, PARTS, cut, div_ceil, share, some_of
from .volume_rows import RowSchedule, moves_of, num_written, segment_rows
from .windows import WindowSchedule


class Bound(Prices):
    """A lower bound of a schedule's time in ns, on the busier of two cores: its busiest engine, plus the start-up."""

    def __init__(self, target: Target, geometry: Geometry, options: Options, plan: Any) -> None:
        super().__init__(target, plan.points if isinstance(plan, PatchSchedule) else geometry, options)
        self.plan = plan

    def ns(self) -> float:
        """From the first DMA to the last; x is loaded beside filters, which are transposed."""
        kinds = {
            PixelSchedule: self.pixels,
            RowSchedule: self.rows,
            BlockSchedule: self.blocks,
            PatchSchedule: self.pixels,
            WindowSchedule: self.windows,
        }
        target, busy = self.target, kinds[type(self.plan)]()
        transposed_ns = target.matmul_done_ns + target.hop_ns + target.vector_done_ns + target.hop_tensor_ns
        return target.round_trip_ns + transposed_ns + overlapped_ns(*busy)

    def windows(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for the first windows, of evacuation, and of DMA; filters come first."""
        plan, geometry, kn, k_tiles = self.plan, self.geometry, self.plan.batches[0][1], len(self.plan.k_tiles)
        blocks, run = div_ceil(len(plan.items), PARTS), geometry.columns.taps * geometry.C
        each = geometry.planes.out * geometry.rows.out * geometry.columns.out * len(plan.batches) / len(plan.items)
        x_ns = self.moved_ns(each * filter_rows(geometry) * run, run, each)
        y_ns = self.moved_ns(each * kn, kn, each, self.options.epilogue.y_itemsize)
        filters_ns = self.moved_ns(kn * geometry.C * num_taps(geometry), kn)
        matmuls_ns = k_tiles * sum(self.matmul_ns(columns) for _, columns in cut(kn, plan.most_k))
        array_ns = blocks * (matmuls_ns + k_tiles * self.transpose_ns(each))
        read_ns = blocks * (kn + k_tiles * each) * self.target.vector_ns / READERS
        return x_ns + array_ns, read_ns, filters_ns + blocks * (x_ns + y_ns)

    def pixels(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for the first block's x, of DMA, of evacuation by Vector and Scalar."""
        plan, geometry, source, sizes = self.plan, self.geometry, self.plan.source, self.plan.sizes
        mine = some_of(plan.items, share(len(plan.items), PARTS, PARTS - 1))
        first, taps = mine[0].out_tile, float(sum(one.taps for one in plan.sources))
        for axis, apart in ((source.rows, sizes.apart), (source.columns, sizes.side)):
            # taps that see only zeros between elements of x are left out
            taps /= axis.lhs_dilation if apart % num_phases(axis) == 0 else 1
        array_ns = self.window_ns(first) / len(blocks_of(sizes, first)) / len(plan.k_tiles)
        moved_ns = read_ns = sums_ns = streamed_ns = 0.0
        for batch in {one.batch for one in mine}:
            kn = plan.batches[batch][1]
            transposes = num_transposes(kn, plan) if plan.way == "array" else 0
            if plan.packs:
                transposes = int(taps) * source.fold * div_ceil(kn, P_MAX)
            array_ns += transposes * self.transpose_ns()
            own_ns = self.moved_ns(kn * geometry.C * num_taps(geometry), kn)
            transposes = len(plan.k_tiles) if plan.way == "dma" else 0
            moved_ns += max(own_ns, transposes * self.target.hwdge_again_ns)
        array_ns += moved_ns
        by_ones = adds_bias_by_ones(geometry, self.options, plan)
        apart, taps = self.options.epilogue.bias and not by_ones, taps + by_ones
        kinds = Counter((plan.batches[one.batch][1], one.out_tile.zn, one.out_tile.pn, one.out_tile.qn) for one in mine)
        for (kn, *extents), times in kinds.items():
            tile = Outputs(*(size for extent in extents for size in (0, extent)))
            tiles, parts = times * len(blocks_of(sizes, tile)) * sizes.side, cut(kn * source.fold, plan.most_k)
            sums_ns += tiles * taps * sum(self.matmul_ns(columns) for _, columns in parts)
            streamed_ns += tiles * taps * kn * source.fold * self.column_ns
            if apart or self.options.residual:
                read_ns += tiles * self.read_ns(1, kn * source.fold, apart)
            else:
                read_ns += tiles * kn * source.fold * self.target.vector_ns / READERS
            y = tile.zn * tile.pn * tile.qn * source.fold * kn
            y_ns = self.moved_ns(times * y, plan.run(kn))
            moved_ns += times * self.window_ns(tile) + (1 + self.options.residual) * y_ns
        if streamed_ns * self.target.half_rate < self.target.window_work * sums_ns:
            sums_ns /= self.target.half_rate  # matmuls of few columns never end the throttle's half rate
        return array_ns + sums_ns, moved_ns, read_ns

    def window_ns(self, out_tile: Any) -> float:
        """ns of DMA, or of HBM, for the window of an output tile, with its copies."""
        geometry, found = self.geometry, 0.0
        for source, (own,) in zip(self.plan.sources, self.plan.k_tiles, strict=True):
            _, hn, wn = window_shape(source, out_tile)
            columns, rows = min(wn, source.columns.size), min(hn * source.step, source.rows.size)
            elements = axis_elements(geometry.planes, out_tile.zn) * rows * columns
            copies = source.copies / source.step
            if is_transposed(geometry):
                found += copies * self.transposed_ns(own.count, elements, columns)
            else:
                run = columns if geometry.x_strides[3] == 1 else 1
                run *= rows if run == wn == source.columns.size else 1  # whole rows without zeros between
                found += self.moved_ns(elements * copies * own.count, run, source.copies * own.count)
        return found

    def rows(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for filters and for an output tile's first rows of x, and of DMA, which
        the last sums follow."""
        geometry, plan, rows = self.geometry, self.plan, self.geometry.rows
        y_item = self.options.epilogue.y_itemsize
        parts = sum(parts_of(k_tile, len(k_tile)) for k_tile in plan.k_tiles)
        filters = sum(len(one) for one in plan.places) * div_ceil(geometry.K, P_MAX)
        array_ns, moved_ns, tensors = 0.0, 0.0, num_written(self.options) + self.options.residual
        kinds = [(item.zn, item.pn, item.qn) for item in plan.items]
        items = dict(zip(kinds, plan.items, strict=True))
        for kind, count in Counter(kinds).items():
            item = items[kind]
            steps, step_ns, run = segment_rows(plan, item), self.step_ns(item), window_of(geometry.columns, item.qn)
            runs = axis_elements(geometry.planes, item.zn) * min(plan.segments, item.pn) * parts
            each_ns = self.moved_ns(runs * run, run)
            array_ns += count * (steps * step_ns + max(1, rows.taps - rows.stride) * each_ns)
            y_ns = tensors * self.moved_ns(item.zn * item.pn * geometry.K * item.qn, item.qn, itemsize=y_item)
            moved_ns += count * (each_ns * (rows.stride * (steps - 1) + rows.taps) + y_ns)
        cores = min(PARTS, len(plan.items))
        return filters * self.transpose_ns() + array_ns / cores, moved_ns / cores + step_ns

    def step_ns(self, item: Any) -> float:
        """ns of the Tensor Engine for a step of an output tile."""
        geometry, plan = self.geometry, self.plan
        first, rest = moves_of(geometry.planes, plan.each, item.z0, item.zn)
        products = sum(len(one) for one in plan.products) - 1
        sums_ns = sum(self.matmul_ns(move.count * geometry.K) for move in first)
        sums_ns += products * sum(self.matmul_ns(move.count * geometry.K) for move in rest)
        others_ns = plan.blocks * (num_written(self.options) + self.options.residual) * self.transpose_ns()
        return float(div_ceil(item.qn, plan.width) * (sums_ns + others_ns))

    def blocks(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for x or matrices, of evacuation by Vector and Scalar, and of DMA; each
        core has half of the channels. The Tensor Engine makes the matrices of NHWC."""
        target, geometry, plan, settings = self.target, self.geometry, self.plan, self.plan.settings
        N, P, Q, C, W = geometry.planes.out, geometry.rows.out, geometry.columns.out, geometry.C, geometry.columns.size
        channels, of_windows, of_rows, of_images = settings.channels, *map(len, plan.cuts)
        # K tiles of a core, steps of all of them; rows that two output tiles see are loaded for both
        tiles = C / PARTS / channels
        steps = tiles * of_windows * of_rows * of_images
        seen = max(1, geometry.rows.size + (of_rows - 1) * (plan.rows + (plan.depth - 2) * plan.apart))
        x, parts, transposes = N * seen * W * C / PARTS, plan.size, 0.0
        if plan.by_pixels:
            matmuls, columns, sums = plan.depth, plan.bank[1], plan.sums
            # columns that two windows see are loaded for both
            between = max(0, plan.width - settings.columns * geometry.columns.stride // geometry.columns.lhs_dilation)
            x *= 1 + between * (len(plan.windows) - 1) / W
            x_run, y_run = channels, channels * (settings.columns if channels == C else 1)
        else:
            widths = [one.columns[1] for span in plan.spans for one in span.products]
            matmuls, columns, sums = len(widths), plan.out_rows * sum(widths) / len(widths), plan.out_rows * Q
            images = min(settings.images, P_MAX // channels)
            parts, groups = images * channels, div_ceil(settings.images, images)
            transposes = steps * len(plan.windows) * (settings.below + plan.depth - 1) * groups
            x_run, y_run = seen * W / of_rows, min(P, plan.out_rows) * Q
        array_ns = channels * steps * matmuls * self.matmul_ns(columns) + transposes * self.transpose_ns(parts)
        y_parts, y_item = settings.below * settings.images * settings.beside, self.options.epilogue.y_itemsize
        x_ns, y = self.moved_ns(x, x_run, parts), N * P * Q * C / PARTS
        y_ns = (1 + self.options.residual) * self.moved_ns(y, y_run, y_parts, y_item)
        sums, apart = channels * steps * sums, self.options.epilogue.bias
        read_ns = self.read_ns(channels * steps, sums, apart)
        read_ns += transposes * parts * target.vector_ns / READERS
        rounds, size = max(1.0, tiles), plan.matrix_size
        if plan.by_pixels:
            # the core with more K tiles of an odd number
            uneven = div_ceil(plan.num_items, PARTS) * PARTS / plan.num_items if len(plan.chunks) > 1 else 1.0
            array_ns, x_ns, y_ns = uneven * array_ns, uneven * x_ns, uneven * y_ns
            lines, items = div_ceil(channels, P_MAX), max(1.0, steps)
            made_ns = size * lines * self.transpose_ns(channels / lines)
            copied_ns = size * channels * target.copy_ns(geometry.itemsize) / READERS
            # x of the first item is loaded before any matmul, y of the last stored after all
            waits_ns, array_ns = max(made_ns, copied_ns, x_ns / items) + y_ns / items, array_ns + (rounds - 1) * made_ns
            if array_ns < target.window_work * max(array_ns / target.half_rate + waits_ns, x_ns + y_ns):
                array_ns /= target.half_rate  # matmuls wait too long to end the throttle's half rate
            array_ns += waits_ns
            return array_ns, read_ns + rounds * copied_ns, x_ns + y_ns
        matrices_ns = self.moved_ns(size * plan.size * channels, size, plan.size, geometry.itemsize)
        array_ns += max(matrices_ns, (x_ns + y_ns) / max(1.0, steps))
        return array_ns, read_ns, x_ns + y_ns + rounds * matrices_ns
