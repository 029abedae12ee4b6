"""Flops of the operators, two for each multiplication, for torch.utils.flop_counter, counted as torch counts its own.

Each element of y is the sum of one product per tap and input channel; with zeros between the elements of x (transposed
convolutions, lhs_dilation) each element of x is multiplied once by each tap. Gradients of filters are counted as torch
counts them, which ignores groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch.utils.flop_counter import conv_flop_count

from .convolution import Convolution

Shape = Sequence[int]


def of_convolution(asked: Convolution, x: Shape, w: Shape, y: Shape) -> int:
    """Of a convolution, transposed or not."""
    spread = asked.transposed or prod(asked.lhs_dilation) > 1 == prod(asked.stride)
    return conv_flop_count(list(x), list(w), list(y), spread)


def of_filters(x: Shape, g: Shape, size: Shape) -> int:
    """Of gradients of filters of `size`."""
    of_x, of_g, of_size = ([shape[1], shape[0], *shape[2:]] for shape in (x, g, size))
    return conv_flop_count(of_x, of_g, of_size)
