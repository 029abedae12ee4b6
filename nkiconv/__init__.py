"""nkiconv: convolutions for AWS Trainium, as NKI kernels that run on trn2 and in a simulator on any machine."""

from __future__ import annotations

from typing import Any

from ._nki import simulate
from .errors import (
    CapacityError,
    DtypeError,
    FileFormatError,
    GeometryError,
    LayoutError,
    NkiconvError,
    UnsupportedError,
)
from .kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from .ops import depthwise_conv1d
from .problem import ConvProblem
from .simulator import ArraySpec

__version__ = "0.1.0.dev0"

__all__ = [
    "ArraySpec",
    "CapacityError",
    "ConvProblem",
    "DtypeError",
    "FileFormatError",
    "GeometryError",
    "LayoutError",
    "NkiconvError",
    "UnsupportedError",
    "depthwise_conv1d",
    "depthwise_conv1d_implicit_gemm",
    "simulate",
    "spec",
]


def spec(shape: tuple[int, ...], dtype: Any) -> ArraySpec:
    """Shape and dtype of an array that is never made; stands for it where a kernel is only traced.

    Args: shape: positive ints. dtype: as nki.language, NumPy or ConvProblem name it.
    Raises: NkiError (NKI001, NKI002).
    """
    return ArraySpec(shape, dtype)
