"""What the host knows of an algorithm: which settings it takes best, what those take, what else is worth trying.

A config names settings as (name, value) pairs; `complete` fills in what it leaves open, and only such configs reach a
kernel. Those of a search are complete enough to mean the same for fewer channels: where what is filled in depends on
the number of channels, a generator names the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...schedules.settings import Settings
from ...simulator.timing import Rates
from ...simulator.timing.target import Target
from ..request import Config

Found = TypeVar("Found")


@dataclass(frozen=True)
class Shape:
    """A problem as the kernels see it, and what it is timed with."""

    geometry: Any
    options: Any
    cores: int
    rates: Rates
    #: that of the whole where this is of a part (`parts.part_of`), else None
    whole: Shape | None = field(default=None, compare=False, repr=False)
    #: of a video that may come in chunks: some of these, which say in which order all of them add their products
    chunks: tuple[Shape, ...] = field(default=(), compare=False, repr=False)
    #: what settings come to, by algorithm and settings: a search asks several times
    memo: dict[tuple[str, Config], Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def target(self) -> Target:
        """What cost models ask of the machine."""
        return Target.of(self.rates)

    def once(self, key: tuple[str, Config], make: Callable[[], Found]) -> Found:
        """What `make` finds, which is called once for a key."""
        if key not in self.memo:
            self.memo[key] = make()
        found: Found = self.memo[key]
        return found


@dataclass(frozen=True)
class Guess:
    """Settings of an algorithm, and what they take by its cost model."""

    config: Config
    ns: float


class Algorithm:
    """What the host knows of an algorithm."""

    #: settings that decide in which order an output's products are added, and so how it is rounded
    order: tuple[str, ...] = ()

    def guesses(self, shape: Shape) -> list[Guess]:
        """The first settings that come to mind, quickly; none where the algorithm does not run this, or never best."""
        return []

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        """The least time of settings that have these; None where the algorithm does not run so."""
        return None

    def is_short(self, shape: Shape, config: Config) -> bool:
        """Whether a core has at most MOST_INSTRUCTIONS, about, of these settings, which are complete."""
        return True

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        """Settings to time for an algorithm that may be the fastest, that with the least ns first."""
        return [guess]

    def complete(self, shape: Shape, config: Config) -> Config:
        """A config with all settings: those that it leaves open as the cost model has them best.

        One that the kernel would refuse stays as it is, to be refused.
        """
        return config

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        """Settings to start from."""
        return [None]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        """Settings that differ from these in one thing."""
        return []

    def completed(self, shape: Shape, config: Config) -> Any:
        """What the kernel makes of settings, its schedule: it does the same under all for which this is equal."""
        raise NotImplementedError


def config_of(**settings: Any) -> Config:
    """A config of these settings."""
    return tuple(settings.items())


def with_settings(config: Config, **values: Any) -> Config:
    """The config with these settings."""
    return tuple({**dict(config or ()), **values}.items())


def symbols_of(made: Any) -> dict[str, int]:
    """The numbers of a schedule and of its settings by name, and how many there are of what it lists."""
    if isinstance(made, tuple):
        return {name: value for one in made for name, value in symbols_of(one).items()}
    found: dict[str, int] = {}
    for one in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        value = getattr(made, one.name)
        if isinstance(value, (int, tuple)):
            found[one.name] = len(value) if isinstance(value, tuple) else int(value)
        elif isinstance(value, Settings):
            found |= symbols_of(value)
    return found
