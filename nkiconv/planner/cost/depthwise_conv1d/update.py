"""`update` on the host."""

from __future__ import annotations

from ....schedules.update import ENGINES, UpdateSettings
from ...request import Config
from ..algorithm import Shape, config_of
from .common import OfSchedule


class Update(OfSchedule):
    """Images on partitions, for many short rows; or Vector alone, for few."""

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settings = self.settings_of(shape, config)
        return [] if settings.engine == "vector" else list(UpdateSettings.near(settings.pairs))


ALGORITHM = Update("update", *[[config_of(engine=engine) for engine in ENGINES]] * 2)
