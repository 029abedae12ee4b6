"""Times candidates, whole or by parts, and keeps what is known of each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..simulator import NkiError
from ..simulator.errors import TraceLimitError
from .candidates import Candidate, Field
from .explain import Alternative, Rejection
from .floors import floors
from .operation import Reduction
from .request import Config, Request
from .timing import Timing, Traced, time, trace

#: Instructions, all cores, of the larger of the two reduced problems that a candidate is screened with.
SCREEN_INSTRUCTIONS = 2_000
#: Of a kernel that is timed as a whole without being asked to; the estimate is, before all others.
WHOLE_INSTRUCTIONS = 14_000
#: Of the larger of two parts of a long kernel whose parts are not all alike.
SLICE_INSTRUCTIONS = 6_000
#: Of all traces of a quick search: some 10 s. What it leaves decides whether a kernel can still be timed as a whole.
BUDGET = 120_000
#: Of what is left of that, what the larger of two parts of a candidate may take.
PART = 0.2
#: Candidates whose screened time is at most this much of the best one's are timed as a whole: what screening is off by.
CLOSE = 1.04
#: A time within this of the copy floor cannot be improved upon by much: the search ends.
AT_FLOOR = 1.002
#: Tiles that each core works on in the smaller of the two reduced problems, at least.
FEW_TILES = 2
#: Of a kernel that is timed as a whole before it is the plan (some 3 s and 0.3 GB for as many).
VERIFIED_INSTRUCTIONS = 100_000
#: Of the kernel of an estimate, and of a part of it, where nothing else is timed: some 3 s.
ESTIMATE_INSTRUCTIONS = 40_000, 16_000
#: How often the whole has the smaller of two parts, at least.
SPARE = 3
#: Told what is being done, and the share of it that is done.
Advance = Callable[[str, "float | None"], None]


@dataclass(frozen=True)
class Trial:
    """What is known of a candidate's time, phase 0, in us."""

    candidate: Candidate
    us: float
    instructions: int  # all cores, as a compiler sees them: the body of a loop on the device once
    timing: Timing | None  # the whole problem, or the larger reduction
    effort: float  # instructions that a trace of the whole problem records
    extrapolated_from: int | None = None
    at_least: bool = False

    @property
    def key(self) -> tuple[str, Config]:
        return key_of(self.candidate)

    @property
    def is_whole(self) -> bool:
        """Whether the whole problem was timed."""
        return self.extrapolated_from is None and not self.at_least

    @property
    def traced(self) -> int:
        """Instructions that timing it again, or a neighbour, takes."""
        return self.timing.instructions if self.timing else 0

    def alternative(self, config: Config) -> Alternative:
        """What a plan tells of it; config: all its settings."""
        bound_by = self.timing.bound_by if self.timing else "not timed"
        rest = self.instructions, self.extrapolated_from, self.at_least
        return Alternative(self.candidate.algorithm, config, self.us, bound_by, *rest)


def key_of(candidate: Candidate) -> tuple[str, Config]:
    """What a candidate is known by: its algorithm and its settings, in whatever order they were named."""
    return candidate.algorithm, candidate.config and tuple(sorted(candidate.config))


@dataclass
class _Run:
    """What a kernel does with the whole problem once its settings have come to something."""

    settled: object
    traced: Traced
    timing: Timing | None = None


class Timekeeper:
    """What a search knows of candidates' times, and what it may still trace to know more."""

    def __init__(self, request: Request, field: Field, wide: bool, advance: Advance) -> None:
        self.request, self.field, self.wide, self.advance = request, field, wide, advance
        self.rates = field.shape.rates
        self.reduction = field.operation.reduction(request.problem, request.asked)
        self.units = self.reduction.units(request.problem) if self.reduction else 1
        #: instructions that may still be traced, and what has been, runs that were known counted again
        self.left = float("inf") if wide else float(BUDGET)
        self.spent = 0
        #: instructions of the whole kernel, and of a part of it, at which a trace gives up
        self.most: tuple[int | None, int | None] = (None, None)
        self.rejected: list[Rejection] = []
        self.found: dict[tuple[str, Config], Trial] = {}
        self.best_us = float("inf")
        #: effort of the estimate
        self.default_effort = 0.0
        # runs of the whole problem, and instructions a unit, by algorithm; times of whole problems over extrapolated
        # ones, by algorithm and channels of a tile
        self._runs: dict[str, list[_Run]] = {}
        self._pace: dict[str, float] = {}
        self._off_by: dict[tuple[str, int], float] = {}

    @functools.cached_property
    def copy_floor_us(self) -> float:
        """What moving the same bytes takes."""
        return floors(self.request.problem, self.request.lnc, dict(self.request.constants)).copy_us

    def ranked(self) -> list[Trial]:
        """The fastest first, of equal ones that of fewest settings; then those of which only a bound is known."""
        return sorted(self.found.values(), key=lambda one: (one.at_least, one.us, len(one.candidate.config or ())))

    def at_floor(self) -> bool:
        """Whether a time of the whole problem is as good as the copy floor."""
        return self._least_whole_us() <= self.copy_floor_us * AT_FLOOR

    def _least_whole_us(self) -> float:
        return min((one.us for one in self.found.values() if one.is_whole), default=float("inf"))

    def screen(self, candidate: Candidate) -> Trial | None:
        """Time a candidate, if it may be the fastest, and keep what is found; None if it turns out not to run."""
        key = key_of(candidate)
        if key not in self.found:
            found: Trial | None = None
            if candidate.least_us > self.best_us * CLOSE:
                found = Trial(candidate, candidate.least_us, 0, None, 0.0, at_least=True)
            elif self.left > 0:
                found = self._timed(candidate)
            if found is None:
                return None
            self.found[key] = found
        return self.found[key]

    def _is_too_long(self, candidate: Candidate, units: int) -> bool:
        """Whether so many units seem to take more than a part of the budget, or an algorithm's first all of it."""
        pace = self._pace.get(candidate.algorithm)
        seems = units * max(pace or 0.0, self.default_effort / self.units)
        return bool(self.found) and seems > (self.left if pace is None else self.left * PART)

    def _timed(self, candidate: Candidate) -> Trial | None:
        """By parts, or whole: a short kernel, one that loops on the device, and in a wide search what is not linear."""
        reduction, few = self.reduction, self.units
        if reduction is not None and not self.field.is_looped(candidate) and (reduction.exact or not self.wide):
            few = FEW_TILES * candidate.channels * reduction.each * self.request.lnc
        whole = reduction is None or SPARE * few >= self.units
        if self._is_too_long(candidate, self.units if whole else few):
            return None
        if reduction is None or whole:
            return self.whole(candidate)
        small = self._traced(candidate, few)
        if small is not None and (reduction.exact or small.instructions * self.units / few > WHOLE_INSTRUCTIONS):
            half = few
            while 4 * half / few * small.instructions <= (
                SCREEN_INSTRUCTIONS if reduction.exact else SLICE_INSTRUCTIONS
            ):
                half *= 2
            if not reduction.exact or SPARE * half < self.units:
                return self.extrapolated(candidate, small if half == few else None, half)
        runs = small is not None or not reduction.exact  # a part may break a rule that the whole does not
        return self.whole(candidate) if runs and self.default_effort <= self.left else None

    def by_parts(self, candidate: Candidate, reduction: Reduction, units: int) -> Trial | None:
        """The time of a kernel that is too long, from parts that are not; None where those are, or do not run.

        Args: reduction, units: how the problem, or a part of it, is made smaller, and how many units that has.
        """
        self.reduction, self.units = reduction, units
        most = self.most[1] or SLICE_INSTRUCTIONS
        several = FEW_TILES * reduction.each * self.request.lnc
        for few in dict.fromkeys((min(several, units // SPARE), reduction.each)):
            with suppress(TraceLimitError):
                half, small = few, self._traced(candidate, few)
                while small is not None and 4 * small.instructions <= most and 2 * SPARE * half < units:
                    half, small = 2 * half, self._traced(candidate, 2 * half)
                found = self.extrapolated(candidate, small, half) if small is not None else None
                if found is not None:
                    return found
        return None

    def extrapolated(self, candidate: Candidate, half: Traced | None, units: int) -> Trial | None:
        """The line through the times of about `units` and twice as many, at the problem's own number."""
        assert self.reduction is not None
        half = half or self._traced(candidate, units)
        fits = half is not None and (not self.found or 2 * half.instructions <= self.left * PART)
        full = self._traced(candidate, 2 * units) if fits else None
        if half is None or full is None:
            return None
        few, more = self.reduction.units(half.request.problem), self.reduction.units(full.request.problem)
        if few == more:  # outputs of padding alone are in every part
            return self.whole(candidate)
        times = self.reduction.times

        def line(at_half: float, at_full: float) -> float:
            return times * (at_full + (at_full - at_half) * (self.units - more) / (more - few))

        instructions = round(line(half.compiled, full.compiled))
        effort = times * full.instructions * self.units / more
        least_us = line(half.least_us, full.least_us)
        if least_us > self.best_us * CLOSE:
            return Trial(candidate, least_us, instructions, None, effort, more, at_least=True)
        small, large = time(half, self.rates), time(full, self.rates)
        off_by = self._off_by.get((candidate.algorithm, candidate.channels), 1.0)
        us = max(large.us, line(small.us, large.us) * off_by, self.copy_floor_us)
        self.best_us = min(self.best_us, us)
        return Trial(candidate, us, instructions, large, effort, more)

    def whole(self, candidate: Candidate) -> Trial | None:
        """The time of the whole problem, or a bound above the best; None where the kernel does not run it."""
        run = self._run(candidate)
        if run is None:
            return None
        traced = run.traced
        if traced.least_us > self.best_us * CLOSE:
            return Trial(candidate, traced.least_us, traced.compiled, None, traced.instructions, at_least=True)
        if run.timing is None:
            run.timing = time(traced, self.rates)
        self.best_us = min(self.best_us, run.timing.us)
        return Trial(candidate, run.timing.us, traced.compiled, run.timing, traced.instructions)

    def _run(self, candidate: Candidate) -> _Run | None:
        """The kernel's run of the whole problem: an earlier one where settings that differ come to the same.

        It counts as traced again, so that idle settings do not let a search try more than others would.
        """
        settled = self.field.settled(candidate)
        runs = self._runs.setdefault(candidate.algorithm, [])
        known = next((run for run in runs if run.settled == settled), None)
        if known is not None:
            self.spent += known.traced.instructions
            return known
        traced = self._traced(candidate, self.units)
        if traced is None:
            return None
        runs.append(_Run(settled, traced))
        return runs[-1]

    def _traced(self, candidate: Candidate, units: int) -> Traced | None:
        """The trace of so many units; None, and a rejection, where the kernel breaks a rule there."""
        request, where, reduction = self.request, "", self.reduction
        if reduction is not None and units != self.units:
            request = dataclasses.replace(request, problem=reduction.of(units))
            where = f"with {'C=' if reduction.exact else reduction.name + '='}{units}: "
            if not reduction.exact:  # what is left open is chosen for the whole problem
                candidate = dataclasses.replace(candidate, config=self.settled(candidate))
        try:
            most = self.most[units != self.units]
            found = trace(request, candidate, self.rates, most=most, by_rule=self.field.shape.by_rule)
        except NkiError as error:
            self.rejected.append(Rejection(candidate.algorithm, candidate.config, where + str(error).splitlines()[0]))
            return None
        self._pace[candidate.algorithm] = found.instructions / units
        self.spent, self.left = self.spent + found.instructions, self.left - found.instructions
        return found

    def screen_again(self, one: Trial) -> None:
        """Time a candidate that was left out by its bound, as the best time known now is above that."""
        self.best_us = self._least_whole_us()
        del self.found[one.key]
        self.screen(one.candidate)

    def is_unproven(self, one: Trial) -> bool:
        """Whether a time is extrapolated, of a kernel that is small enough to be timed as a whole."""
        small = one.instructions <= min(VERIFIED_INSTRUCTIONS, self.left)
        return one.extrapolated_from is not None and not one.at_least and small

    def settle(self, one: Trial) -> Trial | None:
        """Time an extrapolated candidate as a whole, and correct those that were extrapolated from the same channels;
        one that turns out not to run is dropped."""
        self.advance(f"the whole of {one.candidate.algorithm}", 0.85)
        self.best_us = self._least_whole_us()  # an extrapolated time leaves out nothing any more
        whole = self.whole(one.candidate)
        if whole is None:
            del self.found[one.key]
            return None
        self.found[one.key] = whole
        tiles, share = (one.candidate.algorithm, one.candidate.channels), whole.us / one.us
        if not whole.at_least and tiles not in self._off_by:
            self._off_by[tiles] = share
            for key, other in self.found.items():
                alike = (other.candidate.algorithm, other.candidate.channels) == tiles
                if alike and other.extrapolated_from is not None and not other.at_least:
                    self.found[key] = dataclasses.replace(other, us=max(other.us * share, self.copy_floor_us))
        return whole

    def settled(self, candidate: Candidate) -> Config:
        """All settings of a candidate, as the kernel is launched with them."""
        return self.field.operation.settle(candidate.algorithm, self.field.shape, candidate.config)
