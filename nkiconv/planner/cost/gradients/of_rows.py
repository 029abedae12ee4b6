"""Filter gradients of depthwise rows by an algorithm of depthwise convolutions, which x is convolved by with gy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...request import Config
from ..algorithm import Algorithm, Shape

#: What is asked of the convolution's own algorithm.
ALIKE = ("guesses", "refined", "is_short", "complete", "near", "completed")


class OfRows(Algorithm):
    """Such an algorithm; a Shape's options have the convolution's own Shape, `rows`."""

    def __init__(self, base: Algorithm) -> None:
        self.base, self.order = base, base.order
        for name in ALIKE:
            setattr(self, name, _of_rows(getattr(base, name)))

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        # what no cost model takes for the best has a matmul a tap, of which there are as many as positions
        rows = shape.options.rows
        return self.base.configs(rows, wide) if wide or self.base.guesses(rows) else []


def _of_rows(asked: Callable[..., Any]) -> Callable[..., Any]:
    return lambda shape, *more: asked(shape.options.rows, *more)
