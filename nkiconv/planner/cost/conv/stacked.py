"""`stacked` on the host: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

from typing import Any

from ....schedules.stacked import DepthwiseSettings, StackedSettings, settings_class, unsupported_reason
from ....schedules.weight_stationary_candidates import V_TRIED
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Guess, Shape, with_settings
from .weight_stationary import OfBlocks


class Stacked(OfBlocks):
    """Rows, shifts and outputs stacked, or whole columns of depthwise channels."""

    algorithm, unsupported_reason = "stacked", staticmethod(unsupported_reason)
    settings_of = staticmethod(settings_class)
    order = ("rows", "shifts", "outputs", "beside", "apart")
    timed = 2, 1.1

    def guesses(self, shape: Shape) -> list[Guess]:
        # what fills the partitions by itself is implicit_gemm's
        return [] if shape.geometry.C == PARTITIONS and shape.geometry.groups == 1 else super().guesses(shape)

    def near(self, shape: Shape, config: Config) -> list[Config]:
        stack = self.plan(shape, config).stack
        if stack.diagonal:
            volumes, now = shape.geometry.planes.images, {"together": stack.together, "channels": stack.kn}
            buffers = dict.fromkeys((max(2, stack.ring // 2), 2 * volumes, 3 * volumes, 2, 4))
            return list(DepthwiseSettings.near(config, now, buffers=buffers))
        found: list[Config] = [*StackedSettings.near(config, {"blocks": stack.blocks})]
        return found + [with_settings(config, **sizes) for sizes in _sizes(shape.geometry, stack)]


def _sizes(geometry: Any, stack: Any) -> list[dict[str, int]]:
    """Sizes that differ from a plan's in one or two of rows, shifts and outputs, or in how rows lie; which fit."""
    now = {"rows": stack.B, "shifts": stack.D, "outputs": stack.U, "beside": stack.V, "apart": stack.G}
    ways = [{"beside": one} for one in V_TRIED] + [{"apart": stack.B}]
    for rows in {stack.B - 1, stack.B, stack.B + 1, stack.B // 2, 2 * stack.B}:
        for outputs in {stack.U - 1, stack.U, stack.U + 1, stack.U // 2, 2 * stack.U}:
            for shifts in {stack.D, stack.D - 1, stack.D + 1, geometry.columns.taps}:
                apart = rows if stack.G == stack.B else min(rows, stack.G)
                ways.append({"rows": rows, "outputs": outputs, "shifts": shifts, "apart": apart})
    found = []
    for way in ways:
        one = {**now, **way}
        fits = min(one.values()) >= 1
        fits = fits and one["rows"] * one["shifts"] * geometry.C <= PARTITIONS and one["outputs"] <= PARTITIONS
        fits = fits and one["outputs"] * one["beside"] * geometry.rows.stride % max(1, one["apart"]) == 0
        if fits and one["shifts"] <= geometry.columns.taps and one != now and one not in found:
            found.append(one)
    return sorted(found, key=lambda one: sum(one[name] != value for name, value in now.items()))


ALGORITHM = Stacked()
