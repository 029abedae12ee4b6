"""`activation_stationary` of volumes whose y is NCDHW, on the host: which planes and copies of channels take least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....schedules.activation_stationary import COPIES, RowSettings
from ....schedules.activation_stationary_build import unsupported_reason
from ....schedules.channel_pieces import parts_of
from ....schedules.cuts import window_of
from ....schedules.tiles import BANK_COLUMNS, PARTS, div_ceil
from ....schedules.volume_rows import TILE_BANKS, make_rows, moves_of, row_instructions, segment_rows, stored_together
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import MOST_INSTRUCTIONS, Shape
from .common import Conv2dAlgorithm, cheapest, matmul_ns, matmul_rates, planes_seen

#: ns until the first sums beside the loads of x, from the last sums to the end, and from the sums of an output tile to
#: those of the next beside the loads of rows for which there is no room before.
START_NS, END_NS, NEXT_NS = 16_400.0, 2_600.0, 3_000.0
#: Instructions of a core, at most, above which steps that are alike are worked on in a loop on the device, which costs
#: up to 4 % (modelled), 8 % with half the steps in its body; ns of a store in such a loop, each of which waits for the
#: one before.
LOOP_FROM, LOOPS = 8_000, (2, 1)
STORE_NS = 3_000.0


class Rows(Conv2dAlgorithm):
    """Rows of y of volumes."""

    algorithm = "activation_stationary"

    def settle(self, shape: Shape, config: Config) -> Config:
        geometry = plain_of(self.algorithm, shape.geometry, shape.extras)
        if unsupported_reason(geometry, shape.extras, config):
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
        made = ((make_rows(geometry, shape.extras, one), one) for one in tried)
        fitting = [(plan, one) for plan, one in made if plan is not None]
        best = cheapest((RowCost(shape.target, geometry, plan).ns(), one) for plan, one in fitting)
        if best is None:
            return config
        settings: RowSettings = best if "loop" in given else replace(best, loop=self._loop(shape, geometry, best))
        return settings.pairs

    def _loop(self, shape: Shape, geometry: Any, chosen: RowSettings) -> int:
        """Rotations of the circular buffer in a body, the most of LOOPS whose steps are alike, where a core takes many
        instructions without a loop, and steps are long enough for their stores, which wait for each other in it."""
        unrolled = make_rows(geometry, shape.extras, replace(chosen, loop=0))
        if unrolled is None:
            return 0
        count = geometry.times * row_instructions(geometry, unrolled, shape.cores)
        item = unrolled.items[0]
        array_ns = div_ceil(item.qn, unrolled.width) * RowCost(shape.target, geometry, unrolled).tile_ns(item)
        is_hidden = len(stored_together(item.zn, geometry.K)) * STORE_NS <= array_ns
        if count <= (LOOP_FROM if is_hidden else MOST_INSTRUCTIONS):
            return 0
        looped = ((loop, make_rows(geometry, shape.extras, replace(chosen, loop=loop))) for loop in LOOPS)
        return next((loop for loop, plan in looped if plan is not None and plan.steps is not None), 0)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return RowCost(shape.target, geometry, plan).ns()

    def is_short(self, shape: Shape, config: Config) -> bool:
        count = row_instructions(shape.geometry, self.plan(shape, config), shape.cores)
        return bool(count * shape.geometry.times <= MOST_INSTRUCTIONS)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(RowSettings.near(config, dict(self.settle(shape, config) or ())))

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
            waits_ns += NEXT_NS + max(1, rows.taps - rows.stride) * late_ns
            loads = rows.stride * (steps - 1) + rows.taps
            dma_ns, hbm_bytes = dma_ns + loads * each_ns, hbm_bytes + loads * each_bytes
        size = geometry.planes.out * rows.out * geometry.columns.out * geometry.K * geometry.hbm_itemsize
        dma_ns += size * target.byte_ns / target.dma_engines
        most_ns = max(array_ns, dma_ns, (hbm_bytes + size) * target.hbm_byte_ns)
        return float(START_NS + (waits_ns + most_ns) / min(PARTS, len(plan.items)) + END_NS)

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
