"""Which algorithms with which settings may run a problem: a generator an algorithm, and what the search needs to know.

A generator looks at shapes alone and may be generous: the kernels refuse by name what they cannot do, and the search
times the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..kernels.depthwise_conv1d import ALGORITHMS
from ..kernels.depthwise_conv1d.call import Extras
from ..kernels.depthwise_conv1d.choice import choose
from ..kernels.depthwise_conv1d.dispatch import refusal
from ..kernels.depthwise_conv1d.geometry import Geometry
from ..simulator.hardware import PARTITIONS
from . import depthwise_conv1d as rules
from .plan import Rejection
from .request import Config, Request, extras_of, geometry_of


@dataclass(frozen=True)
class Candidate:
    """An algorithm with settings that the kernel does not refuse."""

    algorithm: str
    config: Config
    #: channels that one core works on at once: times are linear in the number of such tiles
    channels: int


Generator = Callable[[Geometry, Extras, bool], list[Config]]
Unit = Callable[[Geometry, Extras, Config], int]
Symbols = Callable[[Geometry, Extras, Config], Mapping[str, int]]


@dataclass(frozen=True)
class Family:
    """What the planner knows of an algorithm.

    configs: settings worth trying, and more of them where the search is wide. unit: channels that a core works on at
    once. symbols: tile sizes and counts by name.
    """

    configs: Generator = rules.defaults
    unit: Unit = rules.whole_tiles
    symbols: Symbols = rules.no_symbols


FAMILIES: dict[str, Family] = {
    "taps_on_partition": Family(unit=rules.taps_on_partition_unit, symbols=rules.taps_on_partition_symbols),
    "one_channel": Family(unit=rules.one_channel_unit),
}


def family(algorithm: str) -> Family:
    """What is known of an algorithm; of one without an entry: its defaults, and tiles of 128 channels."""
    return FAMILIES.get(algorithm, Family())


def candidates(request: Request, *, wide: bool) -> tuple[list[Candidate], list[Rejection]]:
    """What the kernels accept, and what they refuse with the reason."""
    geometry, extras = geometry_of(request.problem), extras_of(request.problem, request.asked)
    accepted: list[Candidate] = []
    rejected: list[Rejection] = []
    for algorithm in request.algorithms or ALGORITHMS:
        known = family(algorithm)
        for config in known.configs(geometry, extras, wide):
            reason = refusal_of(algorithm, geometry, extras, config, request.lnc)
            if reason:
                rejected.append(Rejection(algorithm, config, reason))
            else:
                accepted.append(Candidate(algorithm, config, unit_of(geometry, extras, algorithm, config)))
    return accepted, rejected


def refusal_of(algorithm: str, geometry: Geometry, extras: Extras, config: Config, cores: int) -> str:
    """Why the kernel refuses this, or ""."""
    return str(refusal(algorithm, geometry, extras, config, cores))  # type: ignore[no-untyped-call]


def kernel_choice(geometry: Geometry, extras: Extras) -> tuple[str, Config]:
    """The algorithm and settings that the kernel takes where it is told none."""
    algorithm, config = choose(geometry, extras)  # type: ignore[no-untyped-call]
    return algorithm, config


def unit_of(geometry: Geometry, extras: Extras, algorithm: str, config: Config) -> int:
    """Channels that one core works on at once."""
    return max(1, min(geometry.C, family(algorithm).unit(geometry, extras, config)))


def symbols_of(request: Request, algorithm: str, config: Config) -> dict[str, int]:
    """The symbol table of a problem: its letters, then the algorithm's tiles and counts."""
    geometry, extras = geometry_of(request.problem), extras_of(request.problem, request.asked)
    letters = ("N", "C", "W", "S", "Q", "stride", "dilation", "lhs_dilation", "pad_left", "pad_right", "itemsize")
    found = {name: int(getattr(geometry, name)) for name in letters}
    found["cores"], found["partitions"] = request.lnc, PARTITIONS
    found.update(tiles_of(geometry, extras, algorithm, config))
    return found


def tiles_of(geometry: Geometry, extras: Extras, algorithm: str, config: Config) -> dict[str, int]:
    """An algorithm's tile sizes and counts by name."""
    return {name: int(value) for name, value in family(algorithm).symbols(geometry, extras, config).items()}
