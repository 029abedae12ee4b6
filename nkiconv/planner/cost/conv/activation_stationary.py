"""`activation_stationary` on the host: of y as NHWC which share, how many neighbours and how many rows together take
least, of volumes whose y is NCDHW which planes and copies of channels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ....kernels.conv.relayout import plain_of
from ....schedules.activation_stationary import (
    COPIES,
    SHARDS,
    DepthwiseSettings,
    PixelSettings,
    RowSettings,
    read_pixels,
)
from ....schedules.activation_stationary_build import (
    pixel_settings,
    settings_of,
    together_unsupported,
    unsupported_reason,
)
from ....schedules.channel_pieces import parts_of
from ....schedules.cuts import window_of
from ....schedules.frames import is_transposed
from ....schedules.geometry import num_taps
from ....schedules.moving_filters import num_transposes
from ....schedules.pixel_tiles import blocks_of, load_parts, make_pixels, outputs_apart, pixels_fit, window_shape
from ....schedules.settings import Settings
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, div_ceil, share
from ....schedules.volume_rows import TILE_BANKS, make_rows, moves_of, row_instructions, segment_rows, stored_together
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import MOST_INSTRUCTIONS, Shape, config_of
from .common import LONG, Conv2dAlgorithm, cheapest, matmul_ns, matmul_rates, planes_seen
from .depthwise_blocks import DepthwiseBlocks

#: ns from a core's start to its first matmul and from its last one to the end of the last store: calibrated, as loads
#: of x by DMA's transposes are triggered by hardware and come later.
START_NS = 3400.0
END_NS = 2600.0
#: ns until filters that are there are folded, by DMAs within SBUF: calibrated.
FOLD_NS = 1800.0
#: Neighbouring pixels of a partition that are tried at most, and bytes of their results; rows of y that are folded.
SIDE_MAX = 32
RESULT_BYTES = 32_768
FOLDS = (2, 4, 8)
#: ns until the first sums beside the loads of x, from the last sums to the end, and from the sums of an output tile to
#: those of the next beside the loads of rows for which there is no room before.
ROWS_START_NS, ROWS_END_NS, ROWS_NEXT_NS = 16_400.0, 2_600.0, 3_000.0
#: Instructions of a core, at most, above which steps that are alike are worked on in a loop on the device, which costs
#: up to 4 % (modelled), 8 % with half the steps in its body; ns of a store in such a loop, each of which waits for the
#: one before.
LOOP_FROM, LOOPS = 8_000, (2, 1)
STORE_NS = 3_000.0


class Pixels(Conv2dAlgorithm):
    """y as NHWC."""

    algorithm = "activation_stationary"

    def complete(self, shape: Shape, config: Config) -> Config:
        """All settings, those left open so that the schedule takes least; the kernel's where none runs."""
        geometry, options = plain_of(self.algorithm, shape.geometry, shape.options), shape.options
        if unsupported_reason(geometry, options, config):
            return config
        if together_unsupported(geometry, options, dict(config or ()).get("side", 1), 1):
            return config
        given = dict(config or ())
        tried = [read_pixels(config, *open_ones) for open_ones in self._open(shape, given)]
        best = tried[0] if len(tried) == 1 else None
        if best is None:
            made = ((make_pixels(geometry, settings), settings) for settings in tried)
            fitting = ((plan, settings) for plan, settings in made if pixels_fit(geometry, options, plan))
            best = cheapest((PixelBound(shape.target, geometry, plan).ns(), settings) for plan, settings in fitting)
        best = best or pixel_settings(geometry, options, config)
        if "warmup" not in given:
            columns = geometry.K * best.fold // (PARTS if best.shard == "channels" else 1)
            best = replace(best, warmup=max(best.warmup, steady_warm_up(shape.target, columns)))
        return best.pairs

    def _open(self, shape: Shape, given: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
        """(shard, side, fold) that are worth a try, beside what is given."""
        geometry, options = shape.geometry, shape.options
        shards = [given["shard"]] if "shard" in given else SHARDS
        folds = [given["fold"]] if "fold" in given else [1, *FOLDS]
        ways = [(shard, 1) for shard in shards if 1 in folds]
        if "images" in shards:
            ways += [
                ("images", fold) for fold in folds if fold > 1 and not together_unsupported(geometry, options, 1, fold)
            ]
        sides = [given["side"]] if "side" in given else sides_of(geometry)
        return ((shard, side, fold) for side in sides for shard, fold in ways)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return START_NS + PixelBound(shape.target, geometry, plan).ns() + END_NS

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        plan, own = self.plan(shape, None), dict(self.complete(shape, None) or ())
        found: list[Config] = [None, config_of(shard="channels"), config_of(shard="images")]
        if plan is None:
            return found
        tiles = sum(tiles_of(plan, item.band) for item in plan.items)
        if wide or tiles * plan.source.taps * len(plan.chunks) <= LONG:
            found += [config_of(side=side) for side in sides_of(shape.geometry)]
        return found + ([config_of(x_bytes=own["x_bytes"] // 2)] if wide else [])

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.complete(shape, config) or ())
        sides, at = sides_of(shape.geometry), now["side"]
        near = (*[one for one in sides if one < at][-1:], *[one for one in sides if one > at][:1])
        known = {name: now[name] for name in ("x_bytes", "filter_bytes", "warmup")}
        return list(PixelSettings.near(config, known, side=near))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items)


def steady_warm_up(target: Target, columns: int) -> int:
    """Matmuls on zeros that bring the array to its full rate at any phase of the throttle's grid, where matmuls of so
    many columns hold it there but would not bring it there; 0 where they would, or do not hold it."""
    work = columns / max(columns, target.matmul_columns_min)
    slow, zeros, enough = target.half_rate * work, target.half_rate, target.window_work
    if not slow < enough <= work:
        return 0
    # the grid cuts them in two: either what is in the first window is enough, or, with sums behind it, in the second
    windows = enough / zeros + (enough - slow) / (zeros - slow)
    return math.ceil(windows * target.window_ns * target.half_rate / (PARTITIONS * target.tensor_column_ns))


def sides_of(geometry: Any) -> list[int]:
    """Neighbours on a partition that are worth a try: divisors of Q."""
    Q = geometry.columns.out
    most = min(Q, SIDE_MAX, RESULT_BYTES // (geometry.K * geometry.hbm_itemsize))
    return [1, *(side for side in range(2, most + 1) if Q % side == 0)]


def tiles_of(plan: Any, band: Any) -> int:
    """Stationaries of a band, of each tap and chunk of input channels."""
    return len(blocks_of(plan.sizes, band)) * int(plan.sizes.side)


@dataclass(frozen=True)
class PixelBound:
    """What a schedule takes at least, in ns of one of two cores: the busiest engine, and what it waits for at first."""

    target: Target
    geometry: Any
    plan: Any

    def ns(self) -> float:
        """The busier core, between its first loads and its last store."""
        items, known, most, first_ns = self.plan.items, {}, 0.0, self.first_ns()
        for half in range(PARTS):
            first, count = share(len(items), PARTS, half)
            array, moved, read, batch = first_ns, 0.0, 0.0, -1
            for item in items[first : first + count]:
                kn, band = self.plan.batches[item.batch][1], item.band
                key = kn, band.zn, band.pn, band.qn
                if key not in known:
                    known[key] = self.item_ns(kn, band)
                fresh = self.filters_ns(kn) if item.batch != batch else (0.0, 0.0)
                batch = item.batch
                array, moved, read = (
                    array + known[key][0] + fresh[0], moved + known[key][1] + fresh[1], read + known[key][2],
                )  # fmt: skip
            most = max(most, array, moved, read)
        return most

    def first_ns(self) -> float:
        """DMA for the rows and channels of x that the first matmuls need, before which there is nothing to do."""
        plan, band = self.plan, self.plan.items[0].band
        block, rows = blocks_of(plan.sizes, band)[0], plan.source.rows
        first = block.zn * window_of(rows, min(band.pn, block.pn * block.apart))
        share_ns = self.x_ns(band) * first / (len(plan.chunks) * band.zn * window_of(rows, band.pn))
        return float(share_ns) + (FOLD_NS if plan.source.fold > 1 else 0.0)

    def item_ns(self, kn: int, band: Any) -> tuple[float, float, float]:
        """(ns of the array, of DMA, of evacuation by Vector and Scalar) of an item."""
        target, geometry, plan, source = self.target, self.geometry, self.plan, self.plan.source
        tiles, parts, taps = tiles_of(plan, band), cut(kn * source.fold, plan.k_tile), float(source.taps)
        for axis, apart in ((source.rows, plan.sizes.apart), (source.columns, plan.sizes.side)):
            # taps that see nothing but zeros between elements of x are left out
            taps /= axis.lhs_dilation if apart % outputs_apart(axis) == 0 else 1
        array_ns = sum(matmul_ns(target, geometry, columns) for _, columns in parts) * taps * len(plan.chunks)
        read_ns = (kn * source.fold * target.vector_ns + len(parts) * target.vector_fixed_psum_ns) / 2
        run = kn * (plan.sizes.side if kn == geometry.K else 1) * geometry.hbm_itemsize
        y_ns = self._runs_ns(band.zn * band.pn * band.qn * source.fold * kn * geometry.hbm_itemsize, run)
        return tiles * array_ns, self.x_ns(band) + y_ns, tiles * read_ns

    def x_ns(self, band: Any) -> float:
        """DMA, or HBM, for the window of a band: its rows of x, all columns."""
        target, geometry, source = self.target, self.geometry, self.plan.source
        _, hn, wn = window_shape(source, band)
        columns = min(wn, source.columns.size)
        elements = planes_seen(geometry, band.zn) * min(hn * source.slots, source.rows.size) * columns
        num_bytes = elements * geometry.C * geometry.hbm_itemsize
        if is_transposed(geometry):
            triggers = len(self.plan.chunks) * len(load_parts(geometry, self.plan, band, False))
            return self._transposed_ns(num_bytes, triggers)
        run = columns if geometry.x_strides[3] == 1 else 1
        runs = len(self.plan.chunks) * target.rows_an_engine * elements / run
        return float(max(num_bytes * target.hbm_byte_ns, runs * target.run_ns(run * geometry.itemsize)))

    def filters_ns(self, kn: int) -> tuple[float, float]:
        """(ns of the array's transposes, of DMA) for the filters of kn output channels."""
        target, geometry, plan = self.target, self.geometry, self.plan
        item, taps, run = geometry.hbm_itemsize, num_taps(geometry), 1.0
        num_bytes = kn * geometry.C * taps * item
        if plan.way == "dma":
            return 0.0, self._transposed_ns(num_bytes, len(plan.chunks))
        if plan.way == "copy":
            run = min(kn, geometry.packed or kn)
        elif plan.way == "backwards":
            run = taps * min(kn, PARTITIONS)
        elif geometry.w_strides[3] == 1 and geometry.w_strides[1] == taps:
            run = taps * geometry.C / len(plan.chunks)
        passes = target.transpose_passes_fp32 if geometry.itemsize == 4 else 1
        each_ns = PARTITIONS * passes * target.tensor_column_ns + target.matmul_ns
        array_ns = num_transposes(kn, plan) * each_ns if plan.way == "array" else 0.0
        return array_ns, self._runs_ns(num_bytes, run * item)

    def _runs_ns(self, num_bytes: float, run_bytes: float) -> float:
        """All engines, or HBM, for so many bytes in such runs."""
        target = self.target
        engines_ns = num_bytes / run_bytes * target.run_ns(run_bytes) / target.dma_engines
        return max(engines_ns, num_bytes * target.hbm_byte_ns)

    def _transposed_ns(self, num_bytes: float, triggers: int) -> float:
        """All engines, HBM, or the one queue that triggers them, for so many bytes that DMA transposes."""
        target = self.target
        engines_ns = num_bytes * target.byte_ns / (target.dma_engines * target.transpose_rate)
        return float(max(engines_ns, num_bytes * target.hbm_byte_ns, triggers * target.hwdge_again_ns))


class Rows(Conv2dAlgorithm):
    """Rows of y of volumes."""

    algorithm = "activation_stationary"

    def complete(self, shape: Shape, config: Config) -> Config:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if unsupported_reason(geometry, shape.options, config):
            return config
        given, volume = dict(config or ()), geometry.planes.out // geometry.planes.images
        most = given.get("depth", min(volume, TILE_BANKS * max(1, BANK_COLUMNS // geometry.K)))
        depths = sorted({div_ceil(volume, n) for n in range(1, volume + 1)}) if "depth" not in given else [most]
        tried = [
            RowSettings.read(config, depth=depth, copies=copies)
            for depth in depths
            for copies in ([given["copies"]] if "copies" in given else (1, COPIES))
            if depth <= most
        ]
        made = ((make_rows(geometry, shape.options, one), one) for one in tried)
        fitting = [(plan, one) for plan, one in made if plan is not None]
        best = cheapest((RowCost(shape.target, geometry, plan).ns(), one) for plan, one in fitting)
        if best is None:
            return config
        settings: RowSettings = best if "loop" in given else replace(best, loop=self._loop(shape, geometry, best))
        return settings.pairs

    def _loop(self, shape: Shape, geometry: Any, chosen: RowSettings) -> int:
        """Rotations of the circular buffer in a body, the most of LOOPS whose steps are alike, where a core takes many
        instructions without a loop, and steps are long enough for their stores, which wait for each other in it."""
        unrolled = make_rows(geometry, shape.options, replace(chosen, loop=0))
        if unrolled is None:
            return 0
        count = geometry.times * row_instructions(geometry, unrolled, shape.cores)
        item = unrolled.items[0]
        array_ns = div_ceil(item.qn, unrolled.width) * RowCost(shape.target, geometry, unrolled).tile_ns(item)
        is_hidden = len(stored_together(item.zn, geometry.K)) * STORE_NS <= array_ns
        if count <= (LOOP_FROM if is_hidden else MOST_INSTRUCTIONS):
            return 0
        looped = ((loop, make_rows(geometry, shape.options, replace(chosen, loop=loop))) for loop in LOOPS)
        return next((loop for loop, plan in looped if plan is not None and plan.steps is not None), 0)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return RowCost(shape.target, geometry, plan).ns()

    def is_short(self, shape: Shape, config: Config) -> bool:
        count = row_instructions(shape.geometry, self.plan(shape, config), shape.cores)
        return bool(count * shape.geometry.times <= MOST_INSTRUCTIONS)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(RowSettings.near(config, dict(self.complete(shape, config) or ())))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return sum(segment_rows(plan, one) * div_ceil(one.qn, plan.width) for one in plan.items)


@dataclass(frozen=True)
class RowCost:
    """What a schedule of rows of y takes, in ns of the busier core."""

    target: Target
    geometry: Any
    plan: Any

    def ns(self) -> float:
        """From the first DMA to the last: the array, or loads and stores, and what nothing hides."""
        target, geometry, plan, rows = self.target, self.geometry, self.plan, self.geometry.rows
        known: dict[tuple[int, int], float] = {}
        volume = geometry.planes.out // geometry.planes.images
        array_ns = dma_ns = hbm_bytes = waits_ns = 0.0
        for item in plan.items:
            key = item.z0 % volume, item.zn
            if key not in known:
                known[key] = self.tile_ns(item)
            steps = segment_rows(plan, item)
            array_ns += steps * div_ceil(item.qn, plan.width) * known[key]
            each_ns, each_bytes = self._row_ns(item)
            # both cores load then
            late_ns = max(each_ns, PARTS * each_bytes * target.hbm_byte_ns)
            waits_ns += ROWS_NEXT_NS + max(1, rows.taps - rows.stride) * late_ns
            loads = rows.stride * (steps - 1) + rows.taps
            dma_ns, hbm_bytes = dma_ns + loads * each_ns, hbm_bytes + loads * each_bytes
        size = geometry.planes.out * rows.out * geometry.columns.out * geometry.K * geometry.hbm_itemsize
        dma_ns += size * target.byte_ns / target.dma_engines
        most_ns = max(array_ns, dma_ns, (hbm_bytes + size) * target.hbm_byte_ns)
        return float(ROWS_START_NS + (waits_ns + most_ns) / min(PARTS, len(plan.items)) + ROWS_END_NS)

    def tile_ns(self, item: Any) -> float:
        """ns of the array on a tile of an output tile."""
        target, geometry, plan = self.target, self.geometry, self.plan
        first, rest = (
            sum(matmul_ns(target, geometry, move.count * geometry.K) for move in moves)
            for moves in moves_of(geometry, plan, item)
        )
        products = sum(len(one) for one in plan.products)
        transpose_ns = PARTITIONS * target.tensor_column_ns + matmul_rates(target, geometry)[1]
        return float(first + (products - 1) * rest + plan.blocks * transpose_ns)

    def _row_ns(self, item: Any) -> tuple[float, float]:
        """(ns of the busiest DMA engine, bytes) of a row of x of all segments, as it is loaded."""
        target, geometry, plan = self.target, self.geometry, self.plan
        run_bytes = window_of(geometry.columns, item.qn) * geometry.hbm_itemsize
        runs = planes_seen(geometry, item.zn) * min(plan.segments, item.pn)
        busiest = len(plan.chunks) * min(target.rows_an_engine, geometry.C)
        parts = sum(parts_of(chunk, len(chunk)) for chunk in plan.chunks)
        return runs * busiest * target.run_ns(run_bytes), runs * parts * run_bytes


class ActivationStationary(Conv2dAlgorithm):
    """Pixels as stationaries, filters as moving operands: by what y is."""

    algorithm = "activation_stationary"
    order = ("fold", "copies")
    of_settings: ClassVar[dict[type[Settings], Conv2dAlgorithm]] = {
        PixelSettings: Pixels(),
        RowSettings: Rows(),
        DepthwiseSettings: DepthwiseBlocks(),
    }

    def _own(self, shape: Shape) -> Conv2dAlgorithm:
        """What a problem is for."""
        return self.of_settings[settings_of(plain_of(self.algorithm, shape.geometry, shape.options))]

    def complete(self, shape: Shape, config: Config) -> Config:
        return shape.once((f"{self.algorithm}, least", config), lambda: self._own(shape).complete(shape, config))

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return self._own(shape).plan_ns(shape, geometry, plan)

    def is_short(self, shape: Shape, config: Config) -> bool:
        return self._own(shape).is_short(shape, config)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return self._own(shape).configs(shape, wide)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return self._own(shape).near(shape, config)

    def tiles(self, shape: Shape, plan: Any) -> int:
        return self._own(shape).tiles(shape, plan)


ALGORITHM = ActivationStationary()
