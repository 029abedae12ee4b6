"""`stacked` on the host: the sizes that take least, and what goes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ....kernels.conv.relayout import plain_of
from ....schedules.cuts import window_of
from ....schedules.stacked import (
    DepthwiseSettings,
    StackedSettings,
    build,
    default_filters,
    default_settings,
    num_bands,
    settings_class,
    sized,
    sizes_reason,
    unsupported_reason,
)
from ....schedules.stacked_schedule import phases_of, taps_of_window
from ....schedules.tiles import PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Guess, Shape, with_settings
from .common import Completed, matmul_rates, planes_met
from .stacked_bound import Bound, start_ns

#: Rows of y side by side that are tried.
BESIDE = (1, 2, 4)
#: How many of the settings are sizes; sizes that are built, those of least work of the Tensor Engine; candidates that
#: are timed, at most, and how far above the least bound they may be.
SIZES, BUILT, GUESSES, NEAR = 5, 100, 2, 1.1


class Stacked(Completed):
    """Rows, shifts and outputs stacked, or whole columns of depthwise channels."""

    algorithm, unsupported_reason = "stacked", staticmethod(unsupported_reason)
    order = ("rows", "shifts", "outputs", "beside", "apart")

    def settings_of(self, geometry: Any) -> type[Any]:
        return settings_class(geometry)

    def guesses(self, shape: Shape) -> list[Guess]:
        geometry = plain_of(self.algorithm, shape.geometry, shape.options)
        if geometry.groups > 1 or self.unsupported_reason(geometry, shape.options, None):
            return super().guesses(shape)
        found = self._least(shape, geometry)
        near = [one.pairs[:SIZES] for ns, one in found[:GUESSES] if ns <= NEAR * found[0][0]]
        return [guess for config in near if (guess := self.guess(shape, config)) is not None]

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return Bound(shape.target, geometry, shape.options, plan).total_ns()

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        if geometry.groups > 1:
            completed = default_settings(geometry, shape.options.residual, tuple(given.items()))
            return completed if build(geometry, completed, shape.options.residual) else None
        B = given.get("rows", 0)
        sizes = (
            sized(geometry, tuple(given.items()), B, 1, 1, 1, B)
            if B
            else next((one for _, one in self._least(shape, geometry)), None)
        )
        found = sizes and dataclasses.replace(sizes, **given)
        if found is None or sizes_reason(geometry, found):
            return None
        own = bounded(shape.target, geometry, shape.options, found, "filters" in given)
        if own is None:
            return None
        found, bound = own
        before, after = bound.warm_ups()
        rest = {"blocks": bound.schedule.blocks, "warmup": before + after}
        rest["late_warmup"] = max(0, given.get("warmup", before + after) - before)
        return dataclasses.replace(found, **{**rest, **given})

    def _least(self, shape: Shape, geometry: Any) -> list[tuple[float, StackedSettings]]:
        """(bound, settings) of candidates, the least first, looked for once."""
        return shape.once(("stacked, least", None), lambda: candidates(shape.target, geometry, shape.options))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        if plan.diagonal:
            volumes, now = shape.geometry.planes.images, {"together": plan.together, "channels": plan.kn}
            buffers = dict.fromkeys((max(2, plan.ring // 2), 2 * volumes, 3 * volumes, 2, 4))
            return list(DepthwiseSettings.near(config, now, buffers=buffers))
        found: list[Config] = [*StackedSettings.near(config, {"blocks": plan.blocks})]
        return found + [with_settings(config, **sizes) for sizes in self._sizes(shape, plan)]

    def _sizes(self, shape: Shape, plan: Any) -> list[dict[str, int]]:
        """Sizes that differ from a plan's in one or two of rows, shifts and outputs, or in how rows lie; which fit."""
        geometry = shape.geometry
        now = {"rows": plan.B, "shifts": plan.D, "outputs": plan.U, "beside": plan.V, "apart": plan.G}
        ways = [{"beside": one} for one in BESIDE] + [{"apart": plan.B}]
        for rows in {plan.B - 1, plan.B, plan.B + 1, plan.B // 2, 2 * plan.B}:
            for outputs in {plan.U - 1, plan.U, plan.U + 1, plan.U // 2, 2 * plan.U}:
                for shifts in {plan.D, plan.D - 1, plan.D + 1, geometry.columns.taps}:
                    apart = rows if plan.G == plan.B else min(rows, plan.G)
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

    def tiles(self, shape: Shape, plan: Any) -> int:
        return num_bands(shape.geometry, plan)


def candidates(target: Target, geometry: Any, options: Any) -> list[tuple[float, StackedSettings]]:
    """(bound, settings) of those sizes whose Tensor Engine has least to do, the least first."""
    found: list[tuple[float, StackedSettings]] = []
    best_ns, base = float("inf"), sized(geometry, None, 1, 1, 1, 1, 1)
    for least_ns, _, sizes in sorted(tensor_ns(target, geometry))[:BUILT]:
        if least_ns > best_ns:
            break
        filters = default_filters(geometry, sizes[0], sizes[2])
        settings = StackedSettings(*sizes, base.blocks, filters, base.warmup, base.late_warmup)
        own = bounded(target, geometry, options, settings)
        if own:
            found.append((own[1].total_ns(NEAR * best_ns), own[0]))
            best_ns = min(best_ns, found[-1][0])
    return sorted(found, key=lambda one: one[0])


def bounded(
    target: Target, geometry: Any, options: Any, settings: StackedSettings, keep: bool = False
) -> tuple[StackedSettings, Bound] | None:
    """Settings with their bound, filters straight at their places where that is sooner, if they are not to keep their
    way; None where memory does not hold them."""
    schedule = build(geometry, settings, options.residual)
    if schedule is None:
        return None
    bound = Bound(target, geometry, options, schedule)
    if not keep and not geometry.flipped and bound.is_straight():
        schedule = dataclasses.replace(schedule, filters="straight")
        return dataclasses.replace(settings, filters="straight"), Bound(target, geometry, options, schedule)
    return settings, bound


def tensor_ns(target: Target, geometry: Any) -> Iterator[tuple[float, int, tuple[int, int, int, int, int]]]:
    """(ns of the Tensor Engine between the first load and the last store, place, sizes) of all that are tried."""
    rows, columns = geometry.rows, geometry.columns
    column_ns = matmul_rates(target, geometry)[0] * planes_met(geometry)
    # filters come, and results leave
    both_ns = 2 * start_ns(target) - target.dma_done_ns
    for place, (B, D, U, V, G) in enumerate(sizes_tried(geometry)):
        jobs = div_ceil(geometry.K, PARTITIONS // U)
        blocks = div_ceil(geometry.planes.out * div_ceil(rows.out, U * V), PARTS)
        taps = taps_of_window(rows, B, U, V, max(phases_of(rows.stride, V, G))) * div_ceil(columns.taps, D)
        yield both_ns + jobs * blocks * V * columns.out * taps * column_ns, place, (B, D, U, V, G)


def sizes_tried(geometry: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """Rows, shifts, outputs, rows of y side by side, rows from block to block."""
    rows, taps, most = geometry.rows, geometry.columns.taps, PARTITIONS // geometry.C
    # fewer columns of taps a group than needed for as many groups only leave partitions idle
    shifts = [D for D in dict.fromkeys(-(-taps // groups) for groups in range(1, taps + 1)) if D <= most]
    for U in outputs_tried(geometry):
        for V in (V for V in BESIDE if V == 1 or U * V <= rows.out):
            span = U * V * rows.stride
            window = window_of(rows, U * V)
            tiling = [B for B in range(min(most, span), 0, -1) if span % B == 0]
            for D in shifts:
                for B in tiling:
                    if B * D <= most:
                        yield B, D, U, V, B
                        if window <= B < span:
                            yield B, D, U, V, span
                        if D == 1 < B:
                            yield B, D, U, V, 1
                if window * D <= most and window not in tiling:
                    yield window, D, U, V, span


def outputs_tried(geometry: Any) -> Iterator[int]:
    """Outputs of a block: for each number of jobs the most, all that are few, and multiples of 8."""
    most = min(PARTITIONS, geometry.rows.out + geometry.rows.size)
    jobs = [-(-geometry.K // (PARTITIONS // U)) for U in range(1, most + 1)]
    for U in range(1, most + 1):
        if U == most or U <= 8 or U % 8 == 0 or jobs[U - 1] < jobs[U]:
            yield U


ALGORITHM = Stacked()
