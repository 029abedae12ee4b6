"""Planes of taps of volumes: products of their own (taps), or channels beside others on the partitions (channels).

A convolution of C channels with T planes of taps is one of images with C * T channels, channel c * T + t of image z
being plane z * stride + t * dilation - before of x: where C fills too few partitions, T times as many do better, and
sums need fewer products. Filters lie in HBM as it needs them; x comes by boxes that know the plane of each partition.
Where planes of taps are added (`pairs_of_planes`), it is rows of taps that are channels.
"""

from .._tiles import div_ceil
from .geometry import Axis, Geometry
from .pairs_of_planes import rows_of_taps_refusal, with_rows_of_taps
from .transposes import is_transposed

#: How planes of taps are taken; a config that does not say takes them as taps.
PLANES = ("taps", "channels")
#: Algorithms whose loads know such channels.
BY_CHANNELS = ("implicit_gemm", "stacked")


def wants_channels(config):
    """Whether a config asks for planes of taps as channels."""
    return asked_planes(config) == "channels"


def asked_planes(config):
    """What a config says of planes of taps; what is no config is refused elsewhere."""
    found = PLANES[0]
    if isinstance(config, tuple):
        for index in range(len(config)):
            if isinstance(config[index], tuple) and len(config[index]) == 2 and config[index][0] == "planes":
                found = config[index][1]
    return found


def without_planes(config):
    """The config without what this file reads."""
    if not wants_channels(config):
        return config
    found = ()
    for index in range(len(config)):
        if config[index][0] != "planes":
            found = found + (config[index],)
    return found if len(found) > 0 else None


def planes_refusal(algorithm, geometry, extras):
    """Why the planes of taps cannot be channels; "" if they can."""
    planes, reason = geometry.planes, ""
    of_taps = geometry.planes.taps * geometry.w_strides[1]
    if algorithm not in BY_CHANNELS:
        reason = f"{algorithm} takes them as taps"
    elif geometry.direct != None:
        reason = rows_of_taps_refusal(geometry)
    elif planes.taps == 1 or geometry.groups > 1 or planes.lhs_dilation > 1:
        reason = f"needs T={planes.taps} of 2 or more, one group, and no lhs_dilation={planes.lhs_dilation} of planes"
    elif of_taps == 0 or is_transposed(geometry) or geometry.hbm_itemsize == 1 or extras.strict_nonfinite:
        reason = "needs rows of x in HBM of 16 or 32 bits, and multiplies planes outside x by zero"
    elif geometry.packed == 0 and not taps_are_inside(geometry):
        reason = "needs filters that are packed or lie as KCTRS"
    return reason if reason == "" else f"config planes=channels: {reason}; use 'taps'"


def taps_are_inside(geometry):
    """Whether the taps of a plain filter lie between its input channels, plane by plane."""
    rows, columns, apart = geometry.rows.taps, geometry.columns.taps, geometry.w_strides
    in_rows = columns == 1 or apart[3] == 1
    return in_rows and apart[1] == geometry.planes.taps * rows * columns and (rows == 1 or apart[2] == columns)


def with_channels(geometry):
    """The Geometry of images whose channels are those of x for each plane of taps, or for each row of them."""
    if geometry.direct != None:
        return with_rows_of_taps(geometry)
    planes, apart = geometry.planes, geometry.w_strides
    each = geometry.rows.taps * geometry.columns.taps
    return Geometry(
        C=geometry.C * planes.taps,
        K=geometry.K,
        groups=1,
        planes=Axis(
            size=planes.out,
            taps=1,
            out=planes.out,
            stride=1,
            dilation=1,
            lhs_dilation=1,
            before=0,
            images=planes.images,
        ),
        rows=geometry.rows,
        columns=geometry.columns,
        x_strides=geometry.x_strides,
        w_strides=(apart[0], each, apart[2], apart[3]),
        y_strides=geometry.y_strides,
        r_strides=geometry.r_strides,
        packed=geometry.packed,
        itemsize=geometry.itemsize,
        hbm_itemsize=geometry.hbm_itemsize,
        fast=geometry.fast,
        precision=geometry.precision,
        depth=planes,
        flipped=geometry.flipped,
        frames=geometry.frames,
        direct=geometry.direct,
    )


def sources_of(geometry):
    """(axis of planes, strides, whether it is that of the frames) of each tensor of x, where planes of taps are
    channels: what outputs see of it alone."""
    depth, frames = geometry.depth, geometry.frames
    if frames == None:
        return [(depth, geometry.x_strides, False)]
    volumes = depth.images
    own = depth.size - volumes * frames.count
    in_front = planes_axis(depth, volumes * frames.count, depth.before)
    return [
        (in_front, frames.strides, True),
        (planes_axis(depth, own, depth.before + frames.count), geometry.x_strides, False),
    ]


def planes_axis(depth, size, before):
    """The Axis of some of the planes, of which the first is `before` further back."""
    return Axis(
        size=size,
        taps=depth.taps,
        out=depth.out,
        stride=depth.stride,
        dilation=depth.dilation,
        lhs_dilation=1,
        before=before,
        images=depth.images,
    )


def taps_inside(depth, t, tn, z):
    """(first, how many, the plane of x of the first) of planes of taps t .. t+tn-1 that see one from plane z of y,
    counted from t."""
    out, size = depth.out // depth.images, depth.size // depth.images
    image = z // out
    place = (z - image * out) * depth.stride + t * depth.dilation - depth.before
    skip = min(tn, div_ceil(max(0, -place), depth.dilation))
    seen = max(0, min(tn - skip, div_ceil(size - place, depth.dilation) - skip)) if place < size else 0
    return skip, seen, image * size + place + skip * depth.dilation


def misses_planes(geometry, z0, zn):
    """Whether a tap sees a plane outside x from planes z0 .. z0+zn-1 of outputs, where planes of taps are channels."""
    depth = geometry.depth
    if depth == None:
        return False
    first, last = taps_inside(depth, 0, depth.taps, z0), taps_inside(depth, 0, depth.taps, z0 + zn - 1)
    return first[1] < depth.taps or last[1] < depth.taps


def channel_pieces(geometry, c0, cn):
    """(partition, channel of x, how many, plane of taps, how many) of channels c0 .. c0+cn-1: whole channels together,
    and what is left of the first and last."""
    taps = geometry.depth.taps
    found, at = [], c0
    while at < c0 + cn:
        t = at % taps
        left = c0 + cn - at
        count = left // taps if t == 0 and left >= taps else 1
        tn = taps if t == 0 and left >= taps else min(taps - t, left)
        found.append((at - c0, at // taps, count, t, tn))
        at += count * tn
    return found
