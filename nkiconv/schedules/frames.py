"""Frames in front of x: the last planes of the preceding call, in a separate tensor.

Axes, output tiles and taps count them as planes of x, the first ones of each volume. Only loads distinguish them: a
load is cut where the frames end, so no copy of both is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .geometry import Axis, Geometry


@dataclass(frozen=True)
class Frames:
    """The number of frames in front of each volume, and strides in their tensor, as `Geometry.x_strides`."""

    count: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class PlanePiece:
    """Neighbouring planes of a load in one tensor: the first one's index in the load, count, its index in the tensor,
    the tensor's strides, and whether it is the frames' tensor."""

    first: int
    count: int
    plane: int
    strides: tuple[int, ...]
    framed: bool


def are_side_by_side(geometry: Geometry) -> bool:
    """Whether channels of x, and of the frames in front of it, are neighbours in HBM: in NCDHW with one pixel a plane,
    channels of x are, but those of several frames are not."""
    frames = geometry.frames
    return geometry.x_strides[0] == 1 and geometry.C > 1 and (frames is None or frames.strides[0] == 1)


def is_transposed(geometry: Geometry) -> bool:
    """Whether DMA transposes x: neighbours in HBM are channels, of more than a byte each."""
    return are_side_by_side(geometry) and geometry.hbm_itemsize > 1


def parts_of_x(geometry: Geometry, axis: Axis) -> list[PlanePiece]:
    """PlanePieces of a whole volume of an axis of planes: of the frames' tensor, if there is one, and of x's."""
    frames, size = geometry.frames, axis.size // axis.images
    if frames is None:
        return [PlanePiece(0, size, 0, geometry.x_strides, False)]
    held = frames.count
    return [PlanePiece(0, held, 0, frames.strides, True), PlanePiece(held, size - held, 0, geometry.x_strides, False)]


def plane_pieces(geometry: Geometry, d0: int, dn: int) -> list[PlanePiece]:
    """PlanePieces of planes d0 .. d0+dn-1, all of one volume."""
    size, found = geometry.planes.size // geometry.planes.images, []
    volume, place = d0 // size, d0 % size
    for part in parts_of_x(geometry, geometry.planes):
        low, high = max(place, part.first), min(place + dn, part.first + part.count)
        if low < high:
            plane = volume * part.count + low - part.first
            one = PlanePiece(first=low - place, count=high - low, plane=plane, strides=part.strides, framed=part.framed)
            found.append(one)
    return found
