"""Tensors as NumPy arrays and back, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...problem import DTYPES

_BF16 = DTYPES["bf16"]


def to_numpy(tensor: torch.Tensor) -> Any:
    """A copy of a tensor on the host; ml_dtypes' bfloat16 where torch has its own.

    torch never frees memory again that it has shared with an array, which FSDP does with filters between layers.
    """
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BF16)
    return tensor.numpy()


def from_numpy(array: Any) -> torch.Tensor:
    """The inverse of `to_numpy`."""
    array = np.ascontiguousarray(array)
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
