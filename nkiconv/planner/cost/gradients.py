"""The algorithms of filter gradients, by their candidates' bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

from ...schedules import blocks_candidates, gradient_algorithms, skewed
from ...schedules.blocks import BlocksSettings, columns_beside, in_places
from ...schedules.diagonals import DiagonalsSettings
from ..request import Config
from . import rows
from .algorithm import Algorithm, Guess, Shape, once


class ByBound(Algorithm):
    """An algorithm of `gradient_algorithms.ALGORITHMS`."""

    #: its settings; numbers of candidates of the least bound that a search, and a wide one, starts from
    settings: type[Any]
    starts = 8, 32

    def candidates(self, shape: Shape, config: Config, count: int = 1) -> list[Guess]:
        """The `count` settings of the least bound that agree with a config, the least first; [] if it is refused."""
        candidates = gradient_algorithms.ALGORITHMS[self.settings.algorithm][1]
        found = candidates(shape.target, shape.geometry, config, count, shape.options)
        return [Guess(one.pairs, ns) for ns, one in found]

    @once
    def guess(self, shape: Shape, config: Config) -> Guess | None:
        return next(iter(self.candidates(shape, config)), None)

    def guesses(self, shape: Shape, most_ns: float = math.inf) -> list[Guess]:
        found = self.guess(shape, None)
        return [] if found is None else [found]

    def complete(self, shape: Shape, config: Config) -> Config:
        whole = self.settings.whole(config)
        if whole is not None:
            return tuple(whole.pairs)
        found = self.guess(shape, config)
        return config if found is None else found.config

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [one.config for one in self.candidates(shape, None, self.starts[wide])] or [None]

    def completed(self, shape: Shape, config: Config) -> Any:
        algorithm = self.settings.algorithm
        return gradient_algorithms.plan_of(algorithm, shape.geometry, self.complete(shape, config), shape.options)[0]


class Blocks(ByBound):
    """A partition has a block of gy with its window of x."""

    settings, starts = BlocksSettings, (10, 40)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(config or ())
        if "rows" not in now:  # no schedule fits
            return []
        geometry = in_places(shape.geometry, config)
        P, Q = geometry.rows.out, geometry.columns.out
        rows = [one for one in _around(now["rows"], P) if one <= P]
        columns = [one for one in _around(now["columns"], Q) if columns_beside(geometry, now["beside"]) <= one <= Q]
        return list(BlocksSettings.near(config, rows=rows, columns=columns))


def _around(now: int, whole: int) -> list[int]:
    """Neighbours of an extent: two below and two above among EXTENTS, and the whole."""
    extents = blocks_candidates.EXTENTS
    below, above = [one for one in extents if one < now][-2:], [one for one in extents if one > now][:2]
    return [*below, *above, whole]


class Diagonals(ByBound):
    """Sums of all pairs of a block of gy and its window of x, from which diagonals are gathered."""

    settings = DiagonalsSettings

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.complete(shape, config) or ())
        if not now:
            return []
        sizes = {name: now[name] for name in ("groups", "down", "across")}
        return list(DiagonalsSettings.near(config, sizes))


class Skewed(ByBound):
    """Blocks of gy times windows of x, and sums of their skewed diagonals."""

    settings = skewed.SkewedSettings

    def candidates(self, shape: Shape, config: Config, count: int = 1) -> list[Guess]:
        found = skewed.candidates(shape.target, shape.geometry, config)
        fits = (one for one in found if skewed.build(shape.geometry, one[1].pairs)[0])
        return [Guess(one.pairs, ns) for ns, one in islice(fits, count)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(skewed.SkewedSettings.near(self.complete(shape, config)))

    def completed(self, shape: Shape, config: Config) -> Any:
        return skewed.build(shape.geometry, self.complete(shape, config))[0]


def _of_rows(name: str) -> Callable[..., Any]:
    """The method of this name of an algorithm's base, asked for the rows' Shape."""
    return lambda self, shape, *more: getattr(self.base, name)(shape.options, *more)


class OfRows(Algorithm):
    """Filter gradients of depthwise rows by an algorithm of depthwise convolutions, for the convolution of x with gy: a
    Shape's options are the Shape of that convolution."""

    def __init__(self, base: Algorithm) -> None:
        self.base, self.order = base, base.order

    guesses, refined, is_short = _of_rows("guesses"), _of_rows("refined"), _of_rows("is_short")
    complete, near, completed = _of_rows("complete"), _of_rows("near"), _of_rows("completed")

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        # algorithms without guesses take a matmul a tap, and gy has as many taps as positions
        rows = shape.options
        return self.base.configs(rows, wide) if wide or self.base.guesses(rows) else []


ALGORITHMS: dict[str, Algorithm] = {"blocks": Blocks(), "diagonals": Diagonals()}
ALGORITHMS_OF_ROWS: dict[str, Algorithm] = {
    **{name: OfRows(one) for name, one in rows.ALGORITHMS.items()},
    "skewed": Skewed(),
}
