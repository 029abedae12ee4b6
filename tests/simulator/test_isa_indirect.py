"""Indirect views: gathers, scatters and run-time offsets of DMA and tensor_copy against NumPy."""

from functools import partial

import numpy as np
import pytest
from isa_indices import column, one, register, rows_of
from isa_tiles import evaluate, get, out, put, result, results, rounded, same, sample
from pairs import run

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

BF16, F32, I32, U32 = nl.bfloat16, nl.float32, nl.int32, nl.uint32
DGE, E = nisa.dge_mode, nisa.engine
SKIP = nisa.oob_mode.skip
in_hbm = partial(put, buffer=nl.hbm)


def moved(view, shape, dtype=F32, to=nl.sbuf, **settings):
    """A dma_copy from what `view` makes in the kernel."""
    return result(lambda out: nisa.dma_copy(out, view(), **settings), shape, dtype, to=to)


@pytest.mark.parametrize(("dtype", "mode", "of", "to", "dst"), [
    (I32, DGE.unknown, "float32", "bfloat16", "sbuf"), (U32, DGE.swdge, "int32", "int32", "hbm"),
    (I32, DGE.swdge, "int32", "float32", "sbuf"),
])  # fmt: skip
def test_gather(dtype, mode, of, to, dst, rng):
    values, picked = sample(rng, (9, 6), of), rng.integers(0, 9, 5)
    found = moved(lambda: rows_of(in_hbm(values), column(picked, dtype)), (5, 6), to, getattr(nl, dst), dge_mode=mode)
    same(found, values[picked] if of == to else rounded(values[picked].astype(np.float32), to))


PICKED, TABLE = [8, 0, 4], np.random.default_rng(1).integers(0, 9, (5, 4)).astype(np.uint32)
#: What a view of a [9, 24] tensor takes, and the same of NumPy's array.
GATHERED = {
    "offset and pattern within a row": (lambda t: t.ap([[24, 3], [12, 2], [2, 3]], offset=7,
     vector_offset=column(PICKED)), lambda a: a[PICKED].reshape(3, 4, 6)[:, 1::2, 1::2]),
    "indices of a column": (lambda t: rows_of(t, put(TABLE)[:, 1]), lambda a: a[TABLE[:, 1]]),
    "of a pattern": (lambda t: rows_of(t, put(TABLE).ap([[4, 5], [1, 1]], offset=3)), lambda a: a[TABLE[:, 3]]),
    "rows of a view": (lambda t: t[1::2, 2:8:2].vector_select(0, column([3, 1])), lambda a: a[[7, 3], 2:8:2]),
    "select of every other": (lambda t: t.reshape((9, 4, 6))[:, :, ::2].select(2, one(1, U32)).permute((1, 0)),
     lambda a: a.reshape(9, 4, 6)[:, :, 2].T),
}  # fmt: skip


#: Views of rows that are gathered, [3, 4, 6], and of NumPy's.
VIEWS = {
    "slice": (lambda v: v[:, 1:3], lambda a: a[:, 1:3]),
    "select": (lambda v: v.select(2, 1), lambda a: a[:, :, 1]),
    "permute": (lambda v: v.permute((0, 2, 1)), lambda a: a.transpose(0, 2, 1)),
    "reshape": (lambda v: v.reshape((3, 3, 8)), lambda a: a.reshape(3, 3, 8)),
    "flatten": (lambda v: v.flatten_dims(1, 2), lambda a: a.reshape(3, 24)),
    "split": (lambda v: v.reshape_dim(1, (2, -1)), lambda a: a.reshape(3, 2, 2, 6)),
    "expand": (lambda v: v.expand_dim(1).broadcast(1, 2), lambda a: np.stack([a, a], 1)),
    "step": (lambda v: v[:, :, ::2], lambda a: a[:, :, ::2]),
}
GATHERED |= {
    f"{name} of rows": (
        lambda t, view=view: view(t.reshape((9, 4, 6)).vector_select(0, column(PICKED))),
        lambda a, picture=picture: picture(a.reshape(9, 4, 6)[PICKED]),
    )
    for name, (view, picture) in VIEWS.items()
}


@pytest.mark.parametrize("name", GATHERED)
def test_what_a_view_takes(name, rng):
    view, picture = GATHERED[name]
    values = rng.normal(size=(9, 24)).astype(np.float32)
    expected = np.ascontiguousarray(picture(values))
    same(moved(lambda: view(in_hbm(values)), expected.shape), expected)


@pytest.mark.parametrize(("make", "mode", "dim", "index", "of"), [
    (one, DGE.unknown, 0, 3, lambda a: a[3, 0:2, 0:3]), (register, DGE.hwdge, 1, 4, lambda a: a[0, 4:6, 0:3]),
    (lambda v: one(v, U32), DGE.swdge, 2, 2, lambda a: a[0, 0:2, 2:5]),
])  # fmt: skip
def test_scalar_offset(make, mode, dim, index, of, rng):
    values = rng.normal(size=(4, 6, 5)).astype(np.float32)

    def pattern():
        return in_hbm(values).ap([[5, 2], [1, 3]], offset=0, scalar_offset=make(index), indirect_dim=dim)

    same(moved(pattern, (2, 3), dge_mode=mode), np.ascontiguousarray(of(values)))


TWO, DATA = (np.arange(1, 1 + 2 * n, dtype=np.float32).reshape(n, 2) for n in (2, 4))
ZEROS = np.zeros((3, 2), np.float32)


def rows_by_loop(out):
    """Copies rows 1 and 3, loaded from a table in each iteration of a loop on the device, whose register finds them."""
    data, at, table = in_hbm(DATA), nisa.register_alloc(0), put(np.array([[0, 1, 0, 3]], np.int32))

    def copy_row(i):
        cell = nl.ndarray((1, 1), I32)
        nisa.tensor_copy(cell, table.ap([[4, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
        nisa.register_load(at, cell)
        source, target = (side.ap([[2, 1], [1, 2]], scalar_offset=at) for side in (data, out))
        nisa.dma_copy(target, source)

    nl.fori_loop(1, 4, copy_row, 2)


def add_rows(out, indices):
    nisa.dma_compute(out, [out, rows_of(in_hbm(DATA), column(indices))], nl.add, **SKIPS)


def add_tile(out, indices, **settings):
    where = column(indices)
    nisa.dma_compute(rows_of(out, where), [rows_of(out, where), put(TWO)], nl.add, **settings)


def two(tensor, at, offset=0):
    """Two rows of two from row `at` of a tensor."""
    return tensor.ap([[tensor.shape[1], 2], [1, 2]], offset=offset, scalar_offset=one(at))


SKIPS = {"oob_mode": SKIP}
#: What a tensor holds, where it is, what writes to it at run-time indices, and what it holds then.
WRITTEN = {
    "the last of one place": (ZEROS, nl.hbm, lambda out: nisa.dma_copy(rows_of(out, column([1, 1])), put(TWO)),
     [[0, 0], [3, 4], [0, 0]]),
    "a scatter skips": (ZEROS, nl.hbm, lambda out: nisa.dma_copy(rows_of(out, column([2, -1, 3, 0])), put(DATA),
     **SKIPS), [[7, 8], [0, 0], [1, 2]]),
    "a gather skips what is too large": (ZEROS, nl.sbuf, lambda out: nisa.dma_copy(out, rows_of(in_hbm(DATA),
     column([3, 4, 0], U32)), **SKIPS), [[7, 8], [0, 0], [1, 2]]),
    "a scalar and a static offset": (np.zeros((4, 3), np.float32), nl.hbm, lambda out: nisa.dma_copy(two(out, 2, 1),
     put(TWO)), [[0, 0, 0], [0, 0, 0], [0, 1, 2], [0, 3, 4]]),
    # index 2 is inside its dim, but the access is not inside the tensor
    "a load is skipped": (TWO, nl.sbuf, lambda out: nisa.dma_copy(out, two(in_hbm(ZEROS), 2), **SKIPS), TWO),
    "a store is skipped": (ZEROS, nl.hbm, lambda out: nisa.dma_copy(two(out, 2), put(TWO), **SKIPS), ZEROS),
    "a store is not": (ZEROS, nl.hbm, lambda out: nisa.dma_copy(two(out, 1), put(TWO), **SKIPS),
     [[0, 0], [1, 2], [3, 4]]),
    "both sides": (ZEROS, nl.hbm, lambda out: nisa.dma_copy(out.select(0, one(2)), in_hbm(DATA).select(0, one(1))),
     [[0, 0], [0, 0], [3, 4]]),
    "a vector beside a scalar": (np.zeros((2, 2, 2), np.float32), nl.hbm,
     lambda out: nisa.dma_copy(out.select(0, one(1)), rows_of(in_hbm(DATA), column([3, 1]))),
     [[[0, 0], [0, 0]], [[7, 8], [3, 4]]]),
    # an addition of 0 would turn -0 to 0
    "rows add, skipping": (-0.0 * TWO, nl.sbuf, lambda out: add_rows(out, [3, -1]), [[7, 8], [-0.0, -0.0]]),
    "a tile adds to rows": (DATA, nl.hbm, lambda out: add_tile(out, [3, 0]), [[4, 6], [3, 4], [5, 6], [8, 10]]),
    "a tile adds, skipping": (DATA, nl.hbm, lambda out: add_tile(out, [3, -1], **SKIPS),
     [[1, 2], [3, 4], [5, 6], [8, 10]]),
    "a loaded register": (0 * DATA, nl.hbm, rows_by_loop, [[0, 0], [3, 4], [0, 0], [7, 8]]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(name):
    start, buffer, write, expected = WRITTEN[name]

    def body():
        out = put(start, buffer=buffer)
        write(out)
        return get(out)

    same(evaluate(body), np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("mode", "partitions", "columns", "rows"), [(DGE.unknown, 16, 1, 16), (DGE.swdge, 128, 3, 304)]
)
def test_transposed_gather(mode, partitions, columns, rows, rng):
    values, table = sample(rng, (40, 24), "bfloat16"), rng.integers(0, 40, (partitions, columns)).astype(np.uint32)

    def transpose(out):
        src = in_hbm(values).ap([[24, rows], [1, 24]], vector_offset=put(table))
        nisa.dma_transpose(out, src, axes=(1, 0), dge_mode=mode)

    same(result(transpose, (24, rows), BF16), np.ascontiguousarray(values[table.T.reshape(-1)[:rows]].T))


def test_transposed_gather_of_4_dims_leaves_skipped_rows(rng):
    values, table = sample(rng, (7, 1, 3, 8), "bfloat16"), rng.integers(0, 7, (16, 1)).astype(np.uint32)
    table[5], table[9] = 7, 2**32 - 1

    def body():
        out = put(np.full((8, 1, 3, 16), 9.0, np.float32), BF16)
        src = in_hbm(values).ap([[24, 16], [24, 1], [8, 3], [1, 8]], vector_offset=put(table))
        nisa.dma_transpose(out, src, oob_mode=SKIP)
        return get(out)

    expected = np.full((8, 1, 3, 16), 9, values.dtype)
    for i, row in enumerate(table[:, 0].tolist()):
        if row < 7:
            expected[..., i] = values[row].transpose(2, 0, 1)
    same(evaluate(body), expected)


def test_transpose_at_a_scalar_index(rng):
    values = sample(rng, (4, 16, 8), "bfloat16")

    def body(index, **settings):
        out = put(np.zeros((8, 16), np.float32), BF16)
        nisa.dma_transpose(out, in_hbm(values).select(0, one(index)), **settings)
        return get(out)

    same(evaluate(lambda: body(2, dge_mode=DGE.hwdge)), np.ascontiguousarray(values[2].T))
    assert not evaluate(lambda: body(4, oob_mode=SKIP)).any()


@pytest.mark.parametrize(("engine", "make"), [(E.vector, one), (E.scalar, register), (E.gpsimd, one)])
def test_copies_on_chip(engine, make):
    def copy(out):
        src = put(np.arange(24, dtype=np.float32).reshape(2, 4, 3))
        picked = src.ap([[12, 2], [1, 3]], scalar_offset=make(2), indirect_dim=1)
        nisa.tensor_copy(out.ap([[5, 2], [1, 3]], scalar_offset=make(1), indirect_dim=1), picked, engine=engine)

    [found] = results(copy, out(np.zeros((2, 5)), BF16))
    assert found.tolist() == [[0, 6, 7, 8, 0], [0, 18, 19, 20, 0]]


def test_two_cores_may_scatter_to_rows_of_their_own():
    def body(other):
        out = nl.ndarray((4, 2), F32, nl.shared_hbm)
        core = int(nl.program_id(0))
        nisa.dma_copy(rows_of(out, column([core, 2 + core * other])), put(np.full((2, 2), core, np.float32)))

    run(lambda: body(1), lnc=2)
    with pytest.raises(NkiError, match="NKI028"):
        run(lambda: body(0), lnc=2)
