"""Plans that nkiconv ships, of the convolutions of the zoo's models: a call takes them before an estimate.

`shipped.tsv` is written by `make plans`. Its first line has the hash of the timing model's constants, for which the
plans hold, and the names of settings that plans have. Each other line is a plan, in JSON: the request, without what is
as by default, and [algorithm, number of its names, values, us]. A plan that its kernel refuses by now is passed over,
and an estimate takes its place.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..problem import ConvProblem
from ..simulator.constants import of_kernels
from ..simulator.hardware import CONSTANTS
from ..simulator.timing import Rates
from .operations import operation_for, operation_of
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


@dataclass(frozen=True)
class Table:
    """A file's plans by request, each parsed when it is asked for; the names of their settings."""

    settings: tuple[tuple[str, ...] | None, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)

    def plan(self, key: str) -> Shipped | None:
        """The plan of a request's key, None where there is none."""
        if key not in self.answers:
            return None
        asked, (algorithm, at, values, us) = tuples(json.loads(key)), tuples(json.loads(self.answers[key]))
        given = {"problem": ConvProblem(**asked["problem"]), "asked": Asked(**asked.get("asked", {}))}
        names = self.settings[at]
        config = None if names is None else tuple(zip(names, values, strict=True))
        return Shipped(Request(**{**asked, **given}), algorithm, config, us)

    def plans(self) -> list[Shipped]:
        """All of them."""
        return [plan for plan in map(self.plan, self.answers) if plan is not None]


@functools.lru_cache(maxsize=1024)
def known(request: Request) -> Estimate | None:
    """What the file has for a request, where its kernel takes it; None where constants or algorithms are asked for."""
    if request.constants or request.algorithms is not None:
        return None
    found, operation = table().plan(key_of(request)), operation_for(request)
    if found is None or found.algorithm not in operation.algorithms:
        return None
    refused = operation.kernel_reason(found.algorithm, operation.shape(request, Rates()), found.config)
    return None if refused else Estimate(found.algorithm, found.config)


def key_of(request: Request) -> str:
    """What a line has of a request: the same of those that are equal."""
    problem = request.problem
    extents = {name: getattr(problem, name) for name in _EXTENTS if getattr(problem, name) is not None}
    plain = ConvProblem(N=1, C=problem.C, W=1, S=1, D=None if problem.D is None else 1)
    operation, default = operation_for(request).name, operation_of(problem, request.asked).name
    asked = {
        "problem": {**extents, **_changed(problem, plain, extents)},
        "asked": _changed(request.asked, Asked()),
        "operation": None if operation == default else operation,
        "lnc": None if request.lnc == Request(problem=problem).lnc else request.lnc,
    }
    return _compact({name: value for name, value in asked.items() if value})


def constants_hash() -> str:
    """Twelve hex digits of the timing model's constants."""
    values = sorted((name, one.value) for name, one in of_kernels(CONSTANTS).items())
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def text_of(plans: Iterable[Shipped]) -> str:
    """The file of some plans, sorted."""
    by_key = {key_of(one.request): one for one in plans}
    names = {key: None if one.config is None else [name for name, _ in one.config] for key, one in by_key.items()}
    every = [json.loads(one) for one in sorted({json.dumps(one) for one in names.values()})]
    lines = [_compact({"format": FORMAT, "constants": constants_hash(), "settings": every})]
    for key, one in sorted(by_key.items()):
        values = [value for _, value in one.config or ()]
        lines.append(f"{key}\t{_compact([one.algorithm, every.index(names[key]), values, one.us])}")
    return "\n".join(lines) + "\n"


def read(file: Path) -> Table:
    """A file's plans; none where there is no file, or one of another format or of other constants."""
    if not file.exists():
        return Table()
    first, *lines = file.read_text(encoding="utf-8").splitlines() or [""]
    head = json.loads(first or "{}")
    if (head.get("format"), head.get("constants")) != (FORMAT, constants_hash()):
        return Table()
    return Table(tuples(head["settings"]), dict(line.split("\t") for line in lines))


@functools.cache
def table() -> Table:
    """What nkiconv comes with."""
    return read(FILE)


def take(file: Path) -> None:
    """Take plans from another file from now on."""
    global FILE
    FILE = file
    table.cache_clear()
    known.cache_clear()


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def _changed(value: Any, plain: Any, leave_out: Container[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass in which it differs from another."""
    every = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value) if one.name not in leave_out)
    return {name: one for name, one in every if one != getattr(plain, name)}
