"""`dot` on the host."""

from __future__ import annotations

from ....schedules.dot import DotSettings, warm_up_of
from ...request import Config
from ..algorithm import Shape, config_of
from .common import OfSchedule


class Dot(OfSchedule):
    """Dot products of whole rows."""

    def near(self, shape: Shape, config: Config) -> list[Config]:
        known, warmups = {"slots": self.completed(shape, config).slots}, (0, warm_up_of(shape.target))
        return list(DotSettings.near(self.settings_of(shape, config).pairs, known, warmup=warmups))


ALGORITHM = Dot("dot", *([config_of(block=size) for size in sizes] for sizes in ((8, 16), (8, 16, 4, 2))))
