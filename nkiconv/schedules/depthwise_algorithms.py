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
    #: of a schedule and a number of cores: why memory or the compiler does not take the schedule; "" if they do
    plan_unsupported: Callable[[RowGeometry, Options, Any, int], str]
    #: of a target: the settings that a search begins with; empty if the algorithm is never best
    first: Callable[[RowGeometry, Options, Target], list[Any]]
    #: of a schedule and a target: ns of a core, about
    bound_ns: Callable[[RowGeometry, Options, Any, Target], float]

    def unsupported(self, geometry: RowGeometry, options: Options, config: Config, cores: int) -> str:
        """Why the algorithm does not run the problem with a config on `cores` cores; "" if it does."""
        reason = self.config_unsupported(geometry, options, config)
        return reason or self.plan_unsupported(geometry, options, self.plan(geometry, options, config), cores)

    def plan(self, geometry: RowGeometry, options: Options, config: Config) -> Any:
        """The schedule of a config."""
        return self.build(geometry, options, self.complete(geometry, options, config, Target.of(Rates())))

    def ns_of(self, geometry: RowGeometry, options: Options, cores: int, target: Target, settings: Any) -> float:
        """ns of settings, about; infinity if they do not run."""
        plan = self.build(geometry, options, settings)
        if self.plan_unsupported(geometry, options, plan, cores):
            return float("inf")
        return self.bound_ns(geometry, options, plan, target)

    def guesses(self, geometry: RowGeometry, options: Options, cores: int, target: Target) -> list[tuple[Any, float]]:
        """(settings, ns) of the first settings that run."""
        if self.config_unsupported(geometry, options, None):
            return []
        found = self.first(geometry, options, target)
        priced = [(one, self.ns_of(geometry, options, cores, target, one)) for one in found]
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


def unsupported_reason(algorithm: str, geometry: RowGeometry, options: Options, config: Config, cores: int) -> str:
    """Why an algorithm does not run the problem on `cores` cores (argument, value, rule, remedy); "" if it does."""
    return ALGORITHMS[algorithm].unsupported(geometry, options, config, cores)


def bounds(geometry: RowGeometry, options: Options, cores: int) -> list[tuple[float, str]]:
    """(ns, algorithm) of the first settings that run, of each algorithm."""
    target = Target.of(Rates())
    return [(ns, name) for name, one in ALGORITHMS.items() for _, ns in one.guesses(geometry, options, cores, target)]


@functools.lru_cache(maxsize=256)
def default_of(geometry: RowGeometry, options: Options, cores: int) -> str:
    """The algorithm of a kernel that is called without one: that of the least bound; if none has a bound, `vector`, or
    `dot`, whose filters need not fit SBUF."""
    found = bounds(geometry, options, cores)
    if found:
        return min(found)[1]
    runs = (name for name in ("vector", "dot") if unsupported_reason(name, geometry, options, None, cores) == "")
    return next(runs, "vector")
