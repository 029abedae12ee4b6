"""Parts of a problem whose kernel is too long for a quick plan, small enough to be traced.

The extent that has most to spare is made smaller first, and the time of the whole lies on the line through those of two
parts. Where even the least part is too long, that part is made smaller along the next extent, and counts as often as
the problem has it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..problem import ConvProblem
from ..simulator.hardware import PARTITIONS
from .effort import of_fewer
from .operation import Reduction
from .request import Asked
from .timekeeper import SPARE

#: What each extent is called in a plan, and the least of it that a part has: of rows and columns of outputs such that
#: a load still has several, or long ones; of groups as many as have this many channels.
EXTENTS = {
    "N": ("images", 4),
    "Z": ("planes of outputs", 1),
    "P": ("rows of outputs", 4),
    "Q": ("columns of outputs", 512),
    "K": ("K", PARTITIONS),
    "groups": ("groups", PARTITIONS),
}


def parts(problem: ConvProblem, asked: Asked) -> Iterator[tuple[Reduction, int]]:
    """Ways to make a problem smaller, in the order in which they are to be tried, and how many units there are."""
    rest, times, names, left = problem, 1.0, "", _extents(problem, asked)
    while left:
        spare = {name: _extent(rest, name) / _least(rest, name) for name in left}
        name = max(left, key=lambda one: spare[one])
        left.remove(name)
        least = of_fewer(rest, name, _least(rest, name))
        units, fewer = _extent(rest, name), _extent(least, name)
        if units < SPARE * fewer:  # all outputs of one input may be more than the least
            continue
        yield _reduction(rest, name, times, names), units
        times *= units / fewer
        names = f" of {fewer} of {units} {EXTENTS[name][0]}{names}"
        rest = least


def _reduction(whole: ConvProblem, name: str, times: float, names: str) -> Reduction:
    """The reduction of one extent; times, names: of what it is a part already."""

    def units(one: ConvProblem) -> int:
        return _extent(one, name)

    def of(count: int) -> ConvProblem:
        return of_fewer(whole, name, count)

    return Reduction(of, units, f"{EXTENTS[name][0]}{names}", _least(whole, name), exact=False, times=times)


def _extents(problem: ConvProblem, asked: Asked) -> list[str]:
    """Those that a part may have fewer of. A packed filter's blocks and a video's planes stay as they are."""
    found = [name for name in EXTENTS if name not in ("K", "groups", "Z")]
    found += [] if asked.packed else ["groups" if problem.groups > 1 else "K"]
    found += ["Z"] if problem.is_volume and not asked.has_frames else []
    return found


def _extent(problem: ConvProblem, name: str) -> int:
    return int(getattr(problem, name))


def _least(problem: ConvProblem, name: str) -> int:
    """The least that a part has of an extent."""
    least = EXTENTS[name][1]
    if name == "groups":
        least = -(-least * problem.groups // max(problem.C, problem.K))
    return least
