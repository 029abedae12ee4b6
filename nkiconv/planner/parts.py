"""Parts of big problems: for cost models, and in place of kernels that are too long to be traced.

`part_of`: the best settings are the same for fewer tiles, so an estimate of more than `PIECES` pieces plans a part, in
some 50 ms. The part depends on shapes alone, so that machines, cores and processes choose alike.

`reductions`: a time is extrapolated along the line through the times of two parts. The extent with the largest ratio to
its least is reduced first, of filter gradients rows and columns last, as blocks of several share a tile; if the least
part is too long, it is reduced along the next extent, and its time is multiplied by its number in the problem.
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

#: Most pieces of a part that estimates plan: of 399 named problems 89 % take up to
#: 50 ms of one core of a server's CPU, the longest 0.14 s. With 300 some choose kernels that take up to 10 % longer.
PIECES = 1000
#: For each extent that is cut, in this order: the least of a part, which is also the step of cuts, so that the last
#: tile of a part is as full as that of the whole; of images and volumes, and of depthwise rows, whose images may be on
#: the partitions.
CUTS = {"N": 8, "Z": 8, "P": 32, "Q": 2048}
CUTS_OF_ROWS = {"N": PARTITIONS, "groups": 2 * PARTITIONS, "Q": 2048}
#: Least output channels of a part, or least channels of its groups if there are several; the step of cuts of these.
OUTPUTS, CHANNELS, CHANNELS_STEP = 64 * PARTITIONS, 16 * PARTITIONS, 8 * PARTITIONS
#: Most rows of outputs of a piece, and most bytes of x and its zeros in the window of an output: with more each output
#: is a piece.
ROWS, WINDOW_BYTES = 16, 32_768
#: The name of each extent in a plan, and the least extent of a traced part: rows and columns of outputs such that a
#: load still has several, or long ones; groups by their number of channels.
EXTENTS = {
    "N": ("images", 4),
    "Z": ("planes of outputs", 1),
    "P": ("rows of outputs", 4),
    "Q": ("columns of outputs", 512),
    "K": ("K", PARTITIONS),
    "groups": ("groups", PARTITIONS),
}
#: Least windows of a traced part side by side: with fewer, outputs share less of them than in the whole.
WINDOWS = {"P": 1, "Q": 4}
#: Least ratio of the whole to the smaller of two parts.
SPARE = 3


def pieces_of(problem: ConvProblem) -> int:
    """Number of tiles of outputs: each a bank of sums of an image or plane, or of 128 channels of depthwise rows."""
    P, Q = problem.P, problem.Q
    if is_rows(problem):
        return -(-problem.C // PARTITIONS) * problem.N * -(-Q // BANK_COLUMNS)
    return problem.N * problem.Z * (P * Q if _is_wide(problem) else max(-(-P * Q // BANK_COLUMNS), -(-P // ROWS)))


def _is_wide(problem: ConvProblem) -> bool:
    """Whether each output is a piece."""
    return not is_rows(problem) and math.prod(map(_seen, problem.axes)) * problem.itemsize > WINDOW_BYTES


def _seen(axis: Axis) -> int:
    """Elements of x from one end of a window to the other; of a dense window at most those of x."""
    elements = axis.window // axis.lhs_dilation + 1
    return elements if axis.rhs_dilation > 1 else min(elements, axis.size)


def is_rows(problem: ConvProblem) -> bool:
    """Whether a problem is depthwise rows, whose channels are independent."""
    return problem.is_depthwise and not problem.is_volume and (problem.H, problem.R) == (1, 1)


def part_of(problem: ConvProblem, asked: Asked, kept: frozenset[str] = frozenset()) -> tuple[ConvProblem, int]:
    """(a part of at most about `PIECES` pieces with the same tiles, ratio of the problem's outputs to the part's,
    rounded up); (the problem, 1) if it has no more pieces.

    Halo frames and returned frames are planes of the whole. kept: extents that are not cut.
    """
    found = problem
    kept |= {"Z"} if asked.has_frames else set()
    for name, step in (CUTS_OF_ROWS if is_rows(problem) else CUTS).items():
        least = 1 if _is_wide(problem) else step
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
    """The problem with `fewer` images, groups or output channels, or about as many planes, rows or columns of outputs;
    unchanged if it has no more."""
    count = getattr(problem, name)
    if fewer >= count:
        return problem
    if name in ("N", "K"):
        return problem.replace(**{name: fewer})
    if name == "groups":
        return problem.replace(C=problem.C // count * fewer, K=problem.K // count * fewer, groups=fewer)
    index, axis, size = {"Z": (-3, "depth", "D"), "P": (-2, "height", "H"), "Q": (-1, "width", "W")}[name]
    whole, pairs = getattr(problem, axis), list(problem.padding)
    # windows of padding alone are outputs too
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
    """A reduction of a problem, or of a part of it, along one extent."""

    whole: ConvProblem
    extent: str
    #: number of times that the problem has `whole`, if that is a part; the units' name in a plan
    times: float
    name: str

    @property
    def least(self) -> int:
        """Units of the smallest part."""
        least, whole = EXTENTS[self.extent][1], self.whole
        if self.extent == "groups":
            return -(-least * whole.groups // max(whole.C, whole.K))
        if self.extent in WINDOWS:
            axis = whole.height if self.extent == "P" else whole.width
            return max(least, WINDOWS[self.extent] * axis.window // axis.stride)
        return least

    @property
    def all_units(self) -> int:
        """Units of the whole."""
        return self.units(self.whole)

    def of(self, units: int) -> ConvProblem:
        """A part of about so many units."""
        return of_fewer(self.whole, self.extent, units)

    def units(self, one: ConvProblem) -> int:
        """Units of a part."""
        return int(getattr(one, self.extent))


def reductions(problem: ConvProblem, asked: Asked) -> Iterator[Reduction]:
    """Reductions of a problem in the order of trials."""
    rest, times, names = problem, 1.0, ""
    # a packed filter's blocks and a video's planes are not cut
    left = ["N", "P", "Q"]
    left += [] if asked.packed else ["groups" if problem.groups > 1 else "K"]
    left += ["Z"] if problem.is_volume and not asked.has_frames else []
    while left:
        every = [Reduction(rest, name, times, f"{EXTENTS[name][0]}{names}") for name in left]
        is_wgrad = problem.direction == "wgrad"
        found = max(every, key=lambda one: (not is_wgrad or one.extent not in WINDOWS, one.all_units / one.least))
        left.remove(found.extent)
        least = found.of(found.least)
        units, fewer = found.all_units, found.units(least)
        if units < SPARE * fewer:  # the outputs of one input may exceed the least
            continue
        yield found
        times *= units / fewer
        names = f" of {fewer} of {units} {found.name}"
        rest = least
