"""Robust choice: the plan among several that loses least if an inferred constant is at an end of its range.

A candidate's regret under a changed constant is its time over that of the best candidate there: 1 if no other choice
would have been faster. Its worst regret is the largest over the ends of all inferred constants at which it is slower.
Of the candidates within some per cent of the fastest, the robust plan has the least worst regret. Times are of the
search's traces, at phase 0 of the throttle's grid: nothing is traced again.

If the fastest candidate's worst regret is above `RUINOUS`, the search first looks for a hedge: from the candidate of
least cost, about its time times its worst regret, it changes settings one at a time, until a cost is within the per
cent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import UnsupportedError, shown
from ..simulator.profiling.sensitivity import mattering, us_under
from .timekeeper import Trial
from .timing import Traced

#: Per cent that a robust plan may be slower than the fastest, for --robust=off and on.
OFF, ON = 0.0, 2.0
DEFAULT = ON
#: The least ratio of a time under a changed constant to the time without, and the least regret, that count.
RISE = REGRET = 1.02
#: The worst regret above which a search looks for a hedge.
RUINOUS = 1.15
#: Factor on a plan's most time at phase 0 over that of its mean.
PHASE0 = 1.005
#: Power of the ratio of a hedge's time to a plan's most time, in its cost.
STEEP = 4
#: Ratio of worst regrets, times the ratio of times, below which another plan is better.
WORTH = 0.98
#: Candidates that may become the plan, and the best of other algorithms, which times are compared with too.
CLOSE, LEADERS = 8, 4
#: Instructions on timelines under changed constants above which a quick search tries no further candidate.
INSTRUCTIONS = 100_000
#: Risks of a plan.
TOLD = 3


def percent_of(robust: str | float) -> float:
    """Per cent of "off", "on" or a number, also as text of the command line.

    Raises UnsupportedError: robust is none of these.
    """
    found: Any = {"off": OFF, "on": ON}.get(robust, robust) if isinstance(robust, str) else robust
    with suppress(ValueError):
        found = float(found) if isinstance(found, str) else found
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found <= 100:
        rule = "must be off, on or per cent from 0 to 100; use robust=on"
        raise UnsupportedError(f"robust={shown(robust)}: {rule}")
    return float(found)


class End(NamedTuple):
    """An inferred constant at an end of its range."""

    constant: str
    value: float


class Regrets:
    """Times of a search's trials under changed constants, each computed on demand."""

    def __init__(self, best: Trial, trials: Iterable[Trial], constants: Mapping[str, float], percent: float) -> None:
        """constants: the request's overrides. percent: that another plan may be slower than the best. best, trials: as
        in `hold`."""
        self.constants, self.percent = dict(constants), percent
        self._ends: dict[Traced, list[End]] = {}
        self._known: dict[tuple[Traced, End], float] = {}
        self.rivals: list[Trial] = []
        self.hold(best, trials)

    def hold(self, best: Trial, trials: Iterable[Trial]) -> None:
        """Compare trials. best: the plan without regard to regrets. trials: the fastest first, after trials that are
        always compared."""
        self.best, self.spent = best, 0
        distinct: dict[Traced | None, Trial] = {}
        for one in (best, *trials):
            if one.timing is not None and not one.at_least:
                distinct.setdefault(one.timing, one)  # settings of the same schedule share its timing
        part = best.extrapolated_from
        near = [one for one in distinct.values() if one.us <= self.most_us and one.extrapolated_from == part]
        #: trials that may become the plan, the best first
        self.close = near[:CLOSE] if self.percent > OFF else [best]
        leaders: dict[str, Trial] = {}
        for one in distinct.values():
            leaders.setdefault(one.candidate.algorithm, one)
        first = *list(distinct.values())[:CLOSE], *list(leaders.values())[:LEADERS]
        kept = [one for one in self.rivals if distinct.get(one.timing) is one]
        #: trials that times are compared with, the fastest first
        self.rivals = sorted({id(one): one for one in (*first, *kept)}.values(), key=lambda one: one.us)
        self.ruinous = [end for end in self.rising(best) if self.regret(best, end) > REGRET]

    @property
    def most_us(self) -> float:
        """The most us of a plan at phase 0; the per cent are of its mean over phases."""
        return self.best.us * (1 + self.percent / 100) * PHASE0

    def ends(self, one: Trial) -> list[End]:
        """The ends of ranges that may change a trial's time."""
        assert one.timing is not None
        if one.timing not in self._ends:
            chosen = [constant for constant in mattering(one.timing.timed) if constant.name not in self.constants]
            found = [End(each.name, end) for each in chosen for end in (each.low, each.high) if end != each.value]
            self._ends[one.timing] = found
        return self._ends[one.timing]

    def us(self, one: Trial, end: End) -> float:
        """A trial's us there; an extrapolated time scales as its part's."""
        assert one.timing is not None
        if end not in self.ends(one):
            return one.us
        key = one.timing, end
        if key not in self._known:
            self.spent += one.timing.instructions
            there = {**self.constants, end.constant: end.value}
            self._known[key] = us_under(one.timing.timed, there, rises=True) / one.timing.us
        return one.us * self._known[key]

    def rising(self, one: Trial) -> list[End]:
        """The ends at which a trial is clearly slower."""
        return [end for end in self.ends(one) if self.us(one, end) >= one.us * RISE]

    def least(self, one: Trial, end: End) -> Trial:
        """The fastest trial there, `one` itself if no other is faster."""
        found = one
        for other in self.rivals:
            if other.us >= self.us(found, end):  # changed constants shorten no time
                break
            found = other if self.us(other, end) < self.us(found, end) else found
        return found

    def regret(self, one: Trial, end: End) -> float:
        """A trial's time there over the least."""
        return self.us(one, end) / self.us(self.least(one, end), end)

    def worst(self, one: Trial) -> float:
        """A trial's worst regret."""
        return max((self.regret(one, end) for end in self.rising(one)), default=1.0)

    def cost(self, one: Trial) -> float:
        """A trial's time times its worst regret at the ends that are ruinous for the best; more if the time exceeds a
        plan's most; infinity if it cannot be compared."""
        if one.timing is None or one.extrapolated_from != self.best.extrapolated_from:
            return math.inf
        beyond = max(1.0, one.us / self.most_us) ** STEEP
        return one.us * beyond * max((self.regret(one, end) for end in self.ruinous), default=1.0)

    def cheapest(self, trials: Sequence[Trial], most: float) -> Trial:
        """The trial of least cost. Args: trials: the fastest first. most: as in `better`."""
        found = self.best
        for one in trials:
            if one.us >= self.cost(found) or self.spent > most:
                break
            if not one.at_least and self.cost(one) < self.cost(found):
                found = one
        return found

    def better(self, most: float) -> list[Trial]:
        """Trials whose worst regret is enough below the best's to pay for their time, the best of them first.

        Args: most: instructions on timelines above which no further trial is read.
        """
        worst = self.worst(self.best)
        found: list[tuple[float, Trial]] = []
        for one in self.close[1:] if self.ruinous else ():
            allowed = worst * WORTH * self.best.us / one.us
            likely = self.spent <= most and all(self.regret(one, end) < allowed for end in self.ruinous)
            if likely and self.worst(one) < allowed:
                found.append((self.worst(one) * one.us, one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def risks(self, one: Trial) -> list[tuple[End, Trial]]:
        """(end, fastest trial there) of ends at which a trial is clearly slower, the greatest regret first."""
        found = sorted(self.rising(one), key=lambda end: (self.regret(one, end), self.us(one, end)), reverse=True)
        return [(end, self.least(one, end)) for end in found[:TOLD]]
