"""What the host knows of the depthwise conv1d algorithms alike: what their schedules say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ....schedules.settings import Settings
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape

Own = TypeVar("Own", bound=Settings)

#: Settings that are timed, at most.
TIMED = 3


class OfSchedule(Algorithm):
    """An algorithm of which a schedule has first settings with their bound, all settings of a config, and a plan."""

    def __init__(self, guess: Callable[..., list[tuple[Any, float]]]) -> None:
        self._guess = guess

    def unsupported(self, shape: Shape, config: Config) -> str:
        """What is wrong with a config; "" if nothing is."""
        raise NotImplementedError

    def settings_of(self, shape: Shape, config: Config) -> Any:
        """All settings of a config that is not refused."""
        raise NotImplementedError

    def plan(self, shape: Shape, config: Config) -> Any:
        """The schedule of a config."""
        raise NotImplementedError

    def guesses(self, shape: Shape) -> list[Guess]:
        found = self._guess(shape.geometry, shape.options, shape.cores, shape.target)
        return [Guess(settings.pairs, ns) for settings, ns in found]

    def complete(self, shape: Shape, config: Config) -> Config:
        if self.unsupported(shape, config):
            return config
        found: Config = self.settings_of(shape, config).pairs
        return found

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.plan(shape, config)


def timed(found: Iterable[tuple[Own, float]], same: Callable[[Own], Any]) -> list[Guess]:
    """Settings with their ns, the least first, that differ in what they come to: as many as are timed."""
    distinct: dict[Any, Guess] = {}
    for one, ns in sorted(found, key=lambda each: each[1]):
        if len(distinct) < TIMED and ns < float("inf"):
            distinct.setdefault(same(one), Guess(one.pairs, ns))
    return list(distinct.values())
