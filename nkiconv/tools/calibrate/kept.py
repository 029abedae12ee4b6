"""Slopes on disk, a line each, so that a calibration that was interrupted goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ...errors import FileFormatError
from ...planner.cache import sources_hash
from .measured import Slope


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
