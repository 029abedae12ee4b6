"""`nl.softmax` and `nl.rms_norm`: a tile scaled by statistics of its last free dims."""

from __future__ import annotations

from typing import Any

from .. import isa
from ..isa import check
from ..isa.reductions import reduced_axes
from ..ops import OPS, Op
from ..rules import fail
from ..tensor import NkiTensor
from ..views import Ints
from .creation import ndarray, require_tiles
from .reductions import Axis, each, new_statistic, reduced


def _with_each(dst: NkiTensor, x: NkiTensor, op: Op, statistic: NkiTensor, axes: Ints) -> None:
    """dst = x op statistic: as an operand of one element a partition where there is one, else element by element."""
    if axes[0] == 1 and statistic.dtype == "float32":
        isa.tensor_scalar(dst, x, op, statistic)
    else:
        isa.tensor_tensor(dst, x, each(x, statistic, axes), op)


def softmax(x: NkiTensor, axis: Axis = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) / sum(exp(x - max)) over the last free dims.

    Maxima are taken off first, so that nothing overflows. Over all free dims: four instructions, the sum being taken by
    the activation; over some of them six. Which ones AWS takes is not documented.

    Args:
        x: [P, F...] in SBUF or PSUM. axis: the last dims, contiguously, never 0. dtype: of the result; default x's.
    Returns: a tile of x's shape in SBUF; fp32 until it is written.
    Raises NkiError (NKI040, NKI046, NKI062). Source: isa softmax.
    """
    require_tiles(x=x)
    axes = reduced_axes(x, axis)
    dst = ndarray(x.shape, dtype or x.dtype)
    powers = ndarray(x.shape, "float32")
    peak = reduced(x, axes, OPS["maximum"], "float32", negate=True)
    if axes[0] == 1:
        total = new_statistic(x, axes, "float32")
        isa.activation_reduce(powers, OPS["exp"], x, OPS["add"], total, bias=peak)
    else:
        isa.tensor_tensor(powers, x, each(x, peak, axes), OPS["add"])
        isa.activation(powers, OPS["exp"], powers)
        total = reduced(powers, axes, OPS["add"], "float32")
    isa.reciprocal(total, total)
    _with_each(dst, powers, OPS["multiply"], total, axes)
    return dst


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axis,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """x / sqrt(sum(x * x over axis) / n + epsilon) * w, in five instructions.

    Args:
        x: [P, F...] in SBUF or PSUM. w: a tile of x's shape (broadcasting is not documented, so it is refused).
        axis: the last dims, contiguously, never 0. n: what the sum of squares is divided by.
        dtype: of the result; default x's. compute_dtype: of the tiles between instructions; default float32.
    Returns: a tile of x's shape in SBUF.
    Raises NkiError (NKI040, NKI044-NKI047, NKI051, NKI062; NKI069 where the mean square is outside rsqrt's range).
    Source: isa rms_norm.
    """
    require_tiles(x=x, w=w)
    axes = reduced_axes(x, axis)
    if not check.is_number(n) or n <= 0 or not check.is_number(epsilon):
        fail("NKI051", f"n={n!r}, epsilon={epsilon!r}: must be numbers, n above 0", x=x)
    between = compute_dtype or "float32"
    dst = ndarray(x.shape, dtype or x.dtype)
    scaled = ndarray(x.shape, between)
    isa.activation(scaled, OPS["square"], x)
    squares = reduced(scaled, axes, OPS["add"], between)
    root = new_statistic(x, axes, between)
    isa.activation(root, OPS["rsqrt"], squares, bias=float(epsilon), scale=1.0 / n)
    _with_each(scaled, x, OPS["multiply"], root, axes)
    isa.tensor_tensor(dst, scaled, w, OPS["multiply"])
    return dst
