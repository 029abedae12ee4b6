"""What an estimate's candidates take: the kernel's own loop on the simulator's timeline, core 0 alone.

The two cores of a kernel do the same to two halves of its outputs, so core 0 is timed with half of the HBM's rate, at
half the cost of a plan's timing. `python tests/choice --clock` prints how far that is from both cores' time. There is
no second model: prices, dependencies, throttle and queues are the timeline's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..simulator.collector import without_collector
from ..simulator.errors import MeetingError, NkiError, TraceLimitError
from ..simulator.launch import Execution, execute
from ..simulator.profiling import in_time
from ..simulator.timing import Rates
from .request import Config

#: Instructions of a core, those of all candidates of an estimate together: some 15 ms of CPU.
INSTRUCTIONS = 300
#: Candidates whose cost model is further above the least than this are not timed.
NEAR = 1.3

#: A kernel with its launch grid, args, kwargs
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def fastest(
    candidates: Sequence[tuple[str, Config]], launch: Callable[[str, Config], Launch], rates: Rates
) -> tuple[str, Config]:
    """The candidate that takes least, among the first that `INSTRUCTIONS` reach for; the first where they reach for
    one.

    Args:
        candidates: algorithms with settings, in the order in which they are timed. launch: what runs one.
    """
    with without_collector():
        return candidates[_fastest(candidates, launch, rates)]


def _fastest(candidates: Sequence[tuple[str, Config]], launch: Callable[[str, Config], Launch], rates: Rates) -> int:
    """The place of that candidate."""
    left, found = INSTRUCTIONS, []
    for place, one in enumerate(candidates):
        try:
            us, traced = core_us(launch(*one), rates, left)
        except TraceLimitError:
            break
        except NkiError:  # a search tells of it
            continue
        found.append((us, place))
        left -= traced
    if len(found) < 2:
        return found[0][1] if found else 0
    return _confirmed(sorted(found), lambda place: _core_us(launch(*candidates[place]), rates, None, 1)[0])


def _confirmed(found: Sequence[tuple[float, int]], other_us: Callable[[int], float]) -> int:
    """The place of the least time of the slower core, given those of core 0, the least first, and what core 1 takes."""
    best_us, best = float("inf"), found[0][1]
    for us, place in found:
        if us >= best_us:
            break
        slower_us = max(us, other_us(place))
        if slower_us < best_us:
            best_us, best = slower_us, place
    return best


def core_us(launch: Launch, rates: Rates, most: int) -> tuple[float, int]:
    """(modelled us at phase 0, instructions) of core 0, or of both cores of a kernel whose cores meet.

    Raises NkiError: the kernel breaks a rule of NKI, or needs more memory than there is; TraceLimitError: a core has
    more instructions than `most`.
    """
    return _core_us(launch, rates, most, 0)


def _core_us(launch: Launch, rates: Rates, most: int | None, core: int) -> tuple[float, int]:
    kernel, args, kwargs = launch
    most = most and most * kernel.grid
    if kernel.grid > 1:
        try:
            return _timed(execute(kernel, args, kwargs, trace_only=True, most=most, alone=core), halved(rates))
        except MeetingError:
            pass
    return _timed(execute(kernel, args, kwargs, trace_only=True, most=most), rates)


def _timed(execution: Execution, rates: Rates) -> tuple[float, int]:
    return in_time(execution, rates).us, len(execution.instructions)


def halved(rates: Rates) -> Rates:
    """The constants of a core that has the HBM to itself at half its rate."""
    of_hbm = {"dma.hbm_shared_gbps": rates("dma.hbm_shared_gbps") / 2, "dma.hbm_run_ns": 2 * rates("dma.hbm_run_ns")}
    return Rates({**rates.overrides, **of_hbm})
