"""GpSimd: the k largest values of each 16 partitions, with their places."""

from __future__ import annotations

import numpy as np

from .. import hardware as hw
from ..dtypes import Array
from ..program import Instruction, current
from ..rules import fail
from ..tensor import NkiTensor
from . import check
from .search import refuse_nan

_CORE = hw.GPSIMD_CORE_PARTITIONS


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> Instruction:
    """The k largest of each 16 partitions' n elements of src, ascending, in val_dst, and their places in idx_dst.

    Element i of a group of 16 partitions is at partition i % 16, column i // 16. Results are laid out the same way, so
    that they fill the first ceil(k / 16) columns. Hardware writes a column on all 16 partitions: what lies there beyond
    result k is poison here. Columns after these stay as they are. The documents of NKI 0.6 and 0.7 differ in how
    they tell the layout of results and their order; this is what both allow and published kernels rely on. Of equal
    values the lower place counts as the larger (not documented), and a NaN, which has no place, is refused.

    Args:
        val_dst: [P, k] bf16, P a multiple of 16. idx_dst: [P, k] uint32. src: [P, F] bf16, 16 * F >= n.
        n: 8 <= n < 65536. k: 1 <= k < 32768 and k <= n.
    Raises NkiError (NKI042, NKI044, NKI045, NKI052, NKI083, NKI089). Source: isa topk, nki-library gpsimd_topk.
    """
    program = current()
    check.on_gpsimd(val_dst=val_dst, idx_dst=idx_dst, src=src)
    check.dtypes("NKI052", ("bfloat16",), val_dst=val_dst, src=src)
    check.dtypes("NKI052", ("uint32",), idx_dst=idx_dst)
    for label, tensor in {"val_dst": val_dst, "idx_dst": idx_dst, "src": src}.items():
        if tensor.ndim != 2 or tensor.shape[0] % _CORE:
            shape = f"[multiple of {_CORE}, free]"
            fail("NKI089", f"{label} has shape {list(tensor.shape)}, expected {shape}", **{label: tensor})
    check.alike(val_dst=val_dst, idx_dst=idx_dst)
    check.same_partitions(src=src, val_dst=val_dst)
    k = val_dst.shape[1]
    if type(n) is not int or not hw.TOPK_LEAST <= n < hw.TOPK_LIMIT or n > _CORE * src.shape[1]:
        fail("NKI089", f"n={n!r} of {_CORE * src.shape[1]} elements in 16 partitions", src=src)
    if k > n or k >= hw.TOPK_RESULTS_LIMIT:
        fail("NKI089", f"val_dst asks for the {k} largest of {n}", val_dst=val_dst)
    check.writable(val_dst=val_dst, idx_dst=idx_dst)
    if program.numeric:
        for first in range(0, src.shape[0], _CORE):
            rows = slice(first, first + _CORE)
            _of_group(val_dst[rows], idx_dst[rows], src[rows], n)
    columns = -(-k // _CORE)
    for dst in (val_dst, idx_dst):
        dst.storage.unwritten_rule = "NKI180"
    writes = (val_dst[:, 0:columns], idx_dst[:, 0:columns])
    return program.record("gpsimd", "topk", writes, (src,), {"n": n, "k": k}, name)


def _of_group(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int) -> None:
    """topk of one GpSimd core's 16 partitions."""
    k = val_dst.shape[1]
    values = np.concatenate([np.array(part.storage.read(part)).T.reshape(-1) for part in _snake(src, n)])
    keys = values.astype(np.float32)
    refuse_nan("src", keys, src)
    order = np.argsort(-keys, kind="stable")[:k][::-1]
    _write_snake(val_dst, values[order])
    _write_snake(idx_dst, order.astype(np.uint32))


def _snake(tensor: NkiTensor, count: int) -> list[NkiTensor]:
    """The first `count` elements of 16 partitions, column after column: the full columns, and the rest of the last."""
    columns, rest = divmod(count, _CORE)
    full = [tensor[:, 0:columns]] if columns else []
    return full + ([tensor[0:rest, columns : columns + 1]] if rest else [])


def _write_snake(dst: NkiTensor, values: Array) -> None:
    done = 0
    for part in _snake(dst, len(values)):
        dst.storage.write(part, values[done : done + part.size].reshape(part.shape[::-1]).T)
        done += part.size
    rest = len(values) % _CORE
    if rest:
        beyond = dst[rest:, done // _CORE : done // _CORE + 1]
        dst.storage.array(beyond).view(np.uint8)[...] = 0xFF
