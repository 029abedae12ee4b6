"""Memory of a simulated NeuronCore: storages, what has been written in them, and who accumulates where.

A `Storage` is one allocation: flat bytes, partition-major on chip. Tensors are strided views of it. Nothing is
initialised: bytes start as 0xFF (NaN in every float type) and an `ElementMap` knows element by element what was
written, so that a read of anything else is an error instead of a number.
"""

from __future__ import annotations

import itertools
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .dtypes import DTYPES, Array
from .rules import fail

if TYPE_CHECKING:
    from .races import SharedAccess
    from .tensor import NkiTensor

_POISON = 0xFF
_ids = itertools.count()


class MemoryRegion(Enum):
    """Memories of a NeuronCore; `hbm` is an alias of `private_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = "private_hbm"


SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
PRIVATE_HBM, SHARED_HBM = MemoryRegion.private_hbm, MemoryRegion.shared_hbm


class StorageInfo:
    """What is known of an allocation without its data; instruction records keep this and nothing else alive.

    `first` and `last` are the indices of the first and last instruction that touched it (-1: none), which is its
    lifetime for the capacity check.
    """

    __slots__ = ("address", "buffer", "dtype", "first", "id", "last", "location", "name", "shape")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        buffer: MemoryRegion,
        location: str,
        address: tuple[int, int] | None = None,
    ) -> None:
        self.id = next(_ids)
        self.name, self.shape, self.dtype, self.buffer = name, shape, dtype, buffer
        self.location, self.address = location, address
        self.first = self.last = -1

    @property
    def on_chip(self) -> bool:
        return self.buffer is SBUF or self.buffer is PSUM

    @property
    def bytes_per_partition(self) -> int:
        """Free bytes of one partition (on chip)."""
        return prod(self.shape[1:]) * DTYPES[self.dtype].itemsize

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    def label(self) -> str:
        """Name, or where it was allocated."""
        return self.name or f"tensor allocated at {self.location}"


class Region(NamedTuple):
    """Elements that an instruction touched: a strided view (in elements of `dtype`) of one storage."""

    info: StorageInfo
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def num_elems(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


class ElementMap:
    """One byte of state for each `unit` bytes of a storage, viewed with a tensor's own strides."""

    __slots__ = ("cells", "unit")

    def __init__(self, num_bytes: int, unit: int) -> None:
        self.cells: Array = np.zeros(num_bytes // unit, dtype=np.uint8)
        self.unit = unit

    def view(self, tensor: NkiTensor) -> Array:
        """Cells of the tensor's elements, in its shape (with a trailing axis when an element spans several cells)."""
        itemsize = tensor.itemsize
        if itemsize < self.unit:
            self.cells = np.repeat(self.cells, self.unit // itemsize)
            self.unit = itemsize
        ratio = itemsize // self.unit
        if ratio == 1:
            return np.ndarray(tensor.shape, np.uint8, self.cells, tensor.offset, tensor.strides)
        strides = tuple(ratio * stride for stride in tensor.strides)
        return np.ndarray((*tensor.shape, ratio), np.uint8, self.cells, tensor.offset * ratio, (*strides, 1))


class Storage:
    """One allocation: its record, its bytes (None when only traced) and its element states."""

    __slots__ = ("accumulating", "complete", "data", "dirty", "info", "itemsize", "owner", "race", "readonly", "whole", "written")

    def __init__(self, info: StorageInfo, owner: Any, data: Array | None, *, complete: bool = False) -> None:
        self.info = info
        #: program that may use it; None for HBM that both cores see
        self.owner = owner
        self.data = data
        self.itemsize = DTYPES[info.dtype].itemsize
        #: every element has been written
        self.complete = complete or data is None
        self.written: ElementMap | None = None
        #: elements whose last writer was a matmul (PSUM only)
        self.accumulating: ElementMap | None = None
        #: view keys known to be accumulating in full; emptied by any other write
        self.whole: set[Any] = set()
        self.readonly = False
        #: something wrote to it (an argument that is a copy must be written back)
        self.dirty = False
        self.race: SharedAccess | None = None

    @staticmethod
    def allocate(info: StorageInfo, owner: Any, *, numeric: bool) -> Storage:
        """Fresh poisoned storage; without data when the run only traces."""
        if not numeric:
            return Storage(info, owner, None)
        storage = Storage(info, owner, np.full(info.num_bytes, _POISON, dtype=np.uint8))
        storage.written = ElementMap(info.num_bytes, storage.itemsize)
        return storage

    def array(self, tensor: NkiTensor) -> Array:
        """The tensor's elements as a NumPy view (no copy, no check)."""
        info = DTYPES[tensor.dtype]
        size = info.itemsize
        strides = tuple([size * stride for stride in tensor.strides])
        return np.ndarray(tensor.shape, info.numpy, self.data, tensor.offset * size, strides)

    def read(self, tensor: NkiTensor) -> Array:
        """Elements of a tensor that an instruction reads; refuses elements nobody wrote (NKI016)."""
        if not self.complete:
            self._require_written(tensor)
        if self.race is not None:
            self.race.touch(tensor, writing=False)
        return self.array(tensor)

    def write(self, tensor: NkiTensor, values: Any) -> None:
        """Store values (cast to the tensor's dtype as NumPy casts), and remember that they are there."""
        if self.readonly:
            fail("NKI033", "the array behind dst is read-only", dst=tensor)
        self.array(tensor)[...] = values
        self.mark(tensor)

    def write_where(self, tensor: NkiTensor, mask: Array, values: Any) -> None:
        """Store values at the chosen elements only; the others keep their value, or stay unwritten."""
        np.copyto(self.array(tensor), values, where=mask)
        if self.written is not None:
            cells = self.written.view(tensor)
            np.maximum(cells, mask if cells.ndim == mask.ndim else mask[..., None], out=cells)
        if self.accumulating is not None:
            self.accumulating.view(tensor).fill(0)
            self.whole.clear()

    def mark(self, tensor: NkiTensor) -> None:
        """Book-keeping of a write by anything but a matmul."""
        self.dirty = True
        if self.race is not None:
            self.race.touch(tensor, writing=True)
        self._mark_written(tensor)
        if self.accumulating is not None:
            self.accumulating.view(tensor).fill(0)
            self.whole.clear()

    def _mark_written(self, tensor: NkiTensor) -> None:
        if self.written is None:
            return
        if tensor.covers_storage():
            self.complete, self.written = True, None
        else:
            self.written.view(tensor).fill(1)

    def _require_written(self, tensor: NkiTensor) -> None:
        assert self.written is not None
        cells = self.written.view(tensor)
        if not cells.all():
            index = tuple(int(i) for i in np.argwhere(cells == 0)[0][: len(tensor.shape)])
            missing = cells.size - int(np.count_nonzero(cells))
            fail(
                "NKI016",
                f"element {index} of the view (and {missing - 1} more) was never written",
                tensor=tensor,
            )
        if tensor.covers_storage():
            self.complete, self.written = True, None

    def check_accumulation(self, tensor: NkiTensor, accumulate: bool | None) -> bool:
        """Whether a matmul into `tensor` adds to what is there (NKI109, NKI110), as hardware's flag would say."""
        if accumulate is False:
            return False
        if tensor.key() in self.whole:
            return True
        count = 0
        total = tensor.size
        if self.accumulating is not None:
            cells = self.accumulating.view(tensor)
            count, total = int(np.count_nonzero(cells)), cells.size
        if accumulate and count < total:
            fail("NKI109", f"no matmul has written {total - count} of {total} elements of dst", dst=tensor)
        if 0 < count < total:
            fail("NKI110", f"{count} of {total} elements of dst hold a matmul's result, the others do not", dst=tensor)
        return count == total

    def mark_matmul(self, tensor: NkiTensor) -> None:
        """Book-keeping of a matmul's write: these elements may now be accumulated into."""
        key = tensor.key()
        if key in self.whole:
            return
        self._mark_written(tensor)
        if self.accumulating is None:
            self.accumulating = ElementMap(self.info.num_bytes, self.itemsize)
        self.accumulating.view(tensor).fill(1)
        self.whole.add(key)
