"""`diagonals` on the host: which settings it takes best."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ....kernels.gradients.diagonals.defaults import diagonals_config_refusal
from ....kernels.gradients.diagonals.plan import diagonals_refusal, plan_diagonals
from ....schedules.diagonals import BUFFERS, DiagonalsSettings
from ....schedules.tiles import PARTS, div_ceil
from ...request import Config
from ..algorithm import Guess, Shape, pairs_of
from .diagonals_price import DiagonalsPrice
from .enumerated import Enumerated, choices, up_to

#: Rows and columns of a block that are tried, and groups of a tile of rows in a pass.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32, 64, 128)
GROUPS = (1, 2, 4, 8, 12, 16, 32, 64)
#: Groups below each other that are tried, and beside each other.
BELOW, BESIDE = (1, 2, 4), (1, 2, 4, 8, 16, 32)
#: Matmuls on zeros before the first others.
WARM_UP = 40
#: Settings of least time that a search starts from, and a wide one.
BEST, WIDE_BEST = 8, 32
#: Settings that are priced, at most: those that take least of the array.
PRICED = 20_000


class Diagonals(Enumerated):
    """Sums of all pairs of a block of gy and its window of x, of which diagonals are gathered."""

    settings = DiagonalsSettings

    def refused(self, shape: Shape, config: Config) -> bool:
        return bool(diagonals_config_refusal(shape.geometry, config) or diagonals_refusal(shape.geometry))

    def best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        price = DiagonalsPrice(shape.target, shape.geometry, shape.extras.bias)
        found: list[tuple[float, int, int, DiagonalsSettings]] = []
        priced = 0
        for bound_ns, place, units in sorted(_bounds(price, given), key=lambda one: one[:2]):
            if len(found) == count and (bound_ns > found[-1][0] or priced > PRICED):
                break
            every = [(price.ns(one), place, i, one) for i, one in enumerate(_settings(price, given, units))]
            found, priced = heapq.nsmallest(count, [*found, *every]), priced + len(every)
        return [Guess(pairs_of(one), ns) for ns, _, _, one in found]

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
        sizes = {name: now[name] for name in ("buffers", "groups", "down", "across")}
        return list(DiagonalsSettings.near(config, sizes))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        settled = self.settle(shape, config)
        plan = self.planned(shape, settled)
        return {"passes": len(plan.passes), "tiles": len(plan.tiles), "sums": plan.columns, **dict(settled or ())}


#: side, below, beside, rows, columns, down and across of units.
Units = tuple[int, int, int, int, int, int, int]


def _bounds(price: DiagonalsPrice, given: Mapping[str, Any]) -> Iterator[tuple[float, int, Units]]:
    """(ns that the array takes at least, place, units) of all units to compare that have the given settings."""
    geometry, place = price.geometry, 0
    sets = [one for one in BESIDE if geometry.groups % one == 0]
    ways = product(choices(given, "side", (1, 2, 4)), choices(given, "below", BELOW), choices(given, "beside", sets))
    for side, below, beside in ways:
        for rows, columns in _blocks(price, given, (side, below, beside)):
            down, across = div_ceil(geometry.rows.out, rows), div_ceil(geometry.columns.out, columns)
            for i in choices(given, "down", _parts_of(down)):
                for j in choices(given, "across", _parts_of(across)):
                    units = side, below, beside, rows, columns, i, j
                    yield price.array_least_ns(*units), place, units
                    place += 1


def _settings(price: DiagonalsPrice, given: Mapping[str, Any], units: Units) -> Iterator[DiagonalsSettings]:
    """Settings of such units to compare that have the given ones."""
    side, below, beside, rows, columns, down, across = units
    geometry = price.geometry
    last = geometry.x_strides[0] == 1 and geometry.C > 1
    rest = {"buffers": BUFFERS, "split": 0, "warmup": WARM_UP, **given}
    most = div_ceil(geometry.groups // beside, side)
    strips = choices(given, "strips", (0, 1) if last and down * rows < geometry.rows.out else (0,))
    for groups in choices(given, "groups", [one for one in _groups(most) if one % below == 0 or one == most]):
        for strip in strips:
            found = {"rows": rows, "columns": columns, "down": down, "across": across, "side": side}
            found |= {"beside": beside, "below": below, "groups": groups, "strips": strip}
            yield price.with_room(DiagonalsSettings(**{**rest, **found}), given)


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
