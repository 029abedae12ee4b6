"""Checks that instructions share: memories, partitions, access patterns, dtypes, ops, engines."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Collection
from math import prod
from typing import Any, NoReturn

import numpy as np

from .. import hardware as hw
from ..dtypes import DTYPES
from ..memory import PSUM
from ..ops import BITVEC, UNARY_GEN4, Op
from ..rules import fail
from ..tensor import NkiTensor
from ..views import Ints, merged_runs, places
from .enums import engine as Engine
from .values import first_partition, free_size


def tensors(*, indirect: bool = False, **operands: Any) -> None:
    """Every operand is an NkiTensor (NKI040), and static unless `indirect` (NKI054)."""
    for name, value in operands.items():
        if type(value) is not NkiTensor:
            fail("NKI040", f"{name}={value!r} is not a tensor")
        if value.indirection is not None and not indirect:
            fail("NKI054", f"{name} is an indirect view", **{name: value})


def narrow(**operands: NkiTensor) -> None:
    """No operand is int64 (NKI055)."""
    for name, tensor in operands.items():
        if tensor.dtype == "int64":
            fail("NKI055", f"{name} is int64", **{name: tensor})


def on_chip(free_dims: int = hw.FREE_DIMS_MAX, **operands: Any) -> None:
    """Every operand is an SBUF or PSUM view that an engine can walk (NKI040, NKI043, NKI046, NKI053-NKI055)."""
    for name, tensor in operands.items():
        if type(tensor) is not NkiTensor:
            fail("NKI040", f"{name}={tensor!r} is not a tensor")
        walked = tensor.walked
        if walked is None:
            walked = tensor.walked = _walk(name, tensor)
        if walked > free_dims:
            fail("NKI046", f"{name} walks {walked} free dims, at most {free_dims} are possible", **{name: tensor})


def _walk(name: str, tensor: NkiTensor) -> int:
    """Free dims the hardware has to walk (size-1 dims dropped, contiguous ones merged), after the other checks."""
    if tensor.indirection is not None:
        fail("NKI054", f"{name} is an indirect view", **{name: tensor})
    if not tensor.on_chip:
        fail("NKI040", f"{name} is in {tensor.buffer.name}, engines read and write SBUF and PSUM", **{name: tensor})
    narrow(**{name: tensor})
    start, count = first_partition(tensor), tensor.shape[0]
    step = hw.PARTITIONS if count > 64 else 64 if count > hw.QUADRANT_PARTITIONS else hw.QUADRANT_PARTITIONS
    if start % step:
        last = start + count - 1
        detail = f"{name} covers partitions {start}..{last}; {count} start at multiples of {step}"
        fail("NKI043", detail, **{name: tensor})
    runs = _free_runs(tensor.shape, tensor.strides)
    if runs is None:
        n, s = next(axis for axis in zip(tensor.shape[1:], tensor.strides[1:], strict=True) if _too_long(*axis))
        fail("NKI053", f"{name} has a free axis of {n} elements with stride {s}", **{name: tensor})
    return runs


def _too_long(n: int, stride: int) -> bool:
    return n > 1 and (n > hw.AXIS_SIZE_MAX or abs(stride) > hw.AXIS_STRIDE_MAX)


@functools.lru_cache(maxsize=1 << 14)
def _free_runs(shape: Ints, strides: Ints) -> int | None:
    """Free dims of a view as the hardware walks them; None if one is too long. Kernels use few patterns very often."""
    if any(map(_too_long, shape[1:], strides[1:])):
        return None
    return len(merged_runs(shape[1:], strides[1:], hw.AXIS_SIZE_MAX))


def on_gpsimd(free_dims: int = hw.FREE_DIMS_MAX, **operands: Any) -> None:
    """Every operand is an SBUF view that GpSimd can walk (NKI042, and those of `on_chip`)."""
    on_chip(free_dims, **operands)
    not_psum(**operands)


def not_psum(**operands: NkiTensor) -> None:
    """GpSimd reads and writes SBUF only (NKI042)."""
    for name, tensor in operands.items():
        if tensor.buffer is PSUM:
            fail("NKI042", f"{name} is in PSUM and the instruction runs on GpSimd", **{name: tensor})


def enum_member(name: str, value: Any, kind: type) -> None:
    """An enum parameter is a member of its enum (NKI030)."""
    if type(value) is not kind:
        fail("NKI030", f"{name}={value!r} is not a member of nisa.{kind.__name__}")


def pick_engine(asked: Engine, allowed: tuple[Engine, ...], default: Engine, **operands: NkiTensor) -> Engine:
    """The engine that runs an instruction: the one asked for, which must be allowed (NKI041), or the default; GpSimd
    takes no operands in PSUM (NKI042)."""
    if asked is Engine.unknown:
        chosen = default
    elif type(asked) is Engine and asked in allowed:
        chosen = asked
    else:
        enum_member("engine", asked, Engine)
        fail("NKI041", f"engine.{asked.name} cannot run it; {', '.join(f'engine.{e.name}' for e in allowed)} can")
    if chosen is Engine.gpsimd:
        not_psum(**operands)
    return chosen


def alike(**operands: NkiTensor) -> None:
    """Same partitions (NKI044) and same elements a partition (NKI045)."""
    items = iter(operands.items())
    _, first = next(items)
    for name, tensor in items:
        if tensor.shape == first.shape:
            continue
        same_partitions(**operands)
        holds(free_size(tensor), name, **operands)


def same_partitions(**operands: NkiTensor) -> None:
    """Same partitions (NKI044)."""
    (first_name, first), *others = operands.items()
    for name, tensor in others:
        if tensor.shape[0] != first.shape[0]:
            fail("NKI044", f"{first_name} has {first.shape[0]} partitions, {name} {tensor.shape[0]}", **operands)


def holds(count: int, what: str, **operands: NkiTensor) -> None:
    """The first operand has `count` elements a partition, as `what` has (NKI045)."""
    name, tensor = next(iter(operands.items()))
    if free_size(tensor) != count:
        fail("NKI045", f"{name} has {free_size(tensor)} elements a partition, {what} {count}", **operands)


def not_both_psum(**operands: NkiTensor) -> None:
    """Two input tensors are not both in PSUM (NKI047)."""
    if all(tensor.buffer is PSUM for tensor in operands.values()):
        fail("NKI047", f"{' and '.join(operands)} are both in PSUM", **operands)


def writable(**operands: NkiTensor) -> None:
    """A destination addresses each element once (NKI017)."""
    for name, tensor in operands.items():
        if aliases(tensor.shape, tensor.strides):
            fail("NKI017", f"{name} addresses some elements more than once", **{name: tensor})


@functools.lru_cache(maxsize=1 << 14)
def aliases(shape: Ints, strides: Ints) -> bool:
    """Whether a view has an element twice."""
    dims = sorted(((n, abs(s)) for n, s in zip(shape, strides, strict=True) if n > 1), key=lambda dim: dim[1])
    reach = 0
    for n, stride in dims:
        if stride <= reach:
            return len(np.unique(places(dims))) < prod(shape)
        reach += stride * (n - 1)
    return False


def operator(name: str, op: Any) -> Op:
    """An op token (NKI048) that trn2 has (NKI049)."""
    if type(op) is not Op:
        fail("NKI048", f"{name}={op!r} is not an operator of nki.language")
    if op.gen4:
        fail("NKI049", f"{name}={op!r} needs NeuronCore-v4 (trn3)")
    return op


def binary_operator(name: str, op: Any) -> Op:
    """A binary ALU operator (NKI048)."""
    token = operator(name, op)
    if token.compute is None or token.unary or token.name == "average":
        fail("NKI048", f"{name}={op!r} is not a binary operator")
    return token


def scalar_operator(name: str, op: Any) -> Op:
    """A binary or unary operator of tensor_scalar (NKI048) that trn2 has (NKI049)."""
    token = operator(name, op)
    if token.compute is None or token.name == "average":
        fail("NKI048", f"{name}={op!r} is not an ALU operator")
    if token.name in UNARY_GEN4:
        fail("NKI049", f"{name}={op!r} in tensor_scalar needs NeuronCore-v4 (trn3)")
    return token


def comparison(name: str, op: Any) -> Op:
    """A comparison (NKI048)."""
    token = operator(name, op)
    if token.name not in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        fail("NKI048", f"{name}={op!r} is not a comparison")
    return token


def arithmetic(name: str, token: Op) -> Op:
    """An operator that does not work on bits (NKI050)."""
    if token.kind == BITVEC:
        fail("NKI050", f"{name}={token!r}: bitvec ops are not supported")
    return token


def bitvec_dtypes(op: Op, **operands: NkiTensor) -> None:
    """Bitvec operators take integer tensors (NKI050)."""
    if op.kind == BITVEC:
        for name, tensor in operands.items():
            if DTYPES[tensor.dtype].is_float:
                fail("NKI050", f"{op!r} on {name} of dtype {tensor.dtype}", **{name: tensor})


def dtypes(rule: str, accepted: Collection[str], **operands: NkiTensor) -> None:
    """Each operand has one of these dtypes, or else `rule`."""
    for name, tensor in operands.items():
        if tensor.dtype not in accepted:
            _refuse_dtype(rule, accepted, name, tensor)


def _refuse_dtype(rule: str, accepted: Collection[str], name: str, tensor: NkiTensor) -> NoReturn:
    fail(rule, f"{name} has dtype {tensor.dtype}, accepted: {', '.join(accepted)}", **{name: tensor})


def same_dtype(**operands: NkiTensor) -> None:
    """All operands have one dtype (NKI052)."""
    if len({tensor.dtype for tensor in operands.values()}) > 1:
        fail("NKI052", " and ".join(f"{name} is {t.dtype}" for name, t in operands.items()), **operands)


def is_number(value: Any) -> bool:
    """A compile-time number (not a bool)."""
    return type(value) in (float, int) or (isinstance(value, numbers.Real) and not isinstance(value, bool))


def scalar_operand(
    name: str, value: Any, data: NkiTensor, accepted: Collection[str] = ("float32",), rule: str = "NKI051"
) -> tuple[NkiTensor, ...]:
    """A number, or a [P, 1] tile of an accepted dtype, or else `rule`. Returns the tensors it reads (one or none)."""
    if type(value) is not NkiTensor:
        if is_number(value):
            return ()
        fail(rule, f"{name}={value!r} is neither a number nor a tensor", data=data)
    on_chip(hw.FREE_DIMS_MAX, **{name: value})
    if value.dtype not in accepted:
        _refuse_dtype(rule, accepted, name, value)
    return column(name, value, data, rule)


def column(name: str, tile: NkiTensor, data: NkiTensor, rule: str) -> tuple[NkiTensor]:
    """A tile of one element for each of data's partitions, or else `rule`."""
    if tile.shape[0] != data.shape[0] or free_size(tile) != 1:
        fail(rule, f"{name} has shape {tile.shape}, expected ({data.shape[0]}, 1)", **{name: tile, "data": data})
    return (tile,)
