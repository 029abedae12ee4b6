"""Sizes and values of operands as the engines see them: fp32, cast on write."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import Array, from_fp32, to_fp32
from ..tensor import NkiTensor


def first_partition(tensor: NkiTensor) -> int:
    """Partition that an on-chip view starts at: within its storage, and of the core where it has an address."""
    address = tensor.storage.info.address
    return tensor.offset // tensor.partition_stride() + (address[0] if address else 0)


def free_size(tensor: NkiTensor) -> int:
    """Elements a partition."""
    return tensor.size // tensor.shape[0]


def scalar_values(value: Any, ndim: int) -> Any:
    """A scalar operand as fp32 that broadcasts over the free dims of an `ndim`-dimensional array."""
    if type(value) is not NkiTensor:
        return np.float32(value)
    column = to_fp32(value.storage.read(value))
    return column.reshape(value.shape[0], *(1,) * (ndim - 1))


def read_fp32(tensor: NkiTensor) -> Array:
    """An operand as the engines see it: fp32, in its own shape."""
    return to_fp32(tensor.storage.read(tensor))


def rows(values: Array) -> Array:
    """[P, F...] as [P, F]."""
    return values.reshape(len(values), -1)


def shaped(values: Array, like: NkiTensor) -> Array:
    """Values in another shape with the same elements in the same order."""
    return values if values.shape == like.shape else values.reshape(like.shape)


def write(dst: NkiTensor, values: Array) -> None:
    """Store values of dst's dtype, in its shape."""
    dst.storage.write(dst, shaped(values, dst))


def write_fp32(dst: NkiTensor, values: Array) -> None:
    """Cast an fp32 result to dst's dtype and store it."""
    out = values if dst.dtype == "float32" else from_fp32(np.asarray(values, dtype=np.float32), dst.dtype)
    write(dst, out)
