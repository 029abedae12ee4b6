"""Arguments of torch's convolutions that are an int for all axes or one for each, and padding by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import rules
from ..axis import padding_pairs
from ..errors import refuse, shown
from ..integers import plain_ints
from ..rules import PADDINGS
from .computers import modes
from .errors import GeometryError, KindError


def taps_of(w: Tensor) -> Sequence[int]:
    """Taps of a filter on each axis; torch.jit.trace has tensors for them, though they change with no input."""
    return [int(taps) for taps in w.shape[2:]] if modes.is_traced() else w.shape[2:]


def number_of(value: Any) -> Any:
    """The float that a number of Python, NumPy or torch is; other values, and ints that are too large, unchanged."""
    if isinstance(value, Tensor) and value.dim() == 0 and not torch.compiler.is_compiling():
        value = value.item()
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= sys.float_info.max else value


def int_of(value: Any) -> Any:
    """The int that a number of NumPy or torch is, also in tuples and lists; other values, as flags, unchanged."""
    return value if isinstance(value, torch.SymInt) else plain_ints(value)


def groups_of(value: Any) -> Any:
    """Groups as an int. Raises KindError: they are none."""
    groups = int_of(value)
    if not _is_int(groups):
        raise KindError(rules.number("groups", groups))
    return groups


def _is_int(value: Any) -> bool:
    return isinstance(value, (Integral, torch.SymInt)) and not isinstance(value, bool)


def per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A number for each axis of one for all, or of one for each."""
    if _is_int(int_of(value)):
        return (int_of(value),) * rank
    listed = isinstance(value, (tuple, list))
    values = tuple(map(int_of, value)) if listed else ()  # numbers that torch.jit.trace computes of shapes are tensors
    if len(values) == 1:
        values *= rank
    if len(values) != rank or not all(map(_is_int, values)):
        kind = GeometryError if listed and all(map(_is_int, values)) else KindError
        raise kind(f"{name}={shown(value)}: must be an int, or {rank} of them, one per axis; pass such")
    return values


def zeros(padding: Any, w: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each axis, as torch understands padding, and "causal" of a row."""
    rank = len(stride)
    if isinstance(padding, str):
        refuse(GeometryError, rules.accepted("padding", padding, PADDINGS[: 3 if rank == 1 else 2], "use one, or ints"))
        if padding == "same" and max(stride) > 1:
            raise GeometryError(f"padding='same', stride={stride}: torch defines it for stride 1 only; give numbers")
        return padding_pairs(padding, [(taps, taps, 1, step) for taps, step in zip(taps_of(w), dilation, strict=False)])
    if _are_pairs(padding, rank):
        if rank < 3:
            raise KindError(f"padding={padding!r}: pairs are conv3d's; pad input with torch.nn.functional.pad before")
        return tuple((int_of(pair[0]), int_of(pair[1])) for pair in padding)
    sides = per_axis("padding", padding, rank)
    refuse(GeometryError, rules.numbers("padding", sides, least=0))
    return tuple((side, side) for side in sides)


def zeros_of_transposed(
    padding: Any, output_padding: Any, w: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each axis of a transposed convolution's spread input, as torch understands both."""
    rank = len(stride)
    sides, ends = per_axis("padding", padding, rank), per_axis("output_padding", output_padding, rank)
    refuse(GeometryError, rules.numbers("padding", sides, least=0), rules.numbers("output_padding", ends, least=0))
    if min(stride) >= 1 and min(dilation) >= 1:
        refuse(GeometryError, rules.output_padding(ends, stride, dilation, rank))
    windows = [(taps - 1) * gap for taps, gap in zip(taps_of(w), dilation, strict=False)]
    each = zip(windows, sides, ends, strict=False)
    return tuple((window - side, window - side + end) for window, side, end in each)


def _are_pairs(padding: Any, rank: int) -> bool:
    """Whether this is two ints for each axis."""
    if not isinstance(padding, (tuple, list)) or len(padding) != rank:
        return False
    pairs = [map(int_of, one) for one in padding if isinstance(one, (tuple, list)) and len(one) == 2]
    return len(pairs) == rank and all(all(map(_is_int, pair)) for pair in pairs)
