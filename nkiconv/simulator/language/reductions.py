"""`nl.sum` and its siblings: a tile reduced over its last free dims, on the Vector Engine in fp32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import isa
from ..isa.reductions import reduced_axes
from ..objects import dtype_name
from ..ops import OPS, Op
from ..tensor import NkiTensor
from ..views import Ints
from .creation import ndarray, require_tiles

Axis = int | Sequence[int]


def num_reduced(x: NkiTensor, axes: Ints) -> int:
    """How many elements become one."""
    return math.prod(x.shape[a] for a in axes)


def new_statistic(x: NkiTensor, axes: Ints, dtype: Any, *, keepdims: bool = True) -> NkiTensor:
    """An SBUF tile for one number of each reduction; without `keepdims` it still has 2 dims, as every tile."""
    kept = x.shape[: axes[0]]
    if keepdims:
        kept += (1,) * len(axes)
    return ndarray(kept if len(kept) > 1 else (*kept, 1), dtype)


def each(x: NkiTensor, statistic: NkiTensor, axes: Ints) -> NkiTensor:
    """A statistic (with its dims kept) as a view of x's shape."""
    for axis in axes:
        statistic = statistic.broadcast(axis, x.shape[axis])
    return statistic


def reduced(x: NkiTensor, axes: Ints, op: Op, dtype: Any, *, keepdims: bool = True, negate: bool = False) -> NkiTensor:
    """One tensor_reduce into a fresh tile."""
    dst = new_statistic(x, axes, dtype, keepdims=keepdims)
    isa.tensor_reduce(dst, op, x, axes, negate=negate, keepdims=keepdims)
    return dst


def _reduce(x: NkiTensor, axis: Any, op: str, dtype: Any, keepdims: bool) -> NkiTensor:
    require_tiles(x=x)
    return reduced(x, reduced_axes(x, axis), OPS[op], dtype or x.dtype, keepdims=keepdims)


def sum(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum over the last free dims; tensor_reduce.

    Args:
        x: [P, F...] in SBUF or PSUM. axis: the last dims, contiguously, never 0. dtype: of the result; default x's.
        keepdims: reduced dims stay with size 1; without, they go, but a [P, F] tile becomes [P, 1].
    Raises NkiError (NKI040, NKI046, NKI062). Source: isa sum.
    """
    return _reduce(x, axis, "add", dtype, keepdims)


def max(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Maximum over the last free dims; arguments and errors of `sum`. Source: isa max."""
    return _reduce(x, axis, "maximum", dtype, keepdims)


def min(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Minimum over the last free dims; arguments and errors of `sum`. Source: isa min."""
    return _reduce(x, axis, "minimum", dtype, keepdims)


def prod(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product over the last free dims; arguments and errors of `sum`. Source: isa prod."""
    return _reduce(x, axis, "multiply", dtype, keepdims)


def all(x: NkiTensor, axis: Axis, dtype: Any = None) -> NkiTensor:
    """1 where all elements over the last free dims are non-zero, else 0; arguments and errors of `sum`.

    The reduced dims go, as without keepdims there. Source: isa all.
    """
    return _reduce(x, axis, "logical_and", dtype, False)


def mean(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Mean over the last free dims, fp32 until it is written: a sum, then one multiplication.

    Arguments and errors of `sum`. Source: isa mean.
    """
    require_tiles(x=x)
    axes = reduced_axes(x, axis)
    total = reduced(x, axes, OPS["add"], "float32", keepdims=keepdims)
    dst = ndarray(total.shape, dtype or x.dtype)
    isa.tensor_scalar(dst, total, OPS["multiply"], 1.0 / num_reduced(x, axes))
    return dst


def var(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Variance (of the population) over the last free dims: mean of the squared distances from the mean, in fp32.

    Args: of `sum`; keepdims is ignored, reduced dims always stay with size 1, as documented.
    Which instructions AWS takes is not documented; here six of the Vector Engine.
    Raises what `sum` raises. Source: isa var.
    """
    require_tiles(x=x)
    axes = reduced_axes(x, axis)
    out_dtype = dtype_name(dtype or x.dtype)
    share = 1.0 / num_reduced(x, axes)
    mean_of = reduced(x, axes, OPS["add"], "float32")
    isa.tensor_scalar(mean_of, mean_of, OPS["multiply"], share)
    distance = ndarray(x.shape, "float32")
    isa.tensor_tensor(distance, x, each(x, mean_of, axes), OPS["subtract"])
    isa.tensor_tensor(distance, distance, distance, OPS["multiply"])
    total = reduced(distance, axes, OPS["add"], "float32")
    dst = new_statistic(x, axes, out_dtype)
    isa.tensor_scalar(dst, total, OPS["multiply"], share)
    return dst
