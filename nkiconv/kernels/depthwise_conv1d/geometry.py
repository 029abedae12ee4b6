"""Arguments of the public kernel, checked and turned into the letters that the algorithms use.

Compile-time code. Nothing below the public kernel sees nki-library's argument names.
"""

from ..._nki import nl
from ...schedules.depthwise import RowGeometry
from ...schedules.tiles import dense_strides, is_pair, picked, require, result_strides
from .._arguments import IDENTITY, check_perm, output_extent


def check_pairs(padding, stride, rhs_dilation, lhs_dilation):
    """Refuse malformed padding, strides and dilations, and anything but the trivial ones on H."""
    require(
        isinstance(padding, tuple) and len(padding) == 2 and is_pair(padding[0]) and is_pair(padding[1]),
        f"padding={padding}: must be ((top, bottom), (left, right)) of ints, as tuples; write a tuple of two pairs",
    )
    require(
        padding[0] == (0, 0),
        f"padding[0]={padding[0]}: H is 1, so H takes no padding; use (0, 0), or conv2d for images",
    )
    check_pair("stride", stride)
    check_pair("rhs_dilation", rhs_dilation)
    check_pair("lhs_dilation", lhs_dilation)


def check_pair(name, value):
    """Refuse a stride or dilation that is not (1, positive int)."""
    require(is_pair(value), f"{name}={value}: must be a tuple of two ints, (H, W); write (1, w)")
    require(value[0] == 1, f"{name}[0]={value[0]}: H is 1, so only 1 is accepted on H; use (1, {value[1]})")
    require(value[1] >= 1, f"{name}[1]={value[1]}: must be at least 1; use a positive int")


def check_groups(C, feature_group_count, batch_group_count):
    """Refuse group counts that are not depthwise."""
    require(
        batch_group_count == 1,
        f"batch_group_count={batch_group_count}: only 1 is supported; split the batch before the call",
    )
    require(
        feature_group_count == 1 or feature_group_count == C,
        f"feature_group_count={feature_group_count}: must be 1 (read as C) or C={C}; this kernel is depthwise",
    )


def check_tensors(img_ref, filter_ref, in_perm, kern_perm, out_perm):
    """Refuse ranks, permutations and dtypes that the kernel does not take."""
    require(len(img_ref.shape) == 4, f"img_ref.shape={img_ref.shape}: must have 4 dims, N, C, 1, W before in_perm")
    require(len(filter_ref.shape) == 4, f"filter_ref.shape={filter_ref.shape}: must have 4 dims, C, 1, 1, S")
    check_perm("in_perm", in_perm, 4)
    check_perm("kern_perm", kern_perm, 4)
    check_perm("out_perm", out_perm, 4)
    x_dtype, w_dtype = img_ref.dtype, filter_ref.dtype
    narrow = (nl.bfloat16, nl.float16)
    require(
        (x_dtype in narrow and w_dtype in narrow) or (x_dtype == nl.float32 and w_dtype == nl.float32),
        f"img_ref.dtype={x_dtype}, filter_ref.dtype={w_dtype}: accepted are float32 for both, or bfloat16 and float16 "
        f"in any combination; cast one of them",
    )


def read_geometry(img_ref, filter_ref, places, group_counts, perms, flipped=False):
    """Check every argument of the public kernel and return (RowGeometry, shape of y as stored).

    places: (padding, stride, rhs_dilation, lhs_dilation); group_counts: (feature_group_count, batch_group_count);
    perms: (in_perm, kern_perm, out_perm); flipped: see there.
    """
    padding, stride, rhs_dilation, lhs_dilation = places
    in_perm, kern_perm, out_perm = perms
    check_tensors(img_ref, filter_ref, in_perm, kern_perm, out_perm)
    check_pairs(padding, stride, rhs_dilation, lhs_dilation)
    in_axes = IDENTITY if in_perm == None else in_perm
    kern_axes = IDENTITY if kern_perm == None else kern_perm
    out_axes = IDENTITY if out_perm == None else out_perm

    x_shape, w_shape = img_ref.shape, filter_ref.shape
    N, C, H, W = picked(x_shape, in_axes)
    require(H == 1, f"img_ref H={H}: must be 1 ([N, C, 1, W] after in_perm); use conv2d for images")
    w_channels, w_in, R, S = picked(w_shape, kern_axes)
    require(
        w_in == 1 and R == 1,
        f"filter_ref.shape={w_shape}: must be [C, 1, 1, S] after kern_perm, got [{w_channels}, {w_in}, {R}, {S}]",
    )
    require(w_channels == C, f"filter_ref C={w_channels}: must equal the image's C={C}; pass one filter a channel")
    check_groups(C, group_counts[0], group_counts[1])

    pad_left, pad_right = padding[1]
    Q = output_extent(W, S, stride[1], rhs_dilation[1], lhs_dilation[1], pad_left, pad_right)
    require(
        Q >= 1,
        f"Q={Q}: output width must be at least 1 (W={W} dilated by {lhs_dilation[1]}, padded {pad_left}+{pad_right}, "
        f"window {(S - 1) * rhs_dilation[1] + 1}); pad the input or shorten the filter",
    )

    x_strides, w_strides = picked(dense_strides(x_shape), in_axes), picked(dense_strides(w_shape), kern_axes)
    y_shape = picked((N, C, 1, Q), out_axes)
    y_strides = result_strides(y_shape, out_axes)
    geometry = RowGeometry(
        N=N,
        C=C,
        W=W,
        S=S,
        Q=Q,
        stride=stride[1],
        dilation=rhs_dilation[1] if S > 1 else 1,
        lhs_dilation=lhs_dilation[1],
        pad_left=pad_left,
        pad_right=pad_right,
        x_n=x_strides[0],
        x_c=x_strides[1],
        x_w=x_strides[3],
        w_c=w_strides[0],
        w_s=w_strides[3],
        y_n=y_strides[0],
        y_c=y_strides[1],
        y_q=y_strides[3],
        itemsize=4 if img_ref.dtype == nl.float32 else 2,
        flipped=flipped and S > 1,
    )
    return geometry, y_shape
