"""The search: time candidates that the kernels accept, cheap answers first, and keep the fastest.

Budgets are in instructions, not in seconds: a machine's load never changes a plan. Settings with the same schedule are
timed once, and counted as often as they are tried.

1. The estimate is timed as a whole, up to `WHOLE_INSTRUCTIONS` first, up to `VERIFIED_INSTRUCTIONS` at the end, unless
   a time is at the copy floor: no plan is slower than the estimate.
2. Screening. Candidates are in the order of cost models, the estimate's algorithm first; if the estimate is long,
   algorithms far above the least are left out. A kernel of more than `WHOLE_INSTRUCTIONS` is timed at two reduced sizes
   (`parts`), and its time is extrapolated along the line through them; once a candidate is timed as a whole, the
   extrapolated times of its algorithm are scaled by its ratio. A trace whose busiest engine alone has more work than
   the best candidate's time is not put on a timeline.
3. Refinement. Settings of the fastest candidate change one at a time, until no time improves or the budget of traces
   is used up; a wide search continues from the next best.
4. The proof. Candidates that seem faster than all that were timed as a whole are timed as a whole, as many as fit the
   budget, and then the leader, at most `VERIFIED` times, regardless of `BUDGET`; the fastest is the plan. A kernel of
   more than `VERIFIED_INSTRUCTIONS` is timed as a whole only in a wide search: else its plan is marked extrapolated.
5. The mean. Times so far are means over two phases of the throttle's grid; of the few fastest, the plan is that of the
   least mean over all.
6. Risks. The plan's time with inferred constants at the ends of their ranges; where it takes much longer, the
   estimates there and their refinement are tried as hedges. A slower candidate of less expected regret becomes the plan
   (`robust`).
"""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Iterator, Sequence

from ..errors import UnsupportedError
from ..simulator.collector import without_collector
from ..simulator.hardware import CONSTANTS
from ..simulator.profiling import Phases
from ..simulator.profiling.roofline import roofline
from ..simulator.profiling.settings import Advance
from ..simulator.timing import Rates
from .candidates import Candidate, field_of
from .estimate import chosen
from .explain import RUINOUS, Rejection, Risk
from .plan import ESTIMATED, SHIPPED, TIMED, TUNED, Plan
from .request import Request, array_work, least_bytes, nl_name, sorted_constants
from .robust import DEFAULT, INSTRUCTIONS, OFF, End, Regrets, expected
from .timekeeper import CLOSE, ESTIMATE_INSTRUCTIONS, WHOLE_INSTRUCTIONS, Timekeeper, Trial
from .timing import phases

#: Instructions of all traces of a quick search's refinement, less those of the leader's phases, at most a third.
QUICK_INSTRUCTIONS = 12_000
#: The same for a wide search.
WIDE_INSTRUCTIONS = 120_000
#: Instructions of an estimate above which only algorithms with a first guess near the least are tried.
LONG = 1_000
#: Most kernels, besides the estimate, that are timed as a whole regardless of the budget.
VERIFIED = 3
#: Instructions of all other kernels in the proof of a quick search, and of all phases of the throttle's grid.
PROOF_INSTRUCTIONS, PHASE_INSTRUCTIONS = 10_000, 14_000
#: The largest share that is no difference, and the ratio of a better time.
IDLE, BETTER = 1e-6, 0.998
#: Most algorithms that are refined, and their largest ratio to the best, in a wide and in a quick search.
REFINED, FAR, NOT_FAR = 2, 1.25, 1.1
#: Share of a quick search's remaining budget for the best algorithm's refinement before another's.
FIRST_SHARE = 0.75
#: Instructions of all traces of a quick search for a hedge.
HEDGES_INSTRUCTIONS = 24_000
#: Candidates of an algorithm that a wide search continues from in each round, and its rounds.
BEAM, ROUNDS = 3, 4
#: Most phases of the throttle's grid, as many as a profile tries; at least two, as in some the Tensor Engine may stay
#: at half rate in a kernel of any length.
PHASES, PHASES_LEAST = 8, 2
#: Most trials of different times whose means over all phases are compared: with 4, and equal times among them, plans of
#: 29 named depthwise rows took 1.007 times as long (`nkiconv plan --suite depthwise --no-cache`).
MEANS = 8
#: Fastest candidates in a plan's alternatives.
ALTERNATIVES = 24


class NothingRuns(Exception):
    """Every candidate is rejected."""

    def __init__(self, rejected: Sequence[Rejection]) -> None:
        super().__init__(f"{len(rejected)} candidates are rejected")
        self.rejected = tuple(rejected)


def search(request: Request, *, wide: bool, advance: Advance, quick: bool = False) -> Plan:
    """The fastest plan of a request without violations.

    Args: wide: start from more settings, refine for longer, and time every close candidate as a whole. quick: time
        only the estimate, from parts if it is long; if the kernel refuses it, the first candidate that runs.
    Raises: NothingRuns; UnsupportedError if the least part too is too long for a quick plan; UnknownConstantError for
        a constant that the model does not have.
    """
    with without_collector():
        found = Search(request, wide, advance)
        return found.of_estimate() if quick else found.plan()


class Search:
    """One search of a request; `plan` is its result."""

    def __init__(self, request: Request, wide: bool, advance: Advance) -> None:
        self.request, self.wide, self.advance = request, wide, advance
        self.field = field_of(request, Rates(dict(request.constants)))
        self.times = Timekeeper(request, self.field, wide, advance)
        self.began = clock.perf_counter()
        self.percent = DEFAULT if request.robust is None else request.robust
        self.estimate: Candidate | None = None

    def plan(self) -> Plan:
        """The plan: screen, refine, prove."""
        accepted, self.times.rejected = self.field.start(wide=self.wide)
        default = self.field.default(accepted)
        first = None if default is None else self._time_first(default)
        is_long = not self.wide and first is not None and first.effort > LONG
        likely = self.field.likely if is_long else frozenset(self.field.algorithms)
        for i, candidate in enumerate(accepted):
            self.advance(f"timing {candidate.algorithm}", 0.4 * i / len(accepted))
            if candidate.algorithm in likely:
                self.times.screen(candidate)
        if default is not None and not self.times.found:  # no part of it is short enough
            whole = self.times.whole(default)
            self.times.found |= {whole.candidate.key: whole} if whole else {}
        if not self.times.found:
            raise NothingRuns(self.times.rejected)
        self._refine()
        trials = self._proven()
        effort, most = (TUNED, WIDE_INSTRUCTIONS) if self.wide else (TIMED, HEDGES_INSTRUCTIONS)
        return self.hedged(Regrets(trials[0], trials, dict(self.request.constants)), trials, effort, most)

    def of_estimate(self) -> Plan:
        """The plan of the estimate alone, or of the first candidate that runs if the estimate does not."""
        self.times.most = ESTIMATE_INSTRUCTIONS
        for candidate in self._in_turn():
            self._time_first(candidate)
            trials = self.times.timed()
            if trials:
                return self._told(trials, SHIPPED if self.field.shipped else ESTIMATED)
            if self.times.is_too_long(candidate):
                raise UnsupportedError(
                    f"{candidate.algorithm}: the least part of the problem too has more than "
                    f"{min(ESTIMATE_INSTRUCTIONS):,} instructions, which a quick plan does not trace; search, by "
                    f"nkiconv plan or plan-model --search"
                )
        raise NothingRuns(self.times.rejected)

    def _in_turn(self) -> Iterator[Candidate]:
        """The estimate, then the starts of a search."""
        first = self.field.default(())
        if first is not None:
            yield first
        accepted, rejected = self.field.start(wide=False)
        self.times.rejected += rejected
        yield from (one for one in accepted if one != first)

    def _time_first(self, candidate: Candidate) -> Trial | None:
        """Time the candidate that others are compared with."""
        self.estimate = candidate
        self.advance(f"timing the estimate, {candidate.algorithm}", 0.0)
        return self.times.screen(candidate)

    def _refine(self) -> None:
        """Change settings of the best algorithms, one at a time, unless the best time is at the copy floor."""
        times = self.times
        first = next(iter(self._unsettled()), None)
        if first is not None and (self.wide or first.effort <= min(WHOLE_INSTRUCTIONS, times.left)):
            times.time_whole(first)
        times.spent = 0  # so that the length of other algorithms' kernels does not change the rest of the search
        if times.at_floor():
            return
        leaders: dict[str, Trial] = {}
        for one in times.timed():
            leaders.setdefault(one.candidate.algorithm, one)
        order = list(leaders.values())[:REFINED]
        most: float = WIDE_INSTRUCTIONS
        if not self.wide:
            most = QUICK_INSTRUCTIONS - min(QUICK_INSTRUCTIONS // 3, PHASES * order[0].traced if order else 0)
            # the starts are the best for other constants
            most *= 3 if times.rates.overrides else 1
        most = min(most, times.spent + times.left)
        order = [one for one in order if one.us <= order[0].us * (FAR if self.wide else NOT_FAR)]
        for i, leader in enumerate(order):
            algorithm, share = leader.candidate.algorithm, 1.0 if i == len(order) - 1 else FIRST_SHARE
            limit = times.spent + (most - times.spent) * share
            self.advance(f"refining {algorithm}", 0.4 + 0.4 * i / len(order))
            self._descend(leader, limit)
            for _ in range(ROUNDS if self.wide else 0):
                own, known = [one for one in times.timed() if one.candidate.algorithm == algorithm], len(times.found)
                for one in own[:BEAM]:
                    self._descend(one, limit)
                if len(times.found) == known:
                    break

    def hedged(self, regrets: Regrets, trials: list[Trial], effort: str, most: float) -> Plan:
        """The plan, after a search for hedges with up to `most` traced instructions of refinement.

        Args: regrets: of `trials`.
        """
        ends = regrets.rising(regrets.best, RUINOUS) if self.percent > OFF else []
        if ends:
            self.advance("hedges", 0.9)
            self.times.left = max(self.times.left, most)  # screening a long kernel may have used it up
            hedges = [one for one in (self._estimate_at(end, regrets) for end in ends) if one]
            known = self.times.timed()
            regrets.hold(regrets.best, known, hedges)
            if regrets.worst(regrets.best) > RUINOUS:
                least = next(iter(regrets.better(known, INSTRUCTIONS)), regrets.best)
                self.times.best_us, self.times.left = least.us, max(self.times.left, most)
                hedges.append(self._descend(least, self.times.spent + most, regrets.cost))
                if regrets.best.is_whole and self.times.is_unproven(hedges[-1]):
                    self.times.time_whole(hedges[-1])
            trials, keys = self._proven(), {one.candidate.key for one in hedges}
            regrets.hold(trials[0], trials, [one for one in trials if one.candidate.key in keys])
        self.advance("phases of the throttle", 0.95)
        return self._told(trials, effort, regrets)

    def _estimate_at(self, end: End, regrets: Regrets) -> Trial | None:
        """The trial of the estimate under a changed constant; None if it does not run, or is not the least there."""
        constants = sorted_constants({**dict(self.request.constants), end.constant: end.value})
        choice = chosen(dataclasses.replace(self.request, constants=constants))
        if choice.algorithm not in self.field.algorithms:
            return None
        found = self.field.check(choice.algorithm, choice.config)
        self.times.best_us = regrets.us(regrets.best, end)
        return self.times.screen(found) if isinstance(found, Candidate) else None

    def _descend(self, best: Trial, limit: float, cost: Callable[[Trial], float] = lambda one: one.us) -> Trial:
        """The best of the trials of a descent: it moves to each better neighbour at once, settings changed longest ago
        first, up to `limit` traced instructions."""
        tried, turns = self._near(best), dict[str, int]()
        while tried and self.times.spent + best.traced <= limit:
            candidate = tried.pop(0)
            turns[_difference(candidate, best.candidate)] = len(self.times.found)
            one = self.times.screen(candidate)
            if one is not None and not one.at_least and cost(one) < cost(best) * BETTER:
                best = one
                new = [(turns.get(_difference(other, candidate), 0), other) for other in self._near(one)]
                tried = [other for _, other in sorted(new, key=lambda pair: pair[0])]
        return best

    def _near(self, one: Trial) -> list[Candidate]:
        """Neighbours without a trial."""
        return [other for other in self.field.near(one.candidate) if other.key not in self.times.found]

    def _unsettled(self) -> list[Trial]:
        """Extrapolated trials close to the best that seem faster than all that were timed as a whole; in a wide search
        all close ones."""
        ranked = self.times.timed()
        least_us = min((one.us for one in ranked if one.is_whole and not self.wide), default=float("inf"))
        return [one for one in ranked if not one.is_whole and one.us < min(least_us, ranked[0].us * CLOSE)]

    def _proven(self) -> list[Trial]:
        """The trials, the plan first, which is timed as a whole unless the problem is too big."""
        times, left, verified = self.times, float("inf") if self.wide else float(PROOF_INSTRUCTIONS), 0
        while times.found and not times.at_floor():
            first, close = times.ranked()[0], self._unsettled()
            if first.at_least:  # it was left out for a candidate that then proved slower
                times.screen_again(first)
                verified += 1
            elif (one := next((one for one in close if one.effort <= min(left, times.left)), None)) is not None:
                left -= one.effort
                times.time_whole(one)
            elif self._leads(first) and times.is_unproven(first) and verified < VERIFIED:
                times.time_whole(first)
                verified += 1
            else:
                break
        if self.estimate is not None and not times.at_floor():
            times.prove(self.estimate)
        ranked = times.ranked()
        timed = [one for one in ranked if not one.at_least]
        if not timed:
            raise NothingRuns(times.rejected)
        whole, first = [one for one in timed if one.is_whole], timed[0]
        if whole and not first.is_whole and (times.is_unproven(first) or not self._leads(first)):
            first = whole[0]  # others that seemed faster were not, so this one may not be either
        return [first, *[one for one in ranked if one is not first]]

    def _leads(self, first: Trial) -> bool:
        """Whether an extrapolated time is clearly less than the estimate's, or that was not timed as a whole."""
        known = self.times.found.get(self.estimate.key) if self.estimate else None
        return known is None or not known.is_whole or known.us > first.us * CLOSE

    def _least_mean(self, trials: list[Trial]) -> tuple[Trial, Phases]:
        """The trial of the least mean over all the throttle's phases, a plan's time, and its phases: among the fastest
        that take different times, and the estimate, so that no plan is slower than it. Those whose mean over two phases
        is no less than the least are left out."""
        alike = [one for one in trials if not one.at_least and one.extrapolated_from == trials[0].extrapolated_from]
        best, found = alike[0], self._phases(alike[0], PHASES)
        least_us = found.mean_us * best.scale
        known, tried = self.estimate and self.estimate.key, {best.us}
        for one in alike[1:]:
            if one.us < least_us and (one.candidate.key == known or (one.us not in tried and len(tried) < MEANS)):
                tried.add(one.us)
                own = self._phases(one, len(found.at_us))
                if len(own.at_us) == len(found.at_us) and own.mean_us * one.scale < least_us * BETTER:
                    best, found, least_us = one, own, own.mean_us * one.scale
        return best, found

    def _phases(self, one: Trial, most: int) -> Phases:
        """A trial at up to so many phases, of a long kernel in a quick search fewer."""
        assert one.timing is not None
        few = PHASES if self.wide else max(PHASES_LEAST, PHASE_INSTRUCTIONS // max(one.instructions, one.traced))
        return phases(one.timing.timed, min(few, most))

    def _told(self, trials: list[Trial], effort: str, regrets: Regrets | None = None) -> Plan:
        """The plan, from the fastest trial. regrets: of these trials; None for a plan without risks."""
        request, problem = self.request, self.request.problem
        best, found = self._least_mean(trials)
        fastest_us, regret, risk = found.mean_us * best.scale, 1.0, ""
        risks = tuple[Risk, ...]()
        if regrets is not None:
            if best is not regrets.best:
                regrets.hold(best, trials)
            self.advance("inferred constants", 0.97)
            regret = regrets.worst(best)
            risk = regrets.ruin(best)
            best, found = self._robust(found, regrets)
            for end, least in regrets.risks(best):
                name, config = least.candidate.algorithm, self.times.completed(least.candidate)
                risks += (Risk(*end, regrets.us(best, end), name, config, regrets.us(least, end), least.us),)
        trials = [best, *[one for one in trials if one is not best]]
        timing = best.timing
        assert timing is not None
        (flops, dtype), moved = array_work(problem, request.asked), least_bytes(problem, request.asked)
        return Plan(
            problem=problem,
            operation=self.field.operation.name,
            lnc=request.lnc,
            asked=request.asked,
            constants=dict(request.constants),
            algorithm=best.candidate.algorithm,
            config=self.times.completed(best.candidate),
            modelled_us=found.mean_us * best.scale,
            phase0_us=found.phase0_us * best.scale,
            worst_us=found.worst_us * best.scale,
            phases=len(found.at_us),
            copy_floor_us=self.times.copy_floor_us,
            roofline_us=roofline(moved, flops, nl_name(dtype), request.lnc, self.times.rates).us,
            bound_by=timing.bound_by,
            instructions=best.instructions,
            sbuf_bytes=max(space.peak_bytes for space in timing.timed.line.sbuf),
            psum_banks=timing.timed.execution.psum_peak_banks,
            symbols=self.field.symbols(best.candidate),
            alternatives=tuple(one.alternative(self.times.completed(one.candidate)) for one in _worth_telling(trials)),
            rejected=tuple(dict.fromkeys(self.times.rejected)),
            risks=risks,
            robust=self.percent,
            fastest_us=fastest_us,
            fastest_regret=regret,
            fastest_risk=risk,
            extrapolated_from=best.extrapolated_from,
            part=best.part,
            effort=effort,
            target=CONSTANTS.target,
            seconds=clock.perf_counter() - self.began,
        )

    def _robust(self, found: Phases, regrets: Regrets) -> tuple[Trial, Phases]:
        """The trial of least expected regret with a mean over phases that the request allows, and its phases. found:
        the fastest trial's phases."""
        fastest, most = regrets.best, float("inf") if self.wide else INSTRUCTIONS
        for one in regrets.better(regrets.rivals, most) if self.percent > OFF else ():
            if one.timing is None or one.extrapolated_from != fastest.extrapolated_from:
                continue
            own = phases(one.timing.timed, len(found.at_us))
            slower = own.mean_us * one.scale / (found.mean_us * fastest.scale)
            if slower <= 1 + self.percent / 100 and expected(slower, regrets.worst(one)) < regrets.most:
                return one, own
        return fastest, found


def _difference(one: Candidate, other: Candidate) -> str:
    """The first setting in which two candidates of an algorithm differ."""
    mine, theirs = dict(one.config or ()), dict(other.config or ())
    return next((name for name in (*mine, *theirs) if mine.get(name) != theirs.get(name)), "")


def _worth_telling(ranked: list[Trial]) -> list[Trial]:
    """The fastest `ALTERNATIVES` and the best of each algorithm, without those that differ from an earlier one only in
    idle settings."""
    distinct: dict[object, Trial] = {}
    for one in ranked:
        distinct.setdefault((one.candidate.algorithm, one.us, one.instructions, one.at_least), one)
    told = list(distinct.values())
    leaders = {one.candidate.algorithm: i for i, one in reversed(list(enumerate(told)))}.values()
    return [one for i, one in enumerate(told) if i < ALTERNATIVES or i in leaders]
