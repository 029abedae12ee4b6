"""NkiTensor: a strided view of a storage, with every view method of NKI's document.

Element `(i0, i1, ...)` of a view is element ``offset + sum(strides[k] * ik)`` of its storage. On chip, dim 0 is the
partition dim; its stride is the storage's free size. No method copies data.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from . import hardware as hw
from .dtypes import DTYPES, GEN4_DTYPES, canonical
from .errors import NotSimulatedError
from .memory import PSUM, SBUF, MemoryRegion, Region, Storage
from .rules import fail

Pattern = list[list[int]]


class NKIObject:
    """Base of classes that kernels may define: fields become arguments of a generated ``__init__``."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = [n for cls in reversed(type(self).__mro__) for n in inspect.get_annotations(cls)]
        values = dict(zip(names, args, strict=False)) | kwargs
        unknown = set(values) - set(names)
        if unknown or len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes fields {names}, got {len(args)} positional and {sorted(kwargs)}")
        for name in names:
            setattr(self, name, values.get(name, getattr(type(self), name, None)))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Hook for subclasses, called after the generated ``__init__``."""


@dataclass(frozen=True)
class DynamicSlice:
    """`nl.ds(start, size)`: elements start .. start + size - 1."""

    start: Any
    size: int


def dtype_name(dtype: Any) -> str:
    """NKI's name of `dtype`, or NKI001/NKI049."""
    name = canonical(dtype)
    if name is None:
        if dtype in GEN4_DTYPES:
            fail("NKI049", f"dtype {dtype} needs NeuronCore-v4 (trn3); the target is trn2")
        fail("NKI001", f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
    return name


def as_int(value: Any, what: str) -> int:
    """A compile-time int; registers and tensors are refused by name."""
    try:
        return operator.index(value)
    except TypeError:
        fail("NKI006", f"{what}={value!r} must be a compile-time int")


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


class NkiTensor(NKIObject):
    """View of a storage: `shape`, `strides` and `offset` in elements of `dtype`, in memory `buffer`.

    Made by `nl.ndarray` and its siblings; every view method returns a new NkiTensor over the same storage. A rule that
    a view breaks is an `NkiError`.
    """

    __slots__ = ("_cache", "dtype", "itemsize", "offset", "on_chip", "shape", "storage", "strides")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        storage: Storage,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.strides = dense_strides(shape) if strides is None else strides
        self.offset = offset
        self.itemsize = DTYPES[dtype].itemsize
        self.on_chip: bool = storage.info.on_chip
        self._cache: dict[str, Any] = {}

    # Attributes.

    @property
    def name(self) -> str:
        return self.storage.info.name

    @property
    def buffer(self) -> MemoryRegion:
        return self.storage.info.buffer

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def region(self) -> Region:
        """What an instruction record keeps of this operand."""
        region = self._cache.get("region")
        if region is None:
            region = Region(self.storage.info, self.dtype, self.shape, self.strides, self.offset)
            self._cache["region"] = region
        return region  # type: ignore[no-any-return]

    def key(self) -> tuple[Any, ...]:
        """Identity of the addressed elements within the storage."""
        return (self.offset, self.shape, self.strides, self.itemsize)

    def covers_storage(self) -> bool:
        """Whether the view is exactly every element of its storage (in order)."""
        covers = self._cache.get("covers")
        if covers is None:
            covers = (
                self.offset == 0
                and self.size * self.itemsize == self.storage.info.num_bytes
                and all(n == 1 or s == d for n, s, d in zip(self.shape, self.strides, dense_strides(self.shape), strict=True))
            )
            self._cache["covers"] = covers
        return bool(covers)

    def describe(self) -> str:
        """One line for error messages: shape, dtype, memory, and where it comes from."""
        info = self.storage.info
        view = f"{list(self.shape)}"
        if self.shape != info.shape or self.offset:
            view += f" view (strides {list(self.strides)}, offset {self.offset}) of {list(info.shape)}"
        return f"{view} {DTYPES[self.dtype].short} in {info.buffer.name.upper()}, {info.label()}"

    def __repr__(self) -> str:
        return f"NkiTensor({self.describe()})"

    def is_contiguous(self) -> bool:
        """Dense and row-major over the free dims (on chip) or over all dims (HBM); size-1 dims do not count."""
        dims = list(zip(self.shape, self.strides, strict=True))[1 if self.on_chip else 0 :]
        expected = 1
        for n, stride in reversed(dims):
            if n != 1 and stride != expected:
                return False
            expected *= n
        return True

    def is_indirect(self) -> bool:
        """Whether the view is addressed at run time; such views are not simulated yet, so always False."""
        return False

    def get_pattern(self) -> Pattern:
        """``[[stride, count], ...]`` of the view, as `.ap` takes it."""
        return [[s, n] for s, n in zip(self.strides, self.shape, strict=True)]

    # Indexing.

    def __getitem__(self, key: Any) -> NkiTensor:
        """NumPy-style ints, slices, ``...`` and `nl.ds`.

        An int drops its dim, but on chip dim 0 stays with size 1 and the result keeps 2 dims (HBM: 1 dim).
        """
        keys = self._full_key(key)
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for dim, (k, n, s) in enumerate(zip(keys, self.shape, self.strides, strict=True)):
            if type(k) is slice:
                start, stop, step = self._slice_bounds(k, n, dim)
            elif isinstance(k, DynamicSlice):
                start = as_int(k.start, "ds start")
                stop, step = start + as_int(k.size, "ds size"), 1
                self._check_slice(start, stop, step, n, dim)
            else:
                start = self._int_index(k, n, dim)
                offset += start * s
                if dim == 0 and self.on_chip:
                    shape.append(1)
                    strides.append(s)
                continue
            offset += start * s
            shape.append((stop - start + step - 1) // step)
            strides.append(s * step)
        least = 2 if self.on_chip else 1
        while len(shape) < least:
            shape.append(1)
            strides.append(1)
        self._no_partition_step(strides[0], shape[0])
        return self._view(tuple(shape), tuple(strides), offset)

    def _full_key(self, key: Any) -> tuple[Any, ...]:
        keys = key if type(key) is tuple else (key,)
        num_ellipses = sum(1 for k in keys if k is Ellipsis)
        missing = len(self.shape) - len(keys) + num_ellipses
        if num_ellipses > 1 or missing < 0:
            fail("NKI006", f"index {key!r} does not fit {len(self.shape)} dims", tensor=self)
        if num_ellipses:
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            return (*keys[:at], *(slice(None),) * missing, *keys[at + 1 :])
        return (*keys, *(slice(None),) * missing)

    def _int_index(self, k: Any, n: int, dim: int) -> int:
        if isinstance(k, NkiTensor):
            raise NotSimulatedError("dynamic tensor indexing", ("compile-time ints", "slices", "nl.ds"))
        index = as_int(k, f"index of dim {dim}")
        if not -n <= index < n:
            fail("NKI006", f"index {index} is outside dim {dim} of size {n}", tensor=self)
        return index + n if index < 0 else index

    def _slice_bounds(self, k: slice, n: int, dim: int) -> tuple[int, int, int]:
        step = 1 if k.step is None else as_int(k.step, "slice step")
        start = 0 if k.start is None else as_int(k.start, "slice start")
        stop = n if k.stop is None else as_int(k.stop, "slice stop")
        start = start + n if start < 0 else start
        stop = stop + n if stop < 0 else stop
        self._check_slice(start, stop, step, n, dim)
        return start, stop, step

    def _check_slice(self, start: int, stop: int, step: int, n: int, dim: int) -> None:
        if start < 0 or stop > n:
            fail("NKI006", f"slice {start}:{stop} is outside dim {dim} of size {n}", tensor=self)
        if step < 1 or start >= stop:
            fail("NKI007", f"slice {start}:{stop}:{step} of dim {dim}", tensor=self)

    def _no_partition_step(self, stride: int, count: int) -> None:
        if self.on_chip and count > 1 and stride != self._free_size():
            fail("NKI011", f"the partition dim steps by {stride} elements, one partition is {self._free_size()}", tensor=self)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        fail("NKI031", "item assignment; copy with nisa.tensor_copy or nisa.dma_copy", tensor=self)

    def __bool__(self) -> bool:
        fail("NKI031", "the truth value of a tensor", tensor=self)

    def __iter__(self) -> NoReturn:
        fail("NKI031", "iteration over a tensor", tensor=self)

    # View methods.

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start, start + step, ... below `end` of one dim."""
        dim = self._dim(dim)
        if start < 0 or end < 0:
            fail("NKI006", f"slice {start}:{end} of dim {dim}", tensor=self)
        return self[(*(slice(None),) * dim, slice(start, end, step))]

    def select(self, dim: int, index: int) -> NkiTensor:
        """One index of a dim, dropping the dim (kept at size 1 for dim 0 on chip)."""
        dim = self._dim(dim)
        return self[(*(slice(None),) * dim, index)]

    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """Dims in another order; dim 0 stays first on chip."""
        if sorted(dims) != list(range(self.ndim)):
            fail("NKI015", f"permute({dims!r}) of {self.ndim} dims", tensor=self)
        if self.on_chip and dims[0] != 0:
            fail("NKI008", f"permute({dims!r}) moves the partition dim", tensor=self)
        return self._view(tuple(self.shape[d] for d in dims), tuple(self.strides[d] for d in dims), self.offset)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dim of size 1 repeated `size` times."""
        dim = self._free_dim(dim, "broadcast")
        if self.shape[dim] != 1:
            fail("NKI014", f"broadcast of dim {dim} of size {self.shape[dim]}", tensor=self)
        if as_int(size, "broadcast size") < 1:
            fail("NKI002", f"broadcast size {size}", tensor=self)
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._view(tuple(shape), tuple(strides), self.offset)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dim of size 1 at position `dim`."""
        if not 0 <= as_int(dim, "dim") <= self.ndim:
            fail("NKI006", f"expand_dim({dim}) of {self.ndim} dims", tensor=self)
        if self.on_chip and dim == 0:
            fail("NKI008", "expand_dim(0) before the partition dim", tensor=self)
        stride = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return self._view(shape, (*self.strides[:dim], stride, *self.strides[dim:]), self.offset)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Drop a dim of size 1."""
        dim = self._free_dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            fail("NKI014", f"squeeze_dim of dim {dim} of size {self.shape[dim]}", tensor=self)
        least = 2 if self.on_chip else 1
        if self.ndim <= least:
            fail("NKI002", f"squeeze_dim({dim}) would leave fewer than {least} dims", tensor=self)
        return self._view(
            (*self.shape[:dim], *self.shape[dim + 1 :]), (*self.strides[:dim], *self.strides[dim + 1 :]), self.offset
        )

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """Split one dim into several whose product is its size; one of them may be -1."""
        dim = self._dim(dim)
        sizes = self._infer(tuple(shape), self.shape[dim])
        if self.on_chip and dim == 0 and sizes != (self.shape[0],):
            fail("NKI008", f"reshape_dim(0, {shape!r})", tensor=self)
        strides = tuple(s * self.strides[dim] for s in dense_strides(sizes))
        return self._view(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *strides, *self.strides[dim + 1 :]),
            self.offset,
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge dims start_dim..end_dim (inclusive), which must be contiguous with each other."""
        start, end = self._dim(start_dim), self._dim(end_dim)
        if start > end:
            fail("NKI015", f"flatten_dims({start_dim}, {end_dim})", tensor=self)
        if self.on_chip and start == 0 and end > 0:
            fail("NKI008", f"flatten_dims({start_dim}, {end_dim})", tensor=self)
        for i in range(start, end):
            if self.shape[i] != 1 and self.strides[i] != self.strides[i + 1] * self.shape[i + 1]:
                fail("NKI010", f"dims {i} and {i + 1} are not contiguous", tensor=self)
        merged = prod(self.shape[start : end + 1])
        return self._view(
            (*self.shape[:start], merged, *self.shape[end + 1 :]),
            (*self.strides[:start], self.strides[end], *self.strides[end + 1 :]),
            self.offset,
        )

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """Another shape with the same elements in the same order, without a copy."""
        sizes = self._infer(tuple(shape), self.size)
        if self.on_chip and sizes[0] != self.shape[0]:
            fail("NKI008", f"reshape({shape!r}) changes the {self.shape[0]} partitions", tensor=self)
        strides = _reshaped_strides(self.shape, self.strides, sizes)
        if strides is None:
            fail("NKI010", f"reshape({shape!r}) of strides {self.strides}", tensor=self)
        return self._view(sizes, strides, self.offset)

    def rearrange(self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None) -> NkiTensor:  # noqa: E501
        """einops-style split, permute and merge: names and tuples of names on both sides."""
        return _rearrange(self, src_pattern, dst_pattern, fixed_sizes or {})

    def ap(
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Raw access pattern ``[[step, count], ...]`` on the storage, in elements of `dtype`.

        The pattern replaces shape and strides. `offset=None` inherits the view's offset.
        """
        if scalar_offset is not None or vector_offset is not None or indirect_dim != 0:
            raise NotSimulatedError("indirect access (.ap with scalar_offset or vector_offset)", ("static patterns",))
        if offset is not None and self.offset != 0:
            fail("NKI013", f"offset={offset} on a view that starts at element {self.offset}", tensor=self)
        name = self.dtype if dtype is None else dtype_name(dtype)
        start = as_int(offset, "offset") if offset is not None else self.offset * self.itemsize // DTYPES[name].itemsize
        pairs = [(as_int(step, "step"), as_int(count, "count")) for step, count in pattern]
        shape = tuple(count for _, count in pairs)
        strides = tuple(step for step, _ in pairs)
        if not pairs or min(shape) < 1:
            fail("NKI002", f"pattern {pattern!r}", tensor=self)
        view = self._view(shape, strides, start, name)
        view._check_inside(pattern)
        return view

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dim scales with the element size."""
        name = dtype_name(dtype)
        old, new = self.itemsize, DTYPES[name].itemsize
        if old == new:
            return self._view(self.shape, self.strides, self.offset, name)
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            fail("NKI010", f"view({dtype}) needs a contiguous last dim", tensor=self)
        last, scale = self.shape[-1] * old, lambda s: s * old // new
        if last % new or self.offset * old % new or any(s * old % new for s in self.strides[:-1]):
            fail("NKI009", f"view({dtype}): {self.shape[-1]} elements of {old} bytes do not make whole ones of {new}", tensor=self)
        strides = (*(scale(s) for s in self.strides[:-1]), 1)
        return self._view((*self.shape[:-1], last // new), strides, scale(self.offset), name)

    reinterpret_cast = view

    def vector_select(self, dim: int, vector_offset: Any) -> NoReturn:
        """Indirect addressing: not simulated yet."""
        raise NotSimulatedError("NkiTensor.vector_select", ("static views",))

    def indirect(self, index: Any, num_elem: int | None = None) -> NoReturn:
        """Tensor indirection exists on NeuronCore-v4 only."""
        fail("NKI049", "NkiTensor.indirect needs NeuronCore-v4 (trn3)", tensor=self)

    # Helpers.

    def _view(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: str | None = None) -> NkiTensor:
        if len(shape) > hw.VIEW_DIMS_MAX:
            fail("NKI004", f"{len(shape)} dims", tensor=self)
        return NkiTensor(shape, dtype or self.dtype, self.storage, strides, offset)

    def _free_size(self) -> int:
        """Elements of one partition of the storage, in this view's dtype."""
        return self.storage.info.bytes_per_partition // self.itemsize

    def partition_start(self) -> int:
        """First partition of an on-chip view, within its storage."""
        return self.offset // self._free_size()

    def _check_inside(self, pattern: Any) -> None:
        self._no_partition_step(self.strides[0], self.shape[0])
        spans = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(s for s in spans if s < 0)
        high = self.offset + sum(s for s in spans if s > 0)
        limit = self.storage.info.num_bytes // self.itemsize
        if self.on_chip:
            free = self._free_size()
            within = self.offset % free
            outside = within + sum(s for s in spans[1:] if s > 0) >= free or within + sum(s for s in spans[1:] if s < 0) < 0
            if outside:
                fail("NKI012", f"pattern {pattern!r} offset {self.offset} leaves the partition of {free} elements", tensor=self)
        if low < 0 or high >= limit:
            fail("NKI012", f"pattern {pattern!r} reaches elements {low}..{high} of a storage of {limit}", tensor=self)

    def _dim(self, dim: int) -> int:
        index = as_int(dim, "dim")
        if not -self.ndim <= index < self.ndim:
            fail("NKI006", f"dim {dim} of {self.ndim} dims", tensor=self)
        return index % self.ndim

    def _free_dim(self, dim: int, what: str) -> int:
        index = self._dim(dim)
        if self.on_chip and index == 0:
            fail("NKI008", f"{what} of dim 0", tensor=self)
        return index

    def _infer(self, shape: tuple[int, ...], total: int) -> tuple[int, ...]:
        sizes = tuple(as_int(n, "size") for n in shape)
        unknown = sizes.count(-1)
        known = prod(n for n in sizes if n != -1)
        if unknown == 1 and known > 0 and total % known == 0:
            sizes = tuple(total // known if n == -1 else n for n in sizes)
        if not sizes or min(sizes) < 1 or prod(sizes) != total:
            fail("NKI009", f"shape {shape!r} does not hold {total} elements", tensor=self)
        return sizes


def is_on_chip(buffer: MemoryRegion) -> bool:
    """Whether a memory is SBUF or PSUM."""
    return buffer is SBUF or buffer is PSUM


def _reshaped_strides(shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the same elements in shape `new`, or None when that needs a copy."""
    runs = _merged_runs(shape, strides)
    out: list[int] = []
    sizes = list(new)
    for count, stride in runs:
        group: list[int] = []
        while sizes and prod(group) < count:
            group.append(sizes.pop(0))
        if prod(group) != count:
            return None
        out += [s * stride for s in dense_strides(tuple(group))]
    return (*out, *(1 for _ in sizes))


def _merged_runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(count, stride) of the view's dims with size-1 dims dropped and contiguous neighbours merged."""
    runs: list[tuple[int, int]] = []
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == s * n:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    return runs


def _names(pattern: tuple[Any, ...]) -> list[tuple[str, ...]]:
    return [entry if isinstance(entry, tuple) else (entry,) for entry in pattern]


def _rearrange(tensor: NkiTensor, src: tuple[Any, ...], dst: tuple[Any, ...], fixed: dict[str, int]) -> NkiTensor:
    src_groups, dst_groups = _names(src), _names(dst)
    src_names = [name for group in src_groups for name in group]
    dst_names = [name for group in dst_groups for name in group]
    if len(src_groups) != tensor.ndim or sorted(src_names) != sorted(dst_names) or len(set(src_names)) != len(src_names):
        fail("NKI015", f"rearrange({src!r} -> {dst!r}) of {tensor.ndim} dims", tensor=tensor)
    split = tensor
    for dim in range(tensor.ndim - 1, -1, -1):
        group = src_groups[dim]
        if len(group) > 1:
            split = split.reshape_dim(dim, tuple(fixed.get(name, -1) for name in group))
        elif fixed.get(group[0], tensor.shape[dim]) != tensor.shape[dim]:
            fail("NKI009", f"fixed size of {group[0]!r} is {fixed[group[0]]}, the dim is {tensor.shape[dim]}", tensor=tensor)
    moved = split.permute(tuple(src_names.index(name) for name in dst_names))
    at = 0
    for group in dst_groups:
        moved = moved.flatten_dims(at, at + len(group) - 1) if len(group) > 1 else moved
        at += 1
    return moved
