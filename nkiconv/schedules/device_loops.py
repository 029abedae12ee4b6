"""Loops on the device: how far a register moves tensors in HBM, so that one body does for all of its iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .geometry import Geometry
from .planes import window_channels

#: Instructions of a core from which on a loop on the device is worth more than what is gained without.
MOST_INSTRUCTIONS = 100_000


@dataclass(frozen=True)
class Register:
    """A loop's register: how far it goes each iteration; of x and its frames, and of y and the residual, elements that
    one of it is."""

    by: int
    x: int
    y: int


def register_of(geometry: Geometry, apart: tuple[int, int]) -> Register | None:
    """The Register by which x and y lie so many elements further each iteration, of which each step divides what the
    tensor has; None where there is none."""
    if min(apart) <= 0:
        return None
    frames, own = x_sizes(geometry)
    for by in (1, math.gcd(*apart)):
        x, y = apart[0] // by, apart[1] // by
        if max(frames % x, own % x) == 0 and y_size(geometry) % y == 0:
            return Register(by=by, x=x, y=y)
    return None


def x_sizes(geometry: Geometry) -> tuple[int, int]:
    """Elements of the frames in front of x, and of x."""
    depth = geometry.planes if geometry.depth is None else geometry.depth
    frames = 0 if geometry.frames is None else depth.images * geometry.frames.count
    plane = geometry.C // window_channels(geometry) * geometry.rows.size * geometry.columns.size
    return frames * plane, (depth.size - frames) * plane


def y_size(geometry: Geometry) -> int:
    """Elements of y, and of a residual."""
    return geometry.K * geometry.planes.out * geometry.rows.out * geometry.columns.out
