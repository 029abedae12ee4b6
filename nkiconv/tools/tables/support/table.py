"""Rows, columns and cells of a support table: a column is a function, a row its arguments, a cell the outcome.

A cell stands for a call in each dtype of its column, and names the dtypes if not all calls end the same way.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import NkiconvError

#: How a call ends: the kernel runs it, torch does, it raises one of nkiconv's errors, or there is no such argument.
KERNEL, TORCH, REFUSED, ABSENT = "kernel", "torch", "refused", "-"


@dataclass(frozen=True)
class Operands:
    """The operands of a call in one dtype, with the shapes of the plain call."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    array: Callable[..., Any]  # of a shape and, instead of the column's, a dtype by name
    dtype: str
    names: tuple[str, str] = ("x", "w")  # the function's for x and w
    transposed: bool = False  # whether w is [C, K / groups, ...]

    @property
    def axes(self) -> int:
        """Axes of an image: 1 to 3."""
        return len(self.x) - 2


@dataclass(frozen=True)
class Row:
    """`arguments` by name, besides or instead of those of the plain call.

    Rows of one name that follow each other and have equal cells are shown as one, with their values.
    """

    name: str
    value: str
    arguments: Callable[[Operands], Mapping[str, Any]]


def always(**arguments: Any) -> Callable[[Operands], Mapping[str, Any]]:
    """Arguments of a `Row` that are the same for all columns."""
    return lambda _operands: arguments


@dataclass(frozen=True)
class Column:
    """A function. `plain` are its arguments where nothing else is asked for, `ends` says how a call ended."""

    name: str
    function: Callable[..., Any]
    operands: Callable[[str], Operands]
    plain: Callable[[Operands], Mapping[str, Any]]
    ends: Callable[..., str]

    def outcome(self, row: Row, dtype: str) -> str:
        """One of KERNEL, TORCH, REFUSED and ABSENT. Any error that is not nkiconv's is raised."""
        operands = self.operands(dtype)
        arguments = {**self.plain(operands), **row.arguments(operands)}
        try:
            inspect.signature(self.function).bind(**arguments)
        except TypeError:
            return ABSENT
        try:
            return self.ends(self.function, arguments)
        except NkiconvError:
            return REFUSED


PLAIN = Row("dtype", "", always())


def cell(outcomes: Mapping[str, str]) -> str:
    """The outcome, or which dtypes have which."""
    found = [one for one in (KERNEL, TORCH, REFUSED, ABSENT) if one in outcomes.values()]
    if len(found) == 1:
        return found[0]
    return "; ".join(f"{one}: {', '.join(name for name in outcomes if outcomes[name] == one)}" for one in found)


def markdown(columns: Sequence[Column], rows: Sequence[Row], dtypes: Sequence[str]) -> str:
    """The table: the plain call in each dtype, then the rows, in the dtypes that a column's kernel takes."""
    plain = [{dtype: column.outcome(PLAIN, dtype) for dtype in dtypes} for column in columns]
    lines = [(PLAIN.name, dtype, [found[dtype] for found in plain]) for dtype in dtypes]
    taken = [[dtype for dtype in dtypes if found[dtype] == KERNEL] or dtypes for found in plain]
    for row in rows:
        pairs = zip(columns, taken, strict=True)
        cells = [cell({dtype: column.outcome(row, dtype) for dtype in some}) for column, some in pairs]
        lines.append((row.name, row.value, cells))
    heading = ["", *(column.name for column in columns)]
    return "".join(f"| {' | '.join(one)} |\n" for one in (heading, ["---"] * len(heading), *_merged(lines)))


def _merged(lines: Sequence[tuple[str, str, list[str]]]) -> list[list[str]]:
    """Cells of a row, its heading first, from lines of (name, value, cells)."""
    found: list[list[str]] = []
    for (name, cells), alike in itertools.groupby(lines, key=lambda line: (line[0], line[2])):
        values = ", ".join(filter(None, (value for _, value, _ in alike)))
        found.append([f"{name}: {values}" if values else name, *cells])
    return found
