"""Memory of a simulated NeuronCore: storages, their written elements, and accumulation.

A `Storage` is one allocation: flat bytes, partition-major on chip. Tensors are strided views of it. Memory is not
initialised: bytes start as 0xFF (NaN in every float type) and an `ElementMap` marks the written elements, so that a
read of other elements is an error; or, if the launch allows it, finds sentinels, as in AWS's simulator. Every access is
checked before it changes anything: the storage's owner, whether it may be written, and the other core's accesses.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .dtypes import DTYPES, Array
from .errors import OverwriteWarning
from .rules import fail, kernel_frame
from .running import running

if TYPE_CHECKING:
    from .races import SharedAccess
    from .tensor import NkiTensor

_POISON = 0xFF
#: The value of an unwritten integer, where it may be read (AWS's simulator guide). Floats are NaN.
_SENTINEL = 4
_ids = itertools.count()


class MemoryRegion(Enum):
    """Memories of a NeuronCore; `hbm` is an alias of `private_hbm`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = private_hbm


SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
PRIVATE_HBM, SHARED_HBM = MemoryRegion.private_hbm, MemoryRegion.shared_hbm


class StorageInfo:
    """An allocation without its data; instruction records keep only this alive.

    `first` and `last` are the indices of the first and last instruction that touched it (-1: none), which is its
    lifetime for the capacity check. Sizes: `num_bytes` in all, `bytes_per_partition` of one partition (on chip).
    """

    __slots__ = (
        "address", "buffer", "bytes_per_partition", "dtype", "first", "id", "iteration", "last", "location", "name",
        "num_bytes", "on_chip", "place", "shape",
    )  # fmt: skip

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
        #: the iteration of a device loop that allocated it, if one did, and its number among the core's allocations
        self.iteration: int | None = None
        self.place = -1
        self.on_chip = buffer is SBUF or buffer is PSUM
        self.num_bytes = prod(shape) * DTYPES[dtype].itemsize
        self.bytes_per_partition = self.num_bytes // shape[0]

    def label(self) -> str:
        """Name and where it was allocated."""
        return f"{self.name or 'tensor'} allocated at {self.location}"

    def overlaps(self, other: StorageInfo) -> bool:
        """Whether the explicit addresses of two tensors of one memory share a byte."""
        assert self.address is not None
        assert other.address is not None
        (row, byte), (row2, byte2) = self.address, other.address
        rows = row < row2 + other.shape[0] and row2 < row + self.shape[0]
        return rows and byte < byte2 + other.bytes_per_partition and byte2 < byte + self.bytes_per_partition


class Region(NamedTuple):
    """Elements that an instruction touched: a strided view (in elements of `dtype`) of one storage."""

    info: StorageInfo
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def num_elems(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def first_partition(self) -> int:
        """Partition of the storage that it starts at (on chip)."""
        return self.offset * DTYPES[self.dtype].itemsize // self.info.bytes_per_partition


class ElementMap:
    """One byte of state for each element of a storage, viewed with a tensor's own strides.

    A narrower view splits the map for good: then each of its cells stands for one narrower element.
    """

    __slots__ = ("cells", "unit")

    def __init__(self, info: StorageInfo, kind: type = np.bool_) -> None:
        self.unit = DTYPES[info.dtype].itemsize
        self.cells: Array = np.zeros(info.num_bytes // self.unit, dtype=kind)

    def view(self, region: NkiTensor | Region) -> Array:
        """Cells of a view's elements, in its shape (with a trailing axis when an element spans several cells)."""
        itemsize = region.itemsize
        if itemsize < self.unit:
            self.cells = np.repeat(self.cells, self.unit // itemsize)
            self.unit = itemsize
        cells, ratio = self.cells, itemsize // self.unit
        if ratio == 1:
            return np.ndarray(region.shape, cells.dtype, cells, region.offset, region.strides)
        strides = (*(ratio * stride for stride in region.strides), 1)
        return np.ndarray((*region.shape, ratio), cells.dtype, cells, region.offset * ratio, strides)


def first_index(chosen: Array, ndim: int) -> tuple[int, ...]:
    """Index of the first true cell of an `ElementMap` view of an `ndim`-dimensional tensor."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(chosen)), chosen.shape)[:ndim])


class Storage:
    """One allocation: its record, its bytes (None when only traced) and its element states.

    Args:
        owner: the Program that may use it, or the Launch when all its cores may.
        data: the caller's bytes, complete as they are; None for a fresh allocation.
        numeric: whether a fresh allocation gets (poisoned) bytes.
        sentinels: whether unwritten memory may be read.
    """

    __slots__ = (
        "accumulating", "complete", "data", "dirty", "info", "known", "owner", "race", "readonly", "sentinels",
        "unwritten_rule", "written",
    )  # fmt: skip

    def __init__(
        self,
        info: StorageInfo,
        owner: Any,
        data: Array | None = None,
        *,
        numeric: bool = False,
        sentinels: bool = False,
    ) -> None:
        self.info = info
        self.owner = owner
        self.sentinels = sentinels
        #: every element has been written, or the check is off (as it is when only traced)
        self.complete = data is not None or not numeric or sentinels
        #: made at first use, so that a write of everything need not be preceded by poison
        self.data = data
        #: elements written so far; None while there are none, and once it is complete
        self.written: ElementMap | None = None
        #: elements whose last writer was a matmul (PSUM only)
        self.accumulating: ElementMap | None = None
        #: view keys -> True: accumulating in full; False: only known to be written in full
        self.known: dict[Any, bool] = {}
        self.readonly = False
        #: something wrote to it (an argument that is a copy must be written back)
        self.dirty = False
        self.race: SharedAccess | None = None
        #: the rule that a read of an unwritten element breaks
        self.unwritten_rule = "NKI016"

    def array(self, tensor: NkiTensor) -> Array:
        """The tensor's elements as a NumPy view (no copy, no check but NKI054: an indirect view has no place)."""
        if tensor.indirection is not None:
            fail("NKI054", "an indirect view", tensor=tensor)
        data = self.data
        if data is None:
            data = self.data = np.full(self.info.num_bytes, _POISON, dtype=np.uint8)
            if self.sentinels and not DTYPES[self.info.dtype].is_float:
                data.view(DTYPES[self.info.dtype].numpy)[...] = _SENTINEL
        size = tensor.itemsize
        strides = tuple([size * stride for stride in tensor.strides])
        return np.ndarray(tensor.shape, DTYPES[tensor.dtype].numpy, data, tensor.offset * size, strides)

    def read(self, tensor: NkiTensor) -> Array:
        """Elements of a tensor that an instruction reads; refuses elements never written (NKI016, NKI180)."""
        self.check_owner(tensor)
        if not self.complete:
            self._require_written(tensor)
        if self.race is not None:
            self.race.touch(tensor, writing=False)
        return self.array(tensor)

    def write(self, tensor: NkiTensor, values: Any) -> None:
        """Store values (cast to the tensor's dtype as NumPy casts), and remember that they are there."""
        self._check_write(tensor, values)
        if self.data is None and tensor.covers_storage():
            self.data = np.empty(self.info.num_bytes, dtype=np.uint8)
        self.array(tensor)[...] = values
        self._forget_matmuls(tensor)
        if not self.complete:
            self._mark_written(tensor)

    def write_where(self, tensor: NkiTensor, mask: Array, values: Any) -> None:
        """Store values at the chosen elements only; the others keep their value, or stay unwritten."""
        self._check_write(tensor)
        np.copyto(self.array(tensor), values, where=mask)
        self._forget_matmuls(tensor)
        if not self.complete:
            cells = self._written_map().view(tensor)
            cells |= mask if cells.ndim == mask.ndim else mask[..., None]

    def discard(self, tensor: NkiTensor) -> None:
        """Elements that an instruction leaves with something undocumented: as if never written."""
        self._check_write(tensor)
        if self.sentinels:
            self.array(tensor)[...] = np.nan if DTYPES[tensor.dtype].is_float else _SENTINEL
            self._forget_matmuls(tensor)
            return
        if self.complete:
            self.complete, self.written = False, ElementMap(self.info)
            self.written.cells.fill(True)
        self._written_map().view(tensor).fill(False)
        self.known.clear()
        if self.accumulating is not None:
            self.accumulating.view(tensor).fill(False)

    def check_owner(self, tensor: NkiTensor) -> None:
        """A tensor is used by the core that made it (any core, if shared) and during its run (NKI021)."""
        program = running()
        if self.owner is not program and (program is None or self.owner is not program.launch):
            fail("NKI021", "a tensor of another core or of an ended run", tensor=tensor)

    def _check_write(self, tensor: NkiTensor, values: Any = None) -> None:
        """Check a write; values: the stored values, None if it does not store all elements."""
        self.check_owner(tensor)
        if self.readonly:
            fail("NKI033", "the array behind dst is read-only", dst=tensor)
        if self.race is not None:
            changed = None if values is None else functools.partial(self._differs, tensor, values)
            self.race.touch(tensor, writing=True, changed=changed)
        self.dirty = True

    def _differs(self, tensor: NkiTensor, values: Any) -> Array:
        """Which elements of a tensor have other bytes than values."""
        now = self.array(tensor)
        given = np.empty(now.shape, now.dtype)
        given[...] = values
        raw = np.dtype((np.void, now.dtype.itemsize))
        found: Array = np.ascontiguousarray(now).view(raw) != given.view(raw)
        return found.reshape(now.shape)

    def _forget_matmuls(self, tensor: NkiTensor) -> None:
        if self.accumulating is not None:
            self.accumulating.view(tensor).fill(False)
            self.known.clear()

    def _written_map(self) -> ElementMap:
        if self.written is None:
            self.written = ElementMap(self.info)
        return self.written

    def _mark_written(self, tensor: NkiTensor) -> None:
        if tensor.covers_storage():
            self.complete, self.written = True, None
        elif not self.info.on_chip:
            self._written_map().view(tensor).fill(True)
        elif tensor.key() not in self.known:  # a tile's few views come again and again; an HBM tensor's do not
            self._written_map().view(tensor).fill(True)
            self.known[tensor.key()] = False

    def _require_written(self, tensor: NkiTensor) -> None:
        if tensor.key() in self.known:
            return
        missing, index = self.unwritten(tensor)
        if missing:
            fail(
                self.unwritten_rule,
                f"element {index} of the view (and {missing - 1} more) was never written",
                tensor=tensor,
            )
        if tensor.covers_storage():
            self.complete, self.written = True, None
        elif self.info.on_chip:
            self.known[tensor.key()] = False

    def unwritten(self, tensor: NkiTensor) -> tuple[int, tuple[int, ...]]:
        """How many elements of a view were never written (in full), and the index of the first one."""
        if self.complete:
            return 0, ()
        cells = self._written_map().view(tensor)
        if cells.all():
            return 0, ()
        blank: Array = ~cells
        if cells.ndim > len(tensor.shape):
            blank = np.logical_or.reduce(blank, axis=-1)
        return int(np.count_nonzero(blank)), first_index(blank, blank.ndim)

    def check_accumulation(self, tensor: NkiTensor, accumulate: bool | None) -> bool | Array:
        """Whether a matmul into `tensor` accumulates (NKI109), as by hardware's flag; if for some elements only, their
        mask."""
        self.check_owner(tensor)
        if accumulate is False:
            return False
        if self.known.get(tensor.key()):
            return True
        cells = None
        count = 0
        total = tensor.size
        if self.accumulating is not None:
            cells = self.accumulating.view(tensor)
            count, total = int(np.count_nonzero(cells)), cells.size
        if accumulate and count < total:
            fail("NKI109", f"no matmul has written {total - count} of {total} elements of dst", dst=tensor)
        if count < total:
            self._warn_of_overwriting(tensor, cells)
        return cells.reshape(tensor.shape) if cells is not None and 0 < count < total else count == total

    def _warn_of_overwriting(self, tensor: NkiTensor, cells: Array | None) -> None:
        """Warn that a matmul overwrites another instruction's result, such as a memset, instead of adding to it."""
        if self.sentinels or (self.written is None and not self.complete):
            return
        other = True if self.complete else self._written_map().view(tensor)
        if np.any(other if cells is None else other & ~cells):
            frame, _ = kernel_frame()
            message = (
                f"accumulate=None overwrites what a memset, copy or transpose wrote to {tensor.describe()}; pass "
                f"accumulate=False if that is meant, or start with a matmul of zeros"
            )
            place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("<kernel>", 0)
            warnings.warn_explicit(message, OverwriteWarning, *place)

    def mark_matmul(self, tensor: NkiTensor) -> None:
        """Book-keeping of a matmul's write: these elements may now be accumulated into."""
        key = tensor.key()
        if self.known.get(key):
            return
        if not self.complete:
            self._mark_written(tensor)
        if self.accumulating is None:
            self.accumulating = ElementMap(self.info)
        self.accumulating.view(tensor).fill(True)
        self.known[key] = True
