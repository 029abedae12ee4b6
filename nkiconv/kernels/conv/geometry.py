"""Arguments of conv2d and conv3d, checked and turned into the letters that the kernel uses.

Compile-time code. Nothing below the public kernel sees the arguments' own names.
"""

from dataclasses import dataclass

from ..._nki import nl
from .._arguments import FP8, output_extent
from .._axis import outputs_met
from .._tiles import INSTRUCTIONS_MAX, dense_strides, div_ceil, picked, require, result_strides
from .checks import check_arguments, check_blocks, check_flipped, check_groups, check_precision
from .frames import Frames, frames_in_front


@dataclass
class Axis(nl.NKIObject):
    """Planes, rows or columns: size of x, taps of w, outputs, and how they meet.

    images: how many there are one after the other, as planes of several volumes are; size and out are of all. What is
    worked on at once never has planes of two, but where images is 1.
    """

    size: int
    taps: int
    out: int
    stride: int = 1
    dilation: int = 1
    lhs_dilation: int = 1
    before: int = 0
    images: int = 1


@dataclass
class Geometry(nl.NKIObject):
    """One convolution on three axes: y[k, z, p, q] = sum over c, t, r, s of

        w[k, c, t, r, s] * xp[g * C / groups + c, z', p', q'],    g = k // (K / groups),

    p' = p * stride + r * dilation - before on the rows' axis, z' and q' the same on those of the planes and columns. xp
    is x with lhs_dilation - 1 zeros between neighbours, and zeros outside. The images of a 2-d problem are planes with
    one tap, each an output of its own, and so are those of volumes that one tap sees, if they are evenly spaced; rows
    of taps of several planes follow each other. Strides are in elements of the HBM tensors as stored, so permuted
    layouts need no copy; where channels lie side by side, elements that no tap meets are left out.
    """

    C: int
    K: int
    groups: int
    planes: Axis
    rows: Axis
    columns: Axis
    #: elements between neighbours in x along channels, planes, rows and columns; in w along k, c, rows and columns of
    #: taps; in y and the residual along k, planes, rows and columns. Where planes of several volumes are not evenly
    #: spaced, x and y have those between volumes behind them, and the planes of one
    x_strides: tuple
    w_strides: tuple
    y_strides: tuple
    #: output channels of a block of a packed filter, 0: the filter is plain
    packed: int
    #: bytes of an element of x and w on chip and in HBM, and whether the array takes products of them at the rate of
    #: 16 bits; two of fp8 in that time where it can (nki.isa's double_row)
    itemsize: int
    hbm_itemsize: int
    fast: bool
    #: how products are taken: None, or one of PRECISIONS
    precision: object
    #: whether the filter is one of a transposed convolution: taps backwards, and where there are several groups
    #: [C, K / groups, ...], its strides those along a group's k and along all c (see `flip`)
    flipped: bool
    #: Frames that precede the planes of x's tensor, counted in planes.size, or None
    frames: object
    #: whether planes of taps that are channels are plane by plane on the partitions (see `planes`)
    by_plane: bool = False
    #: the planes' own Axis where C counts each input channel for each plane of taps (see `planes`), of pairs of planes
    #: the rows' for each row of taps, or None
    depth: object = None
    #: the Geometry of what is asked for, where the planes' Axis is that of pairs of planes of y, or None
    direct: object = None
    #: how many times the work of this the problem has that the host plans by it: instructions are counted of all
    times: int = 1


def copy_of(geometry):
    """The same Geometry, of which some things are then changed."""
    return Geometry(
        C=geometry.C,
        K=geometry.K,
        groups=geometry.groups,
        planes=geometry.planes,
        rows=geometry.rows,
        columns=geometry.columns,
        x_strides=geometry.x_strides,
        w_strides=geometry.w_strides,
        y_strides=geometry.y_strides,
        packed=geometry.packed,
        itemsize=geometry.itemsize,
        hbm_itemsize=geometry.hbm_itemsize,
        fast=geometry.fast,
        precision=geometry.precision,
        depth=geometry.depth,
        flipped=geometry.flipped,
        frames=geometry.frames,
        by_plane=geometry.by_plane,
        direct=geometry.direct,
        times=geometry.times,
    )


def met(axis, tap, first, count):
    """Outputs first .. first+count-1 that see an element of x at a tap: what `_axis.outputs_met` returns."""
    shift = tap * axis.dilation - axis.before
    if axis.images == 1:
        return outputs_met(axis.size, axis.stride, axis.lhs_dilation, shift, first, count)
    out, size = axis.out // axis.images, axis.size // axis.images
    image = first // out
    found = outputs_met(size, axis.stride, axis.lhs_dilation, shift, first - image * out, count)
    return found[0] + image * out, found[1], found[2], found[3] + image * size, found[4]


def filter_rows(geometry):
    """Rows of taps of a filter, those of all planes one after the other."""
    return geometry.planes.taps * geometry.rows.taps


def is_of_planes(geometry):
    """Whether an output sees several planes, so that x may come in chunks: sums must not depend on where it is cut."""
    return geometry.planes.taps > 1 or geometry.depth != None


def num_taps(geometry):
    """Taps of a filter for an input channel."""
    return filter_rows(geometry) * geometry.columns.taps


def span(axis, first, count):
    """(first element, how many) of x that any tap meets at outputs first .. first+count-1; (0, 0) if none does."""
    if axis.images == 1 and count > 0:
        begin = first * axis.stride - axis.before
        end = begin + (count - 1) * axis.stride + (axis.taps - 1) * axis.dilation
        dense = (axis.stride == 1 and count >= axis.dilation) or (axis.dilation == 1 and axis.taps >= axis.stride)
        if dense or (axis.lhs_dilation == 1 and begin >= 0 and end < axis.size):  # no gaps, or no padding
            low = div_ceil(max(0, begin), axis.lhs_dilation)
            high = min(max(-1, end) + axis.lhs_dilation, axis.size * axis.lhs_dilation) // axis.lhs_dilation - 1
            return (0, 0) if end < 0 or high < low else (low, high - low + 1)
    low, high = axis.size, -1
    for tap in range(axis.taps):
        found = met(axis, tap, first, count)
        if found[2] > 0:
            low = min(low, found[3])
            high = max(high, found[3] + (found[2] - 1) * found[4])
    return (0, 0) if high < low else (low, high - low + 1)


def read_axis(name, size, taps, places, index):
    """The Axis number `index` of those that padding, stride, rhs_dilation and lhs_dilation are for; refused where it
    has no output."""
    padding, stride, dilation, lhs_dilation = places
    before, after = padding[index]
    step, apart, spread = stride[index], dilation[index], lhs_dilation[index]
    out = output_extent(size, taps, step, apart, spread, before, after)
    require(
        out >= 1,
        f"{name}={out}: output extent must be at least 1 (size {size} dilated by {spread}, padded {before}+{after}, "
        f"window {(taps - 1) * apart + 1}); pad the input or shorten the filter",
    )
    return Axis(size=size, taps=taps, out=out, stride=step, dilation=apart, lhs_dilation=spread, before=before)


def thinned(axis):
    """(Axis, step) without the elements that a single strided tap never reads: every step-th one is left, if the first
    of them is element 0."""
    shift = axis.before if axis.before >= 0 else -axis.before
    if axis.taps > 1 or axis.lhs_dilation > 1 or shift % axis.stride > 0:
        return axis, 1
    size = div_ceil(axis.size, axis.stride)
    return Axis(size=size, taps=1, out=axis.out, before=axis.before // axis.stride), axis.stride


def repeated(axis, images):
    """The Axis of so many one after the other."""
    return Axis(
        size=images * axis.size,
        taps=axis.taps,
        out=images * axis.out,
        stride=axis.stride,
        dilation=axis.dilation,
        lhs_dilation=axis.lhs_dilation,
        before=axis.before,
        images=images,
    )


def images_axis(images, volumes=1):
    """The planes' Axis of images, of so many volumes: each an output of its own."""
    return Axis(size=images, taps=1, out=images, images=volumes)


def sees_own(axis):
    """Whether each output sees the element of its own number, and no other."""
    in_step = axis.taps == 1 and axis.stride == 1 and axis.lhs_dilation == 1
    return in_step and axis.before == 0 and axis.out <= axis.size


def sees_itself(axis):
    """The same where there are as many outputs as elements."""
    return sees_own(axis) and axis.out == axis.size


def images_refusal(planes, taker, instead):
    """Why what works on images does not take these planes; "" if each plane of y sees the plane of x of its number."""
    if planes.taps > 1:
        return f"T={planes.taps}: {taker} takes one plane of taps; use {instead}"
    if not sees_own(planes):
        return (
            f"D={planes.size}, Z={planes.out}, stride={planes.stride}, padding={planes.before} in front and "
            f"lhs_dilation={planes.lhs_dilation} of planes: {taker} takes planes of y that each see the plane of x of "
            f"their own number; use {instead}"
        )
    return ""


def read_geometry(
    img_ref, filter_ref, places, group_counts, perms, precision, packed=False, flipped=False, frames_ref=None
):
    """Check the arguments and return (Geometry, shape of y, and of a residual, as stored).

    places: (padding, stride, rhs_dilation, lhs_dilation), whose tuples have an entry an axis, two or three;
    group_counts: (feature_group_count, batch_group_count); perms: (in_perm, kern_perm, out_perm); packed: whether the
    filter of volumes is; of images its shape says so; flipped: whether it is [C, K / groups, ...], taps backwards;
    frames_ref: planes in front of x's, or None.
    """
    axes = len(places[1])
    packed = len(filter_ref.shape) == 5 and not flipped if axes == 2 else packed
    check_arguments(img_ref, filter_ref, group_counts, perms, axes, packed)
    check_precision(precision, img_ref.dtype)
    identity = (0, 1, 2, 3, 4) if axes == 3 else (0, 1, 2, 3)
    in_axes = identity if perms[0] == None else perms[0]
    kern_axes = identity if perms[1] == None else perms[1]
    out_axes = identity if perms[2] == None else perms[2]
    x_extents = picked(img_ref.shape, in_axes)
    held = frames_in_front(frames_ref, img_ref, in_axes)
    w_stored, each = filter_as_stored(filter_ref.shape, packed, axes, x_extents[1])
    w_extents = picked(w_stored, kern_axes)
    N, C, K, groups = x_extents[0], x_extents[1], w_extents[0], group_counts[0]
    if flipped:
        K = w_extents[1] * groups
        check_flipped(filter_ref.shape, w_extents[0], C, groups)
    else:
        check_groups(filter_ref.shape, w_extents[1], C, K, groups)
    last = axes + 1
    rows = read_axis("P", x_extents[last - 1], w_extents[last - 1], places, axes - 2)
    columns = read_axis("Q", x_extents[last], w_extents[last], places, axes - 1)
    planes = read_axis("Z", x_extents[2] + held, w_extents[2], places, 0) if axes == 3 else images_axis(N)
    stored = picked(dense_strides(img_ref.shape), in_axes)
    d_step, h_step, w_step = 1, 1, 1
    if C > 1 and stored[1] == 1:
        if held == 0:
            planes, d_step = thinned(planes)
        rows, h_step = thinned(rows)
        columns, w_step = thinned(columns)
    depth = (planes.out,) if axes == 3 else ()
    y_shape = picked((N, K) + depth + (rows.out, columns.out), out_axes)
    by_plane = (stored[2] * d_step,) if axes == 3 else ()
    x_apart = (stored[0], stored[1]) + by_plane + (stored[last - 1] * h_step, stored[last] * w_step)
    y_apart = result_strides(y_shape, out_axes)
    of_x, of_y = 0, 0
    if axes == 3 and N > 1:
        even = held == 0 and x_apart[0] == planes.size * x_apart[2] and y_apart[0] == planes.out * y_apart[2]
        if even and sees_itself(planes):
            planes = images_axis(N * planes.out)
        else:
            of_x, of_y = planes.size - held, planes.out
            planes = repeated(planes, N)
    frames = frames_as_stored(frames_ref, in_axes, held, (h_step, w_step), of_x)
    geometry = Geometry(
        C=C,
        K=K,
        groups=groups,
        planes=planes,
        rows=rows,
        columns=columns,
        x_strides=by_channel(x_apart, of_x),
        w_strides=tap_strides(picked(dense_strides(w_stored), kern_axes), w_extents, kern_axes, flipped),
        y_strides=by_channel(y_apart, of_y),
        packed=each,
        itemsize=bytes_of(img_ref.dtype, precision),
        hbm_itemsize=bytes_of(img_ref.dtype, None),
        fast=img_ref.dtype != nl.float32 or precision != None,
        precision=precision,
        flipped=flipped,
        frames=frames,
        by_plane=axes == 3 and (held > 0 or places[0][0][1] <= 0),
    )
    return geometry, y_shape


def frames_as_stored(frames_ref, in_axes, held, steps, volumes):
    """Frames of so many `held`, or None. steps: between rows and columns that are read; volumes: planes of one where
    there are several, else 0."""
    if held == 0:
        return None
    apart = picked(dense_strides(frames_ref.shape), in_axes)
    apart = (apart[0], apart[1], apart[2], apart[3] * steps[0], apart[4] * steps[1])
    return Frames(count=held, strides=by_channel(apart, held if volumes > 0 else 0))


def filter_as_stored(w_shape, packed, axes, C):
    """(shape of a filter before kern_perm, output channels of a block of a packed one, or 0)."""
    if not packed:
        return w_shape, 0
    each = w_shape[4]
    if axes == 2:
        return (w_shape[0] * each, w_shape[1], w_shape[2], w_shape[3]), each
    check_blocks(w_shape, C)
    return (w_shape[0] // C * each, C, w_shape[1], w_shape[2], w_shape[3]), each


def by_channel(apart, planes):
    """Strides along channels, planes, rows and columns, of canonical ones; behind them those between volumes of so many
    `planes`, if there are any."""
    if len(apart) == 4:
        return (apart[1], apart[0], apart[2], apart[3])
    found = (apart[1], apart[2], apart[3], apart[4])
    return found if planes == 0 else found + (apart[0], planes)


def tap_strides(apart, extents, axes, flipped):
    """Strides of a filter along k, c, rows and columns of taps, of canonical ones; rows of all planes one after the
    other. flipped: c is before k."""
    of_k, of_c = apart[0], apart[1]
    if flipped:
        of_k, of_c = apart[1], apart[0]
    if len(apart) == 4:
        return (of_k, of_c, apart[2], apart[3])
    even = extents[2] == 1 or extents[3] == 1 or apart[2] == extents[3] * apart[3]
    require(
        even,
        f"kern_perm={axes}: rows of taps must follow each other from plane to plane; store T outside R, as KCTRS, "
        f"TRSCK and KTRSC do",
    )
    return (of_k, of_c, apart[2] if extents[3] == 1 else apart[3], apart[4])


def bytes_of(dtype, precision):
    """Bytes of an element of x and w on chip."""
    if dtype in FP8:
        return 1
    return 4 if dtype == nl.float32 and precision != "bf16" else 2


def instructions_refusal(geometry, algorithm, count, looped=False):
    """Why a core's `count` instructions are too many, and a cut with which they are not; "" where they are not.

    looped: whether loops on the device do most of the work, so that more of it takes no more instructions.
    """
    count = count if looped else count * geometry.times
    if count <= INSTRUCTIONS_MAX:
        return ""
    calls = div_ceil(count, INSTRUCTIONS_MAX)
    remedy = f"split K over {calls} calls, or use larger tiles"
    if geometry.times > 1:
        return (
            f"C={geometry.C}, K={geometry.K}: {algorithm} needs up to some {count} instructions on a core, the "
            f"compiler takes {INSTRUCTIONS_MAX}; call it {calls} times, on a part of the images or rows each"
        )
    if geometry.planes.out >= calls:
        remedy = f"call it {calls} times, with at most {geometry.planes.out // calls} images each"
    elif geometry.rows.out >= calls:
        remedy = (
            f"call it {calls} times, with at most {geometry.rows.out // calls} rows of y (and what they see of x) each"
        )
    return (
        f"N={geometry.planes.out}, C={geometry.C}, K={geometry.K}: {algorithm} needs up to {count} instructions on a "
        f"core, the compiler takes {INSTRUCTIONS_MAX}; {remedy}"
    )
