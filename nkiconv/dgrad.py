"""Which kernel finds the gradient of a convolution's x: the one rule, for problems and for torch's autograd."""

#: Channels of y of which copies may be beside each other on the array: kernels of these read taps forwards.
FEW_CHANNELS = 64


def is_dgrad_transposed(
    channels: tuple[int, int, int], stride: tuple[int, ...], lhs_dilation: tuple[int, ...], images: bool
) -> bool:
    """Whether x's gradient is taken as a transposed convolution, which multiplies no zeros and takes w as it is.

    Of strides, and of many channels of images; not where each channel has filters of its own. channels: K, C, groups.
    """
    K, C, groups = channels
    many = images and groups == 1 and K > FEW_CHANNELS
    return (many or max(stride) > 1) and max(lhs_dilation) == 1 and (groups < C or groups == 1)
