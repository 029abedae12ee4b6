"""Tiles for tests of nki.isa: short names for filled tensors, and NumPy values in and out of a running kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pairs import run

from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import canonical, from_fp32


def sb(*shape, dtype=nl.float32):
    """A tile of ones in SBUF."""
    return nl.ones(shape, dtype, nl.sbuf)


def ps(*shape, dtype=nl.float32):
    """A tile of ones in PSUM."""
    return nl.ones(shape, dtype, nl.psum)


def hbm(*shape, dtype=nl.float32):
    """A tensor of ones in HBM."""
    return nl.ones(shape, dtype, nl.hbm)


def put(values, dtype=None, buffer=nl.sbuf):
    """A tensor that holds a NumPy array, without an instruction; dtype names what NumPy cannot (tfloat32, bool_)."""
    tensor = nl.ndarray(values.shape, dtype or canonical(values.dtype), buffer)
    tensor.storage.write(tensor, values)
    return tensor


def place(layout, shape, dtype, buffer=nl.sbuf):
    """An unwritten on-chip view of `shape`, whose neighbours in its storage stay unwritten too.

    strided: every other element of the last dim; permuted: free dims stored in reverse; shifted: not from partition 0.
    """
    if layout == "strided":
        return nl.ndarray((*shape[:-1], 2 * shape[-1] + 1), dtype, buffer)[..., 1::2]
    if layout == "permuted":
        stored = nl.ndarray((shape[0], *shape[:0:-1]), dtype, buffer)
        return stored.permute((0, *range(len(shape) - 1, 0, -1)))
    start = {"dense": 0, "shifted": 0 if shape[0] > 64 else 64 if shape[0] > 32 else 32}[layout]
    return nl.ndarray((start + shape[0], *shape[1:]), dtype, buffer)[start : start + shape[0]]


def fill(tensor, values):
    """Write a NumPy array to a tensor without an instruction; returns the tensor."""
    tensor.storage.write(tensor, values)
    return tensor


def get(tensor):
    """A copy of a tensor's values as NumPy array."""
    return np.array(tensor.storage.read(tensor))


def evaluate(body):
    """What `body` returns when it runs as a kernel; arrays come out through `get`."""
    return run(body, 1).outputs


def row(*values, dtype=np.float32):
    """An array of one partition."""
    return np.array([values], dtype)


def a_tile(*arguments, **settings):
    """An operand of `result` that is not in SBUF, or of a dtype that NumPy lacks: as `put`, once the kernel runs."""
    return _Later(lambda: put(*arguments, **settings))


def laid(layout, values, dtype=None, buffer=nl.sbuf):
    """An operand of `result` that is laid out as `place` does."""
    dtype = dtype or canonical(values.dtype)
    return _Later(lambda: fill(place(layout, values.shape, dtype, buffer), values))


def out(shape, dtype, buffer=nl.sbuf, layout="dense"):
    """A destination of `results`; or an array that is written to."""
    if isinstance(shape, np.ndarray):
        return _Later(lambda: fill(place(layout, shape.shape, dtype, buffer), shape), True)
    return _Later(lambda: place(layout, shape, dtype, buffer), True)


@dataclass(frozen=True)
class _Later:
    made: Callable[[], Any]
    read: bool = False


def _operand(one):
    return one.made() if isinstance(one, _Later) else put(one) if isinstance(one, np.ndarray) else one


def results(call, *operands, **settings):
    """What instructions leave in each `out`; their other operands: arrays, put into SBUF, `a_tile`, `laid`."""

    def body():
        outs = []

        def operand(one):
            made = _operand(one)
            if isinstance(one, _Later) and one.read:
                outs.append(made)
            return made

        given = [operand(one) for one in operands]
        call(*given, **{name: operand(one) for name, one in settings.items()})
        return [get(one) for one in outs]

    return evaluate(body)


def result(call, shape, dtype, *operands, to=nl.sbuf, **settings):
    """What an instruction writes to a fresh tensor in `to`."""
    return results(call, out(shape, dtype, to), *operands, **settings)[0]


def by_language(name, *operands, **settings):
    """What `nl.<name>` returns of arrays, which are put into SBUF, of `a_tile`s and of other arguments."""
    return evaluate(lambda: get(getattr(nl, name)(*map(_operand, operands), **settings)))


def sample(rng, shape, dtype):
    """Random values of an NKI dtype: numbers near 1 for floats, small signed or unsigned integers otherwise."""
    values = rng.normal(scale=3.0, size=shape).astype(np.float32)
    return from_fp32(np.abs(values) if dtype.startswith("u") else values, dtype)


def rounded(values, dtype):
    """fp32 values as an engine writes them in `dtype`: the one cast that every instruction ends with."""
    return from_fp32(np.asarray(values, np.float32), dtype)


def same(actual, expected):
    """Bit-for-bit equality of two arrays, NaN payloads and signs of zero included."""
    assert actual.dtype == expected.dtype, f"{actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape}, expected {expected.shape}"
    bits = [np.ascontiguousarray(values).view(np.uint8) for values in (actual, expected)]
    np.testing.assert_array_equal(*bits)


# Run-time indices of indirect views: in tiles, in registers, and of the rows of a tensor in HBM.


def column(values, dtype=nl.int32):
    """Indices [P, 1] in SBUF."""
    return put(np.asarray(values).astype(dtype).reshape(-1, 1))


def one(value, dtype=nl.int32):
    """An index [1, 1] in SBUF."""
    return column([value], dtype)


def rows_of(tensor, indices, step=None):
    """All columns of the rows of a 2-d HBM tensor that `indices` [P, 1] name."""
    columns = tensor.shape[1]
    return tensor.ap([[step or columns, indices.shape[0]], [1, columns]], vector_offset=indices)
