"""DMA with indirect sides: modes, bounds, and the forms of dma_compute and dma_transpose that take indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..dtypes import Array
from ..memory import SBUF
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .enums import dge_mode, oob_mode
from .places import indices


def by_rows(tensor: NkiTensor) -> bool:
    """Whether a view has an index for each of its rows."""
    return tensor.indirection is not None and tensor.indirection.by_rows


def check_bounds_mode(mode: Any, **operands: NkiTensor) -> None:
    """oob_mode.skip goes with an indirect side (NKI134): of dma_transpose and dma_compute isa says so."""
    check.enum_member("oob_mode", mode, oob_mode)
    if mode is oob_mode.skip and all(tensor.indirection is None for tensor in operands.values()):
        fail("NKI134", "oob_mode.skip on a static access", **operands)


def check_indices(mode: dge_mode, **operands: NkiTensor) -> None:
    """Who can make descriptors of indirect sides (NKI139).

    The table of the DGE guide lets mode none take a scalar index, its text does not: refused, since the descriptors are
    made before the index is.
    """
    rows = {name: tensor for name, tensor in operands.items() if by_rows(tensor)}
    if len(rows) > 1:
        fail("NKI139", f"{' and '.join(rows)} have a vector of indices each", **rows)
    for name, tensor in operands.items():
        if tensor.indirection is None:
            continue
        refused = (dge_mode.none, dge_mode.hwdge) if by_rows(tensor) else (dge_mode.none,)
        if mode in refused:
            fail("NKI139", f"dge_mode.{mode.name} with an indirect {name}", **{name: tensor})


def check_rows(**operands: NkiTensor) -> None:
    """A vector of indices of a dma_copy or dma_compute has one for each row, a partition each (NKI139)."""
    for name, tensor in operands.items():
        if by_rows(tensor) and tensor.indirection is not None:
            index: Any = tensor.indirection.index
            if not index.shape[0] == index.size == tensor.shape[0]:
                detail = f"{name} has {tensor.shape[0]} rows, its indices the shape {list(index.shape)}"
                fail("NKI139", detail, **{name: tensor})


def _one_place(a: NkiTensor, b: NkiTensor) -> bool:
    """Whether two views are the same, indices included."""
    if a.storage is not b.storage or a.key() != b.key():
        return False
    if a.indirection is None or b.indirection is None:
        return a.indirection is b.indirection
    i, j = a.indirection.index, b.indirection.index
    return i is j or (type(i) is NkiTensor and type(j) is NkiTensor and i.storage is j.storage and i.key() == j.key())


def check_compute(dst: NkiTensor, sources: tuple[NkiTensor, ...]) -> None:
    """The two indirect forms of dma_compute: dst = dst + rows, in SBUF, and rows = rows + src (NKI140)."""
    sides = (dst, *sources)
    if all(tensor.indirection is None for tensor in sides):
        return
    if any(tensor.indirection is not None and not by_rows(tensor) for tensor in sides):
        fail("NKI140", "a scalar index", dst=dst)
    if len(sources) != 2:
        fail("NKI140", f"{len(sources)} sources", dst=dst)
    same = [source for source in sources if _one_place(dst, source)]
    others = [source for source in sources if not _one_place(dst, source)]
    if len(same) != 1 or by_rows(dst) == by_rows(others[0]):
        fail("NKI140", "no source is dst, or not exactly one side of the sum has indices", dst=dst)
    chip = others[0] if by_rows(dst) else dst
    if chip.buffer is not SBUF:
        fail("NKI140", f"the side without indices is in {chip.buffer.name}, expected SBUF", operand=chip)


def check_unique(dst: NkiTensor) -> None:
    """No two rows of a dma_compute's dst are one row: their sums would race (NKI140)."""
    if by_rows(dst):
        rows, counts = np.unique(indices(dst), return_counts=True)
        if counts.max() > 1:
            fail("NKI140", f"row {int(rows[counts > 1][0])} is added to twice", dst=dst)


def check_transpose(src: NkiTensor) -> None:
    """Constraints of a gather that transposes (NKI141)."""
    if not by_rows(src) or src.indirection is None:
        return
    index: Any = src.indirection.index
    partitions, group = index.shape[0], hw.DMA_TRANSPOSE_FIRST_DIM_2D
    full = partitions == hw.PARTITIONS or index.size == partitions
    if index.dtype != "uint32" or index.ndim != 2 or partitions % group or not full:
        fail("NKI141", f"the indices are {list(index.shape)} of {index.dtype}", src=src)
    if src.itemsize != 2 or src.shape[-1] > hw.DMA_TRANSPOSE_LAST_DIM_MAX:
        fail("NKI141", f"{src.itemsize}-byte data with last dim {src.shape[-1]}", src=src)
    if src.shape[0] % group:
        fail("NKI141", f"{src.shape[0]} rows, expected a multiple of {group}", src=src)
    if src.ndim > 3 and min(src.shape[1:3]) > 1:
        fail("NKI141", f"neither of the middle dims of {list(src.shape)} is 1", src=src)


def last_axis(present: Array, shape: tuple[int, ...], size: int) -> Array:
    """Which elements of a transposed gather are present: rows of the source lie along dst's last axis."""
    return np.broadcast_to(present.reshape(-1, size)[:, 0], shape)
