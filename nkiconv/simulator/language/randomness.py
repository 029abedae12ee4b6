"""Random numbers: nl.rand, nl.random_seed, nl.dropout. Their sequence is that of nki.isa's generators, see there."""

from __future__ import annotations

from typing import Any

from .. import hardware as hw
from .. import isa
from ..dtypes import DTYPES
from ..ops import OPS
from ..rules import fail
from ..tensor import NkiTensor
from .creation import cast, ndarray, require_tiles
from .memories import sbuf

#: Bits of a random number that fp32 holds exactly, so that it stays below 1.
_FP32_BITS = 24
#: Columns of a tile on its way to HBM.
_COLUMNS = 2048


def rand(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of uniform random numbers, multiples of 2^-24 in [0, 1).

    32 random bits each (nisa.rng on Vector), of which 24 are kept and scaled: three instructions for a tile; in HBM the
    tiles go there by DMA. A dtype narrower than fp32 rounds, up to 1.

    Args: of ndarray; dtype: a float (what integers would hold is not documented).
    Raises NkiError (NKI048 for integers; what ndarray raises). Source: isa rand.
    """
    tensor = ndarray(shape, dtype, buffer, name)
    if not DTYPES[tensor.dtype].is_float:
        fail("NKI048", f"rand of dtype {tensor.dtype}; only floats", tensor=tensor)
    if tensor.on_chip:
        _fill(tensor)
        return tensor
    rows = tensor.reshape((tensor.shape[0], -1)) if tensor.ndim > 1 else tensor.reshape((1, -1))
    for start in range(0, rows.shape[0], hw.PARTITIONS):
        for first in range(0, rows.shape[1], _COLUMNS):
            part = rows[start : min(start + hw.PARTITIONS, rows.shape[0]), first : min(first + _COLUMNS, rows.shape[1])]
            tile = ndarray(part.shape, tensor.dtype)
            _fill(tile)
            isa.dma_copy(part, tile)
    return tensor


def _fill(tile: NkiTensor) -> None:
    bits = ndarray(tile.shape, "uint32")
    isa.rng(bits)
    isa.tensor_scalar(bits, bits, OPS["right_shift"], 32 - _FP32_BITS)
    isa.tensor_scalar(tile, bits, OPS["multiply"], 2.0**-_FP32_BITS)


def random_seed(seed: NkiTensor) -> None:
    """Start the generator of `rand` from a seed: the same seed, the same numbers (nisa.set_rng_seed, on Vector).

    Args: seed: a [1, 1] tile in SBUF or PSUM of a 32-bit dtype. Python ints are refused, as AWS's NKI does.
    Raises NkiError (NKI040; what set_rng_seed raises). Source: isa random_seed.
    """
    require_tiles(seed=seed)
    isa.set_rng_seed(seed)


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """x with each element replaced by 0 with probability `rate`; the others stay as they are (nisa.dropout).

    Args:
        x: [P, F...] in SBUF or PSUM. rate: a number, or a [P, 1] tile with one for each partition.
        dtype: of the result; default x's. Another one costs a tensor_copy.
    Returns: a tile of x's shape in SBUF.
    Raises NkiError (NKI040; what nisa.dropout raises). Source: isa dropout.
    """
    require_tiles(x=x)
    kept = ndarray(x.shape, x.dtype)
    isa.dropout(kept, x, rate)
    return cast(kept, dtype)
