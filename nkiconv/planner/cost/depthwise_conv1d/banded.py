"""`banded` on the host: settings by their bound."""

from __future__ import annotations

from typing import Any

from ....schedules.banded import BandedSchedule, BandedSettings, build, shape_unsupported
from ....schedules.banded_rule import banded_settings, blocks_of, candidates, guess, near_of, starts
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

    def unsupported(self, shape: Shape, config: Config) -> str:
        return shape_unsupported(shape.geometry, shape.options, config)

    def settings_of(self, shape: Shape, config: Config) -> BandedSettings:
        return banded_settings(shape.geometry, shape.options, config, shape.target)

    def plan(self, shape: Shape, config: Config) -> Any:
        return self._plan(shape, BandedSettings(**dict(self.complete(shape, config) or ())))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if self.unsupported(shape, None):
            return [None]  # the kernel says why
        own = self.complete(shape, None)
        block = dict(own or ())["block"]
        sizes = sorted({*blocks_of(shape.geometry.stride), block})
        if not wide:
            sizes = [size for size in sizes if block <= size * self.FACTORS and size <= block * self.FACTORS]
        found = [own, *[self.complete(shape, config_of(block=size)) for size in sizes]]
        found += [one.pairs for one, _ in starts(shape.geometry, shape.options, None, shape.target)[:STARTS]]
        if wide:  # small tiles at the ends have short runs, which constants may punish
            found += [with_settings(one, edge=0) for one in found if dict(one or ())["edge"] > 0]
        return list(dict.fromkeys(found))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return list(near_of(shape.geometry, self.completed(shape, config).settings))

    def _same(self, shape: Shape, settings: BandedSettings) -> Any:
        """What settings come to."""
        blocks = self._plan(shape, settings)
        names = (*vars(blocks), "scratch", "buffers", "streamed")
        return tuple(getattr(blocks, name, getattr(settings, name, None)) for name in names if name != "settings")

    def _plan(self, shape: Shape, settings: BandedSettings) -> BandedSchedule:
        return build(shape.geometry, settings, shape.options.state)


ALGORITHM = Banded(guess)
