"""`blocks` on the host: which settings it takes best."""

from __future__ import annotations

from typing import Any

from ....schedules.blocks import TRANSPOSED, BlocksSettings, config_unsupported, in_places, most_beside
from ....schedules.blocks_candidates import EXTENTS, candidates
from ....schedules.blocks_schedule import build, gradient_unsupported
from ...request import Config
from ..algorithm import ByBound, Guess, Shape, config_of


class Blocks(ByBound):
    """A partition is a block of gy with the window of x around it."""

    settings, starts = BlocksSettings, (10, 40)

    def candidates(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        refused = config_unsupported(shape.geometry, config_of(**given), shape.options.bias)
        if refused or gradient_unsupported(shape.geometry):
            return []
        found = candidates(shape.target, shape.geometry, given, count, shape.options.bias, shape.cores)
        return [Guess(config, ns) for ns, config in found]

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        ways = [{"split": value} for value in (0, 1)] + [{"pixels": value} for value in (0, 1, TRANSPOSED)]
        ways += [{"beside": count} for count in (1, 2, 4) if wide and count <= most_beside(shape.geometry)]
        best = super().configs(shape, wide)
        if any(dict(one or ()).get("side", 1) > 1 for one in best):
            best += [one.config for one in self.candidates(shape, {"side": 1}, self.starts[0])]
        return [*best, *(self.complete(shape, config_of(**way)) for way in ways)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        now = dict(config or ())
        if "rows" not in now:  # no schedule completes them
            return []
        geometry = in_places(shape.geometry, config)
        P, Q = geometry.rows.out, geometry.columns.out
        rows = [one for one in _around(now["rows"], P) if one <= P]
        columns = [one for one in _around(now["columns"], Q) if now["beside"] <= one <= Q]
        return list(BlocksSettings.near(config, rows=rows, columns=columns))

    def completed(self, shape: Shape, config: Config) -> Any:
        return build(shape.geometry, self.complete(shape, config), shape.options.bias, shape.cores)[0]


def _around(now: int, whole: int) -> list[int]:
    """Extents next to one: the neighbours among EXTENTS, and all."""
    below, above = [one for one in EXTENTS if one < now][-2:], [one for one in EXTENTS if one > now][:2]
    return [*below, *above, whole]


ALGORITHM = Blocks()
