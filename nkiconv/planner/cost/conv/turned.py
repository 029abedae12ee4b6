"""`turned` on the host: what a plan takes, and which planes, segments, parts and copies take least."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....kernels.conv.turned.config import COPIES, TILE_BANKS, TurnedConfig, sized_turned, turned_config_refusal
from ....kernels.conv.turned.plan import turned_refusal
from ....kernels.conv.turned.products import parts_of
from ....kernels.conv.turned.tiling import make_turned, moves_of, stored_together, turned_fits, turned_instructions
from ....schedules.cuts import window_of
from ....schedules.settings import WARM_UPS
from ....schedules.tiles import BANK_COLUMNS, PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import MOST_INSTRUCTIONS, Shape, pairs_of, with_settings
from .common import Conv2dAlgorithm, cheapest, matmul_ns, matmul_rates, planes_seen

#: ns from the first trigger to the first sums beside the loads of x, from the last sums to the end, and from the sums
#: of an item to those of the next beside the loads of rows for which there is no room before.
START_NS, END_NS, NEXT_NS = 15_000.0, 4_000.0, 3_000.0
#: Instructions of a core, at most, above which steps that are alike are worked on in a loop on the device, which costs
#: under 0.5 % (modelled); the bound is little more than what there are, other than implicit_gemm's.
LOOP_FROM = 8_000
#: ns of a store in such a loop, each of which waits for the one before, and of the loads between them.
STORE_NS = 3_000.0
#: Parts of the columns that are tried until one fits.
PARTS_TRIED = (1, 2, 3, 4, 6, 8, 12)


class Turned(Conv2dAlgorithm):
    """Windows of x as stationaries; planes of y beside each other."""

    algorithm = "turned"
    order = ("copies",)
    from_one = ("depth", "segments", "parts", "copies")

    def settle(self, shape: Shape, config: Config) -> Config:
        geometry, extras = plain_of(self.algorithm, shape.geometry, shape.extras), shape.extras
        if geometry.precision == "fp16x3" or turned_config_refusal(config) or turned_refusal(geometry, extras):
            return config
        if len(config or ()) == len(dataclasses.fields(TurnedConfig)):
            return config
        best = cheapest(self._fitting(shape, geometry, config))
        return config if best is None else with_settings(pairs_of(best), loop=self._loop(shape, geometry, config, best))

    def _loop(self, shape: Shape, geometry: Any, config: Config, chosen: TurnedConfig) -> int:
        """Turns of the tiles of x in a body of a loop on the device: one where a core takes many instructions without,
        and steps are alike and long enough for their stores, which wait for each other in it."""
        unrolled, looped = (make_turned(geometry, dataclasses.replace(chosen, loop=loop)) for loop in (0, 1))
        count = geometry.times * turned_instructions(geometry, unrolled, shape.cores)
        item = unrolled.items[0]
        array_ns = div_ceil(item.qn, unrolled.width) * self._tile_ns(shape, geometry, unrolled, item)
        is_hidden = len(stored_together(item.zn, geometry.K)) * STORE_NS <= array_ns
        worth = looped.steps is not None and count > (LOOP_FROM if is_hidden else MOST_INSTRUCTIONS)
        return int(dict(config or ()).get("loop", worth))

    def _fitting(self, shape: Shape, geometry: Any, config: Config) -> Iterator[tuple[float, TurnedConfig]]:
        """(ns, settings) of what is worth a try, columns in no more parts than they must be."""
        for depth, copies in self._open(geometry, dict(config or ())):
            for parts in PARTS_TRIED:
                settings: TurnedConfig = sized_turned(geometry, config, depth, parts, copies)
                plan = make_turned(geometry, settings)
                if turned_fits(geometry, shape.extras, plan):
                    yield self.plan_ns(shape, geometry, plan), settings
                    break

    def is_short(self, shape: Shape, config: Config) -> bool:
        count = turned_instructions(shape.geometry, self.plan(shape, config), shape.cores)
        return bool(count * shape.geometry.times <= MOST_INSTRUCTIONS)

    def is_looped(self, shape: Shape, config: Config) -> bool:
        return self.plan(shape, config).steps is not None

    def _open(self, geometry: Any, given: dict[str, Any]) -> Iterator[tuple[int, int]]:
        """(depth, copies) that are worth a try."""
        volume = geometry.planes.out // geometry.planes.images
        most = min(volume, TILE_BANKS * max(1, BANK_COLUMNS // geometry.K))
        depths = [given["depth"]] if "depth" in given else sorted({div_ceil(volume, n) for n in range(1, volume + 1)})
        copies = [given["copies"]] if "copies" in given else (1, COPIES)
        return ((V, c) for V in depths if V <= most or "depth" in given for c in copies)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        """ns of the busier core: the array, or loads and stores, and what nothing hides."""
        target = shape.target
        known: dict[tuple[int, int], float] = {}
        volume = geometry.planes.out // geometry.planes.images
        array_ns = dma_ns = hbm_bytes = waits_ns = 0.0
        for item in plan.items:
            key = item.z0 % volume, item.zn
            if key not in known:
                known[key] = self._tile_ns(shape, geometry, plan, item)
            steps = div_ceil(item.pn, plan.segments)
            array_ns += steps * div_ceil(item.qn, plan.width) * known[key]
            each_ns, each_bytes = self._row_ns(shape, geometry, plan, item)
            rows = geometry.rows.stride * (steps - 1) + geometry.rows.taps
            # both cores load then
            late_ns = max(each_ns, PARTS * each_bytes * target.hbm_byte_ns)
            waits_ns += NEXT_NS + max(1, geometry.rows.taps - geometry.rows.stride) * late_ns
            dma_ns += rows * each_ns
            hbm_bytes += rows * each_bytes
        size = geometry.planes.out * geometry.rows.out * geometry.columns.out * geometry.K * geometry.hbm_itemsize
        hbm_ns = (hbm_bytes + size) * target.hbm_byte_ns
        dma_ns += size * target.byte_ns / target.dma_engines
        core_ns = (waits_ns + max(array_ns, dma_ns, hbm_ns)) / min(PARTS, len(plan.items))
        return float(START_NS + core_ns + END_NS)

    def _tile_ns(self, shape: Shape, geometry: Any, plan: Any, item: Any) -> float:
        """ns of the array on a tile of an item."""
        target, one_product = shape.target, copy.copy(plan)
        one_product.products = plan.products[:1]
        moves = moves_of(geometry, one_product, item)
        found = sum(matmul_ns(target, geometry, move.count * geometry.K) for move in moves) * len(plan.products)
        turned_ns = PARTITIONS * target.tensor_column_ns + matmul_rates(target, geometry)[1]
        return float(found + plan.blocks * turned_ns)

    def _row_ns(self, shape: Shape, geometry: Any, plan: Any, item: Any) -> tuple[float, float]:
        """(ns of the busiest DMA engine, bytes) of a row of x of all segments, as it is loaded."""
        target, planes = shape.target, planes_seen(geometry, item.zn)
        run_bytes = window_of(geometry.columns, item.qn) * geometry.hbm_itemsize
        runs = planes * min(plan.segments, item.pn)
        busiest = len(plan.chunks) * min(target.rows_an_engine, geometry.C)
        parts = sum(parts_of(chunk, len(chunk)) for chunk in plan.chunks)
        return runs * busiest * target.run_ns(run_bytes), runs * parts * run_bytes

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.settle(shape, config) or ())
        return self.changed(
            config,
            depth=(now["depth"] - 1, now["depth"] + 1),
            segments=(now["segments"] // 2, now["segments"] * 2),
            parts=(now["parts"] - 1, now["parts"] + 1),
            copies=(1, 2, 3, 4),
            warmup=(one for one in WARM_UPS if one != now["warmup"]),
        )

    def tiles(self, shape: Shape, plan: Any) -> int:
        return sum(div_ceil(one.pn, plan.segments) * div_ceil(one.qn, plan.width) for one in plan.items)


ALGORITHM = Turned()
