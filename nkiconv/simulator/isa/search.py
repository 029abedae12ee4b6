"""Vector Engine searches: the 8 largest values of each partition, where given values are, and their replacement.

Values are compared as fp32, which merges 32-bit integers that fp32 cannot tell apart and never finds a NaN. The free
dims of an operand count as one, flattened. Operands walk at most 2 free dims (NKI 0.6; later documents allow more).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, Array
from ..memory import first_index
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .values import free_size, read_fp32, rows, write, write_fp32

_INDICES = ("uint16", "uint32")


def _searched(label: str, data: NkiTensor, least: int, **operands: NkiTensor) -> None:
    """`data` has a searchable size, the other operands 8 elements on each of its partitions (NKI044, NKI081)."""
    check.on_chip(hw.FREE_DIMS_SEARCH, **{label: data}, **operands)
    for name, tensor in ((label, data), *operands.items()):
        most = 2 if name == "dst" else hw.FREE_DIMS_SEARCH + 1
        if len(tensor.shape) > most:
            fail("NKI081", f"{name} has {len(tensor.shape)} dims, at most {most} are read or written", **{name: tensor})
    for name, tensor in operands.items():
        if tensor.shape[0] != data.shape[0]:
            fail("NKI044", f"{label} has {data.shape[0]} partitions, {name} {tensor.shape[0]}", **{name: tensor})
        if free_size(tensor) != hw.SEARCH_VALUES:
            fail("NKI081", f"{name} has {free_size(tensor)} elements a partition, expected 8", **{name: tensor})
    if not least <= free_size(data) <= hw.SEARCH_FREE_MAX:
        allowed = f"{least} to {hw.SEARCH_FREE_MAX}"
        fail("NKI081", f"{label} has {free_size(data)} elements a partition, expected {allowed}", **{label: data})


def refuse_nan(name: str, values: Array, tensor: NkiTensor) -> None:
    """Values that an instruction puts in order hold no NaN, whose place no document states (NKI083)."""
    bad = np.isnan(values)
    if bad.any():
        fail("NKI083", f"{name} holds a NaN at {first_index(bad, bad.ndim)}", **{name: tensor})


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 8] = the 8 largest of each partition of src, in descending order, found in fp32 and cast on write.

    Args: dst: [P, 8]. src: [P, F...], 8 to 16,384 elements a partition, SBUF or PSUM, any dtypes, no NaN.
    Raises NkiError (NKI040, NKI043, NKI044, NKI046, NKI081, NKI083). Source: isa max8.
    """
    program = current()
    _searched("src", src, hw.SEARCH_VALUES, dst=dst)
    check.writable(dst=dst)
    if program.numeric:
        values = rows(read_fp32(src))
        refuse_nan("src", values, src)
        write_fp32(dst, np.sort(values, axis=1)[:, : -hw.SEARCH_VALUES - 1 : -1])
    return program.record("vector", "max8", (dst,), (src,), None, name)


def _occurrences(data: Array, vals: Array) -> tuple[Array, Array]:
    """For the 8 values of each row: the position in data that each is paired with, and whether there is one.

    The k-th copy of a value, from the left, is paired with the k-th element of data that equals it.
    """
    positions = np.zeros(vals.shape, dtype=np.int64)
    found = np.zeros(vals.shape, dtype=bool)
    free = np.ones(data.shape, dtype=bool)
    every = np.arange(len(data))
    for j in range(vals.shape[1]):
        equal = free & (data == vals[:, j, None])
        positions[:, j] = np.argmax(equal, axis=1)
        found[:, j] = equal[every, positions[:, j]]
        free[every[found[:, j]], positions[found[:, j], j]] = False
    return positions, found


def _write_indices(dst: NkiTensor, positions: Array, found: Array) -> None:
    """Positions in dst's dtype; all ones where there is none."""
    numpy_type = DTYPES[dst.dtype].numpy
    write(dst, np.where(found, positions, np.iinfo(numpy_type).max).astype(numpy_type))


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 8] = where each of the 8 values of a partition first occurs in its data; all ones where it does not.

    Copies of a value find its successive occurrences, from the left.

    Args:
        dst: [P, 8], uint16 or uint32. data: [P, F...], 8 to 16,384 elements a partition. vals: 8 a partition.
    Raises NkiError (NKI040, NKI043, NKI044, NKI046, NKI081, NKI082). Source: isa nc_find_index8, NKI 0.6 release notes.
    """
    program = current()
    _searched("data", data, hw.SEARCH_VALUES, dst=dst, vals=vals)
    check.dtypes("NKI082", _INDICES, dst=dst)
    check.writable(dst=dst)
    if program.numeric:
        _write_indices(dst, *_occurrences(rows(read_fp32(data)), rows(read_fp32(vals))))
    return program.record("vector", "nc_find_index8", (dst,), (data, vals), None, name)


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: Any,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> Instruction:
    """dst = data with the first occurrence of each of 8 values replaced by imm; dst_idx[P, 8] = where they were.

    Copies of a value replace its successive occurrences, paired from the right: the last copy has the first of them.
    A value that data does not hold replaces nothing; its index is all ones, as in nc_find_index8 (not documented).

    Args:
        dst, data: same partitions and elements, at most 16,384 a partition; dst may be data. vals: 8 a partition.
        imm: a number, in fp32. dst_idx: None, or uint16 or uint32 [P, 8].
    Raises NkiError (NKI040, NKI043-NKI046, NKI051, NKI081, NKI082). Source: isa nc_match_replace8.
    """
    program = current()
    eights = {"vals": vals} if dst_idx is None else {"vals": vals, "dst_idx": dst_idx}
    _searched("data", data, 1, **eights)
    check.on_chip(hw.FREE_DIMS_SEARCH, dst=dst)
    check.alike(dst=dst, data=data)
    if not check.is_number(imm):
        fail("NKI051", f"imm={imm!r} is not a number", data=data)
    check.writable(dst=dst)
    if dst_idx is not None:
        check.dtypes("NKI082", _INDICES, dst_idx=dst_idx)
        check.writable(dst_idx=dst_idx)
    if program.numeric:
        values, wanted = rows(np.array(read_fp32(data))), rows(read_fp32(vals))
        positions, found = (side[:, ::-1] for side in _occurrences(values, wanted[:, ::-1]))
        at, columns = np.nonzero(found)
        values[at, positions[at, columns]] = np.float32(imm)
        write_fp32(dst, values)
        if dst_idx is not None:
            _write_indices(dst_idx, positions, found)
    writes = (dst,) if dst_idx is None else (dst, dst_idx)
    return program.record("vector", "nc_match_replace8", writes, (data, vals), None, name)
