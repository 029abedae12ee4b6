"""`banded` on the host: settings by their bound."""

from __future__ import annotations

from typing import Any

from ....schedules.banded import BandedSettings
from ....schedules.banded_candidates import blocks_of, candidates, near_of, starts
from ...request import Config
from ..algorithm import Guess, Shape, config_of, with_settings
from .common import OfSchedule, timed

#: Sizes and shards that a search starts from as the rule has them.
STARTS = 4


class Banded(OfSchedule):
    """Band matrices over blocks of positions."""

    #: how many times the best block, up and down, a quick search starts from
    FACTORS = 2

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        found = candidates(shape.geometry, shape.options, None, shape.target)
        return timed(found, lambda one: self._same(shape, one))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        own = self.complete(shape, None)
        if own is None:
            return [None]  # the kernel says why
        block = dict(own)["block"]
        sizes = sorted({*blocks_of(shape.geometry.stride), block})
        if not wide:
            sizes = [size for size in sizes if block <= size * self.FACTORS and size <= block * self.FACTORS]
        found = [own, *[self.complete(shape, config_of(block=size)) for size in sizes]]
        found += [one.pairs for one, _ in starts(shape.geometry, shape.options, None, shape.target)[:STARTS]]
        if wide:  # small tiles at the ends have short runs, which constants may punish
            found += [with_settings(one, edge=0) for one in found if dict(one or ())["edge"] > 0]
        return list(dict.fromkeys(found))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(near_of(shape.geometry, shape.options, self.settings_of(shape, config)))

    def _same(self, shape: Shape, settings: BandedSettings) -> Any:
        """What settings come to."""
        blocks = self.rows.build(shape.geometry, shape.options, settings)
        names = (*vars(blocks), "scratch", "buffers", "streamed")
        return tuple(getattr(blocks, name, getattr(settings, name, None)) for name in names if name != "settings")


ALGORITHM = Banded("banded")
