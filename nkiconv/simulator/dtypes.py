"""NKI's data types on NumPy: names, sizes, and the casts the engines do.

A dtype is a string, as in AWS's ``nki.language``. bf16 and fp8 are `ml_dtypes` types; tfloat32 is stored as float32
whose mantissa is rounded to 10 bits. Engines compute in fp32, so a cast always starts from fp32 (or is bit-exact).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class DTypeInfo:
    """One NKI dtype: the NumPy type that stores it, bytes an element, and the kind of number."""

    name: str
    numpy: np.dtype[Any]
    itemsize: int
    is_float: bool
    short: str


def _info(name: str, numpy_type: Any, *, is_float: bool, short: str) -> DTypeInfo:
    dtype = np.dtype(numpy_type)
    return DTypeInfo(name, dtype, dtype.itemsize, is_float, short)


#: Every dtype a tensor may have on trn2 (nki-dtype table; float8_e4m3 is the IEEE-like format with infinities). int64,
#: which `nki.isa.scalar_load` takes besides int32, is moved by DMA, and no engine computes on it (NKI055).
DTYPES: dict[str, DTypeInfo] = {
    info.name: info
    for info in (
        _info("bool_", np.uint8, is_float=False, short="bool"),
        _info("int8", np.int8, is_float=False, short="int8"),
        _info("int16", np.int16, is_float=False, short="int16"),
        _info("int32", np.int32, is_float=False, short="int32"),
        _info("int64", np.int64, is_float=False, short="int64"),
        _info("uint8", np.uint8, is_float=False, short="uint8"),
        _info("uint16", np.uint16, is_float=False, short="uint16"),
        _info("uint32", np.uint32, is_float=False, short="uint32"),
        _info("float16", np.float16, is_float=True, short="fp16"),
        _info("bfloat16", ml_dtypes.bfloat16, is_float=True, short="bf16"),
        _info("float32", np.float32, is_float=True, short="fp32"),
        _info("tfloat32", np.float32, is_float=True, short="tf32"),
        _info("float8_e4m3", ml_dtypes.float8_e4m3, is_float=True, short="fp8_e4m3"),
        _info("float8_e4m3fn", ml_dtypes.float8_e4m3fn, is_float=True, short="fp8_e4m3fn"),
        _info("float8_e5m2", ml_dtypes.float8_e5m2, is_float=True, short="fp8_e5m2"),
        _info("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, is_float=True, short="fp8_e8m0fnu"),
    )
}

#: Packed types that exist as names but need NeuronCore-v4 (nki-dtype table, footnote 2).
GEN4_DTYPES = ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")

#: 16-bit and 8-bit types the Tensor Engine mixes freely; fp32 and tf32 only meet each other (isa nc_matmul).
MATMUL_NARROW = frozenset({"float8_e4m3", "float8_e5m2", "bfloat16", "float16"})
MATMUL_WIDE = frozenset({"float32", "tfloat32"})
MATMUL_FP8 = frozenset({"float8_e4m3", "float8_e5m2"})

FLOATS = tuple(name for name, info in DTYPES.items() if info.is_float)
INTEGERS = tuple(name for name, info in DTYPES.items() if not info.is_float)

_FROM_NUMPY = {info.numpy: name for name, info in DTYPES.items() if name not in ("bool_", "tfloat32")}
_FROM_NUMPY[np.dtype(np.bool_)] = "bool_"
_SHORT = {info.short: name for name, info in DTYPES.items()}


def canonical(dtype: Any) -> str | None:
    """NKI's name for a dtype given as NKI string, NumPy, ml_dtypes, torch or JAX type; None when there is none."""
    if type(dtype) is str:
        if dtype in DTYPES:
            return dtype
        return _SHORT.get(dtype)
    if isinstance(dtype, np.dtype):
        return _FROM_NUMPY.get(dtype)
    text = str(dtype)
    if text.startswith("torch."):
        name = text.removeprefix("torch.")
        return "bool_" if name == "bool" else name if name in DTYPES else None
    try:
        return _FROM_NUMPY.get(np.dtype(dtype))
    except (TypeError, ValueError):
        return None


def to_fp32(values: Array) -> Array:
    """The engines' view of an operand: fp32 (no copy when it already is)."""
    return values if values.dtype == np.float32 else values.astype(np.float32)


def round_to_tf32(values: Array) -> Array:
    """fp32 values with the mantissa rounded to 10 bits, ties to even; NaN and Inf unchanged."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def from_fp32(values: Array, dtype: str) -> Array:
    """Cast an fp32 result to `dtype` as the engines do on write.

    Floats round to nearest even (`ml_dtypes`); integers round to nearest even and saturate (NKI 0.6 release notes);
    NaN becomes integer 0 (not documented; stated here so that it is one place).
    """
    info = DTYPES[dtype]
    if dtype == "tfloat32":
        return round_to_tf32(values)
    if info.is_float:
        return values if values.dtype == info.numpy else values.astype(info.numpy)
    if dtype == "bool_":
        true: Array = values != 0
        return true.astype(np.uint8)
    limits = np.iinfo(info.numpy)
    wide = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    saturated: Array = np.clip(wide, limits.min, limits.max)
    return saturated.astype(info.numpy)


def convert(values: Array, src: str, dst: str) -> Array:
    """Copy semantics of DMA and of the engines' copies: bit-exact for equal dtypes, otherwise through fp32."""
    return values if src == dst else from_fp32(to_fp32(values), dst)
