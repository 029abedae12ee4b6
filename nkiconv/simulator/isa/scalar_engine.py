"""Scalar Engine: activation and activation_reduce.

op(data * scale + bias) in fp32; functions are exact to fp32 here, piecewise polynomials on hardware.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DTYPES, Array
from ..memory import first_index
from ..ops import OPS, Op
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import reduce_cmd
from .reductions import check_reduce_res, fold
from .values import read_fp32, scalar_values, write_fp32

_ReduceCmd = reduce_cmd
_BIAS_DTYPES = tuple(name for name in DTYPES if name != "tfloat32")


def _activated(op: Op, data: NkiTensor, scale: Any, bias: Any) -> Array:
    values = read_fp32(data)
    if type(scale) is NkiTensor or scale != 1.0:
        values = values * scalar_values(scale, values.ndim)
    if bias is not None:
        values = values + scalar_values(bias, values.ndim)
    if op.valid is not None:
        _check_range(op, values, data)
    assert op.activation is not None
    return np.asarray(op.activation(values), dtype=np.float32)


def _check_range(op: Op, values: Array, data: NkiTensor) -> None:
    assert op.valid is not None
    bad = ~(op.valid(values) | np.isnan(values))
    if bad.any():
        index = first_index(bad, bad.ndim)
        fail("NKI069", f"{op!r} of {values[index]} at {index}; valid is {op.valid_text}", data=data)


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> Instruction:
    """dst = op(data * scale + bias) on the Scalar Engine; optionally the sum over the free dims.

    Args:
        dst, data: same partitions and elements, SBUF or PSUM, any dtypes. If only the sum is wanted, dst may be a view
            with steps of 0, as nki-library's kernels have it to save memory; its values are undocumented, so that
            reading it is an error.
        bias: None, a number, or a [P, 1] tile (not tf32). scale: a number or an fp32 [P, 1] tile.
        reduce_op: nl.add, needed when reduce_cmd reduces. reduce_res: [P, 1], receives the registers.
    Raises NkiError (NKI030, NKI040, NKI044, NKI045, NKI049, NKI067-NKI070, NKI077).
    Source: isa activation, nki-act-func.
    """
    program = current()
    check.on_chip(dst=dst, data=data)
    token = check.operator("op", op)
    if token.activation is None:
        fail("NKI067", f"op={op!r}")
    check.alike(dst=dst, data=data)
    reads = (data, *check.scalar_operand("scale", scale, data, rule="NKI070"))
    if bias is not None:
        reads += check.scalar_operand("bias", bias, data, _BIAS_DTYPES, "NKI070")
    check.enum_member("reduce_cmd", reduce_cmd, _ReduceCmd)
    reduces = reduce_cmd in (_ReduceCmd.reduce, _ReduceCmd.reset_reduce)
    if reduce_cmd is _ReduceCmd.load_reduce:
        fail("NKI068", "activation has no reduce_cmd.load_reduce", data=data)
    if (reduces and reduce_op is None) or (reduce_op is not None and reduce_op is not OPS["add"]):
        fail("NKI068", f"reduce_op={reduce_op!r} with reduce_cmd.{reduce_cmd.name}; only nl.add", data=data)
    writes = (dst, *check_reduce_res(reduce_res, data))
    scrap = reduces and check.aliases(dst.shape, dst.strides)
    if not scrap:
        check.writable(dst=dst)
    if program.numeric:
        values = _activated(token, data, scale, bias)
        if scrap:
            dst.storage.discard(dst)
        else:
            write_fp32(dst, values)
        fold(program.scalar_accumulator, OPS["add"], values, reduce_cmd, reduce_res)
    params = {"op": token.name, "reduce_cmd": reduce_cmd.name, "bias": bias is not None}
    return program.record("scalar", "activation", writes, reads, params, name)


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> Instruction:
    """`activation` with reduce_cmd.reset_reduce: dst = op(data * scale + bias), reduce_res = its sum a partition.

    reduce_res: [P, 1] tile, or None to leave the sum in the registers. Raises what `activation` raises.
    Source: isa activation_reduce.
    """
    return activation(dst, op, data, bias, scale, reduce_op, reduce_res, _ReduceCmd.reset_reduce, name)
