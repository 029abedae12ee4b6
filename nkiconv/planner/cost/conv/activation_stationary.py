"""`activation_stationary` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....schedules.activation_stationary import settings_of, together_unsupported, unsupported_reason
from ....schedules.block_windows import window_width
from ....schedules.channel_pieces import parts_of
from ....schedules.cuts import window_of
from ....schedules.depthwise_blocks import BlockSchedule, DepthwiseSettings, block_bytes, blocks_misfit
from ....schedules.frames import is_transposed
from ....schedules.moving_filters import num_transposes
from ....schedules.pixel_tiles import (
    SHARDS,
    PixelSchedule,
    PixelSettings,
    blocks_of,
    make_pixels,
    outputs_apart,
    pixels_fit,
    read_pixels,
    window_shape,
)
from ....schedules.settings import declarations
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, div_ceil, fits_sbuf, share
from ....schedules.volume_rows import (
    COPIES,
    TILE_BANKS,
    RowSchedule,
    RowSettings,
    make_rows,
    moves_of,
    row_instructions,
    segment_rows,
    stored_together,
)
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import MOST_INSTRUCTIONS, Shape, config_of
from .common import Conv2dAlgorithm, matmul_ns, planes_seen, prologue_ns

#: ns from a core's start to its first matmul, and from its last one to the end of the last store. These, EXPOSED,
#: FREELY and STORE_NS are calibrated on the golden table's estimates; the clock ranks what they order.
START_NS, END_NS = 3400.0, 2600.0
#: Share of the other engines' time that the busiest does not hide; of the time that triggers of matrices leave.
EXPOSED, FREELY = 0.02, 0.6
#: Pixels of a partition that are tried, at most, and bytes of their results; rows of y that are folded.
SIDE_MAX, RESULT_BYTES, FOLDS = 32, 32_768, (1, 2, 4, 8)
#: Instructions of a core from which on steps that are alike are a loop on the device, whose stores wait for each other
#: so many ns; rotations of the circular buffer that its body may have.
LOOP_FROM, STORE_NS, LOOPS = 8_000, 3_000.0, (2, 1)
#: Of depthwise problems: windows of a row of y, heights of blocks, channels of a K tile, tiles of blocks in rotation,
#: and bytes a partition of the matrices of a round that are tried; sizes of blocks whose other settings are tried.
WINDOWS, HEIGHTS, CHANNELS, BUFFERS, MATRICES_BYTES, SIZES = 10, 4, (8, 16, 32, 64, 128), (4, 2), 32_768, 12
#: Candidates that a search starts from, and a wide one.
STARTS = 2, 8


class ActivationStationary(Conv2dAlgorithm):
    """Pixels as stationaries, filters as moving operands."""

    algorithm = "activation_stationary"
    order = ("fold", "copies")

    def complete(self, shape: Shape, config: Config) -> Config:
        def completed() -> Config:
            geometry, given = plain_of(self.algorithm, shape.geometry, shape.options), dict(config or ())
            if unsupported_reason(geometry, shape.options, config):
                return config
            if len(given) == len(declarations(settings_of(geometry))):
                return settings_of(geometry)(**given).pairs
            return next(candidates(shape, geometry, given), config)

        return shape.once((f"{self.algorithm}, least", config), completed)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return Bound(shape.target, geometry, shape.options, plan).ns()

    def is_short(self, shape: Shape, config: Config) -> bool:
        plan, geometry = self.plan(shape, config), shape.geometry
        if not isinstance(plan, RowSchedule):
            return True
        count = row_instructions(geometry, plan, shape.options, shape.cores)
        return count * int(geometry.times) <= MOST_INSTRUCTIONS

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if unsupported_reason(geometry, shape.options, None):
            return [None]
        kinds: dict[Any, tuple[str, Any]] = {PixelSettings: ("shard", SHARDS), DepthwiseSettings: ("disjoint", (0, 1))}
        name, values = kinds.get(settings_of(geometry), ("copies", (1, COPIES)))
        each = (candidates(shape, geometry, {name: one}) for one in values)
        return [one for found in each for one in itertools.islice(found, STARTS[wide])] or [None]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now, geometry = dict(self.complete(shape, config) or ()), shape.geometry
        if "side" in now:
            sides = sides_of(geometry)
            near = [one for one in sides if one < now["side"]][-1:] + [one for one in sides if one > now["side"]][:1]
            return list(PixelSettings.near(config, now, side=near))
        if "depth" in now:
            return list(RowSettings.near(config, now))
        if not now:
            return []  # no sizes fit that are tried
        rows, apart = now["rows"], geometry.rows.stride * outputs_apart(geometry.rows)
        return list(DepthwiseSettings.near(config, now, rows=(rows - apart, rows + apart)))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items)


def candidates(shape: Shape, geometry: Any, given: dict[str, Any]) -> Iterator[Config]:
    """Complete settings that have the given ones and run, those of the least bound first."""
    kind, target, options = settings_of(geometry), shape.target, shape.options
    if kind is DepthwiseSettings:
        sizes = _least(shape, geometry, sizes_of(geometry, given))
        for first in range(0, len(sizes), SIZES):
            every = (one for size in sizes[first : first + SIZES] for one in shares_of(geometry, given, size))
            for one in _least(shape, geometry, every):
                if fits_sbuf(block_bytes(geometry, BlockSchedule(geometry, one), options)):
                    yield one.pairs
    elif kind is RowSettings:
        for one in _least(shape, geometry, rows_tried(geometry, given)):
            yield (one if "loop" in given else replace(one, loop=_loop(shape, geometry, one))).pairs
    else:
        for one in _least(shape, geometry, pixels_tried(geometry, options, given)):
            columns = geometry.K * one.fold // (PARTS if one.shard == "channels" else 1)
            steady = given.get("warmup", max(one.warmup, steady_warm_up(target, columns)))
            yield replace(one, warmup=steady).pairs


def _least(shape: Shape, geometry: Any, tried: Iterator[Any]) -> list[Any]:
    """Those settings that have a schedule, the least bound first."""
    found = []
    for one in tried:
        plan = schedule_of(geometry, shape.options, one)
        if plan is not None:
            found.append((Bound(shape.target, geometry, shape.options, plan).ns(), one))
    return [one for _, one in sorted(found, key=lambda each: each[0])]


def schedule_of(geometry: Any, options: Any, settings: Any) -> PixelSchedule | RowSchedule | BlockSchedule | None:
    """The schedule of complete settings; None where they do not go together, or SBUF does not hold rows or pixels."""
    if isinstance(settings, DepthwiseSettings):
        return None if blocks_misfit(geometry, settings) else BlockSchedule(geometry, settings)
    if isinstance(settings, RowSettings):
        return make_rows(geometry, options, settings)
    plan = make_pixels(geometry, settings)
    return plan if pixels_fit(geometry, options, plan) else None


def pixels_tried(geometry: Any, options: Any, given: dict[str, Any]) -> Iterator[PixelSettings]:
    """Which share, how many neighbours and how many rows together."""
    sides, folds = _of(given, "side", sides_of(geometry)), _of(given, "fold", FOLDS)
    for side, shard, fold in itertools.product(sides, _of(given, "shard", SHARDS), folds):
        if not together_unsupported(geometry, options, side, fold) and (fold == 1 or shard == "images"):
            yield read_pixels(config_of(**given), shard, side, fold)


def sides_of(geometry: Any) -> list[int]:
    """Neighbours on a partition that are worth a try: divisors of Q."""
    most = min(geometry.columns.out, SIDE_MAX, RESULT_BYTES // (geometry.K * geometry.hbm_itemsize))
    return [1, *(side for side in range(2, most + 1) if geometry.columns.out % side == 0)]


def steady_warm_up(target: Target, columns: int) -> int:
    """Matmuls on zeros that bring the Tensor Engine to its full rate at any phase of the throttle's grid, where matmuls
    of so many columns hold it there but would not bring it there; 0 where they would, or do not hold it."""
    work = columns / max(columns, target.matmul_columns_min)
    slow, zeros, enough = target.half_rate * work, target.half_rate, target.window_work
    if not slow < enough <= work:
        return 0
    # the grid cuts them in two: either what is in the first window is enough, or, with sums after it, in the second
    windows = enough / zeros + (enough - slow) / (zeros - slow)
    return math.ceil(windows * target.window_ns * target.half_rate / (PARTITIONS * target.tensor_column_ns))


def rows_tried(geometry: Any, given: dict[str, Any]) -> Iterator[RowSettings]:
    """Planes of y together, evenly cut, and copies of the channels left over; no loop yet."""
    volume = geometry.planes.out // geometry.planes.images
    most = TILE_BANKS * max(1, BANK_COLUMNS // geometry.K)
    depths = sorted({depth for n in range(1, volume + 1) if (depth := div_ceil(volume, n)) <= most})
    for depth, copies in itertools.product(_of(given, "depth", depths), _of(given, "copies", (1, COPIES))):
        yield RowSettings.read(config_of(**given), depth=depth, copies=copies)


def _loop(shape: Shape, geometry: Any, settings: RowSettings) -> int:
    """Rotations of the circular buffer in the body of a loop, the most of LOOPS whose steps are alike, where a core
    takes many instructions without one and the matmuls of a step hide its stores, which wait for each other."""
    plan, *looped = (make_rows(geometry, shape.options, replace(settings, loop=loop)) for loop in (0, *LOOPS))
    assert plan is not None  # it has a bound
    step_ns = Bound(shape.target, geometry, shape.options, plan).step_ns(plan.items[0])
    hidden = len(stored_together(plan.items[0].zn, geometry.K)) * STORE_NS <= step_ns
    count = geometry.times * row_instructions(geometry, plan, shape.options, shape.cores)
    if count <= (LOOP_FROM if hidden else MOST_INSTRUCTIONS):
        return 0
    return next((one.loop for one in looped if one is not None and one.steps is not None), 0)


def sizes_of(geometry: Any, given: dict[str, Any]) -> Iterator[DepthwiseSettings]:
    """Sizes of blocks, and how many the Tensor Engine takes at once, with some channels."""
    N, P, Q = geometry.planes.out, geometry.rows.out, geometry.columns.out
    rows, each = geometry.rows, outputs_apart(geometry.columns)
    unit, some = outputs_apart(rows) * rows.stride, min(CHANNELS[1], div_ceil(geometry.C, PARTS))
    widths = {div_ceil(Q, count * each) * each for count in range(1, WINDOWS + 1)}
    for columns, disjoint in itertools.product(
        _of(given, "columns", sorted(widths)), _of(given, "disjoint", _disjoint(geometry))
    ):
        most = PARTITIONS // max(1, window_width(geometry.columns, columns, disjoint == 1)) * rows.lhs_dilation
        most += rows.stride - window_of(rows, 1) if disjoint == 1 else 0
        # the least rows of each number of blocks below each other
        heights = {div_ceil(P * rows.stride, one): one for one in range(max(0, most) // unit * unit, 0, -unit)}
        for height in _of(given, "rows", [heights[count] for count in sorted(heights)[:HEIGHTS]]):
            blocks = div_ceil(P * rows.stride, height)
            for below in _of(given, "below", sorted({div_ceil(blocks, count) for count in (1, 2, 4, 8)})):
                together = max(1, PARTITIONS // below)
                for images in _of(given, "images", {div_ceil(N, div_ceil(N, together)), min(N, together)}):
                    beside, windows = 1, div_ceil(Q, columns)
                    if is_transposed(geometry):
                        beside = max(1, min(windows, PARTITIONS // (below * images)))
                        beside = div_ceil(windows, div_ceil(windows, beside))
                    sizes = {"rows": height, "columns": columns, "disjoint": disjoint, "beside": beside, "below": below}
                    share_of = {"images": images, "channels": some, "together": 1, "buffers": BUFFERS[0]}
                    yield DepthwiseSettings(**{**sizes, **share_of, **given})


def shares_of(geometry: Any, given: dict[str, Any], size: DepthwiseSettings) -> Iterator[DepthwiseSettings]:
    """Sizes of blocks with channels of a K tile, as many for one core as for the other, rounds of matrices as even as
    can be, and buffers."""
    mine, pixels = div_ceil(geometry.C, PARTS), is_transposed(geometry)
    whole = {mine, div_ceil(mine, 2), *(one for one in CHANNELS if one < mine)} | ({geometry.C} if pixels else set())
    matrix = div_ceil(window_of(geometry.rows, size.rows // geometry.rows.stride), size.rows) * size.rows
    matrix *= window_of(geometry.columns, size.columns) * geometry.itemsize
    for channels in _of(given, "channels", {one for one in whole if pixels or one <= PARTITIONS}):
        rounds = div_ceil(mine, channels)
        most = div_ceil(rounds, div_ceil(rounds, max(1, MATRICES_BYTES // (matrix * channels))))
        for together in _of(given, "together", {1, div_ceil(most, 2), most}):
            for buffers in _of(given, "buffers", BUFFERS):
                yield replace(size, channels=channels, together=together, buffers=buffers)


def _disjoint(geometry: Any) -> tuple[int, ...]:
    return (0,) if is_transposed(geometry) else (0, 1)


def _of(given: dict[str, Any], name: str, values: Any) -> list[Any]:
    return [given[name]] if name in given else list(values)


@dataclass(frozen=True)
class Bound:
    """What a schedule takes at least, in ns of the busier of two cores: its busiest engine, and what comes before."""

    target: Target
    geometry: Any
    options: Any
    plan: Any

    def ns(self) -> float:
        """From the first DMA to the last."""
        kinds = {PixelSchedule: self.pixels, RowSchedule: self.rows, BlockSchedule: self.blocks}
        busy = kinds[type(self.plan)]()
        return float(START_NS + max(busy) + EXPOSED * (sum(busy) - max(busy)) + END_NS)

    def moved_ns(self, num_bytes: float, run_bytes: float, partitions: float = PARTITIONS) -> float:
        """The DMA engines of so many partitions, or HBM, for so many bytes in such runs."""
        target = self.target
        engines = min(target.dma_engines, div_ceil(int(partitions), target.rows_an_engine))
        return max(num_bytes / run_bytes * target.run_ns(run_bytes) / engines, num_bytes * target.hbm_byte_ns)

    def transposed_ns(self, num_bytes: float) -> float:
        """The same of bytes that DMA transposes."""
        target = self.target
        return num_bytes * max(target.byte_ns / (target.dma_engines * target.transpose_rate), target.hbm_byte_ns)

    def tensor_ns(
        self, matmuls: Sequence[tuple[float, float]], transposes: float, columns: float = PARTITIONS
    ) -> float:
        """The Tensor Engine for (how many matmuls, of how many columns) and so many transposes of `columns` partitions;
        few columns leave it at half of its rate."""
        target, every = self.target, [*matmuls, (transposes, columns)]
        passes = target.transpose_passes_fp32 if self.geometry.itemsize == 4 else 1.0
        each_ns = max(columns, target.matmul_columns_min) * passes * target.tensor_column_ns + target.matmul_ns
        found = transposes * each_ns + sum(count * matmul_ns(target, self.geometry, one) for count, one in matmuls)
        work = sum(count * one for count, one in every) / sum(count * max(one, PARTITIONS) for count, one in every)
        return found / target.half_rate if work * target.half_rate < target.window_work else found

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
            array_ns, moved_ns, read_ns, batch = start_ns, 0.0, 0.0, -1
            for item in plan.items[at : at + count]:
                key = (
                    item.batch != batch,
                    plan.batches[item.batch][1],
                    item.out_tile.zn,
                    item.out_tile.pn,
                    item.out_tile.qn,
                )
                own = known.get(key) or known.setdefault(key, self.out_tile_ns(*key[:2], item.out_tile))
                array_ns, moved_ns, read_ns = array_ns + own[0], moved_ns + own[1], read_ns + own[2]
                batch = item.batch
            most = max(most, (array_ns, moved_ns, read_ns), key=max)
        return most

    def out_tile_ns(self, fresh: bool, kn: int, out_tile: Any) -> tuple[float, float, float]:
        """(ns of the Tensor Engine, of DMA, of evacuation by Vector and Scalar) of an output tile; fresh: with the
        filters of its output channels."""
        target, geometry, plan, source = self.target, self.geometry, self.plan, self.plan.source
        tiles, taps = len(blocks_of(plan.sizes, out_tile)) * plan.sizes.side, float(source.taps)
        item, parts = geometry.hbm_itemsize, cut(kn * source.fold, plan.most_k)
        for axis, apart in ((source.rows, plan.sizes.apart), (source.columns, plan.sizes.side)):
            # taps that see nothing but zeros between elements of x are left out
            taps /= axis.lhs_dilation if apart % outputs_apart(axis) == 0 else 1
        matmuls, transposes = [(tiles * taps * len(plan.k_tiles), columns) for _, columns in parts], 0
        read_ns = tiles * (kn * source.fold * target.vector_ns + len(parts) * target.vector_fixed_psum_ns) / 2
        run_bytes = kn * item * (plan.sizes.side if kn == geometry.K else 1)
        moved_ns = self.window_ns(out_tile)
        moved_ns += self.moved_ns(out_tile.zn * out_tile.pn * out_tile.qn * source.fold * kn * item, run_bytes)
        if fresh:
            transposes = num_transposes(kn, plan) if plan.way == "array" else 0
            filter_bytes = kn * geometry.C * len(plan.places[0]) * item
            moved_ns += self.transposed_ns(filter_bytes) if plan.way == "dma" else filter_bytes * target.hbm_byte_ns
        dn, hn, wn = window_shape(source, out_tile)
        k_tiles, images = len(plan.k_tiles), dn / geometry.image_planes
        elements = k_tiles * source.slots * dn * hn * wn
        taken_ns = prologue_ns(target, self.options.prologue, elements, k_tiles * source.slots, images)
        return self.tensor_ns(matmuls, transposes), moved_ns, max(read_ns, taken_ns, (read_ns + taken_ns) / 2)

    def window_ns(self, out_tile: Any) -> float:
        """DMA, or HBM, for the window of an output tile: its rows of x, all columns."""
        geometry, source = self.geometry, self.plan.source
        _, hn, wn = window_shape(source, out_tile)
        columns = min(wn, source.columns.size)
        elements = planes_seen(geometry, out_tile.zn) * min(hn * source.slots, source.rows.size) * columns
        num_bytes = elements * geometry.C * geometry.hbm_itemsize
        if is_transposed(geometry):
            return max(self.transposed_ns(num_bytes), len(self.plan.k_tiles) * self.target.hwdge_again_ns)
        run = columns if geometry.x_strides[3] == 1 else 1
        return self.moved_ns(num_bytes, run * geometry.hbm_itemsize, geometry.C)

    # ---------------------------------------------------------------------------------------- y of volumes as NCDHW

    def rows(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for filters and for rows of x without room before, and of DMA."""
        target, geometry, plan, rows = self.target, self.geometry, self.plan, self.geometry.rows
        array_ns = moved_ns = waits_ns = 0.0
        volume = geometry.planes.out // geometry.planes.images
        known: dict[Any, float] = {}
        for item in plan.items:
            steps, key = segment_rows(plan, item), (item.z0 % volume, item.zn, item.qn)
            array_ns += steps * (known.get(key) or known.setdefault(key, self.step_ns(item)))
            run_bytes = window_of(geometry.columns, item.qn) * geometry.hbm_itemsize
            runs = planes_seen(geometry, item.zn) * min(plan.segments, item.pn)
            parts = sum(parts_of(k_tile, len(k_tile)) for k_tile in plan.k_tiles)
            each_ns = self.moved_ns(runs * parts * run_bytes, run_bytes)
            waits_ns += max(1, rows.taps - rows.stride) * each_ns
            moved_ns += each_ns * (rows.stride * (steps - 1) + rows.taps)
        y_bytes = geometry.planes.out * rows.out * geometry.columns.out * geometry.K * geometry.hbm_itemsize
        moved_ns += y_bytes * target.hbm_byte_ns
        cores = min(PARTS, len(plan.items))
        filters = sum(len(one) for one in plan.places) * div_ceil(geometry.K, PARTITIONS)
        return self.tensor_ns([], filters) + (waits_ns + array_ns) / cores, moved_ns / cores

    def step_ns(self, item: Any) -> float:
        """The Tensor Engine on a step of an output tile."""
        geometry, plan = self.geometry, self.plan
        first, rest = moves_of(geometry, plan, item)
        tiles, products = div_ceil(item.qn, plan.width), sum(len(one) for one in plan.products)
        matmuls = [(tiles, move.count * geometry.K) for move in first]
        matmuls += [(tiles * (products - 1), move.count * geometry.K) for move in rest]
        return self.tensor_ns(matmuls, tiles * plan.blocks)

    # ---------------------------------------------------------------------------------------- depthwise problems

    def blocks(self) -> tuple[float, ...]:
        """ns of the Tensor Engine, which waits for x or a round of matrices, of evacuation by Vector and Scalar, of
        DMA or the triggers of matrices; each core has half of the channels."""
        target, geometry, plan, settings = self.target, self.geometry, self.plan, self.plan.settings
        N, P, Q, C, W = geometry.planes.out, geometry.rows.out, geometry.columns.out, geometry.C, geometry.columns.size
        item, channels, epilogue = geometry.hbm_itemsize, settings.channels, self.options.epilogue
        out_tiles, together = (
            div_ceil(div_ceil(P, plan.out_rows), settings.below),
            min(len(plan.windows), plan.windows_together),
        )
        # items of a K tile, their steps, K tiles of a core
        items, tiles = out_tiles * div_ceil(N, settings.images), C / PARTS / channels
        steps = items * div_ceil(len(plan.windows), together)
        matmuls, columns, sums = plan.depth, plan.bank[0] * plan.bank[1], plan.out_rows * settings.columns
        if plan.disjoint:
            products = [one.columns[1] for span in plan.spans for one in span.products]
            matmuls, columns, sums = len(products), plan.out_rows * sum(products) / len(products), plan.out_rows * Q
        banks = tiles * channels * steps * max(1, len(plan.spans)) / plan.bank_channels
        own_ns = tiles * channels * steps * sums * target.vector_ns + banks * target.vector_fixed_psum_ns
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
            images = min(settings.images, PARTITIONS // channels)
            parts, groups = images * channels, div_ceil(settings.images, images)
            transposes = tiles * steps * together * (settings.below + plan.depth - 1) * groups
            both_ns += transposes * parts * (target.vector_16bit_ns if item == 2 else target.vector_ns)
            if not plan.has_own_columns:
                framed = tiles * items * groups * geometry.rows.size * W
                vector_ns += framed * (target.vector_4x_ns if item == 2 else target.vector_16bit_ns)
            x_run, y_run = seen * W / out_tiles * item, min(P, plan.out_rows) * Q
        array_ns = self.tensor_ns([(tiles * channels * steps * matmuls, columns)], transposes, parts)
        moved_ns, y_item = self.moved_ns(x_bytes, x_run, parts), epilogue.y_itemsize
        y_bytes = N * P * Q * C * y_item / PARTS * (2 if self.options.residual else 1)
        moved_ns += self.moved_ns(y_bytes, y_run * y_item, settings.below * settings.images * settings.beside)
        # a DMA a place of a block for the matrices of a round
        rounds, triggers_ns = max(1.0, tiles) / settings.together, plan.size * target.static_issue_ns
        run_bytes = plan.matrix_size * geometry.itemsize
        matrices_ns = self.moved_ns(run_bytes * plan.size * channels * settings.together, run_bytes, plan.size)
        array_ns += max(triggers_ns + matrices_ns, moved_ns / max(1.0, tiles * steps))
        read_ns = max(vector_ns, (vector_ns + both_ns) / 2)
        return array_ns, read_ns, max(moved_ns + rounds * matrices_ns, rounds * triggers_ns / FREELY)


ALGORITHM = ActivationStationary()
