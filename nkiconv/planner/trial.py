"""What a search knows of a candidate's time."""

from __future__ import annotations

from dataclasses import dataclass

from .alternatives import Alternative
from .candidates import Candidate
from .request import Config
from .timing import Timing

#: What an extrapolated time is multiplied by when it is held against one of the whole problem.
DOUBT = 1.01


@dataclass(frozen=True)
class Trial:
    """What is known of a candidate's time, phase 0, in us, and its instructions on all cores."""

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
