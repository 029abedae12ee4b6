"""A calibration from its first probe to the file of measured constants."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from ...simulator.constants import SHIPPED, Constant, write_target
from ...simulator.hardware import CONSTANTS
from ...simulator.profiling import Advance
from . import kept
from .clocks import Clock
from .estimate import FOUND, Estimate
from .measured import Slope, measure
from .probe import Probe
from .suite import PROBES


def slopes(
    clock: Clock, probes: Sequence[Probe], advance: Advance, path: Path | None = None, rounds: int | None = None
) -> list[Slope]:
    """The slope of each probe; those that the file at `path` has of the same machine, and of no fewer rounds, are not
    measured again."""
    known = kept.load(path, clock.description) if path else {}
    found = []
    for i, probe in enumerate(probes):
        each = rounds or clock.rounds
        if probe.name not in known or known[probe.name].rounds < each * probe.rounds:
            known[probe.name] = measure(clock, probe, _within(advance, i, len(probes)), each)
            if path:
                kept.append(path, clock.description, known[probe.name])
        found.append(known[probe.name])
    return found


def _within(advance: Advance, place: int, count: int) -> Advance:
    """Progress over all probes, from that of one."""
    return lambda what, share: advance(what, (place + (share or 0.0)) / count)


def rows(estimates: Sequence[Estimate], clock: Clock) -> dict[str, Constant]:
    """The constants that were measured, as rows of a target."""
    day = datetime.date.today().isoformat()
    source = f"nkiconv calibrate, {day}: {clock.description}, {clock.name}"
    found = {}
    for one in estimates:
        if one.status == FOUND:
            low, high = one.value - one.half_interval, one.value + one.half_interval
            found[one.name] = Constant(one.name, one.value, SHIPPED[one.name].unit, source, "measured", low, high)
    return found


def write(path: Path, estimates: Sequence[Estimate], clock: Clock) -> dict[str, Constant]:
    """Write the measured constants as a target for NKICONV_TARGET; returns its rows."""
    found = rows(estimates, clock)
    write_target(found, path)
    return found


def unprobed() -> list[str]:
    """Inferred constants that no probe is for."""
    probed = {name for probe in PROBES for name in probe.constants}
    return [name for name, one in CONSTANTS.items() if one.standing == "inferred" and name not in probed]
