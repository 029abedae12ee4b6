"""Steps of an item that one body of a loop on the device does: what differs is where x and y begin.

A body has so many steps that the tiles of x are taken in the same turns by the next. Its steps load rows that lie
inside x for all segments, so that zeros around x are there before; all items have the same bodies, as both cores run a
loop equally often.
"""

import math
from dataclasses import dataclass

from ...._nki import nl
from ....schedules.tiles import div_ceil
from ..moved import Register, register_of


@dataclass
class Steps(nl.NKIObject):
    """Steps of each item as `count` iterations of a body of `each` of them, from step `first` on."""

    first: int
    each: int
    count: int
    register: Register


def steps_alike(geometry, plan):
    """The Steps of all items of a plan, or None."""
    axis = geometry.rows
    each = plan.loop * plan.rows // math.gcd(plan.rows, axis.stride)
    if each == 0:
        return None
    # steps from `steady` on load rows of the last taps alone, and those of a body into tiles that such loads had before
    shared = math.gcd(axis.stride, axis.dilation)
    steady, tap = axis.dilation // shared, max(0, axis.taps - axis.stride // shared)
    low, high = steady + each - 1, axis.out
    for item in plan.items:
        first, end = inner_steps(geometry, plan, item, tap)
        low, high = max(low, first), min(high, end)
    count = max(0, high - low) // each
    apart_x, apart_y = each * axis.stride * geometry.x_strides[2], each * geometry.y_strides[2]
    register = register_of(geometry, (apart_x, apart_y)) if count > 1 else None
    return None if register == None else Steps(first=low, each=each, count=count, register=register)


def inner_steps(geometry, plan, item, tap):
    """(first, end) of an item's steps that have the same segments, and load rows of taps from `tap` on for the step
    after, all of them inside x."""
    axis, apart = geometry.rows, div_ceil(item.pn, plan.segments)
    behind = (div_ceil(item.pn, apart) - 1) * apart
    nearest, farthest = tap, axis.taps - 1
    for chunk in plan.chunks:
        for piece in chunk:
            nearest, farthest = min(nearest, tap + piece.r), max(farthest, axis.taps - 1 + piece.r)
    # a step loads rows from top + step * stride to bottom + step * stride
    top = (item.p0 + 1) * axis.stride - axis.before + nearest * axis.dilation
    bottom = (item.p0 + behind + 1) * axis.stride - axis.before + farthest * axis.dilation
    inside = div_ceil(max(0, axis.size - bottom), axis.stride)
    return div_ceil(max(0, -top), axis.stride), min(min(apart - 1, item.pn - behind), inside)
