"""Constant data that the compiled kernel carries."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .. import isa
from ..dtypes import DTYPES, Array, canonical
from ..memory import SHARED_HBM
from ..objects import dtype_name
from ..program import current
from ..rules import fail
from ..tensor import NkiTensor
from .creation import checked_shape, ndarray
from .memories import sbuf

#: Element types of shared_constant (its document).
_CONSTANT_DTYPES = (
    "float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8", "float8_e4m3fn",
    "float8_e5m2", "float8_e8m0fnu",
)  # fmt: skip


def shared_constant(constant: Any) -> NkiTensor:
    """Constant data (a NumPy array, or the path of an unpickled .npy file) as a read-only tensor in shared HBM."""
    current()
    array = constant
    if isinstance(constant, (str, os.PathLike)):
        try:
            array = np.load(constant, allow_pickle=False)
        except ValueError as error:
            fail("NKI025", f"{constant}: {error}")
    if not isinstance(array, np.ndarray):
        fail("NKI025", f"constant={constant!r} is neither a NumPy array nor the path of a .npy file")
    if canonical(array.dtype) not in _CONSTANT_DTYPES:
        fail("NKI025", f"constants of dtype {array.dtype}; accepted are {', '.join(_CONSTANT_DTYPES)}")
    return _constant(array)


def _constant(array: Array) -> NkiTensor:
    program = current()
    sizes = checked_shape(array.shape, SHARED_HBM)
    tensor = program.allocate(sizes, canonical(array.dtype) or "", SHARED_HBM, "", None)
    if program.numeric:
        storage = tensor.storage
        values = storage.array(tensor)
        if storage.readonly and values.tobytes() != array.tobytes():
            fail("NKI027", "the cores give this constant different values", constant=tensor)
        values[...] = array
        storage.complete = storage.readonly = True
    return tensor


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The [n, n] identity in SBUF (in `dst` if given), loaded from a constant."""
    name = dtype_name(dtype)
    tile = ndarray((n, n), name, sbuf) if dst is None else dst
    identity = _constant(np.eye(n, dtype=np.float32).astype(DTYPES[name].numpy))
    isa.dma_copy(dst=tile, src=identity if name != "bool_" else identity.view(name))
    return tile
