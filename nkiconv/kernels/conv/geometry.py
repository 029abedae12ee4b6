"""Arguments of conv2d, checked and turned into the letters that the kernel uses.

Compile-time code in NKI's Python subset. Nothing below the public kernel sees the arguments' own names.
"""

from dataclasses import dataclass

from ..._nki import nl
from .._arguments import FP8, IDENTITY, check_perm, output_extent
from .._axis import outputs_met
from .._tiles import INSTRUCTIONS_MAX, dense_strides_4d, div_ceil, is_pair, position_in, require

#: How fp32 products may be taken: both factors rounded to bf16, or to tf32 by the array, or as pairs of fp16.
PRECISIONS = ("bf16", "tf32", "fp16x3")


@dataclass
class Axis(nl.NKIObject):
    """Planes, rows or columns: size of x, taps of w, outputs, and how they meet."""

    size: int
    taps: int
    out: int
    stride: int
    dilation: int
    lhs_dilation: int
    before: int


@dataclass
class Geometry(nl.NKIObject):
    """One convolution on three axes: y[k, z, p, q] = sum over c, t, r, s of

        w[k, c, t, r, s] * xp[g * C / groups + c, z', p', q'],    g = k // (K / groups),

    p' = p * stride + r * dilation - before on the rows' axis, z' and q' the same on those of the planes and columns. xp
    is x with lhs_dilation - 1 zeros between neighbours, and zeros outside. The images of a 2-d problem are planes with
    one tap, each an output of its own; rows of taps of several planes follow each other. Strides are in elements of the
    HBM tensors as stored, so permuted layouts need no copy; where channels lie side by side, elements that no tap meets
    are left out.
    """

    C: int
    K: int
    groups: int
    planes: Axis
    rows: Axis
    columns: Axis
    #: elements between neighbours in x along channels, planes, rows and columns; in w along k, c, rows and columns of
    #: taps; in y and in the residual, which is not pooled, along k, planes, rows and columns
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
    #: how fp32 products are taken: None, or one of PRECISIONS
    precision: object


def met(axis, tap, first, count):
    """Outputs first .. first+count-1 that see an element of x at a tap: what `_axis.outputs_met` returns."""
    shift = tap * axis.dilation - axis.before
    return outputs_met(axis.size, axis.stride, axis.lhs_dilation, shift, first, count)


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


def check_pair(name, value, least):
    """Refuse what is not a pair of ints of at least `least`."""
    require(
        is_pair(value) and value[0] >= least and value[1] >= least,
        f"{name}={value}: must be a tuple (height, width) of ints of at least {least}; use such a pair",
    )


def check_arguments(img_ref, filter_ref, places, group_counts, perms):
    """Refuse malformed arguments by name."""
    padding, stride, rhs_dilation, lhs_dilation = places
    groups, batch_groups = group_counts
    require(len(img_ref.shape) == 4, f"img_ref.shape={img_ref.shape}: must have 4 dims, N, C, H, W before in_perm")
    require(
        len(filter_ref.shape) in (4, 5),
        f"filter_ref.shape={filter_ref.shape}: must have 4 dims, K, C, R, S, or 5 as pack_filter returns them",
    )
    require(
        len(filter_ref.shape) == 4 or (perms[1] == None and groups == 1),
        f"filter_ref.shape={filter_ref.shape}, kern_perm={perms[1]}, feature_group_count={groups}: a packed filter has "
        f"its own order and no groups; pass it plain",
    )
    check_perm("in_perm", perms[0])
    check_perm("kern_perm", perms[1])
    check_perm("out_perm", perms[2])
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
        isinstance(padding, tuple) and len(padding) == 2 and is_pair(padding[0]) and is_pair(padding[1]),
        f"padding={padding}: must be ((top, bottom), (left, right)) of ints, as tuples; write a tuple of two pairs",
    )
    check_pair("stride", stride, 1)
    check_pair("rhs_dilation", rhs_dilation, 1)
    check_pair("lhs_dilation", lhs_dilation, 1)
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
    require(
        precision == None or dtype == nl.float32,
        f"precision={precision}: img_ref and filter_ref are {dtype}, whose products are exact; drop it",
    )


def read_axis(name, size, taps, padding, stride, dilation, lhs_dilation):
    """An Axis; refused where it has no output."""
    out = output_extent(size, taps, stride, dilation, lhs_dilation, padding[0], padding[1])
    require(
        out >= 1,
        f"{name}={out}: output extent must be at least 1 (size {size} dilated by {lhs_dilation}, padded "
        f"{padding[0]}+{padding[1]}, window {(taps - 1) * dilation + 1}); pad the input or shorten the filter",
    )
    return Axis(
        size=size, taps=taps, out=out, stride=stride, dilation=dilation, lhs_dilation=lhs_dilation, before=padding[0]
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
    )
    return found, axis.stride


def read_geometry(img_ref, filter_ref, places, group_counts, perms, precision, pool):
    """Check the arguments and return (Geometry, shapes of y and of a residual as stored).

    places: (padding, stride, rhs_dilation, lhs_dilation); group_counts: (feature_group_count, batch_group_count);
    perms: (in_perm, kern_perm, out_perm).
    """
    padding, stride, rhs_dilation, lhs_dilation = places
    check_arguments(img_ref, filter_ref, places, group_counts, perms)
    check_precision(precision, img_ref.dtype)
    in_axes = IDENTITY if perms[0] == None else perms[0]
    kern_axes = IDENTITY if perms[1] == None else perms[1]
    out_axes = IDENTITY if perms[2] == None else perms[2]
    x_shape, w_shape = img_ref.shape, filter_ref.shape
    N, C, H, W = picked(x_shape, in_axes)
    packed = w_shape[4] if len(w_shape) == 5 else 0
    if packed > 0:
        K, w_in, R, S = w_shape[0] * packed, w_shape[1], w_shape[2], w_shape[3]
    else:
        K, w_in, R, S = picked(w_shape, kern_axes)
    groups = group_counts[0]
    require(
        C % groups == 0 and K % groups == 0,
        f"feature_group_count={groups}: must divide C={C} and K={K}; use a divisor of both",
    )
    require(
        w_in * groups == C,
        f"filter_ref.shape={w_shape}: has {w_in} input channels, C / groups = {C // groups} are needed; pass [K, C / "
        f"groups, R, S] after kern_perm",
    )
    rows = read_axis("P", H, R, padding[0], stride[0], rhs_dilation[0], lhs_dilation[0])
    columns = read_axis("Q", W, S, padding[1], stride[1], rhs_dilation[1], lhs_dilation[1])
    x_strides = picked(dense_strides_4d(x_shape), in_axes)
    h_step, w_step = 1, 1
    if C > 1 and x_strides[1] == 1:
        rows, h_step = thinned(rows)
        columns, w_step = thinned(columns)
    check_pool(pool, rows.out, columns.out)
    y_shape = picked((N, K, rows.out // pool[0], columns.out // pool[1]), out_axes)
    r_shape = picked((N, K, rows.out, columns.out), out_axes)
    geometry = Geometry(
        C=C,
        K=K,
        groups=groups,
        planes=Axis(size=N, taps=1, out=N, stride=1, dilation=1, lhs_dilation=1, before=0),
        rows=rows,
        columns=columns,
        x_strides=(x_strides[1], x_strides[0], x_strides[2] * h_step, x_strides[3] * w_step),
        w_strides=picked(dense_strides_4d((K, w_in, R, S) if packed > 0 else w_shape), kern_axes),
        y_strides=result_strides(y_shape, out_axes),
        r_strides=result_strides(r_shape, out_axes),
        packed=packed,
        itemsize=bytes_of(img_ref.dtype, precision),
        hbm_itemsize=bytes_of(img_ref.dtype, None),
        fast=img_ref.dtype != nl.float32 or precision != None,
        precision=precision,
    )
    return geometry, y_shape, r_shape


def bytes_of(dtype, precision):
    """Bytes of an element of x and w on chip."""
    if dtype in FP8:
        return 1
    return 4 if dtype == nl.float32 and precision != "bf16" else 2


def picked(values, axes):
    """Four values in the order of some axes: of a canonical shape that as stored, of strides the canonical ones."""
    return (values[axes[0]], values[axes[1]], values[axes[2]], values[axes[3]])


def result_strides(shape, axes):
    """Elements between neighbours along k, n, p, q of a tensor stored with this shape and permutation."""
    strides = dense_strides_4d(shape)
    return (
        strides[position_in(axes, 1)],
        strides[position_in(axes, 0)],
        strides[position_in(axes, 2)],
        strides[position_in(axes, 3)],
    )


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
