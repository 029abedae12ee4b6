"""Times candidates, whole or by parts, and keeps their times."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ..simulator import NkiError
from ..simulator.errors import TraceLimitError
from ..simulator.profiling.settings import Advance
from .candidates import Candidate, Field
from .explain import Alternative, Rejection
from .floors import floors
from .parts import SPARE, Reduction, reductions
from .request import Config, Request, bytes_spared
from .timing import Traced, trace

#: Most instructions, of all cores, of a kernel that any search times as a whole.
WHOLE_INSTRUCTIONS = 14_000
#: Most instructions of the larger of two parts of a longer kernel.
SLICE_INSTRUCTIONS = 6_000
#: Instructions of all traces of a quick search: some 10 s. A kernel that exceeds the rest is not timed as a whole.
BUDGET = 120_000
#: Largest ratio to the best screened time of candidates that are timed as a whole: the error of screening.
CLOSE = 1.04
#: Ratio to the copy floor up to which a time cannot improve by much, and the search ends.
AT_FLOOR = 1.002
#: Largest ratio of cores' shares of a part to even shares at which times are extrapolated along a line.
EVEN = 1.25
#: Largest ratio of a unit's times by two pairs of parts that agree: the first units of a kernel take longer.
STRAIGHT = 1.05
#: Most instructions of a kernel that is timed as a whole before it is the plan (some 3 s and 0.3 GB).
VERIFIED_INSTRUCTIONS = 100_000
#: Most instructions of the kernel of an estimate, and of a part of it, in a quick plan: some 3 s.
ESTIMATE_INSTRUCTIONS = 40_000, 16_000


@dataclass(frozen=True)
class Trial:
    """The known time of a candidate, the mean over a few phases (`Traced.us`), in us."""

    candidate: Candidate
    us: float
    instructions: int  # of all cores, as compiled: the body of a loop on the device counts once
    timing: Traced | None  # the whole problem, or the larger reduction
    effort: float  # instructions that a trace of the whole problem records
    extrapolated_from: int | None = None
    at_least: bool = False
    part: str = ""  # the part that it is extrapolated from, as in "64 of 512 images"
    least_us: float = 0.0  # of an extrapolated time: the work of the busiest engine, and of a copy

    @property
    def is_whole(self) -> bool:
        """Whether the whole problem was timed."""
        return self.extrapolated_from is None and not self.at_least

    @property
    def traced(self) -> int:
        """Instructions of timing it again, or a neighbour."""
        return self.timing.instructions if self.timing else 0

    @property
    def scale(self) -> float:
        """Ratio of an extrapolated time to that of the part; 1 of the whole."""
        assert self.timing is not None
        return self.us / self.timing.us

    def alternative(self, config: Config) -> Alternative:
        """The trial as an Alternative of a plan; config: all its settings."""
        bound_by = self.timing.bound_by if self.timing else "not timed"
        rest = self.instructions, self.extrapolated_from, self.at_least
        return Alternative(self.candidate.algorithm, config, self.us, bound_by, *rest)


class Parts(NamedTuple):
    """The extent of an algorithm's parts, units of the smaller part, and whether cores share them evenly."""

    reduction: Reduction
    units: int
    steady: bool


class Timekeeper:
    """The known times of a search's candidates, and its remaining budget of traces."""

    def __init__(self, request: Request, field: Field, wide: bool, advance: Advance) -> None:
        self.request, self.field, self.advance = request, field, advance
        self.rates = field.shape.rates
        #: instructions that may still be traced, and those traced so far, with known runs counted again
        self.left = float("inf") if wide else float(BUDGET)
        self.spent = 0
        #: most instructions of a trace of the whole kernel, and of a part of it
        self.most = WHOLE_INSTRUCTIONS, SLICE_INSTRUCTIONS
        self.rejected: list[Rejection] = []
        self.found: dict[tuple[str, Config], Trial] = {}
        self.best_us = float("inf")
        #: by algorithm: schedules with their traces of the whole problem; the Parts of kernels that are too long; the
        #: ratio of the time of a whole problem to the extrapolated time
        self._runs: dict[str, list[tuple[object, Traced]]] = {}
        self._parts: dict[str, Parts | None] = {}
        self._off_by: dict[str, float] = {}

    @functools.cached_property
    def copy_floor_us(self) -> float:
        """Modelled us of a copy of the same bytes."""
        problem, spared = self.request.problem, bytes_spared(self.request.problem, self.request.asked)
        return floors(problem, self.request.lnc, dict(self.request.constants), spared).copy_us

    def ranked(self) -> list[Trial]:
        """Trials, the fastest first, of equal times that of fewest settings; then trials with only a bound."""
        return sorted(self.found.values(), key=lambda one: (one.at_least, one.us, len(one.candidate.config or ())))

    def timed(self) -> list[Trial]:
        """`ranked` without those that have only a bound."""
        return [one for one in self.ranked() if not one.at_least]

    def at_floor(self) -> bool:
        """Whether a time of the whole problem is at the copy floor."""
        return self._least_whole_us() <= self.copy_floor_us * AT_FLOOR

    def _least_whole_us(self) -> float:
        return min((one.us for one in self.found.values() if one.is_whole), default=float("inf"))

    def screen(self, candidate: Candidate) -> Trial | None:
        """The trial of a candidate, timed and kept if it has none; None if it does not run, or no budget is left."""
        key = candidate.key
        if key not in self.found:
            found = self._timed(candidate) if self.left > 0 else None
            if found is None:
                return None
            self.found[key] = found
        return self.found[key]

    def _timed(self, candidate: Candidate) -> Trial | None:
        """The trial of a candidate: whole, or by parts if its kernel, or another one of its algorithm, is too long."""
        if candidate.algorithm not in self._parts:
            with suppress(TraceLimitError):
                return self.whole(candidate, self.most[0])
            self._parts[candidate.algorithm] = None
        known = self._parts[candidate.algorithm]
        if known is not None:
            with suppress(TraceLimitError):
                pair = self._pair(candidate, known.reduction, known.units, max(self.most))
                if pair is not None and (_is_steady(*pair) or not known.steady):
                    return self._extrapolated(candidate, known, *pair)
        return self._by_parts(candidate)

    def is_too_long(self, candidate: Candidate) -> bool:
        """Whether a kernel, or another one of its algorithm, was too long to be timed as a whole at once."""
        return candidate.algorithm in self._parts

    def _by_parts(self, candidate: Candidate) -> Trial | None:
        """The trial of a kernel that is too long, from parts; None if parts are too long or do not run.

        Parts are doubled until they have `SLICE_INSTRUCTIONS`, and further until two pairs agree on a unit's time, or
        parts are as long as a kernel that is timed as a whole.
        """
        for reduction in reductions(self.request.problem, self.request.asked):
            found: tuple[Parts, Traced, Traced] | None = None
            units, last_us = reduction.least, 0.0
            with suppress(TraceLimitError):
                while units * SPARE <= reduction.all_units:
                    was_steady = found is not None and found[0].steady
                    pair = self._pair(candidate, reduction, units, max(self.most), found and found[2])
                    steady = pair is not None and _is_steady(*pair)
                    if pair is None or (was_steady and not steady):
                        break
                    few, more = (reduction.units(one.request.problem) for one in pair)
                    each_us = (pair[1].us - pair[0].us) / (more - few)
                    is_straight = was_steady and max(each_us, last_us) <= STRAIGHT * min(each_us, last_us)
                    found = Parts(reduction, units // 2 if is_straight else units, steady), *pair
                    units, last_us = 2 * units, each_us
                    if is_straight and 2 * pair[1].instructions > self.most[1]:
                        break
            trial = found and self._extrapolated(candidate, *found)
            if found and trial:
                self._parts[candidate.algorithm] = found[0]
                return trial
        return None

    def _pair(
        self, candidate: Candidate, reduction: Reduction, units: int, most: int, small: Traced | None = None
    ) -> tuple[Traced, Traced] | None:
        """Traces of about so many units, and of twice as many; None if one breaks a rule, or both are the same.

        Args: most: instructions of each. small: the first of them. Raises TraceLimitError: one is too long.
        """
        small = small or self._traced(candidate, most, reduction, units)
        large = small and self._traced(candidate, most, reduction, 2 * units)
        if small is None or large is None:
            return None
        # outputs of padding alone are in every part, so two parts may be equal
        is_same = reduction.units(small.request.problem) == reduction.units(large.request.problem)
        return None if is_same else (small, large)

    def _extrapolated(self, candidate: Candidate, parts: Parts, half: Traced, full: Traced) -> Trial:
        """The trial on the line through the times of two parts, at the problem's number of units; if they are not
        steady, in proportion to the larger part."""
        reduction = parts.reduction
        few, more = reduction.units(half.request.problem), reduction.units(full.request.problem)
        times, all_units = reduction.times, reduction.all_units

        def line(at_half: float, at_full: float) -> float:
            each = (at_full - at_half) / (more - few) if parts.steady else at_full / more
            return times * (at_full + each * (all_units - more))

        part = f"{more} of {all_units} {reduction.name}, as the whole has more than {self.most[0]:,} instructions"
        instructions = round(line(half.compiled, full.compiled))
        effort = times * full.instructions * all_units / more
        least_us = max(line(half.least_us, full.least_us), self.copy_floor_us)
        if least_us > self.best_us * CLOSE:
            return Trial(candidate, least_us, instructions, None, effort, more, True, part)
        off_by = self._off_by.get(candidate.algorithm, 1.0)
        us = max(full.us, line(half.us, full.us) * off_by, least_us)
        self.best_us = min(self.best_us, us)
        return Trial(candidate, us, instructions, full, effort, more, part=part, least_us=least_us)

    def whole(self, candidate: Candidate, most: int | None = None) -> Trial | None:
        """The trial of the whole problem, or its bound if that is above the best; None if the kernel does not run it.

        Raises TraceLimitError: it has more instructions than `most`.
        """
        traced = self._run(candidate, most)
        if traced is None:
            return None
        if traced.least_us > self.best_us * CLOSE:
            return Trial(candidate, traced.least_us, traced.compiled, None, traced.instructions, at_least=True)
        self.best_us = min(self.best_us, traced.us)
        return Trial(candidate, traced.us, traced.compiled, traced, traced.instructions)

    def _run(self, candidate: Candidate, most: int | None) -> Traced | None:
        """The trace of the whole problem: an earlier one if other settings had the same schedule.

        An earlier trace counts again in `spent`, so that idle settings do not prolong a search.
        """
        completed = self.field.completed(candidate)
        runs = self._runs.setdefault(candidate.algorithm, [])
        known = next((run for made, run in runs if made == completed), None)
        if known is not None:
            self.spent += known.instructions
            return known
        traced = self._traced(candidate, most)
        if traced is not None:
            runs.append((completed, traced))
        return traced

    def _traced(
        self, candidate: Candidate, most: int | None, reduction: Reduction | None = None, units: int = 0
    ) -> Traced | None:
        """The trace of the whole, or of so many units; None, and a rejection, if the kernel breaks a rule."""
        request, where = self.request, ""
        if reduction is not None:
            request = dataclasses.replace(request, problem=reduction.of(units))
            where = f"with {reduction.name}={units}: "
            # open settings are those of the whole problem
            candidate = dataclasses.replace(candidate, config=self.completed(candidate))
        try:
            found = trace(request, candidate, self.rates, most=most)
        except TraceLimitError:
            self.left -= most or 0
            raise
        except NkiError as error:
            self.rejected.append(Rejection(candidate.algorithm, candidate.config, where + str(error).splitlines()[0]))
            return None
        self.spent, self.left = self.spent + found.instructions, self.left - found.instructions
        return found

    def screen_again(self, one: Trial) -> None:
        """Time a candidate that its bound left out, if the best time is now above that bound."""
        self.best_us = self._least_whole_us()
        del self.found[one.candidate.key]
        self.screen(one.candidate)

    def prove(self, estimate: Candidate) -> None:
        """Time the estimate as a whole, regardless of the budget, as no plan may be slower."""
        known = self.found.get(estimate.key)
        if known is not None and known.extrapolated_from is not None and known.instructions <= VERIFIED_INSTRUCTIONS:
            self.time_whole(known)
        elif known is None:  # no budget was left for it, or no part of it is short enough
            self.best_us = self._least_whole_us()
            with suppress(TraceLimitError):
                whole = self.whole(estimate, VERIFIED_INSTRUCTIONS)
                self.found |= {whole.candidate.key: whole} if whole else {}

    def is_unproven(self, one: Trial) -> bool:
        """Whether a time is extrapolated, of a kernel that is small enough to be timed as a whole."""
        return one.extrapolated_from is not None and not one.at_least and one.instructions <= VERIFIED_INSTRUCTIONS

    def time_whole(self, one: Trial) -> None:
        """Time an extrapolated candidate as a whole, and scale the other times of its algorithm; drop a candidate that
        does not run."""
        self.advance(f"the whole of {one.candidate.algorithm}", 0.85)
        self.best_us = self._least_whole_us()  # extrapolated times exclude no candidates from now on
        whole = self.whole(one.candidate)
        if whole is None:
            del self.found[one.candidate.key]
            return
        self.found[one.candidate.key] = whole
        algorithm, share = one.candidate.algorithm, whole.us / one.us
        if not whole.at_least and algorithm not in self._off_by:
            self._off_by[algorithm] = share
            for key, other in self.found.items():
                if other.candidate.algorithm == algorithm and not other.is_whole and not other.at_least:
                    self.found[key] = dataclasses.replace(other, us=max(other.us * share, other.least_us))

    def completed(self, candidate: Candidate) -> Config:
        """All settings of a candidate, as in the kernel's launch."""
        return self.field.operation.complete(candidate.algorithm, self.field.shape, candidate.config)


def _is_steady(small: Traced, large: Traced) -> bool:
    """Whether cores share the larger of two parts, and its difference to the smaller one, about evenly."""
    even_us, more_us = sum(large.cores_us), sum(large.cores_us) - sum(small.cores_us)
    cores, grown_us = len(large.cores_us), large.least_us - small.least_us
    return more_us > 0 and EVEN * grown_us * cores >= more_us and large.least_us * cores <= EVEN * even_us
