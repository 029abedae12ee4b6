"""`stacked` on the host: the sizes that take least, and what goes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ....schedules.cuts import window_of
from ....schedules.stacked import (
    DepthwiseSettings,
    StackedSettings,
    build,
    default_settings,
    num_bands,
    settings_class,
    sized,
    sizes_reason,
    unsupported_reason,
)
from ....schedules.stacked_schedule import Schedule, phases_of, taps_of_window
from ....schedules.tiles import PARTS
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ...request import Config
from ..algorithm import Shape, with_settings
from .common import Settled, matmul_rates, planes_met
from .stacked_depthwise import DepthwisePrice
from .stacked_price import StackPrice, filters_way, least_ns, reader_of

#: Rows of y side by side that are tried.
BESIDE = (1, 2, 4)
#: How many of the settings are sizes.
SIZES = 5


class Stacked(Settled):
    """Rows, shifts and outputs stacked, or whole columns of depthwise channels."""

    algorithm, refusal = "stacked", staticmethod(unsupported_reason)
    order = ("rows", "shifts", "outputs", "beside", "apart")

    def settings_of(self, geometry: Any) -> type[Any]:
        return settings_class(geometry)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        if plan.diagonal:
            return DepthwisePrice(shape.target, geometry, plan.kn).ns(plan)
        return StackPrice(shape.target, geometry, plan, reader_of(shape.extras)).ns()

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        if geometry.groups > 1:
            settled = default_settings(geometry, shape.extras.residual, tuple(given.items()))
            return settled if build(geometry, settled, shape.extras.residual) else None
        B = given.get("rows", 0)
        sizes = sized(geometry, tuple(given.items()), B, 1, 1, 1, B) if B else self._best_sizes(shape, geometry)
        found = sizes and dataclasses.replace(sizes, **given)
        if found is None or sizes_reason(geometry, found):
            return None
        schedule = build(geometry, found, shape.extras.residual)
        if schedule is None:
            return None
        rest = self._rest(shape, geometry, schedule, given)
        return dataclasses.replace(found, **{name: rest[name] for name in rest.keys() - given.keys()})

    def _best_sizes(self, shape: Shape, geometry: Any) -> StackedSettings | None:
        """The sizes that take least, looked for once."""
        return shape.once(("stacked, best", None), lambda: best_sizes(shape.target, geometry, reader_of(shape.extras)))

    def _rest(self, shape: Shape, geometry: Any, stack: Schedule, given: dict[str, Any]) -> dict[str, Any]:
        """What goes with the sizes: blocks and images as memory has room, and what prices say."""
        stack = dataclasses.replace(stack, filters=given.get("filters") or filters_way(shape.target, geometry, stack))
        price = StackPrice(shape.target, geometry, stack, reader_of(shape.extras))
        before, after = price.warm_ups()
        warmup = given.get("warmup", before + after)
        return {
            "blocks": stack.blocks,
            "images": stack.images,
            "filters": stack.filters,
            "hold": price.hold(shape.extras.epilogue.bias),
            "warmup": warmup,
            "late_warmup": max(0, warmup - before),
        }

    def near(self, shape: Shape, config: Config) -> list[Config]:
        plan = self.plan(shape, config)
        if plan.diagonal:
            volumes, now = shape.geometry.planes.images, {"together": plan.together, "channels": plan.kn}
            buffers = dict.fromkeys((max(2, plan.ring // 2), 2 * volumes, 3 * volumes, 2, 4))
            return list(DepthwiseSettings.near(config, now, buffers=buffers))
        found: list[Config] = [*StackedSettings.near(config, {"blocks": plan.blocks, "images": plan.images})]
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


def best_sizes(target: Target, geometry: Any, reader: str) -> StackedSettings | None:
    """Of the stack that takes least, the first tried of several; None where memory holds none."""
    best, best_ns, best_place = None, float("inf"), 0
    rest = dataclasses.astuple(sized(geometry, None, 1, 1, 1, 1, 1))[SIZES:]
    for bound_ns, place, B, D, U, V, G in sorted(bounds(target, geometry)):
        if bound_ns > best_ns:
            break
        config = StackedSettings(B, D, U, V, G, *rest)
        stack = build(geometry, config, reader == "vector")
        if stack:
            stack = dataclasses.replace(stack, filters=filters_way(target, geometry, stack))
            ns = StackPrice(target, geometry, stack, reader).ns(best_ns)
            if (ns, place) < (best_ns, best_place):
                best, best_ns, best_place = config, ns, place
    return best and dataclasses.replace(best, filters="apart" if geometry.flipped else "straight")


def bounds(target: Target, geometry: Any) -> Iterator[tuple[float, int, int, int, int, int, int]]:
    """(ns that a stack takes at least, its place, B, D, U, V, G) of all that are tried: what the array alone takes,
    after the first filters and before the last store."""
    rows, columns, planes = geometry.rows, geometry.columns, planes_met(geometry)
    column_ns = matmul_rates(target, geometry)[0]
    start_ns = least_ns(target)
    for place, (B, D, U, V, G) in enumerate(sizes_tried(geometry)):
        jobs = -(-geometry.K // (PARTITIONS // U))
        blocks = -(-geometry.planes.out * -(-rows.out // (U * V)) // PARTS)
        matmuls = taps_of_window(rows, B, U, V, max(phases_of(rows.stride, V, G))) * -(-columns.taps // D)
        yield start_ns + jobs * blocks * V * columns.out * matmuls * planes * column_ns, place, B, D, U, V, G


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
