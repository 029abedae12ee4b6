"""Which blocks of gy lie on which partitions: 128 of them are a tile, for which x comes with what is around a block.

A unit is `rows` neighbouring rows of a plane of gy and `columns` columns. Units whose windows are inside x alike lie
beside each other, so that a DMA loads many of them; the last units of an axis may have fewer rows or columns.
"""

from dataclasses import dataclass

from ..._nki import nl
from ...schedules.cuts import window_of
from ...schedules.geometry import met
from ...schedules.tiles import cut_into, div_ceil

#: Matmuls that a bank sums up before its sums are added to those of others, about: rounding errors grow with that.
CHAIN = 4096


@dataclass
class Run(nl.NKIObject):
    """Blocks first .. first+count-1 of an axis, `extent` outputs each, which begin `apart` outputs apart; of their
    windows of x, spread by lhs_dilation, elements low .. high-1 are inside x, the first and the last of them x's."""

    first: int
    count: int
    apart: int
    extent: int
    low: int
    high: int


@dataclass
class Box(nl.NKIObject):
    """Units on partitions from `part` on: so many planes, rows, columns of blocks (counts) of Runs, from z, p, q on."""

    part: int
    planes: Run
    rows: Run
    columns: Run
    z: int
    p: int
    q: int
    counts: tuple


def runs_of(axis, extent, taps):
    """Runs of an axis in blocks of `extent` outputs. taps: (first, how many) that their windows are of."""
    out, spread, found = axis.out // axis.images, axis.lhs_dilation, []
    window, end = extent_of(axis, extent, taps), (axis.size // axis.images - 1) * spread + 1
    for block in range(div_ceil(out, extent)):
        start = block * extent * axis.stride + taps[0] * axis.dilation - axis.before
        low = min(window, div_ceil(max(0, start), spread) * spread - start)
        high = div_ceil(max(0, min(start + window, end)), spread) * spread - spread + 1 - start
        there = low, max(low, min(window, high))
        append_run(found, block, extent, min(extent, out - block * extent), there)
    return found


def append_run(found, block, apart, extent, there):
    """Append a block to Runs: to the last of them if it is alike. there: (low, high)."""
    if len(found) > 0:
        last = found[-1]
        if last.extent == extent and (last.low, last.high) == there:
            last.count = last.count + 1
            return
    found.append(Run(first=block, count=1, apart=apart, extent=extent, low=there[0], high=there[1]))


def planes_of(axis):
    """Runs of single planes of outputs of all volumes: those that see planes of x at the same taps, of one volume."""
    out, found, before = axis.out // axis.images, [], ()
    for z in range(axis.out):
        seen = ()
        for tap in range(axis.taps):
            seen = seen + (met(axis, tap, z, 1)[2] > 0,)
        if z % out > 0 and seen == before:
            last = found[-1]
            last.count = last.count + 1
        else:
            found.append(Run(first=z, count=1, apart=1, extent=1, low=0, high=1))
        before = seen
    return found


def tiles_of_units(planes, rows, columns, most, end_at=0):
    """Lists of the Boxes of each tile of up to `most` units of these Runs. end_at: after so many a tile ends too."""
    tiles, boxes, part, done = [], [], 0, 0
    for one in planes:
        for row in rows:
            for column in columns:
                shape, at = (one.count, row.count, column.count), 0
                total = shape[0] * shape[1] * shape[2]
                while at < total:
                    room = min(total - at, most - part)
                    counts = most_at(shape, at, min(room, end_at - done) if done < end_at else room)
                    size = counts[0] * counts[1] * counts[2]
                    z, rest = at // (shape[1] * shape[2]), at % (shape[1] * shape[2])
                    p, q = rest // shape[2], rest % shape[2]
                    z, p, q = one.first + z, (row.first + p) * row.apart, (column.first + q) * column.apart
                    boxes.append(Box(part=part, planes=one, rows=row, columns=column, z=z, p=p, q=q, counts=counts))
                    at, part, done = at + size, part + size, done + size
                    if part == most or done == end_at:
                        tiles.append(boxes)
                        boxes, part = [], 0
    if part > 0:
        tiles.append(boxes)
    return tiles


def most_at(shape, at, most):
    """(planes, rows, columns) of the most units from number `at` on, up to so many, evenly spaced on two axes."""
    planes, rows, columns = shape
    if columns > 1 and (at % columns > 0 or most < columns):
        return 1, 1, min(columns - at % columns, most)
    lines = min(rows - at // columns % rows, most // columns)
    if at // columns % rows > 0 or lines < rows or (columns > 1 and rows > 1):
        return 1, lines, columns
    return min(planes - at // (columns * rows), most // (columns * rows)), rows, columns


def units_of(boxes):
    """Units of a tile."""
    last = boxes[-1]
    return last.part + last.counts[0] * last.counts[1] * last.counts[2]


def extent_of(axis, extent, taps):
    """Elements of x in a window of so many outputs at taps (first, how many)."""
    return window_of(axis, extent) - (axis.taps - taps[1]) * axis.dilation


def taps_seen(first, count, step, there):
    """(first, end) of so many taps, `step` elements apart from element `first` on, that meet those `there`."""
    low = min(count, div_ceil(max(0, there[0] - first), step))
    return low, max(low, min(count, div_ceil(max(0, there[1] - first), step)))


def first_seen(axis, taps, outputs, there):
    """The first of so many outputs of a block at which most taps meet those elements of its window (first, end)."""
    found, most = 0, -1
    for index in range(outputs):
        seen = taps_seen(index * axis.stride, taps, axis.dilation, there)
        if seen[1] - seen[0] > most:
            found, most = index, seen[1] - seen[0]
    return found


def chains_of(plan, one, count):
    """(first, how many) of so many tiles of a Pass that are summed up in a chain each; all if they pass in rounds."""
    beside = one.rounds[0][0].beside
    for job in one.rounds[0]:
        beside = min(beside, job.beside)
    matmuls = count * plan.gang * plan.settings.rows * div_ceil(plan.settings.columns, beside)
    return cut_into(count, min(count, div_ceil(matmuls, CHAIN)) if len(one.rounds) == 1 else 1)
