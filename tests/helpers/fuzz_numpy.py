"""What programs of instructions mean, written from the documents in NumPy alone: the judge of random programs.

Nothing of the simulator is used. A program is a list of `Op`s on `Tile`s; `step` applies one to arrays.
"""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

#: NumPy's dtypes by nl's names.
DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
}
INTEGERS = ("int32", "uint8")


@dataclass(frozen=True)
class Tile:
    """A tensor: index in the program, shape, dtype, memory ("sbuf", "psum" or "hbm")."""

    index: int
    shape: tuple[int, ...]
    dtype: str
    memory: str


@dataclass(frozen=True)
class View:
    """A slice of a tile, free dims in another order."""

    tile: Tile
    slices: tuple[tuple[int, int, int], ...]
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        counts = [len(range(*one)) for one in self.slices]
        return tuple(counts[dim] for dim in self.order)

    @property
    def free(self) -> int:
        """Elements a partition."""
        return int(np.prod(self.shape[1:]))


@dataclass(frozen=True)
class Op:
    """An instruction: name, destination, sources, everything else by name."""

    name: str
    dst: View
    srcs: tuple[View, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)


BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
BITWISE = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
FUNCTIONS = {"copy": lambda x: x, "relu": lambda x: np.maximum(x, np.float32(0)), "square": np.square}


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 values as an engine writes them: rounded to nearest even; integers saturate."""
    wanted = DTYPES[dtype]
    if dtype not in INTEGERS:
        with np.errstate(over="ignore"):
            return values.astype(wanted)
    limits = np.iinfo(wanted)
    return np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max).astype(wanted)


def window(arrays: list[np.ndarray], view: View) -> np.ndarray:
    """The elements of a view, as a view of the tile's array."""
    index = tuple(slice(*one) for one in view.slices)
    return arrays[view.tile.index][index].transpose(view.order)


def read(arrays: list[np.ndarray], view: View) -> np.ndarray:
    """[P, F] fp32 of a view."""
    values = window(arrays, view)
    return values.reshape(len(values), -1).astype(np.float32)


def step(arrays: list[np.ndarray], op: Op) -> None:
    """Apply an instruction."""
    values = _result(arrays, op)
    place = window(arrays, op.dst)
    place[...] = values.reshape(place.shape)


def _result(arrays: list[np.ndarray], op: Op) -> np.ndarray:
    dtype, params = op.dst.tile.dtype, op.params
    if op.name == "memset":
        return np.full(op.dst.shape, params["value"], np.float64).astype(DTYPES[dtype])
    if op.name in ("tensor_copy", "dma_copy"):
        if op.srcs[0].tile.dtype == dtype:
            return window(arrays, op.srcs[0]).copy()
        return cast(read(arrays, op.srcs[0]), dtype)
    if op.name == "nc_transpose":
        return read(arrays, op.srcs[0]).T.astype(DTYPES[dtype])
    if op.name == "tensor_copy_predicated":
        src, predicate = read(arrays, op.srcs[0]), read(arrays, op.srcs[1])
        return np.where(predicate != 0, cast(src, dtype), window(arrays, op.dst).reshape(src.shape))
    if op.name == "nc_matmul":
        stationary, moving = (read(arrays, one).astype(np.float64) for one in op.srcs)
        product = (stationary.T @ moving).astype(np.float32)
        return product + read(arrays, op.dst) if params["accumulate"] else product
    if op.name == "tensor_tensor" and params["op"] in BITWISE:
        one, other = (window(arrays, src).reshape(len(window(arrays, src)), -1) for src in op.srcs)
        return BITWISE[params["op"]](one, other)
    return cast(_arithmetic(arrays, op), dtype)


def _arithmetic(arrays: list[np.ndarray], op: Op) -> np.ndarray:
    """fp32 results of what computes in fp32."""
    params, first = op.params, read(arrays, op.srcs[0])
    if op.name == "tensor_tensor":
        return BINARY[params["op"]](first, read(arrays, op.srcs[1]))
    if op.name == "activation":
        shifted = first * np.float32(params["scale"])
        if len(op.srcs) > 1:
            shifted = shifted + read(arrays, op.srcs[1])
        return FUNCTIONS[params["op"]](shifted)
    if op.name == "tensor_reduce":
        reduce = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[params["op"]].reduce
        whole = window(arrays, op.srcs[0]).astype(np.float32)
        return reduce(whole, axis=-1).reshape(len(whole), -1)
    if op.name == "scalar_tensor_tensor":
        inner = BINARY[params["op0"]](first, np.float32(params["operand0"]))
        return BINARY[params["op1"]](inner, read(arrays, op.srcs[1]))
    assert op.name == "tensor_scalar"
    operands = [read(arrays, op.srcs[1])] if len(op.srcs) > 1 else []
    operand0 = operands[0] if params["operand0"] is None else np.float32(params["operand0"])
    one, other = (operand0, first) if params.get("reverse0") else (first, operand0)
    result = BINARY[params["op0"]](one, other)
    if params.get("op1"):
        result = BINARY[params["op1"]](result, np.float32(params["operand1"]))
    return result
