"""`skewed` on the host: which settings it takes best."""

from __future__ import annotations

from typing import Any

from ....schedules.skewed import SkewedSettings, build, candidates
from ....schedules.tiles import PARTS
from ...request import Config
from ..algorithm import ByBound, Guess, Shape, config_of


class Skewed(ByBound):
    """Blocks of gy times windows of x, whose skewed diagonals' sums are wanted."""

    settings = SkewedSettings

    def candidates(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        found = candidates(shape.target, shape.geometry, config_of(**given))
        return [Guess(one.pairs, ns) for ns, one in found if build(shape.geometry, one.pairs, PARTS)[0]][:count]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(SkewedSettings.near(config))

    def completed(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, self.complete(shape, config), PARTS)[0]


ALGORITHM = Skewed()
