"""Refusals of arguments of convolutions of images and volumes, by name; compile-time code."""

from ..._nki import nl
from ...schedules.tiles import is_pair, require
from .._arguments import FP8, check_perm

#: How fp32 products may be taken: both factors rounded to bf16, or to tf32 by the array, or as pairs of fp16; and how
#: those of 16 bits: of sums of frames and of planes of taps, rounded to fp16 (see `pairs_of_planes`).
PRECISIONS = ("bf16", "tf32", "fp16x3", "winograd")


def check_axes(img_ref, places, axes, dilation="rhs_dilation"):
    """Refuse x, padding, strides and dilations that are not of so many axes; dilation: what that of taps is called."""
    _, stride, rhs_dilation, lhs_dilation = places
    rank, letters = axes + 2, "N, C, D, H, W" if axes == 3 else "N, C, H, W"
    require(
        len(img_ref.shape) == rank, f"img_ref.shape={img_ref.shape}: must have {rank} dims, {letters} before in_perm"
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
        batch_groups == 1, f"batch_group_count={batch_groups}: only 1 is supported; split the batch before the call"
    )
    require(isinstance(groups, int) and groups >= 1, f"feature_group_count={groups}: must be an int of at least 1")


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
    require(C % groups == 0, f"feature_group_count={groups}: must divide C={C}; use a divisor of it")
    require(
        w_in == C,
        f"filter_ref.shape={w_shape}: has {w_in} input channels, x has C={C}; pass [C, K / groups, ...] after "
        f"kern_perm, as torch stores filters of transposed convolutions",
    )
