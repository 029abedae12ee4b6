"""Filter gradients of depthwise rows by an algorithm of depthwise convolutions, which x is convolved by with gy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...request import Config
from ..algorithm import Algorithm, Guess, Shape

#: ns that the sum over several images takes after it: both cores meet, HBM is met twice.
IMAGES_NS = 7000.0


class OfRows(Algorithm):
    """Such an algorithm; a Shape's extras have the convolution's own Shape."""

    def __init__(self, base: Algorithm) -> None:
        self.base = base
        self.order = base.order

    def guesses(self, shape: Shape) -> list[Guess]:
        return [_longer(shape, one) for one in self.base.guesses(shape.extras.rows)]

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        found = self.base.guess(shape.extras.rows, config)
        return None if found is None else _longer(shape, found)

    def refined(self, shape: Shape, guess: Guess) -> Guess:
        return _longer(shape, self.base.refined(shape.extras.rows, guess))

    def is_short(self, shape: Shape, config: Config) -> bool:
        return self.base.is_short(shape.extras.rows, config)

    def settle(self, shape: Shape, config: Config) -> Config:
        return self.base.settle(shape.extras.rows, config)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        # what no cost model takes for the best has a matmul a tap, of which there are as many as positions
        return self.base.configs(shape.extras.rows, wide) if wide or self.base.guesses(shape.extras.rows) else []

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return self.base.near(shape.extras.rows, config)

    def unit(self, shape: Shape, config: Config) -> int:
        return max(1, self.base.unit(shape.extras.rows, config) // int(shape.geometry.N))

    def least_us(self, shape: Shape, config: Config) -> float:
        return self.base.least_us(shape.extras.rows, config)

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        return self.base.symbols(shape.extras.rows, config)

    def is_looped(self, shape: Shape, config: Config) -> bool:
        return self.base.is_looped(shape.extras.rows, config)

    def settled(self, shape: Shape, config: Config) -> Any:
        return self.base.settled(shape.extras.rows, config)


def _longer(shape: Shape, guess: Guess) -> Guess:
    """A guess with the sum over images."""
    return replace(guess, ns=guess.ns + (IMAGES_NS if shape.geometry.N > 1 else 0.0))
