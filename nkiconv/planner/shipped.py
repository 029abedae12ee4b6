"""Timed plans that come with nkiconv, of every convolution that the zoo's models run: a call looks here first.

`shipped.tsv` has a line for each, written by `make plans`: what is asked, without what is as by default, and the
answer. Both are JSON. They hold while the constants of the timing model are those that the first line names; a plan
that its kernel refuses by now is passed over, and an estimate takes its place.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..problem import ConvProblem
from ..simulator.hardware import CONSTANTS
from ..simulator.timing import Rates
from .operations import operation_for
from .plan import Estimate
from .request import Asked, Config, Request, tuples

FILE = Path(__file__).with_name("shipped.tsv")
#: Of the file; raised when it changes.
FORMAT = 1
#: Extents that a problem always names.
_EXTENTS = ("N", "C", "W", "S", "D")


@dataclass(frozen=True)
class Shipped:
    """A plan of the file."""

    request: Request
    algorithm: str
    config: Config
    us: float  # modelled, at phase 0 of the throttle

    def line(self) -> str:
        """Its line of the file."""
        answer = {"algorithm": self.algorithm, "config": self.config, "us": self.us}
        return f"{key_of(self.request)}\t{_compact(answer)}"

    @staticmethod
    def of_line(line: str) -> Shipped:
        """The plan of a line."""
        asked, answer = (tuples(json.loads(one)) for one in line.split("\t"))
        problem, of_kernel = ConvProblem(**asked["problem"]), Asked(**asked["asked"])
        request = Request(problem=problem, lnc=asked["lnc"], asked=of_kernel, operation=asked["operation"])
        return Shipped(request, **answer)


def known(request: Request) -> Estimate | None:
    """What the file has for a request, where its kernel takes it; None where constants or algorithms are asked for."""
    if request.constants or request.algorithms is not None:
        return None
    line = _lines().get(key_of(request))
    if line is None:
        return None
    found, operation = Shipped.of_line(line), operation_for(request)
    if found.algorithm not in operation.algorithms:
        return None
    refused = operation.refusal(found.algorithm, operation.shape(request, Rates()), found.config)
    return None if refused else Estimate(found.algorithm, found.config)


def key_of(request: Request) -> str:
    """What a line has of a request: the same of those that are equal."""
    problem = request.problem
    extents = {name: getattr(problem, name) for name in _EXTENTS if getattr(problem, name) is not None}
    plain = ConvProblem(N=1, C=problem.C, W=1, S=1, D=None if problem.D is None else 1)
    asked = {
        "problem": {**extents, **_changed(problem, plain, extents)},
        "asked": _changed(request.asked, Asked()),
        "operation": operation_for(request).name,
        "lnc": request.lnc,
    }
    return _compact(asked)


def head() -> str:
    """The first line of a file that is written now."""
    return _compact({"format": FORMAT, "constants": constants_hash()})


def constants_hash() -> str:
    """Twelve hex digits of the timing model's constants."""
    values = sorted((name, one.value) for name, one in CONSTANTS.items())
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def text_of(plans: Iterable[Shipped]) -> str:
    """The file of some plans, sorted."""
    return "\n".join([head(), *sorted(one.line() for one in plans)]) + "\n"


def read(file: Path = FILE) -> list[Shipped]:
    """All plans of a file; none where there is no file, or one of another format or of other constants."""
    return [Shipped.of_line(line) for line in _valid(file)]


@functools.cache
def _lines() -> Mapping[str, str]:
    """The lines of the file by what they are asked, each parsed when it is."""
    return {line.partition("\t")[0]: line for line in _valid(FILE)}


def _valid(file: Path) -> list[str]:
    if not file.exists():
        return []
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    return lines if first == head() else []


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def _changed(value: Any, plain: Any, leave_out: Container[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass in which it differs from another."""
    every = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value) if one.name not in leave_out)
    return {name: one for name, one in every if one != getattr(plain, name)}
