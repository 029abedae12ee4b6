"""What `blocks` and `diagonals` share on the host: of all settings that have the given ones, those of least time."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, pairs_of


class Enumerated(Algorithm):
    """An algorithm whose settings are listed and bounded."""

    #: the kernel's dataclass of settings
    settings: type

    def refused(self, shape: Shape, config: Config) -> bool:
        """Whether the algorithm does not run a shape, or not with these settings."""
        raise NotImplementedError

    def best(self, shape: Shape, given: dict[str, Any], count: int = 1) -> list[Guess]:
        """Of settings that have the given ones some of least time."""
        raise NotImplementedError

    def plan_of(self, shape: Shape, config: Config) -> Any:
        """The Schedule, which is built once; None of settings that it refuses."""
        raise NotImplementedError

    def guesses(self, shape: Shape) -> list[Guess]:
        found = self.guess(shape, None)
        return [] if found is None else [found]

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        if self.refused(shape, config):
            return None
        best = self.best(shape, dict(config or ()))
        return best[0] if best and self.plan_of(shape, best[0].config) is not None else None

    def settle(self, shape: Shape, config: Config) -> Config:
        given = dict(config or ())
        if self.refused(shape, config):
            return config
        if len(given) == len(dataclasses.fields(self.settings)):
            return pairs_of(self.settings(**given))
        best = shape.once((f"{self.settings.__name__}, best", config), lambda: self.best(shape, given))
        return best[0].config if best else config

    def settled(self, shape: Shape, config: Config) -> Any:
        return self.settle(shape, config)
