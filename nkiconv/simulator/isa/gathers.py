"""GpSimd: gathers within a partition or a core's 16 partitions, and positions of segments and of non-zero elements.

Each of GpSimd's 8 cores reads and writes its own 16 partitions. SBUF only.
"""

from __future__ import annotations

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, Array
from ..memory import first_index
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .gpsimd_engine import check_int32
from .values import free_size, rows, write

_GATHER_WIDTHS = (1, 2, 4, 8, 16, 32)
#: Dtypes of segment ids, and of what may be 0.
_NUMBERS = ("float32", "int32")
_CORE = hw.GPSIMD_CORE_PARTITIONS


def _check_indices(indices: Array, width: int, size: int, index: NkiTensor) -> None:
    """Every gathered element lies in its partition (NKI087)."""
    outside = indices > size - width
    if outside.any():
        at = first_index(outside, outside.ndim)
        detail = f"index {int(indices[at])} at {at} gathers {width} of {size} elements a partition"
        fail("NKI087", detail, index=index)


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Instruction:
    """For the 16 partitions of each GpSimd core: dst[:, k] = src_buffer[:, i_k : i_k + num_elem_per_idx].

    i_0, i_1, ... are the core's indices: the columns of its 16-partition slice of `index`, one after the other. They
    count elements of a partition's flattened free dims. An index that leaves the partition is refused (undefined on
    hardware); num_elem_per_idx and num_valid_indices must explain dst's size, as the NKI 0.6 release notes ask for.

    Args:
        dst: [P, F...], F = num_valid_indices * num_elem_per_idx, src_buffer's dtype. src_buffer: [P, F...].
        index: [P, I...] of uint16; P a multiple of 16. num_elem_per_idx: 1, 2, 4, 8, 16 or 32.
        num_valid_indices: indices a core uses, 1 to 4096 and at most 16 * I (the default).
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI086, NKI087). Source: isa local_gather.
    """
    program = current()
    check.on_gpsimd(dst=dst, src_buffer=src_buffer, index=index)
    check.same_dtype(dst=dst, src_buffer=src_buffer)
    check.dtypes("NKI052", ("uint16",), index=index)
    check.same_partitions(src_buffer=src_buffer, index=index, dst=dst)
    if src_buffer.shape[0] % _CORE:
        detail = f"src_buffer has {src_buffer.shape[0]} partitions, expected a multiple of {_CORE}"
        fail("NKI086", detail, src_buffer=src_buffer)
    most = min(_CORE * free_size(index), hw.LOCAL_GATHER_INDICES_MAX)
    count = _CORE * free_size(index) if num_valid_indices is None else num_valid_indices
    if type(count) is not int or not 1 <= count <= most:
        fail("NKI086", f"{count!r} indices a core, expected 1 to {most}", index=index)
    if type(num_elem_per_idx) is not int or num_elem_per_idx not in _GATHER_WIDTHS:
        fail("NKI086", f"num_elem_per_idx={num_elem_per_idx!r}, expected one of {_GATHER_WIDTHS}", dst=dst)
    check.holds(count * num_elem_per_idx, f"{count} indices of {num_elem_per_idx} elements are", dst=dst)
    check.writable(dst=dst)
    if program.numeric:
        values = rows(src_buffer.storage.read(src_buffer))
        table = index.storage.read(index).reshape(-1, _CORE, free_size(index))
        flat = table.transpose(0, 2, 1).reshape(len(table), -1)[:, :count].astype(np.int64)
        _check_indices(flat, num_elem_per_idx, values.shape[1], index)
        wanted = (flat[..., None] + np.arange(num_elem_per_idx)).reshape(len(flat), -1)
        write(dst, np.take_along_axis(values, np.repeat(wanted, _CORE, axis=0), axis=1))
    params = {"count": count, "width": num_elem_per_idx}
    return program.record("gpsimd", "local_gather", (dst,), (src_buffer, index), params, name)


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Instruction:
    """dst[p, k] = data[p, indices[p, k]] within each partition, over data's flattened free dims, bit-exactly.

    Args: dst, data: same dtype, any sizes. indices: uint32, dst's partitions and elements, all below data's size.
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI087). Source: isa nc_n_gather.
    """
    program = current()
    check.on_gpsimd(dst=dst, data=data, indices=indices)
    check.same_dtype(dst=dst, data=data)
    check.dtypes("NKI052", ("uint32",), indices=indices)
    check.alike(dst=dst, indices=indices)
    check.same_partitions(dst=dst, data=data)
    check.writable(dst=dst)
    if program.numeric:
        values, wanted = rows(data.storage.read(data)), rows(indices.storage.read(indices)).astype(np.int64)
        _check_indices(wanted, 1, values.shape[1], indices)
        write(dst, np.take_along_axis(values, wanted, axis=1))
    return program.record("gpsimd", "nc_n_gather", (dst,), (data, indices), None, name)


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Instruction:
    """dst[0, 0, i] = where the segment of element i begins, dst[0, 1, i] = one past its end.

    A segment is a run of one id. Id 0 is padding: its elements get n and -1.

    Args: dst: [1, 2, n] or any [1, F...] of 2n elements. segment_ids: [1, n], whole numbers >= 0. Both fp32 or int32.
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI088). Source: isa sequence_bounds and its example.
    """
    program = current()
    check.on_gpsimd(dst=dst, segment_ids=segment_ids)
    check.dtypes("NKI052", _NUMBERS, dst=dst, segment_ids=segment_ids)
    for label, tensor in (("dst", dst), ("segment_ids", segment_ids)):
        if tensor.shape[0] != 1:
            fail("NKI044", f"{label} has {tensor.shape[0]} partitions, expected 1", **{label: tensor})
    check.holds(2 * free_size(segment_ids), "two for each id are", dst=dst, segment_ids=segment_ids)
    check.writable(dst=dst)
    if program.numeric:
        ids = segment_ids.storage.read(segment_ids).reshape(-1)
        if (ids < 0).any() or (ids != np.floor(ids)).any():
            fail("NKI088", "segment_ids holds a negative or broken number", segment_ids=segment_ids)
        dst.storage.write(dst, _segment_bounds(ids).astype(DTYPES[dst.dtype].numpy).reshape(dst.shape))
    return program.record("gpsimd", "sequence_bounds", (dst,), (segment_ids,), None, name)


def _segment_bounds(ids: Array) -> Array:
    """[2, n]: first position and end of each element's run of equal ids."""
    length = len(ids)
    cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    starts, ends = np.array([0, *cuts]), np.array([*cuts, length])
    runs = np.repeat(np.arange(len(starts)), ends - starts)
    bounds: Array = np.where(ids == 0, np.array([[length], [-1]]), np.stack([starts[runs], ends[runs]]))
    return bounds


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> Instruction:
    """On partitions 0, 16, 32, ...: dst = the places in src that are not 0, then padding, then how many they are.

    Places count the flattened free dims from index_offset. No other partition is read or written.

    Args:
        src: [P, T...] fp32 or int32. dst: [P, F...] int32 of T + 1 elements a partition.
        index_offset, padding_val: ints of 32 bits; indices that leave int32 wrap (not documented).
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI080). Source: isa nonzero_with_count.
    """
    program = current()
    check.on_gpsimd(dst=dst, src=src)
    check.dtypes("NKI052", _NUMBERS, src=src)
    check.dtypes("NKI052", ("int32",), dst=dst)
    check.same_partitions(src=src, dst=dst)
    check.holds(free_size(src) + 1, "src's places and their count are", dst=dst, src=src)
    check_int32(index_offset=index_offset, padding_val=padding_val)
    check.writable(dst=dst)
    if program.numeric:
        for p in range(0, src.shape[0], _CORE):
            row = src[p : p + 1]
            places = np.flatnonzero(row.storage.read(row).reshape(-1))
            out = np.full(free_size(dst), padding_val, dtype=np.int64)
            out[: len(places)], out[-1] = places + index_offset, len(places)
            target = dst[p : p + 1]
            dst.storage.write(target, out.astype(np.int32).reshape(target.shape))
    return program.record("gpsimd", "nonzero_with_count", (dst,), (src,), None, name)
