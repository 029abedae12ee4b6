"""Derivatives in float64 against differences, as torch checks its own."""

from torch.autograd import gradcheck, gradgradcheck


def assert_derivatives(function, leaves, **more):
    """First and second derivatives by every leaf, along random directions: in a tenth of the time of whole matrices."""
    assert gradcheck(function, leaves, fast_mode=True, **more)
    assert gradgradcheck(function, leaves, fast_mode=True)
