"""How much of a problem an estimate looks at: so much work that it takes some 50 ms, counted, not timed.

Kernels' plans list tiles of outputs, and cost models walk them; settings of steady work are the same for fewer tiles.
So a problem of more than `PIECES` pieces is planned by a part of it: fewer images, planes, rows, columns or channels.
The part depends on shapes alone, so that machines, cores and processes choose alike.
"""

from __future__ import annotations

import math

from ..axis import Axis
from ..kernels._tiles import BANK_COLUMNS, div_ceil
from ..problem import ConvProblem
from ..simulator.hardware import PARTITIONS
from .request import Asked

#: Pieces of a problem that estimates look at. Calibrated: of named problems of so many, 95 % take up to 50 ms of one
#: core of a server CPU (`python tests/choice --times`).
PIECES = 3_000
#: Of each extent that is cut, in this order: the least that a part has, and also the step by which it is cut, so that
#: what is left over by tiles of the whole is left over by those of the part; of images and volumes, and of depthwise
#: rows, which may lie on the partitions.
CUTS = {"N": 8, "Z": 8, "P": 32, "Q": 2048}
CUTS_OF_ROWS = {"N": PARTITIONS, "groups": 2 * PARTITIONS, "Q": 2048}


def pieces_of(problem: ConvProblem) -> int:
    """Tiles of outputs: of a bank of sums of an image or plane, of depthwise rows for each 128 channels."""
    channels = div_ceil(problem.C, PARTITIONS) if is_rows(problem) else 1
    return channels * problem.N * problem.Z * div_ceil(problem.P * problem.Q, BANK_COLUMNS)


def is_rows(problem: ConvProblem) -> bool:
    """Whether this is one of depthwise rows, whose channels are independent."""
    return problem.is_depthwise and not problem.is_volume and (problem.H, problem.R) == (1, 1)


def part_of(problem: ConvProblem, asked: Asked = Asked()) -> tuple[ConvProblem, int]:  # noqa: B008  # frozen
    """(A problem of at most about `PIECES` pieces with the same tiles, how many times its pieces the problem has, from
    1); the problem itself where it has no more.

    Frames in front and behind are planes of the whole; a filter gradient of rows keeps Q, as gy is a filter there; P and
    Q stay multiples of pooling windows.
    """
    found, pool = problem, dict(zip("PQ", asked.pool, strict=True))
    kept = {"Z"} if asked.has_frames else {"Q"} if problem.direction == "wgrad" and is_rows(problem) else set()
    for name, least in (CUTS_OF_ROWS if is_rows(problem) else CUTS).items():
        if name not in kept and pieces_of(found) > PIECES:
            found = _cut(found, name, math.lcm(least, pool.get(name, 1)))
    return found, div_ceil(pieces_of(problem), pieces_of(found))


def _cut(problem: ConvProblem, name: str, least: int) -> ConvProblem:
    """The problem with less of one extent, in steps of the least that it may have."""
    count = getattr(problem, name)
    wanted = max(least, div_ceil(count * PIECES, pieces_of(problem)))
    fewer = count - max(0, count - wanted) // least * least
    if fewer == count:
        return problem
    if name == "N":
        return problem.replace(N=fewer)
    if name == "groups":
        return problem.replace(C=fewer, K=fewer, groups=fewer)
    axis, size = {"Z": ("depth", "D"), "P": ("height", "H"), "Q": ("width", "W")}[name]
    return problem.replace(**{size: size_for(getattr(problem, axis), fewer)})


def size_for(axis: Axis, outputs: int) -> int:
    """Elements of an axis of at least so many outputs, and few more; at most what it has."""
    spread = (outputs - 1) * axis.stride + axis.window - 1 - axis.lo - axis.hi
    return min(axis.size, max(1, -(-spread // axis.lhs_dilation) + 1))
