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
from . import warm_up
from .request import Config
from .warm_up import Probe

#: Instructions of a core, those of all candidates of an estimate together: some 15 ms of CPU.
INSTRUCTIONS = 300
#: Candidates whose cost model is further above the least than this are not timed.
NEAR = 1.3

#: A kernel with its launch grid, args, kwargs
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def fastest(
    candidates: Sequence[tuple[str, Config]], launch: Callable[[str, Config], Launch], rates: Rates
) -> tuple[str, Config]:
    """The candidate that takes least, among the first that `INSTRUCTIONS` reach for, with the matmuls on zeros that
    pay; the first where they reach for one.

    Args:
        candidates: algorithms with settings, in the order in which they are timed. launch: what runs one.
    """
    with without_collector():
        return _fastest(candidates, launch, rates)


def _fastest(
    candidates: Sequence[tuple[str, Config]], launch: Callable[[str, Config], Launch], rates: Rates
) -> tuple[str, Config]:
    def probe(place: int, core: int, most: int | None, cut: bool) -> Probe:
        algorithm, config = candidates[place]
        config = warm_up.probed(config)
        execution, own = _core(launch(algorithm, config), rates, most, core, cut=cut)
        return Probe(execution, own, config)

    left = INSTRUCTIONS
    found: list[tuple[float, int, Probe]] = []
    for place in range(len(candidates)):
        try:
            one = probe(place, 0, left, not found)
        except TraceLimitError:
            break
        except NkiError:  # a search tells of it
            continue
        found.append((one.least.us, place, one))
        left -= len(one.execution.instructions)
        if one.execution.is_cut:
            break
    if not found:
        return candidates[0]
    _, place, best = found[0]
    if len(found) > 1:
        place, best = _confirmed(sorted(found, key=lambda one: one[:2]), lambda place: probe(place, 1, None, False))
    algorithm, config = candidates[place]
    return algorithm, warm_up.with_counts(config, best.refined().counts)


def _confirmed(found: Sequence[tuple[float, int, Probe]], other: Callable[[int], Probe]) -> tuple[int, Probe]:
    """The place of the least time of the slower core and that core's trace, given those of core 0, the least first, and
    what traces core 1."""
    _, chosen, best = found[0]
    best_us = float("inf")
    for us, place, one in found:
        if us >= best_us:
            break
        slower = max(one, other(place), key=lambda core: core.least.us)
        if slower.least.us < best_us:
            best_us, chosen, best = slower.least.us, place, slower
    return chosen, best


def core_us(launch: Launch, rates: Rates, most: int) -> tuple[float, int]:
    """(modelled us at phase 0, instructions) of core 0, or of both cores of a kernel whose cores meet.

    Raises NkiError: the kernel breaks a rule of NKI, or needs more memory than there is; TraceLimitError: a core has
    more instructions than `most`.
    """
    return _core_us(launch, rates, most, 0)


def _core_us(launch: Launch, rates: Rates, most: int | None, core: int) -> tuple[float, int]:
    execution, rates = _core(launch, rates, most, core)
    return in_time(execution, rates).us, len(execution.instructions)


def _core(launch: Launch, rates: Rates, most: int | None, core: int, *, cut: bool = False) -> tuple[Execution, Rates]:
    """A trace of one core, or of both that meet, and the constants that it is timed with. cut: as of `execute`."""
    kernel, args, kwargs = launch
    most = most and most * kernel.grid
    if kernel.grid > 1:
        try:
            return execute(kernel, args, kwargs, trace_only=True, most=most, alone=core, cut=cut), halved(rates)
        except MeetingError:
            pass
    return execute(kernel, args, kwargs, trace_only=True, most=most), rates


def halved(rates: Rates) -> Rates:
    """The constants of a core that has the HBM to itself at half its rate."""
    of_hbm = {"dma.hbm_shared_gbps": rates("dma.hbm_shared_gbps") / 2, "dma.hbm_run_ns": 2 * rates("dma.hbm_run_ns")}
    return Rates({**rates.overrides, **of_hbm})
