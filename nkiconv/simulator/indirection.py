"""Indirect views: where they lie in their storage depends on indices that exist at run time only.

A scalar index moves a whole view, a vector of indices gives every index of dim 0 a place of its own. A record of an
instruction keeps all that such an operand may touch, as no more is known while the kernel is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from .memory import SBUF, Region
from .objects import DeviceInteger, DynamicSlice, as_int
from .rules import fail
from .views import dense_strides

if TYPE_CHECKING:
    from .tensor import NkiTensor

_INDEX_DTYPES = ("int32", "uint32")
_ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Indirection:
    """How run-time indices move a view.

    index: a tensor in SBUF, a register or a scalar. by_rows: one index for each index of dim 0, else one for the view.
    stride: elements of the storage that an index counts. limit: indices 0 .. limit - 1 are inside. reach: all the
    elements that may be touched.
    """

    index: NkiTensor | DeviceInteger
    by_rows: bool
    stride: int
    limit: int
    reach: Region


def scalar_indirection(tensor: NkiTensor, dim: int, index: Any) -> Indirection:
    """One index into a dim of a tensor (NKI036, NKI037, NKI038, NKI161)."""
    require_static(tensor, "a second run-time index")
    if isinstance(index, DeviceInteger):
        if tensor.on_chip and index.dtype != "int32":
            fail("NKI161", f"an {index.dtype} index of a tensor in {tensor.buffer.name}", tensor=tensor)
    else:
        _check_index("index", index, tensor)
        if index.size != 1:
            fail("NKI036", f"the index has shape {list(index.shape)}, expected [1, 1]", index=index, tensor=tensor)
    if tensor.on_chip and dim == 0:
        fail("NKI038", "a run-time index of the partition dim", tensor=tensor)
    return Indirection(index, False, tensor.strides[dim], tensor.shape[dim], tensor.region())


def vector_indirection(tensor: NkiTensor, dim: int, indices: Any, *, columns: bool = False) -> Indirection:
    """An index into dim 0 of an HBM tensor for each partition of `indices`, one a partition unless `columns`."""
    require_static(tensor, "a second run-time index")
    if as_int(dim, "dim") != 0 or tensor.on_chip:
        fail("NKI038", f"a vector of indices for dim {dim} of a tensor in {tensor.buffer.name}", tensor=tensor)
    _check_index("vector_offset", indices, tensor)
    if indices.size != indices.shape[0] and not columns:
        fail("NKI036", f"vector_offset has shape {list(indices.shape)}, expected [P, 1]", vector_offset=indices)
    return Indirection(indices, True, tensor.strides[0], tensor.shape[0], tensor.region())


def ap_indirection(tensor: NkiTensor, view: NkiTensor, dim: int, scalar: Any, vector: Any) -> Indirection:
    """The indirection of `view`, a raw access pattern of `tensor` (NKI036-NKI039); it may reach the whole storage.

    The documents disagree on tensors that are not dense (aps: sizes to the right; NkiTensor.ap: the stride), and say
    nothing of element sizes.
    """
    if scalar is not None and vector is not None:
        fail("NKI037", "scalar_offset and vector_offset together", tensor=tensor)
    if not 0 <= as_int(dim, "indirect_dim") < tensor.ndim:
        fail("NKI038", f"indirect_dim={dim} of {tensor.ndim} dims", tensor=tensor)
    if tensor.strides[dim] != prod(tensor.shape[dim + 1 :]) or view.itemsize != tensor.itemsize:
        detail = f"indirect_dim={dim} of strides {list(tensor.strides)}, read as {view.dtype}"
        fail("NKI039", detail, tensor=tensor)
    if vector is None:
        moved = scalar_indirection(tensor, dim, scalar)
    else:
        moved = vector_indirection(tensor, dim, vector, columns=True)
        if view.shape[0] > vector.size:
            fail("NKI036", f"{vector.size} indices for {view.shape[0]} rows", vector_offset=vector, tensor=tensor)
    info = tensor.storage.info
    whole = Region(info, info.dtype, info.shape, dense_strides(info.shape), 0)
    return Indirection(moved.index, moved.by_rows, moved.stride, moved.limit, whole)


def is_dynamic(key: Any) -> bool:
    """Whether an index, or the start of an nl.ds, is a register or an NkiScalar."""
    return isinstance(key.start if type(key) is DynamicSlice else key, DeviceInteger)


def dynamic_view(tensor: NkiTensor, keys: tuple[Any, ...]) -> NkiTensor:
    """The view of an index for every dim, one of which is a register or an nl.ds that starts at one (language guide).

    A register drops its dim as an int does. Raises NkiError (NKI006, NKI007, NKI037, NKI038).
    """
    dims = [dim for dim, key in enumerate(keys) if is_dynamic(key)]
    if len(dims) > 1:
        fail("NKI037", f"registers index dims {dims}", tensor=tensor)
    dim, key = dims[0], keys[dims[0]]
    around = tensor[(*keys[:dim], _ALL, *keys[dim + 1 :])]
    kept = sum(
        isinstance(before, (slice, DynamicSlice)) or (at == 0 and tensor.on_chip)
        for at, before in enumerate(keys[:dim])
    )
    ranged = type(key) is DynamicSlice
    moved = scalar_indirection(around, kept, key.start if ranged else key)
    first = around[(*(_ALL,) * kept, DynamicSlice(0, key.size) if ranged else 0)]
    limit = moved.limit - (key.size - 1 if ranged else 0)
    indirection = Indirection(moved.index, False, moved.stride, limit, moved.reach)
    return type(tensor)(first.shape, tensor.dtype, tensor.storage, first.strides, first.offset, indirection)


def require_static(tensor: NkiTensor, what: str) -> None:
    """A view that nothing moves yet (NKI037)."""
    if tensor.indirection is not None:
        fail("NKI037", what, tensor=tensor)


def _check_index(name: str, index: Any, tensor: NkiTensor) -> None:
    """A static tensor of 32-bit integers in SBUF (NKI036)."""
    if type(index) is not type(tensor) or index.indirection is not None:
        fail("NKI036", f"{name}={index!r} is not a static tensor", tensor=tensor)
    if index.buffer is not SBUF or index.dtype not in _INDEX_DTYPES:
        what = f"{index.dtype} in {index.buffer.name}"
        fail("NKI036", f"{name} is {what}, expected int32 or uint32 in SBUF", **{name: index})
