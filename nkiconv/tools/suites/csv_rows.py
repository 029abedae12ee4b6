"""Rows of CSV files: those that tables are kept in, and the measurements of others in data/."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ...whole_file import whole_file


def measured(name: str) -> list[dict[str, str]]:
    """The rows of a file of data/, without its comments."""
    text = (resources.files("nkiconv") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def as_text(row: Mapping[str, Any]) -> dict[str, str]:
    """A row as a file holds it: numbers in six digits, nothing for None."""
    return {name: _text(value) for name, value in row.items()}


def from_text(row: Mapping[str, str]) -> dict[str, Any]:
    """A row of a file with its numbers read again."""
    return {name: _value(text) for name, text in row.items()}


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of equal columns to a file, at least one."""
    first, *others = map(as_text, rows)
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(first), lineterminator="\n")
        writer.writeheader()
        writer.writerows([first, *others])


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [from_text(row) for row in csv.DictReader(file)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _value(text: str) -> str | float | None:
    try:
        return float(text)
    except ValueError:
        return text or None
