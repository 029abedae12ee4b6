"""`update` on the host: the stages as the kernel has them, by who multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....schedules.update import UpdateSchedule, UpdateSettings, build, guess, update_settings
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of


class Update(Algorithm):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def complete(self, shape: Shape, config: Config) -> Config:
        return config if UpdateSettings.unsupported_reason(config) else pairs_of(self._settings(shape, config))

    def guesses(self, shape: Shape) -> list[Guess]:
        found = guess(shape.geometry, shape.options, shape.cores, shape.target)
        return [Guess(pairs_of(settings), ns) for settings, ns in found]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.complete(shape, config_of(engine=engine)) for engine in ("tensor", "vector")]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        config = self.complete(shape, config)
        if dict(config or ())["engine"] == "vector":
            return []
        return list(UpdateSettings.near(config))

    def unit(self, shape: Shape, config: Config) -> int:
        settings = self._settings(shape, config)
        if settings.engine == "vector":
            return PARTITIONS
        plan = self._plan(shape, settings)
        return max(1, int(plan.pieces * plan.channels * plan.groups))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, self._settings(shape, config)))

    def completed(self, shape: Shape, config: Config) -> Any:
        settings = self._settings(shape, config)
        if settings.engine == "vector":
            return settings.engine
        return self._plan(shape, settings), settings.vector_reads, settings.warmup

    def _settings(self, shape: Shape, config: Config) -> UpdateSettings:
        """All settings."""
        return update_settings(shape.geometry, shape.options, config, shape.target)

    def _plan(self, shape: Shape, settings: UpdateSettings) -> UpdateSchedule:
        found: UpdateSchedule = build(shape.geometry, shape.options.state, settings)
        return found


ALGORITHM = Update()
