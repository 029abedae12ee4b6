"""Tiles in another shape or orientation: transpose, matmul, broadcast_to, expand_dims, load_transpose2d."""

from __future__ import annotations

import warnings
from typing import Any

from .. import hardware as hw
from .. import isa
from ..objects import as_int, dtype_name
from ..rules import fail
from ..tensor import NkiTensor
from .creation import cast, checked_shape, copied, ndarray, require_tiles
from .memories import psum, sbuf


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The [F, P] transpose of a [P, F] tile, in PSUM; bit-exact but for a cast.

    A tile in SBUF goes through the Tensor Engine, up to [128, 128]; one in PSUM through Vector, up to [32, 32].

    Args: x: 2-d. dtype: of the result; default x's. Another one costs a tensor_copy, in PSUM too.
    Raises NkiError (NKI040, NKI043, NKI108, NKI114). Source: isa transpose.
    """
    require_tiles(x=x)
    _require_2d(x=x)
    if x.shape[1] > hw.PARTITIONS:
        fail("NKI114", f"{x.shape[1]} columns would become partitions, at most {hw.PARTITIONS}", x=x)
    transposed = ndarray((x.shape[1], x.shape[0]), x.dtype, psum)
    isa.nc_transpose(transposed, x)
    return cast(transposed, dtype, psum)


def _require_2d(**operands: NkiTensor) -> None:
    for name, tensor in operands.items():
        if tensor.ndim != 2:
            fail("NKI002", f"{name} has {tensor.ndim} dims, expected 2", **{name: tensor})


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y, or x.T @ y with transpose_x, as fp32 in PSUM: one nc_matmul.

    Args:
        x: [M, K] in SBUF, M <= 128, K <= 128; [K, M] with transpose_x. Without it a transpose by the Tensor Engine and
            a copy to SBUF come first, as documented, with a warning: NKI 0.4 to 0.6 fail there (known issue of 0.4).
        y: [K, N] in SBUF, K <= 128, N <= 512.
    Raises NkiError (NKI040, NKI043, NKI101, NKI103, NKI104, NKI107, NKI114). Source: isa matmul.
    """
    require_tiles(x=x, y=y)
    _require_2d(x=x, y=y)
    stationary = x
    if not transpose_x:
        warnings.warn(
            "nl.matmul without transpose_x=True fails under AWS's NKI 0.4 to 0.6; transpose x first", stacklevel=2
        )
        stationary = copied(transpose(x), x.dtype)
    if stationary.shape[1] > hw.STATIONARY_FREE_MAX:  # said of x, before there is a result of too many partitions
        fail("NKI103", f"x.T has {stationary.shape[1]} columns, at most {hw.STATIONARY_FREE_MAX}", x=x)
    dst = ndarray((stationary.shape[1], y.shape[1]), "float32", psum)
    isa.nc_matmul(dst, stationary, y)
    return dst


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view of a tile with a new dim of size 1 at `axis`, counted in the result; negative from its end.

    Raises NkiError (NKI004, NKI006, NKI008 for axis 0, NKI040). Source: isa expand_dims.
    """
    require_tiles(x=x)
    position = as_int(axis, "axis")
    return x.expand_dim(position + x.ndim + 1 if position < 0 else position)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """A tile of `shape` in SBUF, each dim of size 1 repeated; x itself where nothing changes.

    Free dims are repeated by one tensor_copy that reads them with stride 0. A single partition is repeated by
    nc_stream_shuffle, one for each quadrant of 32, and cast afterwards. Which instructions AWS takes is not documented.

    Args: x: in SBUF or PSUM. shape: of x's rank, each size x's or repeated from 1. dtype: default x's.
    Raises NkiError (NKI002-NKI004, NKI014 for a dim that is not 1, NKI040, NKI043, NKI046). Source: isa broadcast_to.
    """
    require_tiles(x=x)
    sizes = checked_shape(shape, sbuf)
    wanted = x.dtype if dtype is None else dtype_name(dtype)
    if len(sizes) != x.ndim or any(n not in (1, size) for n, size in zip(x.shape, sizes, strict=False)):
        fail("NKI014", f"broadcast_to shape={shape!r}", x=x)
    if sizes == x.shape and wanted == x.dtype:
        return x
    view = x
    for dim in range(1, x.ndim):
        if x.shape[dim] != sizes[dim]:
            view = view.broadcast(dim, sizes[dim])
    if sizes[0] == x.shape[0]:
        return copied(view, wanted)
    spread = ndarray(sizes, x.dtype)
    for start in range(0, sizes[0], hw.QUADRANT_PARTITIONS):
        rows = spread[start : min(start + hw.QUADRANT_PARTITIONS, sizes[0])]
        isa.nc_stream_shuffle(rows, view, [0] * hw.SHUFFLE_MASK_ENTRIES)
    return cast(spread, wanted)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile [F, P] with the transpose of an HBM tensor [P, F]: one dma_transpose, F <= 128.

    Args: src: 2-d in HBM. dtype: of the tile; default src's. Another one costs a tensor_copy, in SBUF.
    Raises NkiError (NKI002, NKI003, NKI040). Source: isa load_transpose2d.
    """
    if type(src) is not NkiTensor or src.on_chip:
        fail("NKI040", "src is not a tensor in HBM", src=src)
    _require_2d(src=src)
    tile = ndarray((src.shape[1], src.shape[0]), src.dtype)
    isa.dma_transpose(tile, src)
    return cast(tile, dtype)
