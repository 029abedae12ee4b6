"""`nki.language` on NumPy: dtypes, memories, tensors, operators, loops and launch queries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import hardware as hw
from . import isa
from .dtypes import DTYPES
from .documented import LANGUAGE_CALLS, LANGUAGE_GEN4
from .errors import NkiError, NotSimulatedError
from .memory import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM, MemoryRegion, StorageInfo
from .ops import OPS
from .program import current
from .rules import RULES, fail
from .tensor import DynamicSlice, NKIObject, NkiTensor, as_int, dtype_name, is_on_chip

sbuf, psum = SBUF, PSUM
hbm = private_hbm = PRIVATE_HBM
shared_hbm = SHARED_HBM

for _name in DTYPES:
    globals()[_name] = _name
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


def is_sbuf(buffer: Any) -> bool:
    """Whether a memory is SBUF."""
    return buffer is SBUF


def is_psum(buffer: Any) -> bool:
    """Whether a memory is PSUM."""
    return buffer is PSUM


def is_hbm(buffer: Any) -> bool:
    """Whether a memory is any HBM."""
    return buffer is PRIVATE_HBM or buffer is SHARED_HBM


# Tensors.


def ndarray(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "", address: Any = None) -> NkiTensor:
    """A new uninitialised tensor.

    Args:
        shape: positive ints; on chip dim 0 is the partition dim, at most 128.
        dtype: a dtype of this module. buffer: nl.sbuf (default), psum, hbm, private_hbm or shared_hbm.
        address: optional (first partition, byte in the partition) on chip.
    Raises NkiError (NKI001-NKI003, NKI005, NKI018-NKI020).
    """
    program = current()
    if type(buffer) is not MemoryRegion:
        fail("NKI005", f"buffer={buffer!r}")
    dtype = dtype_name(dtype)
    sizes = _checked_shape(shape, buffer)
    if address is not None:
        address = _checked_address(address, sizes, dtype, buffer)
    _check_size(sizes, dtype, buffer)
    return program.allocate(sizes, dtype, buffer, name, address)


def _checked_shape(shape: Any, buffer: MemoryRegion) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        fail("NKI002", f"shape={shape!r} is not a tuple")
    sizes = tuple(as_int(n, "size") for n in shape)
    least = 2 if is_on_chip(buffer) else 1
    if len(sizes) < least or min(sizes) < 1:
        fail("NKI002", f"shape={shape!r} in {buffer.name}")
    if len(sizes) > hw.VIEW_DIMS_MAX:
        fail("NKI004", f"shape={shape!r}")
    if is_on_chip(buffer) and sizes[0] > hw.PARTITIONS:
        fail("NKI003", f"shape={shape!r} has {sizes[0]} partitions in {buffer.name}")
    return sizes


def _check_size(sizes: tuple[int, ...], dtype: str, buffer: MemoryRegion) -> None:
    """One tensor larger than its memory never fits."""
    if not is_on_chip(buffer):
        return
    row_bytes = DTYPES[dtype].itemsize
    for n in sizes[1:]:
        row_bytes *= n
    rule, limit = "NKI018", hw.SBUF_USABLE_BYTES_PER_PARTITION
    if buffer is PSUM:
        rule, limit = "NKI019", hw.PSUM_BYTES_PER_PARTITION
    if row_bytes > limit:
        fail(rule, f"a {list(sizes)} {dtype} tensor needs {row_bytes:,} of {limit:,} bytes per partition")


def _checked_address(address: Any, sizes: tuple[int, ...], dtype: str, buffer: MemoryRegion) -> tuple[int, int]:
    if not is_on_chip(buffer):
        fail("NKI020", f"address={address!r} in {buffer.name}; only on chip")
    partition, byte = (as_int(n, "address") for n in address)
    row_bytes = DTYPES[dtype].itemsize
    for n in sizes[1:]:
        row_bytes *= n
    limit = hw.PSUM_BYTES_PER_PARTITION if buffer is PSUM else hw.SBUF_USABLE_BYTES_PER_PARTITION
    align = hw.PSUM_MIN_ALIGN_BYTES if buffer is PSUM else hw.SBUF_MIN_ALIGN_BYTES
    quadrants = range(0, hw.PARTITIONS, hw.QUADRANT_PARTITIONS)
    if partition not in quadrants or partition + sizes[0] > hw.PARTITIONS:
        fail("NKI020", f"address={address!r}: {sizes[0]} partitions from {partition}")
    if byte < 0 or byte % align or byte + row_bytes > limit:
        fail("NKI020", f"address={address!r}: bytes {byte}..{byte + row_bytes} of {limit}, aligned to {align}")
    return partition, byte


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor filled with a number (on chip: by a memset)."""
    tensor = ndarray(shape, dtype, buffer, name)
    if tensor.on_chip:
        isa.memset(tensor, fill_value)
    elif tensor.storage.data is not None:
        tensor.storage.write(tensor, fill_value)
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
    """Constant data (NumPy array, or path of a .npy file) as a tensor in shared HBM."""
    program = current()
    array = np.load(constant, allow_pickle=False) if isinstance(constant, (str, os.PathLike)) else np.asarray(constant)
    tensor = program.allocate(array.shape, dtype_name(array.dtype), SHARED_HBM, "", None)
    if program.numeric:
        tensor.storage.array(tensor)[...] = array
        tensor.storage.complete, tensor.storage.written, tensor.storage.readonly = True, None, True
    return tensor


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The [n, n] identity in SBUF (in `dst` if given), loaded from a constant."""
    info = DTYPES[dtype_name(dtype)]
    tile = ndarray((n, n), dtype, sbuf) if dst is None else dst
    isa.dma_copy(dst=tile, src=shared_constant(np.eye(n, dtype=np.float32).astype(info.numpy)))
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
    """Print a tensor's values (when simulated, at once, to stdout)."""
    program = current()
    if program.numeric:
        sys.stdout.write(f"{print_prefix} {tensor.describe()}\n{tensor.storage.read(tensor)}\n")
    else:
        sys.stdout.write(f"{print_prefix} {tensor.describe()}\n")


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
    """Documented calls that are missing raise by name when called; trn3's names are refused."""
    if name in LANGUAGE_GEN4:
        raise NkiError("NKI049", name, f"nki.language.{name} needs NeuronCore-v4 (trn3)", remedy=RULES["NKI049"].remedy)
    if name in LANGUAGE_CALLS:

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise NotSimulatedError(f"nki.language.{name}", [n for n in LANGUAGE_CALLS if n in globals()])

        return missing
    raise AttributeError(f"module 'nki.language' has no attribute {name!r}")
