"""`diagonals` on the host: which settings it takes best."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ....kernels._tiles import PARTS, div_ceil
from ....kernels.gradients.diagonals.config import (
    STEPS,
    STEPS_MAX,
    DiagonalsConfig,
    diagonals_config_refusal,
)
from ....kernels.gradients.diagonals.plan import diagonals_refusal, plan_diagonals
from ...request import Config
from ..algorithm import Guess, Shape, changed, pairs_of
from .diagonals_price import DiagonalsPrice
from .enumerated import Enumerated, choices, up_to

#: Rows and columns of a block that are tried, and groups of a tile of rows in a pass.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32, 64, 128)
GROUPS = (1, 2, 4, 8, 12, 16, 32, 64)
#: Groups below each other that are tried, and beside each other.
BELOW, BESIDE = (1, 2, 4), (1, 2, 4, 8, 16, 32)
#: Matmuls on zeros before the first others, and those that a search tries.
WARM_UP, WARM_UPS = 40, (0, 20, 40, 80)
#: Settings of least time that a search starts from, and a wide one.
BEST, WIDE_BEST = 8, 32


class Diagonals(Enumerated):
    """Sums of all pairs of a block of gy and its window of x, of which diagonals are gathered."""

    settings = DiagonalsConfig

    def refused(self, shape: Shape, config: Config) -> bool:
        return bool(diagonals_config_refusal(shape.geometry, config) or diagonals_refusal(shape.geometry))

    def best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        price = DiagonalsPrice(shape.target, shape.geometry, shape.extras.bias)
        every = ((price.ns(one), one) for one in _settings(price, given))
        best = heapq.nsmallest(count, every, key=lambda one: one[0])
        return [Guess(pairs_of(one), ns) for ns, one in best]

    def plan_of(self, shape: Shape, config: Config) -> Any:
        return plan_diagonals(shape.geometry, config, shape.extras.bias, shape.cores)[0]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if self.guess(shape, None) is None:
            return [None]
        ways: list[dict[str, Any]] = [{"split": value} for value in (0, 1)]
        ways += [{"split": 1, "strips": value} for value in (0, 1)] + [{"side": side} for side in (1, 2, 4)]
        # some with each number of groups below each other: whose price says least about
        count = (WIDE_BEST if wide else BEST) // 2
        strips = (0, 1) if shape.geometry.rows.out > 1 else (0,)
        given = [{"below": below, "strips": one} for below in BELOW for one in strips]
        each = [one for some in given for one in self.best(shape, some, count)]
        each += [one for way in ways for one in self.best(shape, way)]
        return [one.config for one in sorted(each, key=lambda one: one.ns)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.settle(shape, config) or ())
        if not now:
            return []
        values = {
            "buffers": (now["buffers"] - 1, min(STEPS_MAX, now["buffers"] + 1)),
            "groups": (now["groups"] // 2, now["groups"] - 1, now["groups"] + 1, now["groups"] * 2),
            "down": (div_ceil(now["down"], 2), now["down"] * 2),
            "across": (div_ceil(now["across"], 2), now["across"] * 2),
            "warmup": WARM_UPS,
        }
        return changed(config, ("buffers", "groups", "down", "across"), **values)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        settled = self.settle(shape, config)
        plan = self.planned(shape, settled)
        return {"passes": len(plan.passes), "tiles": len(plan.tiles), "sums": plan.columns, **dict(settled or ())}


def _settings(price: DiagonalsPrice, given: Mapping[str, Any]) -> Iterator[DiagonalsConfig]:
    """Settings to compare that have the given ones."""
    geometry, P, Q = price.geometry, price.geometry.rows.out, price.geometry.columns.out
    last = geometry.x_strides[0] == 1 and geometry.C > 1
    rest = {"buffers": STEPS, "split": 0, "warmup": WARM_UP, **given}
    sets = [one for one in BESIDE if geometry.groups % one == 0]
    ways = product(choices(given, "side", (1, 2, 4)), choices(given, "below", BELOW), choices(given, "beside", sets))
    for side, below, beside in ways:
        most = div_ceil(geometry.groups // beside, side)
        several = choices(given, "groups", [one for one in _groups(most) if one % below == 0 or one == most])
        for rows, columns in _blocks(price, given, (side, below, beside)):
            down, across = div_ceil(P, rows), div_ceil(Q, columns)
            for i in choices(given, "down", _parts_of(down)):
                for j in choices(given, "across", _parts_of(across)):
                    for groups in several:
                        for strips in choices(given, "strips", (0, 1) if last and i * rows < P else (0,)):
                            found = {"rows": rows, "columns": columns, "down": i, "across": j, "side": side}
                            found |= {"beside": beside, "below": below, "groups": groups, "strips": strips}
                            yield price.with_room(DiagonalsConfig(**{**rest, **found}), given)


def _groups(most: int) -> list[int]:
    """Groups of a tile of rows in a pass."""
    return up_to(most, (div_ceil(most, PARTS), *GROUPS))


def _blocks(price: DiagonalsPrice, given: Mapping[str, Any], way: tuple[int, int, int]) -> list[tuple[int, int]]:
    """(rows, columns) of blocks: for each number of rows those columns that take least of the array."""
    P, Q, found, (side, below, beside) = price.geometry.rows.out, price.geometry.columns.out, [], way
    for rows in choices(given, "rows", up_to(P, EXTENTS)):
        fit = [
            (div_ceil(Q, columns) * price.product_ns(rows, columns, beside, side), columns)
            for columns in choices(given, "columns", up_to(Q, (*EXTENTS, Q)))
            if price.fits(rows, columns, beside, below)
        ]
        found += [(rows, min(fit)[1])] if fit else []
    return found


def _parts_of(count: int) -> list[int]:
    """How many blocks of so many a unit may have."""
    return up_to(count, (count, div_ceil(count, 2), div_ceil(count, 4), 4, 3, 2, 1))


ALGORITHM = Diagonals()
