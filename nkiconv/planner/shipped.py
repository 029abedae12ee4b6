"""Plans that nkiconv ships for the convolutions of the zoo's models: calls take them before estimates.

`make plans` writes `shipped.tsv`. Its first line has the hash of the timing model's constants, for which the plans are
valid, and the plans' lists of names of settings. Each other line is a plan, in JSON: the request without defaults, and
[algorithm, index of its list of names, values, us]. If a kernel refuses its plan by now, an estimate takes its place.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..problem import ConvProblem
from ..simulator.constants import of_kernels
from ..simulator.hardware import CONSTANTS
from ..simulator.timing import Rates
from .operations import operation_for, operation_of
from .plan import Estimate
from .request import Asked, Config, Request, changed, tuples

FILE = Path(__file__).with_name("shipped.tsv")
#: The file's format; raised with each change.
FORMAT = 1
#: Extents that a line always has.
_EXTENTS = ("N", "C", "W", "S", "D")


@dataclass(frozen=True)
class Shipped:
    """A plan of the file."""

    request: Request
    algorithm: str
    config: Config
    us: float  # modelled, at phase 0 of the throttle


@dataclass(frozen=True)
class Table:
    """A file's plans by request, each parsed when it is read; the lists of names of their settings."""

    settings: tuple[tuple[str, ...] | None, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)

    def plan(self, key: str) -> Shipped | None:
        """The plan of a request's key; None without one."""
        if key not in self.answers:
            return None
        asked, (algorithm, at, values, us) = tuples(json.loads(key)), tuples(json.loads(self.answers[key]))
        given = {"problem": ConvProblem(**asked["problem"]), "asked": Asked(**asked.get("asked", {}))}
        names = self.settings[at]
        config = None if names is None else tuple(zip(names, values, strict=True))
        return Shipped(Request(**{**asked, **given}), algorithm, config, us)

    def plans(self) -> list[Shipped]:
        """All plans of the file."""
        return [plan for plan in map(self.plan, self.answers) if plan is not None]


@functools.lru_cache(maxsize=1024)
def known(request: Request) -> Estimate | None:
    """The shipped plan of a request, if its kernel runs it; None if the request names constants or algorithms."""
    if request.constants or request.algorithms is not None:
        return None
    found, operation = table().plan(key_of(request)), operation_for(request)
    if found is None or found.algorithm not in operation.algorithms:
        return None
    refused = operation.kernel_reason(found.algorithm, operation.shape(request, Rates()), found.config)
    return None if refused else Estimate(found.algorithm, found.config)


def key_of(request: Request) -> str:
    """The request in a line of the file: the same text for equal requests."""
    problem = request.problem
    extents = {name: getattr(problem, name) for name in _EXTENTS if getattr(problem, name) is not None}
    plain = ConvProblem(N=1, C=problem.C, W=1, S=1, D=None if problem.D is None else 1)
    operation, default = operation_for(request).name, operation_of(problem, request.asked).name
    asked = {
        "problem": {**extents, **changed(problem, plain)},
        "asked": changed(request.asked, Asked()),
        "operation": None if operation == default else operation,
        "lnc": None if request.lnc == Request(problem=problem).lnc else request.lnc,
    }
    return _compact({name: value for name, value in asked.items() if value})


def constants_hash() -> str:
    """Twelve hex digits of the timing model's constants."""
    values = sorted((name, one.value) for name, one in of_kernels(CONSTANTS).items())
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def text_of(plans: Iterable[Shipped]) -> str:
    """The text of a file of these plans, sorted."""
    by_key = {key_of(one.request): one for one in plans}
    names = {key: None if one.config is None else [name for name, _ in one.config] for key, one in by_key.items()}
    every = [json.loads(one) for one in sorted({json.dumps(one) for one in names.values()})]
    lines = [_compact({"format": FORMAT, "constants": constants_hash(), "settings": every})]
    for key, one in sorted(by_key.items()):
        values = [value for _, value in one.config or ()]
        lines.append(f"{key}\t{_compact([one.algorithm, every.index(names[key]), values, one.us])}")
    return "\n".join(lines) + "\n"


def read(file: Path) -> Table:
    """A file's plans; empty without a file, or with another format or other constants."""
    if not file.exists():
        return Table()
    first, *lines = file.read_text(encoding="utf-8").splitlines() or [""]
    head = json.loads(first or "{}")
    if (head.get("format"), head.get("constants")) != (FORMAT, constants_hash()):
        return Table()
    return Table(tuples(head["settings"]), dict(line.split("\t") for line in lines))


@functools.cache
def table() -> Table:
    """The shipped plans."""
    return read(FILE)


def take(file: Path) -> None:
    """Read shipped plans from another file from now on."""
    global FILE
    FILE = file
    table.cache_clear()
    known.cache_clear()


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))
