"""Algorithms of depthwise conv1d by name: their unsupported problems, and the default of a bare kernel by bounds.

Calls on the host time the candidates of the least bounds, `nkiconv.plan` more: docs/algorithms.md compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import banded, banded_candidates, dot, mixed, mixed_bound, update
from .depthwise import Options, RowGeometry
from .long_kernels import too_long
from .settings import Config, Settings


@dataclass(frozen=True)
class RowAlgorithm:
    """The functions of an algorithm, each of a RowGeometry, Options, and the arguments named there."""

    settings: type[Settings]
    #: of a config: its error, or why the algorithm never runs the problem; "" if neither
    config_unsupported: Callable[[RowGeometry, Options, Config], str]
    #: of a supported config and a target: all settings, open ones by a rule
    complete: Callable[[RowGeometry, Options, Config, Target], Any]
    #: of all settings: the schedule
    build: Callable[[RowGeometry, Options, Any], Any]
    #: of a schedule: why memory does not take it; "" if it does
    plan_unsupported: Callable[[RowGeometry, Options, Any], str]
    #: of a target: the settings that a search begins with; empty if the algorithm is never best
    first: Callable[[RowGeometry, Options, Target], list[Any]]
    #: of a schedule and a target: ns of a core, about
    bound_ns: Callable[[RowGeometry, Options, Any, Target], float]

    def unsupported(self, geometry: RowGeometry, options: Options, config: Config) -> str:
        """Why the algorithm does not run the problem with a config; "" if it does."""
        if reason := self.config_unsupported(geometry, options, config):
            return reason
        plan = self.plan(geometry, options, config)
        if reason := self.plan_unsupported(geometry, options, plan):
            return reason
        return self.too_long(geometry, self.bound_ns(geometry, options, plan, Target.of(Rates())))

    def plan(self, geometry: RowGeometry, options: Options, config: Config) -> Any:
        """The schedule of a config."""
        return self.build(geometry, options, self.complete(geometry, options, config, Target.of(Rates())))

    def ns_of(self, geometry: RowGeometry, options: Options, target: Target, settings: Any) -> float:
        """ns of settings, about; infinity if they do not run."""
        plan = self.build(geometry, options, settings)
        if self.plan_unsupported(geometry, options, plan):
            return float("inf")
        ns = self.bound_ns(geometry, options, plan, target)
        return float("inf") if self.too_long(geometry, ns) else ns

    def too_long(self, geometry: RowGeometry, ns: float) -> str:
        """Why the compiler does not take a schedule with this bound; "" if it does."""
        return too_long(f"S={geometry.S}, stride={geometry.stride}: this algorithm", geometry.times * ns)

    def guesses(self, geometry: RowGeometry, options: Options, target: Target) -> list[tuple[Any, float]]:
        """(settings, ns) of the first settings that run."""
        if self.config_unsupported(geometry, options, None):
            return []
        found = self.first(geometry, options, target)
        priced = [(one, self.ns_of(geometry, options, target, one)) for one in found]
        return [(one, ns) for one, ns in priced if ns < float("inf")]


def _mixed(on_tensor: bool) -> RowAlgorithm:
    with_mix = functools.partial(functools.partial, on_tensor=on_tensor)
    refusal, settings = with_mix(mixed.config_unsupported), with_mix(mixed.complete)
    size, first = with_mix(mixed.plan_unsupported), with_mix(mixed_bound.first)
    return RowAlgorithm(mixed.MixedSettings, refusal, settings, mixed.build, size, first, mixed_bound.bound_ns)


#: The algorithms by their names in arguments.
ALGORITHMS = {
    "banded": RowAlgorithm(
        banded.BandedSettings, banded.config_unsupported, banded_candidates.complete, banded.build,
        banded.plan_unsupported, banded_candidates.first, banded_candidates.bound_ns,
    ),
    "mixed": _mixed(on_tensor=True),
    "vector": _mixed(on_tensor=False),
    "dot": RowAlgorithm(
        dot.DotSettings, dot.config_unsupported, dot.complete, dot.build, dot.plan_unsupported, dot.first, dot.bound_ns
    ),
    "update": RowAlgorithm(
        update.UpdateSettings, update.config_unsupported, update.complete, update.build, update.plan_unsupported,
        update.first, update.bound_ns,
    ),
}  # fmt: skip


def unsupported_reason(algorithm: str, geometry: RowGeometry, options: Options, config: Config) -> str:
    """Why an algorithm does not run the problem (argument, value, rule, remedy); "" if it does."""
    return ALGORITHMS[algorithm].unsupported(geometry, options, config)


def bounds(geometry: RowGeometry, options: Options) -> list[tuple[float, str]]:
    """(ns, algorithm) of the first settings that run, of each algorithm."""
    target = Target.of(Rates())
    return [(ns, name) for name, one in ALGORITHMS.items() for _, ns in one.guesses(geometry, options, target)]


@functools.lru_cache(maxsize=256)
def default_of(geometry: RowGeometry, options: Options) -> str:
    """The algorithm of a kernel that is called without one: that of the least bound; if none has a bound, `vector`, or
    `dot`, whose filters need not fit SBUF."""
    found = bounds(geometry, options)
    if found:
        return min(found)[1]
    runs = (name for name in ("vector", "dot") if unsupported_reason(name, geometry, options, None) == "")
    return next(runs, "vector")
