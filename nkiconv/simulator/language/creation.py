"""New tensors: uninitialised, filled, or like another one."""

from __future__ import annotations

import math
from typing import Any

from .. import hardware as hw
from .. import isa
from ..dtypes import DTYPES
from ..isa import check
from ..memory import PSUM, MemoryRegion
from ..objects import as_int, dtype_name
from ..program import current
from ..rules import fail
from ..tensor import NkiTensor
from .memories import is_on_chip, sbuf

#: Bytes of the SBUF row that fills an HBM tensor: long DMA runs, little of SBUF.
_FILL_BYTES = 16384


def ndarray(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "", address: Any = None) -> NkiTensor:
    """A new uninitialised tensor.

    Args:
        shape: positive ints; on chip dim 0 is the partition dim, at most 128.
        dtype: a dtype of this module. buffer: nl.sbuf (default), psum, hbm, private_hbm or shared_hbm.
        address: optional (first partition, byte in the partition) on chip.
    Raises NkiError (NKI001-NKI005, NKI018-NKI020).
    """
    program = current()
    if type(buffer) is not MemoryRegion:
        fail("NKI005", f"buffer={buffer!r}")
    dtype = dtype_name(dtype)
    sizes = checked_shape(shape, buffer)
    if is_on_chip(buffer):
        _check_fits(sizes, dtype, buffer, address)
    elif address is not None:
        fail("NKI020", f"address={address!r} in {buffer.name}; only on chip")
    return program.allocate(sizes, dtype, buffer, name, tuple(address) if address is not None else None)


def require_tiles(**operands: Any) -> None:
    """Every operand is a tensor in SBUF or PSUM (NKI040)."""
    for name, operand in operands.items():
        if type(operand) is not NkiTensor or not operand.on_chip:
            fail("NKI040", f"{name} is not a tile in SBUF or PSUM", **{name: operand})


def checked_shape(shape: Any, buffer: MemoryRegion) -> tuple[int, ...]:
    """A new tensor's shape as a tuple (NKI002-NKI004)."""
    if not isinstance(shape, (tuple, list)):
        fail("NKI002", f"shape={shape!r} is not a tuple")
    sizes = tuple(as_int(n, "size", "NKI002") for n in shape)
    if len(sizes) < (2 if is_on_chip(buffer) else 1) or min(sizes) < 1:
        fail("NKI002", f"shape={shape!r} in {buffer.name}")
    if len(sizes) > hw.VIEW_DIMS_MAX:
        fail("NKI004", f"shape={shape!r} has {len(sizes)} dims")
    if is_on_chip(buffer) and sizes[0] > hw.PARTITIONS:
        fail("NKI003", f"shape={shape!r} has {sizes[0]} partitions in {buffer.name}")
    return sizes


def _check_fits(sizes: tuple[int, ...], dtype: str, buffer: MemoryRegion, address: Any) -> None:
    """One tensor lies in its memory, at its address if it has one."""
    row_bytes = math.prod(sizes[1:]) * DTYPES[dtype].itemsize
    rule, limit, align = "NKI018", hw.SBUF_USABLE_BYTES_PER_PARTITION, hw.SBUF_MIN_ALIGN_BYTES
    if buffer is PSUM:
        rule, limit, align = "NKI019", hw.PSUM_BYTES_PER_PARTITION, hw.PSUM_MIN_ALIGN_BYTES
    if row_bytes > limit:
        fail(rule, f"a {list(sizes)} {dtype} tensor needs {row_bytes:,} of {limit:,} bytes per partition")
    if address is None:
        return
    if not isinstance(address, (tuple, list)) or len(address) != 2:
        fail("NKI020", f"address={address!r} is not (first partition, byte)")
    partition, byte = (as_int(n, "address", "NKI020") for n in address)
    if partition % hw.QUADRANT_PARTITIONS or not 0 <= partition <= hw.PARTITIONS - sizes[0]:
        fail("NKI020", f"address={address!r}: {sizes[0]} partitions from {partition}; starts are 0, 32, 64, 96")
    if byte < 0 or byte % align or byte + row_bytes > limit:
        fail("NKI020", f"address={address!r}: bytes {byte}..{byte + row_bytes} of {limit}, aligned to {align}")


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor filled with a number: by a memset on chip, in HBM by a DMA from a row in SBUF."""
    tensor = ndarray(shape, dtype, buffer, name)
    if tensor.on_chip:
        isa.memset(tensor, fill_value)
        return tensor
    columns = tensor.shape[-1] if tensor.shape[-1] * tensor.itemsize <= _FILL_BYTES else 1
    row = ndarray((1, 1, columns), dtype, sbuf)
    isa.memset(row, fill_value)
    isa.dma_copy(dst=tensor, src=row.broadcast(1, tensor.size // columns))
    return tensor


def copied(x: NkiTensor, dtype: Any, buffer: Any = sbuf) -> NkiTensor:
    """A copy of a tile in a dtype: one tensor_copy."""
    dst = ndarray(x.shape, dtype, buffer)
    isa.tensor_copy(dst, x)
    return dst


def cast(x: NkiTensor, dtype: Any, buffer: Any = sbuf) -> NkiTensor:
    """A tile itself, or a copy where another dtype is asked for."""
    return x if dtype is None or dtype_name(dtype) == x.dtype else copied(x, dtype, buffer)


def zeros(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new uninitialised tensor with x's shape, and x's dtype and memory unless given."""
    check.tensors(x=x)
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new tensor of zeros with x's shape, and x's dtype and memory unless given."""
    check.tensors(x=x)
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)
