"""Vector Engine instructions that reduce along the free dims or move data between partitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES, FLOATS, Array
from ..objects import listed
from ..ops import BITVEC, OPS, REDUCE_IDENTITY, Op
from ..program import Accumulator, Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import reduce_cmd
from .values import first_partition, free_size, read_fp32, rows, scalar_values, shaped, write, write_fp32
from .vector_engine import tensor_scalar_operand, with_scalar

_ReduceCmd = reduce_cmd
_NARROW_INTS = ("int8", "uint8", "int16", "uint16")
#: What select_reduce chooses from.
_SELECTED = tuple(name for name in DTYPES if name not in ("tfloat32", "int32", "uint32"))


def reduction_operator(name: str, op: Any) -> Op:
    """An operator that reductions accept (NKI063)."""
    token = check.operator(name, op)
    if not token.reduces:
        fail("NKI063", f"{name}={op!r} does not reduce")
    return token


def reduce_all(values: Array, op: Op) -> Array:
    """Reduce [P, F] along F to [P] in the values' dtype; a reduction's name is that of its NumPy ufunc."""
    ufunc: np.ufunc = getattr(np, op.name)
    total: Array = ufunc.reduce(values, axis=1)
    return total.astype(values.dtype, copy=False)


def reduced_axes(data: NkiTensor, axis: Any) -> tuple[int, ...]:
    """The dims that `axis` (an int or several, negative ones from the end) names, in order; the last ones (NKI062)."""
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
    check.on_chip(free_dims=hw.FREE_DIMS_MAX_WIDE, dst=dst, data=data)
    token = reduction_operator("op", op)
    check.bitvec_dtypes(token, dst=dst, data=data)
    if negate and token.kind == BITVEC:
        fail("NKI064", f"negate with {token!r}", data=data)
    axes = reduced_axes(data, axis)
    kept = free_size(data) // int(np.prod([data.shape[a] for a in axes]))
    check.same_partitions(dst=dst, data=data)
    check.holds(kept, "the reduction", dst=dst, data=data)
    check.writable(dst=dst)
    if program.numeric:
        values = data.storage.read(data) if token.kind == BITVEC else read_fp32(data)
        total = reduce_all(values.reshape(data.shape[0] * kept, -1), token)
        if token.kind == BITVEC:
            write(dst, total.astype(DTYPES[dst.dtype].numpy))
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
    check.on_chip(reduce_res=reduce_res)
    return check.column("reduce_res", reduce_res, data, "NKI068")


def check_start(command: Any, name: str, initial: Any, data: NkiTensor) -> bool:
    """Whether an instruction that always reduces begins at a value: load_reduce, which has one (NKI068)."""
    check.enum_member("reduce_cmd", command, _ReduceCmd)
    loads = command is _ReduceCmd.load_reduce
    if command in (_ReduceCmd.idle, _ReduceCmd.reset) or loads != (initial is not None):
        fail("NKI068", f"reduce_cmd.{command.name} with {name}={initial!r}", data=data)
    return loads


def check_maximum(dst: NkiTensor, command: Any, reduce_res: Any, reduce_op: Any) -> None:
    """An instruction that may reduce does so by maximum, from where it is or anew (NKI063, NKI068)."""
    if check.operator("reduce_op", reduce_op).name != "maximum":
        fail("NKI063", f"reduce_op={reduce_op!r}; only nl.maximum", dst=dst)
    check.enum_member("reduce_cmd", command, _ReduceCmd)
    reduces = command in (_ReduceCmd.reduce, _ReduceCmd.reset_reduce)
    if not reduces and (command is not _ReduceCmd.idle or reduce_res is not None):
        fail("NKI068", f"reduce_cmd.{command.name} with reduce_res={reduce_res!r}", dst=dst)


def fold(
    registers: Accumulator,
    op: Op,
    values: Array,
    command: reduce_cmd,
    reduce_res: NkiTensor | None,
    *,
    initial: Any = None,
    negate: bool = False,
) -> None:
    """Reduce [P, F...] into an engine's registers, unless `command` is idle, and write these to reduce_res."""
    if command is not _ReduceCmd.idle:
        accumulate(registers, op, reduce_all(rows(values), op), command, initial)
    if reduce_res is None:
        return
    if registers.values is None:
        fail("NKI077", "reduce_res reads registers that nothing was reduced into", reduce_res=reduce_res)
    write_fp32(reduce_res, -registers.values if negate else registers.values)


def write_maximum(
    registers: Accumulator, dst: NkiTensor, values: Array, command: reduce_cmd, reduce_res: NkiTensor | None
) -> None:
    """dst = values, and their maximum into Vector's registers, which an idle instruction leaves undefined."""
    write_fp32(dst, values)
    if command is _ReduceCmd.idle:
        registers.values = None
    fold(registers, OPS["maximum"], values, command, reduce_res)


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
    check.on_chip(dst=dst, data=data)
    token = check.arithmetic("op0", check.scalar_operator("op0", op0))
    reducer = reduction_operator("reduce_op", reduce_op)
    if reducer.name not in ("add", "multiply", "maximum", "minimum"):
        fail("NKI063", f"reduce_op={reduce_op!r}; add, multiply, maximum or minimum", data=data)
    if reverse0:
        fail("NKI078", "reverse0=True", data=data)
    loads = check_start(reduce_cmd, "reduce_init", reduce_init, data)
    check.alike(dst=dst, data=data)
    reads = (data, *tensor_scalar_operand("operand0", token, operand0, data))
    reads += check.scalar_operand("reduce_init", reduce_init, data) if loads else ()
    writes = (dst, *check_reduce_res(reduce_res, data))
    check.writable(dst=dst)
    if program.numeric:
        values = with_scalar(read_fp32(data), token, operand0, False)
        write_fp32(dst, values)
        initial = scalar_values(reduce_init, 2) if loads else None
        registers = program.vector_accumulator
        fold(registers, reducer, values, reduce_cmd, reduce_res, initial=initial, negate=reduce_res_negate)
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
    check.on_chip(dst=dst, predicate=predicate, on_true=on_true)
    check.dtypes("NKI061", _NARROW_INTS, predicate=predicate)
    check.dtypes("NKI052", _SELECTED, on_true=on_true)
    check.alike(dst=dst, predicate=predicate, on_true=on_true)
    check.not_both_psum(predicate=predicate, on_true=on_true)
    check_maximum(dst, reduce_cmd, reduce_res, reduce_op)
    reads = (predicate, on_true, *check.scalar_operand("on_false", on_false, on_true, tuple(DTYPES)))
    writes = (dst, *check_reduce_res(reduce_res, on_true))
    if reduce_res is not None:
        check.dtypes("NKI068", FLOATS, reduce_res=reduce_res)
    check.writable(dst=dst)
    if program.numeric:
        chosen = _selected(predicate, on_true, on_false, reverse_pred)
        write_maximum(program.vector_accumulator, dst, chosen, reduce_cmd, reduce_res)
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
    check.on_chip(dst=dst, data=data)
    check.same_partitions(dst=dst, data=data)
    if free_size(data) > hw.BN_STATS_FREE_MAX or free_size(dst) != 6:
        fail("NKI065", f"data has {free_size(data)} elements a partition, dst {free_size(dst)}", dst=dst, data=data)
    check.writable(dst=dst)
    if program.numeric:
        values = rows(read_fp32(data))
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
    check.on_chip(dst=dst, data=data)
    check.same_partitions(dst=dst, data=data)
    if free_size(data) % 3 or free_size(dst) != 2:
        fail("NKI066", f"data has {free_size(data)} elements a partition, dst {free_size(dst)}", dst=dst, data=data)
    check.writable(dst=dst)
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
    check.on_chip(dst=dst, src=src)
    check.same_dtype(dst=dst, src=src)
    check.holds(free_size(src), "src", dst=dst, src=src)
    mask = listed(shuffle_mask)
    entries = {*range(hw.QUADRANT_PARTITIONS), hw.SHUFFLE_KEEP}
    if len(mask) != hw.SHUFFLE_MASK_ENTRIES or any(type(m) is not int or m not in entries for m in mask):
        fail("NKI073", f"shuffle_mask={shuffle_mask!r}")
    quadrants = -(-max(dst.shape[0], src.shape[0]) // hw.QUADRANT_PARTITIONS)
    for label, tensor in (("dst", dst), ("src", src)):
        _shuffle_start(label, tensor, quadrants * hw.QUADRANT_PARTITIONS)
    sources, moved = _shuffle_sources(mask, dst, src)
    check.writable(dst=dst)
    if program.numeric:
        values = rows(src.storage.read(src))[sources]
        chosen = np.broadcast_to(moved.reshape(-1, *(1,) * (dst.ndim - 1)), dst.shape)
        dst.storage.write_where(dst, chosen, shaped(values, dst))
    return program.record("vector", "nc_stream_shuffle", (dst,), (src,), {"mask": mask}, name)


def _shuffle_sources(mask: tuple[int, ...], dst: NkiTensor, src: NkiTensor) -> tuple[Array, Array]:
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
