"""Which kernel finds the gradient of a convolution's x: the rules, for problems and for torch's autograd."""

#: Taps up to which conv_transpose2d is the faster for depthwise rows with zeros between elements (modelled us, its and
#: depthwise_conv1d's, by `plan(problem, operation=)`; N = 8, 512 channels of 1,000, strides of 2: 4 taps 46 and 63, 64
#: taps 428 and 775, 256 taps 1,772 and 3,386); of more, its instructions may be too many.
SPREAD_TAPS = 512


def is_dgrad_transposed(lhs_dilation: tuple[int, ...]) -> bool:
    """Whether x's gradient is a transposed convolution, which takes w as it is; one with strides takes no such w."""
    return max(lhs_dilation) == 1


def is_dgrad_of_rows(stride: int, taps: int) -> bool:
    """Whether x's gradient of depthwise rows is depthwise_conv1d's, as the transposed convolution of that stride is."""
    return stride == 1 or taps > SPREAD_TAPS
