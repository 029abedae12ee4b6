"""Algorithms of depthwise conv1d by name: what each does not run, and which a bare kernel takes, by their bounds.

Every call on the host times what has the least bounds too, and `nkiconv.plan` more: docs/algorithms.md compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import banded_rule, dot, mixed, mixed_bound, update
from .depthwise import Options, RowGeometry
from .settings import Config

#: The algorithms that can be asked for by name.
ALGORITHMS = ("banded", "mixed", "vector", "dot", "update")
#: Of each its first settings with their ns.
GUESSES: dict[str, Callable[[RowGeometry, Options, int, Target], list[tuple[Any, float]]]] = {
    "banded": banded_rule.guess,
    "mixed": functools.partial(mixed_bound.guess, on_tensor=True),
    "vector": functools.partial(mixed_bound.guess, on_tensor=False),
    "dot": dot.guess,
    "update": update.guess,
}


def unsupported_reason(algorithm: str, geometry: RowGeometry, options: Options, config: Config, cores: int) -> str:
    """Why an algorithm does not run this on `cores` cores: argument, value, rule, remedy; "" if it does."""
    if algorithm in ("mixed", "vector"):
        return mixed.unsupported(geometry, options, config, cores, algorithm == "mixed")
    of_name = {"banded": banded_rule.unsupported, "dot": dot.unsupported, "update": update.unsupported}
    return of_name[algorithm](geometry, options, config, cores)


@functools.lru_cache(maxsize=256)
def default_of(geometry: RowGeometry, options: Options, cores: int) -> str:
    """The algorithm of a kernel that is called without one: that of the least bound; `vector`, or `dot`, whose filters
    need not fit SBUF, where none has a bound."""
    target = Target.of(Rates())
    found = [(ns, name) for name, guess in GUESSES.items() for _, ns in guess(geometry, options, cores, target)]
    if found:
        return min(found)[1]
    runs = (name for name in ("vector", "dot") if unsupported_reason(name, geometry, options, None, cores) == "")
    return next(runs, "vector")
