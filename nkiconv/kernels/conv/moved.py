"""Loops on the device: tensors in HBM that a register moves, so that one body does for all of its iterations."""

import math
from dataclasses import dataclass

from ..._nki import nl
from ...schedules.planes import window_channels
from ...schedules.tiles import size_of
from .call import operands_of


@dataclass
class Register(nl.NKIObject):
    """A loop's register: how far it goes each iteration; of x and its frames, and of y and the residual, elements that
    one of it is."""

    by: int
    x: int
    y: int


def register_of(geometry, apart):
    """The Register by which x and y lie so many elements further each iteration, of which each step divides what the
    tensor has; None where there is none."""
    if min(apart[0], apart[1]) <= 0:
        return None
    frames, own = x_sizes(geometry)
    for by in (1, math.gcd(apart[0], apart[1])):
        x, y = apart[0] // by, apart[1] // by
        if max(frames % x, own % x) == 0 and y_size(geometry) % y == 0:
            return Register(by=by, x=x, y=y)
    return None


def x_sizes(geometry):
    """Elements of the frames in front of x, and of x."""
    depth = geometry.planes if geometry.depth == None else geometry.depth
    frames = 0 if geometry.frames == None else depth.images * geometry.frames.count
    plane = geometry.C // window_channels(geometry) * geometry.rows.size * geometry.columns.size
    return frames * plane, (depth.size - frames) * plane


def y_size(geometry):
    """Elements of y, and of a residual."""
    return geometry.K * geometry.planes.out * geometry.rows.out * geometry.columns.out


def moved_operands(operands, precision, register, at):
    """Operands whose x, frames, y and residual the register `at` moves."""
    x, frames = in_rows(operands.x, register.x), in_rows(operands.frames, register.x)
    y, residual = in_rows(operands.y, register.y), in_rows(operands.residual, register.y)
    found = operands_of(x, operands.w, y, operands.bias, residual, operands.beta, precision, frames)
    found.moved = at
    return found


def in_rows(hbm, each):
    """A tensor in HBM as rows of so many elements; None where there is none."""
    return None if hbm == None else hbm.reshape((size_of(hbm.shape) // each, each))
