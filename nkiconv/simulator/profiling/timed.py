"""A traced kernel with its timeline: what reports, pictures and traces are made from."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Execution
from ..timeline import Tasks, Timeline
from ..timing import AnyPrice, Rates


@dataclass(frozen=True)
class Timed:
    """A traced kernel and its timeline of program order, phase 0: what pictures and traces are made from."""

    kernel: str
    execution: Execution
    tasks: Tasks
    prices: list[AnyPrice]
    rates: Rates
    line: Timeline
