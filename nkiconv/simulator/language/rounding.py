"""`nl.floor`, `nl.ceil`, `nl.trunc`: no engine rounds towards a side, so they are made of casts and comparisons.

A cast to int32 rounds to the nearest; where that overshot, one is taken back. Numbers of 2^23 and more have no fraction
in fp32 (and may not fit int32): they, infinities and NaN stay as they are. A zero loses its sign.
"""

from __future__ import annotations

from typing import Any

from .. import isa
from ..dtypes import DTYPES
from ..ops import OPS
from ..tensor import NkiTensor
from .creation import copied, ndarray, require_tiles

#: fp32 numbers from here on are whole.
_WHOLE = 2.0**23


def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The largest whole number that is not above each element: five Vector instructions, plus one a cast.

    Args: x: [P, F...] in SBUF or PSUM, any dtype; integers are copied. dtype: of the result; default x's.
    Returns: a tile of x's shape in SBUF. Which instructions AWS takes is not documented.
    Raises NkiError (NKI040, NKI043, NKI046). Source: isa floor.
    """
    return _rounded(x, "greater", "subtract", dtype)


def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The smallest whole number that is not below each element; arguments and errors of `floor`. Source: isa ceil."""
    return _rounded(x, "less", "add", dtype)


def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Each element without its fraction: the sign times the floor of the magnitude, on Scalar and Vector.

    Arguments and errors of `floor`. Source: isa trunc.
    """
    require_tiles(x=x)
    if not DTYPES[x.dtype].is_float:
        return _rounded(x, "greater", "subtract", dtype)
    dst = ndarray(x.shape, dtype or x.dtype)
    magnitude, sign = ndarray(x.shape, "float32"), ndarray(x.shape, "float32")
    isa.tensor_scalar(magnitude, x, OPS["abs"], None)
    isa.activation(sign, OPS["sign"], x)
    isa.tensor_tensor(dst, floor(magnitude), sign, OPS["multiply"])
    return dst


def _rounded(x: NkiTensor, overshot: str, undo: str, dtype: Any) -> NkiTensor:
    """x rounded to the nearest, less (or plus) one where the nearest is `overshot` than x."""
    require_tiles(x=x)
    if not DTYPES[x.dtype].is_float:
        return copied(x, dtype or x.dtype)
    dst = ndarray(x.shape, dtype or x.dtype)
    nearest, wrong, fits = (ndarray(x.shape, kind) for kind in ("int32", "float32", "uint8"))
    out = dst if dst.dtype == x.dtype else ndarray(x.shape, x.dtype)
    isa.tensor_copy(nearest, x)
    isa.tensor_tensor(wrong, nearest, x, OPS[overshot])
    isa.tensor_tensor(out, nearest, wrong, OPS[undo])
    isa.tensor_scalar(fits, x, OPS["abs"], None, op1=OPS["less"], operand1=_WHOLE)
    isa.tensor_copy_predicated(out, x, fits, reverse_pred=True)
    if out is not dst:
        isa.tensor_copy(dst, out)
    return dst
