"""`nki.language` on NumPy: dtypes, memories, tensors, operators, loops and launch queries."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import elementwise, isa
from . import hardware as hw
from .documented import LANGUAGE_CALLS, LANGUAGE_REFUSED
from .dtypes import DTYPES, GEN4_DTYPES, Array, canonical
from .errors import NotSimulatedError
from .memory import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM, MemoryRegion
from .objects import DynamicSlice, NKIObject, as_int, dtype_name
from .ops import OPS, Op
from .program import current
from .rules import fail
from .tensor import NkiTensor

sbuf, psum = SBUF, PSUM
hbm = private_hbm = PRIVATE_HBM
shared_hbm = SHARED_HBM

for _name in (*DTYPES, *GEN4_DTYPES):  # a gen4 dtype can be named and compared with, not used
    globals()[_name] = _name
Op.lower = staticmethod(elementwise.apply)
for _name, _op in OPS.items():
    globals()[_name] = _op
del _name, _op


class _TileSize(NKIObject):
    """Hardware tile sizes of trn2; sizes in elements of fp32 unless the name says bytes."""

    pmax = hw.PARTITIONS
    psum_fmax = hw.PSUM_BANK_FP32_ELEMS
    psum_bank_fmax = hw.PSUM_BANK_FP32_ELEMS
    psum_bank_fmax_bytes = hw.PSUM_BANK_BYTES_PER_PARTITION
    gemm_stationary_fmax = hw.STATIONARY_FREE_MAX
    gemm_moving_fmax = hw.MOVING_FREE_MAX
    bn_stats_fmax = hw.BN_STATS_FREE_MAX
    psum_min_align = hw.PSUM_MIN_ALIGN_BYTES
    sbuf_min_align = hw.SBUF_MIN_ALIGN_BYTES
    psum_num_banks = hw.PSUM_BANKS
    sbuf_size_bytes = hw.PARTITIONS * hw.SBUF_BYTES_PER_PARTITION
    sbuf_fmax = hw.SBUF_USABLE_BYTES_PER_PARTITION // 4
    sbuf_fmax_bytes = hw.SBUF_USABLE_BYTES_PER_PARTITION
    total_available_sbuf_size = hw.SBUF_USABLE_BYTES_PER_PARTITION


tile_size = _TileSize()

#: Element types of shared_constant (its document).
_CONSTANT_DTYPES = (
    "float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8", "float8_e4m3fn",
    "float8_e5m2", "float8_e8m0fnu",
)  # fmt: skip

#: Bytes of the SBUF row that fills an HBM tensor: long DMA runs, little of SBUF.
_FILL_BYTES = 16384


def is_sbuf(buffer: Any) -> bool:
    """Whether a memory is SBUF."""
    return buffer is SBUF


def is_psum(buffer: Any) -> bool:
    """Whether a memory is PSUM."""
    return buffer is PSUM


def is_hbm(buffer: Any) -> bool:
    """Whether a memory is any HBM."""
    return buffer is PRIVATE_HBM or buffer is SHARED_HBM


def is_on_chip(buffer: Any) -> bool:
    """Whether a memory is SBUF or PSUM."""
    return buffer is SBUF or buffer is PSUM


# Tensors.


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
    sizes = _checked_shape(shape, buffer)
    if is_on_chip(buffer):
        _check_fits(sizes, dtype, buffer, address)
    elif address is not None:
        fail("NKI020", f"address={address!r} in {buffer.name}; only on chip")
    return program.allocate(sizes, dtype, buffer, name, tuple(address) if address is not None else None)


def _checked_shape(shape: Any, buffer: MemoryRegion) -> tuple[int, ...]:
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


def zeros(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new uninitialised tensor with x's shape, and x's dtype and memory unless given."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new tensor of zeros with x's shape, and x's dtype and memory unless given."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """Constant data (a NumPy array, or the path of an unpickled .npy file) as a read-only tensor in shared HBM."""
    current()
    array = constant
    if isinstance(constant, (str, os.PathLike)):
        try:
            array = np.load(constant, allow_pickle=False)
        except ValueError as error:
            fail("NKI025", f"{constant}: {error}")
    if not isinstance(array, np.ndarray):
        fail("NKI025", f"constant={constant!r} is neither a NumPy array nor the path of a .npy file")
    if canonical(array.dtype) not in _CONSTANT_DTYPES:
        fail("NKI025", f"constants of dtype {array.dtype}; accepted are {', '.join(_CONSTANT_DTYPES)}")
    return _constant(array)


def _constant(array: Array) -> NkiTensor:
    program = current()
    sizes = _checked_shape(array.shape, SHARED_HBM)
    tensor = program.allocate(sizes, canonical(array.dtype) or "", SHARED_HBM, "", None)
    if program.numeric:
        storage = tensor.storage
        values = storage.array(tensor)
        if storage.readonly and values.tobytes() != array.tobytes():
            fail("NKI027", "the cores give this constant different values", constant=tensor)
        values[...] = array
        storage.complete = storage.readonly = True
    return tensor


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The [n, n] identity in SBUF (in `dst` if given), loaded from a constant."""
    name = dtype_name(dtype)
    tile = ndarray((n, n), name, sbuf) if dst is None else dst
    identity = _constant(np.eye(n, dtype=np.float32).astype(DTYPES[name].numpy))
    isa.dma_copy(dst=tile, src=identity if name != "bool_" else identity.view(name))
    return tile


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of an HBM tensor (dim 0 becomes the partition dim)."""
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    tile = ndarray(shape, dtype or src.dtype, sbuf)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Store an SBUF tile into an HBM tensor."""
    isa.dma_copy(dst=dst, src=value)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print the values of a tensor in SBUF or HBM (when simulated, at once, to stdout; its description if traced)."""
    program = current()
    if type(tensor) is not NkiTensor or tensor.buffer is PSUM:
        fail("NKI040", "device_print shows tensors in SBUF or HBM", tensor=tensor)
    values = f"\n{tensor.storage.read(tensor)}" if program.numeric else ""
    sys.stdout.write(f"{print_prefix} {tensor.describe()}{values}\n")


# Loops and indices.


def affine_range(start: Any, stop: Any = None, step: int = 1) -> Iterable[int]:
    """`range`; all loops are unrolled."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def ds(start: Any, size: int) -> DynamicSlice:
    """An index that takes elements start .. start + size - 1."""
    return DynamicSlice(start, size)


# The launch.


def program_id(axis: int = 0) -> int:
    """Which core this is."""
    if axis != 0:
        fail("NKI026", f"program_id({axis}); a launch grid has one axis")
    return current().core


def num_programs(axes: Any = 0) -> int:
    """How many cores run the kernel."""
    if axes not in (0, None, (0,), [0]):
        fail("NKI026", f"num_programs({axes!r}); a launch grid has one axis")
    return current().num_programs


def program_ndim() -> int:
    """Dimensions of the launch grid: 0 without one."""
    return current().launch.grid_dims


def __getattr__(name: str) -> Any:
    """Documented calls that are missing raise by name when called, and so do those that no NeuronCore has."""
    if name not in LANGUAGE_CALLS and name not in LANGUAGE_REFUSED:
        raise AttributeError(f"module 'nki.language' has no attribute {name!r}")

    def missing(*args: Any, **kwargs: Any) -> Any:
        if name in LANGUAGE_REFUSED:
            fail("NKI048", f"nl.{name}: {LANGUAGE_REFUSED[name]}")
        raise NotSimulatedError(f"nki.language.{name}", [n for n in LANGUAGE_CALLS if n in globals()])

    return missing
