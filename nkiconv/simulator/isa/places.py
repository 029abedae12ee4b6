"""Where an indirect view lies once its indices are known, and how values come from there and go there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DTYPES, Array
from ..objects import DeviceInteger
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from ..views import reach
from .enums import oob_mode
from .values import write


def indirect_params(*tensors: NkiTensor) -> dict[str, Any]:
    """A record's settings of a transfer with indirect sides, dst first: the kind of indirection and the bytes moved."""
    for tensor in tensors:
        if tensor.indirection is not None:
            break
    else:
        return {}
    by_rows = any(tensor.indirection is not None and tensor.indirection.by_rows for tensor in tensors)
    return {"indirect": "rows" if by_rows else "whole", "moved": tuple(tensor.pattern() for tensor in tensors)}


def index_tensors(*tensors: NkiTensor) -> tuple[NkiTensor, ...]:
    """The tensors that hold the indices of these views."""
    found = [tensor.indirection.index for tensor in tensors if tensor.indirection is not None]
    return tuple(index for index in found if type(index) is NkiTensor)


def after_registers(instruction: Instruction, *tensors: NkiTensor) -> Instruction:
    """The instruction, which waits for the instructions that set the registers or scalars indexing its operands."""
    for tensor in tensors:
        index = None if tensor.indirection is None else tensor.indirection.index
        if isinstance(index, DeviceInteger) and index.set_by is not None:
            instruction.after.append(index.set_by)  # of an earlier iteration, too
    return instruction


def indices(tensor: NkiTensor) -> Array:
    """Indices of an indirect view as int64, one for each row, or one; columns of a [P, I] tile follow each other."""
    assert tensor.indirection is not None
    index = tensor.indirection.index
    if type(index) is NkiTensor:
        flat = index.storage.read(index).reshape(index.shape[0], -1).T.reshape(-1).astype(np.int64)
        return flat[: tensor.shape[0]] if tensor.indirection.by_rows else flat
    if index.value is None:
        fail("NKI160", "the register that indexes was never given a value", tensor=tensor)
    return np.array([index.value], dtype=np.int64)


def places(tensor: NkiTensor, mode: oob_mode) -> list[NkiTensor | None]:
    """The static views of a tensor: itself, or those of its indices; None for an index out of bounds.

    Raises NkiError NKI138 for indices out of bounds with oob_mode.error.
    """
    moved = tensor.indirection
    if moved is None:
        return [tensor]
    shape = (1, *tensor.shape[1:]) if moved.by_rows else tensor.shape
    found: list[NkiTensor | None] = []
    for row, index in enumerate(indices(tensor).tolist()):
        start = tensor.offset + index * moved.stride
        place = NkiTensor(shape, tensor.dtype, tensor.storage, tensor.strides, start)
        inside = 0 <= index < moved.limit and _inside(tensor, place)
        if not inside and mode is oob_mode.error:
            which = f"index {row}, {index}," if moved.by_rows else f"index {index}"
            fail("NKI138", f"{which} leaves the {moved.limit} of its dim or the tensor", tensor=tensor)
        found.append(place if inside else None)
    return found


def _inside(tensor: NkiTensor, place: NkiTensor) -> bool:
    """Whether a place lies in the storage, and on chip in the partition that the view is in."""
    low, high = reach(place.shape, place.strides)
    if place.offset + low < 0 or place.offset + high >= tensor.storage.info.num_bytes // tensor.itemsize:
        return False
    if not tensor.on_chip:
        return True
    least, most = reach(place.shape[1:], place.strides[1:])
    first = tensor.offset % tensor.partition_stride() + place.offset - tensor.offset
    return first + least >= 0 and first + most < tensor.partition_stride()


def settled(tensor: Any) -> Any:
    """The static view of a scalar index (NKI138); in a trace, where indices have no values, that of index 0."""
    if type(tensor) is not NkiTensor or tensor.indirection is None or tensor.indirection.by_rows:
        return tensor
    if current().numeric:
        return places(tensor, oob_mode.error)[0]
    return NkiTensor(tensor.shape, tensor.dtype, tensor.storage, tensor.strides, tensor.offset)


def read_places(tensor: NkiTensor, mode: oob_mode) -> tuple[Array, Array | None]:
    """A tensor's elements, flat where it is indirect, and which of them were in bounds (None: all)."""
    if tensor.indirection is None:
        return tensor.storage.read(tensor), None
    found = places(tensor, mode)
    size = tensor.size // len(found)
    values = np.zeros((len(found), size), DTYPES[tensor.dtype].numpy)
    for row, place in enumerate(found):
        if place is not None:
            values[row] = place.storage.read(place).reshape(-1)
    present = None if None not in found else np.repeat([place is not None for place in found], size)
    return values.reshape(-1), present


def write_places(tensor: NkiTensor, mode: oob_mode, values: Array, present: Array | None) -> None:
    """Store values: those that are `present` and whose place is in bounds; later rows win (not documented)."""
    if tensor.indirection is None and present is None:
        write(tensor, values)
        return
    values = values.reshape(-1)
    found = places(tensor, mode)
    size = tensor.size // len(found)
    for row, place in enumerate(found):
        part = slice(row * size, row * size + size)
        if place is None:
            continue
        if present is None:
            place.storage.write(place, values[part].reshape(place.shape))
        else:
            place.storage.write_where(place, present[part].reshape(place.shape), values[part].reshape(place.shape))
