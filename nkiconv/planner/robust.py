"""Robust choice: which of several plans loses least where an inferred constant is at an end of its range.

A candidate's regret under a changed constant is its time over that of the best candidate there: 1 where no other choice
would have been faster, or where it is no longer than it should be. Its worst regret is that over the ends of all
inferred constants. Of the candidates within some per cent of the fastest, the robust plan is the one of least worst
regret. Times are of the search's own traces, at phase 0 of the throttle's grid: nothing is traced again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import UnsupportedError, shown
from ..simulator.profiling.sensitivity import mattering, us_under
from .timekeeper import Trial

#: Per cent that a robust plan may take more than the fastest, for --robust=off and on.
OFF, ON = 0.0, 2.0
DEFAULT = ON
#: A time under a changed constant over the time without, and a regret, from which on they count.
RISE = REGRET = 1.02
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
        """best: the plan without regard to regrets. trials: the fastest first. constants: what the request overrides.
        percent: how much longer than the best another plan may take."""
        self.best, self.constants, self.spent = best, dict(constants), 0
        distinct: dict[int, Trial] = {}
        for one in (best, *trials):
            if one.timing is not None and not one.at_least:
                distinct.setdefault(id(one.timing), one)  # settings that come to the same run share its timing
        most_us, part = best.us * (1 + percent / 100), best.extrapolated_from
        near = [one for one in distinct.values() if one.us <= most_us and one.extrapolated_from == part]
        #: that may become the plan, the best first
        self.close = near[:CLOSE] if percent > OFF else [best]
        leaders: dict[str, Trial] = {}
        for one in distinct.values():
            leaders.setdefault(one.candidate.algorithm, one)
        #: that times are held against, the fastest first
        rivals = {id(one): one for one in (*list(distinct.values())[:CLOSE], *list(leaders.values())[:LEADERS])}
        self.rivals = sorted(rivals.values(), key=lambda one: one.us)
        self._ends: dict[int, list[End]] = {}
        self._known: dict[tuple[int, End], float] = {}

    def ends(self, one: Trial) -> list[End]:
        """Ends of ranges that a trial's time may rest on."""
        if id(one) not in self._ends:
            assert one.timing is not None
            chosen = [constant for constant in mattering(one.timing.timed) if constant.name not in self.constants]
            found = [End(each.name, end) for each in chosen for end in (each.low, each.high) if end != each.value]
            self._ends[id(one)] = found
        return self._ends[id(one)]

    def us(self, one: Trial, end: End) -> float:
        """What a trial takes there; an extrapolated one moves as its part does."""
        key = id(one), end
        if key not in self._known:
            assert one.timing is not None
            us = one.us
            if end in self.ends(one):
                self.spent += one.timing.instructions
                there = {**self.constants, end.constant: end.value}
                us *= us_under(one.timing.timed, there, rises=True) / one.timing.us
            self._known[key] = us
        return self._known[key]

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

    def better(self, most: float) -> list[Trial]:
        """Trials whose worst regret is so much less than the best's that their time is worth it, the least first.

        Args: most: instructions on timelines beyond which no further trial is looked at.
        """
        worst = self.worst(self.best)
        ruinous = [end for end in self.rising(self.best) if self.regret(self.best, end) > REGRET]
        found: list[tuple[float, Trial]] = []
        for one in self.close[1:] if ruinous else ():
            allowed = worst * WORTH * self.best.us / one.us
            likely = self.spent <= most and all(self.regret(one, end) < allowed for end in ruinous)
            if likely and self.worst(one) < allowed:
                found.append((self.worst(one) * one.us, one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def risks(self, one: Trial) -> list[tuple[End, Trial]]:
        """Ends at which it takes clearly longer, the greatest regret first, and what takes least there."""
        found = sorted(self.rising(one), key=lambda end: (self.regret(one, end), self.us(one, end)), reverse=True)
        return [(end, self.least(one, end)) for end in found[:TOLD]]
