"""Planes of taps of volumes: separate products (taps), or input channels (channels).

A convolution of C channels with T planes of taps is one of images with C * T channels, channel c * T + t of image z
being plane z * stride + t * dilation - before of x: if C fills too few partitions, C * T fill more, and sums need fewer
products. Filters are in HBM in that order; x is loaded by regions that have the plane of each partition. Windows of
several planes of y, whose output channels are those of all these planes, are loaded alike: each plane of x once.
With sums of planes of taps (`pairs_of_planes`), the channels are rows of taps.

On the partitions the T planes of a channel of x are neighbours. But a window may be in two tensors, x and its halo
frames, and a DMA fills neighbouring partitions only. So the channels of a K tile are plane by plane if volumes may come
in chunks (`Geometry.by_plane`), as sums of chunks and of whole volumes must round alike: a window takes one DMA of each
tensor, not one of each channel. In `stacked`, which has few channels, planes of a channel stay neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, product

from .cuts import places_inside, window_of
from .geometry import Axis, Geometry, filter_rows, images_axis, parts_of_x
from .options import PROLOGUE_ARGUMENTS, Options
from .settings import Config, setting
from .tiles import P_MAX, Part, cut, div_ceil

#: Planes of taps as taps or as input channels; as taps by default.
PLANES = ("taps", "channels")
#: Algorithms whose loads support planes of taps as channels.
BY_CHANNELS = ("implicit_gemm", "stacked")


def wants_channels(config: Config) -> bool:
    """Whether a config asks for planes of taps as channels."""
    return bool(setting(config, "planes", PLANES[0]) == "channels")


def without_planes(config: Config) -> Config:
    """The config without planes="channels"."""
    return tuple(one for one in config or () if one[0] != "planes") or None if wants_channels(config) else config


def planes_unsupported(algorithm: str, geometry: Geometry, options: Options) -> str:
    """Why the planes of taps cannot be channels; "" if they can."""
    planes, rows, reason = geometry.planes, geometry.rows, ""
    of_taps = geometry.planes.taps * geometry.w_strides[1]
    if options.prologue.asked:
        reason = f"copies of x have no prologue ({PROLOGUE_ARGUMENTS})"
    elif algorithm not in BY_CHANNELS:
        reason = f"{algorithm} takes them as taps"
    elif geometry.direct is not None:
        if rows.taps == 1 or rows.stride > 1 or rows.lhs_dilation > 1 or geometry.x_strides[0] == 1:
            reason = "needs R of 2 or more, stride and lhs_dilation of rows of 1, and rows of x in HBM"
    elif planes.taps == 1 or geometry.groups > 1 or planes.lhs_dilation > 1:
        reason = f"needs T={planes.taps} of 2 or more, one group, and no lhs_dilation={planes.lhs_dilation} of planes"
    elif of_taps == 0 or geometry.x_strides[0] == 1 or geometry.hbm_itemsize == 1 or options.strict_nonfinite:
        reason = "needs rows of x in HBM of 16 or 32 bits, and multiplies planes outside x by zero"
    elif geometry.flipped or (geometry.packed == 0 and not taps_are_inside(geometry)):
        reason = "needs filters that are packed or lie as KCTRS, not those of transposed convolutions"
    return reason if reason == "" else f"config planes=channels: {reason}; use 'taps'"


def taps_are_inside(geometry: Geometry) -> bool:
    """Whether the taps of a plain filter are stored plane by plane inside its innermost channels."""
    rows, columns, apart = filter_rows(geometry), geometry.columns.taps, geometry.w_strides
    in_rows, last = columns == 1 or apart[3] == 1, apart[0] if geometry.flipped else apart[1]
    return in_rows and last == rows * columns and (rows == 1 or apart[2] == columns)


def with_channels(geometry: Geometry) -> Geometry:
    """The Geometry of images with the channels of x for each plane of taps; of pairs for each row of taps, row by row:
    channel r * C + c of row p is row p + r * dilation - before of channel c."""
    apart, rows = geometry.w_strides, geometry.rows
    if geometry.direct is not None:
        w_strides = (apart[0], apart[1], rows.taps * apart[2], apart[3])
        return replace(geometry, C=rows.taps * geometry.C, rows=images_axis(rows.out), w_strides=w_strides, depth=rows)
    each = rows.taps * geometry.columns.taps
    return of_windows(geometry, geometry.planes, 1, (apart[0], each, apart[2], apart[3]))


def with_windows(geometry: Geometry, count: int) -> Geometry:
    """The Geometry whose images have the outputs of `count` neighbouring planes of y, (plane, k), the last of a volume
    perhaps fewer, and the channels of x for each plane of their window; the same Geometry if count is 1."""
    planes = geometry.planes
    if count == 1:
        return geometry
    out = planes.images * div_ceil(planes.out // planes.images, count)
    depth = replace(planes, taps=window_of(planes, count), out=out, stride=count * planes.stride, dilation=1)
    return of_windows(geometry, depth, count, geometry.w_strides)


def of_windows(geometry: Geometry, depth: Axis, count: int, w_strides: tuple[int, ...]) -> Geometry:
    """The Geometry with the channels of x for each plane of taps of `depth`, and the output channels of `count`
    planes."""
    return replace(
        geometry,
        C=geometry.C * depth.taps,
        K=geometry.K * count,
        planes=images_axis(depth.out, depth.images),
        w_strides=w_strides,
        y_strides=apart_by(geometry.y_strides, geometry.planes, count),
        depth=depth,
    )


def sources_of(geometry: Geometry) -> list[tuple[Axis, tuple[int, ...], bool]]:
    """(axis of planes, strides, whether it is the halo frames) of each tensor of x, if planes of taps are channels: the
    planes of that tensor alone in the windows of outputs."""
    depth = geometry.depth_axis
    parts = ((depth.images * one.count, depth.before + one.first, one) for one in parts_of_x(geometry, depth))
    return [(replace(depth, size=size, before=before), one.strides, one.framed) for size, before, one in parts]


def apart_by(strides: tuple[int, ...], planes: Axis, count: int) -> tuple[int, ...]:
    """Strides of a result with `count` planes an image, the last of a volume perhaps fewer."""
    if count == 1:
        return strides
    volume = planes.out // planes.images
    between = volume * strides[1] if len(strides) == 4 else strides[4]
    return (strides[0], count * strides[1], strides[2], strides[3], between, div_ceil(volume, count))


def window_channels(geometry: Geometry) -> int:
    """Channels for one channel of x: the planes of a window."""
    return 1 if geometry.depth is None else geometry.depth.taps


def k_tiles_of_windows(geometry: Geometry) -> list[Part]:
    """(first, how many) of K tiles of at most 128 channels, as even as possible, with all planes of a channel of x in
    one tile. Plane by plane smaller tiles come first, as filters of equal K tiles are loaded together."""
    each = window_channels(geometry)
    parts = cut(geometry.C // each, P_MAX // each)
    if is_by_plane(geometry):
        sizes = sorted(count for _, count in parts)
        parts = [(sum(sizes[:index]), count) for index, count in enumerate(sizes)]
    return [(first * each, count * each) for first, count in parts]


def taps_inside(depth: Axis, t: int, tn: int, z: int) -> tuple[int, int, int]:
    """(first, how many, plane of x of the first) of planes of taps t .. t+tn-1 inside x for plane z of y; the first is
    counted from t."""
    out, size = depth.out // depth.images, depth.size // depth.images
    image = z // out
    place = (z - image * out) * depth.stride + t * depth.dilation - depth.before
    skip, end = places_inside(place, depth.dilation, tn, size)
    return skip, end - skip, image * size + place + skip * depth.dilation


def misses_planes(geometry: Geometry, z0: int, zn: int) -> bool:
    """Whether a window of output planes z0 .. z0+zn-1 has planes outside x, if planes of taps are channels."""
    depth = geometry.depth
    if depth is None:
        return False
    first, last = taps_inside(depth, 0, depth.taps, z0), taps_inside(depth, 0, depth.taps, z0 + zn - 1)
    return first[1] < depth.taps or last[1] < depth.taps


def windows_in_pieces(geometry: Geometry) -> int:
    """The number of windows, each counted for x and for its halo frames, of whose planes the tensor has some but not
    all; without halo frames also windows outside x. Planes of taps are channels."""
    depth, least = geometry.depth_axis, 0 if geometry.frames is None else 1
    windows = product(sources_of(geometry), range(depth.out // depth.images))
    seen = (taps_inside(axis, 0, depth.taps, z)[1] for (axis, *_), z in windows)
    return depth.images * sum(least <= count < depth.taps for count in seen)


def dmas_of_piece(geometry: Geometry) -> int:
    """DMAs of a part of a window, at least: one of each channel of x if the planes of a channel are neighbours."""
    return 1 if is_by_plane(geometry) else geometry.C // geometry.depth_axis.taps


def is_by_plane(geometry: Geometry) -> bool:
    """Whether planes of taps are channels, plane by plane in a K tile."""
    return geometry.by_plane and geometry.depth is not None and geometry.direct is None


def channel_runs(geometry: Geometry, c0: int, cn: int) -> list[tuple[int, int, int, int]]:
    """(partition, channel, step, how many) of runs of channels c0 .. c0+cn-1, evenly spaced on neighbouring
    partitions."""
    if not is_by_plane(geometry):
        return [(0, c0, 1, cn)]
    taps, pieces = geometry.depth_axis.taps, channel_pieces(geometry, c0, cn)
    return [
        (part + tap * count, c * taps + t + tap, taps, count) for part, c, count, t, tn in pieces for tap in range(tn)
    ]


def channel_pieces(geometry: Geometry, c0: int, cn: int) -> list[tuple[int, int, int, int, int]]:
    """(partition, channel of x, how many, plane of taps, how many) of pieces of channels c0 .. c0+cn-1: whole channels
    of x together, and the parts of the first and last; or plane by plane."""
    taps = geometry.depth_axis.taps
    if is_by_plane(geometry):
        return pieces_by_plane(taps, c0, cn)
    found, at = [], c0
    while at < c0 + cn:
        t = at % taps
        left = c0 + cn - at
        count = left // taps if t == 0 and left >= taps else 1
        tn = taps if t == 0 and left >= taps else min(taps - t, left)
        found.append((at - c0, at // taps, count, t, tn))
        at += count * tn
    return found


def pieces_by_plane(taps: int, c0: int, cn: int) -> list[tuple[int, int, int, int, int]]:
    """The pieces as in `channel_pieces` plane by plane: neighbouring planes with the same channels together."""

    def alike(first: int) -> tuple[int, int]:
        return first // taps, div_ceil(c0 + cn - first, taps)

    found, at = [], 0
    for (c, count), some in groupby(range(c0, c0 + min(taps, cn)), key=alike):
        planes = list(some)
        found.append((at, c, count, planes[0] % taps, len(planes)))
        at += count * len(planes)
    return found
