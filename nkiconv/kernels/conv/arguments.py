"""Arguments of conv2d and conv3d, checked and read into the Geometry that schedules and kernels use.

Code below the public kernel does not use the arguments' own names. Final frames of a call, the last planes of its
frames and x, are copied from HBM to HBM; the transfers start before the algorithm and overlap it.
"""

from ... import axis as extents
from ... import rules
from ..._nki import nl
from ...schedules.geometry import APART_BYTES, Axis, Frames, Geometry, images_axis, repeated, sees_itself, thinned
from ...schedules.tiles import dense_strides, picked, require, result_strides, share, size_of
from .._arguments import FP8, NAMES, check_tensors, refuse
from .._dma import copy


def check_axes(img_ref, places, axes, dilation="rhs_dilation"):
    """Refuse x, padding, strides and dilations of another number of axes; dilation: the argument's name for taps."""
    padding, stride, rhs_dilation, lhs_dilation = places
    letters = "N, C, D, H, W" if axes == 3 else "N, C, H, W"
    refuse(rules.rank("img_ref", img_ref.shape, letters, " before in_perm"), rules.padding(padding, axes, alone=False))
    for name, value in (("stride", stride), (dilation, rhs_dilation), ("lhs_dilation", lhs_dilation)):
        refuse(rules.places(name, value, axes, alone=False))


def places_of_transposed(asked, axes):
    """(padding, stride, rhs_dilation, lhs_dilation) of the convolution that equals a transposed one."""
    stride, more, dilation, kern_perm = asked.stride, asked.output_padding, asked.dilation, asked.kern_perm
    ones, taps = (1,) * axes, asked.filter_ref.shape
    check_axes(asked.img_ref, (asked.padding, ones, dilation, ones), axes, "dilation")
    refuse(rules.places("stride", stride, axes, alone=False))
    refuse(rules.places("output_padding", more, axes, alone=False, least=0))
    refuse(rules.permutation("kern_perm", kern_perm, axes + 2))
    letters = "C, K / groups, R, S" if axes == 2 else "C, K / groups, T, R, S"
    refuse(rules.rank("filter_ref", taps, letters), rules.output_padding(more, stride, dilation, axes))
    stored = range(2, axes + 2) if kern_perm == None else kern_perm[2:]
    windows = [(taps[axis] - 1) * apart for axis, apart in zip(stored, dilation, strict=True)]
    pairs = zip(windows, asked.padding, more, strict=True)
    return tuple((one - pad[0], one - pad[1] + end) for one, pad, end in pairs), ones, dilation, stride


def check_arguments(img_ref, filter_ref, group_counts, perms, axes, packed):
    """Refuse malformed arguments by name."""
    groups, batch_groups = group_counts
    letters = "K, C / groups, R, S" if axes == 2 else "K, C / groups, T, R, S"
    if not packed or len(filter_ref.shape) != 5:
        refuse(rules.rank("filter_ref", filter_ref.shape, letters, ", or be packed as pack_filter does it"))
    require(
        not packed or (perms[1] == None and groups == 1),
        f"filter_ref.shape={filter_ref.shape}, kern_perm={perms[1]}, feature_group_count={groups}: a packed filter has "
        f"its own order and no groups; pass it plain",
    )
    check_tensors(img_ref, filter_ref, rules.CONV2D_DTYPES, perms, axes + 2)
    refuse(rules.accepted("batch_group_count", batch_groups, (1,), "split the batch before the call"))
    refuse(rules.number("feature_group_count", groups, " that divides C and K"))


def read_axis(letters, size, taps, places, index):
    """Axis number `index` from the places padding, stride, rhs_dilation and lhs_dilation; refused if it has no
    output."""
    padding, stride, dilation, lhs_dilation = places
    before, after = padding[index]
    step, apart, spread = stride[index], dilation[index], lhs_dilation[index]
    found = extents.Axis(size, taps, step, before, after, apart, spread)
    refuse(rules.output(found, letters))
    return Axis(size=size, taps=taps, out=found.out, stride=step, dilation=apart, lhs_dilation=spread, before=before)


def read_geometry(
    img_ref, filter_ref, places, group_counts, perms, precision, packed=False, flipped=False, frames_ref=None, repeat=1
):
    """Check the arguments and return (Geometry, shape of y as stored, which a residual has too).

    places: (padding, stride, rhs_dilation, lhs_dilation), tuples of one entry for each of two or three axes;
    group_counts: (feature_group_count, batch_group_count); perms: (in_perm, kern_perm, out_perm); packed: whether the
    filter of volumes is packed (that of images shows it by its shape); flipped: whether the filter is [C, K / groups,
    ...] with taps in reverse order; frames_ref: planes in front of x's, or None; repeat: x_upsample.
    """
    axes = len(places[1])
    packed = len(filter_ref.shape) == 5 and not flipped if axes == 2 else packed
    check_arguments(img_ref, filter_ref, group_counts, perms, axes, packed)
    refuse(rules.precision(precision), rules.precision_fits(precision, img_ref.dtype, "img_ref and filter_ref"))
    in_axes, kern_axes, out_axes = (tuple(range(axes + 2)) if perm == None else perm for perm in perms)
    x_extents = picked(img_ref.shape, in_axes)
    held = frames_in_front(frames_ref, img_ref, in_axes)
    w_stored, each = filter_as_stored(filter_ref.shape, packed, axes, x_extents[1])
    w_extents = picked(w_stored, kern_axes)
    N, C, K, groups = x_extents[0], x_extents[1], w_extents[0], group_counts[0]
    if flipped:
        K = w_extents[1] * groups
    order, w_in = " after kern_perm", w_extents[0 if flipped else 1]
    refuse(
        rules.divides("feature_group_count", groups, C=C, K=K),
        rules.filter_channels(filter_ref.shape, w_in, C, groups, transposed=flipped, names=NAMES, order=order),
    )
    last = axes + 1
    rows = read_axis("PHR", repeat * x_extents[last - 1], w_extents[last - 1], places, axes - 2)
    columns = read_axis("QWS", repeat * x_extents[last], w_extents[last], places, axes - 1)
    planes = read_axis("ZDT", x_extents[2] + held, w_extents[2], places, 0) if axes == 3 else images_axis(N)
    stored = picked(dense_strides(img_ref.shape), in_axes)
    d_step, h_step, w_step = 1, 1, 1
    if C > 1 and stored[1] == 1 and repeat == 1:
        if held == 0:
            planes, d_step = thinned(planes)
        rows, h_step = thinned(rows)
        columns, w_step = thinned(columns)
    elif repeat == 1 and rows.stride * stored[last - 1] * bytes_of(img_ref.dtype, None) >= APART_BYTES:
        rows, h_step = thinned(rows)
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
        image_planes=planes.size // N,
        upsample=repeat,
        rows_stored=x_extents[last - 1] if h_step > 1 else 0,
    )
    return geometry, y_shape


def frames_as_stored(frames_ref, in_axes, held, steps, volumes):
    """Frames of `held` planes in front of each volume, or None. steps: between rows and columns that are read; volumes:
    planes of a volume if there are several, else 0."""
    if held == 0:
        return None
    apart = picked(dense_strides(frames_ref.shape), in_axes)
    apart = (apart[0], apart[1], apart[2], apart[3] * steps[0], apart[4] * steps[1])
    return Frames(count=held, strides=by_channel(apart, held if volumes > 0 else 0))


def filter_as_stored(w_shape, packed, axes, C):
    """(shape of a filter before kern_perm, output channels of a packed filter's block, 0 if it is not packed)."""
    if not packed:
        return w_shape, 0
    each = w_shape[4]
    if axes == 2:
        return (w_shape[0] * each, w_shape[1], w_shape[2], w_shape[3]), each
    require(
        w_shape[0] % C == 0,
        f"filter_ref.shape={w_shape}: a packed filter of volumes is [K / kn * C, T, R, S, kn], x has C={C}; pack one "
        f"of as many channels",
    )
    return (w_shape[0] // C * each, C, w_shape[1], w_shape[2], w_shape[3]), each


def by_channel(apart, planes):
    """Canonical strides along channels, planes, rows and columns; then, if `planes` is not 0, the stride between
    volumes and `planes`, the planes of a volume."""
    if len(apart) == 4:
        return (apart[1], apart[0], *apart[2:])
    return tuple(apart[1:]) if planes == 0 else (*apart[1:], apart[0], planes)


def tap_strides(apart, extents, axes, flipped):
    """A filter's canonical strides along k, c, rows and columns of taps; the rows of all planes follow each other.
    flipped: c is before k."""
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


def frames_in_front(frames_ref, img_ref, axes):
    """The number of frames of a volume, 0 without any; refused if they do not fit x. axes: its in_perm."""
    if frames_ref == None:
        return 0
    depth = axes[2]
    refuse(
        rules.frames(frames_ref.shape, img_ref.shape, depth, 1, "img_ref"),
        rules.same("initial_frames", "dtype", frames_ref.dtype, "img_ref", img_ref.dtype),
    )
    require(
        axes[3] > depth and axes[4] > depth,
        f"in_perm={axes}: planes of x and initial_frames must lie outside rows and columns; store D before H and W",
    )
    return frames_ref.shape[depth]


def final_shape_of(geometry, img_ref, depth, wanted):
    """Shape of the final frames, stored as x, with planes on axis `depth`; () without any.

    wanted: False, True (the planes that the next call needs, or all if there are fewer), or their number.
    """
    window = (geometry.planes.taps - 1) * geometry.planes.dilation + 1
    planes = img_ref.shape[depth] + (0 if geometry.frames == None else geometry.frames.count)
    count = wanted
    if isinstance(wanted, bool):
        require(not wanted or window > 1, "return_final_frames=True: a window of one plane needs none; leave it out")
        count = min(window - 1, planes) if wanted else 0
    refuse(rules.frame_count(count, planes))
    return (*img_ref.shape[:depth], count, *img_ref.shape[depth + 1 :]) if count > 0 else ()


def store_final_frames(x_hbm, frames_hbm, final_hbm, depth):
    """Write final_hbm, shaped as x except for its planes on axis `depth`; each core its share."""
    count, size = final_hbm.shape[depth], x_hbm.shape[depth]
    of_x = min(count, size)
    copy_planes(final_hbm, count - of_x, x_hbm, size - of_x, of_x, depth)
    if of_x < count:
        held = count - of_x
        copy_planes(final_hbm, 0, frames_hbm, frames_hbm.shape[depth] - held, held, depth)


def copy_planes(final_hbm, to, source_hbm, first, count, depth):
    """Copy this core's share of each run of `count` planes, from plane `first` of a tensor to plane `to` of another."""
    plane, runs = dense_strides(source_hbm.shape)[depth], size_of(source_hbm.shape[:depth])
    start, elements = share(count * plane, nl.num_programs(), nl.program_id(0))
    if elements > 0:
        dst, src = (
            hbm.ap(pattern=[[hbm.shape[depth] * plane, runs], [1, elements]], offset=at * plane + start)
            for hbm, at in ((final_hbm, to), (source_hbm, first))
        )
        copy(dst, src)
