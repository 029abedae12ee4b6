"""A calibration from its first probe to the file of measured constants. Slopes are kept on disk too, a line each, so
that one that was interrupted goes on where it was."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from ...errors import FileFormatError
from ...planner.cache import sources_hash
from ...simulator.constants import SHIPPED, Constant, write_target
from ...simulator.hardware import CONSTANTS
from ...simulator.profiling import Advance
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
    known = load(path, clock.description) if path else {}
    found = []
    for i, probe in enumerate(probes):
        each = rounds or clock.rounds
        if probe.name not in known or known[probe.name].rounds < each * probe.rounds:
            known[probe.name] = measure(clock, probe, _within(advance, i, len(probes)), each)
            if path:
                append(path, clock.description, known[probe.name])
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


def path_of(out: Path) -> Path:
    """The file of the slopes that a target was made from."""
    return out.with_name(out.name + ".slopes.jsonl")


def load(path: Path, machine: str) -> dict[str, Slope]:
    """Slopes by probe, of the same machine and the same code; those that say nothing are left out.

    Raises FileFormatError: the file holds something else.
    """
    found: dict[str, Slope] = {}
    if not path.exists():
        return found
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            slope, key = Slope(**row["slope"]), (row["machine"], row["sources"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path}: line {number} holds no slope of a probe; delete the file") from error
        if key == (machine, sources_hash()) and not slope.reason:
            found[slope.probe] = slope
    return found


def append(path: Path, machine: str, slope: Slope) -> None:
    """Add a slope."""
    row = {"machine": machine, "sources": sources_hash(), "slope": dataclasses.asdict(slope)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
