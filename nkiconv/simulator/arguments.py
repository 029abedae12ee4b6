"""Arrays into kernel tensors and results back into arrays, for NumPy, torch, and specs without data."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import ml_dtypes
import numpy as np

from . import declarations
from . import hardware as hw
from .dtypes import DTYPES, Array, canonical
from .memory import MemoryRegion, Storage, StorageInfo
from .rules import broken, refuse_launch
from .tensor import NkiTensor

if TYPE_CHECKING:
    from .program import Launch


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array that is never made; stands for it when a kernel is only traced."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        name = canonical(self.dtype)
        if name is None:
            refuse_launch("NKI001", f"dtype={self.dtype!r} is not one of {', '.join(DTYPES)}")
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "shape", _spec_shape(self.shape))

    @property
    def num_bytes(self) -> int:
        """Bytes that the array would take."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def _spec_shape(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        refuse_launch("NKI002", f"shape={shape!r} of a spec")
    return sizes


def is_torch(value: Any) -> bool:
    """Whether value is a torch tensor (without importing torch)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


#: torch dtypes that NumPy lacks: the integer type of their bits, and their type in ml_dtypes.
_TORCH_ONLY = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e8m0fnu": ("uint8", ml_dtypes.float8_e8m0fnu),
}


def torch_to_numpy(value: Any, name: str = "the tensor") -> Array:
    """A CPU torch tensor's memory as a NumPy array; bf16 and fp8 as ml_dtypes."""
    import torch

    if value.device.type != "cpu" or value.layout is not torch.strided:
        refuse_launch(
            "NKI025", f"{name} is on {value.device} with layout {value.layout}; the simulator takes CPU, strided"
        )
    dtype = canonical(value.dtype)
    if dtype is None:
        refuse_launch("NKI025", f"{name} has dtype {value.dtype}; accepted are {', '.join(DTYPES)}")
    value = value.detach().resolve_neg()
    if dtype in _TORCH_ONLY:
        bits, numpy_type = _TORCH_ONLY[dtype]
        array: Array = value.view(getattr(torch, bits)).numpy()
        return array.view(numpy_type)
    return value.numpy()  # type: ignore[no-any-return]


def numpy_to_torch(values: Array) -> Any:
    """The reverse of `torch_to_numpy`, for a contiguous array."""
    import torch

    for name, (bits, numpy_type) in _TORCH_ONLY.items():
        if values.dtype == numpy_type:
            return torch.from_numpy(values.view(bits)).view(getattr(torch, name))
    try:
        return torch.from_numpy(values)
    except TypeError:
        refuse_launch("NKI025", f"torch has no {values.dtype}; return another dtype, or pass NumPy arrays")


def comparable(result: Any) -> Any:
    """A kernel's result as cores are compared by it: which tensors it holds, where, and which numbers."""
    if isinstance(result, NkiTensor):
        return result.storage.info.id, result.dtype, result.key()
    if isinstance(result, dict):
        return type(result), [(key, comparable(value)) for key, value in result.items()]
    if isinstance(result, (tuple, list)):
        return type(result), [comparable(item) for item in result]
    return type(result), result if isinstance(result, (bool, int, float, str)) else None


class Binder:
    """Binds one launch's arguments and turns its results back."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._torch = False
        self._inputs: dict[int, Storage] = {}
        #: id of the caller's array -> that array and its tensor: an array given twice is one tensor
        self._bound: dict[int, tuple[Any, NkiTensor]] = {}
        self._copies: list[tuple[Array, Array, Storage]] = []

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments, defaults included, with arrays as tensors named after their parameters."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # a callable without one
            return self._bind_all("argument", args), {name: self.bind(value, name) for name, value in kwargs.items()}
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = self._bind_all(name, value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: self.bind(item, key) for key, item in value.items()}
            else:
                bound.arguments[name] = self.bind(value, name)
        declarations.check(function, bound.arguments)
        return bound.args, bound.kwargs

    def _bind_all(self, name: str, values: Any) -> tuple[Any, ...]:
        return tuple(self.bind(item, f"{name}[{i}]") for i, item in enumerate(values))

    def bind(self, value: Any, name: str) -> Any:
        """A kernel argument: arrays become HBM tensors, tuples are walked, lists are refused, the rest passes."""
        if isinstance(value, list):
            refuse_launch("NKI024", f"{name} is a list")
        if isinstance(value, tuple):
            items = self._bind_all(name, value)
            return type(value)(*items) if hasattr(value, "_fields") else items
        if isinstance(value, np.ma.MaskedArray):
            refuse_launch("NKI025", f"{name} is a masked array, and a kernel has no mask; pass {name}.filled(value)")
        self._torch |= is_torch(value)
        if is_torch(value) or isinstance(value, np.ndarray):
            if id(value) not in self._bound:
                array = torch_to_numpy(value, name) if is_torch(value) else value
                self._bound[id(value)] = (value, self._array(array, name))
            return self._bound[id(value)][1]
        if isinstance(value, ArraySpec):
            if self._launch.numeric:
                refuse_launch("NKI025", f"{name} is a spec without data; trace with trace_only=True")
            return self._tensor(value.shape, value.dtype, None, name)
        return value

    def _array(self, array: Array, name: str) -> NkiTensor:
        dtype = canonical(array.dtype)
        if dtype is None:
            refuse_launch("NKI025", f"{name} has dtype {array.dtype}; accepted are native-endian {', '.join(DTYPES)}")
        if array.ndim == 0 or array.size == 0:
            refuse_launch("NKI002", f"{name} has shape {array.shape}")
        if array.ndim > hw.VIEW_DIMS_MAX:
            refuse_launch("NKI004", f"{name} has shape {array.shape}")
        if not self._launch.numeric:
            return self._tensor(array.shape, dtype, None, name)
        dense = np.ascontiguousarray(array)
        tensor = self._tensor(array.shape, dtype, dense.reshape(-1).view(np.uint8), name)
        tensor.storage.readonly = not array.flags.writeable
        if not np.may_share_memory(dense, array):
            self._copies.append((array, dense, tensor.storage))
        return tensor

    def _tensor(self, shape: tuple[int, ...], dtype: str, data: Array | None, name: str) -> NkiTensor:
        buffer = MemoryRegion.shared_hbm if self._launch.degree > 1 else MemoryRegion.private_hbm
        info = StorageInfo(name, tuple(shape), dtype, buffer, "the call")
        storage = Storage(info, self._launch, data)
        self._launch.watch(storage)
        self._inputs[info.id] = storage
        return NkiTensor(tuple(shape), dtype, storage)

    def outputs(self, result: Any) -> Any:
        """The kernel's results in the arguments' kind; the kernel's writes are copied back to strided arguments."""
        output = self._output(result)
        for array, dense, storage in self._copies:
            if storage.dirty:
                array[...] = dense
        return output

    def _output(self, result: Any) -> Any:
        if isinstance(result, NkiTensor):
            return self._one(result)
        if isinstance(result, tuple) and hasattr(result, "_fields"):
            return type(result)(*(self._output(item) for item in result))
        if isinstance(result, (tuple, list)):
            return type(result)(self._output(item) for item in result)
        if isinstance(result, dict):
            return {key: self._output(item) for key, item in result.items()}
        if isinstance(result, Iterator | Coroutine):
            detail = f"the kernel returned a {type(result).__name__}, whose code has not run"
            raise broken("NKI022", "return", detail)
        return result

    def _one(self, tensor: NkiTensor) -> Any:
        storage = tensor.storage
        if storage.owner is not self._launch and storage.info.buffer is MemoryRegion.shared_hbm:
            self._refuse_output("NKI021", "the kernel returned a tensor of an ended run", tensor)
        if storage.info.id not in self._inputs and storage.info.buffer is not MemoryRegion.shared_hbm:
            self._refuse_output("NKI022", f"the kernel returned a tensor of {tensor.buffer.name}", tensor)
        if not self._launch.numeric:
            return ArraySpec(tensor.shape, tensor.dtype)
        missing, index = storage.unwritten(tensor)
        if missing:
            self._refuse_output("NKI023", f"element {index} and {missing - 1} more were never written", tensor)
        values = storage.array(tensor)
        if tensor.dtype == "bool_":
            values = values != 0
        return numpy_to_torch(np.ascontiguousarray(values)) if self._torch else values

    def _refuse_output(self, rule: str, detail: str, tensor: NkiTensor) -> NoReturn:
        raise broken(rule, "return", detail, {"output": tensor.describe()})
