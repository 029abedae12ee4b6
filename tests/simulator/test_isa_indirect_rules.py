"""Rules of indirect views in pairs: the smallest use that passes, the nearest that breaks that rule."""

# ruff: noqa: E501  a table with one pair a line

from __future__ import annotations

import numpy as np
from isa_indices import column, one, register, rows_of
from isa_tiles import hbm, ps, sb
from pairs import check, named, vary

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.rules import RULES

BF16, F32, I32, U32 = nl.bfloat16, nl.float32, nl.int32, nl.uint32
DGE, SKIP = nisa.dge_mode, nisa.oob_mode.skip


def gather(picked=(1, 0), index=None, data=None, scalar_offset=None, **settings):
    index = column(picked) if index is None else index()
    data = hbm(3, 4) if data is None else data()
    view = data.ap([[4, 2], [1, 4]], vector_offset=index, scalar_offset=scalar_offset)
    return nisa.dma_copy(sb(2, 4), view, **settings)


def at(index=1, data=None, dim=0, dtype=None, **settings):
    """dma_copy of two rows of a [3, 4] tensor from row `index`."""
    data = hbm(3, 4) if data is None else data()
    index = one(index) if isinstance(index, int) else index()
    view = data.ap([[4, 2], [1, 4]], scalar_offset=index, indirect_dim=dim, dtype=dtype)
    return nisa.dma_copy(sb(2, 4, dtype=dtype or F32), view, **settings)


def rows(view):
    changed = view(hbm(3, 4, 4).vector_select(0, column([1, 0])))
    return nisa.dma_copy(nl.ndarray(changed.shape, changed.dtype), changed)


def add(sources=2, scalar=False, twice=False, same_index=True, chip=nl.sbuf, scatter=True):
    """dma_compute of a [2, 4] tile and rows of a [3, 4] tensor."""
    data, tile, where = hbm(3, 4), nl.ones((2, 4), F32, chip), column((1, 1) if twice else (1, 0))
    side = data.ap([[4, 2], [1, 4]], scalar_offset=one(1)) if scalar else rows_of(data, where)
    again = side if same_index else rows_of(data, column([1, 0]))
    dst = side if scatter else tile
    return nisa.dma_compute(dst, [again, tile, tile][:sources], nl.add)


def turn(indices=(16, 1), rows=16, last=8, dtype=BF16, index=U32, shape=None, **settings):
    middle = shape or ()
    table = nl.full(indices, 1, index, nl.sbuf)
    size = int(np.prod((*middle, last)))
    steps = [[size // int(np.prod((*middle, last)[: i + 1])), n] for i, n in enumerate((*middle, last))]
    src = hbm(20, size, dtype=dtype).ap([[size, rows], *steps], vector_offset=table)
    return nisa.dma_transpose(sb(min(last, 128), *middle, rows, dtype=dtype), src, **settings)


def copied(view, partitions=4):
    return nisa.tensor_copy(sb(partitions, 2), view(sb(4, 6)))


def cell(index):
    return nisa.dma_copy(sb(1, 1), hbm(3, 4).ap([[4, 1], [1, 1]], offset=4, scalar_offset=one(index), indirect_dim=1))


def window(index, partitions=4):
    """A view of two columns of a [4, 6] tile from column `index`."""
    return lambda tile: tile.ap([[6, partitions], [1, 2]], scalar_offset=one(index), indirect_dim=1)


# fmt: off
PAIRS = [
    vary("NKI036", "bf16 indices", lambda d: gather(index=lambda: sb(2, 1, dtype=d)), U32, BF16, "bfloat16 in sbuf"),
    vary("NKI036", "indices in HBM", lambda make: gather(index=make), lambda: sb(2, 1, dtype=I32), lambda: hbm(2, 1, dtype=I32), "int32 in private_hbm"),
    vary("NKI036", "an index in PSUM", lambda make: at(index=make), lambda: sb(1, 1, dtype=I32), lambda: ps(1, 1, dtype=I32), "int32 in psum"),
    vary("NKI036", "a list of indices", lambda make: gather(index=make), lambda: column([1, 0]), lambda: [1, 0], "is not a static tensor"),
    vary("NKI036", "an indirect index", lambda make: at(index=make), lambda: one(1), lambda: sb(1, 3, dtype=I32).select(1, one(0)), "is not a static tensor"),
    vary("NKI036", "two scalars", lambda n: at(index=lambda: sb(1, n, dtype=I32)), 1, 2, r"shape \[1, 2\], expected \[1, 1\]"),
    vary("NKI036", "too few indices", lambda p: gather(index=lambda: sb(p, 1, dtype=I32)), 2, 1, "1 indices for 2 rows"),
    vary("NKI036", "vector_select of a row", lambda n: nisa.dma_copy(sb(2, 4), hbm(3, 4).vector_select(0, sb(2, n, dtype=I32))), 1, 2, r"expected \[P, 1\]"),
    vary("NKI037", "ap of an indirect view", rows, lambda v: v, lambda v: v.ap([[4, 2], [1, 4]]), r"\.ap of an indirect view"),
    vary("NKI054", "bytes of an indirect view", lambda view: (v := view()).storage.array(v), lambda: hbm(3, 4), lambda: rows_of(hbm(3, 4), column([0, 1])), "an indirect view"),
    vary("NKI037", "select twice", rows, lambda v: v.select(1, 1), lambda v: v.select(1, one(1)), "second run-time index"),
    vary("NKI037", "vector_select twice", rows, lambda v: v, lambda v: v.vector_select(0, column([0])), "second run-time index"),
    vary("NKI037", "another dtype", rows, lambda v: v, lambda v: v.view(I32), "view"),
    vary("NKI037", "rows cut", rows, lambda v: v[:, 0], lambda v: v[0:1], "cuts the indexed dim 0"),
    vary("NKI037", "rows moved", rows, lambda v: v.permute((0, 2, 1)), lambda v: v.permute((1, 0, 2)), "moves the indexed dim 0"),
    vary("NKI037", "rows merged", rows, lambda v: v.flatten_dims(1, 2), lambda v: v.flatten_dims(0, 1), "flatten_dims"),
    vary("NKI037", "rows split", rows, lambda v: v.reshape_dim(1, (2, 2)), lambda v: v.reshape_dim(0, (2, 1)), "reshape_dim"),
    vary("NKI037", "rows reshaped", rows, lambda v: v.reshape((2, 16)), lambda v: v.reshape((4, 8)), "reshape"),
    vary("NKI037", "a dim before the rows", rows, lambda v: v.expand_dim(1), lambda v: v.expand_dim(0), "expand_dim"),
    vary("NKI012", "an indirect pattern", lambda n: hbm(3, 4).ap([[4, 1], [1, n]], scalar_offset=one(0)), 12, 13, r"elements 0\.\.12 of a storage of 12"),
    vary("NKI037", "two offsets", lambda scalar: gather(scalar_offset=scalar()), lambda: None, lambda: one(0), "together"),
    vary("NKI037", "two registers", lambda i: hbm(3, 4)[register(0), i()], lambda: 1, lambda: register(1), r"registers index dims \[0, 1\]"),
    vary("NKI038", "a register of the partition dim", lambda i: sb(3, 4)[i(), :], lambda: 1, lambda: register(1), "of the partition dim"),
    vary("NKI006", "more from a register than there is", lambda n: hbm(3, 4)[nl.ds(register(0), n)], 3, 4, "slice 0:4 is outside dim 0 of size 3"),
    vary("NKI038", "a vector on chip", lambda make: gather(data=make), lambda: hbm(3, 4), lambda: sb(3, 4), "a vector of indices for dim 0 of a tensor in sbuf"),
    vary("NKI038", "a vector for dim 1", lambda d: nisa.dma_copy(sb(2, 4), hbm(3, 4).vector_select(d, column([1, 0]))), 0, 1, "a vector of indices for dim 1"),
    vary("NKI038", "the partition dim", copied, lambda t: t.ap([[6, 4], [1, 2]], scalar_offset=one(0), indirect_dim=1), lambda t: t.ap([[6, 4], [1, 2]], scalar_offset=one(0)), "partition dim"),
    vary("NKI038", "no such dim", lambda d: at(0, dim=d), 1, 2, "indirect_dim=2 of 2 dims"),
    vary("NKI039", "a strided tensor", lambda make: at(data=make), lambda: hbm(3, 4), lambda: hbm(3, 8)[:, 0:4], "indirect_dim=0 of strides"),
    vary("NKI039", "a permuted tensor", lambda make: at(0, data=make), lambda: hbm(4, 4), lambda: hbm(4, 4).permute((1, 0)), "indirect_dim=0 of strides"),
    vary("NKI039", "another element size", lambda d: at(dtype=d), I32, BF16, "read as bfloat16"),
    vary("NKI040", "a copy from HBM", copied, window(0), lambda t: hbm(6, 4, 2).select(0, one(1)), "is in private_hbm"),
    vary("NKI044", "a copy of other partitions", lambda p: nisa.tensor_copy(sb(p, 2), window(1)(sb(4, 6))), 4, 3, "src 4"),
    vary("NKI054", "an indirect operand", lambda view: nisa.tensor_scalar(sb(4, 2), view(sb(4, 6)), nl.add, 1.0), lambda t: t[:, 1:3], window(1), "data is an indirect view"),
    vary("NKI054", "an indirect matmul", lambda view: nisa.nc_matmul(nl.ndarray((2, 2), F32, nl.psum), sb(4, 2), view(sb(4, 6))), lambda t: t[:, 1:3], window(1), "moving is an indirect view"),
    vary("NKI054", "an indirect transpose's dst", lambda view: nisa.dma_transpose(view(sb(4, 6)), hbm(2, 4)), lambda t: t[:, 1:3], window(1), "dst is an indirect view"),
    vary("NKI054", "a register from an indirect view", lambda view: nisa.register_load(register(0), view(hbm(3, 1))), lambda t: t[0:1], lambda t: t.select(0, one(0)), "src is an indirect view"),
    vary("NKI134", "nothing to skip in a transpose", lambda view: nisa.dma_transpose(sb(4, 2), view(hbm(3, 2, 4)), oob_mode=SKIP), lambda t: t.select(0, one(1)), lambda t: t[1], "static access"),
    vary("NKI138", "a row outside", lambda i: gather((0, i)), 2, 3, "index 1, 3, leaves the 3"),
    vary("NKI138", "a negative row", lambda i: gather((0, i)), 0, -1, "index 1, -1,"),
    vary("NKI138", "an access that leaves the tensor", at, 1, 2, "index 2 leaves the 3 of its dim or the tensor"),
    vary("NKI138", "a range from a register", lambda i: nisa.dma_copy(sb(2, 4), hbm(3, 4)[nl.ds(register(i), 2)]), 1, 2, "index 2"),
    vary("NKI138", "a register outside", lambda i: at(lambda: register(i)), 1, 3, "index 3"),
    vary("NKI138", "beyond its dim, but inside the tensor", cell, 3, 4, "index 4 leaves the 4"),
    vary("NKI138", "before its dim, but inside the tensor", cell, 0, -1, "index -1 leaves the 4"),
    vary("NKI138", "a copy of few partitions that leaves theirs", lambda i: copied(window(i, 2), 2), 4, 5, "index 5 leaves the 6"),
    vary("NKI138", "a copy that leaves the partition", lambda i: copied(window(i)), 4, 5, "index 5 leaves the 6"),
    vary("NKI138", "a row to add outside", lambda i: nisa.dma_compute(t := sb(1, 4), [rows_of(hbm(3, 4), column([i])), t], nl.add), 2, 3, "index 0, 3,"),
    vary("NKI139", "hwdge follows no vector", lambda m: gather(dge_mode=m), DGE.swdge, DGE.hwdge, r"dge_mode\.hwdge with an indirect src"),
    vary("NKI139", "static descriptors follow no scalar", lambda m: at(dge_mode=m), DGE.hwdge, DGE.none, r"dge_mode\.none"),
    vary("NKI139", "vectors on both sides", lambda both: nisa.dma_copy(rows_of(hbm(3, 4), column([0, 1])) if both else sb(2, 4), rows_of(hbm(3, 4), column([1, 2]))), False, True, "dst and src"),
    vary("NKI139", "more indices than rows", lambda n: gather(index=lambda: column([1] * n)), 2, 3, "src has 2 rows"),
    vary("NKI140", "three sources", lambda n: add(sources=n), 2, 3, "3 sources"),
    vary("NKI140", "a scalar index in a sum", lambda x: add(scalar=x), False, True, "a scalar index"),
    vary("NKI140", "a row added to twice", lambda x: add(twice=x), False, True, "row 1 is added to twice"),
    vary("NKI140", "indices that may differ", lambda x: add(same_index=x), True, False, "no source is dst"),
    vary("NKI140", "a sum in HBM", lambda b: add(chip=b, scatter=False), nl.sbuf, nl.hbm, "is in private_hbm"),
    vary("NKI140", "a tile from HBM", lambda b: add(chip=b), nl.sbuf, nl.hbm, "is in private_hbm"),
    vary("NKI141", "int32 indices", lambda d: turn(index=d), U32, I32, "of int32"),
    vary("NKI141", "20 partitions of indices", lambda p: turn(indices=(p, 1)), 32, 20, r"\[20, 1\]"),
    vary("NKI141", "two columns of 64", lambda p: turn(indices=(p, 2), rows=128), 128, 64, r"\[64, 2\]"),
    vary("NKI141", "indices in 3 dims", lambda s: turn(indices=s), (16, 1), (16, 1, 1), r"\[16, 1, 1\]"),
    vary("NKI141", "fp32 rows", lambda d: turn(dtype=d), nl.float16, F32, "4-byte data"),
    vary("NKI141", "129 columns", lambda n: turn(last=n), 128, 129, "last dim 129"),
    vary("NKI141", "8 rows", lambda n: turn(rows=n), 16, 8, "8 rows, expected a multiple of 16"),
    vary("NKI141", "a middle dim of 3", lambda rows: turn(shape=(3,), rows=rows), 16, 8, "8 rows, expected a multiple of 16"),
    vary("NKI141", "two middle dims", lambda s: turn(shape=s), (1, 2), (2, 2), r"\[16, 2, 2, 8\] is 1"),
    vary("NKI160", "a register without a value", lambda v: at(lambda: register(v)), 1, None, "never given a value"),
]
# fmt: on


@named(PAIRS)
def test_pair(pair):
    check(pair, __file__)


def test_every_rule_of_indirection_has_a_pair():
    own = {rule for rule in RULES if "NKI036" <= rule <= "NKI039" or "NKI138" <= rule <= "NKI149"} | {"NKI054"}
    assert own <= {pair.rule for pair in PAIRS}
