"""`update` on the host."""

from __future__ import annotations

from typing import Any

from ....schedules.update import UpdateSettings, build, guess, update_settings
from ...request import Config
from ..algorithm import Shape, config_of
from .common import OfSchedule


class Update(OfSchedule):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def unsupported(self, shape: Shape, config: Config) -> str:
        return UpdateSettings.unsupported_reason(config)

    def settings_of(self, shape: Shape, config: Config) -> UpdateSettings:
        return update_settings(shape.geometry, shape.options, config, shape.target)

    def plan(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, shape.options.state, self.settings_of(shape, config))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.complete(shape, config_of(engine=engine)) for engine in ("tensor", "vector")]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settings = self.settings_of(shape, config)
        return [] if settings.engine == "vector" else list(UpdateSettings.near(settings.pairs))

    def completed(self, shape: Shape, config: Config) -> Any:
        settings = self.settings_of(shape, config)
        if settings.engine == "vector":
            return settings.engine
        return self.plan(shape, config), settings.vector_reads, settings.warmup


ALGORITHM = Update(guess)
