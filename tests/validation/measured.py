"""The published measurements of measured.toml."""

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


@dataclass(frozen=True)
class Row:
    """One published time in us, and the kernel that is modelled for it: ours, which `moves` names, or theirs."""

    what: str
    us: float
    #: of the arrays of a launch, or of several launches, whose times are added up
    shapes: list[Any]
    dtype: str
    #: sizes that each launch is given after its arrays
    block: Any = ()
    moves: str | None = None
    file: str | None = None
    kernel: str | None = None

    @property
    def args(self) -> list[tuple[ArraySpec | int, ...]]:
        """Of each launch."""
        launches = self.shapes if isinstance(self.shapes[0][0], list) else [self.shapes]
        sizes = (self.block,) if isinstance(self.block, int) else self.block
        return [(*(spec(tuple(shape), self.dtype) for shape in shapes), *sizes) for shapes in launches]


@dataclass(frozen=True)
class Source:
    """Times of one publication, of one class of work; `adds` us come on top of each modelled span; `cores`: of our own
    kernels, while those in checkouts launch as they are."""

    name: str
    commit: str
    says: str
    kind: str
    adds: str
    rows: tuple[Row, ...]
    cores: int = 2
    folder: str | None = None
    traces: str | None = None

    @property
    def adds_us(self) -> float:
        return CONSTANTS[self.adds].value / 1e3 if self.adds else 0.0


def read() -> list[Source]:
    """The sources of the table."""
    with FILE.open("rb") as file:
        found = tomllib.load(file)["source"]
    return [Source(kind=one.pop("class"), rows=tuple(Row(**row) for row in one.pop("rows")), **one) for one in found]
