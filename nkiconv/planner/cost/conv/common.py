"""What the conv2d algorithms share. Times are of whole problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....schedules.conv_algorithms import bound_ns, plan_of
from ....schedules.relayout import plain_of
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape

#: Instructions of a kernel from which on a quick search starts from one list of settings: each takes seconds.
LONG = 4_000


class Conv2dAlgorithm(Algorithm):
    """An algorithm whose own plan says what settings come to."""

    algorithm: str

    def guesses(self, shape: Shape) -> list[Guess]:
        found = self.guess(shape, None)
        return [] if found is None else [found]

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        config = self.complete(shape, config)
        plan = self.plan(shape, config) if config else None  # without settings none run that are worth a try
        if plan is None:
            return None
        return Guess(config, bound_ns(shape.target, self.algorithm, shape.geometry, shape.options, plan))

    def complete(self, shape: Shape, config: Config) -> Config:
        def completed() -> Config:
            geometry = plain_of(self.algorithm, shape.geometry)
            return next(self.candidates(shape, geometry, config), config)

        return shape.once((f"{self.algorithm}, least", config), completed)

    def candidates(self, shape: Shape, geometry: Any, config: Config) -> Iterator[Config]:
        """Complete settings that have the given ones and run, those of the least bound first.

        geometry: as the algorithm sees it, of NHWC tensors that of their copies.
        """
        raise NotImplementedError

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.plan(shape, config)

    def plan(self, shape: Shape, config: Config) -> Any:
        """The kernel's own plan of settings that it does not refuse."""

        def planned() -> Any:
            completed = self.complete(shape, config)
            return plan_of(self.algorithm, shape.geometry, shape.options, completed, shape.cores)[0]

        return shape.once((self.algorithm, config), planned)
