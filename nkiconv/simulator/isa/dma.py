"""DMA: dma_copy, dma_compute, dma_transpose between HBM and SBUF."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import convert, from_fp32, to_fp32
from ..memory import PSUM, SBUF
from ..objects import listed
from ..ops import OPS
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import dge_mode, engine, oob_mode
from .indirect_dma import (
    by_rows,
    check_bounds_mode,
    check_compute,
    check_indices,
    check_rows,
    check_transpose,
    check_unique,
    last_axis,
)
from .places import after_registers, index_tensors, indirect_params, read_places, write_places
from .values import shaped

_DgeMode, _OobMode = dge_mode, oob_mode

#: axes of a dma_transpose by rank (isa dma_transpose)
_TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _not_psum(**operands: NkiTensor) -> None:
    for name, tensor in operands.items():
        if tensor.buffer is PSUM:
            fail("NKI130", f"{name} is in PSUM", **{name: tensor})


def _no_priority(priority: Any) -> None:
    if priority is not None:
        fail("NKI049", f"priority={priority!r} needs NeuronCore-v4 (trn3)")


def _row_writable(dst: NkiTensor) -> None:
    """dst addresses each element once, of a row where rows have indices of their own (NKI017)."""
    if by_rows(dst):
        dst = NkiTensor((1, *dst.shape[1:]), dst.dtype, dst.storage, dst.strides, dst.offset)
    check.writable(dst=dst)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: oob_mode = oob_mode.error,
    dge_mode: dge_mode = dge_mode.unknown,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> Instruction:
    """dst = src by DMA, element by element in row-major order of both views.

    Either side may be indirect, one of them by a vector of indices: rows gathered from or scattered to HBM. Rows that
    are scattered to one place are written in order here; no document says who wins.

    Args:
        dst, src: any shapes with equal element counts, in HBM or SBUF; different dtypes cast through fp32.
        oob_mode: for an index out of bounds: error, or skip its row (a scalar index: the transfer).
        dge_mode: who makes the descriptors; hwdge does not cast.
        engine: sync or scalar, with hwdge only.
    Raises NkiError (NKI055 for casts of int64, NKI130-NKI133, NKI138, NKI139, NKI017). Source: isa dma_copy, DGE guide.
    """
    program = current()
    check.tensors(indirect=True, dst=dst, src=src)
    _not_psum(dst=dst, src=src)
    _no_priority(priority)
    check.enum_member("oob_mode", oob_mode, _OobMode)
    check.enum_member("dge_mode", dge_mode, _DgeMode)
    _check_dge(dst, src, dge_mode, engine)
    moved = indirect_params(dst, src)
    if moved:
        check_indices(dge_mode, dst=dst, src=src)
        check_rows(dst=dst, src=src)
    if dst.shape != src.shape and dst.size != src.size:
        fail("NKI131", f"dst has {dst.size} elements, src {src.size}", dst=dst, src=src)
    if src.dtype != dst.dtype:
        check.narrow(dst=dst, src=src)
    _row_writable(dst)
    if program.numeric:
        values, present = read_places(src, oob_mode)
        if src.dtype != dst.dtype:
            values = convert(values, src.dtype, dst.dtype)
        write_places(dst, oob_mode, values, present)
    params = {"dge_mode": dge_mode.name, "engine": engine.name, **moved}
    reads = (src, *index_tensors(dst, src)) if moved else (src,)
    instruction = program.record("dma", "dma_copy", (dst,), reads, params, name)
    return after_registers(instruction, dst, src) if moved else instruction


def _check_dge(dst: NkiTensor, src: NkiTensor, mode: dge_mode, trigger: Any) -> None:
    check.enum_member("engine", trigger, engine)
    if trigger is not engine.unknown and (mode is not _DgeMode.hwdge or trigger not in (engine.sync, engine.scalar)):
        fail("NKI133", f"engine.{trigger.name} with dge_mode.{mode.name}")
    if mode is _DgeMode.hwdge and dst.dtype != src.dtype:
        fail("NKI132", f"dst is {dst.dtype}, src {src.dtype}", dst=dst, src=src)


def dma_compute(
    dst: NkiTensor,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> Instruction:
    """dst = sum of srcs in the DMA engines, in fp32, cast on write.

    With a vector of indices: dst += src[indices], dst in SBUF, or dst[indices] += src, src in SBUF; dst is one of the
    two sources. oob_mode.skip leaves out rows whose index is out of bounds.

    Args:
        dst, srcs: 1 to 16 sources of dst's element count, in HBM or SBUF, any dtypes.
        reduce_op: nl.add. scales: None or all 1.0.
    Raises NkiError (NKI055, NKI130, NKI131, NKI134, NKI135, NKI138-NKI140). Source: isa dma_compute.
    """
    program = current()
    sources = listed(srcs)
    if not 1 <= len(sources) <= hw.DMA_COMPUTE_SOURCES_MAX:
        fail("NKI135", f"srcs={srcs!r:.80}: {len(sources)} sources in a list or tuple")
    named = {f"srcs[{i}]": src for i, src in enumerate(sources)}
    check.tensors(indirect=True, dst=dst, **named)
    check.narrow(dst=dst, **named)
    _not_psum(dst=dst, **named)
    check_bounds_mode(oob_mode, dst=dst, **named)
    check_compute(dst, sources)
    check_rows(dst=dst, **named)
    if reduce_op is not OPS["add"]:
        fail("NKI135", f"reduce_op={reduce_op!r}; only nl.add")
    if scales is not None and listed(scales) != (1.0,) * len(sources):
        fail("NKI135", f"scales={scales!r}; only a list with 1.0 for each source")
    if not unique_indices:
        fail("NKI135", "unique_indices=False is not supported")
    for label, src in named.items():
        if src.size != dst.size:
            fail("NKI131", f"dst has {dst.size} elements, {label} {src.size}", dst=dst, **{label: src})
    _row_writable(dst)
    if program.numeric:
        check_unique(dst)
        values, present = read_places(sources[0], oob_mode)
        total = shaped(to_fp32(values), dst)
        for src in sources[1:]:
            values, among = read_places(src, oob_mode)
            total, present = np.add(total, shaped(to_fp32(values), dst)), among if present is None else present
        write_places(dst, oob_mode, from_fp32(total, dst.dtype), present)
    moved = indirect_params(dst, *sources)
    params = {"dge_mode": "swdge" if moved else "none", **moved}
    return program.record("dma", "dma_compute", (dst,), (*sources, *index_tensors(*sources)), params, name)


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: dge_mode = dge_mode.unknown,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> Instruction:
    """dst = src transposed by DMA: [1, 0] in 2-d, [2, 1, 0] in 3-d, [3, 1, 2, 0] in 4-d, bit-exactly.

    An indirect src is gathered first; by a vector of uint32 indices [P, I] column after column, P 16 to 128 in steps of
    16 (128 if I > 1), of 2-byte data in HBM with a last dim <= 128, a first dim in steps of 16, and a middle dim of 1
    in 4-d.

    Args:
        dst: in SBUF, exactly the transposed shape. src: HBM or SBUF, same dtype.
        dge_mode: unknown, none, or hwdge: 2-byte data, last dim <= 128, first dim 16 (2-d) or 1, 2, 4, 8, 16 (3-d,
            4-d) with shape[0] * shape[-2] a multiple of 16; with a vector of indices unknown or swdge. Of none isa's
            text and its list of parameters disagree; kernels of nki-library use it.
        oob_mode: skip leaves the elements of rows out of bounds unchanged.
    Raises NkiError (NKI052, NKI054, NKI055, NKI130, NKI134, NKI136-NKI139, NKI141). Source: isa dma_transpose.
    """
    program = current()
    check.tensors(dst=dst)
    check.tensors(indirect=True, src=src)
    _not_psum(dst=dst, src=src)
    _no_priority(priority)
    check_bounds_mode(oob_mode, src=src)
    check.enum_member("dge_mode", dge_mode, _DgeMode)
    check.same_dtype(dst=dst, src=src)
    check.narrow(src=src)
    order = _TRANSPOSES.get(src.ndim)
    if order is None or (axes is not None and listed(axes) != order):
        fail("NKI136", f"axes={axes!r} of a {src.ndim}-d source", src=src)
    check_indices(dge_mode, src=src)
    check_transpose(src)
    if dge_mode is _DgeMode.swdge and not by_rows(src):
        fail("NKI137", "dge_mode.swdge transposes by a vector of indices only")
    if dge_mode is _DgeMode.hwdge:
        _check_hardware_transpose(src)
    if dst.buffer is not SBUF or dst.shape != tuple(src.shape[a] for a in order):
        fail("NKI136", f"dst must be {tuple(src.shape[a] for a in order)} in SBUF", dst=dst, src=src)
    check.writable(dst=dst)
    if program.numeric:
        values, present = read_places(src, oob_mode)
        turned = values.reshape(src.shape).transpose(order)
        if present is None:
            dst.storage.write(dst, turned)
        elif present.any():
            dst.storage.write_where(dst, last_axis(present, dst.shape, src.size // src.shape[0]), turned)
    params = {"dge_mode": dge_mode.name, **indirect_params(dst, src)}
    instruction = program.record("dma", "dma_transpose", (dst,), (src, *index_tensors(src)), params, name)
    return after_registers(instruction, src)


def _check_hardware_transpose(src: NkiTensor) -> None:
    shape = src.shape
    if src.itemsize != 2 or shape[-1] > hw.DMA_TRANSPOSE_LAST_DIM_MAX:
        fail("NKI137", f"{src.itemsize}-byte data with last dim {shape[-1]}", src=src)
    if src.ndim == 2:
        allowed = shape[0] == hw.DMA_TRANSPOSE_FIRST_DIM_2D
    else:
        rows = shape[0] * shape[-2]
        allowed = shape[0] in hw.DMA_TRANSPOSE_FIRST_DIMS and rows % hw.DMA_TRANSPOSE_FIRST_DIM_2D == 0
    if not allowed:
        fail("NKI137", f"first dim {shape[0]} of shape {list(shape)}", src=src)
