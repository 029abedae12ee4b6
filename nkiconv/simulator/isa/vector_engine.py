"""Vector Engine: elementwise instructions (several of which Scalar or GpSimd can run too). fp32 arithmetic inside."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from ..dtypes import DTYPES, INTEGERS, Array, convert, from_fp32
from ..memory import PSUM
from ..ops import BITVEC, Op
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import engine
from .places import after_registers, index_tensors, indirect_params, settled
from .values import read_fp32, rows, scalar_values, shaped, write, write_fp32

_Engine = engine
_INT32 = frozenset({"int32", "uint32"})
_PREDICATES = ("uint8", "uint16", "uint32")

#: (op0, op1) that the Scalar Engine of trn2 runs as tensor_scalar
_SCALAR_ENGINE_OPS = (("multiply", "add"), ("multiply", None), ("add", None))


def memset(dst: NkiTensor, value: Any, engine: engine = engine.unknown, name: str | None = None) -> Instruction:
    """Fill dst (SBUF or PSUM) with a compile-time number of its dtype's kind, on Vector (default) or GpSimd.

    Raises NkiError (NKI040-NKI043, NKI060). Source: isa memset.
    """
    program = current()
    check.on_chip(dst=dst)
    chosen = check.pick_engine(engine, (_Engine.vector, _Engine.gpsimd), _Engine.vector, dst=dst)
    _check_fill(dst, value)
    check.writable(dst=dst)
    if program.numeric:
        is_float = DTYPES[dst.dtype].is_float
        dst.storage.write(dst, from_fp32(np.asarray(value, dtype=np.float32), dst.dtype) if is_float else value)
    return program.record(chosen.name, "memset", (dst,), (), {"value": value}, name)


def _check_fill(dst: NkiTensor, value: Any) -> None:
    """A fill value is a number that dst's dtype holds (NKI060)."""
    info = DTYPES[dst.dtype]
    if not check.is_number(value) and not (dst.dtype == "bool_" and isinstance(value, bool)):
        fail("NKI060", f"value={value!r} is not a number", dst=dst)
    if info.is_float:
        return
    limits = np.iinfo(info.numpy)
    low, high = (0, 1) if dst.dtype == "bool_" else (limits.min, limits.max)
    if not isinstance(value, numbers.Integral) or not low <= int(value) <= high:
        fail("NKI060", f"value={value!r} is not an integer of {dst.dtype} ({low}..{high})", dst=dst)


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: engine = engine.unknown, name: str | None = None
) -> Instruction:
    """dst = src on chip: bit-exact for equal dtypes, through fp32 otherwise.

    Args:
        dst, src: same partitions and elements a partition, SBUF or PSUM (SBUF only on GpSimd); either may be moved
            along its free dims by a scalar index.
        engine: vector (default), scalar or gpsimd.
    Raises NkiError (NKI040-NKI045, NKI138). Source: isa tensor_copy, mig 0.4.
    """
    program = current()
    to, origin = settled(dst), settled(src)
    check.on_chip(dst=to, src=origin)
    engines = (_Engine.vector, _Engine.scalar, _Engine.gpsimd)
    chosen = check.pick_engine(engine, engines, _Engine.vector, dst=dst, src=src)
    check.alike(dst=dst, src=src)
    check.writable(dst=dst)
    if program.numeric:
        values = origin.storage.read(origin)
        if src.dtype != dst.dtype:
            values = convert(values, src.dtype, dst.dtype)
        to.storage.write(to, shaped(values, dst))
    if to is dst and origin is src:
        return program.record(chosen.name, "tensor_copy", (dst,), (src,), None, name)
    reads = (src, *index_tensors(dst, src))
    instruction = program.record(chosen.name, "tensor_copy", (dst,), reads, indirect_params(dst, src), name)
    return after_registers(instruction, dst, src)


def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> Instruction:
    """dst = src where predicate is true (false with reverse_pred); other elements of dst stay.

    Args:
        dst: SBUF or PSUM. src: tensor of dst's dtype and size, or a number. predicate: uint8, uint16 or uint32.
    Raises NkiError (NKI044, NKI045, NKI047, NKI051, NKI052, NKI061). Source: isa tensor_copy_predicated.
    """
    program = current()
    check.on_chip(dst=dst, predicate=predicate)
    check.dtypes("NKI061", _PREDICATES, predicate=predicate)
    check.alike(dst=dst, predicate=predicate)
    reads: tuple[NkiTensor, ...] = (predicate,)
    if type(src) is NkiTensor:
        check.on_chip(src=src)
        check.alike(dst=dst, src=src)
        check.same_dtype(dst=dst, src=src)
        check.not_both_psum(src=src, predicate=predicate)
        reads = (predicate, src)
    elif not check.is_number(src):
        fail("NKI051", f"src={src!r} is neither a number nor a tensor")
    check.writable(dst=dst)
    if program.numeric:
        _copy_where(dst, src, predicate, reverse_pred)
    return program.record("vector", "tensor_copy_predicated", (dst,), reads, None, name)


def _copy_where(dst: NkiTensor, src: Any, predicate: NkiTensor, reverse: bool) -> None:
    mask = shaped(predicate.storage.read(predicate) != 0, dst)
    if type(src) is NkiTensor:
        values = shaped(src.storage.read(src), dst)
    else:
        values = from_fp32(np.array([src], dtype=np.float32), dst.dtype)
    dst.storage.write_where(dst, ~mask if reverse else mask, values)


def _binary_engine(op: Op, asked: Any, **operands: NkiTensor) -> engine:
    """Engine of a tensor_tensor: power needs GpSimd; 32-bit ints prefer it; Vector otherwise."""
    if op.name == "power":
        return check.pick_engine(asked, (_Engine.gpsimd,), _Engine.gpsimd, **operands)
    native = all(t.dtype in _INT32 for t in operands.values()) and all(t.buffer is not PSUM for t in operands.values())
    default = _Engine.gpsimd if native and op.kind != BITVEC else _Engine.vector
    return check.pick_engine(asked, (_Engine.vector, _Engine.gpsimd), default, **operands)


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = data1 op data2, element by element.

    Args:
        dst, data1, data2: same partitions and elements; not both inputs in PSUM; none in PSUM on GpSimd.
        op: binary operator. Bitvec ops work on integer bits; arithmetic is fp32, except that all-32-bit-integer
            operands on GpSimd (their default) use integer arithmetic. power runs on GpSimd only, always in fp32.
    Raises NkiError (NKI041, NKI042, NKI044, NKI045, NKI047, NKI048, NKI049, NKI050). Source: isa tensor_tensor.
    """
    program = current()
    check.on_chip(dst=dst, data1=data1, data2=data2)
    token = check.binary_operator("op", op)
    check.bitvec_dtypes(token, dst=dst, data1=data1, data2=data2)
    chosen = _binary_engine(token, engine, dst=dst, data1=data1, data2=data2)
    check.not_both_psum(data1=data1, data2=data2)
    check.alike(dst=dst, data1=data1, data2=data2)
    check.writable(dst=dst)
    if program.numeric:
        native = chosen is _Engine.gpsimd and token.name != "power"
        if token.kind == BITVEC or (native and {dst.dtype, data1.dtype, data2.dtype} <= _INT32):
            _combine_integers(dst, data1, data2, token)
        else:
            a, b = read_fp32(data1), read_fp32(data2)
            assert token.compute is not None
            write_fp32(dst, token.compute(a, b if a.shape == b.shape else b.reshape(a.shape)))
    return program.record(chosen.name, "tensor_tensor", (dst,), (data1, data2), {"op": token.name}, name)


def _combine_integers(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Op) -> None:
    """Native integer arithmetic and bit operations; results wrap to dst's width."""
    assert op.compute is not None
    a, b = data1.storage.read(data1), data2.storage.read(data2)
    out = np.asarray(op.compute(a, b.reshape(a.shape)))
    write(dst, out.astype(DTYPES[dst.dtype].numpy))


def with_scalar(values: Array, op: Op, operand: Any, reverse: bool) -> Array:
    """values op operand in fp32, of a scalar operand as instructions take it."""
    return apply_scalar(values, op, None if op.unary else scalar_values(operand, values.ndim), reverse)


def apply_scalar(values: Array, op: Op, operand: Any, reverse: bool) -> Array:
    """values op operand (operand op values with reverse); unary ops ignore the operand."""
    assert op.compute is not None
    if op.unary:
        return op.compute(values)
    return op.compute(operand, values) if reverse else op.compute(values, operand)


def _scalar_engine(asked: Any, op0: Op, op1: Op | None) -> engine:
    """Engine of a tensor_scalar (NKI041, NKI074): GpSimd for rsqrt, Vector for the rest, Scalar where it can."""
    names = (op0.name, op1.name if op1 else None)
    default = _Engine.gpsimd if "rsqrt" in names else _Engine.vector
    chosen = check.pick_engine(asked, (_Engine.vector, _Engine.scalar, _Engine.gpsimd), default)
    if chosen is not default and not (chosen is _Engine.scalar and names in _SCALAR_ENGINE_OPS):
        fail("NKI074", f"op0={names[0]}, op1={names[1]} on the {chosen.name} engine")
    return chosen


def tensor_scalar_operand(label: str, op: Op, value: Any, data: NkiTensor) -> tuple[NkiTensor, ...]:
    """Check one operand of a tensor_scalar op (NKI050, NKI051, NKI075); returns the tensor it reads, if any."""
    if op.unary:
        if value is not None and not (check.is_number(value) and value == 0):
            fail("NKI075", f"{label}={value!r} for the unary {op!r}", data=data)
        return ()
    if op.kind != BITVEC:
        return check.scalar_operand(label, value, data)
    if check.is_number(value) and not (math.isfinite(value) and int(value) == value):
        fail("NKI050", f"{label}={value!r} is not an integer", data=data)
    return check.scalar_operand(label, value, data, INTEGERS)


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = (data op0 operand0) op1 operand1, operands broadcast along the free dims.

    Args:
        operand0, operand1: numbers or fp32 [P, 1] tiles (integers for bitvec ops).
        reverse0, reverse1: swap the sides of op0 / op1.
        engine: vector; scalar (multiply-add, multiply, add); gpsimd (rsqrt).
    Raises NkiError (NKI041, NKI042, NKI044, NKI045, NKI048-NKI051, NKI074-NKI076). Source: isa tensor_scalar.
    """
    program = current()
    check.on_chip(dst=dst, data=data)
    token0 = check.scalar_operator("op0", op0)
    token1 = None if op1 is None else check.scalar_operator("op1", op1)
    if token1 is None and operand1 is not None:
        fail("NKI076", f"operand1={operand1!r} without op1", data=data)
    if token1 is not None and not token1.unary and operand1 is None:
        fail("NKI076", f"op1={token1!r} without operand1", data=data)
    if token1 is not None and token0.kind != token1.kind:
        fail("NKI050", f"op0={token0!r} and op1={token1!r} are of different kinds", data=data)
    check.bitvec_dtypes(token0, dst=dst, data=data)
    chosen = _scalar_engine(engine, token0, token1)
    check.alike(dst=dst, data=data)
    scalars = tensor_scalar_operand("operand0", token0, operand0, data)
    if token1 is not None:
        scalars += tensor_scalar_operand("operand1", token1, operand1, data)
    if chosen is _Engine.gpsimd:
        check.not_psum(dst=dst, data=data, **{f"operand{i}": tensor for i, tensor in enumerate(scalars)})
    check.writable(dst=dst)
    if program.numeric:
        steps = [(token0, operand0, reverse0)] + ([(token1, operand1, reverse1)] if token1 else [])
        _scalar_steps(dst, data, steps)
    params = {"op0": token0.name, "op1": token1.name if token1 else None}
    return program.record(chosen.name, "tensor_scalar", (dst,), (data, *scalars), params, name)


def _scalar_steps(dst: NkiTensor, data: NkiTensor, steps: list[tuple[Op, Any, bool]]) -> None:
    if steps[0][0].kind == BITVEC:
        values = data.storage.read(data)
        for op, operand, reverse in steps:
            values = apply_scalar(values, op, _integer_operand(op, operand, values, reverse), reverse)
        write(dst, values.astype(DTYPES[dst.dtype].numpy))
        return
    values = read_fp32(data)
    for op, operand, reverse in steps:
        values = with_scalar(values, op, operand, reverse)
    write_fp32(dst, values)


def _integer_operand(op: Op, operand: Any, values: Array, reverse: bool) -> Any:
    """A bitvec operand in the data's width; a shift count keeps its value."""
    if op.unary:
        return None
    if type(operand) is NkiTensor:
        column = operand.storage.read(operand).reshape(-1, *(1,) * (values.ndim - 1))
    else:
        column = np.asarray(int(operand))
    is_count = op.name in ("left_shift", "right_shift") and not reverse
    return column if is_count else column.astype(values.dtype)


def _check_two(op0: Any, op1: Any, dst: NkiTensor, **inputs: Any) -> tuple[Op, Op]:
    """Arithmetic operators of two tensors that are like dst and not both in PSUM."""
    check.on_chip(dst=dst, **inputs)
    token0 = check.arithmetic("op0", check.binary_operator("op0", op0))
    token1 = check.arithmetic("op1", check.binary_operator("op1", op1))
    check.alike(dst=dst, **inputs)
    check.not_both_psum(**inputs)
    check.writable(dst=dst)
    return token0, token1


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = (data op0 operand0) op1 operand1 on the Vector Engine, operand1 a tensor.

    Args:
        data, operand1, dst: same partitions and elements; data and operand1 not both in PSUM.
        operand0: number or [P, 1] tile of any dtype. op0, op1: arithmetic binary operators.
    Raises NkiError (NKI040, NKI043-NKI051). Source: isa scalar_tensor_tensor.
    """
    program = current()
    token0, token1 = _check_two(op0, op1, dst, data=data, operand1=operand1)
    scalar = check.scalar_operand("operand0", operand0, data, tuple(DTYPES))
    if program.numeric:
        values = with_scalar(read_fp32(data), token0, operand0, reverse0)
        write_fp32(dst, apply_scalar(values, token1, shaped(read_fp32(operand1), data), reverse1))
    params = {"op0": token0.name, "op1": token1.name}
    return program.record("vector", "scalar_tensor_tensor", (dst,), (data, operand1, *scalar), params, name)


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst[:, i] = (data0[:, i] op0 dst[:, i-1]) op1 data1[:, i], starting from `initial`.

    Args:
        data0, data1, dst: same partitions and elements; inputs not both in PSUM.
        initial: number or [P, 1] tile. reverse0: the running value is op0's left side. reverse1: data1 is op1's.
    Raises NkiError (NKI044, NKI045, NKI047, NKI048, NKI050, NKI051). Source: isa tensor_tensor_scan.
    """
    program = current()
    token0, token1 = _check_two(op0, op1, dst, data0=data0, data1=data1)
    seed = check.scalar_operand("initial", initial, data0, tuple(DTYPES))
    if program.numeric:
        a, b = rows(read_fp32(data0)), rows(read_fp32(data1))
        out = np.empty_like(a)
        running = np.broadcast_to(np.asarray(scalar_values(initial, 2)).reshape(-1), len(a)).astype(np.float32)
        for i in range(a.shape[1]):
            running = apply_scalar(apply_scalar(a[:, i], token0, running, reverse0), token1, b[:, i], reverse1)
            out[:, i] = running
        write_fp32(dst, out)
    params = {"op0": token0.name, "op1": token1.name}
    return program.record("vector", "tensor_tensor_scan", (dst,), (data0, data1, *seed), params, name)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst = 1 / data in fp32 on the Vector Engine; dst, data: [P, F...] SBUF or PSUM, any dtypes.

    Raises NkiError (NKI040, NKI043-NKI046). Source: isa reciprocal.
    """
    program = current()
    check.on_chip(dst=dst, data=data)
    check.alike(dst=dst, data=data)
    check.writable(dst=dst)
    if program.numeric:
        write_fp32(dst, np.reciprocal(read_fp32(data)))
    return program.record("vector", "reciprocal", (dst,), (data,), None, name)
