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
6. The mean. Phase 0 of the throttle's grid ranks so far; of the few that are close by it, the plan is the one of the
   least mean over phases.
"""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Iterator, Sequence

from ..errors import UnsupportedError
from ..simulator.collector import without_collector
from ..simulator.dtypes import canonical
from ..simulator.errors import TraceLimitError
from ..simulator.profiling import Phases
from ..simulator.profiling.roofline import roofline
from ..simulator.timing import Rates
from .alternatives import Rejection
from .candidates import Candidate, field_of, symbols_of
from .in_turns import in_turns
from .parts import parts
from .plan import ESTIMATED, TIMED, TUNED, Plan
from .request import Config, Request, array_work
from .timekeeper import CLOSE, ESTIMATE_INSTRUCTIONS, WHOLE_INSTRUCTIONS, Advance, Timekeeper
from .timing import phases
from .trial import DOUBT, Trial, difference, key_of, worth_telling

#: Of all traces of a quick search before the final, less what the leader's phases take after it, up to a third.
QUICK_INSTRUCTIONS = 16_000
#: The same of a wide search.
WIDE_INSTRUCTIONS = 120_000
#: Of an estimate from which on only algorithms whose first guess is near the least are tried.
LONG = 1_000
#: Kernels that are timed as a whole before one is the plan, at most, beside the estimate.
VERIFIED = 3
#: Of all kernels that the final of a quick search times, and of all phases of the throttle's grid that it tries.
FINAL_INSTRUCTIONS, PHASE_INSTRUCTIONS = 10_000, 14_000
#: How many of those within `CLOSE` of the best the final times as a whole all the same, and a share that is no
#: difference.
FEW_ALIKE, IDLE = 2, 1e-6
#: A refinement counts from this on.
BETTER = 0.998
#: Rounds of refinement of a wide search; the algorithms that are refined, and how far from the best they may be, in a
#: wide and in a quick search.
ROUNDS, REFINED, FAR, NOT_FAR = 4, 2, 1.25, 1.1
#: Of what a quick search may still trace, the part that the best algorithm's refinement has before another's.
FIRST_SHARE = 0.75
#: Candidates of an algorithm whose neighbours a wide search times in each round.
BEAM = 3
#: Phases of the throttle's grid, at most: as many as a profile tries. At least two: in some the array may stay at half
#: its rate however long a kernel is.
PHASES, PHASES_LEAST = 8, 2
#: Trials whose means over the phases are held against each other, and how far they may be from the fastest at phase 0.
MEANS, NEAR_PHASE0 = 4, 1.03


class NothingRuns(Exception):
    """Every candidate is rejected."""

    def __init__(self, rejected: Sequence[Rejection]) -> None:
        super().__init__(f"{len(rejected)} candidates are rejected")
        self.rejected = tuple(rejected)


def search(request: Request, *, wide: bool, advance: Advance, quick: bool = False) -> Plan:
    """The fastest plan for a request that has been checked.

    Args: wide: start from more settings, refine for longer, and time every close candidate as a whole. quick: time the
        estimate and nothing else, from parts where it is long; where the kernel refuses it, the first that it takes.
    Raises: NothingRuns; UnsupportedError where also the least part is too long for a quick plan;
        UnknownConstantError for a constant that the model does not have.
    """
    with without_collector():
        found = _Search(request, wide, advance)
        return found.of_estimate() if quick else found.plan()


class _Search:
    def __init__(self, request: Request, wide: bool, advance: Advance) -> None:
        self.request, self.wide, self.advance = request, wide, advance
        self.field = field_of(request, Rates(dict(request.constants)))
        self.times = Timekeeper(request, self.field, wide, advance)
        #: why times are of parts, where that needs saying
        self.why = ""
        self.default: Trial | None = None
        self.default_key: tuple[str, Config] | None = None

    def plan(self) -> Plan:
        """Screen, refine, hold the final, and tell."""
        began = clock.perf_counter()
        accepted, self.times.rejected = self.field.start(wide=self.wide)
        self._time_default(accepted)
        self.times.spent = 0  # the rest of the search is the same however big the estimate is
        likely = self.field.likely if self._is_long() else frozenset(self.field.algorithms)
        for i, candidate in enumerate(accepted):
            self.advance(f"timing {candidate.algorithm}", 0.4 * i / len(accepted))
            if candidate.algorithm in likely:
                self.times.screen(candidate)
        if not self.times.found:
            raise NothingRuns(self.times.rejected)
        self._refine()
        self._final()
        trials = self._proven()
        self.advance("phases of the throttle", 0.95)
        return self._told(trials, clock.perf_counter() - began)

    def of_estimate(self) -> Plan:
        """The plan of the estimate alone, or where that does not run, of the first candidate that does."""
        began = clock.perf_counter()
        self.times.most = ESTIMATE_INSTRUCTIONS
        for candidate in self._in_turn():
            self.default_key = key_of(candidate)
            try:
                self._time_first(candidate)
            except TraceLimitError:
                self._time_parts(candidate)
            trials = [one for one in self.times.ranked() if not one.at_least]
            if trials:
                return dataclasses.replace(self._told(trials, clock.perf_counter() - began), effort=ESTIMATED)
        raise NothingRuns(self.times.rejected)

    def _in_turn(self) -> Iterator[Candidate]:
        """The estimate, then what a search starts from."""
        first = self.field.default(())
        if first is not None:
            yield first
        accepted, rejected = self.field.start(wide=False)
        self.times.rejected += rejected
        yield from (one for one in accepted if one != first)

    def _time_default(self, accepted: Sequence[Candidate]) -> None:
        """Time the estimate as a whole, unless it is too big: also to tell what extrapolation is off by."""
        candidate = self.field.default(accepted)
        if candidate is not None:
            self.default_key = key_of(candidate)
            self._time_first(candidate)

    def _time_first(self, candidate: Candidate) -> None:
        """Time what others are held against."""
        self.advance(f"timing the estimate, {candidate.algorithm}", 0.0)
        found = self.times.screen(candidate)
        if found is not None and found.extrapolated_from is not None and found.effort <= WHOLE_INSTRUCTIONS:
            found = self.times.settle(found)
        if found is not None:
            self.times.default_effort = found.effort
        if found is not None and found.extrapolated_from is None:
            self.default, self.times.best_us = found, found.us

    def _time_parts(self, candidate: Candidate) -> None:
        """Extrapolate the time of a kernel that is too long for a quick plan."""
        self.why = f", as the whole has more than {min(ESTIMATE_INSTRUCTIONS):,} instructions"
        for reduction, units in parts(self.request.problem, self.request.asked):
            self.advance(f"timing a part of {reduction.name}", None)
            found = self.times.by_parts(candidate, reduction, units)
            if found is not None:
                self.times.found[key_of(candidate)] = found
                return
        raise UnsupportedError(
            f"{candidate.algorithm}: the least part of the problem too has more than {min(ESTIMATE_INSTRUCTIONS):,} "
            f"instructions, which a quick plan does not trace; search, by nkiconv plan or plan-model --search"
        )

    def _is_long(self) -> bool:
        """Whether the estimate is long enough for cost models to say which algorithms are worth a try."""
        return not self.wide and self.times.default_effort > LONG

    def _refine(self) -> None:
        """Change settings of the best algorithms, one at a time, unless the best is as fast as moving the data."""
        self._settle(WHOLE_INSTRUCTIONS)
        if self.times.at_floor():
            return
        leaders = {one.candidate.algorithm: one for one in reversed(self.times.ranked()) if not one.at_least}
        order = sorted(leaders.values(), key=lambda one: one.us)[:REFINED]
        far = FAR if self.wide else NOT_FAR
        most: float = QUICK_INSTRUCTIONS - min(QUICK_INSTRUCTIONS // 3, PHASES * order[0].traced if order else 0)
        if self.times.rates.overrides:  # the kernel's own settings, from which a search starts, are for other constants
            most *= 3
        if self.wide:
            most = WIDE_INSTRUCTIONS
        most = min(most, self.times.spent + self.times.left)
        order = [one for one in order if one.us <= order[0].us * far]
        for i, leader in enumerate(order):
            what, begin, share = f"refining {leader.candidate.algorithm}", 0.4 + 0.4 * i / len(order), 0.4 / len(order)
            self.advance(what, begin)
            share_spent = 1.0 if i == len(order) - 1 else FIRST_SHARE
            self._descend(leader, self._limit(most, share_spent))
            for turn in range(ROUNDS if self.wide else 0):
                self.advance(what, begin + share * turn / ROUNDS)
                if not self._widen(leader.candidate.algorithm, self._limit(most, share_spent)):
                    break

    def _limit(self, most: float, share: float) -> float:
        """What may have been spent once a share of what is left up to `most` is."""
        return self.times.spent + (most - self.times.spent) * share

    def _descend(self, best: Trial, limit: float) -> None:
        """Go on from each better neighbour at once, with the settings that were changed longest ago, up to a limit of
        instructions traced."""
        turns: dict[str, int] = {}
        tried = self.field.near(best.candidate)
        while tried and self.times.spent + best.traced <= limit:
            candidate = tried.pop(0)
            turns[difference(candidate, best.candidate)] = len(self.times.found)
            one = self.times.screen(candidate)
            if one is not None and not one.at_least and one.us < best.us * BETTER:
                best = one
                new = [other for other in self.field.near(best.candidate) if key_of(other) not in self.times.found]
                turn_of = {key_of(other): turns.get(difference(other, candidate), 0) for other in new}
                tried = sorted(new, key=lambda other: turn_of[key_of(other)])

    def _widen(self, algorithm: str, limit: float) -> bool:
        """Time neighbours of the few best of an algorithm, up to a limit of instructions traced; whether any was."""
        times = self.times
        few = [one for one in times.ranked() if one.candidate.algorithm == algorithm and not one.at_least][:BEAM]
        new = [other for one in few for other in self.field.near(one.candidate) if key_of(other) not in times.found]
        count = 0
        while count < len(new) and times.spent < limit:
            times.screen(new[count])
            count += 1
        return count > 0

    def _final(self) -> None:
        """Time those that may be the fastest as a whole, where they fit."""
        left = float(FINAL_INSTRUCTIONS)
        while not self.times.at_floor():
            spent = self._settle(min(left, WHOLE_INSTRUCTIONS))
            if spent is None:
                break
            left -= spent
        for one in () if self.wide or self.times.at_floor() else self._alike():
            if one.effort <= min(left, self.times.left):
                self.times.settle(one)
                left -= one.effort

    def _proven(self) -> list[Trial]:
        """The trials, fastest first, which is of the whole problem unless it is too big for that."""
        for _ in range(VERIFIED):
            if not self.times.found:
                break
            first = self._no_slower_than_default()[0]
            if first.at_least:  # left out for the time of one that was then found to take longer
                self.times.screen_again(first)
            elif self.times.is_unproven(first):
                self.times.settle(first)
            else:
                break
        known = None if self.default_key is None else self.times.found.get(self.default_key)
        if known is not None and self.times.is_unproven(known):
            self.default = self.times.settle(known)
        timed = [one for one in self._no_slower_than_default() if not one.at_least] if self.times.found else []
        if not timed:
            raise NothingRuns(self.times.rejected)
        whole = [one for one in timed if one.extrapolated_from is None]
        # where others that seemed faster were not, the next one that seems so may not be either
        first = whole[0] if whole and self.times.is_unproven(timed[0]) else timed[0]
        return [first, *[one for one in self.times.ranked() if one is not first]]

    def _no_slower_than_default(self) -> list[Trial]:
        """The trials, fastest first; the estimate before an extrapolated one that only seems as close."""
        ranked, known = self.times.ranked(), self.default
        if known is None or ranked[0].extrapolated_from is None or known.us > ranked[0].us * CLOSE:
            return ranked
        return [known, *[one for one in ranked if one is not known]]

    def _settle(self, most: float) -> float | None:
        """Time the first of the close candidates that is extrapolated as a whole; its effort, or None without one.

        Args: most: effort that it may take, unless the search is wide.
        """
        ranked = self.times.ranked()
        close = [one for one in ranked if not one.at_least and one.us <= ranked[0].us * CLOSE]
        if not self.wide:  # an exact time settles the question unless something seems faster
            firsts = [i for i, one in enumerate(close) if one.extrapolated_from is None]
            close = close[: firsts[0]] if firsts else close
        for one in close:
            if one.extrapolated_from is not None and (self.wide or one.effort <= min(most, self.times.left)):
                self.times.settle(one)
                return one.effort
        return None

    def _alike(self) -> list[Trial]:
        """A few extrapolated candidates that are as good as the best, which is not, other than by idle settings."""
        ranked = self.times.ranked()
        if not ranked or ranked[0].extrapolated_from is not None:
            return []
        best = ranked[0].us
        alike = [one for one in ranked if one.extrapolated_from is not None and not one.at_least]
        return [one for one in alike if IDLE < abs(one.us / best - 1) <= DOUBT - 1][:FEW_ALIKE]

    def _part(self, trial: Trial) -> str:
        """What a time is extrapolated from, as in "256 of 8192 channels"; "" where it is of the whole."""
        if trial.extrapolated_from is None or self.times.reduction is None:
            return ""
        return f"{trial.extrapolated_from} of {self.times.units} {self.times.reduction.name}{self.why}"

    def _least_mean(self, trials: list[Trial]) -> tuple[Trial, Phases]:
        """The trial of the least mean over the throttle's phases, which is what a plan promises, and its phases: among
        the first few that are close by phase 0, and the estimate, than which no plan is slower."""
        alike = [one for one in trials if not one.at_least and one.extrapolated_from == trials[0].extrapolated_from]
        close = [one for one in alike if one.us <= trials[0].us * NEAR_PHASE0][:MEANS]
        if not any(key_of(one.candidate) == self.default_key for one in close):
            close += [one for one in alike if key_of(one.candidate) == self.default_key]
        first = close[0].timing
        assert first is not None
        most = max(close[0].instructions, close[0].traced)
        spread = phases(first, PHASES if self.wide else max(PHASES_LEAST, PHASE_INSTRUCTIONS // most))
        best = close[0], spread
        if len(spread.at_us) == 1 or spread.worst_us - min(spread.at_us.values()) <= IDLE * spread.worst_us:
            return best
        for one in close[1:]:
            if one.timing is not None and key_of(one.candidate) != key_of(best[0].candidate):
                found = phases(one.timing, len(spread.at_us))
                if len(found.at_us) == len(spread.at_us) and found.mean_us < best[1].mean_us * BETTER:
                    best = one, found
        return best

    def _told(self, trials: list[Trial], seconds: float) -> Plan:
        """The plan, from the fastest estimate."""
        began = clock.perf_counter()
        request = self.request
        best, found = self._least_mean(trials)
        trials = [best, *[one for one in trials if one is not best]]
        problem = request.problem
        flops, dtype = array_work(problem, request.asked)
        timing = best.timing
        assert timing is not None
        share = best.us / found.phase0_us  # other than 1 for an extrapolated time, which moves as the reduced one
        constants = dict(request.constants)
        return Plan(
            problem=problem,
            operation=self.field.operation.name,
            lnc=request.lnc,
            asked=request.asked,
            constants=constants,
            algorithm=best.candidate.algorithm,
            config=self.times.settled(best.candidate),
            modelled_us=found.mean_us * share,
            phase0_us=best.us,
            worst_us=found.worst_us * share,
            phases=len(found.at_us),
            copy_floor_us=self.times.copy_floor_us,
            roofline_us=roofline(problem.min_bytes, flops, canonical(dtype) or "", request.lnc, self.times.rates).us,
            bound_by=timing.bound_by,
            instructions=best.instructions,
            sbuf_bytes=max(space.peak_bytes for space in timing.timed.line.sbuf),
            psum_banks=timing.timed.execution.psum_peak_banks,
            symbols=symbols_of(request, best.candidate.algorithm, best.candidate.config),
            alternatives=tuple(one.alternative(self.times.settled(one.candidate)) for one in worth_telling(trials)),
            rejected=tuple(dict.fromkeys(self.times.rejected)),
            in_turns=in_turns(best, trials, constants, self.times.settled),
            extrapolated_from=best.extrapolated_from,
            part=self._part(best),
            by_rule=self.field.shape.by_rule and best.candidate.config is None,
            effort=TUNED if self.wide else TIMED,
            seconds=seconds + clock.perf_counter() - began,
        )
