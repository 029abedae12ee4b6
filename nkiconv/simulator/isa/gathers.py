"""GpSimd: gathers within a partition or a core's 16 partitions, and positions of segments and of non-zero elements.

Each of GpSimd's 8 cores reads and writes its own 16 partitions. SBUF only.
"""

from __future__ import annotations

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, Array
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from .gpsimd_engine import check_int32, sbuf_only
from .operands import alike, free_size, on_chip, same_dtype, shaped, writable

_GATHER_WIDTHS = (1, 2, 4, 8, 16, 32)
_CORE = hw.GPSIMD_CORE_PARTITIONS


def _same_partitions(first: str, **operands: NkiTensor) -> None:
    for name, tensor in operands.items():
        if tensor.shape[0] != operands[first].shape[0]:
            expected = operands[first].shape[0]
            fail("NKI044", f"{first} has {expected} partitions, {name} {tensor.shape[0]}", **operands)


def _check_indices(indices: Array, width: int, size: int, index: NkiTensor) -> None:
    """Every gathered element lies in its partition (NKI087)."""
    outside = indices > size - width
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
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
    on_chip(dst=dst, src_buffer=src_buffer, index=index)
    sbuf_only(dst=dst, src_buffer=src_buffer, index=index)
    same_dtype(dst=dst, src_buffer=src_buffer)
    _index_dtype(index, "uint16")
    _same_partitions("src_buffer", src_buffer=src_buffer, index=index, dst=dst)
    if src_buffer.shape[0] % _CORE:
        detail = f"src_buffer has {src_buffer.shape[0]} partitions, expected a multiple of {_CORE}"
        fail("NKI086", detail, src_buffer=src_buffer)
    most = min(_CORE * free_size(index), hw.LOCAL_GATHER_INDICES_MAX)
    count = _CORE * free_size(index) if num_valid_indices is None else num_valid_indices
    if type(count) is not int or not 1 <= count <= most:
        fail("NKI086", f"{count!r} indices a core, expected 1 to {most}", index=index)
    if type(num_elem_per_idx) is not int or num_elem_per_idx not in _GATHER_WIDTHS:
        fail("NKI086", f"num_elem_per_idx={num_elem_per_idx!r}, expected one of {_GATHER_WIDTHS}", dst=dst)
    if free_size(dst) != count * num_elem_per_idx:
        expected = f"{count} indices of {num_elem_per_idx} elements"
        fail("NKI045", f"dst has {free_size(dst)} elements a partition, not {expected}", dst=dst)
    writable(dst=dst)
    if program.numeric:
        rows = src_buffer.storage.read(src_buffer).reshape(src_buffer.shape[0], -1)
        table = index.storage.read(index).reshape(-1, _CORE, free_size(index))
        flat = table.transpose(0, 2, 1).reshape(len(table), -1)[:, :count].astype(np.int64)
        _check_indices(flat, num_elem_per_idx, rows.shape[1], index)
        wanted = (flat[..., None] + np.arange(num_elem_per_idx)).reshape(len(flat), -1)
        gathered = np.take_along_axis(rows, np.repeat(wanted, _CORE, axis=0), axis=1)
        dst.storage.write(dst, shaped(gathered, dst))
    params = {"count": count, "width": num_elem_per_idx}
    return program.record("gpsimd", "local_gather", (dst,), (src_buffer, index), params, name)


def _index_dtype(index: NkiTensor, dtype: str) -> None:
    if index.dtype != dtype:
        fail("NKI052", f"the indices have dtype {index.dtype}, expected {dtype}", index=index)


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Instruction:
    """dst[p, k] = data[p, indices[p, k]] within each partition, over data's flattened free dims, bit-exactly.

    Args: dst, data: same dtype, any sizes. indices: uint32, dst's partitions and elements, all below data's size.
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI087). Source: isa nc_n_gather.
    """
    program = current()
    on_chip(dst=dst, data=data, indices=indices)
    sbuf_only(dst=dst, data=data, indices=indices)
    same_dtype(dst=dst, data=data)
    _index_dtype(indices, "uint32")
    alike(dst=dst, indices=indices)
    _same_partitions("dst", dst=dst, data=data)
    writable(dst=dst)
    if program.numeric:
        rows = data.storage.read(data).reshape(data.shape[0], -1)
        wanted = indices.storage.read(indices).reshape(data.shape[0], -1).astype(np.int64)
        _check_indices(wanted, 1, rows.shape[1], indices)
        dst.storage.write(dst, shaped(np.take_along_axis(rows, wanted, axis=1), dst))
    return program.record("gpsimd", "nc_n_gather", (dst,), (data, indices), None, name)


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Instruction:
    """dst[0, 0, i] = where the segment of element i begins, dst[0, 1, i] = one past its end.

    A segment is a run of one id. Id 0 is padding: its elements get n and -1.

    Args: dst: [1, 2, n] or any [1, F...] of 2n elements. segment_ids: [1, n], whole numbers >= 0. Both fp32 or int32.
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI088). Source: isa sequence_bounds and its example.
    """
    program = current()
    on_chip(dst=dst, segment_ids=segment_ids)
    sbuf_only(dst=dst, segment_ids=segment_ids)
    for label, tensor in (("dst", dst), ("segment_ids", segment_ids)):
        if tensor.dtype not in ("float32", "int32"):
            fail("NKI052", f"{label} has dtype {tensor.dtype}, expected float32 or int32", **{label: tensor})
        if tensor.shape[0] != 1:
            fail("NKI044", f"{label} has {tensor.shape[0]} partitions, expected 1", **{label: tensor})
    length = free_size(segment_ids)
    if free_size(dst) != 2 * length:
        fail("NKI045", f"dst has {free_size(dst)} elements, expected 2 for each of {length}", dst=dst)
    writable(dst=dst)
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
    on_chip(dst=dst, src=src)
    sbuf_only(dst=dst, src=src)
    if src.dtype not in ("float32", "int32") or dst.dtype != "int32":
        fail("NKI052", f"src has dtype {src.dtype}, dst {dst.dtype}; float32 or int32, int32", dst=dst, src=src)
    _same_partitions("src", src=src, dst=dst)
    if free_size(dst) != free_size(src) + 1:
        expected = free_size(src) + 1
        fail("NKI045", f"dst has {free_size(dst)} elements a partition, expected {expected}", dst=dst, src=src)
    check_int32(index_offset=index_offset, padding_val=padding_val)
    writable(dst=dst)
    if program.numeric:
        for p in range(0, src.shape[0], _CORE):
            row = src[p : p + 1]
            places = np.flatnonzero(row.storage.read(row).reshape(-1))
            out = np.full(free_size(dst), padding_val, dtype=np.int64)
            out[: len(places)], out[-1] = places + index_offset, len(places)
            target = dst[p : p + 1]
            dst.storage.write(target, out.astype(np.int32).reshape(target.shape))
    return program.record("gpsimd", "nonzero_with_count", (dst,), (src,), None, name)
