"""`weight_stationary` and `stacked` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ....schedules.conv_algorithms import seen_by
from ....schedules.m_packing import PackedSettings
from ....schedules.relayout import plain_of, relayout_ns
from ....schedules.settings import Settings, declarations
from ....schedules.weight_stationary import (
    BLOCKS,
    SHARDS,
    TILE_ROWS,
    GroupsSettings,
    PhasesSettings,
    settings_class,
    unsupported_reason,
)
from ....schedules.weight_stationary_bound import Bound
from ....schedules.weight_stationary_candidates import candidates, ways
from ...request import Config
from ..algorithm import Guess, Shape, config_of, with_settings
from .common import Conv2dAlgorithm


class OfBlocks(Conv2dAlgorithm):
    """An algorithm whose Schedules are of outputs in blocks.

    timed: candidates, at most, and how far above the least bound they may be.
    """

    timed: tuple[int, float]
    #: why the kernel does not run a problem with some settings, whatever those that are left open come to
    unsupported_reason: Callable[[Any, Any, Config], str]
    #: the kernel's dataclass of the settings that a problem has
    settings_of: Callable[[Any, Config], type[Settings]]

    def _least(self, shape: Shape, config: Config) -> list[tuple[float, Any]]:
        """(bound, settings) of candidates that have some settings, the least first."""
        geometry = seen_by(self.algorithm, shape.geometry, shape.options, None)

        def found() -> list[tuple[float, Any]]:
            return candidates(self.algorithm, shape.target, geometry, shape.options, shape.cores, config)

        return shape.once((f"{self.algorithm}, bounds", config), found)

    def guesses(self, shape: Shape) -> list[Guess]:
        most, near = self.timed
        found = self._least(shape, None)[:most]
        copies_ns = relayout_ns(shape.target, self.algorithm, shape.geometry, shape.options)
        return [Guess(one.pairs, copies_ns + ns) for ns, one in found if ns <= near * found[0][0]]

    def candidates(self, shape: Shape, geometry: Any, config: Config) -> Iterator[Config]:
        if self.unsupported_reason(geometry, shape.options, config):
            return
        settings, given = self.settings_of(geometry, config), dict(config or ())
        if given.keys() == declarations(settings).keys():
            yield settings(**given).pairs
        else:
            yield from (one.pairs for _, one in self._least(shape, config))

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return Bound(shape.target, geometry, shape.options, plan).ns()


class WeightStationary(OfBlocks):
    """Groups on row tiles, and transposed convolutions phase by phase."""

    algorithm, unsupported_reason = "weight_stationary", staticmethod(unsupported_reason)
    settings_of = staticmethod(settings_class)
    order = ("rows", "height", "width", "outputs", "depth", "taps", "lanes")
    timed = 3, 1.15

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        geometry = plain_of(self.algorithm, shape.geometry)
        if settings_class(geometry) is not PhasesSettings or self.unsupported_reason(geometry, shape.options, None):
            return [None]
        some = [one for one in ways(geometry) if wide or one["beside"] in ("none", "columns")]
        return [None, *(config_of(**one, shard=shard) for one in some for shard in SHARDS)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        schedule = self.plan(shape, config)
        if schedule.shift is not None:
            return _near_packed(self.complete(shape, config), schedule.shift)
        if shape.geometry.groups == 1:
            return list(PhasesSettings.near(self.complete(shape, config)))
        now = schedule.rows, schedule.axes[1].beside, schedule.axes[2].beside
        sizes = [(rows, *block) for rows in TILE_ROWS for block in BLOCKS if (rows, *block) != now]
        found: list[Config] = [*GroupsSettings.near(config)]
        return found + [with_settings(config, rows=T, height=Uh, width=Uw) for T, Uh, Uw in sizes]


def _near_packed(config: Config, shift: Any) -> list[Config]:
    """Neighbours of M packing: rows of y and columns of taps change one at a time."""
    found: list[Config] = [*PackedSettings.near(config)]
    sizes = [(shift.U + step, shift.T) for step in (-1, 1, 2)] + [(shift.U, shift.T - 1), (shift.U, shift.T + 1)]
    return found + [with_settings(config, outputs=U, taps=T) for U, T in sizes if min(U, T) >= 1]


ALGORITHM = WeightStationary()
