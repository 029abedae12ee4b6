"""The options of a scheduler run, and its result: the time of every event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from .space import Space

Order = Literal["program", "lookahead"]

#: The last event that a task's start waited for, if it was no other task's.
NOTHING, SPACE, QUEUE_FULL = -1, -2, -3


@dataclass(frozen=True)
class Options:
    """How to run a timeline: order of an engine's queue, phase of the throttle's grid (0 to 1), throttle on or off."""

    order: Order = "program"
    phase: float = 0.0
    throttle: bool = True

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise ValueError(f"order={self.order!r}: must be one of {', '.join(get_args(Order))}; use one of them")
        if not 0.0 <= self.phase < 1.0:
            raise ValueError(f"phase={self.phase!r}: must be at least 0 and below 1, a share of the grid; use 0")


@dataclass
class Timeline:
    """When everything happened, in ns from the launch; parallel to the tasks' lists.

    `ready`: when the last thing waited for had arrived; `ready_by`: the task that it came from, or NOTHING, SPACE,
    QUEUE_FULL; `start`; `free`: the engine could go on; `visible`: others could see the result (DMA: the last packet
    and its semaphore); `arrival`: a DMA's first packets were ready.
    """

    options: Options
    ready: list[float]
    ready_by: list[int]
    start: list[float]
    free: list[float]
    visible: list[float]
    arrival: list[float]
    throttle_changes: list[list[tuple[float, bool]]] = field(default_factory=list)
    sbuf: list[Space] = field(default_factory=list)
    psum: list[Space] = field(default_factory=list)
    hbm_bound_ns: float = 0.0
    dma_busy_ns: list[float] = field(default_factory=list)
    #: for tasks whose ready_by is SPACE or QUEUE_FULL: the task whose end made room
    made_room: dict[int, int] = field(default_factory=dict)
    table_loads: list[tuple[int, float, float, str]] = field(default_factory=list)
    #: from the first DMA's issue to the last DMA's end (all tasks, where there is no DMA)
    begin_ns: float = 0.0
    end_ns: float = 0.0

    @property
    def total_ns(self) -> float:
        """First DMA issue to last DMA done."""
        return self.end_ns - self.begin_ns

    def rates(self, core: int) -> Iterator[tuple[float, float, bool]]:
        """(begin, end, at full rate) of the states of a core's throttle."""
        for (begin, fast), (end, _) in pairwise([*self.throttle_changes[core], (self.end_ns, False)]):
            yield begin, end, fast
