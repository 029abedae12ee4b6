"""Regions of HBM: (first, pattern, offset). first: its first index in a tile, for each axis; pattern: an access pattern
of HBM whose last entries are the tile's free axes and whose first ones are its partitions. A region of x also has a
flag for the halo frames. The register of a device loop moves the regions of its body from one iteration to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .geometry import Geometry, plane_pieces
from .planes import channel_pieces, is_by_plane, sources_of, taps_inside, window_channels

Pattern = list[list[int]]
#: Tiles of residuals in turn, so that loads of much later ones do not delay x: at most, at least, elements of all.
#: Chosen by modelled times of golden's "1x1 residual NHWC" and "3x3 64 residual NHWC".
RESIDUALS, RESIDUALS_LEAST, RESIDUAL_ELEMENTS = 8, 2, 8192
#: (first, pattern, offset), and for x whether it is in the frames' tensor
Region = tuple[Any, ...]


def residuals_in_turn(elements: int) -> int:
    """Tiles of a circular buffer for residuals of so many elements a partition."""
    return max(RESIDUALS_LEAST, min(RESIDUALS, RESIDUAL_ELEMENTS // elements))


def offset_at(strides: Sequence[int], first: Sequence[int]) -> int:
    """Offset in HBM of an element of a tensor with strides along four axes, and between several volumes."""
    inside = first[0] * strides[0] + first[2] * strides[2] + first[3] * strides[3]
    if len(strides) == 4:
        return inside + first[1] * strides[1]
    return inside + first[1] // strides[5] * strides[4] + first[1] % strides[5] * strides[1]


def pattern_of(strides: Sequence[int], counts: Sequence[int]) -> Pattern:
    """The access pattern of `counts` neighbours along four axes."""
    return [[strides[0], counts[0]], [strides[1], counts[1]], [strides[2], counts[2]], [strides[3], counts[3]]]


def region_at(
    strides: Sequence[int], place: Sequence[int], first: Sequence[int], counts: Sequence[int], apart: int = 1
) -> Region:
    """The region of `counts` neighbours along four axes, of every `apart`-th row, at `place` in a tile, `first` in a
    tensor of these strides."""
    steps = (strides[0], strides[1], apart * strides[2], strides[3])
    return place, pattern_of(steps, counts), offset_at(strides, first)


def regions_of_x(
    geometry: Geometry,
    channels: tuple[int, int],
    planes: tuple[int, int],
    first: tuple[int, int],
    counts: tuple[int, int],
) -> list[Region]:
    """Regions of x for a tile [c, planes, rows, columns], from its first element on.

    channels, planes: (first, count); first, counts: of rows and columns. If planes of taps are channels, planes outside
    x have no region.
    """
    c0, cn = channels
    found: list[Region] = []
    if geometry.depth is not None:
        pieces, by_plane = channel_pieces(geometry, c0, cn), is_by_plane(geometry)
        for source, piece in itertools.product(sources_of(geometry), pieces):
            found += _channel_regions(source, piece, by_plane, planes, (first, counts))
        return found
    for part in plane_pieces(geometry, planes[0], planes[1]):
        extents, there = (cn, part.count, counts[0], counts[1]), (c0, part.plane, first[0], first[1])
        found.append((*region_at(part.strides, (0, part.first, 0, 0), there, extents), part.framed))
    return found


def _channel_regions(
    source: Any, piece: Sequence[int], by_plane: bool, planes: tuple[int, int], window: Any
) -> Iterator[Region]:
    """The regions in one tensor of a piece of planes of taps that are channels; see `regions_of_x`. window: its first
    and counts; by_plane: see `planes.is_by_plane`."""
    (depth, strides, framed), (part, c, count, t, tn), (first, counts) = source, piece, window
    images = range(planes[0], sum(planes))
    for (tap, seen), some in itertools.groupby(images, key=lambda image: taps_inside(depth, t, tn, image)[:2]):
        z, *more = some
        own = [[strides[1] * depth.stride, 1 + len(more)], [strides[2], counts[0]], [strides[3], counts[1]]]
        each = count if seen == tn or by_plane else 1  # channels of a region
        for index in range(0, count if seen > 0 else 0, each):
            leading = [[strides[1] * depth.dilation, seen], *([[strides[0], each]] if each > 1 else [])]
            place = part + (tap * count if by_plane else index * tn + tap), z - planes[0], 0, 0
            offset = offset_at(strides, (c + index, taps_inside(depth, t, tn, z)[2], *first))
            yield place, (leading if by_plane else leading[::-1]) + own, offset, framed


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
    size = geometry.K * geometry.planes.out * geometry.rows.out * geometry.columns.out
    for by in (1, math.gcd(*apart)):
        x, y = apart[0] // by, apart[1] // by
        if max(frames % x, own % x) == 0 and size % y == 0:
            return Register(by=by, x=x, y=y)
    return None


def x_sizes(geometry: Geometry) -> tuple[int, int]:
    """Elements of the frames in front of x, and of x."""
    depth = geometry.planes if geometry.depth is None else geometry.depth
    frames = 0 if geometry.frames is None else depth.images * geometry.frames.count
    rows = geometry.rows_stored or geometry.rows.size
    plane = geometry.C // window_channels(geometry) * rows * geometry.columns.size
    return frames * plane, (depth.size - frames) * plane
