"""Which algorithms with which settings may run a problem, and what the kernels say to them.

Generators look at shapes alone and may be generous: the kernels refuse by name what they cannot do, and the search
times the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kernels.depthwise_conv1d import ALGORITHMS
from ..kernels.depthwise_conv1d.call import Extras
from ..kernels.depthwise_conv1d.choice import choose
from ..kernels.depthwise_conv1d.dispatch import refusal
from ..kernels.depthwise_conv1d.geometry import Geometry
from ..simulator.hardware import PARTITIONS
from ..simulator.timing import Rates
from .depthwise_conv1d import FAMILIES, Family, Shape
from .plan import Rejection
from .request import Config, Request, extras_of, geometry_of


@dataclass(frozen=True)
class Candidate:
    """An algorithm with settings that the kernel does not refuse."""

    algorithm: str
    config: Config
    #: channels that one core works on at once: times are linear in the number of such tiles
    channels: int
    #: a time in us that it cannot beat, found without a trace
    least_us: float


def family(algorithm: str) -> Family:
    """What is known of an algorithm; of one without an entry: its defaults, and tiles of 128 channels."""
    return FAMILIES.get(algorithm, Family())


def shape_of(request: Request, rates: Rates) -> Shape:
    """A request as the kernels see it."""
    geometry, extras = geometry_of(request.problem), extras_of(request.problem, request.asked)
    return Shape(geometry, extras, request.lnc, rates)


def start(request: Request, shape: Shape, *, wide: bool) -> tuple[list[Candidate], list[Rejection]]:
    """What a search starts from, the kernel's own choice first, then by least time; what is refused, and why."""
    accepted: list[Candidate] = []
    rejected: list[Rejection] = []
    for algorithm in request.algorithms or ALGORITHMS:
        for config in family(algorithm).configs(shape, wide):
            found = check(shape, algorithm, config)
            if isinstance(found, Candidate):
                accepted.append(found)
            else:
                rejected.append(found)
    own = kernel_choice(shape.geometry, shape.extras, shape.cores)[0]
    return sorted(accepted, key=lambda one: (one.algorithm != own, one.least_us)), rejected


def default(request: Request, shape: Shape, accepted: Sequence[Candidate]) -> Candidate | None:
    """The kernel's own choice: the one of `accepted` that is the same, which names its settings, or with its own.

    None where it is none of the algorithms asked for.
    """
    algorithm, config = kernel_choice(shape.geometry, shape.extras, shape.cores)
    if algorithm not in (request.algorithms or ALGORITHMS):
        return None
    found = check(shape, algorithm, config)
    settled = family(algorithm).settled(shape, config)
    same = [
        one
        for one in accepted
        if one.algorithm == algorithm and family(algorithm).settled(shape, one.config) == settled
    ]
    return next(iter(same), found if isinstance(found, Candidate) else None)


def near(shape: Shape, candidate: Candidate) -> list[Candidate]:
    """Candidates that differ from this one in one setting."""
    configs = family(candidate.algorithm).near(shape, candidate.config)
    checked = [check(shape, candidate.algorithm, config) for config in configs]
    return [one for one in checked if isinstance(one, Candidate)]


def check(shape: Shape, algorithm: str, config: Config) -> Candidate | Rejection:
    """A candidate, or why the kernel refuses it."""
    reason = refusal_of(algorithm, shape.geometry, shape.extras, config, shape.cores)
    if reason:
        return Rejection(algorithm, config, reason)
    known = family(algorithm)
    unit = max(1, min(shape.geometry.C, known.unit(shape, config)))
    return Candidate(algorithm, config, unit, known.least_us(shape, config))


def refusal_of(algorithm: str, geometry: Geometry, extras: Extras, config: Config, cores: int) -> str:
    """Why the kernel refuses this, or ""."""
    return str(refusal(algorithm, geometry, extras, config, cores))  # type: ignore[no-untyped-call]


def kernel_choice(geometry: Geometry, extras: Extras, cores: int = 2) -> tuple[str, Config]:
    """The algorithm and settings that the kernel takes on so many cores where it is told none."""
    algorithm, config = choose(geometry, extras, cores)  # type: ignore[no-untyped-call]
    return algorithm, config


def unit_of(geometry: Geometry, extras: Extras, algorithm: str, config: Config) -> int:
    """Channels that one core works on at once."""
    shape = Shape(geometry, extras, 2, Rates())
    return max(1, min(geometry.C, family(algorithm).unit(shape, config)))


def tiles_of(geometry: Geometry, extras: Extras, algorithm: str, config: Config) -> dict[str, int]:
    """An algorithm's tile sizes and counts by name."""
    found = family(algorithm).symbols(Shape(geometry, extras, 2, Rates()), config)
    return {name: int(value) for name, value in found.items()}


def symbols_of(request: Request, algorithm: str, config: Config) -> dict[str, int]:
    """The symbol table of a problem: its letters, then the algorithm's tiles and counts."""
    geometry, extras = geometry_of(request.problem), extras_of(request.problem, request.asked)
    letters = ("N", "C", "W", "S", "Q", "stride", "dilation", "lhs_dilation", "pad_left", "pad_right", "itemsize")
    found = {name: int(getattr(geometry, name)) for name in letters}
    found["cores"], found["partitions"] = request.lnc, PARTITIONS
    found.update(tiles_of(geometry, extras, algorithm, config))
    return found
