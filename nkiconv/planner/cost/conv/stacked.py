"""`stacked` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

from ....simulator.hardware import PARTITIONS
from ..algorithm import Guess, Shape
from .weight_stationary import OfBlocks


class Stacked(OfBlocks):
    """K packing."""

    algorithm, timed = "stacked", (2, 1.1)
    order = ("rows", "shifts", "outputs", "beside", "apart")

    def guesses(self, shape: Shape) -> list[Guess]:
        # what fills the partitions by itself is implicit_gemm's
        return [] if shape.geometry.C == PARTITIONS and shape.geometry.groups == 1 else super().guesses(shape)


ALGORITHM = Stacked()
