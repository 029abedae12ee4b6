"""Copies, fills, casts, transfers and indirect views (gathers, scatters, run-time offsets) against plain NumPy."""

import itertools
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import (
    a_tile,
    column,
    evaluate,
    get,
    laid,
    one,
    out,
    put,
    result,
    results,
    rounded,
    row,
    rows_of,
    same,
    sample,
)
from pairs import run

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES

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


@pytest.mark.parametrize(("view", "picture"), GATHERED.values(), ids=GATHERED)
def test_what_a_view_takes(view, picture, rng):
    values = rng.normal(size=(9, 24)).astype(np.float32)
    expected = np.ascontiguousarray(picture(values))
    same(moved(lambda: view(in_hbm(values)), expected.shape), expected)


@pytest.mark.parametrize(("make", "mode", "dim", "index", "of"), [
    (one, DGE.unknown, 0, 3, lambda a: a[3, 0:2, 0:3]),
    (nisa.register_alloc, DGE.hwdge, 1, 4, lambda a: a[0, 4:6, 0:3]),
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


@pytest.mark.parametrize(("start", "buffer", "write", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_what_is_written(start, buffer, write, expected):

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
    for i, at in enumerate(table[:, 0].tolist()):
        if at < 7:
            expected[..., i] = values[at].transpose(2, 0, 1)
    same(evaluate(body), expected)


def test_transpose_at_a_scalar_index(rng):
    values = sample(rng, (4, 16, 8), "bfloat16")

    def body(index, **settings):
        out = put(np.zeros((8, 16), np.float32), BF16)
        nisa.dma_transpose(out, in_hbm(values).select(0, one(index)), **settings)
        return get(out)

    same(evaluate(lambda: body(2, dge_mode=DGE.hwdge)), np.ascontiguousarray(values[2].T))
    assert not evaluate(lambda: body(4, oob_mode=SKIP)).any()


@pytest.mark.parametrize(("engine", "make"), [(E.vector, one), (E.scalar, nisa.register_alloc), (E.gpsimd, one)])
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


FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tfloat32")
ALL = (*FLOATS, "int8", "uint8", "int16", "uint16", "int32", "uint32", "bool_")
MODES = nisa.dge_mode
#: A copy by an engine, and by a queue.
COPIES = {"tensor_copy": (nisa.tensor_copy, nl.sbuf), "dma_copy": (nisa.dma_copy, nl.hbm)}
by_each = pytest.mark.parametrize(("copy", "memory"), COPIES.values(), ids=COPIES)


@pytest.mark.cover(14)
@by_each
@pytest.mark.parametrize(("src", "dst"), [*itertools.product(ALL, ALL)])
def test_copies_cast_through_fp32(src, dst, copy, memory, rng):
    values = sample(rng, (5, 7), src)
    found = result(copy, (5, 7), dst, a_tile(values, src), to=memory)
    same(found, values if src == dst else rounded(values.astype(np.float32), dst))


CASTS = [
    ("int8", [0.5, 1.5, -2.5, 127.5, 300.0, -1e9, np.inf, -np.inf, np.nan], [0, 2, -2, 127, 127, -128, 127, -128, 0]),
    ("uint8", [0.5, 2.5, 254.5, 255.5, -1.0, 1e9], [0, 2, 254, 255, 0, 255]),
    ("int16", [32767.5, -32768.5, 12.5], [32767, -32768, 12]),
    ("uint16", [0.5, 1.5, -2.5, 127.5, -1e9, 1e9], [0, 2, 0, 128, 0, 65535]),
    ("int32", [3e9, -3e9, 2.0**24 + 2], [2**31 - 1, -(2**31), 2**24 + 2]),
    ("uint32", [5e9, -5.0, 2.0**31], [2**32 - 1, 0, 2**31]),
    ("bool_", [0.0, -0.0, 0.25, -3.0, np.nan], [0, 0, 1, 1, 1]),
    ("bfloat16", [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e39], [1.0, 1 + 2.0**-6, np.inf]),
    ("float16", [2049.0, 2051.0, 65520.0], [2048.0, 2052.0, np.inf]),
    ("tfloat32", [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 3 * 2.0**-11], [1.0, 1 + 2.0**-9, -1 - 2.0**-9]),
    ("float8_e4m3", [1.0625, 1.1875, 1000.0], [1.0, 1.25, np.inf]),
    ("float8_e5m2", [1.125, 1.375, 1e6], [1.0, 1.5, np.inf]),
]


@pytest.mark.parametrize(("dtype", "values", "expected"), CASTS, ids=[row[0] for row in CASTS])
def test_casts_round_to_even_and_integers_saturate(dtype, values, expected):
    found = result(nisa.tensor_copy, (1, len(values)), dtype, row(*values))
    assert found.astype(np.float64).tolist() == [expected]


def test_integers_lose_bits_on_the_way_to_others():
    values = row(2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1, dtype=np.int32)
    found = result(nisa.dma_copy, (1, 4), nl.uint32, values, to=nl.hbm)
    assert found.tolist() == [[2**24, 2**24 + 4, 0, 2**31]]


BITS = row(0x7FC12345, 0x7F800001, 0xFFFFFFFF, 0x80000000, 0x00000001, dtype=np.uint32)
HALF = row(0x7FC1, 0xFF81, 0x7F80, 0x8000, dtype=np.uint16)


@pytest.mark.parametrize(("engine", "values"), [
    ("vector", BITS.view(np.float32)), ("scalar", BITS.view(np.int32)), ("gpsimd", HALF.view(ml_dtypes.bfloat16)),
    ("dma", BITS.view(np.float32)), ("dma", row(2**40, -1, dtype=np.int64)),
])  # fmt: skip
def test_copies_of_one_dtype_keep_every_bit(engine, values):
    call, more = (nisa.dma_copy, ()) if engine == "dma" else (nisa.tensor_copy, (nisa.engine[engine],))
    same(result(call, values.shape, str(values.dtype), values, *more), values)


@pytest.mark.parametrize(("src", "dst", "partitions"), [
    ("dense", "strided", 128), ("strided", "permuted", 33), ("permuted", "shifted", 5), ("shifted", "dense", 1),
])  # fmt: skip
def test_copies_between_layouts(src, dst, partitions, rng):
    values = rng.normal(size=(partitions, 3, 4)).astype(ml_dtypes.bfloat16)
    [found] = results(nisa.tensor_copy, out(values.shape, "bfloat16", layout=dst), laid(src, values, buffer=nl.psum))
    same(found, values)


def test_a_copy_onto_itself_reads_before_it_writes():
    data = out(row(*range(8)), nl.float32)
    [found] = results(lambda data: nisa.tensor_copy(data[:, 1:8], data[:, 0:7]), data)
    assert found.tolist() == [[0, 0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(("dtype", "value", "expected"), [
    ("float8_e4m3", 1.5, 1.5), ("tfloat32", 1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ("bfloat16", 1 + 3 * 2.0**-8, 1 + 2.0**-6), ("float32", 3, 3.0), ("int8", -128, -128),
    ("uint32", 2**32 - 1, 2**32 - 1), ("bool_", True, 1),
])  # fmt: skip
def test_memset(dtype, value, expected):
    [found] = results(nisa.memset, out((5, 3), dtype, layout="strided"), value)
    assert found.dtype == DTYPES[dtype].numpy
    assert np.all(found.astype(np.float64) == expected)


NEW, MASK = row(7, 8, 9), row(0, 2, 0, dtype=np.uint16)


@pytest.mark.parametrize(("src", "mask", "reverse", "expected"), [
    (a_tile(NEW, buffer=nl.psum), MASK, False, [1, 8, 3]), (2.5, MASK.astype(np.uint8), True, [2.5, 2, 2.5]),
    (NEW, MASK.astype(np.uint32), True, [7, 2, 9]),
])  # fmt: skip
def test_predicated_copy(src, mask, reverse, expected):
    dst = out(row(1, 2, 3), nl.float32, layout="strided")
    [found] = results(nisa.tensor_copy_predicated, dst, src, mask, reverse_pred=reverse)
    assert found.tolist() == [expected]


def test_a_predicated_copy_leaves_the_rest_unwritten():
    written = []

    def copy(dst, mask):
        whole = nl.ndarray((1, 4), nl.float32)
        nisa.tensor_copy_predicated(whole, 1.0, mask)
        nisa.tensor_copy(dst, whole[:, 1:3])
        written.extend(whole.storage.written.view(whole).copy().tolist())

    assert result(copy, (1, 2), nl.float32, row(0, 1, 1, 0, dtype=np.uint8)).tolist() == [[1.0, 1.0]]
    assert written == [[0, 1, 1, 0]]


@pytest.mark.parametrize(("src", "dst", "shape"), [
    ("hbm", "sbuf", (24, 5)), ("sbuf", "hbm", (5, 24)), ("sbuf", "sbuf", (120, 1)), ("hbm", "hbm", (2, 3, 4, 5)),
    ("shared_hbm", "sbuf", (1, 120)), ("sbuf", "shared_hbm", (24, 5)),
])  # fmt: skip
def test_transfers_between_memories_may_change_the_shape(src, dst, shape, rng):
    values = rng.normal(size=(4, 6, 5)).astype(np.float16)
    found = result(nisa.dma_copy, shape, "float16", a_tile(values, buffer=getattr(nl, src)), to=getattr(nl, dst))
    same(found, values.reshape(shape))


@pytest.mark.parametrize("buffer", [nl.hbm, nl.sbuf], ids=["hbm", "sbuf"])
def test_overlapping_reads_make_windows(buffer, rng):
    values = rng.normal(size=(1, 16)).astype(np.float32)
    pattern = [[1, 5], [1, 12]] if buffer is nl.hbm else [[16, 1], [1, 5], [1, 12]]
    data = a_tile(values, buffer=buffer)
    found = result(lambda out, data: nisa.dma_copy(out, data.ap(pattern)), (5, 12), nl.float32, data)
    same(found, np.stack([values[0, k : k + 12] for k in range(5)]))


@pytest.mark.parametrize(("count", "scales"), [(1, None), (2, [1.0]), (16, None)])
def test_dma_compute_adds_in_fp32(count, scales, rng):
    dtypes = [FLOATS[i % len(FLOATS)] for i in range(count)]
    parts = [sample(rng, (4, 6), dtype) for dtype in dtypes]
    tiles = [a_tile(v, d, nl.hbm if i % 2 else nl.sbuf) for i, (v, d) in enumerate(zip(parts, dtypes, strict=True))]

    def add(dst, *srcs):
        nisa.dma_compute(dst, [*srcs], nl.add, scales and scales * count)

    total = np.float32(0)
    for part in parts:
        total = total + part.astype(np.float32)
    same(result(add, (6, 4), nl.bfloat16, *tiles, to=nl.hbm), rounded(total, "bfloat16").reshape(6, 4))


def test_dma_compute_accumulates_in_place(rng):
    a, b = rng.normal(size=(2, 4, 6)).astype(np.float32)
    [found] = results(lambda dst, b: nisa.dma_compute(dst, [b, dst], nl.add), out(a, nl.float32), b)
    same(found, b + a)


# dma_transpose.


# Shapes, axes, dtypes, memories and how: hardware takes some shapes of 2 bytes.
@pytest.mark.parametrize(("shape", "axes", "dtype", "src", "how"), [
    ((4, 6), (1, 0), "bfloat16", "hbm", {"axes": (1, 0)}), ((128, 3), (1, 0), "float32", "sbuf", {}),
    ((2, 3, 5), (2, 1, 0), "int8", "hbm", {"axes": (2, 1, 0)}), ((2, 3, 4, 5), (3, 1, 2, 0), "bfloat16", "sbuf", {}),
    ((16, 8), (1, 0), "bfloat16", "hbm", {"dge_mode": MODES.hwdge}),
    ((8, 4, 128), (2, 1, 0), "bfloat16", "hbm", {"dge_mode": MODES.hwdge}),
    ((1, 2, 16, 5), (3, 1, 2, 0), "float16", "hbm", {"dge_mode": MODES.hwdge}),
])  # fmt: skip
def test_dma_transpose_keeps_every_bit(shape, axes, dtype, src, how, rng):
    values = rng.integers(0, 256, (*shape, DTYPES[dtype].itemsize)).astype(np.uint8).view(dtype)[..., 0]
    made = tuple(shape[axis] for axis in axes)
    found = result(nisa.dma_transpose, made, dtype, a_tile(values, buffer=getattr(nl, src)), **how)
    same(found, values.transpose(axes).copy())
