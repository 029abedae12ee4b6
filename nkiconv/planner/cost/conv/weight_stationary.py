"""`weight_stationary` and `stacked` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....schedules.conv_algorithms import seen_by
from ....schedules.relayout import relayout_ns
from ....schedules.settings import declarations
from ....schedules.weight_stationary_candidates import FAMILIES, candidates
from ...request import Config
from ..algorithm import Guess, Shape, with_settings
from .common import Conv2dAlgorithm


class OfBlocks(Conv2dAlgorithm):
    """An algorithm whose Schedules are of outputs in blocks, one of FAMILIES.

    timed: candidates, at most, and how far above the least bound they may be.
    """

    timed: tuple[int, float]

    def _least(self, shape: Shape, config: Config) -> list[tuple[float, Any]]:
        """(bound, settings) of candidates that have some settings, the least first."""
        geometry = seen_by(self.algorithm, shape.geometry, None)

        def found() -> list[tuple[float, Any]]:
            return candidates(self.algorithm, shape.target, geometry, shape.options, shape.cores, config)

        return shape.once((f"{self.algorithm}, bounds", config), found)

    def guesses(self, shape: Shape) -> list[Guess]:
        most, near = self.timed
        found = self._least(shape, None)[:most]
        copies_ns = relayout_ns(shape.target, self.algorithm, shape.geometry, shape.options)
        return [Guess(one.pairs, copies_ns + ns) for ns, one in found if ns <= near * found[0][0]]

    def candidates(self, shape: Shape, geometry: Any, config: Config) -> Iterator[Config]:
        family, given = FAMILIES[self.algorithm], dict(config or ())
        if family.unsupported_reason(geometry, shape.options, config):
            return
        settings = family.settings_class(geometry, config)
        if given.keys() == declarations(settings).keys():
            yield settings(**given).pairs
        else:
            yield from (one.pairs for _, one in self._least(shape, config))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [one.pairs for _, one in self._least(shape, None)] or [None]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        complete = self.complete(shape, config)
        settings = FAMILIES[self.algorithm].settings_class(shape.geometry, complete)
        sizes = [tuple(pair for pair in one.pairs if pair[0] in self.order) for _, one in self._least(shape, None)]
        others = [with_settings(complete, **dict(one)) for one in dict.fromkeys(sizes) if one]
        return [*settings.near(complete), *(one for one in others if one != complete)]


class WeightStationary(OfBlocks):
    """Groups on row tiles, transposed convolutions phase by phase, and M packing."""

    algorithm, timed = "weight_stationary", (3, 1.15)
    order = ("rows", "height", "width", "outputs", "depth", "taps", "lanes")


ALGORITHM = WeightStationary()
