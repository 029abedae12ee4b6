"""Robust choice: the plan of least expected regret if an inferred constant may be at an end of its range.

A candidate's regret under a changed constant is its time over that of the best candidate there: 1 if no other choice
would have been faster. Its worst regret is the largest over the ends of all inferred constants at which it is slower.
Its expected regret is its worst one with the probability `ODDS`, else its time over the fastest candidate's. Of the
candidates within some per cent of the fastest, the robust plan has the least expected regret. Times are of the search's
traces, which rise as at phase 0 of the throttle's grid: nothing is traced again.

If the fastest candidate takes more than `RUINOUS` times as long at some ends, the search times the estimates under
these constants, too; if its worst regret is above that, it looks for a hedge: from the candidate of least expected
regret it changes settings one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import UnsupportedError, shown
from ..simulator.profiling.sensitivity import mattering, us_under
from .timekeeper import Trial
from .timing import Traced

#: Per cent that a robust plan may be slower than the fastest, for --robust=off and on.
OFF, ON = 0.0, 20.0
DEFAULT = ON
#: The probability that the constant that is worst for a plan is at that end of its range: a judgement. Of some 30
#: inferred constants (trn2.toml) one was wrong, who issues DMAs, when kernels that others measured were held against
#: the model (profiles/validation.md), and a plan's time rises with one to three.
ODDS = 0.1
#: The least ratio of a time under a changed constant to the time without that counts.
RISE = 1.02
#: Candidates that are compared with all others: the fastest, and the best of other algorithms.
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


def expected(slower: float, worst: float) -> float:
    """Expected regret. Args: slower: the time over that of the fastest. worst: the worst regret."""
    return (1 - ODDS) * slower + ODDS * worst


class End(NamedTuple):
    """An inferred constant at an end of its range."""

    constant: str
    value: float


class Regrets:
    """Times of a search's trials under changed constants, each computed on demand."""

    def __init__(self, best: Trial, trials: Iterable[Trial], constants: Mapping[str, float]) -> None:
        """constants: the request's overrides. best, trials: as in `hold`."""
        self.constants = dict(constants)
        self._ends: dict[Traced, list[End]] = {}
        self._known: dict[tuple[Traced, End], float] = {}
        self.rivals: list[Trial] = []
        self.hold(best, trials)

    def hold(self, best: Trial, trials: Iterable[Trial], hedges: Iterable[Trial] = ()) -> None:
        """Compare trials. best: the plan without regard to regrets. trials: the fastest first. hedges: trials that are
        compared however slow they are."""
        self.best, self.spent = best, 0
        distinct: dict[Traced | None, Trial] = {}
        for one in (best, *trials):
            if one.timing is not None and not one.at_least:
                distinct.setdefault(one.timing, one)  # settings of the same schedule share its timing
        leaders: dict[str, Trial] = {}
        for one in distinct.values():
            leaders.setdefault(one.candidate.algorithm, one)
        first = *list(distinct.values())[:CLOSE], *list(leaders.values())[:LEADERS]
        kept = [one for one in (*self.rivals, *hedges) if distinct.get(one.timing) is one]
        #: trials that times are compared with and that may become the plan, the fastest first
        self.rivals = sorted({id(one): one for one in (*first, *kept)}.values(), key=lambda one: one.us)
        #: the best's expected regret
        self.most = expected(1.0, self.worst(best))

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
            self._known[key] = us_under(one.timing.timed, there, rises=True) / one.timing.timed.us
        return one.us * self._known[key]

    def rises(self, one: Trial, end: End, least: float = RISE) -> bool:
        """Whether a trial takes at least so many times as long there; other regrets do not count."""
        return self.us(one, end) >= one.us * least

    def rising(self, one: Trial, least: float = RISE) -> list[End]:
        """The ends at which a trial `rises`."""
        return [end for end in self.ends(one) if self.rises(one, end, least)]

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
        """A trial's expected regret, or a part of it that is above the best's; infinity if it cannot be compared."""
        if one.timing is None or one.at_least:
            return math.inf
        slower = one.us / self.best.us
        found = expected(slower, 1.0)
        for end in sorted(self.ends(one), key=lambda end: -self.regret(self.best, end)):
            if found > self.most:
                break
            if self.rises(one, end):
                found = max(found, expected(slower, self.regret(one, end)))
        return found

    def better(self, trials: Iterable[Trial], most: float) -> list[Trial]:
        """Trials with less expected regret than the best, that of least first.

        Args: trials: the fastest first. most: instructions on timelines above which no further trial is read.
        """
        found: list[tuple[float, Trial]] = []
        for one in trials:
            if expected(one.us / self.best.us, 1.0) >= self.most or self.spent > most:
                break
            if self.cost(one) < self.most:
                found.append((self.cost(one), one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def ruin(self, one: Trial) -> str:
        """Where a trial's regret is worst, as in "pe.row_tiles_overlap=0"; "" if it never takes longer."""
        return next((f"{end.constant}={end.value:g}" for end, _ in self.risks(one)), "")

    def risks(self, one: Trial) -> list[tuple[End, Trial]]:
        """(end, fastest trial there) of ends at which a trial is clearly slower, the greatest regret first."""
        found = sorted(self.rising(one), key=lambda end: (self.regret(one, end), self.us(one, end)), reverse=True)
        return [(end, self.least(one, end)) for end in found[:TOLD]]
