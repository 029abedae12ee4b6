"""Copies, fills, casts and transfers against plain NumPy: every pair of dtypes, layouts, memories, predicates."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import a_tile, laid, out, result, results, rounded, row, same, sample

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.dtypes import DTYPES

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tfloat32")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
ALL = (*FLOATS, *INTEGERS, "bool_")
DGE = nisa.dge_mode
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


FILLS = [
    ("float8_e4m3", 1.5, 1.5), ("tfloat32", 1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ("bfloat16", 1 + 3 * 2.0**-8, 1 + 2.0**-6), ("float32", 3, 3.0), ("int8", -128, -128),
    ("uint32", 2**32 - 1, 2**32 - 1), ("bool_", True, 1),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value", "expected"), FILLS)
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

#: Shapes, axes, dtypes, memories and how: hardware takes some shapes of 2 bytes.
TRANSPOSES = [
    ((4, 6), (1, 0), "bfloat16", "hbm", {"axes": (1, 0)}), ((128, 3), (1, 0), "float32", "sbuf", {}),
    ((2, 3, 5), (2, 1, 0), "int8", "hbm", {"axes": (2, 1, 0)}), ((2, 3, 4, 5), (3, 1, 2, 0), "bfloat16", "sbuf", {}),
    ((16, 8), (1, 0), "bfloat16", "hbm", {"dge_mode": DGE.hwdge}),
    ((8, 4, 128), (2, 1, 0), "bfloat16", "hbm", {"dge_mode": DGE.hwdge}),
    ((1, 2, 16, 5), (3, 1, 2, 0), "float16", "hbm", {"dge_mode": DGE.hwdge}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes", "dtype", "src", "how"), TRANSPOSES)
def test_dma_transpose_keeps_every_bit(shape, axes, dtype, src, how, rng):
    values = rng.integers(0, 256, (*shape, DTYPES[dtype].itemsize)).astype(np.uint8).view(dtype)[..., 0]
    made = tuple(shape[axis] for axis in axes)
    found = result(nisa.dma_transpose, made, dtype, a_tile(values, buffer=getattr(nl, src)), **how)
    same(found, values.transpose(axes).copy())
