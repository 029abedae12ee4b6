"""`dot` on the host."""

from __future__ import annotations

from typing import Any

from ....schedules.dot import DotSettings, build, dot_config_unsupported, dot_settings, guess, warm_up_of
from ...request import Config
from ..algorithm import Shape, config_of
from .common import OfSchedule


class Dot(OfSchedule):
    """Dot products of whole rows."""

    def unsupported(self, shape: Shape, config: Config) -> str:
        return dot_config_unsupported(config)

    def settings_of(self, shape: Shape, config: Config) -> DotSettings:
        return dot_settings(shape.geometry, config, shape.target)

    def plan(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, self.settings_of(shape, config))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.complete(shape, config_of(block=size)) for size in ((8, 16, 4, 2) if wide else (8, 16))]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settings, plan = self.settings_of(shape, config), self.plan(shape, config)
        known = {"slots": plan.slots}
        return list(DotSettings.near(settings.pairs, known, warmup=(0, warm_up_of(shape.target))))

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.plan(shape, config), self.settings_of(shape, config).warmup


ALGORITHM = Dot(guess)
