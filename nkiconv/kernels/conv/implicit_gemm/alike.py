"""Bands of a core's work that one body of a loop on the device does: alike, and evenly spaced in HBM.

A body holds some items, and repeats where each of those that follow meets as many planes and rows of x by every tap as
the one before it that many items earlier: all but those at the edges of x. What differs then is where x, residual and y
begin, which a register moves.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.geometry import met
from ....schedules.planes import misses_planes
from ..boxes import boxes_of_x, offset_at
from ..moved import Register, register_of
from .fold import job_axis


@dataclass
class Repeat(nl.NKIObject):
    """Items of a plan as `count` iterations of a body of `bands` of them, from item `first` on."""

    first: int
    bands: int
    count: int
    register: Register


def repeats_of(geometry, plan, first, count):
    """The Repeats among items first .. first + count - 1, which are a core's; x of the item after each comes in it."""
    found, bands, boxes = [], 2 * plan.loop, Boxes(geometry, plan.items)
    index, end = first + 1, first + count
    while bands > 0 and index + bands < end:
        times = times_alike(geometry, plan, index, bands, end, boxes)
        register = None
        if times > 1:
            register = register_of(geometry, distances(geometry, plan.items, index, index + bands, boxes))
        if register != None:
            found.append(Repeat(first=index, bands=bands, count=times, register=register))
            index += times * bands
        else:
            index += 1
    return found


class Boxes(dict):
    """Boxes of x of the bands of some items by index, of all channels, each found once."""

    def __init__(self, geometry, items):
        super().__init__()
        self.geometry, self.bands = geometry, items

    def __missing__(self, index):
        band = self.bands[index].band
        channels, first, extents = (0, self.geometry.C), (band.h0, band.w0), (band.hn, band.wn)
        self[index] = boxes_of_x(self.geometry, channels, (band.d0, band.dn), first, extents)
        return self[index]


def times_alike(geometry, plan, first, bands, end, boxes):
    """How often a body of so many items repeats from item `first` on: all are of one batch, not its first, and the
    item behind them is alike too."""
    items = plan.items
    before, one = items[first - 1], items[first]
    if before.batch != one.batch:
        return 0
    for which in range(1, bands + 1):
        other = items[first + which]
        if not fills_tiles_of(one.band, other.band):
            return 0
    apart, index = (0, 0), first
    while index + bands < end and is_alike(geometry, plan, index, index + bands, boxes):
        now = distances(geometry, items, index, index + bands, boxes)
        if index == first:
            apart = now
        if now != apart:
            return (index - first + bands - 1) // bands
        index += 1
    return (index - first + bands - 1) // bands


def fills_tiles_of(a, b):
    """Whether x of two bands takes tiles of one shape."""
    return a.dn == b.dn and a.hn == b.hn and a.wn == b.wn and a.qn == b.qn


def is_alike(geometry, plan, first, second, boxes):
    """Whether two items, by index, do the same to other elements of HBM."""
    one, other = plan.items[first], plan.items[second]
    a, b = one.band, other.band
    same = one.batch == other.batch and one.last == other.last
    same = same and a.zn == b.zn and a.pn == b.pn and a.q0 == b.q0
    same = same and fills_tiles_of(a, b) and a.w0 == b.w0 and a.dn * a.hn * a.wn > 0
    if not same or misses_planes(geometry, a.z0, a.zn) != misses_planes(geometry, b.z0, b.zn):
        return False
    if not sees_alike(geometry.planes, a.zn, (a.z0, a.d0), (b.z0, b.d0)):
        return False
    rows = 0
    for job in plan.batches[one.batch]:
        if job.rows != rows:
            rows, axis = job.rows, job_axis(geometry, job)
            count = (a.pn + rows - 1) // rows
            if a.p0 % rows != b.p0 % rows:
                return False
            if not sees_alike(axis, count, (a.p0 // rows, a.h0), (b.p0 // rows, b.h0)):
                return False
    return is_evenly_moved(boxes[first], boxes[second])


def sees_alike(axis, count, one, other):
    """Whether each tap meets the same of an axis at so many outputs from two on, each (first output, first element)."""
    if one == other:
        return True
    if is_inside(axis, one[0], count) and is_inside(axis, other[0], count):
        return one[0] * axis.stride - one[1] == other[0] * axis.stride - other[1]
    return seen(axis, one[0], count, one[1]) == seen(axis, other[0], count, other[1])


def is_inside(axis, first, count):
    """Whether every tap meets an element at all outputs first .. first + count - 1, of an axis without gaps."""
    begin = first * axis.stride - axis.before
    end = begin + (count - 1) * axis.stride + (axis.taps - 1) * axis.dilation
    return axis.lhs_dilation == 1 and axis.images == 1 and begin >= 0 and end < axis.size


def seen(axis, first, count, element):
    """What each tap meets of an axis from outputs first .. first + count - 1, counted from that and from `element`."""
    found = []
    for tap in range(axis.taps):
        one = met(axis, tap, first, count)
        if one[2] > 0:
            found.append((tap, one[0] - first, one[1], one[2], one[3] - element, one[4]))
    return found


def is_evenly_moved(here, there):
    """Whether all boxes of x of two bands, which have some, are equally far apart, those of frames in front too."""
    if len(here) != len(there) or len(here) == 0:
        return False
    for index in range(len(here)):
        one, other = here[index], there[index]
        if one[3] != other[3] or one[0] != other[0] or one[1] != other[1]:
            return False
        if other[2] - one[2] != there[0][2] - here[0][2]:
            return False
    return True


def distances(geometry, items, first, second, boxes):
    """Elements of HBM from an item's x and y to another's, by index."""
    here, there = boxes[first], boxes[second]
    a, b, strides = items[first].band, items[second].band, geometry.y_strides
    y = offset_at(strides, (0, b.z0, b.p0, b.q0)) - offset_at(strides, (0, a.z0, a.p0, a.q0))
    return (there[0][2] - here[0][2], y)
