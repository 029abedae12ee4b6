"""`nki.language` on NumPy: dtypes, memories, tensors, operators, loops and launch queries.

Calls that compute are made of `nki.isa` instructions, so they are checked, recorded and timed as those are.
"""

from __future__ import annotations

from typing import Any

from .. import elementwise
from ..documented import LANGUAGE_CALLS, LANGUAGE_CONSTANTS, LANGUAGE_GEN4, LANGUAGE_GRIDS, LANGUAGE_REFUSED
from ..dtypes import DTYPES, GEN4_DTYPES
from ..elementwise import cos, logical_not, negative, tan
from ..memory import MemoryRegion
from ..objects import NKIObject
from ..ops import OPS, Op
from ..rules import refused_call
from ..tensor import NkiTensor
from .choosing import gather_flattened, where
from .constants import shared_constant, shared_identity_matrix
from .creation import empty_like, full, ndarray, ones, zeros, zeros_like
from .grids import NkiBlockGrid, NkiGrid, NkiTileGrid, alloc_blocks, alloc_tiles, blocks, tiles
from .layout import broadcast_to, expand_dims, load_transpose2d, matmul, transpose
from .loops import affine_range, ds, dynamic_range, fori_loop, sequential_range, static_range, while_loop
from .memories import hbm, is_hbm, is_on_chip, is_psum, is_sbuf, private_hbm, psum, sbuf, shared_hbm, tile_size
from .normalising import rms_norm, softmax
from .programs import no_reorder, num_programs, program_id, program_ndim
from .randomness import dropout, rand, random_seed
from .reductions import all, max, mean, min, prod, sum, var
from .rounding import ceil, floor, trunc
from .transfers import device_print, load, store

#: The documented names, those of trn3, and two of NKI 0.6.
__all__ = [*LANGUAGE_CALLS, *LANGUAGE_CONSTANTS, *LANGUAGE_GRIDS, *LANGUAGE_GEN4, "MemoryRegion", "dynamic_range"]

for _name in (*DTYPES, *GEN4_DTYPES):  # a gen4 dtype can be named and compared with, not used
    globals()[_name] = _name
Op.lower = staticmethod(elementwise.apply)
globals().update(OPS)
del _name


def __getattr__(name: str) -> Any:
    """Documented calls that no NeuronCore has raise by name when called."""
    if name not in LANGUAGE_REFUSED:
        raise AttributeError(f"module 'nki.language' has no attribute {name!r}")
    return refused_call("NKI048", name, f"nl.{name}: {LANGUAGE_REFUSED[name]}")
