"""How a total moves when each inferred constant goes through its range."""

from __future__ import annotations

from collections.abc import Iterator

from .. import hardware as hw
from ..timeline import dropped_loads, price_again, run, unread_matmuls, written_storages
from ..timing import AnyPrice, DmaPrice, Rates, inferred
from .report import Profile, Sensitivity
from .settings import Settings
from .timed import Timed, in_time


def sensitivities(found: Profile, timed: Timed, extra_us: float, settings: Settings) -> tuple[Sensitivity, ...]:
    """One entry for each inferred constant that the kernel's timeline may rest on, the one that matters most first.

    Args: extra_us: what the profile's totals have beyond the timeline's.
    """
    chosen = [
        constant
        for constant in inferred(hw.CONSTANTS)
        if constant.name not in settings.constants and _matters(constant.name, timed)
    ]
    entries = []
    for i, constant in enumerate(chosen):
        settings.advance(f"sensitivity: {constant.name}", i / len(chosen))
        ends = [
            found.phases.phase0_us
            if end == constant.value
            else _total_us(timed, {**settings.constants, constant.name: end}) + extra_us
            for end in (constant.low, constant.high)
        ]
        entries.append(Sensitivity(constant.name, constant.low, constant.high, *ends))
    return tuple(sorted(entries, key=lambda entry: -entry.spread_us(found.phases.phase0_us)))


def _matters(name: str, timed: Timed) -> bool:
    """Whether a constant takes part in this kernel's timeline: as a price, or in how tasks are put in time."""
    if name == _RELOADS:
        return any(_drops_loads(timed, hw.CONSTANTS[name].high))
    if name == _UNREAD:
        return any(unread_matmuls(program.instructions) for program in timed.execution.programs)
    priced = {read for price in timed.prices for read in _read_by(price)}
    return name in priced or name in _TIMELINE_CONSTANTS


def _drops_loads(timed: Timed, window: float) -> Iterator[bool]:
    """Core by core, whether the compiler would drop loads."""
    programs = timed.execution.programs
    written = written_storages([each for program in programs for each in program.instructions])
    for program in programs:
        yield bool(dropped_loads(program, written, window))


def _read_by(price: AnyPrice) -> frozenset[str]:
    return price.constants | price.issue_constants if type(price) is DmaPrice else price.constants


#: Those that decide which instructions there are.
_RELOADS, _UNREAD = "scheduling.reload_window", "scheduling.drops_unread"
#: Inferred constants that the timeline itself reads.
_TIMELINE_CONSTANTS = frozenset({"dma.hwdge_queue_depth", "sync.hop_to_gpsimd_ns"})


def _total_us(timed: Timed, constants: dict[str, float]) -> float:
    rates = Rates(constants)
    if _RELOADS in constants or _UNREAD in constants:
        return in_time(timed.execution, rates).us
    return timed.us_of(run(timed.tasks, price_again(timed.tasks, rates), rates))
