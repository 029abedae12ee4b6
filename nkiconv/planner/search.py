"""The search: time what the kernels accept, cheapest answers first, and keep the fastest.

How much is timed is counted in instructions, not in seconds, so that a machine's load never changes a plan.

1. Screening. Channels never meet, so a big problem is timed at two reduced numbers of channels, both whole tiles on all
   cores, and its time extrapolated along the line through them. A trace whose busiest engine alone has more work than
   the best candidate takes is not put on a timeline.
2. The final. Candidates within `CLOSE` of the best are timed as a whole, as many as fit, and the fastest is the plan.
   A kernel of more than `WHOLE_INSTRUCTIONS` is not timed as a whole unless the search is wide: its plan stays
   extrapolated, from larger reductions, and says so.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..floors import floors
from ..simulator import NkiError
from ..simulator.profiling import Phases
from ..simulator.profiling.roofline import roofline
from ..simulator.timing import Rates
from .candidates import Candidate, candidates, symbols_of
from .plan import QUICK, TUNED, Alternative, Plan, Rejection
from .request import Request
from .timing import Timing, Traced, phases, profile_of, time, trace, without_collector

#: Instructions, all cores, of the larger of the two reduced problems that a candidate is screened with.
SCREEN_INSTRUCTIONS = 1_600
#: Of a kernel that is timed as a whole without being asked to.
WHOLE_INSTRUCTIONS = 20_000
#: Of all kernels that the final of a quick search times, and of each phase of the throttle's grid that it tries.
FINAL_INSTRUCTIONS, PHASE_INSTRUCTIONS = 24_000, 40_000
#: Candidates whose screened time is at most this much of the best one's reach the final: what screening is off by.
CLOSE = 1.06
#: Tiles that each core works on in the smaller of the two reduced problems, at least.
FEW_TILES = 2
#: Told what is being done, and the share of it that is done.
Advance = Callable[[str, "float | None"], None]


class NothingRuns(Exception):
    """Every candidate is rejected."""

    def __init__(self, rejected: Sequence[Rejection]) -> None:
        super().__init__(f"{len(rejected)} candidates are rejected")
        self.rejected = tuple(rejected)


@dataclass(frozen=True)
class _Estimate:
    """What is known of a candidate's time, phase 0, in us, and its instructions on all cores."""

    candidate: Candidate
    us: float
    instructions: int
    timing: Timing | None  # the whole problem, or the larger reduction
    extrapolated_from: int | None = None
    at_least: bool = False

    def alternative(self) -> Alternative:
        bound_by = profile_of(self.timing).bound_by if self.timing else "not timed"
        one = self.candidate
        return Alternative(
            one.algorithm, one.config, self.us, bound_by, self.instructions, self.extrapolated_from, self.at_least
        )


def search(request: Request, *, wide: bool, advance: Advance) -> Plan:
    """The fastest plan for a request that has been checked.

    Args: wide: try more settings, and time every close candidate as a whole.
    Raises: NothingRuns; UnknownConstantError for a constant that the model does not have.
    """
    with without_collector():
        return _Search(request, wide, advance).plan()


class _Search:
    def __init__(self, request: Request, wide: bool, advance: Advance) -> None:
        self.request, self.wide, self.advance = request, wide, advance
        self.rates = Rates(dict(request.constants))
        self.rejected: list[Rejection] = []
        self.best_us = float("inf")

    def plan(self) -> Plan:
        """Screen, hold the final, and tell."""
        began = clock.perf_counter()
        accepted, self.rejected = candidates(self.request, wide=self.wide)
        screened = []
        for i, candidate in enumerate(accepted):
            self.advance(f"{candidate.algorithm}", 0.8 * i / len(accepted))
            found = self._screened(candidate)
            if found is not None:
                screened.append(found)
        if not screened:
            raise NothingRuns(self.rejected)
        estimates = self._final(sorted(screened, key=lambda one: one.us))
        self.advance("phases of the throttle", 0.9)
        return self._told(estimates, clock.perf_counter() - began)

    def _screened(self, candidate: Candidate) -> _Estimate | None:
        """An estimate, or None for a candidate that turns out not to run."""
        C, step = self.request.problem.C, candidate.channels * self.request.lnc
        few = FEW_TILES * step
        if 2 * few >= C:
            return self._whole(candidate)
        small = self._traced(candidate, few)
        if small is None:
            return None
        tiles = max(2 * FEW_TILES, int(SCREEN_INSTRUCTIONS * FEW_TILES / small.instructions)) // 2 * 2
        if tiles * step >= C:
            return self._whole(candidate)
        return self._extrapolated(candidate, small if tiles == 2 * FEW_TILES else None, tiles // 2 * step)

    def _extrapolated(self, candidate: Candidate, half: Traced | None, channels: int) -> _Estimate | None:
        """The line through the times of `channels` and twice as many, at the problem's own number."""
        half = half or self._traced(candidate, channels)
        full = self._traced(candidate, 2 * channels) if half else None
        if half is None or full is None:
            return None

        def line(at_half: float, at_full: float) -> float:
            return at_full + (at_full - at_half) * (self.request.problem.C - 2 * channels) / channels

        instructions = round(line(half.instructions, full.instructions))
        least_us = line(half.least_us, full.least_us)
        if least_us > self.best_us * CLOSE:
            return _Estimate(candidate, least_us, instructions, None, 2 * channels, at_least=True)
        small, large = time(half, self.rates), time(full, self.rates)
        us = max(large.us, line(small.us, large.us))
        self.best_us = min(self.best_us, us)
        return _Estimate(candidate, us, instructions, large, 2 * channels)

    def _whole(self, candidate: Candidate) -> _Estimate | None:
        traced = self._traced(candidate, self.request.problem.C)
        if traced is None:
            return None
        if traced.least_us > self.best_us * CLOSE:
            return _Estimate(candidate, traced.least_us, traced.instructions, None, at_least=True)
        timing = time(traced, self.rates)
        self.best_us = min(self.best_us, timing.us)
        return _Estimate(candidate, timing.us, timing.instructions, timing)

    def _traced(self, candidate: Candidate, channels: int) -> Traced | None:
        """The trace at some channels; None, and a rejection, where the kernel breaks a rule there."""
        try:
            return trace(self.request.of_channels(channels), candidate, self.rates)
        except NkiError as error:
            where = "" if channels == self.request.problem.C else f"with C={channels}: "
            self.rejected.append(Rejection(candidate.algorithm, candidate.config, where + str(error).splitlines()[0]))
            return None

    def _final(self, screened: list[_Estimate]) -> list[_Estimate]:
        """The estimates, fastest first; those that may be the fastest are of the whole problem where they fit."""
        left = FINAL_INSTRUCTIONS
        close = [one for one in screened if not one.at_least and one.us <= screened[0].us * CLOSE]
        settled = {id(one): one for one in screened}
        for i, one in enumerate(close):
            self.advance(f"final: {one.candidate.algorithm}", 0.8 + 0.1 * i / len(close))
            if one.extrapolated_from is None:
                continue
            fits = one.instructions <= min(left, WHOLE_INSTRUCTIONS) or (
                i == 0 and one.instructions <= WHOLE_INSTRUCTIONS
            )
            if not (self.wide or fits):
                continue
            left -= one.instructions
            whole = self._whole(one.candidate)
            if whole is None:
                del settled[id(one)]
            else:
                settled[id(one)] = whole
        found = sorted(settled.values(), key=lambda one: (one.us, one.at_least))
        if not found:
            raise NothingRuns(self.rejected)
        return found

    def _told(self, estimates: list[_Estimate], seconds: float) -> Plan:
        """The plan, from the fastest estimate."""
        began = clock.perf_counter()
        request, best = self.request, estimates[0]
        problem = request.problem
        timing = best.timing
        assert timing is not None
        most = 8 if self.wide else max(1, PHASE_INSTRUCTIONS // timing.instructions)
        found = phases(timing, most)
        profile = profile_of(timing, found)
        modelled, worst = _phase_times(best, found)
        limit = roofline(problem.min_bytes, problem.flops, profile.dtype, request.lnc, self.rates)
        constants = dict(request.constants)
        return Plan(
            problem=problem,
            lnc=request.lnc,
            asked=request.asked,
            constants=constants,
            algorithm=best.candidate.algorithm,
            config=best.candidate.config,
            modelled_us=modelled,
            phase0_us=best.us,
            worst_us=worst,
            phases=len(found.at_us),
            copy_floor_us=floors(problem, request.lnc, constants).copy_us,
            roofline_us=limit.us,
            bound_by=profile.bound_by,
            instructions=best.instructions,
            sbuf_bytes=profile.sbuf_peak_bytes,
            psum_banks=profile.psum_peak_banks,
            symbols=symbols_of(request, best.candidate.algorithm, best.candidate.config),
            alternatives=tuple(one.alternative() for one in estimates),
            rejected=tuple(self.rejected),
            extrapolated_from=best.extrapolated_from,
            effort=TUNED if self.wide else QUICK,
            seconds=seconds + clock.perf_counter() - began,
        )


def _phase_times(best: _Estimate, found: Phases) -> tuple[float, float]:
    """Mean and worst over the phases: of an extrapolated time, moved as the reduced problem's are."""
    share = best.us / found.phase0_us
    return found.mean_us * share, found.worst_us * share
