"""`nl.where` and `nl.gather_flattened`: elements chosen by a condition or by an index."""

from __future__ import annotations

from typing import Any

from .. import isa
from ..ops import OPS
from ..rules import fail
from ..tensor import NkiTensor
from .creation import cast, ndarray, require_tiles


def where(condition: NkiTensor, x: NkiTensor, y: NkiTensor, dtype: Any = None) -> NkiTensor:
    """x where the condition is not 0, else y, chosen exactly: a comparison, a copy and a predicated copy.

    Args:
        condition, x, y: tiles in SBUF or PSUM of one shape. Numbers for x or y are not documented, so refused.
        dtype: of the result; default x's. If it is not x's, x is cast by one more copy.
    Returns: a tile in SBUF. Which instructions AWS takes is not documented.
    Raises NkiError (NKI040, NKI043-NKI046). Source: isa where.
    """
    require_tiles(condition=condition, x=x, y=y)
    dst = ndarray(x.shape, dtype or x.dtype)
    chosen = ndarray(condition.shape, "uint8")
    isa.tensor_scalar(chosen, condition, OPS["not_equal"], 0.0)
    isa.tensor_copy(dst, y)
    isa.tensor_copy_predicated(dst, cast(x, dst.dtype), chosen)
    return dst


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """out[p, ...] = data[p].flat[indices[p, ...]], within each partition: nc_n_gather, on GpSimd.

    Args:
        data: [P, F...] in SBUF. indices: uint32 [P, G...] in SBUF, each below data's elements a partition.
        axis: 0, its default: what another one would mean is not documented, so it is refused.
        dtype: of the result; default data's. Another one costs a tensor_copy.
    Returns: a tile of indices' shape in SBUF.
    Raises NkiError (NKI062 for axis; what nc_n_gather raises). Source: isa gather_flattened.
    """
    require_tiles(data=data, indices=indices)
    if type(axis) is not int or axis != 0:
        fail("NKI062", f"axis={axis!r}; only 0, over the flattened free dims", data=data)
    dst = ndarray(indices.shape, data.dtype)
    isa.nc_n_gather(dst, data, indices)
    return cast(dst, dtype)
