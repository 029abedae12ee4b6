"""NkiTensor: a strided view of a storage, with every view method of NKI's document.

Element `(i0, i1, ...)` of a view is element ``offset + sum(strides[k] * ik)`` of its storage. On chip, dim 0 is the
partition dim; its stride is the storage's free size. No method copies data.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable
from math import prod
from typing import Any, NoReturn, cast

from . import hardware as hw
from . import indirection as runtime
from . import views
from .documented import TENSOR_GEN4
from .dtypes import DTYPES
from .errors import NotSimulatedError, TensorTruthWarning
from .indirection import Indirection, require_static
from .memory import Region, Storage
from .objects import DynamicSlice, NKIObject, as_int, dtype_name, listed
from .rules import fail, refused_call
from .views import Ints, dense_strides, is_dense, merged_runs, reshaped_strides, whole_sizes

_ALL = slice(None)


class NkiTensor(NKIObject):
    """View of a storage: `shape`, `strides` and `offset` in elements of `dtype`, in memory `buffer`.

    Made by `nl.ndarray` and its siblings; every view method returns a new NkiTensor over the same storage. A rule that
    a view breaks is an `NkiError`.
    """

    __slots__ = (
        "_region", "buffer", "dtype", "indirection", "itemsize", "offset", "on_chip", "shape", "size", "storage",
        "strides", "walked",
    )  # fmt: skip

    def __init__(
        self,
        shape: Ints,
        dtype: str,
        storage: Storage,
        strides: Ints | None = None,
        offset: int = 0,
        indirection: Indirection | None = None,
    ) -> None:
        info = storage.info
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.strides = dense_strides(shape) if strides is None else strides
        self.offset = offset
        #: the indices that move the view at run time; None for a static one
        self.indirection = indirection
        self.size = prod(shape)
        self.itemsize = DTYPES[dtype].itemsize
        self.buffer = info.buffer
        self.on_chip: bool = info.on_chip
        self._region: Region | None = None
        #: free dims that an engine walks, once an instruction has asked for them
        self.walked: int | None = None

    # Attributes.

    @property
    def name(self) -> str:
        return self.storage.info.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def region(self) -> Region:
        """This operand in an instruction record: all elements that an indirect view may touch."""
        if self._region is None:
            self._region = self.pattern() if self.indirection is None else self.indirection.reach
        return self._region

    def pattern(self) -> Region:
        """The view's own elements; for an indirect view with indices of 0."""
        return Region(self.storage.info, self.dtype, self.shape, self.strides, self.offset)

    def key(self) -> tuple[Any, ...]:
        """Identity of the addressed elements within the storage."""
        return (self.offset, self.shape, self.strides, self.itemsize)

    def covers_storage(self) -> bool:
        """Whether the view is exactly every element of its storage, in order."""
        if self.offset or self.size * self.itemsize != self.storage.info.num_bytes:
            return False
        return is_dense(self.shape, self.strides)

    def partition_stride(self) -> int:
        """Elements of one partition of the storage, in this view's dtype (on chip)."""
        return self.storage.info.bytes_per_partition // self.itemsize

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
        first = 1 if self.on_chip else 0
        return is_dense(self.shape[first:], self.strides[first:])

    def is_indirect(self) -> bool:
        """Whether the view is addressed at run time."""
        return self.indirection is not None

    def get_pattern(self) -> list[list[int]]:
        """``[[stride, count], ...]`` of the view, as `.ap` takes it."""
        return [[s, n] for s, n in zip(self.strides, self.shape, strict=True)]

    # Operations that tensors refuse.

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        fail("NKI031", "item assignment; copy with nisa.tensor_copy or nisa.dma_copy", tensor=self)

    def __bool__(self) -> bool:
        """Whether there is a tensor, as for any object: kernels test optional arguments so. It is never its content."""
        warnings.warn(f"a tensor is true whatever it holds: {self.describe()}", TensorTruthWarning, stacklevel=2)
        return True

    def __iter__(self) -> NoReturn:
        fail("NKI031", "iteration over a tensor", tensor=self)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """NumPy's functions would take a tensor for an object, which np.max, say, returns as it is."""
        fail("NKI031", "a tensor given to NumPy", tensor=self)

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """Methods of trn3 are refused by name when called."""
        if name not in TENSOR_GEN4:
            raise AttributeError(f"an NkiTensor has no attribute {name!r}")
        return refused_call("NKI049", name, f"NkiTensor.{name} needs NeuronCore-v4 (trn3)", tensor=self)

    # Indexing.

    def __getitem__(self, key: Any) -> NkiTensor:
        """NumPy-style ints, slices, ``...`` and `nl.ds`; one of the ints or starts may be a register.

        An int drops its dim, but on chip dim 0 stays with size 1 and the result keeps 2 dims (HBM: 1 dim).
        """
        if type(key) is tuple and self.indirection is None:
            plain = views.plain_index(key, self.shape, self.strides, self.on_chip)
            if plain is not None:
                return NkiTensor(plain[0], self.dtype, self.storage, plain[1], self.offset + plain[2])
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        keys = self._full_key(key)
        if any(map(runtime.is_dynamic, keys)):
            return runtime.dynamic_view(self, keys)
        if self._by_rows() and keys[0] != _ALL:
            self._keep_first(f"index {key!r} cuts")
        for dim, (k, n, s) in enumerate(zip(keys, self.shape, self.strides, strict=True)):
            if isinstance(k, (slice, DynamicSlice)):
                start, count, step = self._slice(k, n, dim)
                shape.append(count)
                strides.append(s * step)
            else:
                start = self._int_index(k, n, dim)
                if dim == 0 and self.on_chip:
                    shape.append(1)
                    strides.append(s)
            offset += start * s
        while len(shape) < (2 if self.on_chip else 1):
            shape.append(1)
            strides.append(1)
        if self.on_chip and strides[0] != self.strides[0]:
            self._no_partition_step(strides[0], shape[0])
        if 0 in shape:
            return self._unusable(tuple(shape), "NKI007", f"index {key!r} chooses nothing")
        return self._view(tuple(shape), tuple(strides), offset)

    def _full_key(self, key: Any) -> tuple[Any, ...]:
        keys = key if type(key) is tuple else (key,)
        at = [i for i, k in enumerate(keys) if k is Ellipsis]
        missing = len(self.shape) - len(keys) + len(at)
        if len(at) > 1 or missing < 0:
            fail("NKI006", f"index {key!r} does not fit {len(self.shape)} dims", tensor=self)
        if at:
            return (*keys[: at[0]], *(_ALL,) * missing, *keys[at[0] + 1 :])
        return (*keys, *(_ALL,) * missing)

    def _int_index(self, k: Any, n: int, dim: int) -> int:
        if isinstance(k, NkiTensor):
            raise NotSimulatedError("dynamic tensor indexing", ("NkiTensor.select", "compile-time ints", "slices"))
        index = as_int(k, f"index of dim {dim}")
        if not -n <= index < n:
            fail("NKI006", f"index {index} is outside dim {dim} of size {n}", tensor=self)
        return index + n if index < 0 else index

    def _slice(self, k: builtins.slice | DynamicSlice, n: int, dim: int) -> tuple[int, int, int]:
        """(start, count, step) of a slice that lies inside a dim of size n."""
        step = 1
        if isinstance(k, slice):
            start = 0 if k.start is None else as_int(k.start, "slice start")
            stop = n if k.stop is None else as_int(k.stop, "slice stop")
            step = 1 if k.step is None else as_int(k.step, "slice step")
            start, stop = start + n if start < 0 else start, stop + n if stop < 0 else stop
        else:
            start = as_int(k.start, "ds start")
            stop = start + as_int(k.size, "ds size")
        if start < 0 or stop > n:
            fail("NKI006", f"slice {start}:{stop} is outside dim {dim} of size {n}", tensor=self)
        if step < 1 or start > stop:
            fail("NKI007", f"slice {start}:{stop}:{step} of dim {dim}", tensor=self)
        return start, (stop - start + step - 1) // step, step

    def _no_partition_step(self, stride: int, count: int) -> None:
        free = self.partition_stride()
        if count > 1 and stride != free:
            fail("NKI011", f"the partition dim steps by {stride} elements, one partition is {free}", tensor=self)

    # View methods.

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start, start + step, ... below `end` of one dim; 0 <= start < end <= its size."""
        dim = self._dim(dim)
        if as_int(start, "start") < 0 or as_int(end, "end") < 0:
            fail(
                "NKI006",
                f"slice {start}:{end} of dim {dim}; unlike an index, it does not count from the end",
                tensor=self,
            )
        if start == end:
            fail("NKI007", f"slice {start}:{end}:{step} of dim {dim}", tensor=self)
        return self[(*(_ALL,) * dim, slice(start, end, step))]

    def select(self, dim: int, index: int | NkiTensor) -> NkiTensor:
        """One index of a dim, 0 <= index < its size; the dim is dropped (kept at size 1 for dim 0 on chip).

        An index in SBUF, int32 or uint32 [1, 1], makes an indirect view (not of dim 0 on chip): NKI036-NKI038.
        """
        dim = self._dim(dim)
        if isinstance(index, NkiTensor):
            moved, first = runtime.scalar_indirection(self, dim, index), self[(*(_ALL,) * dim, 0)]
            return NkiTensor(first.shape, self.dtype, self.storage, first.strides, first.offset, moved)
        if type(index) is int and index < 0:
            fail("NKI006", f"select({dim}, {index}); unlike an index, it does not count from the end", tensor=self)
        return self[(*(_ALL,) * dim, index)]

    def permute(self, dims: Ints) -> NkiTensor:
        """Dims in another order; dim 0 stays first on chip."""
        order = tuple(as_int(d, "dim", "NKI015") for d in listed(dims))
        if sorted(order) != list(range(self.ndim)):
            fail("NKI015", f"permute({dims!r}) of {self.ndim} dims", tensor=self)
        if order[0] != 0:
            self._keep_first(f"permute({dims!r}) moves")
        return self._view(tuple(self.shape[d] for d in order), tuple(self.strides[d] for d in order), self.offset)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dim of size 1 repeated `size` times."""
        dim = self._free_dim(dim, "broadcast")
        if self.shape[dim] != 1:
            fail("NKI014", f"broadcast of dim {dim} of size {self.shape[dim]}", tensor=self)
        size = as_int(size, "broadcast size", "NKI002")
        if size < 1:
            fail("NKI002", f"broadcast size {size}", tensor=self)
        return self._replaced(dim, dim, (size,), (0,))

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dim of size 1 at position `dim`, 0 .. ndim."""
        if not 0 <= as_int(dim, "dim") <= self.ndim:
            fail("NKI006", f"expand_dim({dim}) of {self.ndim} dims", tensor=self)
        if dim == 0:
            self._keep_first("expand_dim(0) before")
        stride = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        return self._replaced(dim, dim - 1, (1,), (stride,))

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Drop a dim of size 1."""
        dim = self._free_dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            fail("NKI014", f"squeeze_dim of dim {dim} of size {self.shape[dim]}", tensor=self)
        least = 2 if self.on_chip else 1
        if self.ndim <= least:
            fail("NKI002", f"squeeze_dim({dim}) would leave fewer than {least} dims", tensor=self)
        return self._replaced(dim, dim, (), ())

    def reshape_dim(self, dim: int, shape: Ints) -> NkiTensor:
        """Split one dim into several whose product is its size; one of them may be -1."""
        dim = self._dim(dim)
        sizes = self._infer(shape, self.shape[dim])
        if dim == 0 and sizes != self.shape[:1]:
            self._keep_first(f"reshape_dim(0, {shape!r}) splits")
        return self._replaced(dim, dim, sizes, tuple(s * self.strides[dim] for s in dense_strides(sizes)))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Merge dims start_dim..end_dim (inclusive), which must be contiguous with each other."""
        start, end = self._dim(start_dim), self._dim(end_dim)
        if start > end:
            fail("NKI015", f"flatten_dims({start_dim}, {end_dim})", tensor=self)
        if start == 0 and end > 0:
            self._keep_first(f"flatten_dims({start_dim}, {end_dim}) merges")
        runs = merged_runs(self.shape[start : end + 1], self.strides[start : end + 1])
        if len(runs) > 1:
            fail("NKI010", f"dims {start}..{end} are not contiguous with each other", tensor=self)
        count, stride = runs[0] if runs else (1, self.strides[end])
        return self._replaced(start, end, (count,), (stride,))

    def reshape(self, shape: Ints) -> NkiTensor:
        """Another shape with the same elements in the same order, without a copy."""
        sizes = self._infer(shape, self.size)
        kept = 1 if self.on_chip or self._by_rows() else 0
        if sizes[0] != self.shape[0]:
            self._keep_first(f"reshape({shape!r}) changes the {self.shape[0]} partitions of")
        if len(sizes) <= kept:
            fail("NKI002", f"reshape({shape!r}) leaves no free dim", tensor=self)
        strides = reshaped_strides(self.shape[kept:], self.strides[kept:], sizes[kept:])
        if strides is None:
            fail("NKI010", f"reshape({shape!r}) of strides {self.strides}", tensor=self)
        return self._view(sizes, (*self.strides[:kept], *strides), self.offset)

    def rearrange(
        self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """einops-style split, permute and merge: names and tuples of names on both sides."""
        what, fixed = f"rearrange({src_pattern!r} -> {dst_pattern!r})", fixed_sizes or {}
        src, dst = views.name_groups(listed(src_pattern)), views.name_groups(listed(dst_pattern))
        names = [name for group in src for name in group]
        wanted = [name for group in dst for name in group]
        texts = isinstance(fixed, dict) and all(isinstance(name, str) for name in (*names, *wanted, *fixed))
        unique = texts and len(set(names)) == len(names) and set(fixed) <= set(names)
        if len(src) != self.ndim or not unique or sorted(names) != sorted(wanted):
            fail("NKI015", f"{what} of {self.ndim} dims with sizes {fixed}", tensor=self)
        split = self
        for dim in range(self.ndim - 1, -1, -1):
            sizes = tuple(fixed.get(name, -1) for name in src[dim])
            split = split.reshape_dim(dim, sizes) if sizes else split.squeeze_dim(dim)
        moved = split.permute(tuple(names.index(name) for name in wanted))
        for at, group in enumerate(dst):
            moved = moved.flatten_dims(at, at + len(group) - 1) if group else moved.expand_dim(at)
        return moved

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

        A run-time index counts places of dim `indirect_dim` of this tensor, which must be dense and keep its element
        size. scalar_offset: int32 or uint32 [1, 1] in SBUF, or a register; moves the whole pattern. vector_offset:
        int32 or uint32 [P, 1] in SBUF (dma_transpose: [P, I]), one for each index of the pattern's first dim, whose
        step does not count; HBM and dim 0 only. Raises NkiError (NKI036-NKI039).
        """
        require_static(self, ".ap of an indirect view")
        if offset is not None and self.offset != 0:
            fail("NKI013", f"offset={offset} on a view that starts at element {self.offset}", tensor=self)
        name = self.dtype if dtype is None else dtype_name(dtype)
        start = self._scaled(self.offset, name) if offset is None else as_int(offset, "offset", "NKI012")
        pairs = [listed(pair) for pair in listed(pattern)]
        if any(len(pair) != 2 for pair in pairs) or len(pairs) < (2 if self.on_chip else 1):
            fail("NKI002", f"pattern {pattern!r} is not [[step, count], ...] with a free dim", tensor=self)
        shape = tuple(as_int(count, "count", "NKI002") for _, count in pairs)
        strides = tuple(as_int(step, "step", "NKI002") for step, _ in pairs)
        if min(shape) < 1:
            fail("NKI002", f"pattern {pattern!r} has a count below 1", tensor=self)
        view = self._view(shape, strides, start, name)
        if scalar_offset is None and vector_offset is None:
            why = view._outside(pattern)
            return self._unusable(shape, "NKI012", why) if why else view
        moved = runtime.ap_indirection(self, view, indirect_dim, scalar_offset, vector_offset)
        first = NkiTensor((1, *shape[1:]) if moved.by_rows else shape, name, self.storage, strides, start)
        why = first._outside(pattern)  # with indices of 0
        if why:
            fail("NKI012", why, tensor=first)
        return NkiTensor(shape, name, self.storage, strides, start, moved)

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dim scales with the element size."""
        require_static(self, "view(dtype) of an indirect view")
        name = dtype_name(dtype)
        old, new = self.itemsize, DTYPES[name].itemsize
        if old == new:
            return self._view(self.shape, self.strides, self.offset, name)
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            fail("NKI010", f"view({dtype}) needs a contiguous last dim", tensor=self)
        shape = (*self.shape[:-1], self._scaled(self.shape[-1], name))
        strides = (*(self._scaled(s, name) for s in self.strides[:-1]), 1)
        return self._view(shape, strides, self._scaled(self.offset, name), name)

    reinterpret_cast = view

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """An indirect view of an HBM tensor: index p of dim 0 is its index vector_offset[p] of dim 0.

        dim: 0. vector_offset: int32 or uint32 [P, 1] in SBUF. Raises NkiError (NKI036-NKI038).
        """
        moved = runtime.vector_indirection(self, dim, vector_offset)
        shape = (vector_offset.shape[0], *self.shape[1:])
        return NkiTensor(shape, self.dtype, self.storage, self.strides, self.offset, moved)

    # Helpers.

    def _view(self, shape: Ints, strides: Ints, offset: int, dtype: str | None = None) -> NkiTensor:
        if len(shape) > hw.VIEW_DIMS_MAX:
            fail("NKI004", f"{len(shape)} dims", tensor=self)
        return NkiTensor(shape, dtype or self.dtype, self.storage, strides, offset, self.indirection)

    def _unusable(self, shape: Ints, rule: str, why: str) -> NkiTensor:
        """A view with a shape and no storage: using it breaks a rule."""
        of = self.storage.of if isinstance(self.storage, _Refusal) else self
        view = NkiTensor(shape, self.dtype, of.storage)
        view.storage = cast(Storage, _Refusal(rule, why, of))
        return view

    def _replaced(self, first: int, last: int, sizes: Ints, strides: Ints) -> NkiTensor:
        """This view with dims first..last replaced (last = first - 1 inserts)."""
        shape = (*self.shape[:first], *sizes, *self.shape[last + 1 :])
        return self._view(shape, (*self.strides[:first], *strides, *self.strides[last + 1 :]), self.offset)

    def _scaled(self, elems: int, dtype: str) -> int:
        """A count of this view's elements as a count of `dtype`'s, which must be whole."""
        scaled, rest = divmod(elems * self.itemsize, DTYPES[dtype].itemsize)
        if rest:
            fail("NKI009", f"{elems} elements of {self.dtype} do not make whole ones of {dtype}", tensor=self)
        return scaled

    def _outside(self, pattern: Any) -> str:
        """How an access pattern leaves its storage, or on chip its partitions; "" if it does not (NKI011 if askew)."""
        limit = self.storage.info.num_bytes // self.itemsize
        if self.on_chip:
            self._no_partition_step(self.strides[0], self.shape[0])
        found = views.outside(
            self.shape, self.strides, self.offset, limit, self.partition_stride() if self.on_chip else 0
        )
        return found and f"pattern {pattern!r} {found}"

    def _dim(self, dim: int) -> int:
        index = as_int(dim, "dim")
        if not -self.ndim <= index < self.ndim:
            fail("NKI006", f"dim {dim} of {self.ndim} dims", tensor=self)
        return index % self.ndim

    def _free_dim(self, dim: int, what: str) -> int:
        index = self._dim(dim)
        if index == 0:
            self._keep_first(f"{what} of dim 0,")
        return index

    def _by_rows(self) -> bool:
        """Whether each index of dim 0 has a run-time index of its own."""
        return self.indirection is not None and self.indirection.by_rows

    def _keep_first(self, what: str) -> None:
        """Refuse a change of dim 0 where that is the partition dim or has run-time indices (NKI008, NKI037)."""
        if self.on_chip:
            fail("NKI008", f"{what} the partition dim", tensor=self)
        if self._by_rows():
            fail("NKI037", f"{what} the indexed dim 0", tensor=self)

    def _infer(self, shape: Any, total: int) -> Ints:
        """Sizes whose product is `total`, with a single -1 worked out."""
        if not isinstance(shape, (tuple, list)):
            fail("NKI002", f"shape={shape!r} is not a tuple", tensor=self)
        sizes = whole_sizes(tuple(as_int(n, "size", "NKI002") for n in shape), total)
        if sizes is None:
            fail("NKI009", f"shape {shape!r} does not hold {total} elements", tensor=self)
        return sizes


class _Refusal:
    """The storage of a view that kernels may make and no instruction may use: past the end, or empty.

    Kernels form such views for a step that they then skip. Any use by an instruction breaks the rule.
    """

    def __init__(self, rule: str, why: str, of: NkiTensor) -> None:
        self.rule, self.why, self.of = rule, why, of

    def __getattr__(self, name: str) -> NoReturn:
        fail(self.rule, self.why, tensor=self.of)
