"""`diagonals` on the host: which settings it takes best."""

from __future__ import annotations

from typing import Any

from ....schedules.diagonals import DiagonalsSettings, build
from ....schedules.diagonals_candidates import BELOW, candidates
from ...request import Config
from ..algorithm import ByBound, Guess, Shape, config_of


class Diagonals(ByBound):
    """Sums of all pairs of a block of gy and its window of x, of which diagonals are gathered."""

    settings = DiagonalsSettings

    def candidates(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        return [Guess(one.pairs, ns) for ns, one in candidates(shape.target, shape.geometry, config_of(**given), count)]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if self.guess(shape, None) is None:
            return [None]
        ways: list[dict[str, Any]] = [{"split": value} for value in (0, 1)]
        ways += [{"split": 1, "strips": value} for value in (0, 1)] + [{"side": side} for side in (1, 2, 4)]
        # some with each number of groups below each other: of which the bound says least
        count = self.starts[wide] // 2
        strips = (0, 1) if shape.geometry.rows.out > 1 else (0,)
        given = [{"below": below, "strips": one} for below in BELOW for one in strips]
        each = [one for some in given for one in self.candidates(shape, some, count)]
        each += [one for way in ways for one in self.candidates(shape, way)]
        return [one.config for one in sorted(each, key=lambda one: one.ns)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(self.complete(shape, config) or ())
        if not now:
            return []
        sizes = {name: now[name] for name in ("buffers", "groups", "down", "across")}
        return list(DiagonalsSettings.near(config, sizes))

    def completed(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, self.complete(shape, config), shape.options.bias, shape.cores)[0]


ALGORITHM = Diagonals()
