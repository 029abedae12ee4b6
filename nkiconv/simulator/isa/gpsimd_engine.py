"""GpSimd: iota, affine_select, tensor_partition_reduce. SBUF only."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, Array, convert, from_fp32
from ..objects import VirtualRegister, listed
from ..ops import BITVEC, OPS
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from ..views import places
from . import check
from .reductions import reduce_all
from .values import free_size, read_fp32, rows, shaped, write, write_fp32

_INT32 = np.iinfo(np.int32)
_PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


def _check_pattern(pattern: Any, dst: NkiTensor) -> list[tuple[int, int]]:
    """The pattern as pairs (step, count) that cover dst's free elements (NKI071)."""
    pairs = listed(pattern)
    good = all([type(n) for n in listed(pair)] == [int, int] and pair[1] > 0 for pair in pairs)
    if not good or not 1 <= len(pairs) <= hw.FREE_DIMS_MAX_WIDE or prod(p[1] for p in pairs) != free_size(dst):
        fail("NKI071", f"pattern={pattern!r} for {free_size(dst)} elements a partition", dst=dst)
    return [(p[0], p[1]) for p in pairs]


def check_int32(**constants: Any) -> None:
    """Compile-time ints of 32 bits (NKI080)."""
    for name, value in constants.items():
        if type(value) is not int or not _INT32.min <= value <= _INT32.max:
            fail("NKI080", f"{name}={value!r}")


def _offset_of(offset: Any) -> int:
    """An offset: an int32 constant, or a register's value, 0 where none is known (NKI080)."""
    if isinstance(offset, VirtualRegister):
        return offset.value or 0
    check_int32(offset=offset)
    return int(offset)


def _affine(partitions: int, pairs: list[tuple[int, int]], offset: int, multiplier: int) -> Array:
    """offset + partition * multiplier + sum of steps, in 32-bit arithmetic, as int32 [P, F]."""
    free = places((count, step) for step, count in pairs)
    return (offset + multiplier * np.arange(partitions)[:, None] + free).astype(np.int32)


def iota(
    dst: NkiTensor,
    pattern: Any,
    offset: int | VirtualRegister = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> Instruction:
    """dst[p, w, z, y, x] = offset + p * channel_multiplier + sum of index * step, cast from int32.

    Args:
        dst: SBUF, any dtype; integers that it cannot hold saturate (not documented).
        pattern: up to 4 pairs [step, count] that cover the free elements. offset, channel_multiplier: int32; the offset
            may be a register (NKI 0.5 release notes).
    Raises NkiError (NKI040, NKI042, NKI043, NKI046, NKI071, NKI080). Source: isa iota.
    """
    program = current()
    check.on_gpsimd(free_dims=hw.FREE_DIMS_MAX_WIDE, dst=dst)
    pairs = _check_pattern(pattern, dst)
    check_int32(channel_multiplier=channel_multiplier)
    first = _offset_of(offset)
    check.writable(dst=dst)
    if program.numeric:
        values = _affine(dst.shape[0], pairs, first, channel_multiplier)
        write(dst, _from_int32(values, dst.dtype))
    return program.record("gpsimd", "iota", (dst,), (), {"pattern": tuple(pairs)}, name)


def _from_int32(values: Array, dtype: str) -> Array:
    """int32 values in another dtype: floats through fp32, integers exactly, saturating."""
    info = DTYPES[dtype]
    if info.is_float or dtype == "bool_":
        return from_fp32(values.astype(np.float32), dtype)
    limits = np.iinfo(info.numpy)
    return np.clip(values.astype(np.int64), limits.min, limits.max).astype(info.numpy)


def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Any = OPS["equal"],
    offset: int | VirtualRegister = 0,
    name: str | None = None,
) -> Instruction:
    """dst = on_true_tile where cmp_op(affine value, 0), else on_false_value; the affine value is iota's.

    Args: dst, on_true_tile: SBUF, same partitions and elements. on_false_value: a float. cmp_op: a comparison.
    Raises NkiError (NKI040, NKI042-NKI046, NKI048, NKI071, NKI072, NKI080). Source: isa affine_select.
    """
    program = current()
    check.on_gpsimd(free_dims=hw.FREE_DIMS_MAX_WIDE, dst=dst, on_true_tile=on_true_tile)
    check.alike(dst=dst, on_true_tile=on_true_tile)
    compare = check.comparison("cmp_op", cmp_op)
    if not isinstance(on_false_value, (float, np.floating)):
        fail("NKI072", f"on_false_value={on_false_value!r}", dst=dst)
    pairs = _check_pattern(pattern, dst)
    check_int32(channel_multiplier=channel_multiplier)
    first = _offset_of(offset)
    check.writable(dst=dst)
    if program.numeric:
        assert compare.compute is not None
        affine = _affine(dst.shape[0], pairs, first, channel_multiplier)
        chosen = compare.compute(affine, np.int32(0)).reshape(dst.shape) != 0
        values = shaped(convert(on_true_tile.storage.read(on_true_tile), on_true_tile.dtype, dst.dtype), dst)
        other = from_fp32(np.array([on_false_value], dtype=np.float32), dst.dtype)
        dst.storage.write(dst, np.where(chosen, values, other))
    params = {"pattern": tuple(pairs), "cmp_op": compare.name}
    return program.record("gpsimd", "affine_select", (dst,), (on_true_tile,), params, name)


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[1, F] = data[P, F] reduced over its partitions (slow on hardware).

    Args: dst, data: SBUF, any dtypes (integers for bitvec ops). op: add, average, maximum, bitwise_or or bitwise_and.
    Raises NkiError (NKI040, NKI042-NKI046, NKI050, NKI063). Source: isa tensor_partition_reduce.
    """
    program = current()
    check.on_gpsimd(dst=dst, data=data)
    token = check.operator("op", op)
    if token.name not in _PARTITION_REDUCTIONS:
        fail("NKI063", f"op={op!r}; one of {', '.join(_PARTITION_REDUCTIONS)}", data=data)
    check.bitvec_dtypes(token, dst=dst, data=data)
    if dst.shape[0] != 1:
        fail("NKI044", f"dst has {dst.shape[0]} partitions, expected 1", dst=dst)
    check.holds(free_size(data), "data", dst=dst, data=data)
    check.writable(dst=dst)
    if program.numeric:
        if token.kind == BITVEC:
            total = reduce_all(rows(data.storage.read(data)).T, token)
            write(dst, total.astype(DTYPES[dst.dtype].numpy))
        else:
            reducer = OPS["add"] if token.name == "average" else token
            total = reduce_all(np.ascontiguousarray(rows(read_fp32(data)).T), reducer)
            write_fp32(dst, total / np.float32(data.shape[0]) if token.name == "average" else total)
    return program.record("gpsimd", "tensor_partition_reduce", (dst,), (data,), {"op": token.name}, name)
