"""`blocks` on the host: which settings it takes best."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from ....kernels.gradients.defaults import (
    FEW_PASSES,
    max_channels,
    most_beside,
    units_in,
    weight_config_refusal,
)
from ....kernels.gradients.lines import LINES, TURNED, has_lines, lines_of, turns_pixels, units_of_tile
from ....kernels.gradients.plan import plan_weight
from ....kernels.gradients.turned import turned_of
from ....kernels.gradients.units import planes_of
from ....schedules.blocks import BlocksSettings
from ....schedules.tiles import div_ceil
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Guess, Shape, config_of, ints, pairs_of
from .blocks_price import BlocksPrice, Sizes
from .blocks_turned import Turned
from .enumerated import Enumerated, choices, up_to

#: Rows and columns of a block that are tried, beside all of them.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32)
#: Banks of a pass along output and input channels that are tried, beside half of them and all.
OUTPUTS, INPUTS = (1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 7, 8)
#: Tiles of the array's rows that are tried.
SIDES = (1, 2, 4)
#: What blocks may take of the array over those that take least.
IDLE = 1.3
#: Settings of least time that a search starts from, and a wide one.
BEST, WIDE_BEST = 10, 40
#: Settings to fall back on where the kernel's own plan refuses better ones.
SPARE = 6


class Blocks(Enumerated):
    """A partition is a block of gy with the window of x around it."""

    settings = BlocksSettings

    def refused(self, shape: Shape, config: Config) -> bool:
        return bool(weight_config_refusal(shape.geometry, config))

    def best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        found: list[Guess] = []
        for pixels in choices(given, "pixels", (0,) if given.get("side", 1) > 1 else (0, LINES, TURNED)):
            geometry, lines, source, fixed = shape.geometry, None, None, {}
            if turns_pixels(geometry, (("pixels", pixels),)):
                geometry, source = turned_of(geometry), geometry
            elif pixels == LINES and has_lines(geometry):
                (geometry, lines), fixed = lines_of(geometry), {"columns": 1, "beside": 1}
            elif pixels and "pixels" not in given:
                continue
            price = BlocksPrice(shape.target, geometry, lines)
            known = {**given, **fixed, "pixels": pixels}
            least = Least(count + SPARE)

            def admits(one: Sizes, price: BlocksPrice = price, least: Least = least) -> bool:
                return price.least_ns(one) <= least.most_ns

            for one in _sizes(geometry, source, known, units_of_tile(geometry, lines is not None), admits):
                least.add(*price.settled(one, given))
            kept = 0
            for ns, one in least.found():
                settings = {**one.settings, "warmup": price.warmup(one), **given, "pixels": pixels}
                guess = Guess(pairs_of(BlocksSettings(**settings)), ns)
                if kept < count and self.planned(shape, guess.config) is not None:
                    found.append(guess)
                    kept += 1
        return heapq.nsmallest(count, found, key=lambda one: one.ns)

    def plan_of(self, shape: Shape, config: Config) -> Any:
        return plan_weight(shape.geometry, config, shape.extras.bias, shape.cores)[0]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        ways = [{"split": value} for value in (0, 1)] + [{"pixels": value} for value in (0, 1, TURNED)]
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
        plan = self.planned(shape, self.settle(shape, config))
        return {
            "passes": len(plan.passes),
            "tiles": sum(len(one.tiles) for one in plan.passes),
            "banks": sum(len(jobs) for one in plan.passes for jobs in one.rounds),
            **ints(plan),
        }


class Least:
    """Of all sizes that are added the few that take least, in order, the first added of those alike."""

    def __init__(self, count: int) -> None:
        self._count, self._added, self._kept = count, 0, list[tuple[float, int, Sizes]]()

    @property
    def most_ns(self) -> float:
        """What others must not take more than to be among them."""
        return -self._kept[0][0] if len(self._kept) == self._count else math.inf

    def add(self, ns: float, sizes: Sizes) -> None:
        """Keep these, where they are among the few."""
        self._added += 1
        push = heapq.heappush if len(self._kept) < self._count else heapq.heappushpop
        push(self._kept, (-ns, -self._added, sizes))

    def found(self) -> list[tuple[float, Sizes]]:
        """They, those of least time first."""
        return [(-ns, one) for ns, _, one in sorted(self._kept, key=lambda one: one[:2], reverse=True)]


def _around(now: int, whole: int) -> list[int]:
    """Extents next to one: the neighbours among EXTENTS, and all."""
    below, above = [one for one in EXTENTS if one < now][-2:], [one for one in EXTENTS if one > now][:2]
    return [*below, *above, whole]


def _sizes(
    geometry: Any, source: Any, given: Mapping[str, Any], units: int, admits: Callable[[Sizes], bool]
) -> Iterator[Sizes]:
    """Settings to compare that have the given ones and fit. source: of x and gy that are turned, or None; units: of a
    tile; admits: whether settings, but for their buffers, are to be compared."""
    runs = () if source is None else tuple(one.count for one in planes_of(source.planes))
    shapes = [
        (rows, columns, None if source is None else Turned(source, runs, rows, columns))
        for rows in choices(given, "rows", _parts(geometry.rows.out, EXTENTS))
        for columns in _columns(geometry, given)
    ]
    K, C = geometry.K // geometry.groups, geometry.C // geometry.groups
    whole, is_turned = div_ceil(K, PARTITIONS), source is not None or given["pixels"] > 0
    planes = geometry.rows.out, geometry.columns.out
    for beside in choices(given, "beside", (one for one in (1, 2, 4) if one <= most_beside(geometry))):
        most = max_channels(geometry, beside)
        for side in choices(given, "side", (1,) if is_turned else SIDES):
            tile = units // side
            blocks = _full(geometry, shapes, beside, tile)
            if side > 1 and "side" not in given:
                # what they gain by: zeros around planes are left out
                blocks = [one for one in blocks if one[:2] == planes]
            # banks of a chunk that is turned need not wait for others
            some = (most,) if source is None else (most, min(most, PARTITIONS))
            own = div_ceil(C, side)
            for channels in choices(given, "channels", (div_ceil(own, div_ceil(own, one)) for one in some)):
                parts = div_ceil(C, channels)
                for outputs, inputs in product(
                    choices(given, "outputs", _parts(whole, OUTPUTS)), choices(given, "inputs", _parts(parts, INPUTS))
                ):
                    passes = geometry.groups * div_ceil(whole, outputs) * div_ceil(parts, inputs)
                    # many passes are shared as well as halves are, whose sums the cores need not add
                    for split in choices(given, "split", (0, 1) if passes < FEW_PASSES else (0,)):
                        sizes = Sizes(geometry, channels, outputs, inputs, beside, split, side, most=tile)
                        yield from sizes.with_blocks(blocks, admits)


def _full(geometry: Any, shapes: list[tuple[int, int, Any]], beside: int, most: int) -> list[tuple[int, int, Any]]:
    """Of shapes of blocks (rows, columns, ...), so many of a tile, those that leave little of the array idle."""
    taken = [
        div_ceil(units_in(geometry, rows, columns), most) * rows * div_ceil(columns, beside)
        for rows, columns, *_ in shapes
    ]
    return [one for one, columns in zip(shapes, taken, strict=True) if columns <= IDLE * min(taken)]


def _columns(geometry: Any, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Columns of blocks: all where runs of x would be short otherwise."""
    Q = geometry.columns.out
    return choices(given, "columns", (Q,) if geometry.x_strides[0] != 1 else _parts(Q, EXTENTS))


def _parts(whole: int, values: Iterable[int]) -> list[int]:
    """These values as far as a whole, half of it and all."""
    return up_to(whole, (*values, div_ceil(whole, 2), whole))


ALGORITHM = Blocks()
