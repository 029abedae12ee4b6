"""`blocks` on the host: which settings it takes best."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....kernels._tiles import div_ceil
from ....kernels.gradients.config import (
    TURNED,
    WeightConfig,
    max_channels,
    most_beside,
    units_in,
    weight_config_refusal,
)
from ....kernels.gradients.pixels import gy_to_pixels, pixels_of, takes_pixels, turns_pixels, x_to_pixels
from ....kernels.gradients.plan import plan_weight
from ....kernels.gradients.turned import turned_of
from ....kernels.gradients.units import planes_of
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, changed, config_of, ints, pairs_of
from ..conv.relayout import copy_ns
from .blocks_price import BlocksPrice, Sizes
from .blocks_turned import Turned

#: Rows and columns of a block that are tried, beside all of them.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32)
#: Banks of a pass along output and input channels that are tried, beside half of them and all.
OUTPUTS, INPUTS = (1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 7, 8)
#: Passes from which on cores do not share halves; what blocks may take of the array over those that take least.
MANY_PASSES, IDLE = 8, 1.3
#: Matmuls on zeros that a search tries.
WARM_UPS = (0, 28, 44, 60, 80)
#: Settings of least time that a search starts from, and a wide one.
BEST, WIDE_BEST = 10, 40
#: Settings to fall back on where the kernel's own plan refuses better ones.
SPARE = 6


class Blocks(Algorithm):
    """A partition is a block of gy with the window of x around it."""

    def guesses(self, shape: Shape) -> list[Guess]:
        found = self.guess(shape, None)
        return [] if found is None else [found]

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        best = self._best(shape, dict(config or ()))
        return best[0] if best and self._plan(shape, best[0].config) is not None else None

    def settle(self, shape: Shape, config: Config) -> Config:
        given = dict(config or ())
        if weight_config_refusal(shape.geometry, config):
            return config
        if len(given) == len(dataclasses.fields(WeightConfig)):
            return pairs_of(WeightConfig(**given))
        best = shape.once(("blocks, best", config), lambda: self._best(shape, given))
        return best[0].config if best else config

    def _best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        """Of settings that have the given ones some of least time, of x and gy as they lie, or of copies of them."""
        found: list[Guess] = []
        for pixels in _choices(given, "pixels", (0, 1, TURNED)):
            geometry, copied_ns, source = shape.geometry, 0.0, None
            if turns_pixels(geometry, (("pixels", pixels),)):
                geometry, source = turned_of(geometry), geometry
            elif takes_pixels(geometry, (("pixels", pixels),)):
                copies = x_to_pixels(geometry) + gy_to_pixels(geometry)
                geometry, copied_ns = pixels_of(geometry), sum(copy_ns(shape.target, one) for one in copies)
            elif pixels and "pixels" not in given:
                continue
            price = BlocksPrice(shape.target, geometry)
            sizes = _sizes(geometry, source, given)
            best = heapq.nsmallest(count + SPARE, (price.settled(one, given) for one in sizes), key=_first)
            kept = 0
            for ns, one in best:
                settings = {**one.settings, "warmup": price.warmup(one), **given, "pixels": pixels}
                guess = Guess(pairs_of(WeightConfig(**settings)), ns + copied_ns)
                if kept < count and (source is None or self._plan(shape, guess.config) is not None):
                    found.append(guess)
                    kept += 1
        return heapq.nsmallest(count, found, key=lambda one: one.ns)

    def _plan(self, shape: Shape, config: Config) -> Any:
        """The kernel's own plan; None of settings that it refuses."""
        bias = shape.extras.bias
        return shape.once(("blocks", config), lambda: plan_weight(shape.geometry, config, bias, shape.cores)[0])

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        ways = [{"split": value} for value in (0, 1)] + [{"pixels": value} for value in (0, 1, TURNED)]
        ways += [{"beside": count} for count in (1, 2, 4) if wide and count <= most_beside(shape.geometry)]
        best = self._best(shape, {}, WIDE_BEST if wide else BEST)
        return [*(one.config for one in best), *(self.settle(shape, config_of(**way)) for way in ways)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(config or ())
        P, Q = shape.geometry.rows.out, shape.geometry.columns.out
        others = {
            "buffers": [one for one in (now["buffers"] - 1, now["buffers"] + 1, 2 * now["buffers"]) if one],
            "rows": [one for one in _around(now["rows"], P) if one <= P],
            "columns": [one for one in _around(now["columns"], Q) if now["beside"] <= one <= Q],
            "outputs": (now["outputs"] // 2, now["outputs"] * 2),
            "inputs": (now["inputs"] - 1, now["inputs"] + 1, now["inputs"] * 2),
            "warmup": WARM_UPS,
            "split": (1 - now["split"],),
        }
        return changed(config, ("rows", "columns", "outputs", "inputs", "buffers"), **others)

    def unit(self, shape: Shape, config: Config) -> int:
        return 1

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self._plan(shape, self.settle(shape, config))
        return {
            "passes": len(plan.passes),
            "tiles": sum(len(one.tiles) for one in plan.passes),
            "banks": sum(len(jobs) for one in plan.passes for jobs in one.rounds),
            **ints(plan),
        }

    def settled(self, shape: Shape, config: Config) -> Any:
        return self.settle(shape, config)


def _first(one: tuple[float, Sizes]) -> float:
    return one[0]


def _choices(given: Mapping[str, Any], name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Values of a setting: the given one, or these."""
    return (given[name],) if name in given else tuple(dict.fromkeys(values))


def _around(now: int, whole: int) -> list[int]:
    """Extents next to one: the neighbours among EXTENTS, and all."""
    below, above = [one for one in EXTENTS if one < now][-2:], [one for one in EXTENTS if one > now][:2]
    return [*below, *above, whole]


def _sizes(geometry: Any, source: Any, given: Mapping[str, Any]) -> Iterator[Sizes]:
    """Settings to compare that have the given ones and fit. source: of x and gy that are turned, or None."""
    runs = () if source is None else tuple(one.count for one in planes_of(source.planes))
    shapes = [
        (rows, columns, None if source is None else Turned(source, runs, rows, columns))
        for rows in _choices(given, "rows", _up_to(geometry.rows.out, EXTENTS))
        for columns in _columns(geometry, given)
    ]
    K, C = geometry.K // geometry.groups, geometry.C // geometry.groups
    whole = div_ceil(K, PARTITIONS)
    for beside in _choices(given, "beside", (one for one in (1, 2, 4) if one <= most_beside(geometry))):
        most, blocks = max_channels(geometry, beside), _full(geometry, shapes, beside)
        # banks of a chunk that is turned need not wait for others
        some = (most,) if source is None else (most, min(most, PARTITIONS))
        for channels in _choices(given, "channels", (div_ceil(C, div_ceil(C, one)) for one in some)):
            parts = div_ceil(C, channels)
            for outputs in _choices(given, "outputs", _up_to(whole, OUTPUTS)):
                for inputs in _choices(given, "inputs", _up_to(parts, INPUTS)):
                    passes = geometry.groups * div_ceil(whole, outputs) * div_ceil(parts, inputs)
                    # many passes are shared as well as halves are, whose sums the cores need not add
                    for split in _choices(given, "split", (0, 1) if passes < MANY_PASSES else (0,)):
                        sizes = Sizes(geometry, channels, outputs, inputs, beside, split)
                        yield from sizes.with_blocks(blocks)


def _full(geometry: Any, shapes: list[tuple[int, int, Any]], beside: int) -> list[tuple[int, int, Any]]:
    """Of shapes of blocks (rows, columns, ...) those that leave little of the array idle."""
    taken = [
        div_ceil(units_in(geometry, rows, columns), PARTITIONS) * rows * div_ceil(columns, beside)
        for rows, columns, *_ in shapes
    ]
    return [one for one, columns in zip(shapes, taken, strict=True) if columns <= IDLE * min(taken)]


def _columns(geometry: Any, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Columns of blocks: all where runs of x would be short otherwise."""
    Q = geometry.columns.out
    return _choices(given, "columns", (Q,) if geometry.x_strides[0] != 1 else _up_to(Q, EXTENTS))


def _up_to(most: int, values: Iterable[int]) -> list[int]:
    """These values below the most, half of it and all."""
    return sorted({one for one in (*values, div_ceil(most, 2), most) if one <= most})


ALGORITHM = Blocks()
