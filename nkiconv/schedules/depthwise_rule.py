"""Algorithms of depthwise conv1d by name: what each does not run, and which a bare kernel takes, by a rule of shapes.

Every call on the host chooses by cost models, and `nkiconv.plan` by the timeline: docs/algorithms.md compares them.
"""

from __future__ import annotations

from . import banded_rule, dot, mixed, update
from .depthwise import Extras, RowGeometry, flip_refusal
from .rows import shares_tiles
from .settings import Config

#: The algorithms that can be asked for by name.
ALGORITHMS = ("banded", "mixed", "vector", "dot", "update")

#: Outputs of a row from which blocks and rows pay; below, images or channels are many beside them.
LONG_ROW = 30
#: The same where taps have gaps, so that blocks of neighbours are none.
LONG_ROW_GAPS = 45
#: Taps from which a matmul for a block of positions does more than one for each tap.
MANY_TAPS = 9
#: Taps with gaps up to which the engines share them.
SHARED_TAPS = 96
#: Elements of w up to which few outputs are not worth Tensor's start, with gaps and without; rows of x for one tap.
FEW_ELEMENTS_GAPS, FEW_ELEMENTS, MANY_ROWS_RULE = 256, 140, 10_000


def refusal(algorithm: str, geometry: RowGeometry, extras: Extras, config: Config, cores: int) -> str:
    """Why an algorithm does not run this on `cores` cores: argument, value, rule, remedy; "" if it does."""
    reason = flip_refusal(algorithm, geometry)
    if reason != "":
        return reason
    if algorithm in ("mixed", "vector"):
        return mixed.unsupported(geometry, extras, config, cores, algorithm == "mixed")
    of_name = {"banded": banded_rule.unsupported, "dot": dot.unsupported, "update": update.unsupported}
    return of_name[algorithm](geometry, extras, config, cores)


def default_of(geometry: RowGeometry, extras: Extras, cores: int) -> str:
    """The algorithm of a kernel that is called without one: the first that runs of those that its rule names, `vector`
    before `mixed` where tiles of several images pay, else `vector`, or `dot`, whose filters need not fit SBUF."""
    for name in [*wanted_algorithms(geometry, extras), "vector", "dot"]:
        for algorithm in ("vector", name) if name == "mixed" and shares_tiles(geometry) else (name,):
            if refusal(algorithm, geometry, extras, None, cores) == "":
                return algorithm
    return "vector"


def wanted_algorithms(geometry: RowGeometry, extras: Extras) -> list[str]:
    """Names in the order in which they are asked whether they run this; behind all come `vector` and `dot`."""
    if extras.strict_nonfinite:
        return ["update", "vector"] if geometry.Q < LONG_ROW else ["vector"]
    if geometry.dilation > 1 or geometry.lhs_dilation > 1:
        return wanted_with_gaps(geometry)
    if geometry.Q < LONG_ROW:
        return wanted_for_few(geometry)
    if geometry.Q < LONG_ROW_GAPS and geometry.S >= 9 * geometry.Q:
        return ["update", "dot", "banded"]
    few = geometry.N * geometry.Q < 80 and geometry.S < 23
    if geometry.S >= MANY_TAPS and not few:
        return ["banded", "dot", "mixed"]
    if geometry.itemsize == 4 and geometry.C > 56:
        return ["vector", "mixed"]
    if geometry.itemsize == 2 and geometry.C < 3 and geometry.N > 15:
        return ["banded", "mixed"]
    return ["mixed", "vector"]


def wanted_for_few(geometry: RowGeometry) -> list[str]:
    """The same for few outputs of a row."""
    if geometry.S * geometry.C < FEW_ELEMENTS or (geometry.S == 1 and geometry.N * geometry.C < MANY_ROWS_RULE):
        if geometry.Q < 3:
            return ["update", "vector"]
        if geometry.S < 3:
            return ["vector", "mixed"]
        return ["mixed", "vector"] if geometry.S < 23 else ["banded", "mixed"]
    if geometry.C < 16 and geometry.W > 16:
        return ["banded", "update"]
    return ["update", "dot", "banded", "mixed"]


def wanted_with_gaps(geometry: RowGeometry) -> list[str]:
    """The same for what `banded` does not run."""
    if geometry.Q < LONG_ROW_GAPS:
        few = geometry.S * geometry.C < FEW_ELEMENTS_GAPS and geometry.Q > 10
        return ["vector", "update"] if few else ["update", "dot", "mixed"]
    if geometry.S < SHARED_TAPS:
        return ["vector", "mixed"] if geometry.itemsize == 4 else ["mixed", "vector"]
    if geometry.Q < 4 * LONG_ROW:
        return ["update", "dot"]
    return ["dot"] if geometry.N * geometry.C > 64 else []
