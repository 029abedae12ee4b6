"""What a search knows of a candidate's time."""

from __future__ import annotations

from dataclasses import dataclass

from .alternatives import Alternative
from .candidates import Candidate
from .request import Config
from .timing import Timing, Traced

#: What an extrapolated time is multiplied by when it is held against one of the whole problem.
DOUBT = 1.01

#: Fastest candidates that a plan tells of.
ALTERNATIVES = 24


@dataclass(frozen=True)
class Trial:
    """What is known of a candidate's time, phase 0, in us, and its instructions on all cores, as a compiler
    sees them: the body of a loop on the device once."""

    candidate: Candidate
    us: float
    instructions: int
    timing: Timing | None  # the whole problem, or the larger reduction
    effort: float  # instructions, or what counts as many, of the whole problem
    extrapolated_from: int | None = None
    at_least: bool = False

    @property
    def doubt(self) -> float:
        """What an extrapolated time must be better by to count as better."""
        return 1.0 if self.extrapolated_from is None else DOUBT

    @property
    def num_settings(self) -> int:
        """Of equal times the one that says least is the best."""
        return len(self.candidate.config or ())

    @property
    def traced(self) -> int:
        """Instructions that timing it again, or a neighbour, takes."""
        return self.timing.instructions if self.timing else 0

    def alternative(self, config: Config) -> Alternative:
        """What a plan tells of it; config: all its settings."""
        one, bound_by = self.candidate, self.timing.bound_by if self.timing else "not timed"
        return Alternative(
            one.algorithm, config, self.us, bound_by, self.instructions, self.extrapolated_from, self.at_least
        )


@dataclass
class Run:
    """What a kernel does with the whole problem once its settings have come to something."""

    settled: object
    traced: Traced
    timing: Timing | None = None


def effort_of(traced: Traced, times: float) -> float:
    """Instructions, or what counts as many, of `times` as many tiles as were traced."""
    return traced.instructions * times + traced.comparisons * times**2


def worth_telling(ranked: list[Trial]) -> list[Trial]:
    """The fastest `ALTERNATIVES`, and the best of each algorithm, without those that only differ in idle settings."""
    distinct: dict[object, Trial] = {}
    for one in ranked:
        distinct.setdefault((one.candidate.algorithm, one.us, one.instructions, one.at_least), one)
    told = list(distinct.values())
    leaders = {id(one) for one in {one.candidate.algorithm: one for one in reversed(told)}.values()}
    return [one for i, one in enumerate(told) if i < ALTERNATIVES or id(one) in leaders]


def key_of(candidate: Candidate) -> tuple[str, Config]:
    """What a candidate is known by: its algorithm and its settings, in whatever order they were named."""
    return candidate.algorithm, candidate.config and tuple(sorted(candidate.config))


def tiles_of(candidate: Candidate) -> tuple[str, int]:
    """What extrapolated times of candidates have in common: what they are off by is much the same for all of these."""
    return candidate.algorithm, candidate.channels


def difference(one: Candidate, other: Candidate) -> str:
    """The first setting in which two candidates of an algorithm differ."""
    mine, theirs = dict(one.config or ()), dict(other.config or ())
    return next((name for name in (*mine, *theirs) if mine.get(name) != theirs.get(name)), "")
