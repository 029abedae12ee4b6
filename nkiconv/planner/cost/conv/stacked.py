"""`stacked` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

from ....schedules.conv_algorithms import fills_partitions
from ..algorithm import Guess, Shape
from .weight_stationary import OfBlocks


class Stacked(OfBlocks):
    """K packing."""

    algorithm, timed = "stacked", (2, 1.1)
    order = ("rows", "shifts", "outputs", "beside", "apart")

    def guesses(self, shape: Shape) -> list[Guess]:
        return [] if fills_partitions(shape.geometry) else super().guesses(shape)


ALGORITHM = Stacked()
