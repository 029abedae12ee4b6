"""Filter gradients of depthwise rows by an algorithm of depthwise convolutions, which x is convolved by with gy."""

from __future__ import annotations

from typing import Any

from ...request import Config
from ..algorithm import Algorithm, Guess, Shape


class OfRows(Algorithm):
    """Such an algorithm; a Shape's options have the convolution's own Shape."""

    def __init__(self, base: Algorithm) -> None:
        self.base, self.order = base, base.order

    def rows(self, shape: Shape) -> Shape:
        """The convolution's own."""
        found: Shape = shape.options.rows
        return found

    def guesses(self, shape: Shape) -> list[Guess]:
        return self.base.guesses(self.rows(shape))

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        return self.base.guess(self.rows(shape), config)

    def refined(self, shape: Shape, guess: Guess) -> list[Guess]:
        return self.base.refined(self.rows(shape), guess)

    def is_short(self, shape: Shape, config: Config) -> bool:
        return self.base.is_short(self.rows(shape), config)

    def complete(self, shape: Shape, config: Config) -> Config:
        return self.base.complete(self.rows(shape), config)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        # what no cost model takes for the best has a matmul a tap, of which there are as many as positions
        return self.base.configs(self.rows(shape), wide) if wide or self.base.guesses(self.rows(shape)) else []

    def near(self, shape: Shape, config: Config) -> list[Config]:
        return self.base.near(self.rows(shape), config)

    def completed(self, shape: Shape, config: Config) -> Any:
        return self.base.completed(self.rows(shape), config)
