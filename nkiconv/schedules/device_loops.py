"""Device loops: the steps of the register that moves tensors in HBM, so that one body serves all iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .geometry import Geometry
from .planes import window_channels


@dataclass(frozen=True)
class Register:
    """A loop's register: its step each iteration; elements of x and its frames, and of y and the residual, that one of
    it moves."""

    by: int
    x: int
    y: int


def register_of(geometry: Geometry, apart: tuple[int, int]) -> Register | None:
    """The Register for `apart` elements of x and y each iteration; its units must divide the tensors' sizes; None if
    there is none."""
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
    rows = geometry.rows_stored or geometry.rows.size
    plane = geometry.C // window_channels(geometry) * rows * geometry.columns.size
    return frames * plane, (depth.size - frames) * plane


def y_size(geometry: Geometry) -> int:
    """Elements of y, and of a residual."""
    return geometry.K * geometry.planes.out * geometry.rows.out * geometry.columns.out
