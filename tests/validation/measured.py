"""The published measurements of measured.toml, and what may be wrong with a row of it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from nkiconv import spec
from nkiconv.simulator import ArraySpec
from nkiconv.simulator.hardware import CONSTANTS

FILE = Path(__file__).with_name("measured.toml")
#: What a source and a row may say.
_SOURCE = {"name", "commit", "says", "adds", "class", "cores", "folder", "traces", "rows"}
_ROW = {"what", "us", "moves", "file", "kernel", "shapes", "dtype", "block"}
#: Cores of a kernel of ours where a source says nothing else.
_CORES = 2


class MeasuredError(ValueError):
    """A table of measurements that contradicts itself."""


@dataclass(frozen=True)
class Row:
    """One published time in us, and the kernel that is modelled for it: ours by name, or theirs in a file.

    args: of each launch; the time is the sum of all.
    """

    what: str
    us: float
    args: tuple[tuple[ArraySpec | int, ...], ...]
    moves: str | None
    file: str | None
    kernel: str | None


@dataclass(frozen=True)
class Source:
    """Times of one publication, of one class of work; `adds` us come on top of each modelled span; `cores`: of our own
    kernels, while those in checkouts launch as they are."""

    name: str
    commit: str
    says: str
    kind: str
    adds: str
    cores: int
    folder: str | None
    traces: str | None
    rows: tuple[Row, ...]

    @property
    def adds_us(self) -> float:
        return CONSTANTS[self.adds].value / 1e3 if self.adds else 0.0


def read(path: Path = FILE) -> list[Source]:
    """The sources of a table. Raises MeasuredError: a key it does not know or lacks, a constant that there is not."""
    with path.open("rb") as file:
        return [_source(entry) for entry in tomllib.load(file)["source"]]


def _source(entry: dict[str, Any]) -> Source:
    name = entry.get("name", "a source without a name")
    _check(name, entry, _SOURCE, {"name", "commit", "says", "adds", "class", "rows"})
    if entry["adds"] and entry["adds"] not in CONSTANTS:
        raise MeasuredError(f"{name}: adds={entry['adds']!r}: trn2.toml has no such constant; name one, or none")
    rows = tuple(_row(name, row) for row in entry["rows"])
    if not rows and "traces" not in entry:
        raise MeasuredError(f"{name}: has neither rows nor traces; give one of them")
    given = (entry.get(key) for key in ("folder", "traces"))
    cores = entry.get("cores", _CORES)
    return Source(name, entry["commit"], entry["says"], entry["class"], entry["adds"], cores, *given, rows)


def _row(source: str, row: dict[str, Any]) -> Row:
    _check(source, row, _ROW, {"what", "us", "shapes", "dtype"})
    if ("moves" in row) == ("kernel" in row) or ("file" in row) != ("kernel" in row):
        raise MeasuredError(f"{source}: {row['what']}: must have moves, or file and kernel; give one of the two")
    launches = row["shapes"] if isinstance(row["shapes"][0][0], list) else [row["shapes"]]
    block = row.get("block", [])
    sizes = tuple(block) if isinstance(block, list) else (block,)
    args = tuple((*(spec(tuple(shape), row["dtype"]) for shape in shapes), *sizes) for shapes in launches)
    return Row(row["what"], row["us"], args, row.get("moves"), row.get("file"), row.get("kernel"))


def _check(where: str, entry: dict[str, Any], known: set[str], needed: set[str]) -> None:
    strange, missing = sorted(set(entry) - known), sorted(needed - set(entry))
    if strange or missing:
        raise MeasuredError(f"{where}: lacks {missing}, and has {strange}, which nobody reads; mend the table")
