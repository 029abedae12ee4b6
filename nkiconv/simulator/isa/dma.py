"""DMA: dma_copy, dma_compute, dma_transpose between HBM and SBUF."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import convert, from_fp32, to_fp32
from ..memory import PSUM, SBUF
from ..ops import OPS
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from .enums import dge_mode, engine, oob_mode
from .operands import enum_member, same_dtype, shaped, tensors, writable

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


def _static_only(mode: oob_mode) -> None:
    enum_member("oob_mode", mode, _OobMode)
    if mode is _OobMode.skip:
        fail("NKI134", "oob_mode.skip on a static access")


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

    Args:
        dst, src: any shapes with equal element counts, in HBM or SBUF; different dtypes cast through fp32.
        dge_mode: who makes the descriptors; hwdge does not cast.
        engine: sync or scalar, with hwdge only.
    Raises NkiError (NKI130-NKI134, NKI017). Source: isa dma_copy, DGE guide.
    """
    program = current()
    tensors(dst=dst, src=src)
    _not_psum(dst=dst, src=src)
    _no_priority(priority)
    _static_only(oob_mode)
    enum_member("dge_mode", dge_mode, _DgeMode)
    _check_dge(dst, src, dge_mode, engine)
    if dst.shape != src.shape and dst.size != src.size:
        fail("NKI131", f"dst has {dst.size} elements, src {src.size}", dst=dst, src=src)
    writable(dst=dst)
    if program.numeric:
        values = src.storage.read(src)
        if src.dtype != dst.dtype:
            values = convert(values, src.dtype, dst.dtype)
        dst.storage.write(dst, shaped(values, dst))
    params = {"dge_mode": dge_mode.name, "engine": engine.name}
    return program.record("dma", "dma_copy", (dst,), (src,), params, name)


def _check_dge(dst: NkiTensor, src: NkiTensor, mode: dge_mode, trigger: Any) -> None:
    if type(trigger) is not engine:
        fail("NKI030", f"engine={trigger!r} is not a member of nisa.engine")
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

    Args:
        dst, srcs: 1 to 16 sources of dst's element count, in HBM or SBUF, any dtypes.
        reduce_op: nl.add. scales: None or all 1.0.
    Raises NkiError (NKI130, NKI131, NKI134, NKI135). Source: isa dma_compute.
    """
    program = current()
    sources = tuple(srcs)
    if not 1 <= len(sources) <= hw.DMA_COMPUTE_SOURCES_MAX:
        fail("NKI135", f"{len(sources)} sources")
    named = {f"srcs[{i}]": src for i, src in enumerate(sources)}
    tensors(dst=dst, **named)
    _not_psum(dst=dst, **named)
    _static_only(oob_mode)
    if reduce_op is not OPS["add"]:
        fail("NKI135", f"reduce_op={reduce_op!r}; only nl.add")
    if scales is not None and (len(scales) != len(sources) or any(scale != 1.0 for scale in scales)):
        fail("NKI135", f"scales={scales!r}; only 1.0 for each source")
    if not unique_indices:
        fail("NKI135", "unique_indices=False is not supported")
    for label, src in named.items():
        if src.size != dst.size:
            fail("NKI131", f"dst has {dst.size} elements, {label} {src.size}", dst=dst, **{label: src})
    writable(dst=dst)
    if program.numeric:
        total = shaped(to_fp32(sources[0].storage.read(sources[0])), dst)
        for src in sources[1:]:
            total = np.add(total, shaped(to_fp32(src.storage.read(src)), dst))
        dst.storage.write(dst, from_fp32(total, dst.dtype))
    return program.record("dma", "dma_compute", (dst,), sources, {"dge_mode": "none"}, name)


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

    Args:
        dst: in SBUF, exactly the transposed shape. src: HBM or SBUF, same dtype.
        dge_mode: unknown, or hwdge: 2-byte data, last dim <= 128, first dim 16 (2-d) or 1, 2, 4, 8, 16 (3-d, 4-d)
            with shape[0] * shape[-2] a multiple of 16.
    Raises NkiError (NKI052, NKI130, NKI134, NKI136, NKI137). Source: isa dma_transpose.
    """
    program = current()
    tensors(dst=dst, src=src)
    _not_psum(dst=dst, src=src)
    _no_priority(priority)
    _static_only(oob_mode)
    enum_member("dge_mode", dge_mode, _DgeMode)
    same_dtype(dst=dst, src=src)
    order = _TRANSPOSES.get(src.ndim)
    if order is None or (axes is not None and tuple(axes) != order):
        fail("NKI136", f"axes={axes!r} of a {src.ndim}-d source", src=src)
    if dge_mode not in (_DgeMode.unknown, _DgeMode.hwdge):
        fail("NKI137", f"dge_mode.{dge_mode.name} cannot transpose")
    if dge_mode is _DgeMode.hwdge:
        _check_hardware_transpose(src)
    if dst.buffer is not SBUF or dst.shape != tuple(src.shape[a] for a in order):
        fail("NKI136", f"dst must be {tuple(src.shape[a] for a in order)} in SBUF", dst=dst, src=src)
    writable(dst=dst)
    if program.numeric:
        dst.storage.write(dst, src.storage.read(src).transpose(order))
    return program.record("dma", "dma_transpose", (dst,), (src,), {"dge_mode": dge_mode.name}, name)


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
