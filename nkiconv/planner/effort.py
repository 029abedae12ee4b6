"""How much of a problem an estimate looks at: so much work that it takes some 50 ms, counted, not timed.

Kernels' plans list tiles of outputs, and cost models walk them; settings of steady work are the same for fewer tiles.
So a problem of more than `PIECES` pieces is planned by a part of it: fewer images, planes, rows, columns or channels.
The part depends on shapes alone, so that machines, cores and processes choose alike.
"""

from __future__ import annotations

import math

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
#: Tiles of filters of a part, 128 by 128 for each tap, phases of its outputs and pieces above which no cost model is
#: asked.
FILTER_TILES, PHASES, MOST_PIECES = 16_384, 4_096, 8 * PIECES


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

    Frames in front and behind are planes of the whole. kept: extents that the part has all of.
    """
    found = problem
    kept |= {"Z"} if asked.has_frames else set()
    for name, least in (CUTS_OF_ROWS if is_rows(problem) else CUTS).items():
        if name not in kept and pieces_of(found) > PIECES:
            found = _cut(found, name, least)
    if not asked.packed:
        found = _of_fewer_channels(found)
    return found, div_ceil(math.prod(problem.output_shape), math.prod(found.output_shape))


def is_too_much(part: ConvProblem) -> bool:
    """Whether filters or phases alone are more than cost models of images and volumes may look at: the kernel's default
    rule chooses then."""
    C, K = div_ceil(part.C // part.groups, PARTITIONS), div_ceil(part.K // part.groups, PARTITIONS)
    taps = math.prod(axis.taps for axis in part.axes)
    phases = math.prod(axis.lhs_dilation // math.gcd(axis.lhs_dilation, axis.stride) for axis in part.axes)
    return C * K * taps > FILTER_TILES or phases > PHASES or pieces_of(part) > MOST_PIECES


def _of_fewer_channels(problem: ConvProblem) -> ConvProblem:
    """The problem with less than its groups, or output channels where there are none, if these are many."""
    C, K, groups = problem.C // problem.groups, problem.K // problem.groups, problem.groups
    each = max(C, K) if groups > 1 else 1
    count = groups if groups > 1 else K
    step = div_ceil(CHANNELS_STEP, each)
    most = div_ceil(CHANNELS, each) if groups > 1 else OUTPUTS
    fewer = count - max(0, count - most) // step * step
    if fewer == count or is_rows(problem):
        return problem
    return of_fewer(problem, "groups" if groups > 1 else "K", fewer)


def _cut(problem: ConvProblem, name: str, least: int) -> ConvProblem:
    """The problem with less of one extent, in steps of the least that it may have."""
    count = getattr(problem, name)
    wanted = max(least, div_ceil(count * PIECES, pieces_of(problem)))
    fewer = count - max(0, count - wanted) // least * least
    return of_fewer(problem, name, fewer)


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
    return found.replace(**{size: size_for(getattr(found, axis), fewer)})


def size_for(axis: Axis, outputs: int) -> int:
    """Elements of an axis of at least so many outputs, and few more; at most what it has."""
    spread = (outputs - 1) * axis.stride + axis.window - 1 - axis.lo - axis.hi
    return min(axis.size, max(1, -(-spread // axis.lhs_dilation) + 1))
