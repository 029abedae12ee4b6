"""What a plan rests on: that tiles of the array's rows work side by side is documented, and measured by nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..simulator.profiling import in_time
from ..simulator.timing import Rates
from ..simulator.timing.prices import TensorPrice
from .alternatives import settings_text
from .candidates import Candidate
from .request import Config
from .trial import Trial

#: The share of a matmul during which another row tile may be at work.
OVERLAP = "pe.row_tiles_overlap"


@dataclass(frozen=True)
class InTurns:
    """If row tiles took turns: modelled us of the plan, phase 0, and the algorithm and settings that take least then
    among the fastest that were timed of each algorithm, with row tiles and without."""

    us: float
    algorithm: str
    config: Config
    least_us: float

    @property
    def text(self) -> str:
        """A line for people."""
        found = f"row tiles of the array side by side, which nobody has measured: {self.us:,.2f} us if they took turns"
        if self.least_us == self.us:
            return f"{found}, and still the least of what was timed"
        return f"{found}; {self.algorithm}, {settings_text(self.config)}, would take {self.least_us:,.2f} us then"


def in_turns(
    best: Trial, trials: Iterable[Trial], constants: Mapping[str, float], settled: Callable[[Candidate], Config]
) -> InTurns | None:
    """What the best trial comes to if row tiles took turns, and which one of the others would be better; None of one
    that has no row tiles."""
    if constants.get(OVERLAP) == 0.0 or not _has_row_tiles(best):
        return None
    rates = Rates({**constants, OVERLAP: 0.0})
    timed = [one for one in trials if one.timing and not one.at_least]
    fastest = {(one.candidate.algorithm, _has_row_tiles(one)): one for one in reversed(timed)}
    us = {id(one): _us(one, rates) for one in [best, *fastest.values()]}
    least = min([best, *fastest.values()], key=lambda one: us[id(one)])
    return InTurns(us[id(best)], least.candidate.algorithm, settled(least.candidate), us[id(least)])


def _has_row_tiles(trial: Trial) -> bool:
    prices = trial.timing.timed.prices if trial.timing else []
    return any(isinstance(price, TensorPrice) and price.tiled for price in prices)


def _us(trial: Trial, rates: Rates) -> float:
    """Modelled us of a trial under other constants, phase 0; an extrapolated one moves as its part does."""
    timing = trial.timing
    assert timing is not None
    return in_time(timing.timed.execution, rates).us * trial.us / timing.us
