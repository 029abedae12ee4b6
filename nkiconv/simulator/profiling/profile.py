"""`profile(kernel)(*arrays)`: trace a kernel, put it on timelines, and say where its time would go. All modelled.

The kernel is traced once. Its tasks are timed in program order at several phases of the throttle's grid, and in
look-ahead order; details (engines, critical path, pictures) are of program order at phase 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..collector import without_collector
from ..launch import execute
from ..timeline import Options, run
from ..timing import Rates, TensorPrice
from .assemble import assemble
from .report import Phases, Profile
from .sensitivity import sensitivities
from .settings import Advance, Problem, Settings, ignore
from .timed import Timed, in_time

#: Phases of the throttle's grid that are tried, and the spans (in grid windows) above each of which half as many do: a
#: phase moves the throttle's decisions by less than a window.
PHASES = 8
FEWER_PHASES_ABOVE = (100, 1000, 3000)


def profile(
    kernel: Any,
    *,
    trace_only: bool = True,
    sensitivity: bool = False,
    standalone: bool = False,
    problem: Problem | None = None,
    constants: Mapping[str, float] | None = None,
    advance: Advance = ignore,
) -> Callable[..., Profile]:
    """A callable that profiles `kernel` (jitted, `kernel[lnc]`, or a plain function) on its arguments.

    Args:
        trace_only: make no data; arguments may be `ArraySpec`s. False also runs the numerics, with all their checks.
        sensitivity: time again with each relevant inferred constant at both ends of its range.
        standalone: add the preamble and postamble of a separate NEFF; without, the kernel is inside a graph.
        problem: useful flops and bytes for roofline and MFU. constants: values by name, instead of trn2.toml's.
        advance: called with the current step, and the share of it that is done.

    Returns: a function of the kernel's arguments that returns a `Profile`.

    Raises: NkiError for a broken rule; UnknownConstantError for a constant that is not in trn2.toml or a value that
        cannot be; ValueError for a kernel without instructions.
    """
    settings = Settings(trace_only, sensitivity, standalone, problem or Problem(), constants or {}, advance)

    @functools.wraps(_plain(kernel))
    def profiled(*args: Any, **kwargs: Any) -> Profile:
        found, timed = profile_timed(kernel, args, kwargs, settings)
        return dataclasses.replace(found, timed=timed)

    return profiled


def profile_timed(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, settings: Settings | None = None
) -> tuple[Profile, Timed]:
    """As `profile`, with the timeline.

    Args:
        args, kwargs: the kernel's. settings: how to profile; None: as `profile` by default.

    Returns: a `Profile`, and its timeline.

    Raises: as `profile`.
    """
    chosen = settings or Settings()
    with without_collector():
        timed = _timed(kernel, args, kwargs or {}, chosen)
        phases = phases_at(timed, phase_list(timed), chosen.advance)
        lookahead = run(timed.tasks, timed.prices, timed.rates, Options(order="lookahead"))
        launch_ns = timed.rates("launch.preamble_ns") + timed.rates("launch.postamble_ns")
        extra = launch_ns / 1e3 if chosen.standalone else 0.0
        shifted = Phases({phase: us + extra for phase, us in phases.at_us.items()})
        given = (*args, *(kwargs or {}).values())
        found = assemble(timed, shifted, timed.us_of(lookahead) + extra, extra, given, chosen)
        if chosen.sensitivity:
            found = dataclasses.replace(found, sensitivity=sensitivities(found, timed, extra, chosen))
    return found, timed


def _timed(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings) -> Timed:
    """Trace a kernel and time it in program order at phase 0."""
    rates = Rates(settings.constants)
    settings.advance("tracing", None)
    execution = execute(kernel, args, kwargs, trace_only=settings.trace_only)
    if not execution.instructions:
        raise ValueError("the kernel runs no instruction: there is nothing to profile; give it work to do")
    return in_time(execution, rates, getattr(_plain(kernel), "__name__", "kernel"), settings.advance)


def _plain(kernel: Any) -> Any:
    return getattr(kernel, "function", kernel)


def phase_list(timed: Timed) -> list[float]:
    """Phases worth trying: one without Tensor work, fewer for long kernels."""
    if not any(type(price) is TensorPrice for price in timed.prices):
        return [0.0]
    windows = timed.line.total_ns / timed.rates("throttle.window_ns")
    count = PHASES >> sum(windows > limit for limit in FEWER_PHASES_ABOVE)
    return [i / count for i in range(count)]


def phases_at(timed: Timed, chosen: Sequence[float], advance: Advance = ignore) -> Phases:
    """Totals at these phases of the throttle's grid, with all iterations of device loops; the first of them is 0."""
    totals = {0.0: timed.us}
    for i, phase in enumerate(chosen[1:], 1):
        advance("timing", i / len(chosen))
        totals[phase] = timed.us_of(run(timed.tasks, timed.prices, timed.rates, Options(phase=phase)))
    return Phases(totals)
