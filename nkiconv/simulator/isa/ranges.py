"""Vector Engine instructions that keep a running value or know an element's index: range_select, cumulative sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DTYPES, FLOATS, Array
from ..ops import OPS, REDUCE_IDENTITY, Op
from ..program import Accumulator, Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import reduce_cmd
from .reductions import check_maximum, check_reduce_res, check_registers, check_start, write_maximum
from .values import free_size, read_fp32, rows, scalar_values, write_fp32

_ReduceCmd = reduce_cmd

#: The fill of range_select: the lowest fp32 number, as the hardware has it.
FP32_MIN = float(np.finfo(np.float32).min)
#: Indices that fp32 counts exactly.
_INDEX_LIMIT = 1 << 24

_CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
_CUMULATED = tuple(name for name in DTYPES if name not in ("int32", "uint32", "tfloat32", "bool_", "float8_e8m0fnu"))


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = OPS["maximum"],
    range_start: int = 0,
    on_false_value: Any = FP32_MIN,
    name: str | None = None,
) -> Instruction:
    """dst = on_true_tile where comp_op0(i, bound0) and comp_op1(i, bound1), else FP32_MIN; its maximum a partition.

    i is range_start plus the element's place in its flattened partition, compared in fp32. The maximum is that of the
    fp32 values, before they are cast to dst. An idle instruction leaves the Vector registers undefined, as with
    select_reduce (not documented here).

    Args:
        dst, on_true_tile: same partitions and elements; on_true_tile of a float dtype, SBUF or PSUM.
        comp_op0, comp_op1: equal, less, less_equal, greater or greater_equal. bound0, bound1: fp32 [P, 1] tiles.
        reduce_cmd: reset_reduce, reduce or idle. reduce_res: None or [P, 1]. reduce_op: nl.maximum.
        range_start: an int; it and all indices lie within 2^24. on_false_value: -3.4028235e+38.
    Raises NkiError (NKI044, NKI045, NKI048, NKI051, NKI052, NKI063, NKI068, NKI077, NKI084, NKI085).
    Source: isa range_select.
    """
    program = current()
    check.on_chip(dst=dst, on_true_tile=on_true_tile)
    check.alike(dst=dst, on_true_tile=on_true_tile)
    check.dtypes("NKI052", FLOATS, on_true_tile=on_true_tile)
    tests = (_range_test("comp_op0", comp_op0), _range_test("comp_op1", comp_op1))
    for label, bound in (("bound0", bound0), ("bound1", bound1)):
        if type(bound) is not NkiTensor:
            fail("NKI051", f"{label}={bound!r} is not a tile", dst=dst)
        check.scalar_operand(label, bound, on_true_tile)
    check_maximum(dst, reduce_cmd, reduce_res, reduce_op)
    _check_range(dst, range_start, on_false_value)
    writes = (dst, *check_reduce_res(reduce_res, on_true_tile))
    check.writable(dst=dst)
    if program.numeric:
        values = rows(read_fp32(on_true_tile))
        index = np.arange(range_start, range_start + values.shape[1]).astype(np.float32)
        inside = [_truth(op, index, scalar_values(b, 2)) for op, b in zip(tests, (bound0, bound1), strict=True)]
        chosen = np.where(inside[0] & inside[1], values, np.float32(FP32_MIN))
        with np.errstate(over="ignore"):  # FP32_MIN is -inf in narrower floats, as documented
            write_maximum(program.vector_accumulator, dst, chosen, reduce_cmd, reduce_res)
    params = {"reduce_cmd": reduce_cmd.name}
    return program.record("vector", "range_select", writes, (on_true_tile, bound0, bound1), params, name)


def _range_test(label: str, op: Any) -> Op:
    token = check.comparison(label, op)
    if token.name == "not_equal":
        fail("NKI048", f"{label}={op!r}; equal, less, less_equal, greater or greater_equal")
    return token


def _truth(op: Op, index: Array, bound: Array) -> Array:
    assert op.compute is not None
    holds: Array = op.compute(index, bound) != 0
    return holds


def _check_range(dst: NkiTensor, start: Any, fill: Any) -> None:
    """The settings of range_select (NKI084, NKI085)."""
    if not check.is_number(fill) or np.float32(fill) != np.float32(FP32_MIN):
        fail("NKI085", f"on_false_value={fill!r}; range_select writes {FP32_MIN}", dst=dst)
    if type(start) is not int or start < -_INDEX_LIMIT or start + free_size(dst) > _INDEX_LIMIT:
        fail("NKI084", f"range_start={start!r} with {free_size(dst)} elements a partition", dst=dst)


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    name: str | None = None,
) -> Instruction:
    """dst[:, i] = register = (src[:, i] op0 imm0) op1 register, along the flattened free dims.

    The register is the Vector Engine's, which the next accumulating instruction finds as this one leaves it. subtract
    takes the register from the element, as the document's formula has it.

    Args:
        dst, src: same partitions and elements; floats or integers of 8 and 16 bits, or fp32.
        op0: an arithmetic binary operator. op1: add, subtract, multiply, maximum or minimum.
        imm0: number or fp32 [P, 1] tile. imm1: the same, the start of load_reduce, and only given with it.
        reduce_cmd: reset_reduce (start from op1's identity), reduce (go on), or load_reduce.
    Raises NkiError (NKI044, NKI045, NKI048, NKI050-NKI052, NKI063, NKI068, NKI077). Source: isa
    tensor_scalar_cumulative.
    """
    program = current()
    check.on_chip(dst=dst, src=src)
    check.alike(dst=dst, src=src)
    token0 = check.arithmetic("op0", check.binary_operator("op0", op0))
    token1 = check.binary_operator("op1", op1)
    if token1.name not in _CUMULATIVE:
        fail("NKI063", f"op1={op1!r}; one of {', '.join(_CUMULATIVE)}", src=src)
    check.dtypes("NKI052", _CUMULATED, dst=dst, src=src)
    loads = check_start(reduce_cmd, "imm1", imm1, src)
    reads = (src, *check.scalar_operand("imm0", imm0, src))
    reads += check.scalar_operand("imm1", imm1, src) if loads else ()
    check.writable(dst=dst)
    if program.numeric:
        assert token0.compute is not None
        values = np.asarray(token0.compute(rows(read_fp32(src)), scalar_values(imm0, 2)))
        start = scalar_values(imm1, 2) if loads else None
        write_fp32(dst, _cumulated(program.vector_accumulator, token1, values, reduce_cmd, start))
    params = {"op0": token0.name, "op1": token1.name, "reduce_cmd": reduce_cmd.name}
    return program.record("vector", "tensor_scalar_cumulative", (dst,), reads, params, name)


def _cumulated(registers: Accumulator, op: Op, values: Array, command: reduce_cmd, start: Any) -> Array:
    """Running values of [P, F] in fp32; the last ones stay in the registers."""
    assert op.compute is not None
    if command is _ReduceCmd.reduce:
        check_registers(registers, op, len(values), command)
        running = registers.values
    else:
        first = REDUCE_IDENTITY[op.name] if start is None else np.asarray(start).reshape(-1)
        running = np.broadcast_to(np.asarray(first, np.float32), (len(values),))
    out = np.empty(values.shape, np.float32)
    for i in range(values.shape[1]):
        running = out[:, i] = op.compute(values[:, i].astype(np.float32), running)
    registers.values, registers.op = out[:, -1].copy(), op
    return out
