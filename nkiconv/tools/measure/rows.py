"""A measured row, and the CSV file that rows are appended to: never rewritten, and never with another header."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import FileFormatError
from ...problem import ConvProblem
from ..suites.csv_rows import as_text
from ..suites.profile_table import sources_hash
from ..verify import Comparison
from .interleave import Timing
from .modelled import Modelled

_PACKAGE = Path(__file__).resolve().parents[2]
_LETTERS = ("N", "C", "H", "W", "K", "R", "S", "groups")
COLUMNS = (
    "case", *_LETTERS, "stride", "dilation", "padding", "dtype", "precision", "algorithm", "tiles", "lnc", "target",
    "kind", "p50_us", "p10_us", "p90_us", "iterations", "chain_calls", "aa_p50_us", "aa_difference",
    "copy_floor_p50_us", "launch_floor_p50_us", "x_copy_floor", "modelled_us", "modelled_phase0_us",
    "modelled_worst_us", "modelled_copy_floor_us", "modelled_launch_floor_us", "modelled_bound_by", "roofline_us",
    "roofline_fraction", "hbm_bytes", "flops", "status", "reason", "channels_checked", "worst_ratio", "version",
    "sources", "commit", "date", "machine",
)  # fmt: skip
#: Columns "modelled_..." of a `Modelled`.
_MODELLED = ("phase0_us", "worst_us", "copy_floor_us", "launch_floor_us", "bound_by")
PASS, NOISY, FAILED = "pass", "noisy", "failed"


@dataclass(frozen=True)
class Row:
    """One case on one machine: measured if `timing` is there, else failed for `reason`."""

    case: str
    problem: ConvProblem
    lnc: int
    algorithm: str
    machine: str
    modelled: Modelled | None = None
    comparison: Comparison | None = None  # with the float64 reference
    channels_checked: int = 0
    timing: Timing | None = None
    reason: str = ""
    precision: str | None = None  # how fp32 products were taken, where the caller said
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def status(self) -> str:
        """One of PASS, NOISY, FAILED."""
        if self.timing is None:
            return FAILED
        return NOISY if self.timing.noisy else PASS

    @property
    def roofline_fraction(self) -> float | None:
        """Share of the roofline that the measured median reaches."""
        if self.timing is None or self.modelled is None:
            return None
        return self.modelled.roofline_us / self.timing.this.p50_us

    def values(self) -> dict[str, Any]:
        """Every column; None for unknown values."""
        problem = self.problem
        return {
            "case": self.case,
            **{letter: getattr(problem, letter) for letter in _LETTERS},
            "stride": "x".join(map(str, problem.stride)),
            "dilation": "x".join(map(str, problem.rhs_dilation)),
            "padding": " ".join("x".join(map(str, pads)) for pads in problem.padding),
            "dtype": problem.dtype,
            "precision": self.precision,
            "algorithm": self.algorithm,
            "lnc": self.lnc,
            "target": "trn2",
            "kind": "measured",
            **_measured(self.timing),
            **_predicted(self.modelled),
            "roofline_fraction": self.roofline_fraction,
            "flops": problem.flops,
            "status": self.status,
            "reason": self.reason,
            "channels_checked": self.channels_checked,
            "worst_ratio": self.comparison.worst_ratio if self.comparison else None,
            "version": __version__,
            "sources": sources_hash(),
            "commit": commit(),
            "date": self.date,
            "machine": self.machine,
        }


def _measured(timing: Timing | None) -> dict[str, Any]:
    if timing is None:
        return {}
    return {
        "p50_us": timing.this.p50_us,
        "p10_us": timing.this.p10_us,
        "p90_us": timing.this.p90_us,
        "iterations": timing.rounds,
        "chain_calls": " ".join(map(str, timing.chain_calls)),
        "aa_p50_us": timing.again.p50_us,
        "aa_difference": timing.aa_difference,
        "copy_floor_p50_us": timing.copy_floor.p50_us,
        "launch_floor_p50_us": timing.launch_floor.p50_us,
        "x_copy_floor": timing.x_copy_floor,
    }


def _predicted(modelled: Modelled | None) -> dict[str, Any]:
    if modelled is None:
        return {}
    return {
        "tiles": " ".join(f"{name}={size}" for name, size in modelled.tiles.items()),
        **{name: getattr(modelled, name) for name in ("modelled_us", "roofline_us", "hbm_bytes")},
        **{f"modelled_{name}": getattr(modelled, name) for name in _MODELLED},
    }


def commit() -> str:
    """The commit that this package was checked out at; empty where it is not in a work tree of its own, or git is not.

    A "+" follows where files of the package have changed since.
    """
    top = _git("rev-parse", "--show-toplevel")
    if not top or Path(top) != _PACKAGE.parent:
        return ""
    return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain", "-uno", ".") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=_PACKAGE, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def append(path: Path, row: Row) -> None:
    """Add a row to the file, whole and on disk before this returns; a new or empty file gets a header first.

    Raises FileFormatError, and leaves the file alone, if it has other columns or ends in half a row.
    """
    check(path)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if not path.exists() or path.stat().st_size == 0:
        writer.writeheader()
    values = row.values()
    writer.writerow(as_text({name: values.get(name) for name in COLUMNS}))
    with path.open("ab") as file:
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())


def check(path: Path) -> None:
    """Refuse a file that rows cannot be appended to.

    Raises FileFormatError: other columns than this version writes, or no line break at its end.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    if not content:
        return
    header = next(csv.reader([content.decode(errors="replace").splitlines()[0]]))
    if tuple(header) != COLUMNS:
        raise FileFormatError(f"{path}: has other columns than this version appends; move it away or choose another")
    if not content.endswith(b"\n"):
        raise FileFormatError(f"{path}: ends in half a row; complete or remove that line")
