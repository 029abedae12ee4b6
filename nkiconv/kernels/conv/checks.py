"""Refusals of arguments of convolutions of images and volumes, by `nkiconv.rules`; compile-time code."""

from ... import rules
from ...schedules.tiles import require
from .._arguments import NAMES, check_tensors, refuse


def check_axes(img_ref, places, axes, dilation="rhs_dilation"):
    """Refuse x, padding, strides and dilations that are not of so many axes; dilation: what that of taps is called."""
    padding, stride, rhs_dilation, lhs_dilation = places
    letters = "N, C, D, H, W" if axes == 3 else "N, C, H, W"
    refuse(rules.rank("img_ref", img_ref.shape, letters, " before in_perm"), rules.padding(padding, axes, alone=False))
    for name, value in (("stride", stride), (dilation, rhs_dilation), ("lhs_dilation", lhs_dilation)):
        refuse(rules.places(name, value, axes, alone=False))


def places_of_transposed(img_ref, filter_ref, numbers, kern_perm, axes):
    """(padding, stride, rhs_dilation, lhs_dilation) of the convolution that a transposed one is.

    numbers: its (stride, padding, output_padding, dilation), as torch has them, padding in pairs.
    """
    stride, padding, more, dilation = numbers
    ones = (1, 1) if axes == 2 else (1, 1, 1)
    check_axes(img_ref, (padding, ones, dilation, ones), axes, "dilation")
    refuse(rules.places("stride", stride, axes, alone=False))
    refuse(rules.places("output_padding", more, axes, alone=False, least=0))
    refuse(rules.permutation("kern_perm", kern_perm, axes + 2))
    letters = "C, K / groups, R, S" if axes == 2 else "C, K / groups, T, R, S"
    refuse(rules.rank("filter_ref", filter_ref.shape, letters), rules.output_padding(more, stride, dilation, axes))
    around = ()
    for index in range(axes):
        axis = index + 2 if kern_perm == None else kern_perm[index + 2]
        window = (filter_ref.shape[axis] - 1) * dilation[index]
        before, after = padding[index]
        around = around + ((window - before, window - after + more[index]),)
    return around, ones, dilation, stride


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


def check_precision(precision, dtype):
    """Refuse a precision that there is none of, or that says nothing of a dtype."""
    refuse(rules.precision(precision), rules.precision_fits(precision, dtype, "img_ref and filter_ref"))


def check_blocks(w_shape, C):
    """Refuse a packed filter of volumes of other channels than x's."""
    require(
        w_shape[0] % C == 0,
        f"filter_ref.shape={w_shape}: a packed filter of volumes is [K / kn * C, T, R, S, kn], x has C={C}; pack one "
        f"of as many channels",
    )


def check_groups(w_shape, w_in, C, K, groups, flipped=False):
    """Refuse groups that do not divide the channels, and filters of other channels than x's; flipped: of transposed
    convolutions."""
    refuse(
        rules.divides("feature_group_count", groups, C=C, K=K),
        rules.filter_channels(w_shape, w_in, C, groups, transposed=flipped, names=NAMES, order=" after kern_perm"),
    )
