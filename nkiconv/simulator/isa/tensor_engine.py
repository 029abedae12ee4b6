"""Tensor Engine: nc_matmul and nc_transpose.

Products of the operands' exact values are summed in fp32 per instruction, and instructions accumulate in fp32 in PSUM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import MATMUL_FP8, MATMUL_NARROW, MATMUL_WIDE, Array, round_to_tf32, to_fp32
from ..memory import PSUM, SBUF
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from ..views import reach
from . import check
from .enums import engine, matmul_perf_mode
from .values import free_size, shaped, write

_Engine = engine


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> Instruction:
    """dst[M, N] = or += stationary[K, M].T @ moving[K, N] on the Tensor Engine.

    Args:
        dst: [M, N...] fp32 in PSUM, inside one bank (is_transpose: the data's dtype).
        stationary: [K, M...] in SBUF, K <= 128, M <= 128; fp8, bf16, fp16, or fp32/tf32 when moving is too.
        moving: [K, N...] in SBUF, N <= 512 over all its free dims.
        accumulate: False overwrites, True adds to a matmul's result, None (default) adds to a matmul's result and
            overwrites other data.
        perf_mode: double_row contracts [K, 2, M] with [K, 2, N] in fp8.
        tile_position, tile_size: (start_row, start_column) and (rows, columns) of the array, sizes 32, 64 or 128, M at
            most `columns`. Of columns isa's text and its list of parameters disagree; kernels of nki-library use them.
    Raises NkiError (NKI030, NKI040, NKI043, NKI046, NKI101-NKI113, NKI115). Source: isa nc_matmul.
    """
    program = current()
    check.on_chip(dst=dst, stationary=stationary, moving=moving)
    check.enum_member("perf_mode", perf_mode, matmul_perf_mode)
    _memories(dst, stationary, moving)
    double_row = perf_mode is matmul_perf_mode.double_row
    rows, columns, moving_columns = _sizes(dst, stationary, moving, double_row)
    _check_tile(tile_position, tile_size, rows, columns, double_row)
    _check_dtypes(dst, stationary, moving, double_row, is_transpose)
    _check_bank(dst)
    check.writable(dst=dst)
    if is_transpose:
        _check_transpose(moving, rows, accumulate, double_row)
    adds = accumulate
    if program.numeric:
        adds = _multiply(dst, stationary, moving, accumulate, is_transpose, double_row)
    params = {
        "accumulate": adds,
        "contraction": rows * (hw.DOUBLE_ROW if double_row else 1),
        "columns": columns,
        "moving_columns": moving_columns,
        "perf_mode": perf_mode.name,
        "is_transpose": is_transpose,
        "onezero": is_stationary_onezero or is_moving_onezero,
        "tile_position": tuple(tile_position),
        "tile_size": tuple(tile_size),
    }
    return program.record("tensor", "nc_matmul", (dst,), (stationary, moving), params, name)


def _memories(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    if stationary.buffer is not SBUF or moving.buffer is not SBUF:
        fail("NKI040", "the Tensor Engine reads SBUF", stationary=stationary, moving=moving)
    if dst.buffer is not PSUM:
        fail("NKI040", "the Tensor Engine writes PSUM", dst=dst)


def _sizes(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double_row: bool) -> tuple[int, int, int]:
    """(K partitions, M, N) of the product."""
    if stationary.shape[0] != moving.shape[0]:
        fail(
            "NKI101",
            f"stationary has {stationary.shape[0]} partitions, moving {moving.shape[0]}",
            stationary=stationary,
            moving=moving,
        )
    columns, moving_columns = free_size(stationary), free_size(moving)
    if double_row:
        pairs = {t.shape[1] for t in (stationary, moving)}
        if pairs != {hw.DOUBLE_ROW} or len(stationary.shape) < 3 or len(moving.shape) < 3:
            fail("NKI111", "operands are not [K, 2, M] and [K, 2, N]", stationary=stationary, moving=moving)
        columns, moving_columns = columns // hw.DOUBLE_ROW, moving_columns // hw.DOUBLE_ROW
    if columns > hw.STATIONARY_FREE_MAX:
        fail("NKI103", f"stationary free size {columns} > {hw.STATIONARY_FREE_MAX}", stationary=stationary)
    if moving_columns > hw.MOVING_FREE_MAX:
        fail("NKI104", f"moving free size {moving_columns} > {hw.MOVING_FREE_MAX}", moving=moving)
    if dst.shape[0] != columns or free_size(dst) != moving_columns:
        found = f"[{dst.shape[0]}, {free_size(dst)}]"
        fail("NKI105", f"dst is {found}, the product [{columns}, {moving_columns}]", dst=dst)
    return stationary.shape[0], columns, moving_columns


def _check_tile(position: Any, size: Any, rows: int, columns: int, double_row: bool) -> None:
    """Both or neither, a legal tile that holds the contraction and the columns (NKI112, NKI102, NKI111)."""
    if position == () and size == ():
        return
    pairs = all(type(p) in (tuple, list) and len(p) == 2 and all(type(n) is int for n in p) for p in (position, size))
    if not pairs:
        fail("NKI112", f"tile_position={position!r}, tile_size={size!r} must both be pairs of ints")
    for what, start, count in zip(("row", "column"), position, size, strict=True):
        if count not in hw.MATMUL_TILES:
            fail("NKI112", f"tile_size={size!r}: {what}s are 32, 64 or 128")
        if start % count or not 0 <= start < hw.PARTITIONS:
            fail("NKI112", f"start {what} {start} is not a multiple of {count} below {hw.PARTITIONS}")
    if rows > size[0] or columns > size[1]:
        fail("NKI102", f"{rows} contraction rows, {columns} columns in a tile of {size[0]}, {size[1]}")
    if double_row and size[1] < hw.STATIONARY_FREE_MAX:
        fail("NKI111", f"double_row with a tile of {size[1]} columns")


def _check_dtypes(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double_row: bool, is_transpose: bool
) -> None:
    pair = {stationary.dtype, moving.dtype}
    if not (pair <= MATMUL_NARROW or pair <= MATMUL_WIDE):
        fail("NKI107", f"stationary is {stationary.dtype}, moving {moving.dtype}", stationary=stationary, moving=moving)
    if double_row and not pair <= MATMUL_FP8:
        fail("NKI111", f"double_row takes fp8, got {sorted(pair)}", stationary=stationary, moving=moving)
    if is_transpose:
        if dst.dtype != stationary.dtype:
            fail("NKI113", f"dst is {dst.dtype}, the data {stationary.dtype}", dst=dst, stationary=stationary)
    elif dst.dtype != "float32":
        fail("NKI106", f"dst has dtype {dst.dtype}", dst=dst)


def _check_bank(dst: NkiTensor) -> None:
    """dst lies in one bank, at an aligned address (NKI108, NKI115)."""
    info = dst.storage.info
    within = (dst.offset % (info.bytes_per_partition // dst.itemsize)) * dst.itemsize
    first = within + (info.address[1] if info.address else 0)
    if first % hw.PSUM_MIN_ALIGN_BYTES:
        fail("NKI115", f"dst starts at byte {first} of its partition", dst=dst)
    if info.bytes_per_partition <= hw.PSUM_BANK_BYTES_PER_PARTITION and info.address is None:
        return
    low, high = reach(dst.shape[1:], dst.strides[1:])
    first, last = first + low * dst.itemsize, first + (high + 1) * dst.itemsize - 1
    bank = hw.PSUM_BANK_BYTES_PER_PARTITION
    if first // bank != last // bank:
        fail("NKI108", f"dst covers bytes {first}..{last} of a partition, a bank ends every {bank}", dst=dst)


def _check_transpose(moving: NkiTensor, rows: int, accumulate: bool | None, double_row: bool) -> None:
    if accumulate or double_row:
        fail("NKI113", "a transpose neither accumulates nor runs in double_row")
    columns = free_size(moving)
    if columns != rows:
        fail("NKI113", f"moving must be the [{rows}, {rows}] identity, its free size is {columns}", moving=moving)


def _multiply(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    accumulate: bool | None,
    is_transpose: bool,
    double_row: bool,
) -> bool:
    """Compute the product; returns whether it was added to dst."""
    lhs, rhs = stationary.storage.read(stationary), moving.storage.read(moving)
    rows = lhs.shape[0] * (hw.DOUBLE_ROW if double_row else 1)
    lhs, rhs = lhs.reshape(rows, -1), rhs.reshape(rows, -1)
    if is_transpose:
        if not np.array_equal(to_fp32(rhs), np.eye(rows, dtype=np.float32)):
            fail("NKI113", "moving is not the identity matrix", moving=moving)
        write(dst, lhs.T)
        return False
    adds = dst.storage.check_accumulation(dst, accumulate)
    product = _product(_operand(lhs, stationary), _operand(rhs, moving))
    out = dst.storage.array(dst)
    if adds is True:
        np.add(out, shaped(product, dst), out=out)
    elif adds is False:
        out[...] = shaped(product, dst)
    else:
        values = shaped(product, dst)
        out[...] = np.where(adds, out + values, values)
    dst.storage.mark_matmul(dst)
    return bool(np.any(adds))


def _product(lhs: Array, rhs: Array) -> Array:
    """lhs.T @ rhs, whose columns round alike with any neighbours; BLAS adds up a lone vector in another order."""
    rows, columns = lhs.shape[1], rhs.shape[1]
    if rows == 1:
        lhs = np.repeat(lhs, 2, axis=1)
    if columns == 1:
        rhs = np.repeat(rhs, 2, axis=1)
    found: Array = np.matmul(lhs.T, rhs)
    return found[:rows, :columns]


def _operand(values: Array, tensor: NkiTensor) -> Array:
    """A matmul operand in fp32; tf32 (which a view may have made of any bits) has 10 mantissa bits."""
    return round_to_tf32(values) if tensor.dtype == "tfloat32" else to_fp32(values)


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: engine = engine.unknown, name: str | None = None
) -> Instruction:
    """dst[F, P] = data[P, F] transposed, bit-exactly; free dims are flattened.

    Args:
        dst: dtype of data; in PSUM when the Tensor Engine does it.
        data: up to [128, 128] in SBUF (Tensor), up to [32, 32] in SBUF or PSUM (Vector).
        engine: tensor, vector, or unknown: Tensor for SBUF to PSUM, else Vector.
    Raises NkiError (NKI040, NKI041, NKI043-NKI046, NKI052, NKI108, NKI114, NKI115). Source: isa nc_transpose.
    """
    program = current()
    check.on_chip(dst=dst, data=data)
    check.same_dtype(dst=dst, data=data)
    check.writable(dst=dst)
    default = _Engine.tensor if data.buffer is SBUF and dst.buffer is PSUM else _Engine.vector
    chosen = check.pick_engine(engine, (_Engine.tensor, _Engine.vector), default)
    rows, columns = data.shape[0], free_size(data)
    limit = hw.PARTITIONS if chosen is _Engine.tensor else hw.VECTOR_TRANSPOSE_MAX
    if rows > limit or columns > limit:
        fail("NKI114", f"[{rows}, {columns}] on the {chosen.name} engine, at most [{limit}, {limit}]", data=data)
    if chosen is _Engine.tensor and (data.buffer is not SBUF or dst.buffer is not PSUM):
        fail("NKI114", "the Tensor Engine transposes SBUF to PSUM", dst=dst, data=data)
    if dst.shape[0] != columns:
        fail("NKI044", f"dst has {dst.shape[0]} partitions, the transpose {columns}", dst=dst, data=data)
    check.holds(rows, "the transpose", dst=dst, data=data)
    if dst.buffer is PSUM:
        _check_bank(dst)
    if program.numeric:
        values = data.storage.read(data).reshape(rows, columns)
        write(dst, values.T)
    params = {"contraction": rows, "columns": columns, "moving_columns": rows, "is_transpose": True}
    return program.record(chosen.name, "nc_transpose", (dst,), (data,), params, name)
