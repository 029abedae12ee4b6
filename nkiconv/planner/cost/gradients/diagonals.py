"""`diagonals` on the host: which settings it takes best."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ....kernels._tiles import PARTS, QUADRANT, div_ceil
from ....kernels.conv.relayout import x_to_rows
from ....kernels.gradients.diagonals.config import (
    STEPS,
    STEPS_MAX,
    DiagonalsConfig,
    diagonals_config_refusal,
)
from ....kernels.gradients.diagonals.plan import diagonals_refusal, plan_diagonals
from ....kernels.gradients.diagonals.planes import gy_to_planes, planes_of_pixels, takes_planes
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Guess, Shape, changed, config_of, pairs_of
from ..conv.relayout import copy_ns
from .diagonals_price import DiagonalsPrice
from .enumerated import Enumerated, choices, up_to

#: Rows and columns of a block that are tried, groups of a tile of rows in a pass, and units of a partition.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32)
GROUPS, TOGETHER = (1, 2, 4, 8, 12, 16, 32, 64), (1, 2, 4)
#: Groups below each other that are tried.
BELOW = (1, 2, 4)
#: Matmuls on zeros before the first others, and those that a search tries.
WARM_UP, WARM_UPS = 40, (0, 20, 40, 80)
#: Settings of least time that a search starts from, and a wide one.
BEST, WIDE_BEST = 8, 32


class Diagonals(Enumerated):
    """Sums of all pairs of a block of gy and its window of x, of which diagonals are gathered."""

    settings = DiagonalsConfig

    def refused(self, shape: Shape, config: Config) -> bool:
        return bool(diagonals_config_refusal(shape.geometry, config) or diagonals_refusal(shape.geometry))

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        return None if shape.geometry.groups == 1 else super().guess(shape, config)

    def best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        found: list[Guess] = []
        for planes in choices(given, "planes", (0, 1)):
            geometry, copied_ns = shape.geometry, 0.0
            if takes_planes(geometry) and planes:
                copies = x_to_rows(geometry) + gy_to_planes(geometry)
                geometry, copied_ns = planes_of_pixels(geometry), sum(copy_ns(shape.target, one) for one in copies)
            elif planes and "planes" not in given:
                continue
            price = DiagonalsPrice(shape.target, geometry, shape.extras.bias)
            every = ((price.ns(one), one) for one in _settings(price, given, planes))
            best = heapq.nsmallest(count, every, key=lambda one: one[0])
            found += [Guess(pairs_of(one), ns + copied_ns) for ns, one in best]
        return heapq.nsmallest(count, found, key=lambda one: one.ns)

    def plan_of(self, shape: Shape, config: Config) -> Any:
        return plan_diagonals(shape.geometry, config, shape.extras.bias, shape.cores)[0]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if self.guess(shape, None) is None:
            return [None]
        ways = [{name: value} for name in ("split", "planes") for value in (0, 1)]
        ways += [{"side": side} for side in (1, 2, 4)]
        # some with each number of groups below each other: whose price says least about
        count = (WIDE_BEST if wide else BEST) // 2
        each = (one for below in BELOW for one in self.best(shape, {"below": below}, count))
        best = sorted(each, key=lambda one: one.ns)
        return [*(one.config for one in best), *(self.settle(shape, config_of(**way)) for way in ways)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.settle(shape, config) or ())
        if not now:
            return []
        values = {
            "buffers": (now["buffers"] - 1, min(STEPS_MAX, now["buffers"] + 1)),
            "groups": (now["groups"] // 2, now["groups"] - 1, now["groups"] + 1, now["groups"] * 2),
            "together": (now["together"] // 2, now["together"] * 2),
            "down": (div_ceil(now["down"], 2), now["down"] * 2),
            "across": (div_ceil(now["across"], 2), now["across"] * 2),
            "warmup": WARM_UPS,
        }
        return changed(config, ("buffers", "groups", "together", "down", "across"), **values)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        settled = self.settle(shape, config)
        plan = self.planned(shape, settled)
        return {"passes": len(plan.passes), "tiles": len(plan.tiles), "sums": plan.columns, **dict(settled or ())}


def _settings(price: DiagonalsPrice, given: Mapping[str, Any], planes: int) -> Iterator[DiagonalsConfig]:
    """Settings to compare that have the given ones."""
    geometry, P, Q = price.geometry, price.geometry.rows.out, price.geometry.columns.out
    last = geometry.x_strides[0] == 1 and geometry.C > 1
    tiles = div_ceil(geometry.planes.out * P * Q, QUADRANT)
    rest = {"buffers": STEPS, "split": 0, "warmup": WARM_UP, **given, "planes": planes}
    ways = product(choices(given, "side", (1, 2, 4)), choices(given, "below", BELOW))
    for side, below in ways:
        most = div_ceil(geometry.groups, side)
        several = choices(given, "groups", [one for one in _groups(most) if one % below == 0 or one == most])
        for rows, columns in _blocks(price, given, side, below):
            down, across = div_ceil(P, rows), div_ceil(Q, columns)
            for i in choices(given, "down", _parts_of(down)):
                for j in choices(given, "across", _parts_of(across) if last else (across,)):
                    for groups in several:
                        for together in choices(given, "together", up_to(tiles, TOGETHER)):
                            found = {"rows": rows, "columns": columns, "down": i, "across": j, "side": side}
                            found["below"] = below
                            yield DiagonalsConfig(**{**rest, **found, "groups": groups, "together": together})


def _groups(most: int) -> list[int]:
    """Groups of a tile of rows in a pass."""
    return up_to(most, (div_ceil(most, PARTS), *GROUPS))


def _blocks(price: DiagonalsPrice, given: Mapping[str, Any], side: int, below: int) -> list[tuple[int, int]]:
    """(rows, columns) of blocks: for each number of rows those columns that take least of the array."""
    geometry, P, Q = price.geometry, price.geometry.rows.out, price.geometry.columns.out
    k, found = geometry.K // geometry.groups, []
    for rows in choices(given, "rows", up_to(P, EXTENTS)):
        fit = [
            (div_ceil(Q, columns) * price.product_ns(rows, columns, side), columns)
            for columns in choices(given, "columns", up_to(Q, (*EXTENTS, Q)))
            if rows * columns * k <= PARTITIONS // below and price.fits_bank(rows, columns)
        ]
        found += [(rows, min(fit)[1])] if fit else []
    return found


def _parts_of(count: int) -> list[int]:
    """How many blocks of so many a unit may have."""
    return up_to(count, (count, div_ceil(count, 2), div_ceil(count, 4), 4, 3, 2, 1))


ALGORITHM = Diagonals()
