"""What calls of filter gradients share: checks of arrays, sizes, and gradients of no images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import GeometryError, shown
from ..planner.request import Asked
from ..problem import DTYPES


def sizes_of(name: str, size: Any, axes: int, of_images: bool = False) -> tuple[int, ...]:
    """A shape of so many axes. of_images: the first of which may be 0."""
    found = tuple(size) if isinstance(size, Sequence) else ()
    least = (0 if of_images else 1, *[1] * (axes - 1))
    if len(found) != axes or not all(
        isinstance(one, int) and one >= low for one, low in zip(found, least, strict=True)
    ):
        raise GeometryError(f"{name}={shown(size)}: must be {axes} ints of at least 1; pass such a shape")
    return found


def filter_like(size: tuple[int, ...], gy: Any) -> Any:
    """In place of a filter that there is none of, an array of its shape and gy's dtype."""
    dtype = gy.dtype if isinstance(gy, np.ndarray) else np.dtype(np.float32)
    return np.broadcast_to(np.zeros((), dtype), size)


def check_gradients(gy: Any, y_shape: tuple[int, ...], into: Any, size: tuple[int, ...]) -> None:
    """Refuse gy of another shape than y's, and what a gradient cannot be added to; into: None, or that."""
    if not isinstance(gy, np.ndarray) or gy.shape != y_shape:
        shape = getattr(gy, "shape", type(gy).__name__)
        raise GeometryError(f"gy.shape={shape}: must be y's, {y_shape}; pass the gradient of y")
    if into is not None and (into.shape != size or into.dtype != np.float32):
        raise GeometryError(f"accumulate_into: must be float32 of weight_size={size}; pass such an array")


def of_no_images(size: tuple[int, ...], into: Any, asked: Asked) -> Any:
    """The gradients of no images, in new arrays."""
    dtype = DTYPES[asked.out_dtype or "fp32"]
    dw = np.zeros(size, dtype) if into is None else into.astype(dtype)
    return (dw, np.zeros(size[0], np.float32)) if asked.bias else dw
