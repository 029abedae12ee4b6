"""Tensors where torch takes numbers are refused by name, in short texts."""

from __future__ import annotations

import pytest
import torch

import nkiconv.pytorch as nt

X = torch.ones(2, 8, 40, 40)
FUNCTIONS = {
    "conv2d": ("stride", "padding", "dilation", "groups", "activation", "residual_position", "strict_nonfinite"),
    "conv_transpose2d": ("stride", "padding", "output_padding", "dilation", "groups", "activation"),
}


@pytest.mark.parametrize(
    ("name", "argument"), [(name, one) for name, arguments in FUNCTIONS.items() for one in arguments]
)
def test_a_tensor_is_no_number(name, argument):
    with pytest.raises(ValueError, match=rf"{argument}=Tensor \(2, 8, 40, 40\) torch.float32: ") as found:
        getattr(nt, name)(X, X, **{argument: X})
    assert len(str(found.value)) < 500
