"""`dot` on the host: a unit is up to 128 channels of one image and a chunk of slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....schedules.dot import DotSettings, build, dot_config_unsupported, dot_settings, guess, warm_up_of
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of
from .common import issue_us, row_elements_us


class Dot(Algorithm):
    """Dot products of whole rows."""

    def complete(self, shape: Shape, config: Config) -> Config:
        if dot_config_unsupported(config):
            return config
        return pairs_of(dot_settings(shape.geometry, config, shape.target))

    def guesses(self, shape: Shape) -> list[Guess]:
        found = guess(shape.geometry, shape.options, shape.cores, shape.target)
        return [Guess(pairs_of(settings), ns) for settings, ns in found]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.complete(shape, config_of(block=size)) for size in ((8, 16, 4, 2) if wide else (8, 16))]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        config = self.complete(shape, config)
        plan, warmups = self._plan(shape, config), (0, warm_up_of(shape.target))
        return list(DotSettings.near(config, {"slots": plan.slots * plan.members}, warmup=warmups))

    def unit(self, shape: Shape, config: Config) -> int:
        return PARTITIONS * int(self._plan(shape, config).tiles)

    def least_us(self, shape: Shape, config: Config) -> float:
        geometry = shape.geometry
        moved = 2 * int(self._plan(shape, config).slots)  # transposed, and copied to SBUF: slots of x and of w
        tiles = geometry.N * geometry.summed * geometry.C / PARTITIONS / shape.cores
        return max(issue_us(shape, tiles * moved), row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return ints(self._plan(shape, config))

    def completed(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, config), dict(self.complete(shape, config) or ())["warmup"]

    def _plan(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, dot_settings(shape.geometry, config, shape.target))


ALGORITHM = Dot()
