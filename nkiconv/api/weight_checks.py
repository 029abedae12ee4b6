"""What calls of filter gradients share: checks of arrays, sizes, and gradients of no images."""

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
    """A shape of so many axes. of_images: the first of which may be 0."""
    found = tuple(size) if isinstance(size, Sequence) else ()
    refuse(GeometryError, rules.sizes(name, found or size, axes, of_images))
    return found


def filter_like(size: tuple[int, ...], gy: Any) -> Any:
    """In place of a filter that there is none of, an array of its shape and gy's dtype."""
    dtype = gy.dtype if isinstance(gy, np.ndarray) else np.dtype(np.float32)
    return np.broadcast_to(np.zeros((), dtype), size)


def check_gradients(gy: Any, y_shape: tuple[int, ...], into: Any, size: tuple[int, ...]) -> None:
    """Refuse gy of another shape than y's, and what a gradient cannot be added to; into: None, or that."""
    refuse(DtypeError, no_array("gy", gy))
    refuse(GeometryError, rules.shape("gy", shape_of(gy), y_shape, "y's"))
    check_accumulated(into, size)


def check_accumulated(into: Any, size: tuple[int, ...]) -> None:
    """Refuse what a gradient cannot be added to; None is none."""
    if into is not None:
        dtype = into.dtype if is_numpy(into) else type(into).__name__
        refuse(GeometryError, rules.accumulated("accumulate_into", shape_of(into), dtype, size))


def result_violations(bias_gradient: Any, out_dtype: Any) -> Iterator[NkiconvError]:
    """Errors of what else a gradient of filters is asked for."""
    yield from refused(UnsupportedError, rules.flag("bias_gradient", bias_gradient))
    yield from refused(DtypeError, out_dtype_unsupported(out_dtype, ()))


def of_no_images(size: tuple[int, ...], into: Any, asked: Asked) -> Any:
    """The gradients of no images, in new arrays."""
    dtype = DTYPES[asked.out_dtype or "fp32"]
    dw = np.zeros(size, dtype) if into is None else into.astype(dtype)
    return (dw, np.zeros(size[0], np.float32)) if asked.bias else dw
