"""The candidates of a request, algorithms with settings, checked against the kernels' refusals.

Generators read shapes alone and may list too many: the kernels refuse unsupported ones by name, and the search times
the others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.hardware import PARTITIONS
from ..simulator.timing import Rates
from . import shipped
from .cost.algorithm import Shape
from .explain import Rejection
from .operation import Operation
from .operations import operation_for
from .plan import Estimate
from .request import Config, Request

#: Largest ratio to the least first guess of algorithms that a search tries if traces are long.
LIKELY = 1.5


@dataclass(frozen=True)
class Candidate:
    """An algorithm with settings that the kernel does not refuse."""

    algorithm: str
    config: Config

    @property
    def key(self) -> tuple[str, Config]:
        """Its algorithm and its settings sorted by name."""
        return self.algorithm, self.config and tuple(sorted(self.config))


@dataclass(frozen=True)
class Field:
    """A request as its kernel describes it, against which candidates are checked."""

    request: Request
    operation: Operation
    shape: Shape
    algorithms: tuple[str, ...]  # to choose from

    @functools.cached_property
    def shipped(self) -> Estimate | None:
        """The plan that nkiconv ships for the request."""
        return shipped.known(self.request)

    @functools.cached_property
    def estimate(self) -> tuple[str, Config]:
        """(algorithm, settings) of a call without a kept plan: the shipped ones, else the estimate's."""
        known = self.shipped
        return (known.algorithm, known.config) if known else self.operation.choice(self.request, self.shape)

    @functools.cached_property
    def guessed(self) -> dict[str, float]:
        """ns of the algorithms' first guesses by cost models, the least first."""
        near = self.operation.near_least(self.shape, self.algorithms, math.inf)
        found: dict[str, float] = {}
        for name, guess in sorted(near, key=lambda one: one[1].ns):
            found.setdefault(name, guess.ns)
        return found

    @property
    def likely(self) -> frozenset[str]:
        """Algorithms whose first guess is near the least; all without guesses."""
        least_ns = min(self.guessed.values(), default=0.0)
        near = [name for name, ns in self.guessed.items() if ns <= LIKELY * least_ns]
        return frozenset(near or self.algorithms)

    def check(self, algorithm: str, config: Config) -> Candidate | Rejection:
        """A candidate, or its rejection by the kernel."""
        reason = self.operation.unsupported_reason(algorithm, self.shape, config)
        if not reason and self.keeps_order:
            reason = self._order_unsupported(algorithm, config)
        return Rejection(algorithm, config, reason) if reason else Candidate(algorithm, config)

    @functools.cached_property
    def keeps_order(self) -> bool:
        """Whether the estimate has the order of sums of this video's chunks, so that other orders are refused."""
        return not self._order_unsupported(*self.estimate)

    def _order_unsupported(self, algorithm: str, config: Config) -> str:
        """Why chunks of a video would round otherwise than the whole; "" if they round alike, or it is no video."""
        chosen = self.operation.stream_choice(self.shape)
        if chosen is None:
            return ""
        if algorithm != chosen[0] and chosen[0] in self.algorithms:
            return f"rounds otherwise than {chosen[0]}, which chunks of this video take; name it in algorithms"
        own = dict(self.operation.complete(algorithm, self.shape, config) or ())
        first = self.operation.chunk_config(algorithm, self.shape)
        for name, value in self.operation.ordered(algorithm, first) or ():
            if own.get(name) != value:
                return f"config {name}={own.get(name)}: rounds otherwise than {name}={value}, which chunks take"
        return ""

    def start(self, *, wide: bool) -> tuple[list[Candidate], list[Rejection]]:
        """(starts of a search, the estimate's algorithm first, then by cost models; rejected ones)."""
        known = self.operation.known
        configs = ((one, config) for one in self.algorithms for config in known[one].configs(self.shape, wide))
        checked = [self.check(*one) for one in configs]
        accepted = [one for one in checked if isinstance(one, Candidate)]
        rejected = [one for one in checked if isinstance(one, Rejection)]
        own, order = self.estimate[0], list(self.guessed)

        def place(one: Candidate) -> int:
            return -1 if one.algorithm == own else (*order, one.algorithm).index(one.algorithm)

        return sorted(accepted, key=place), rejected

    def default(self, accepted: Sequence[Candidate]) -> Candidate | None:
        """The estimate as a candidate: the same one of `accepted`, if there is one, else with all its settings.

        None if its algorithm is not one to choose from, or the kernel refuses it.
        """
        algorithm, config = self.estimate
        if algorithm not in self.algorithms:
            return None
        found = self.check(algorithm, config)
        completed = self.completed(Candidate(algorithm, config))
        same = [one for one in accepted if one.algorithm == algorithm and self.completed(one) == completed]
        return next(iter(same), found if isinstance(found, Candidate) else None)

    def completed(self, candidate: Candidate) -> Any:
        """The kernel's schedule of a candidate's settings: equal if the kernel's work is the same."""
        return self.operation.known[candidate.algorithm].completed(self.shape, candidate.config)

    def near(self, candidate: Candidate) -> list[Candidate]:
        """Candidates that differ from this one in one setting."""
        configs = self.operation.known[candidate.algorithm].near(self.shape, candidate.config)
        checked = [self.check(candidate.algorithm, config) for config in configs]
        return [one for one in checked if isinstance(one, Candidate)]

    def symbols(self, candidate: Candidate) -> dict[str, int]:
        """The symbol table: the request's letters, then the algorithm's tiles and counts."""
        found = {**self.operation.letters(self.shape), "cores": self.request.lnc, "partitions": PARTITIONS}
        return {**self.operation.symbols(self.shape, candidate.algorithm, candidate.config), **found}


def field_of(request: Request, rates: Rates) -> Field:
    """The Field of a request without violations."""
    operation = operation_for(request)
    return Field(request, operation, operation.shape(request, rates), request.algorithms or operation.algorithms)
