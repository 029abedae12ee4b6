"""Kernels in a few lines, with the place of a finding marked in them, for the tests of the linter."""

from pathlib import Path

from nkiconv.lint import Finding, lint

#: Stands before the character at which a rule must be reported; it is taken out before the linter sees the text.
MARK = "«"
HEAD = """\
from dataclasses import dataclass
from enum import Enum
import nki
import nki.isa as nisa
import nki.language as nl
"""


def in_kernel(body: str) -> str:
    """A module with one kernel of this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}\n\n@nki.jit\ndef kernel(x, y, n=4):\n{lines}"


def places(text: str) -> list[tuple[int, int]]:
    """(line, column) of each mark, from 1, as they are without the marks."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split(MARK)
        found += [(number, len("".join(parts[:count])) + 1) for count in range(1, len(parts))]
    return found


def write(folder: Path, text: str, name: str = "kernels.py") -> Path:
    """A file with the text, without its marks."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(MARK, ""), encoding="utf-8")
    return path


def findings(folder: Path, text: str, *, nki: str = "0.6", strict: bool = False) -> tuple[Finding, ...]:
    """What the linter says of one file with this text."""
    report = lint([write(folder, text)], nki=nki, strict=strict)
    assert report.broken == ()
    return report.findings


def found_at(found: tuple[Finding, ...]) -> list[tuple[str, int, int]]:
    """(rule, line, column) of each finding."""
    return [(one.rule, one.line, one.column) for one in found]
