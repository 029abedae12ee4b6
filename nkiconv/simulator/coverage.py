"""How much of documented NKI runs here: the source of the coverage table in docs/kernels.md.

``python -m nkiconv.simulator.coverage docs/kernels.md`` rewrites the table between its markers in that file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import compiler, isa, language
from .documented import (
    COMPILER,
    ISA_CALLS,
    ISA_ENUMS,
    ISA_SCALARS,
    LANGUAGE_CALLS,
    LANGUAGE_CONSTANTS,
    LANGUAGE_GRIDS,
    TENSOR_MEMBERS,
)
from .tensor import NkiTensor


@dataclass(frozen=True)
class Coverage:
    """One namespace: how many names AWS documents for gen3, and those that the simulator lacks."""

    namespace: str
    documented: int
    missing: tuple[str, ...]

    @property
    def simulated(self) -> int:
        return self.documented - len(self.missing)


def coverage() -> tuple[Coverage, ...]:
    """Coverage of nki.isa, nki.language, NkiTensor and nki.compiler of NKI 0.7."""
    return (
        _covered("nki.isa", ISA_CALLS + ISA_SCALARS + ISA_ENUMS, vars(isa)),
        _covered("nki.language", LANGUAGE_CALLS + LANGUAGE_CONSTANTS + LANGUAGE_GRIDS, vars(language)),
        _covered("NkiTensor", TENSOR_MEMBERS, vars(NkiTensor)),
        _covered("nki.compiler", COMPILER, vars(compiler)),
    )


def _covered(namespace: str, names: tuple[str, ...], present: Mapping[str, object]) -> Coverage:
    return Coverage(namespace, len(names), tuple(name for name in names if name not in present))


def markdown() -> str:
    """The coverage as a Markdown table, a row a namespace."""
    rows = ["| namespace | names for gen3 | here | missing |", "|---|---|---|---|"]
    for part in coverage():
        share = f"{part.simulated} ({part.simulated / part.documented:.0%})"
        missing = ", ".join(f"`{name}`" for name in part.missing) or "none"
        rows.append(f"| `{part.namespace}` | {part.documented} | {share} | {missing} |")
    return "\n".join(rows) + "\n"


def rewrite(path: Path) -> None:
    """Put the current table between the coverage markers of a file."""
    between = re.compile(r"(<!-- coverage:[^\n]*-->\n).*?(<!-- /coverage -->)", re.DOTALL)
    path.write_text(between.sub(lambda match: match[1] + markdown() + match[2], path.read_text()))


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]))
