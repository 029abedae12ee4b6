"""A traced kernel with its timeline, the source of reports, pictures and traces."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Execution
from ..timeline import Tasks, Timeline, build, repeated_ns, run
from ..timing import AnyPrice, PriceList, Rates
from .settings import Advance, ignore


@dataclass(frozen=True)
class Timed:
    """A traced kernel and its timeline of program order, phase 0."""

    kernel: str
    execution: Execution
    tasks: Tasks
    prices: list[AnyPrice]
    rates: Rates
    line: Timeline

    @property
    def us(self) -> float:
        """First DMA issue to last DMA done, modelled."""
        return self.us_of(self.line)

    def us_of(self, line: Timeline) -> float:
        """The time of another timeline of the same tasks, with the unrecorded iterations of device loops."""
        return (line.total_ns + repeated_ns(self.execution.programs, self.tasks, line)) / 1e3


def in_time(
    execution: Execution,
    rates: Rates,
    kernel: str = "kernel",
    advance: Advance = ignore,
    prices: PriceList | None = None,
) -> Timed:
    """Put a traced kernel on its timeline: program order, phase 0 of the throttle's grid.

    Args:
        kernel: its name. advance: called with the current step. prices: under `rates`, if some are known already.

    Returns: the timeline and its traced kernel.

    Raises: nothing of its own.
    """
    advance("finding dependencies", None)
    tasks, priced = build(execution.programs, prices or PriceList(rates))
    advance("timing", 0.0)
    return Timed(kernel, execution, tasks, priced, rates, run(tasks, priced, rates))
