"""What the conv2d algorithms share. Times are of whole problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....kernels.conv.dispatch import plan_of
from ....kernels.conv.relayout import plain_of
from ....schedules.settings import Settings, declarations
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, ints
from .relayout import relayout_ns

#: Instructions of a kernel from which on a quick search starts from one list of settings: each takes seconds.
LONG = 4_000


class Conv2dAlgorithm(Algorithm):
    """An algorithm whose own plan says what settings come to, and of which `best` finds those that a config leaves
    open."""

    algorithm: str
    #: why the kernel does not run a problem with some settings, whatever those that are left open come to
    unsupported_reason: Callable[[Any, Any, Config], str]

    def guesses(self, shape: Shape) -> list[Guess]:
        found = self.guess(shape, None)
        return [] if found is None else [found]

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        config = self.complete(shape, config)
        plan = self.plan(shape, config) if config else None  # without settings none run that are worth a try
        if plan is None:
            return None
        plain = plain_of(self.algorithm, shape.geometry, shape.options)
        return Guess(config, relayout_ns(self.algorithm, shape) + self.plan_ns(shape, plain, plan))

    def complete(self, shape: Shape, config: Config) -> Config:
        return shape.once((f"{self.algorithm}, best", config), lambda: self._completed(shape, config))

    def _completed(self, shape: Shape, config: Config) -> Config:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if self.unsupported_reason(geometry, shape.options, config):
            return config
        settings, given = self.settings_of(geometry, config), dict(config or ())
        if given.keys() == declarations(settings).keys():
            return settings(**given).pairs
        found = self.best(shape, geometry, given)
        return found.pairs if found else config

    def settings_of(self, geometry: Any, config: Config) -> type[Settings]:
        """The kernel's dataclass of the settings that a problem has."""
        raise NotImplementedError

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        """The kernel's settings of least time that have the given ones; None where no such kernel runs.

        geometry: as of `plan_ns`.
        """
        raise NotImplementedError

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        """What a plan of the kernel's takes on two cores, from the first DMA to the last.

        geometry: as the algorithm sees it, of NHWC tensors that of their copies.
        """
        raise NotImplementedError

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        plan = self.plan(shape, config)
        return {"tiles": self.tiles(shape, plan), **{name: one for name, one in ints(plan).items() if name != "tiles"}}

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.plan(shape, config)

    def plan(self, shape: Shape, config: Config) -> Any:
        """The kernel's own plan of settings that it does not refuse."""

        def planned() -> Any:
            completed = self.complete(shape, config)
            return plan_of(self.algorithm, shape.geometry, shape.options, completed, shape.cores)[0]

        return shape.once((self.algorithm, config), planned)

    def tiles(self, shape: Shape, plan: Any) -> int:
        """Pieces of work of all cores."""
        raise NotImplementedError
