"""Tiles from HBM and back, and onto the screen."""

from __future__ import annotations

import sys
from typing import Any

from .. import isa
from ..memory import PSUM
from ..program import current
from ..rules import fail
from ..tensor import NkiTensor
from .creation import ndarray
from .regions import sbuf


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of an HBM tensor (dim 0 becomes the partition dim)."""
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    tile = ndarray(shape, dtype or src.dtype, sbuf)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Store an SBUF tile into an HBM tensor."""
    isa.dma_copy(dst=dst, src=value)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print the values of a tensor in SBUF or HBM (when simulated, at once, to stdout; its description if traced)."""
    program = current()
    if type(tensor) is not NkiTensor or tensor.buffer is PSUM:
        fail("NKI040", "device_print shows tensors in SBUF or HBM", tensor=tensor)
    values = f"\n{tensor.storage.read(tensor)}" if program.numeric else ""
    sys.stdout.write(f"{print_prefix} {tensor.describe()}{values}\n")
