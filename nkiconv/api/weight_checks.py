"""Calls of filter gradients: common checks of arrays and sizes, and gradients of no images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import rules
from ..errors import DtypeError, GeometryError, NkiconvError, UnsupportedError, refuse, refused
from ..planner.request import Asked
from ..problem import DTYPES
from .calls import is_numpy, no_array, out_dtype_unsupported, shape_of


def sizes_of(name: str, size: Any, axes: int, of_images: bool = False) -> tuple[int, ...]:
    """A shape with a number of axes. of_images: the first may be 0."""
    found = tuple(size) if isinstance(size, Sequence) else ()
    refuse(GeometryError, rules.sizes(name, found or size, axes, of_images))
    return found


def filter_like(size: tuple[int, ...], gy: Any) -> Any:
    """An array with the filter's shape and gy's dtype, in place of the filter."""
    dtype = gy.dtype if isinstance(gy, np.ndarray) else np.dtype(np.float32)
    return np.broadcast_to(np.zeros((), dtype), size)


def check_gradients(gy: Any, y_shape: tuple[int, ...], into: Any, size: tuple[int, ...]) -> None:
    """Check gy's shape, and `into`, the tensor to which the gradient is added, or None."""
    refuse(DtypeError, no_array("gy", gy))
    refuse(GeometryError, rules.shape("gy", shape_of(gy), y_shape, "y's"))
    if into is not None:
        dtype = into.dtype if is_numpy(into) else type(into).__name__
        refuse(GeometryError, rules.accumulated("accumulate_into", shape_of(into), dtype, size))


def result_violations(bias_gradient: Any, out_dtype: Any) -> Iterator[NkiconvError]:
    """Errors of the other options of a gradient of filters."""
    yield from refused(UnsupportedError, rules.flag("bias_gradient", bias_gradient))
    yield from refused(DtypeError, out_dtype_unsupported(out_dtype, ()))


def of_no_images(size: tuple[int, ...], into: Any, asked: Asked) -> Any:
    """The gradients of no images, in new arrays."""
    dtype = DTYPES[asked.out_dtype or "fp32"]
    dw = np.zeros(size, dtype) if into is None else into.astype(dtype)
    return (dw, np.zeros(size[0], np.float32)) if asked.bias else dw
