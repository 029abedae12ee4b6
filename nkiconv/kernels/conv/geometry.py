"""Arguments of conv2d and conv3d, checked and turned into the letters that the kernel uses.

Compile-time code in NKI's Python subset. Nothing below the public kernel sees the arguments' own names.
"""

from dataclasses import dataclass

from ..._nki import nl
from .._arguments import FP8, check_perm, output_extent
from .._axis import outputs_met
from .._tiles import INSTRUCTIONS_MAX, dense_strides, div_ceil, is_pair, position_in, require
from .frames import Frames, frames_in_front

#: How fp32 products may be taken: both factors rounded to bf16, or to tf32 by the array, or as pairs of fp16; and how
#: those of 16 bits: of sums of frames and of planes of taps, rounded to fp16 (see `pairs_of_planes`).
PRECISIONS = ("bf16", "tf32", "fp16x3", "winograd")


@dataclass
class Axis(nl.NKIObject):
    """Planes, rows or columns: size of x, taps of w, outputs, and how they meet.

    images: how many there are one after the other, as planes of several volumes are; size and out are of all. What is
    worked on at once never has planes of two, but where images is 1.
    """

    size: int
    taps: int
    out: int
    stride: int
    dilation: int
    lhs_dilation: int
    before: int
    images: int


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
    #: taps; in y and in the residual, which is not pooled, along k, planes, rows and columns. Of x, y, residual, where
    #: planes of several volumes are not evenly spaced, behind them those between volumes, and the planes of one
    x_strides: tuple
    w_strides: tuple
    y_strides: tuple
    r_strides: tuple
    #: output channels of a block of a packed filter, 0: the filter is plain
    packed: int
    #: bytes of an element of x and w on chip and in HBM, and whether the array takes products of them at the rate of
    #: 16 bits; two of fp8 in that time where it can (nki.isa's double_row)
    itemsize: int
    hbm_itemsize: int
    fast: bool
    #: how products are taken: None, or one of PRECISIONS
    precision: object
    #: the planes' own Axis where C counts each input channel for each plane of taps (see `planes`), of pairs of planes
    #: the rows' for each row of taps, or None
    depth: object
    #: whether the filter is one of a transposed convolution: taps backwards, and where there are several groups
    #: [C, K / groups, ...], its strides those along a group's k and along all c (see `flip`)
    flipped: bool
    #: Frames that precede the planes of x's tensor, counted in planes.size, or None
    frames: object
    #: the Geometry of what is asked for, where the planes' Axis is that of pairs of planes of y, or None
    direct: object


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
        r_strides=geometry.r_strides,
        packed=geometry.packed,
        itemsize=geometry.itemsize,
        hbm_itemsize=geometry.hbm_itemsize,
        fast=geometry.fast,
        precision=geometry.precision,
        depth=geometry.depth,
        flipped=geometry.flipped,
        frames=geometry.frames,
        direct=geometry.direct,
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


def num_taps(geometry):
    """Taps of a filter for an input channel."""
    return filter_rows(geometry) * geometry.columns.taps


def span(axis, first, count):
    """(first element, how many) of x that any tap meets at outputs first .. first+count-1; (0, 0) if none does."""
    low, high = axis.size, -1
    for tap in range(axis.taps):
        found = met(axis, tap, first, count)
        if found[2] > 0:
            low = min(low, found[3])
            high = max(high, found[3] + (found[2] - 1) * found[4])
    return (0, 0) if high < low else (low, high - low + 1)


def check_axes(img_ref, places, axes, dilation="rhs_dilation"):
    """Refuse x, padding, strides and dilations that are not of so many axes; dilation: what that of taps is called."""
    _, stride, rhs_dilation, lhs_dilation = places
    rank, letters = axes + 2, "N, C, D, H, W" if axes == 3 else "N, C, H, W"
    require(
        len(img_ref.shape) == rank,
        f"img_ref.shape={img_ref.shape}: must have {rank} dims, {letters} before in_perm",
    )
    check_padding(places[0], axes)
    check_places("stride", stride, axes)
    check_places(dilation, rhs_dilation, axes)
    check_places("lhs_dilation", lhs_dilation, axes)


def check_places(name, value, axes, least=1):
    """Refuse what is not as many ints of at least `least` as there are axes."""
    fits = isinstance(value, tuple) and len(value) == axes
    for index in range(axes if fits else 0):
        fits = fits and isinstance(value[index], int) and value[index] >= least
    letters = "(height, width)" if axes == 2 else "(depth, height, width)"
    require(fits, f"{name}={value}: must be a tuple {letters} of ints of at least {least}; use such a tuple")


def places_of_transposed(img_ref, filter_ref, numbers, kern_perm, axes):
    """(padding, stride, rhs_dilation, lhs_dilation) of the convolution that a transposed one is.

    numbers: its (stride, padding, output_padding, dilation), as torch has them, padding in pairs.
    """
    stride, padding, more, dilation = numbers
    ones = (1, 1) if axes == 2 else (1, 1, 1)
    check_axes(img_ref, (padding, ones, dilation, ones), axes, "dilation")
    check_places("stride", stride, axes)
    check_places("output_padding", more, axes, 0)
    check_perm("kern_perm", kern_perm, axes + 2)
    require(
        len(filter_ref.shape) == axes + 2,
        f"filter_ref.shape={filter_ref.shape}: must have {axes + 2} dims, C, K / groups and the taps",
    )
    around = ()
    for index in range(axes):
        require(
            more[index] < max(stride[index], dilation[index]),
            f"output_padding={more}: must be below stride={stride} or dilation={dilation} on each axis; use less",
        )
        axis = index + 2 if kern_perm == None else kern_perm[index + 2]
        window = (filter_ref.shape[axis] - 1) * dilation[index]
        before, after = padding[index]
        around = around + ((window - before, window - after + more[index]),)
    return around, ones, dilation, stride


def check_padding(padding, axes):
    """Refuse what is not as many pairs of ints as there are axes."""
    fits = isinstance(padding, tuple) and len(padding) == axes
    for index in range(axes if fits else 0):
        fits = fits and is_pair(padding[index])
    sides = "((top, bottom), (left, right))" if axes == 2 else "((front, back), (top, bottom), (left, right))"
    require(fits, f"padding={padding}: must be {sides} of ints, as tuples; write a tuple of {axes} pairs")


def check_arguments(img_ref, filter_ref, group_counts, perms, axes, packed):
    """Refuse malformed arguments by name."""
    groups, batch_groups = group_counts
    rank, letters = axes + 2, "K, C, T, R, S" if axes == 3 else "K, C, R, S"
    require(
        len(filter_ref.shape) == (5 if packed else rank),
        f"filter_ref.shape={filter_ref.shape}: must have {rank} dims, {letters}, or be packed as pack_filter does it",
    )
    require(
        not packed or (perms[1] == None and groups == 1),
        f"filter_ref.shape={filter_ref.shape}, kern_perm={perms[1]}, feature_group_count={groups}: a packed filter has "
        f"its own order and no groups; pass it plain",
    )
    check_perm("in_perm", perms[0], rank)
    check_perm("kern_perm", perms[1], rank)
    check_perm("out_perm", perms[2], rank)
    narrow = (nl.bfloat16, nl.float16)
    x_dtype, w_dtype = img_ref.dtype, filter_ref.dtype
    require(
        (x_dtype in narrow and w_dtype in narrow)
        or (x_dtype in FP8 and w_dtype in FP8)
        or (x_dtype == nl.float32 and w_dtype == nl.float32),
        f"img_ref.dtype={x_dtype}, filter_ref.dtype={w_dtype}: accepted are float32 for both, or bfloat16 and float16 "
        f"in any combination, or float8_e4m3 and float8_e5m2 in any; cast one of them",
    )
    require(
        batch_groups == 1,
        f"batch_group_count={batch_groups}: only 1 is supported; split the batch before the call",
    )
    require(
        isinstance(groups, int) and groups >= 1,
        f"feature_group_count={groups}: must be an int of at least 1",
    )


def check_precision(precision, dtype):
    """Refuse a precision that there is none of, or that says nothing of a dtype."""
    require(
        precision == None or precision in PRECISIONS,
        f"precision={precision}: accepted are None and {PRECISIONS}; use one of them",
    )
    if precision == "winograd":
        require(
            dtype == nl.bfloat16 or dtype == nl.float16,
            f"precision=winograd: img_ref and filter_ref are {dtype}, must be bfloat16 or float16; cast them",
        )
        return
    require(
        precision == None or dtype == nl.float32,
        f"precision={precision}: img_ref and filter_ref are {dtype}, whose products are exact; drop it",
    )


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
    return Axis(
        size=size, taps=taps, out=out, stride=step, dilation=apart, lhs_dilation=spread, before=before, images=1
    )


def thinned(axis):
    """(Axis, step) without the elements between those that an only tap meets: each step-th one, where these begin with
    the first."""
    shift = axis.before if axis.before >= 0 else -axis.before
    if axis.taps > 1 or axis.lhs_dilation > 1 or shift % axis.stride > 0:
        return axis, 1
    found = Axis(
        size=div_ceil(axis.size, axis.stride),
        taps=1,
        out=axis.out,
        stride=1,
        dilation=1,
        lhs_dilation=1,
        before=axis.before // axis.stride,
        images=1,
    )
    return found, axis.stride


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


def images_axis(images):
    """The planes' Axis of images: each an output of its own."""
    return Axis(size=images, taps=1, out=images, stride=1, dilation=1, lhs_dilation=1, before=0, images=1)


def sees_itself(axis):
    """Whether each output is of the element of its own number, and no other."""
    return axis.taps == 1 and axis.stride == 1 and axis.before == 0 and axis.lhs_dilation == 1 and axis.out == axis.size


def read_geometry(
    img_ref, filter_ref, places, group_counts, perms, precision, pool, packed=False, flipped=False, frames_ref=None
):
    """Check the arguments and return (Geometry, shapes of y and of a residual as stored).

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
    check_pool(pool, rows.out, columns.out)
    depth = (planes.out,) if axes == 3 else ()
    y_shape = picked((N, K) + depth + (rows.out // pool[0], columns.out // pool[1]), out_axes)
    r_shape = picked((N, K) + depth + (rows.out, columns.out), out_axes)
    by_plane = (stored[2] * d_step,) if axes == 3 else ()
    x_apart = (stored[0], stored[1]) + by_plane + (stored[last - 1] * h_step, stored[last] * w_step)
    y_apart, r_apart = result_strides(y_shape, out_axes), result_strides(r_shape, out_axes)
    x_strides, y_strides, r_strides = by_channel(x_apart, 0), by_channel(y_apart, 0), by_channel(r_apart, 0)
    volumes = 0
    if axes == 3 and N > 1:
        even = held == 0 and x_apart[0] == planes.size * x_apart[2] and y_apart[0] == planes.out * y_apart[2]
        merged = even and sees_itself(planes)
        volumes = 0 if merged else planes.size - held
        x_strides = by_channel(x_apart, volumes)
        y_strides = by_channel(y_apart, 0 if merged else planes.out)
        r_strides = by_channel(r_apart, 0 if merged else planes.out)
        planes = images_axis(N * planes.out) if merged else repeated(planes, N)
    frames = None
    if held > 0:
        apart = picked(dense_strides(frames_ref.shape), in_axes)
        apart = (apart[0], apart[1], apart[2], apart[3] * h_step, apart[4] * w_step)
        frames = Frames(count=held, strides=by_channel(apart, held if volumes > 0 else 0))
    geometry = Geometry(
        C=C,
        K=K,
        groups=groups,
        planes=planes,
        rows=rows,
        columns=columns,
        x_strides=x_strides,
        w_strides=tap_strides(picked(dense_strides(w_stored), kern_axes), w_extents, kern_axes, flipped),
        y_strides=y_strides,
        r_strides=r_strides,
        packed=each,
        itemsize=bytes_of(img_ref.dtype, precision),
        hbm_itemsize=bytes_of(img_ref.dtype, None),
        fast=img_ref.dtype != nl.float32 or precision != None,
        precision=precision,
        depth=None,
        flipped=flipped,
        frames=frames,
        direct=None,
    )
    return geometry, y_shape, r_shape


def filter_as_stored(w_shape, packed, axes, C):
    """(shape of a filter before kern_perm, output channels of a block of a packed one, or 0)."""
    if not packed:
        return w_shape, 0
    each = w_shape[4]
    if axes == 2:
        return (w_shape[0] * each, w_shape[1], w_shape[2], w_shape[3]), each
    check_blocks(w_shape, C)
    return (w_shape[0] // C * each, C, w_shape[1], w_shape[2], w_shape[3]), each


def check_blocks(w_shape, C):
    """Refuse a packed filter of volumes of other channels than x's."""
    require(
        w_shape[0] % C == 0,
        f"filter_ref.shape={w_shape}: a packed filter of volumes is [K / kn * C, T, R, S, kn], x has C={C}; pack one "
        f"of as many channels",
    )


def check_groups(w_shape, w_in, C, K, groups):
    """Refuse groups that do not divide the channels, and filters of other channels than x's."""
    require(
        C % groups == 0 and K % groups == 0,
        f"feature_group_count={groups}: must divide C={C} and K={K}; use a divisor of both",
    )
    taps = "R, S" if len(w_shape) < 5 else "..."
    require(
        w_in * groups == C,
        f"filter_ref.shape={w_shape}: has {w_in} input channels, C / groups = {C // groups} are needed; pass [K, C / "
        f"groups, {taps}] after kern_perm",
    )


def check_flipped(w_shape, w_in, C, groups):
    """Refuse groups that do not divide the channels, and filters of transposed convolutions of others than x's."""
    require(
        C % groups == 0,
        f"feature_group_count={groups}: must divide C={C}; use a divisor of it",
    )
    require(
        w_in == C,
        f"filter_ref.shape={w_shape}: has {w_in} input channels, x has C={C}; pass [C, K / groups, ...] after "
        f"kern_perm, as torch stores filters of transposed convolutions",
    )


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


def picked(values, axes):
    """Values in the order of some axes: of a canonical shape that as stored, of strides the canonical ones."""
    found = ()
    for index in range(len(axes)):
        found = found + (values[axes[index]],)
    return found


def result_strides(shape, axes):
    """Canonical strides of a tensor stored with this shape and permutation."""
    stored, found = dense_strides(shape), ()
    for index in range(len(axes)):
        found = found + (stored[position_in(axes, index)],)
    return found


def check_pool(pool, P, Q):
    """Refuse windows that do not fill the outputs."""
    require(
        is_pair(pool) and pool[0] >= 1 and pool[1] >= 1 and P % pool[0] == 0 and Q % pool[1] == 0,
        f"pool={pool}: must be (height, width) that divide P={P} and Q={Q}; crop by padding, or pool the result",
    )


def instructions_refusal(geometry, algorithm, count):
    """Why a core's `count` instructions are too many, and a cut with which they are not; "" where they are not."""
    if count <= INSTRUCTIONS_MAX:
        return ""
    calls = div_ceil(count, INSTRUCTIONS_MAX)
    remedy = f"split K over {calls} calls, or use larger tiles"
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
