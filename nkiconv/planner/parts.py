"""Parts of big problems: what cost models look at, and what stands in for a kernel that is too long to be traced.

`part_of`: kernels' plans list tiles of outputs, and cost models walk them; settings of steady work are the same for
fewer tiles. So an estimate of a problem of more than `PIECES` pieces looks at a part of it, so much work that it takes
some 50 ms. The part depends on shapes alone, so that machines, cores and processes choose alike.

`reductions`: a time is extrapolated along the line through those of two parts. The extent that has most to spare is
made smaller first; where even the least part is too long, that part is made smaller along the next extent, and counts
as often as the problem has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..axis import Axis
from ..problem import ConvProblem
from ..schedules.tiles import BANK_COLUMNS, div_ceil
from ..simulator.hardware import PARTITIONS
from .request import Asked

#: Pieces of a problem that estimates look at. Calibrated by `python tests/choice --times`: of 681 named problems 85 %
#: take up to 50 ms of one core of a server's CPU, the longest 0.27 s.
PIECES = 3_000
#: Of each extent that is cut, in this order: the least that a part has, and also the step by which it is cut, so that
#: what is left over by tiles of the whole is left over by those of the part; of images and volumes, and of depthwise
#: rows, which may lie on the partitions.
CUTS = {"N": 8, "Z": 8, "P": 32, "Q": 2048}
CUTS_OF_ROWS = {"N": PARTITIONS, "groups": 2 * PARTITIONS, "Q": 2048}
#: Output channels of a part, or channels of its groups where there are several, at least; the step by which these are
#: cut.
OUTPUTS, CHANNELS, CHANNELS_STEP = 64 * PARTITIONS, 16 * PARTITIONS, 8 * PARTITIONS
#: Rows of outputs of a piece, at most, and bytes of x and of zeros around it under the window of an output, at most: of
#: more each output is a piece.
ROWS, WINDOW_BYTES = 16, 32_768
#: What each extent is called in a plan, and the least of it that a traced part has: of rows and columns of outputs such
#: that a load still has several, or long ones; of groups as many as have this many channels.
EXTENTS = {
    "N": ("images", 4),
    "Z": ("planes of outputs", 1),
    "P": ("rows of outputs", 4),
    "Q": ("columns of outputs", 512),
    "K": ("K", PARTITIONS),
    "groups": ("groups", PARTITIONS),
}
#: Windows that a traced part has at least, side by side: of fewer, what outputs share of them is not that of the whole.
WINDOWS = {"P": 1, "Q": 4}
#: How often the whole has the smaller of two parts, at least.
SPARE = 3


def pieces_of(problem: ConvProblem) -> int:
    """Tiles of outputs: of a bank of sums of an image or plane, of depthwise rows for each 128 channels."""
    P, Q = problem.P, problem.Q
    if is_rows(problem):
        return -(-problem.C // PARTITIONS) * problem.N * -(-Q // BANK_COLUMNS)
    wide = math.prod(map(_seen, problem.axes)) * problem.itemsize > WINDOW_BYTES
    return problem.N * problem.Z * (P * Q if wide else max(-(-P * Q // BANK_COLUMNS), -(-P // ROWS)))


def _seen(axis: Axis) -> int:
    """Elements from one end of a window to the other; of a dense one those of x, at most."""
    elements = axis.window // axis.lhs_dilation + 1
    return elements if axis.rhs_dilation > 1 else min(elements, axis.size)


def is_rows(problem: ConvProblem) -> bool:
    """Whether this is one of depthwise rows, whose channels are independent."""
    return problem.is_depthwise and not problem.is_volume and (problem.H, problem.R) == (1, 1)


def part_of(problem: ConvProblem, asked: Asked, kept: frozenset[str] = frozenset()) -> tuple[ConvProblem, int]:
    """(A problem of at most about `PIECES` pieces with the same tiles, how many times its pieces the problem has, from
    1); the problem itself where it has no more.

    Frames before and after are planes of the whole. kept: extents that the part has all of.
    """
    found = problem
    kept |= {"Z"} if asked.has_frames else set()
    for name, least in (CUTS_OF_ROWS if is_rows(problem) else CUTS).items():
        pieces, count = pieces_of(found), getattr(found, name)
        if name not in kept and pieces > PIECES:
            wanted = max(least, div_ceil(count * PIECES, pieces))
            found = of_fewer(found, name, count - max(0, count - wanted) // least * least)
    if not asked.packed and not is_rows(problem):
        groups, each = found.groups, max(found.C, found.K) // found.groups if found.groups > 1 else 1
        name, count = ("groups", groups) if groups > 1 else ("K", found.K)
        most, step = div_ceil(CHANNELS if groups > 1 else OUTPUTS, each), div_ceil(CHANNELS_STEP, each)
        found = of_fewer(found, name, count - max(0, count - most) // step * step)
    return found, div_ceil(math.prod(problem.output_shape), math.prod(found.output_shape))


def of_fewer(problem: ConvProblem, name: str, fewer: int) -> ConvProblem:
    """The problem with so many images, groups or output channels, or about so many planes, rows or columns of outputs,
    at most those that it has."""
    count = getattr(problem, name)
    if fewer >= count:
        return problem
    if name in ("N", "K"):
        return problem.replace(**{name: fewer})
    if name == "groups":
        return problem.replace(C=problem.C // count * fewer, K=problem.K // count * fewer, groups=fewer)
    index, axis, size = {"Z": (-3, "depth", "D"), "P": (-2, "height", "H"), "Q": (-1, "width", "W")}[name]
    whole, pairs = getattr(problem, axis), list(problem.padding)
    # zeros that meet none of x are outputs too
    excess = (count - fewer) * whole.stride
    after = min(excess, max(0, whole.hi - whole.window + 1))
    before = min(excess - after, max(0, whole.lo - whole.window + 1))
    pairs[index] = whole.lo - before, whole.hi - after
    found = problem.replace(padding=tuple(pairs))
    cut = getattr(found, axis)
    spread = (fewer - 1) * cut.stride + cut.window - 1 - cut.lo - cut.hi
    return found.replace(**{size: min(cut.size, max(1, -(-spread // cut.lhs_dilation) + 1))})


@dataclass(frozen=True)
class Reduction:
    """How a problem, or a part of it, is made smaller along one extent."""

    whole: ConvProblem
    extent: str
    #: how often the problem has what all units make, where that is a part already, and what a plan calls the units
    times: float
    name: str

    @property
    def least(self) -> int:
        """Units of the smallest part."""
        return _least(self.whole, self.extent)

    @property
    def all_units(self) -> int:
        """Units of the whole."""
        return self.units(self.whole)

    def of(self, units: int) -> ConvProblem:
        """A part of so many units, or about as many."""
        return of_fewer(self.whole, self.extent, units)

    def units(self, one: ConvProblem) -> int:
        """Units of a part."""
        return int(getattr(one, self.extent))


def reductions(problem: ConvProblem, asked: Asked) -> Iterator[Reduction]:
    """Ways to make a problem smaller, in the order in which they are to be tried."""
    rest, times, names = problem, 1.0, ""
    # a packed filter's blocks and a video's planes stay as they are
    left = ["N", "P", "Q"]
    left += [] if asked.packed else ["groups" if problem.groups > 1 else "K"]
    left += ["Z"] if problem.is_volume and not asked.has_frames else []
    while left:
        spare = {name: getattr(rest, name) / _least(rest, name) for name in left}
        name = max(left, key=lambda one: spare[one])
        left.remove(name)
        found = Reduction(rest, name, times, f"{EXTENTS[name][0]}{names}")
        least = found.of(found.least)
        units, fewer = found.all_units, found.units(least)
        if units < SPARE * fewer:  # all outputs of one input may be more than the least
            continue
        yield found
        times *= units / fewer
        names = f" of {fewer} of {units} {EXTENTS[name][0]}{names}"
        rest = least


def _least(problem: ConvProblem, name: str) -> int:
    """The least that a traced part has of an extent."""
    least = EXTENTS[name][1]
    if name == "groups":
        return -(-least * problem.groups // max(problem.C, problem.K))
    if name in ("P", "Q"):
        axis = problem.height if name == "P" else problem.width
        return max(least, WINDOWS[name] * axis.window // axis.stride)
    return least
