"""Robust choice: which of several plans loses least where an inferred constant is at an end of its range.

A candidate's regret under a changed constant is its time over that of the best candidate there: 1 where no other choice
would have been faster, or where it is no longer than it should be. Its worst regret is that over the ends of all
inferred constants. Of the candidates within some per cent of the fastest, the robust plan is the one of least worst
regret. Times are of the search's own traces, at phase 0 of the throttle's grid: nothing is traced again.

Where the fastest candidate's worst regret is above `RUINOUS`, the search first looks for a hedge: from the candidate of
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

#: Per cent that a robust plan may take more than the fastest, for --robust=off and on.
OFF, ON = 0.0, 2.0
DEFAULT = ON
#: A time under a changed constant over the time without, and a regret, from which on they count.
RISE = REGRET = 1.02
#: A worst regret from which on a search looks for a hedge.
RUINOUS = 1.15
#: How much further from the fastest a hedge may be at phase 0 than in the mean.
PHASE0 = 1.005
#: Power of what such a hedge takes beyond a plan's most time.
STEEP = 4
#: How much less a worst regret must be for another plan, whose own time counts against it.
WORTH = 0.98
#: Candidates that may become the plan, and the best of other algorithms, which times are held against too.
CLOSE, LEADERS = 8, 4
#: Instructions on timelines under changed constants beyond which a quick search tries no further candidate.
INSTRUCTIONS = 100_000
#: Risks that a plan tells of.
TOLD = 3


def percent_of(robust: str | float) -> float:
    """Per cent of "off", "on" or a number, as the command line has it or not.

    Raises UnsupportedError: it is none of these.
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
    """Times of a search's trials under changed constants, each found when it is asked for."""

    def __init__(self, best: Trial, trials: Iterable[Trial], constants: Mapping[str, float], percent: float) -> None:
        """constants: what the request overrides. percent: how much longer than the best another plan may take. The
        rest: as in `hold`."""
        self.constants, self.percent = dict(constants), percent
        self._ends: dict[int, list[End]] = {}
        self._known: dict[tuple[int, End], float] = {}
        self.rivals: list[Trial] = []
        self._timings: list[Traced] = []  # whose times are known, so that no other takes their place in memory
        self.hold(best, trials)

    def hold(self, best: Trial, trials: Iterable[Trial]) -> None:
        """Hold trials against each other. best: the plan without regard to regrets. trials: the fastest first, after
        those that are close whatever others are."""
        self.best, self.spent = best, 0
        distinct: dict[int, Trial] = {}
        for one in (best, *trials):
            if one.timing is not None and not one.at_least:
                distinct.setdefault(id(one.timing), one)  # settings that come to the same run share its timing
        part = best.extrapolated_from
        near = [one for one in distinct.values() if one.us <= self.most_us and one.extrapolated_from == part]
        #: that may become the plan, the best first
        self.close = near[:CLOSE] if self.percent > OFF else [best]
        leaders: dict[str, Trial] = {}
        for one in distinct.values():
            leaders.setdefault(one.candidate.algorithm, one)
        first = *list(distinct.values())[:CLOSE], *list(leaders.values())[:LEADERS]
        kept = [one for one in self.rivals if distinct.get(id(one.timing)) is one]
        #: that times are held against, the fastest first
        self.rivals = sorted({id(one): one for one in (*first, *kept)}.values(), key=lambda one: one.us)
        self.ruinous = [end for end in self.rising(best) if self.regret(best, end) > REGRET]

    @property
    def most_us(self) -> float:
        """What a plan may take at phase 0: its mean over phases is what the per cent are of."""
        return self.best.us * (1 + self.percent / 100) * PHASE0

    def ends(self, one: Trial) -> list[End]:
        """Ends of ranges that a trial's time may rest on."""
        assert one.timing is not None
        if id(one.timing) not in self._ends:
            chosen = [constant for constant in mattering(one.timing.timed) if constant.name not in self.constants]
            found = [End(each.name, end) for each in chosen for end in (each.low, each.high) if end != each.value]
            self._ends[id(one.timing)] = found
            self._timings.append(one.timing)
        return self._ends[id(one.timing)]

    def us(self, one: Trial, end: End) -> float:
        """What a trial takes there; an extrapolated one moves as its part does."""
        assert one.timing is not None
        if end not in self.ends(one):
            return one.us
        key = id(one.timing), end
        if key not in self._known:
            self.spent += one.timing.instructions
            there = {**self.constants, end.constant: end.value}
            self._known[key] = us_under(one.timing.timed, there, rises=True) / one.timing.us
        return one.us * self._known[key]

    def rising(self, one: Trial) -> list[End]:
        """Ends at which it takes clearly longer."""
        return [end for end in self.ends(one) if self.us(one, end) >= one.us * RISE]

    def least(self, one: Trial, end: End) -> Trial:
        """What takes least there, itself if nothing takes less."""
        found = one
        for other in self.rivals:
            if other.us >= self.us(found, end):  # what a changed constant does not make shorter
                break
            found = other if self.us(other, end) < self.us(found, end) else found
        return found

    def regret(self, one: Trial, end: End) -> float:
        """Its time there over the least."""
        return self.us(one, end) / self.us(self.least(one, end), end)

    def worst(self, one: Trial) -> float:
        """Its worst regret."""
        return max((self.regret(one, end) for end in self.rising(one)), default=1.0)

    def cost(self, one: Trial) -> float:
        """Its time times its worst regret where the best's own counts; more where it takes longer than a plan may."""
        if one.timing is None or one.extrapolated_from != self.best.extrapolated_from:
            return math.inf
        beyond = max(1.0, one.us / self.most_us) ** STEEP
        return one.us * beyond * max((self.regret(one, end) for end in self.ruinous), default=1.0)

    def cheapest(self, trials: Sequence[Trial], most: float) -> Trial:
        """The trial of least cost. Args: trials: the fastest first. most: as of `better`."""
        found = self.best
        for one in trials:
            if one.us >= self.cost(found) or self.spent > most:
                break
            if not one.at_least and self.cost(one) < self.cost(found):
                found = one
        return found

    def better(self, most: float) -> list[Trial]:
        """Trials whose worst regret is so much less than the best's that their time is worth it, the least first.

        Args: most: instructions on timelines beyond which no further trial is looked at.
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
        """Ends at which it takes clearly longer, the greatest regret first, and what takes least there."""
        found = sorted(self.rising(one), key=lambda end: (self.regret(one, end), self.us(one, end)), reverse=True)
        return [(end, self.least(one, end)) for end in found[:TOLD]]
