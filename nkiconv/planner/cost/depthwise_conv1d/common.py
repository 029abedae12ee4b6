"""What the host knows of the depthwise conv1d algorithms alike: what their schedules say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ....schedules.depthwise_algorithms import ALGORITHMS
from ....schedules.settings import Settings
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape

Own = TypeVar("Own", bound=Settings)

#: Settings that are timed, at most.
TIMED = 3


class OfSchedule(Algorithm):
    """An algorithm by its name; starts: configs that a search starts from, and a wide one."""

    def __init__(self, name: str, *starts: list[Config]) -> None:
        self.rows, self.starts = ALGORITHMS[name], starts

    def settings_of(self, shape: Shape, config: Config) -> Any:
        """All settings of a config that is not refused."""
        return self.rows.complete(shape.geometry, shape.options, config, shape.target)

    def ns_of(self, shape: Shape, settings: Any) -> float:
        """ns of settings, about."""
        return self.rows.ns_of(shape.geometry, shape.options, shape.cores, shape.target, settings)

    def guesses(self, shape: Shape) -> list[Guess]:
        found = self.rows.guesses(shape.geometry, shape.options, shape.cores, shape.target)
        return [Guess(settings.pairs, ns) for settings, ns in found]

    def complete(self, shape: Shape, config: Config) -> Config:
        if self.rows.config_unsupported(shape.geometry, shape.options, config):
            return config
        found: Config = self.settings_of(shape, config).pairs
        return found

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        return [self.complete(shape, config) for config in self.starts[wide]]

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.rows.build(shape.geometry, shape.options, self.settings_of(shape, config))


def timed(found: Iterable[tuple[Own, float]], same: Callable[[Own], Any]) -> list[Guess]:
    """Settings with their ns, the least first, that differ in what they come to: as many as are timed."""
    distinct: dict[Any, Guess] = {}
    for one, ns in sorted(found, key=lambda each: each[1]):
        if len(distinct) < TIMED and ns < float("inf"):
            distinct.setdefault(same(one), Guess(one.pairs, ns))
    return list(distinct.values())
