"""`blocks` on the host: which settings it takes best."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from ....schedules.blocks import (
    FEW_PASSES,
    LINES,
    TRANSPOSED,
    BlocksSettings,
    blocks_geometry,
    config_refusal,
    is_transposed,
    max_channels,
    most_beside,
    takes_lines,
    units_of_tile,
)
from ....schedules.blocks_schedule import build
from ....schedules.blocks_units import units_in
from ....schedules.tiles import div_ceil
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Guess, Shape, config_of, ints, pairs_of
from .blocks_bound import BlocksBound
from .enumerated import Enumerated, choices, up_to

#: Rows and columns of a block that are tried, beside all of them.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)
#: Accumulators of a pass along output and input channels that are tried, beside half of them and all.
OUTPUTS, INPUTS = (1, 2, 4, 8), (1, 2, 3, 4, 6)
#: Row tiles that are tried.
SIDES = (1, 2, 4)
#: What blocks may take of the Tensor Engine over those that take least.
IDLE = 1.3
#: Settings of least time that a search starts from, and a wide one.
BEST, WIDE_BEST = 10, 40
#: Matmuls on zeros of settings to compare.
WARM_UP = 28
#: Settings to fall back on where the kernel's own plan refuses better ones.
SPARE = 6


class Blocks(Enumerated):
    """A partition is a block of gy with the window of x around it."""

    settings = BlocksSettings

    def refused(self, shape: Shape, config: Config) -> bool:
        return bool(config_refusal(shape.geometry, config))

    def best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        found: list[tuple[float, int, Config]] = []
        for pixels in choices(given, "pixels", (0,) if given.get("side", 1) > 1 else (0, LINES, TRANSPOSED)):
            config: Config = (("pixels", pixels),)
            lines, known = takes_lines(shape.geometry, config), {**given, "pixels": pixels}
            if pixels and not (lines or is_transposed(shape.geometry, config) or "pixels" in given):
                continue
            known |= {"columns": 1, "beside": 1} if lines else {}
            geometry = blocks_geometry(shape.geometry, config)[0]
            way = 0 if geometry is shape.geometry else pixels
            bound = BlocksBound(shape.target, geometry, shape.geometry, way, units_of_tile(geometry, lines))
            every = (
                (ns, self._planned_config(shape, bound, one, known)) for ns, one in _least(bound, known, count + SPARE)
            )
            for ns, config in islice((one for one in every if one[1] is not None), count):
                found.append((ns, len(found), config))
        return [Guess(config, ns) for ns, _, config in heapq.nsmallest(count, found)]

    def _planned_config(
        self, shape: Shape, bound: BlocksBound, one: BlocksSettings, given: Mapping[str, Any]
    ) -> Config:
        """The settings if the kernel takes them, or with one buffer where it does not take two; else None."""
        found = dataclasses.replace(one, warmup=given.get("warmup", WARM_UP), pixels=given["pixels"])
        counts = (one.buffers, 1) if bound.pixels == TRANSPOSED and "buffers" not in given else (one.buffers,)
        configs = (pairs_of(dataclasses.replace(found, buffers=count)) for count in counts)
        return next((config for config in configs if self.plan_of(shape, config) is not None), None)

    def plan_of(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, config, shape.extras.bias, shape.cores)[0]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        ways = [{"split": value} for value in (0, 1)] + [{"pixels": value} for value in (0, 1, TRANSPOSED)]
        ways += [{"beside": count} for count in (1, 2, 4) if wide and count <= most_beside(shape.geometry)]
        best = self.best(shape, {}, WIDE_BEST if wide else BEST)
        if any(dict(one.config or ())["side"] > 1 for one in best):
            best += self.best(shape, {"side": 1}, BEST)
        return [*(one.config for one in best), *(self.settle(shape, config_of(**way)) for way in ways)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(config or ())
        P, Q = shape.geometry.rows.out, shape.geometry.columns.out
        rows = [one for one in _around(now["rows"], P) if one <= P]
        columns = [one for one in _around(now["columns"], Q) if now["beside"] <= one <= Q]
        return list(BlocksSettings.near(config, rows=rows, columns=columns))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan_of(shape, self.settle(shape, config))
        return {
            "passes": len(plan.passes),
            "tiles": sum(len(one.tiles) for one in plan.passes),
            "banks": sum(len(jobs) for one in plan.passes for jobs in one.rounds),
            **ints(plan),
        }


def _least(bound: BlocksBound, given: Mapping[str, Any], count: int) -> list[tuple[float, BlocksSettings]]:
    """(ns, settings) of the few of least time, the first of those alike."""
    kept: list[tuple[float, int, BlocksSettings]] = []
    for at, one in enumerate(_sizes(bound, given)):
        if len(kept) < count or bound.array_ns(one) < -kept[0][0]:
            buffers = given.get("buffers") or bound.buffers(one)
            if buffers:
                one = dataclasses.replace(one, buffers=buffers)
                add = heapq.heappush if len(kept) < count else heapq.heappushpop
                add(kept, (-bound.ns(one), -at, one))
    return [(-ns, one) for ns, _, one in sorted(kept, key=lambda one: one[:2], reverse=True)]


def _around(now: int, whole: int) -> list[int]:
    """Extents next to one: the neighbours among EXTENTS, and all."""
    below, above = [one for one in EXTENTS if one < now][-2:], [one for one in EXTENTS if one > now][:2]
    return [*below, *above, whole]


def _sizes(bound: BlocksBound, given: Mapping[str, Any]) -> Iterator[BlocksSettings]:
    """Settings to compare that have the given ones, but for buffers and warm-up."""
    geometry, is_transposed = bound.geometry, bound.pixels > 0
    P, Q, K, C = geometry.rows.out, geometry.columns.out, geometry.K // geometry.groups, geometry.C // geometry.groups
    # x's runs would be short otherwise
    wide = (Q,) if geometry.x_strides[0] != 1 else _parts(Q, EXTENTS)
    shapes = list(product(choices(given, "rows", _parts(P, EXTENTS)), choices(given, "columns", wide)))
    whole = div_ceil(K, PARTITIONS)
    besides = choices(given, "beside", (one for one in (1, 2, 4) if one <= most_beside(geometry)))
    for beside, side in product(besides, choices(given, "side", (1,) if is_transposed else SIDES)):
        most = max_channels(geometry, beside)
        # several row tiles pay where planes are blocks, whose zeros are left out
        some = [one for one in shapes if one[1] >= beside and (side == 1 or "side" in given or one == (P, Q))]
        blocks, own = _full(geometry, some, beside, bound.most // side), div_ceil(C, side)
        # accumulators of channels that are transposed together need not wait for others
        widths = (most, min(most, PARTITIONS)) if bound.pixels == TRANSPOSED else (most,)
        for channels in choices(given, "channels", (div_ceil(own, div_ceil(own, one)) for one in widths)):
            parts = div_ceil(C, channels)
            ways = choices(given, "outputs", _parts(whole, OUTPUTS)), choices(given, "inputs", _parts(parts, INPUTS))
            for outputs, inputs in product(*ways):
                passes = geometry.groups * div_ceil(whole, outputs) * div_ceil(parts, inputs)
                # many passes are shared as well as halves are, whose sums the cores need not add
                splits = choices(given, "split", (0, 1) if passes < FEW_PASSES else (0,))
                for split, (rows, columns) in product(splits, blocks):
                    yield BlocksSettings(rows, columns, channels, outputs, inputs, beside, side, 1, 0, split, 0)


def _full(geometry: Any, shapes: list[tuple[int, int]], beside: int, most: int) -> list[tuple[int, int]]:
    """Of shapes of blocks (rows, columns), so many of a tile, those that leave little of the Tensor Engine idle."""
    taken = [
        div_ceil(units_in(geometry, rows, columns), most) * rows * div_ceil(columns, beside) for rows, columns in shapes
    ]
    return [one for one, columns in zip(shapes, taken, strict=True) if columns <= IDLE * min(taken)]


def _parts(whole: int, values: tuple[int, ...]) -> list[int]:
    """These values as far as a whole, half of it and all."""
    return up_to(whole, (*values, div_ceil(whole, 2), whole))


ALGORITHM = Blocks()
