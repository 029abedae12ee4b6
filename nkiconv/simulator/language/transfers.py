"""Tiles from HBM and back, and onto the screen."""

from __future__ import annotations

import sys
from typing import Any

from .. import isa
from ..memory import PSUM, SBUF
from ..program import current
from ..rules import fail
from ..tensor import NkiTensor
from .creation import ndarray
from .memories import sbuf


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of an HBM tensor (dim 0 becomes the partition dim).

    Raises NkiError (NKI040). Source: isa load.
    """
    if type(src) is not NkiTensor or src.on_chip:
        fail("NKI040", "load reads HBM; copy on chip with nisa.tensor_copy", src=src)
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    tile = ndarray(shape, dtype or src.dtype, sbuf)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Store an SBUF tile into an HBM tensor.

    Raises NkiError (NKI040). Source: isa store.
    """
    if type(dst) is not NkiTensor or dst.on_chip or type(value) is not NkiTensor or value.buffer is not SBUF:
        fail("NKI040", "store writes a tile of SBUF to HBM; copy with nisa.tensor_copy or nisa.dma_copy", dst=dst)
    isa.dma_copy(dst=dst, src=value)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print the values of a tensor in SBUF or HBM (when simulated, at once, to stdout; its description if traced)."""
    program = current()
    if type(print_prefix) is not str:
        fail("NKI048", f"print_prefix={print_prefix!r} is not a string")
    if type(tensor) is not NkiTensor or tensor.buffer is PSUM:
        fail("NKI040", "device_print shows tensors in SBUF or HBM", tensor=tensor)
    values = f"\n{tensor.storage.read(tensor)}" if program.numeric else ""
    sys.stdout.write(f"{print_prefix} {tensor.describe()}{values}\n")
