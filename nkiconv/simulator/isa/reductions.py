"""Vector Engine instructions that reduce along the free dims or move data between partitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, Array
from ..ops import BITVEC, OPS, REDUCE_IDENTITY, Op
from ..program import Accumulator, Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from .enums import reduce_cmd
from .operands import (
    alike,
    bitvec_dtypes,
    enum_member,
    first_partition,
    free_size,
    not_both_psum,
    on_chip,
    operator,
    read_fp32,
    same_dtype,
    scalar_operand,
    scalar_operator,
    scalar_values,
    shaped,
    writable,
    write_fp32,
)
from .vector_engine import apply_scalar, tensor_scalar_operand

_ReduceCmd = reduce_cmd
_NARROW_INTS = ("int8", "uint8", "int16", "uint16")


def reduction_operator(name: str, op: Any) -> Op:
    """An operator that reductions accept (NKI063)."""
    token = operator(name, op)
    if not token.reduces:
        fail("NKI063", f"{name}={op!r} does not reduce")
    return token


def reduce_all(values: Array, op: Op) -> Array:
    """Reduce [P, F] along F to [P] in the values' dtype; a reduction's name is that of its NumPy ufunc."""
    ufunc: np.ufunc = getattr(np, op.name)
    total: Array = ufunc.reduce(values, axis=1)
    return total.astype(values.dtype, copy=False)


def _reduced_axes(data: NkiTensor, axis: Any) -> tuple[int, ...]:
    """The reduced dims in order (NKI062)."""
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if not given or any(type(a) is not int for a in given):
        fail("NKI062", f"axis={axis!r} is neither an int nor a tuple of ints", data=data)
    axes = tuple(sorted(a + data.ndim if a < 0 else a for a in given))
    if axes != tuple(range(data.ndim - len(axes), data.ndim)) or axes[0] == 0:
        fail("NKI062", f"axis={axis!r} of a {data.ndim}-d tile", data=data)
    return axes


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = data reduced over its last free dims on the Vector Engine.

    Args:
        dst: one element for each kept free element. data: SBUF or PSUM, up to 4 free dims.
        axis: int or tuple: the last dims, contiguously, never 0. negate: arithmetic ops only.
        keepdims: the reduced dims stay with size 1; dst may have any shape with the right number of elements.
    Raises NkiError (NKI040, NKI043-NKI046, NKI049, NKI050, NKI062-NKI064). Source: isa tensor_reduce.
    """
    program = current()
    on_chip(free_dims=hw.FREE_DIMS_MAX_WIDE, dst=dst, data=data)
    token = reduction_operator("op", op)
    bitvec_dtypes(token, dst=dst, data=data)
    if negate and token.kind == BITVEC:
        fail("NKI064", f"negate with {token!r}", data=data)
    axes = _reduced_axes(data, axis)
    kept = free_size(data) // int(np.prod([data.shape[a] for a in axes]))
    if dst.shape[0] != data.shape[0]:
        fail("NKI044", f"dst has {dst.shape[0]} partitions, data {data.shape[0]}", dst=dst, data=data)
    if free_size(dst) != kept:
        fail("NKI045", f"dst has {free_size(dst)} elements a partition, the reduction {kept}", dst=dst, data=data)
    writable(dst=dst)
    if program.numeric:
        values = data.storage.read(data) if token.kind == BITVEC else read_fp32(data)
        total = reduce_all(values.reshape(data.shape[0] * kept, -1), token)
        if token.kind == BITVEC:
            dst.storage.write(dst, shaped(total.astype(DTYPES[dst.dtype].numpy), dst))
        else:
            write_fp32(dst, -total if negate else total)
    params = {"op": token.name, "axis": axes, "keepdims": keepdims}
    return program.record("vector", "tensor_reduce", (dst,), (data,), params, name)


def accumulate(registers: Accumulator, op: Op, totals: Array, command: reduce_cmd, initial: Any) -> None:
    """Fold [P] totals into an engine's registers as `command` says (NKI068, NKI077)."""
    if command in (_ReduceCmd.reset, _ReduceCmd.reset_reduce):
        registers.values, registers.op = np.full(len(totals), REDUCE_IDENTITY[op.name], np.float32), op
        if command is _ReduceCmd.reset:
            return
    elif command is _ReduceCmd.load_reduce:
        registers.values = np.broadcast_to(np.asarray(initial, np.float32).reshape(-1), (len(totals),)).copy()
        registers.op = op
    check_registers(registers, op, len(totals), command)
    assert op.compute is not None
    registers.values = op.compute(registers.values, totals).astype(np.float32)


def check_registers(registers: Accumulator, op: Op, partitions: int, command: reduce_cmd) -> None:
    """An engine's registers hold values of this reduction, one a partition (NKI077)."""
    if registers.values is None or registers.op is not op or len(registers.values) != partitions:
        fail("NKI077", f"reduce_cmd.{command.name} with {op!r} on registers that hold {registers.op!r}")


def check_reduce_res(reduce_res: Any, data: NkiTensor) -> tuple[NkiTensor, ...]:
    """reduce_res is None or a [P, 1] tile (NKI068)."""
    if reduce_res is None:
        return ()
    on_chip(reduce_res=reduce_res)
    if reduce_res.shape[0] != data.shape[0] or free_size(reduce_res) != 1:
        fail("NKI068", f"reduce_res has shape {reduce_res.shape}, expected ({data.shape[0]}, 1)", reduce_res=reduce_res)
    return (reduce_res,)


def read_out(registers: Accumulator, reduce_res: NkiTensor, *, negate: bool = False) -> None:
    """Write an engine's registers to reduce_res."""
    if registers.values is None:
        fail("NKI077", "reduce_res reads registers that nothing was reduced into", reduce_res=reduce_res)
    values = -registers.values if negate else registers.values
    write_fp32(reduce_res, values.reshape(reduce_res.shape))


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = data op0 operand0, and its reduction over all free dims into the Vector registers and reduce_res [P, 1].

    Args:
        operand0: number or fp32 [P, 1] tile. reduce_op: add, multiply, maximum or minimum.
        reduce_cmd: reset_reduce, reduce, or load_reduce (which needs reduce_init, a number or fp32 [P, 1] tile).
        reduce_res_negate: reduce_res receives the negative of the registers, which keep theirs.
    Raises NkiError (NKI044, NKI045, NKI050, NKI051, NKI063, NKI068, NKI075, NKI077, NKI078).
    Source: isa tensor_scalar_reduce.
    """
    program = current()
    on_chip(dst=dst, data=data)
    token, reducer = scalar_operator("op0", op0), reduction_operator("reduce_op", reduce_op)
    if token.kind == BITVEC:
        fail("NKI050", f"op0={token!r}: bitvec ops are not supported", data=data)
    if reducer.name not in ("add", "multiply", "maximum", "minimum"):
        fail("NKI063", f"reduce_op={reduce_op!r}; add, multiply, maximum or minimum", data=data)
    if reverse0:
        fail("NKI078", "reverse0=True", data=data)
    enum_member("reduce_cmd", reduce_cmd, _ReduceCmd)
    loads = reduce_cmd is _ReduceCmd.load_reduce
    if reduce_cmd in (_ReduceCmd.idle, _ReduceCmd.reset) or loads != (reduce_init is not None):
        fail("NKI068", f"reduce_cmd.{reduce_cmd.name} with reduce_init={reduce_init!r}", data=data)
    alike(dst=dst, data=data)
    reads = (data, *tensor_scalar_operand("operand0", token, operand0, data))
    reads += scalar_operand("reduce_init", reduce_init, data) if loads else ()
    writes = (dst, *check_reduce_res(reduce_res, data))
    writable(dst=dst)
    if program.numeric:
        values = read_fp32(data)
        values = apply_scalar(values, token, None if token.unary else scalar_values(operand0, values.ndim), False)
        write_fp32(dst, values)
        totals = reduce_all(values.reshape(data.shape[0], -1), reducer)
        initial = scalar_values(reduce_init, 2) if loads else None
        accumulate(program.vector_accumulator, reducer, totals, reduce_cmd, initial)
        if reduce_res is not None:
            read_out(program.vector_accumulator, reduce_res, negate=reduce_res_negate)
    params = {"op0": token.name, "reduce_op": reducer.name, "reduce_cmd": reduce_cmd.name}
    return program.record("vector", "tensor_scalar_reduce", writes, reads, params, name)


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: Any = OPS["maximum"],
    reverse_pred: bool = False,
    name: str | None = None,
) -> Instruction:
    """dst = on_true where predicate, else on_false; optionally the maximum of dst a partition.

    An idle instruction leaves the Vector registers undefined, as the document warns.

    Args:
        predicate: int8, uint8, int16 or uint16, of on_true's size, not both in PSUM.
        on_true: any dtype but tf32 and 32-bit ints. on_false: number or [P, 1] tile.
        reduce_res: float [P, 1]. reduce_cmd: idle, reduce or reset_reduce. reduce_op: nl.maximum.
    Raises NkiError (NKI044, NKI045, NKI047, NKI051, NKI052, NKI061, NKI063, NKI068, NKI077). Source: isa select_reduce.
    """
    program = current()
    on_chip(dst=dst, predicate=predicate, on_true=on_true)
    if predicate.dtype not in _NARROW_INTS:
        accepted = ", ".join(_NARROW_INTS)
        fail("NKI061", f"predicate has dtype {predicate.dtype}; accepted: {accepted}", predicate=predicate)
    if on_true.dtype in ("tfloat32", "int32", "uint32"):
        fail("NKI052", f"on_true has dtype {on_true.dtype}, which select_reduce does not take", on_true=on_true)
    alike(dst=dst, predicate=predicate, on_true=on_true)
    not_both_psum(predicate=predicate, on_true=on_true)
    if operator("reduce_op", reduce_op).name != "maximum":
        fail("NKI063", f"reduce_op={reduce_op!r}; only nl.maximum", dst=dst)
    enum_member("reduce_cmd", reduce_cmd, _ReduceCmd)
    if reduce_cmd in (_ReduceCmd.reset, _ReduceCmd.load_reduce) or (
        reduce_cmd is _ReduceCmd.idle and reduce_res is not None
    ):
        fail("NKI068", f"reduce_cmd.{reduce_cmd.name} with reduce_res={reduce_res!r}", dst=dst)
    reads = (predicate, on_true, *scalar_operand("on_false", on_false, on_true, tuple(DTYPES)))
    writes = (dst, *check_reduce_res(reduce_res, on_true))
    if reduce_res is not None and not DTYPES[reduce_res.dtype].is_float:
        fail("NKI068", f"reduce_res has dtype {reduce_res.dtype}, expected a float", reduce_res=reduce_res)
    writable(dst=dst)
    if program.numeric:
        chosen = _selected(predicate, on_true, on_false, reverse_pred)
        write_fp32(dst, chosen)
        if reduce_cmd is _ReduceCmd.idle:
            program.vector_accumulator.values = None
        else:
            totals = reduce_all(chosen.reshape(dst.shape[0], -1), OPS["maximum"])
            accumulate(program.vector_accumulator, OPS["maximum"], totals, reduce_cmd, None)
        if reduce_res is not None:
            read_out(program.vector_accumulator, reduce_res)
    return program.record("vector", "select_reduce", writes, reads, {"reduce_cmd": reduce_cmd.name}, name)


def _selected(predicate: NkiTensor, on_true: NkiTensor, on_false: Any, reverse: bool) -> Array:
    values = read_fp32(on_true)
    mask = (predicate.storage.read(predicate) != 0).reshape(values.shape)
    return np.where(~mask if reverse else mask, values, scalar_values(on_false, values.ndim)).astype(np.float32)


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 6] = (count, mean, variance * count) of data's even elements, then of its odd ones.

    Args: data: up to 512 elements a partition. Raises NkiError (NKI044, NKI065). Source: isa bn_stats.
    """
    program = current()
    on_chip(dst=dst, data=data)
    if dst.shape[0] != data.shape[0]:
        fail("NKI044", f"dst has {dst.shape[0]} partitions, data {data.shape[0]}", dst=dst, data=data)
    if free_size(data) > hw.BN_STATS_FREE_MAX or free_size(dst) != 6:
        fail("NKI065", f"data has {free_size(data)} elements a partition, dst {free_size(dst)}", dst=dst, data=data)
    writable(dst=dst)
    if program.numeric:
        values = read_fp32(data).reshape(data.shape[0], -1)
        out = np.zeros((data.shape[0], 6), np.float32)
        for at, part in ((0, values[:, 0::2]), (3, values[:, 1::2])):
            if part.shape[1]:
                mean = part.mean(axis=1, dtype=np.float32)
                out[:, at], out[:, at + 1] = part.shape[1], mean
                out[:, at + 2] = np.square(part - mean[:, None]).sum(axis=1, dtype=np.float32)
        write_fp32(dst, out)
    return program.record("vector", "bn_stats", (dst,), (data,), None, name)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """dst[P, 2] = mean and variance from the (count, mean, variance * count) triples of bn_stats.

    Raises NkiError (NKI044, NKI066). Source: isa bn_aggr.
    """
    program = current()
    on_chip(dst=dst, data=data)
    if dst.shape[0] != data.shape[0]:
        fail("NKI044", f"dst has {dst.shape[0]} partitions, data {data.shape[0]}", dst=dst, data=data)
    if free_size(data) % 3 or free_size(dst) != 2:
        fail("NKI066", f"data has {free_size(data)} elements a partition, dst {free_size(dst)}", dst=dst, data=data)
    writable(dst=dst)
    if program.numeric:
        triples = read_fp32(data).reshape(data.shape[0], -1, 3)
        counts, means, sums = triples[..., 0], triples[..., 1], triples[..., 2]
        total = counts.sum(axis=1)
        mean = (counts * means).sum(axis=1) / total
        variance = (sums + counts * np.square(means - mean[:, None])).sum(axis=1) / total
        write_fp32(dst, np.stack([mean, variance], axis=1))
    return program.record("vector", "bn_aggr", (dst,), (data,), None, name)


def _shuffle_start(name: str, tensor: NkiTensor, active: int) -> None:
    step = hw.PARTITIONS if active > 64 else active
    start = first_partition(tensor)
    if start % step:
        fail("NKI079", f"{name} starts at partition {start} with {active} active", **{name: tensor})


def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> Instruction:
    """dst[q, i] = src[q, mask[i]] within each quadrant q of 32 partitions; mask 255 leaves a partition alone.

    Args: dst, src: same dtype and elements a partition. shuffle_mask: 32 ints, 0-31 or 255.
    Raises NkiError (NKI040, NKI043, NKI045, NKI052, NKI073, NKI079). Source: isa nc_stream_shuffle.
    """
    program = current()
    on_chip(dst=dst, src=src)
    same_dtype(dst=dst, src=src)
    if free_size(dst) != free_size(src):
        fail("NKI045", f"dst has {free_size(dst)} elements a partition, src {free_size(src)}", dst=dst, src=src)
    mask = list(shuffle_mask)
    entries = {*range(hw.QUADRANT_PARTITIONS), hw.SHUFFLE_KEEP}
    if len(mask) != hw.SHUFFLE_MASK_ENTRIES or any(type(m) is not int or m not in entries for m in mask):
        fail("NKI073", f"shuffle_mask={shuffle_mask!r}")
    quadrants = -(-max(dst.shape[0], src.shape[0]) // hw.QUADRANT_PARTITIONS)
    for label, tensor in (("dst", dst), ("src", src)):
        _shuffle_start(label, tensor, quadrants * hw.QUADRANT_PARTITIONS)
    sources, moved = _shuffle_sources(mask, dst, src)
    writable(dst=dst)
    if program.numeric:
        rows = src.storage.read(src).reshape(src.shape[0], -1)[sources]
        chosen = np.broadcast_to(moved.reshape(-1, *(1,) * (dst.ndim - 1)), dst.shape)
        dst.storage.write_where(dst, chosen, shaped(rows, dst))
    return program.record("vector", "nc_stream_shuffle", (dst,), (src,), {"mask": tuple(mask)}, name)


def _shuffle_sources(mask: list[int], dst: NkiTensor, src: NkiTensor) -> tuple[Array, Array]:
    """For each partition of dst: the partition of src it copies (0 if none), and whether it copies at all (NKI073)."""
    partitions = np.arange(dst.shape[0])
    within = np.array(mask)[partitions % hw.QUADRANT_PARTITIONS]
    moved = within != hw.SHUFFLE_KEEP
    sources = np.where(moved, partitions - partitions % hw.QUADRANT_PARTITIONS + within, 0)
    outside = np.flatnonzero(sources >= src.shape[0])
    if outside.size:
        p = int(outside[0])
        fail("NKI073", f"partition {p} copies from {int(sources[p])}, src has {src.shape[0]}", dst=dst, src=src)
    return sources, moved
