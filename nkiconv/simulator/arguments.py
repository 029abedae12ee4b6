"""Arrays into kernel tensors and results back into arrays, for NumPy, torch, and specs without data."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import ml_dtypes
import numpy as np

from .dtypes import DTYPES, Array, canonical
from .errors import NkiError
from .memory import MemoryRegion, Storage, StorageInfo
from .rules import RULES
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
            _refuse("NKI001", f"dtype={self.dtype!r} is not one of {', '.join(DTYPES)}")
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.shape or any(type(n) is not int or n < 1 for n in self.shape):
            _refuse("NKI002", f"shape={self.shape!r} of a spec")

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def _refuse(rule: str, detail: str) -> NoReturn:
    raise NkiError(rule, "launch", detail, remedy=RULES[rule].remedy)


def is_torch(value: Any) -> bool:
    """Whether value is a torch tensor (without importing torch)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def torch_to_numpy(value: Any) -> Array:
    """A CPU torch tensor's memory as a NumPy array; bf16 and fp8 as ml_dtypes."""
    import torch

    if value.device.type != "cpu" or value.layout is not torch.strided:
        _refuse("NKI025", f"torch tensor on {value.device} with layout {value.layout}; the simulator takes CPU, strided")
    extended = {
        torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    }
    value = value.detach()
    if value.dtype in extended:
        raw, numpy_type = extended[value.dtype]
        return value.view(raw).numpy().view(numpy_type)  # type: ignore[no-any-return]
    return value.numpy()  # type: ignore[no-any-return]


def numpy_to_torch(values: Array) -> Any:
    """The reverse of `torch_to_numpy`."""
    import torch

    extended = {
        np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
        np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
        np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    }
    if values.dtype in extended:
        raw, torch_type = extended[values.dtype]
        return torch.from_numpy(values.view(raw)).view(torch_type)
    return torch.from_numpy(values)


class Binder:
    """Binds one launch's arguments and turns its results back."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._torch = False
        self._inputs: dict[int, Storage] = {}
        self._copies: list[tuple[Array, Array, Storage]] = []

    def bind(self, value: Any, name: str) -> Any:
        """A kernel argument: arrays become HBM tensors, tuples are walked, lists are refused, the rest passes."""
        if isinstance(value, list):
            _refuse("NKI024", f"{name} is a list")
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self.bind(item, f"{name}[{i}]") for i, item in enumerate(value))
        if is_torch(value):
            self._torch = True
            return self._array(torch_to_numpy(value), name)
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if isinstance(value, ArraySpec):
            if self._launch.numeric:
                _refuse("NKI025", f"{name} is a spec without data; trace with trace_only=True")
            return self._tensor(value.shape, value.dtype, None, name)
        return value

    def _array(self, array: Array, name: str) -> NkiTensor:
        dtype = canonical(array.dtype)
        if dtype is None or not array.dtype.isnative:
            _refuse("NKI025", f"{name} has dtype {array.dtype}; accepted are native-endian {', '.join(DTYPES)}")
        if array.ndim == 0 or array.size == 0:
            _refuse("NKI002", f"{name} has shape {array.shape}")
        if not self._launch.numeric:
            return self._tensor(array.shape, dtype, None, name)
        dense = np.ascontiguousarray(array)
        tensor = self._tensor(array.shape, dtype, dense.reshape(-1).view(np.uint8), name)
        tensor.storage.readonly = not array.flags.writeable
        if dense is not array:
            self._copies.append((array, dense, tensor.storage))
        return tensor

    def _tensor(self, shape: tuple[int, ...], dtype: str, data: Array | None, name: str) -> NkiTensor:
        buffer = MemoryRegion.shared_hbm if self._launch.degree > 1 else MemoryRegion.private_hbm
        info = StorageInfo(name, tuple(shape), dtype, buffer, "the caller")
        storage = Storage(info, None, data, complete=True)
        self._launch.watch(storage)
        self._inputs[info.id] = storage
        return NkiTensor(tuple(shape), dtype, storage)

    def outputs(self, result: Any) -> Any:
        """The kernel's results in the arguments' kind; strided arguments get back what the kernel wrote to them."""
        for array, dense, storage in self._copies:
            if storage.dirty:
                array[...] = dense
        return self._output(result)

    def _output(self, result: Any) -> Any:
        if isinstance(result, NkiTensor):
            return self._one(result)
        if isinstance(result, (tuple, list)):
            return type(result)(self._output(item) for item in result)
        if isinstance(result, dict):
            return {key: self._output(item) for key, item in result.items()}
        return result

    def _one(self, tensor: NkiTensor) -> Any:
        info = tensor.storage.info
        if info.id not in self._inputs and info.buffer is not MemoryRegion.shared_hbm:
            self._refuse_output("NKI022", f"the kernel returned a tensor of {info.buffer.name}", tensor)
        if not self._launch.numeric:
            return ArraySpec(tensor.shape, tensor.dtype)
        written = tensor.storage.written
        if written is not None and not written.view(tensor).all():
            cells = written.view(tensor)
            index = tuple(int(i) for i in np.argwhere(cells == 0)[0][: len(tensor.shape)])
            missing = cells.size - int(np.count_nonzero(cells))
            self._refuse_output("NKI023", f"output element {index} and {missing - 1} more were never written", tensor)
        values = tensor.storage.array(tensor)
        return numpy_to_torch(np.ascontiguousarray(values)) if self._torch else values

    def _refuse_output(self, rule: str, detail: str, tensor: NkiTensor) -> NoReturn:
        raise NkiError(rule, "return", detail, {"output": tensor.describe()}, remedy=RULES[rule].remedy)
