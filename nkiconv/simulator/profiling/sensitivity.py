"""How a total moves when each inferred constant goes through its range."""

from __future__ import annotations

from collections.abc import Iterator

from .. import hardware as hw
from ..constants import Constant
from ..timeline import ENGINES, dropped_loads, price_again, run, unread_matmuls, written_storages
from ..timing import AnyPrice, DmaPrice, MeetPrice, Price, Rates, TensorPrice, inferred
from .report import Profile, Sensitivity
from .settings import Settings
from .timed import Timed, in_time


def sensitivities(found: Profile, timed: Timed, extra_us: float, settings: Settings) -> tuple[Sensitivity, ...]:
    """One entry for each inferred constant that the kernel's timeline may rest on, the one that matters most first.

    Args: extra_us: the excess of the profile's totals over the timeline's.
    """
    chosen = [constant for constant in mattering(timed) if constant.name not in settings.constants]
    entries = []
    for i, constant in enumerate(chosen):
        settings.advance(f"sensitivity: {constant.name}", i / len(chosen))
        ends = [
            found.phases.phase0_us
            if end == constant.value
            else us_under(timed, {**settings.constants, constant.name: end}) + extra_us
            for end in (constant.low, constant.high)
        ]
        entries.append(Sensitivity(constant.name, constant.low, constant.high, *ends))
    return tuple(sorted(entries, key=lambda entry: -entry.spread_us(found.phases.phase0_us)))


def mattering(timed: Timed) -> list[Constant]:
    """The inferred constants that affect a kernel's timeline: in prices, in scheduling, or in dropped instructions."""
    names = set[str]().union(*{_read_by(price) for price in timed.prices})
    names |= {_DEPTH} if any(type(price) is DmaPrice and price.queue == "hwdge" for price in timed.prices) else set()
    names |= {_HOP} if any(engine % len(ENGINES) == _GPSIMD for engine in timed.tasks.engine) else set()
    if any(_drops_loads(timed, hw.CONSTANTS[_RELOADS].high)):
        names.add(_RELOADS)
    if any(unread_matmuls(program.instructions) for program in timed.execution.programs):
        names.add(_UNREAD)
    return inferred(names)


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
#: Those that the timeline itself reads.
_DEPTH, _HOP = "dma.hwdge_queue_depth", "sync.hop_to_gpsimd_ns"
_GPSIMD = ENGINES.index("gpsimd")


def us_under(timed: Timed, constants: dict[str, float], *, rises: bool = False) -> float:
    """A kernel's total under other constants than its timeline's, phase 0.

    rises: only a longer one is of interest: where nothing costs more, the total as it is.
    """
    rates = Rates(constants)
    if _RELOADS in constants or _UNREAD in constants:
        return in_time(timed.execution, rates).us
    prices = price_again(timed.tasks, rates)
    if not {_DEPTH, _HOP} & set(constants):
        known = zip(prices, timed.prices, strict=True)
        if prices == timed.prices or (rises and all(_costs(new) <= _costs(old) for new, old in known)):
            return timed.us
    return timed.us_of(run(timed.tasks, prices, rates))


def _costs(price: AnyPrice) -> float:
    """The sum of all that a price makes its task or others wait."""
    if type(price) is TensorPrice:
        return price.interval_ns * (2 - price.overlap) + price.stream_ns + price.gap_ns + price.issue_ns
    if type(price) is DmaPrice:
        return price.issue_ns + price.again_ns + price.first_packet_ns + sum(price.work_ns) + price.hbm_ns
    if type(price) is MeetPrice:
        return price.seam_ns
    assert type(price) is Price
    return price.issue_ns + price.latency_ns
