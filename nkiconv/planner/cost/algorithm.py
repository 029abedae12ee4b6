"""The host's view of an algorithm: its best settings, their bounds, and the settings worth trying.

A config names settings as (name, value) pairs; `complete` fills in its open settings, and only complete configs reach a
kernel. A search's configs mean the same for fewer channels: if a default depends on the number of channels, a generator
names its value.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...schedules.settings import Settings
from ...simulator.timing import Rates
from ...simulator.timing.target import Target
from ..request import Config

Found = TypeVar("Found")
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Shape:
    """A problem as the kernels describe it, and the constants of its times."""

    geometry: Any
    options: Any
    rates: Rates
    #: the Shape of the whole if this is of a part (`parts.part_of`), else None
    whole: Shape | None = field(default=None, compare=False, repr=False)
    #: of a video that may come in chunks: Shapes of some chunks, which decide the order of sums of all
    chunks: tuple[Shape, ...] = field(default=(), compare=False, repr=False)
    #: results by algorithm and settings, as a search asks several times
    memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def target(self) -> Target:
        """The machine's numbers for cost models."""
        return Target.of(self.rates)

    def once(self, key: Hashable, make: Callable[[], Found]) -> Found:
        """The result of `make`, which is called once for a key."""
        if key not in self.memo:
            self.memo[key] = make()
        found: Found = self.memo[key]
        return found


def once(method: Method) -> Method:
    """A method of (shape, *more), called once for the same arguments."""

    @functools.wraps(method)
    def found(self: Any, shape: Shape, *more: Any) -> Any:
        return shape.once((self, method, more), lambda: method(self, shape, *more))

    return found  # type: ignore[return-value]


@dataclass(frozen=True)
class Guess:
    """Settings of an algorithm, and their ns by its cost model."""

    config: Config
    ns: float


class Algorithm:
    """The host's view of an algorithm."""

    #: settings that decide the order of an output's sums, and so its rounding
    order: tuple[str, ...] = ()
    #: when it is asked for guesses: later with many settings to bound, most of which others' bounds then leave out
    turn = 0

    def guesses(self, shape: Shape, most_ns: float = math.inf) -> list[Guess]:
        """The first settings, found quickly; [] if the algorithm does not run the problem, or is never best;
        guesses above `most_ns` may be left out."""
        return []

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        """The settings of the least ns that agree with a config; None if the algorithm does not run them."""
        return None

    def is_short(self, shape: Shape, guess: Guess) -> bool:
        """Whether the kernel need not run its steps as a device loop, or does."""
        return True

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        """Settings to time of an algorithm that may be the fastest, the least ns first."""
        return [guess]

    def complete(self, shape: Shape, config: Config) -> Config:
        """A config with all settings, its open ones the best of the cost model.

        A config that the kernel refuses is unchanged.
        """
        return config

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        """The starts of a search."""
        return [None]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        """Configs that differ from this one in one setting."""
        return []

    def completed(self, shape: Shape, config: Config) -> Any:
        """The kernel's schedule of settings: equal schedules have the same instructions."""
        raise NotImplementedError


def with_settings(config: Config, **values: Any) -> Config:
    """The config with these settings."""
    return tuple({**dict(config or ()), **values}.items())


def symbols_of(made: Any) -> dict[str, int]:
    """The numbers of a schedule and of its settings by name, and the lengths of its tuples."""
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
