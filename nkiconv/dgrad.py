"""Which kernel finds the gradient of a convolution's x: the one rule, for problems and for torch's autograd."""


def is_dgrad_transposed(lhs_dilation: tuple[int, ...]) -> bool:
    """Whether x's gradient is a transposed convolution, which takes w as it is; one with strides takes no such w."""
    return max(lhs_dilation) == 1
