"""The search: time what the kernels accept, cheapest answers first, and keep the fastest.

How much is timed is counted in instructions (and pairs of stores, as so many), not in seconds: a machine's load never
changes a plan. Settings that come to the same run of the kernel are timed once, and counted as often as they are tried.

1. The estimate is timed as a whole, up to `WHOLE_INSTRUCTIONS` at once, up to `VERIFIED_INSTRUCTIONS` at
   the end, if what leads leaves room for it: no plan is slower than that.
2. Screening. Candidates come by their lower bounds, and those whose bound is above the best time so far are left out;
   where the estimate is long, also algorithms whose cost model is far above the least. A big problem is timed at two
   reduced sizes (`Operation.reduction`), and its time extrapolated along the line through them; once one is timed as
   a whole, those of the same tiles are corrected by what its line was off by. Where channels never meet the sizes are
   whole tiles on all cores; other parts stand in only for kernels of more than `WHOLE_INSTRUCTIONS`. A trace whose
   busiest engine alone has more work than the best candidate takes is not put on a timeline.
3. Refinement. Settings of the fastest candidate change one at a time, until nothing gets better or what the search
   may trace is used up.
4. The final. Candidates within `CLOSE` of the best are timed as a whole, as many as fit.
5. The proof. What leads is timed as a whole if it has not been, and what seems faster than that then, `VERIFIED` of
   them at most; the fastest is the plan. Only a kernel of more than `VERIFIED_INSTRUCTIONS`, or than is left of
   `BUDGET`, is not timed as a whole unless the search is wide: its plan stays extrapolated, and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import time as clock
from collections.abc import Callable, Sequence

from ..simulator import NkiError
from ..simulator.collector import without_collector
from ..simulator.dtypes import canonical
from ..simulator.profiling.roofline import roofline
from ..simulator.timing import Rates
from .alternatives import Rejection
from .candidates import Candidate, field_of, symbols_of
from .floors import floors
from .plan import TIMED, TUNED, Plan
from .request import Config, Request, array_work
from .timing import Traced, phases, time, trace
from .trial import DOUBT, Run, Trial, difference, effort_of, key_of, tiles_of, worth_telling

#: Instructions, all cores, of the larger of the two reduced problems that a candidate is screened with.
SCREEN_INSTRUCTIONS = 2_000
#: Of all traces of a quick search before the final, less what the leader's phases take after it, up to a third.
QUICK_INSTRUCTIONS = 16_000
#: The same of a wide search.
WIDE_INSTRUCTIONS = 120_000
#: Of a kernel that is timed as a whole without being asked to; the estimate is, before all others.
WHOLE_INSTRUCTIONS = 14_000
#: Of the larger of two parts of a long kernel whose parts are not all alike.
SLICE_INSTRUCTIONS = 6_000
#: Of all traces of a quick search: some 10 s. What it leaves decides whether a kernel can still be timed as a whole.
BUDGET = 120_000
#: Of what is left of that, what the larger of two parts of a candidate may take.
PART = 0.2
#: Of an estimate from which on only algorithms whose first guess is near the least are tried.
LONG = 1_000
#: Of a kernel that is timed as a whole before it is the plan (some 3 s and 0.3 GB for as many), and how many there are
#: of those at most, beside the estimate.
VERIFIED_INSTRUCTIONS, VERIFIED = 100_000, 3
#: Of all kernels that the final of a quick search times, and of all phases of the throttle's grid that it tries.
FINAL_INSTRUCTIONS, PHASE_INSTRUCTIONS = 10_000, 14_000
#: Candidates whose screened time is at most this much of the best one's reach the final: what screening is off by.
CLOSE = 1.04
#: How many of those within it of the best the final times as a whole all the same, and a share that is no difference.
FEW_ALIKE, IDLE = 2, 1e-6
#: A time within this of the copy floor cannot be improved upon by much: the search ends.
AT_FLOOR = 1.002
#: A refinement counts from this on.
BETTER = 0.998
#: Rounds of refinement of a wide search; the algorithms that are refined, and how far from the best they may be, in a
#: wide and in a quick search.
ROUNDS, REFINED, FAR, NOT_FAR = 4, 2, 1.25, 1.1
#: Of what a quick search may still trace, the part that the best algorithm's refinement has before another's.
FIRST_SHARE = 0.75
#: Candidates of an algorithm whose neighbours a wide search times in each round.
BEAM = 3
#: Tiles that each core works on in the smaller of the two reduced problems, at least.
FEW_TILES = 2
#: Phases of the throttle's grid, at most: as many as a profile tries.
PHASES = 8
#: Told what is being done, and the share of it that is done.
Advance = Callable[[str, "float | None"], None]


class NothingRuns(Exception):
    """Every candidate is rejected."""

    def __init__(self, rejected: Sequence[Rejection]) -> None:
        super().__init__(f"{len(rejected)} candidates are rejected")
        self.rejected = tuple(rejected)


def search(request: Request, *, wide: bool, advance: Advance) -> Plan:
    """The fastest plan for a request that has been checked.

    Args: wide: start from more settings, refine for longer, and time every close candidate as a whole.
    Raises: NothingRuns; UnknownConstantError for a constant that the model does not have.
    """
    with without_collector():
        return _Search(request, wide, advance).plan()


class _Search:
    def __init__(self, request: Request, wide: bool, advance: Advance) -> None:
        self.request, self.wide, self.advance = request, wide, advance
        self.rates = Rates(dict(request.constants))
        self.field = field_of(request, self.rates)
        self.reduction = self.field.operation.reduction(request.problem, request.asked)
        self.units = self.reduction.units(request.problem) if self.reduction else 1
        self.left = float("inf") if wide else float(BUDGET)
        self.rejected: list[Rejection] = []
        self.found: dict[tuple[str, Config], Trial] = {}
        self.best_us = float("inf")
        self.spent = 0
        self.runs: dict[str, list[Run]] = {}  # of the whole problem, by algorithm
        self.pace: dict[str, float] = {}  # instructions a unit, by algorithm
        self.default: Trial | None = None
        self.default_key: tuple[str, Config] | None = None
        self.default_effort = 0.0
        self.off_by: dict[tuple[str, int], float] = {}  # times of whole problems over extrapolated ones, by `tiles`

    @functools.cached_property
    def copy_floor_us(self) -> float:
        """What moving the same bytes takes."""
        return floors(self.request.problem, self.request.lnc, dict(self.request.constants)).copy_us

    def plan(self) -> Plan:
        """Screen, refine, hold the final, and tell."""
        began = clock.perf_counter()
        accepted, self.rejected = self.field.start(wide=self.wide)
        self._time_default(accepted)
        self.spent = 0  # the rest of the search is the same however big the estimate is
        likely = self.field.likely if self._is_long() else frozenset(self.field.algorithms)
        for i, candidate in enumerate(accepted):
            self.advance(f"timing {candidate.algorithm}", 0.4 * i / len(accepted))
            if candidate.algorithm in likely:
                self._screen(candidate)
        if not self.found:
            raise NothingRuns(self.rejected)
        self._refine()
        self._final()
        trials = self._proven()
        self.advance("phases of the throttle", 0.95)
        return self._told(trials, clock.perf_counter() - began)

    def _ranked(self) -> list[Trial]:
        return sorted(self.found.values(), key=lambda one: (one.at_least, one.us * one.doubt, one.num_settings))

    def _time_default(self, accepted: Sequence[Candidate]) -> None:
        """Time the estimate as a whole, unless it is too big: also to tell what extrapolation is off by."""
        candidate = self.field.default(accepted)
        if candidate is None:
            return
        self.default_key = key_of(candidate)
        self.advance(f"timing the estimate, {candidate.algorithm}", 0.0)
        found = self._screen(candidate)
        if found is not None and found.extrapolated_from is not None and found.effort <= WHOLE_INSTRUCTIONS:
            found = self._settle_one(found)
        if found is not None:
            self.default_effort = found.effort
        if found is not None and found.extrapolated_from is None:
            self.default, self.best_us = found, found.us

    def _is_long(self) -> bool:
        """Whether the estimate is long enough for cost models to say which algorithms are worth a try."""
        return not self.wide and self.default_effort > LONG

    def _few(self, candidate: Candidate) -> int:
        """Units of the smaller of the least two reduced problems; all where both take as long as the whole."""
        if self.reduction is None or (self.wide and not self.reduction.exact):
            return self.units
        few = FEW_TILES * candidate.channels * self.reduction.each * self.request.lnc
        return few if 3 * few < self.units else self.units

    def _screen(self, candidate: Candidate) -> Trial | None:
        """Time a candidate, if it may be the fastest, and keep what is found; None if it turns out not to run."""
        key = key_of(candidate)
        if key in self.found:
            return self.found[key]
        if self.left <= 0:
            found: Trial | None = None
        elif candidate.least_us > self.best_us * CLOSE:
            found = Trial(candidate, candidate.least_us, 0, None, 0.0, at_least=True)
        else:
            found = self._timed(candidate)
        if found is not None:
            self.found[key] = found
        return found

    def _is_too_long(self, candidate: Candidate, units: int) -> bool:
        """Whether so many units seem to take more than a part of the budget, or an algorithm's first all of it."""
        pace = self.pace.get(candidate.algorithm)
        seems = units * max(pace or 0.0, self.default_effort / self.units)
        return bool(self.found) and seems > (self.left if pace is None else self.left * PART)

    def _timed(self, candidate: Candidate) -> Trial | None:
        few = self._few(candidate)
        if few == self.units:
            return None if self._is_too_long(candidate, self.units) else self._whole(candidate)
        assert self.reduction is not None
        exact = self.reduction.exact
        if self._is_too_long(candidate, few):
            return None
        small = self._traced(candidate, few)
        if small is not None and (exact or effort_of(small, self.units / few) > WHOLE_INSTRUCTIONS):
            half = few
            while effort_of(small, 4 * half / few) <= (SCREEN_INSTRUCTIONS if exact else SLICE_INSTRUCTIONS):
                half *= 2
            if not exact or 3 * half < self.units:
                return self._extrapolated(candidate, small if half == few else None, half)
        runs = small is not None or not exact  # a part may break a rule that the whole does not
        return self._whole(candidate) if runs and self.default_effort <= self.left else None

    def _extrapolated(self, candidate: Candidate, half: Traced | None, units: int) -> Trial | None:
        """The line through the times of about `units` and twice as many, at the problem's own number."""
        assert self.reduction is not None
        half = half or self._traced(candidate, units)
        fits = half is not None and (not self.found or 2 * half.instructions <= self.left * PART)
        full = self._traced(candidate, 2 * units) if fits else None
        if half is None or full is None:
            return None
        few, more = self.reduction.units(half.request.problem), self.reduction.units(full.request.problem)

        def line(at_half: float, at_full: float) -> float:
            return at_full + (at_full - at_half) * (self.units - more) / (more - few)

        instructions = round(line(half.instructions, full.instructions))
        effort = effort_of(full, self.units / more)
        least_us = line(half.least_us, full.least_us)
        if least_us > self.best_us * CLOSE:
            return Trial(candidate, least_us, instructions, None, effort, more, at_least=True)
        small, large = time(half, self.rates), time(full, self.rates)
        off_by = self.off_by.get(tiles_of(candidate), 1.0)
        us = max(large.us, line(small.us, large.us) * off_by, self.copy_floor_us)
        self.best_us = min(self.best_us, us)
        return Trial(candidate, us, instructions, large, effort, more)

    def _whole(self, candidate: Candidate) -> Trial | None:
        run = self._run(candidate)
        if run is None:
            return None
        traced = run.traced
        effort = effort_of(traced, 1)
        if traced.least_us > self.best_us * CLOSE:
            return Trial(candidate, traced.least_us, traced.instructions, None, effort, at_least=True)
        if run.timing is None:
            run.timing = time(traced, self.rates)
        self.best_us = min(self.best_us, run.timing.us)
        return Trial(candidate, run.timing.us, traced.instructions, run.timing, effort)

    def _run(self, candidate: Candidate) -> Run | None:
        """The kernel's run of the whole problem: an earlier one where settings that differ come to the same.

        It counts as traced again, so that idle settings do not let a search try more than others would.
        """
        settled = self.field.settled(candidate)
        runs = self.runs.setdefault(candidate.algorithm, [])
        known = next((run for run in runs if run.settled == settled), None)
        if known is not None:
            self.spent += round(effort_of(known.traced, 1))
            return known
        traced = self._traced(candidate, self.units)
        if traced is None:
            return None
        runs.append(Run(settled, traced))
        return runs[-1]

    def _traced(self, candidate: Candidate, units: int) -> Traced | None:
        """The trace of so many units; None, and a rejection, where the kernel breaks a rule there."""
        request, where, reduction = self.request, "", self.reduction
        if reduction is not None and units != self.units:
            request = dataclasses.replace(request, problem=reduction.of(units))
            where = f"with {'C=' if reduction.exact else reduction.name + '='}{units}: "
            if not reduction.exact:  # what is left open is chosen for the whole problem
                candidate = dataclasses.replace(candidate, config=self._settled(candidate))
        try:
            found = trace(request, candidate, self.rates)
        except NkiError as error:
            self.rejected.append(Rejection(candidate.algorithm, candidate.config, where + str(error).splitlines()[0]))
            return None
        effort = effort_of(found, 1)
        self.pace[candidate.algorithm] = found.instructions / units
        self.spent, self.left = self.spent + round(effort), self.left - found.instructions
        return found

    def _refine(self) -> None:
        """Change settings of the best algorithms, one at a time, unless the best is as fast as moving the data."""
        self._settle(WHOLE_INSTRUCTIONS)
        if self._at_floor():
            return
        leaders = {one.candidate.algorithm: one for one in reversed(self._ranked()) if not one.at_least}
        order = sorted(leaders.values(), key=lambda one: one.us)[:REFINED]
        far = FAR if self.wide else NOT_FAR
        most: float = QUICK_INSTRUCTIONS - min(QUICK_INSTRUCTIONS // 3, PHASES * order[0].traced if order else 0)
        if self.rates.overrides:  # the kernel's own settings, from which a search starts, are for other constants
            most *= 3
        if self.wide:
            most = WIDE_INSTRUCTIONS
        most = min(most, self.spent + self.left)
        order = [one for one in order if one.us <= order[0].us * far]
        for i, leader in enumerate(order):
            what, begin, share = f"refining {leader.candidate.algorithm}", 0.4 + 0.4 * i / len(order), 0.4 / len(order)
            self.advance(what, begin)
            share_spent = 1.0 if i == len(order) - 1 else FIRST_SHARE
            self._descend(leader, self.spent + (most - self.spent) * share_spent)
            for turn in range(ROUNDS if self.wide else 0):
                self.advance(what, begin + share * turn / ROUNDS)
                if not self._widen(leader.candidate.algorithm, self.spent + (most - self.spent) * share_spent):
                    break

    def _descend(self, best: Trial, limit: float) -> None:
        """Go on from each better neighbour at once, with the settings that were changed longest ago, up to a limit of
        instructions traced."""
        turns: dict[str, int] = {}
        tried = self.field.near(best.candidate)
        while tried and self.spent + best.traced <= limit:
            candidate = tried.pop(0)
            turns[difference(candidate, best.candidate)] = len(self.found)
            one = self._screen(candidate)
            if one is not None and not one.at_least and one.us < best.us * BETTER:
                best = one
                new = [other for other in self.field.near(best.candidate) if key_of(other) not in self.found]
                turn_of = {key_of(other): turns.get(difference(other, candidate), 0) for other in new}
                tried = sorted(new, key=lambda other: turn_of[key_of(other)])

    def _widen(self, algorithm: str, limit: float) -> bool:
        """Time neighbours of the few best of an algorithm, up to a limit of instructions traced; whether any was."""
        few = [one for one in self._ranked() if one.candidate.algorithm == algorithm and not one.at_least][:BEAM]
        new = [other for one in few for other in self.field.near(one.candidate) if key_of(other) not in self.found]
        count = 0
        while count < len(new) and self.spent < limit:
            self._screen(new[count])
            count += 1
        return count > 0

    def _final(self) -> None:
        """Time those that may be the fastest as a whole, where they fit."""
        left = float(FINAL_INSTRUCTIONS)
        while not self._at_floor():
            spent = self._settle(min(left, WHOLE_INSTRUCTIONS))
            if spent is None:
                break
            left -= spent
        for one in () if self.wide or self._at_floor() else self._alike():
            if one.effort <= min(left, self.left):
                self._settle_one(one)
                left -= one.effort

    def _proven(self) -> list[Trial]:
        """The trials, fastest first, which is of the whole problem unless it is too big for that."""
        for _ in range(VERIFIED):
            if not self.found:
                break
            first = self._no_slower_than_default()[0]
            if first.at_least:  # left out for the time of one that was then found to take longer
                self._screen_again(first)
            elif self._unproven(first):
                self._settle_one(first)
            else:
                break
        known = None if self.default_key is None else self.found.get(self.default_key)
        if known is not None and self._unproven(known):
            self.default = self._settle_one(known)
        timed = [one for one in self._no_slower_than_default() if not one.at_least] if self.found else []
        if not timed:
            raise NothingRuns(self.rejected)
        whole = [one for one in timed if one.extrapolated_from is None]
        # where others that seemed faster were not, the next one that seems so may not be either
        first = whole[0] if whole and self._unproven(timed[0]) else timed[0]
        return [first, *[one for one in self._ranked() if one is not first]]

    def _screen_again(self, one: Trial) -> None:
        """Time a candidate that was left out by its bound, as the best time known now is above that."""
        self._be_sure()
        del self.found[key_of(one.candidate)]
        self._screen(one.candidate)

    def _be_sure(self) -> None:
        """Leave out by bounds what is slower than a time of the whole problem only, not than an extrapolated one."""
        exact = [one.us for one in self.found.values() if one.extrapolated_from is None and not one.at_least]
        self.best_us = min(exact, default=float("inf"))

    def _unproven(self, one: Trial) -> bool:
        """Whether a time is extrapolated, of a kernel that is small enough to be timed as a whole."""
        small = one.instructions <= min(VERIFIED_INSTRUCTIONS, self.left)
        return one.extrapolated_from is not None and not one.at_least and small

    def _no_slower_than_default(self) -> list[Trial]:
        """The trials, fastest first; the estimate before an extrapolated one that only seems as close."""
        ranked, known = self._ranked(), self.default
        if known is None or ranked[0].extrapolated_from is None or known.us > ranked[0].us * CLOSE:
            return ranked
        return [known, *[one for one in ranked if one is not known]]

    def _at_floor(self) -> bool:
        """Whether a time of the whole problem is as good as the copy floor."""
        exact = [one.us for one in self.found.values() if one.extrapolated_from is None and not one.at_least]
        return min(exact, default=float("inf")) <= self.copy_floor_us * AT_FLOOR

    def _settle(self, most: float) -> float | None:
        """Time the first of the close candidates that is extrapolated as a whole; its effort, or None without one.

        Args: most: effort that it may take, unless the search is wide.
        """
        ranked = self._ranked()
        close = [one for one in ranked if not one.at_least and one.us <= ranked[0].us * CLOSE]
        if not self.wide:  # an exact time settles the question unless something seems faster
            firsts = [i for i, one in enumerate(close) if one.extrapolated_from is None]
            close = close[: firsts[0]] if firsts else close
        for one in close:
            if one.extrapolated_from is not None and (self.wide or one.effort <= min(most, self.left)):
                self._settle_one(one)
                return one.effort
        return None

    def _alike(self) -> list[Trial]:
        """A few extrapolated candidates that are as good as the best, which is not, other than by idle settings."""
        ranked = self._ranked()
        if not ranked or ranked[0].extrapolated_from is not None:
            return []
        best = ranked[0].us
        alike = [one for one in ranked if one.extrapolated_from is not None and not one.at_least]
        return [one for one in alike if IDLE < abs(one.us / best - 1) <= DOUBT - 1][:FEW_ALIKE]

    def _settle_one(self, one: Trial) -> Trial | None:
        """Time an extrapolated candidate as a whole, and correct those that were extrapolated from the same channels;
        one that turns out not to run is dropped."""
        self.advance(f"the whole of {one.candidate.algorithm}", 0.85)
        self._be_sure()
        whole = self._whole(one.candidate)
        if whole is None:
            del self.found[key_of(one.candidate)]
            return None
        self.found[key_of(one.candidate)] = whole
        tiles, share = tiles_of(one.candidate), whole.us / one.us
        if not whole.at_least and tiles not in self.off_by:
            self.off_by[tiles] = share
            for key, other in self.found.items():
                if other.extrapolated_from is not None and not other.at_least and tiles_of(other.candidate) == tiles:
                    self.found[key] = dataclasses.replace(other, us=max(other.us * share, self.copy_floor_us))
        return whole

    def _settled(self, candidate: Candidate) -> Config:
        """All settings of a candidate, as the kernel is launched with them."""
        return self.field.operation.settle(candidate.algorithm, self.field.shape, candidate.config)

    def _part(self, trial: Trial) -> str:
        """What a time is extrapolated from, as in "256 of 8192 channels"; "" where it is of the whole."""
        if trial.extrapolated_from is None or self.reduction is None:
            return ""
        return f"{trial.extrapolated_from} of {self.units} {self.reduction.name}"

    def _told(self, trials: list[Trial], seconds: float) -> Plan:
        """The plan, from the fastest estimate."""
        began = clock.perf_counter()
        request, best = self.request, trials[0]
        problem = request.problem
        flops, dtype = array_work(problem, request.asked)
        timing = best.timing
        assert timing is not None
        found = phases(timing, PHASES if self.wide else max(1, PHASE_INSTRUCTIONS // timing.instructions))
        share = best.us / found.phase0_us  # other than 1 for an extrapolated time, which moves as the reduced one
        constants = dict(request.constants)
        return Plan(
            problem=problem,
            operation=self.field.operation.name,
            lnc=request.lnc,
            asked=request.asked,
            constants=constants,
            algorithm=best.candidate.algorithm,
            config=self._settled(best.candidate),
            modelled_us=found.mean_us * share,
            phase0_us=best.us,
            worst_us=found.worst_us * share,
            phases=len(found.at_us),
            copy_floor_us=self.copy_floor_us,
            roofline_us=roofline(problem.min_bytes, flops, canonical(dtype) or "", request.lnc, self.rates).us,
            bound_by=timing.bound_by,
            instructions=best.instructions,
            sbuf_bytes=max(space.peak_bytes for space in timing.timed.line.sbuf),
            psum_banks=timing.timed.execution.psum_peak_banks,
            symbols=symbols_of(request, best.candidate.algorithm, best.candidate.config),
            alternatives=tuple(one.alternative(self._settled(one.candidate)) for one in worth_telling(trials)),
            rejected=tuple(dict.fromkeys(self.rejected)),
            extrapolated_from=best.extrapolated_from,
            part=self._part(best),
            effort=TUNED if self.wide else TIMED,
            seconds=seconds + clock.perf_counter() - began,
        )
